"""Tests of a configuration's effects on manifests, on a node's devices, and on the ledger's
state."""

from typing import Any

import pytest

from apportion.core.configuration import manifest_config, read_configuration
from apportion.core.configuration.offering import offered
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.reading import read_document
from apportion_schemas import (
    Ask,
    Configuration,
    ConfigurationChanged,
    Device,
    NodeWeights,
    PolicyChanged,
)
from apportion_schemas.configuration import NvidiaConfiguration
from tests.support.fleet import A100_40, T4, gpu, npu
from tests.support.ledger_of import Ledger
from tests.support.manifests import pod
from tests.support.pods import ask

MIB = 40960


def draft(limits: dict[str, object], **nvidia: Any) -> PodDraft:
    """Return a pod with these limits, parsed under a configuration with these `nvidia` keys."""
    config = manifest_config(read_configuration({"nvidia": nvidia}))
    (only,) = read_document(pod(limits), config).pods
    return only


def asked(limits: dict[str, object], **nvidia: Any) -> Ask:
    (only,) = draft(limits, **nvidia).shape.asks
    return only


def test_E4_a_compatible_count_gives_whole_cards_alone_and_shares_with_memory() -> None:
    """If `resourceCountName` is `nvidia.com/gpu`, a pod with only this count gets whole GPUs.

    If the pod also requests memory, it gets shares of GPUs."""
    names = {"resourceCountName": "nvidia.com/gpu", "resourceMemoryName": "volcano.sh/vgpu-memory"}
    assert asked({"nvidia.com/gpu": 2}, **names) == ask(count=2, cores=100)
    shared = draft({"nvidia.com/gpu": 1, "volcano.sh/vgpu-memory": 3000}, **names)
    assert shared.dialect == "volcano-vgpu"
    assert shared.shape.asks == (ask(3000, cap_memory=True),)


def test_D1_every_name_can_be_changed() -> None:
    """The configuration can rename every resource name of HAMi."""
    names = {
        "resourceCountName": "cards.example/gpu",
        "resourceMemoryName": "cards.example/mem",
        "resourceCoreName": "cards.example/cores",
    }
    limits = {"cards.example/gpu": 1, "cards.example/mem": 4000, "cards.example/cores": 30}
    assert asked(dict(limits), **names) == ask(4000, cores=30)
    assert draft(dict(limits), **names).dialect == "hami"


def test_the_dialect_of_names_of_one_s_own() -> None:
    """If a configuration renames the resources, its `dialect` decides how pods are read: Volcano
    caps a request at the GPU's memory, HAMi does not."""
    names = {"resourceCountName": "a.b/gpu", "resourceMemoryName": "a.b/mem"}
    volcano = draft({"a.b/gpu": 1, "a.b/mem": 1}, dialect="volcano-vgpu", **names)
    assert (volcano.dialect, volcano.shape.asks[0].cap_memory) == ("volcano-vgpu", True)
    hami = draft({"a.b/gpu": 1, "a.b/mem": 1}, **names)
    assert (hami.dialect, hami.shape.asks[0].cap_memory) == ("hami", False)


def test_D3_defaults() -> None:
    """The configuration sets the defaults for missing amounts, and the unit of memory amounts."""
    assert asked({"nvidia.com/gpucores": 10}, defaultMemory=5000, defaultGPUNum=2) == ask(
        5000, count=2, cores=10
    )
    assert asked({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3}, defaultCores=7) == ask(3, cores=7)
    assert asked({"nvidia.com/gpumem": 3}, gpuMemoryFactor=10) == ask(30)


def test_D4_mig_strategy() -> None:
    """With `migStrategy: mixed`, a resource name such as `nvidia.com/mig-1g.5gb` requests MIG
    instances.

    Without this setting, the name counts as an extended resource that the node must offer."""
    limits: dict[str, object] = {"nvidia.com/mig-1g.5gb": 3}
    mixed = draft(limits, migStrategy="mixed")
    assert mixed.shape.asks == (ask(profile="1g.5gb"),) * 3
    assert mixed.shape.node.extended == {}
    none = draft(limits)
    assert none.shape.asks == ()
    assert none.shape.node.extended == {"nvidia.com/mig-1g.5gb": 3}


def offers(document: dict[str, Any], *devices: Device, switchable: bool = True) -> list[Device]:
    """Return those of the given devices that node n1 offers under this configuration."""
    return list(offered(devices, "n1", read_configuration(document), switchable=switchable))


def test_D4_split_count_and_scaling() -> None:
    """The configuration sets how many pods may share a GPU, and scales the GPU's memory and cores.

    NPUs and MIG devices are unaffected."""
    document = {
        "nvidia": {"deviceSplitCount": 4, "deviceMemoryScaling": 1.5, "deviceCoreScaling": 2}
    }
    card, other, cut = gpu("g0", model=A100_40), npu(), gpu("g2", model=A100_40, mode="mig")
    scaled, *rest = offers(document, card, other, cut)
    assert (scaled.slots, scaled.memory_mib, scaled.cores) == (4, MIB * 3 // 2, 200)
    assert scaled.physical_memory_mib == MIB
    assert rest == [other, cut]


def test_E2_what_is_said_of_a_node_wins() -> None:
    """A node's entry in the configuration overrides only the keys that the entry sets.

    All other keys keep their cluster-wide values on that node."""
    document = {
        "nvidia": {"deviceSplitCount": 4, "deviceMemoryScaling": 1.5},
        "nodeconfig": [{"name": "n1", "devicememoryscaling": 1.0, "devicecorescaling": 1.5}],
    }
    (here,) = offers(document, gpu("g0", model=A100_40))
    assert (here.slots, here.memory_mib, here.cores) == (4, MIB, 150)
    configuration = read_configuration(document)
    (there,) = offered([gpu("g0", model=A100_40)], "n2", configuration, switchable=True)
    assert (there.memory_mib, there.cores) == (MIB * 3 // 2, 100)


def test_devices_that_are_not_offered() -> None:
    """Devices filtered by id or by index are not offered, and the remaining devices keep their
    index."""
    entry = {"name": "n1", "filterdevices": {"uuid": ["g0"], "index": [2]}}
    left = offers({"nodeconfig": [entry]}, gpu("g0"), gpu("g1"), gpu("g2"), gpu("g3"))
    assert [(device.id, device.index) for device in left] == [("g1", 1), ("g3", 3)]


@pytest.mark.parametrize(
    ("device", "mode", "switchable", "says"),
    [
        (gpu(model=A100_40), "mig", True, ""),
        (gpu(model=A100_40, mode="mig"), "hami-core", True, ""),
        (gpu(model=A100_40), "mps", False, ""),
        (gpu(model=T4), "mig", True, "operatingmode is mig, but Tesla T4 has no MIG profile"),
        (gpu("g3", model=A100_40), "mig", False, "run nvidia-smi -i 3 -mig 1"),
        (gpu("g3", model=A100_40, mode="mig"), "hami-core", False, "run nvidia-smi -i 3 -mig 0"),
    ],
)
def test_A3_the_mode_of_a_node(device: Device, mode: str, switchable: bool, says: str) -> None:
    """A device gets the mode that the configuration sets for its node.

    If the device cannot be switched to that mode, it counts as unhealthy, and the reason suggests a
    fix."""
    document = {"nodeconfig": [{"name": "n1", "operatingmode": mode}]}
    (found,) = offers(document, device, switchable=switchable)
    assert found.healthy is not bool(says)
    assert says in found.health_reason
    assert found.mode == (device.mode if says else mode)
    assert found.slots == (device.slots if says else {"mig": 7}.get(mode, 10))


def changed(**fields: Any) -> ConfigurationChanged:
    return ConfigurationChanged(by="ada", reason="test", configuration=Configuration(**fields))


def test_the_fold_takes_the_whole_document() -> None:
    """A new configuration replaces the whole previous one: keys that it omits return to their
    defaults."""
    first = changed(nvidia=NvidiaConfiguration(default_memory=5000))
    ledger = Ledger(first, PolicyChanged(by="ann", node_policy="spread"), changed())
    assert ledger.state.configuration == Configuration()
    assert ledger.state.configuration_revision == 3
    assert ledger.state.policy.by == "ann"


def test_a_policy_in_the_document_is_a_change_of_policy() -> None:
    """The latest policy applies, whether a configuration document or a policy event has set it.

    Fields that the latest policy omits keep their values."""
    weights = {"cpu": 1, "memory": 1, "devices": 10}
    document = read_configuration({"policy": {"nodes": "binpack", "weights": weights}})
    ledger = Ledger(
        PolicyChanged(by="ann", node_policy="spread", device_policy="spread"),
        ConfigurationChanged(by="ada", configuration=document),
    )
    policy = ledger.state.policy
    assert (policy.by, policy.node_policy, policy.device_policy) == ("ada", "binpack", "spread")
    assert policy.node_weights == NodeWeights(cpu=1, memory=1, devices=10)
    assert ledger.state.policy_revision == 2


def test_a_foreign_writer_s_nonsense_is_refused_by_every_fold() -> None:
    """The fold refuses an event that contains a contradictory configuration, and leaves the state
    unchanged."""
    nonsense = changed(nvidia=NvidiaConfiguration(resource_memory_name="nvidia.com/gpu"))
    said = Ledger().contradict(nonsense)
    assert said.startswith('nvidia.resourceMemoryName: "nvidia.com/gpu" ')
