"""Tests of the devices that plugins of HAMi and Volcano register in annotations of nodes."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from apportion.core.workloads.dialects.dialect import SLOT
from apportion.core.workloads.dialects.hami import CORDON, CORDONED
from apportion.core.workloads.dialects.hami import REGISTER as HAMI_NVIDIA
from apportion.core.workloads.dialects.inventory import UNHEALTHY, NodeFacts
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.dialects.node_annotations import Registration, registration
from apportion.core.workloads.dialects.nvidia import VOLCANOS_MIG
from apportion.core.workloads.dialects.volcano_vgpu import REGISTER as VOLCANO_NVIDIA
from apportion_schemas import DEVICE_PLUGIN

OFFERED = {
    "nvidia.com/gpu": 20, "volcano.sh/vgpu-number": 20, "volcano.sh/vgpu-memory": 1,
    "volcano.sh/vgpu-cores": 1,
}  # fmt: skip
ENTRY = {
    "id": "GPU-a", "index": 3, "count": 10, "devmem": 15360, "devcore": 100,
    "type": "NVIDIA-Tesla T4", "numa": 1, "mode": "hami-core", "health": True,
}  # fmt: skip


def read(
    notes: Mapping[str, str], offered: Mapping[str, int] = OFFERED, **config: Any
) -> Registration:
    """Return what plugins have registered in these annotations of a node."""
    return registration(NodeFacts("n1", notes, {}, offered, DialectConfig(**config), offered))


def hami(*entries: Mapping[str, object]) -> Registration:
    """Return what these entries of HAMi's JSON register."""
    return read({HAMI_NVIDIA: json.dumps(entries)})


def test_an_entry_of_hami() -> None:
    """An entry of HAMi's JSON has a device's id, index, amounts, model, NUMA node and health."""
    plugin, (found,), problem = hami(ENTRY)
    assert (plugin, problem) == ("hami", "")
    assert (found.id, found.index, found.model, found.numa) == ("GPU-a", 3, "Tesla T4", 1)
    assert (found.memory_mib, found.cores, found.slots) == (15360, 100, 10)
    assert found.healthy


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA-NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA-Tesla T4", "Tesla T4"),
    ],
)
def test_the_model_is_the_drivers(kind: str, model: str) -> None:
    """HAMi up to 2.7 adds `NVIDIA-` to every model's name, later versions only to names without
    `NVIDIA`. In both cases, the device has the name that the driver reports."""
    _, (found,), _ = hami(ENTRY | {"type": kind})
    assert found.model == model


def test_an_absent_health_means_unhealthy() -> None:
    """A device without the field `health` is unhealthy, because HAMi omits the field if it is
    false."""
    _, (found,), _ = hami({key: value for key, value in ENTRY.items() if key != "health"})
    assert (found.healthy, found.health_reason) == (False, UNHEALTHY)


def test_G5_a_gpu_that_hami_cordons_is_not_offered() -> None:
    """On a node of HAMi's plugin, the GPUs in `hami.io/device-cordon` take no more pods."""
    entries = [ENTRY, ENTRY | {"id": "GPU-b", "index": 4}, ENTRY | {"id": "GPU-c", "index": 5}]
    found = read({HAMI_NVIDIA: json.dumps(entries), CORDON: " GPU-a ,,GPU-c"})
    assert [each.health_reason for each in found.devices] == [CORDONED, "", CORDONED]


def test_a_gpu_that_volcanos_plugin_divides_by_mig_is_not_offered() -> None:
    """A GPU of Volcano's plugin in MIG mode is shown as unhealthy, with the reason."""
    _, (found,), _ = read({VOLCANO_NVIDIA: "GPU-a,7,40960,NVIDIA-NVIDIA A100,true,mig:"})
    assert (found.mode, found.healthy, found.health_reason) == ("mig", False, VOLCANOS_MIG)


def test_hamis_older_encodings() -> None:
    """HAMi's older encoding separates fields by commas. Only some versions write index and mode."""
    short = "GPU-a,10,15360,100,NVIDIA-Tesla T4,0,true:GPU-b,10,15360,100,NVIDIA-Tesla T4,0,false:"
    _, (first, second), problem = read({HAMI_NVIDIA: short})
    assert (problem, first.index, second.index) == ("", 0, 1)
    assert (first.healthy, second.healthy) == (True, False)
    long = "GPU-a,10,15360,100,NVIDIA-Tesla T4,0,true,5,mps:"
    _, (found,), _ = read({HAMI_NVIDIA: long})
    assert (found.index, found.mode) == (5, "mps")


def test_volcanos_encoding() -> None:
    """Volcano's plugin registers memory divided by the memory factor. The index of a device is its
    position in the list."""
    text = "GPU-a,10,15,NVIDIA-Tesla T4,true,hami-core:GPU-b,10,15,NVIDIA-Tesla T4,false,hami-core:"
    plugin, (first, second), problem = read({VOLCANO_NVIDIA: text}, memory_factor=1024)
    assert (plugin, problem, second.index) == ("volcano", "", 1)
    assert (first.memory_mib, first.cores) == (15360, 100)
    assert (first.healthy, second.healthy) == (True, False)


@pytest.mark.parametrize("mode", ["", "hami-core", "mps", "foo"])
def test_F19_volcano_knows_no_mode_but_mig_and_hami_core(mode: str) -> None:
    """A GPU that Volcano's plugin registers with any mode except `mig` is in the mode
    `hami-core`."""
    found = read({VOLCANO_NVIDIA: f"GPU-a,10,15360,NVIDIA-Tesla T4,true,{mode}:"})
    assert (found.problem, [device.mode for device in found.devices]) == ("", ["hami-core"])


def test_a_plugin_that_does_not_run_offers_nothing() -> None:
    """A node does not offer registered devices if the kubelet reports no resources of their plugin.
    The annotation stays even if the plugin is removed."""
    plugin, devices, problem = read({HAMI_NVIDIA: json.dumps([ENTRY])}, {"nvidia.com/gpu": 0})
    assert (plugin, devices) == ("hami", ())
    assert "the plugin does not run" in problem
    found = read({VOLCANO_NVIDIA: "GPU-a,1,1,T4,true,:"}, OFFERED | {"volcano.sh/vgpu-cores": 0})
    assert "volcano.sh/vgpu-cores" in found.problem


@pytest.mark.parametrize(
    ("notes", "problem"),
    [
        ({HAMI_NVIDIA: "[{"}, "cannot be read"),
        ({HAMI_NVIDIA: '[{"id": 5}]'}, "cannot be read"),
        ({HAMI_NVIDIA: "GPU-a,10,1:"}, "has 3 fields instead of 7 or 9"),
        ({HAMI_NVIDIA: "GPU-a,ten,1,100,T4,0,true:"}, "'ten' is not a whole number"),
        ({HAMI_NVIDIA: "GPU-a,--5,1,100,T4,0,true:"}, "'--5' is not a whole number"),
        ({HAMI_NVIDIA: json.dumps([ENTRY | {"id": ""}])}, "cannot be used"),
        ({HAMI_NVIDIA: json.dumps([ENTRY, ENTRY])}, "registered twice"),
        ({HAMI_NVIDIA: json.dumps([ENTRY | {"id": str(n)} for n in range(65)])}, "at most 64"),
        ({HAMI_NVIDIA: json.dumps([ENTRY | {"mode": "new"}])}, "unknown mode 'new'"),
        ({HAMI_NVIDIA: json.dumps([ENTRY | {"devmem": -1}])}, "cannot be used"),
        ({HAMI_NVIDIA: json.dumps([ENTRY | {"devmem": 1 << 40}])}, "cannot be used"),
        ({HAMI_NVIDIA: "x" * (300 << 10)}, "is longer than 262144 characters"),
        ({VOLCANO_NVIDIA: "GPU-a,1,1,T4:"}, "has 4 fields, not 6"),
        ({"hami.io/node-register-Acme": "[{}]"}, "not supported"),
    ],
)
def test_what_cannot_be_read_is_not_offered(notes: dict[str, str], problem: str) -> None:
    """A registration that is malformed or too large has no devices, and the reason is kept."""
    found = read(notes)
    assert found.devices == ()
    assert problem in found.problem


@pytest.mark.parametrize("text", ["", "[]", " : "])
def test_an_empty_annotation_registers_nothing(text: str) -> None:
    """An empty annotation counts as no registration."""
    assert read({HAMI_NVIDIA: text}) == Registration()
    assert read({"hami.io/node-nvidia-score": "[1]"}) == Registration()


FEATURES = {
    "nvidia.com/gpu.product": "NVIDIA-L40S", "nvidia.com/gpu.memory": "46068",
    DEVICE_PLUGIN: "vendor",
}  # fmt: skip


def counted(labels: Mapping[str, str], **offered: int) -> Registration:
    """Return what a node with these labels and four GPUs of NVIDIA's plugin offers."""
    return registration(
        NodeFacts("n1", {}, labels, {"nvidia.com/gpu": 4} | offered, DialectConfig(), {})
    )


def test_nvidias_own_plugin_offers_whole_gpus_on_labelled_nodes() -> None:
    """With the label `apportion.dev/device-plugin: vendor`, a node offers every GPU that NVIDIA's
    plugin counts. Model and memory come from the labels of GPU feature discovery."""
    found = counted(FEATURES)
    assert (found.plugin, found.problem, len(found.devices)) == ("vendor", "", 4)
    assert [each.id for each in found.devices[:2]] == ["n1-nvidia-0", "n1-nvidia-1"]
    first = found.devices[0]
    assert (first.model, first.memory_mib, first.mode, first.slots) == (
        "NVIDIA-L40S", 46068, "exclusive", 1,
    )  # fmt: skip
    assert first.healthy


def test_a_replica_of_time_slicing_has_its_part_of_the_memory() -> None:
    """With time slicing, NVIDIA's plugin counts replicas. Each replica has an equal part of its
    GPU's memory."""
    found = counted(FEATURES | {"nvidia.com/gpu.replicas": "2"})
    assert {each.memory_mib for each in found.devices} == {23034}


@pytest.mark.parametrize(
    ("labels", "offered"),
    [({}, {}), (FEATURES | {DEVICE_PLUGIN: "apportion"}, {}), (FEATURES, {SLOT: 100})],
)
def test_gpus_of_other_nodes_are_not_nvidias_own(
    labels: dict[str, str], offered: dict[str, int]
) -> None:
    """Without the label `apportion.dev/device-plugin: vendor`, a node offers no GPUs of NVIDIA's
    plugin: the counted GPUs may be shares of HAMi's plugin.

    A node with slots of Apportion's agent offers none either, because the agent reports the
    GPUs."""
    assert counted(labels, **offered) == Registration()


def test_a_gpu_that_hami_registered_is_not_offered_twice() -> None:
    """Devices that a vendor's plugin only counts are not offered if HAMi's plugin has registered
    devices of the same family."""
    labels = FEATURES | {DEVICE_PLUGIN: "vendor"}
    notes = {HAMI_NVIDIA: json.dumps([ENTRY])}
    found = registration(
        NodeFacts("n1", notes, labels, {"nvidia.com/gpu": 10}, DialectConfig(), {})
    )
    assert (found.plugin, [each.id for each in found.devices]) == ("hami", ["GPU-a"])


def test_no_device_of_a_registration_that_breaks_off_is_offered() -> None:
    """If one entry of a registration cannot be used, no device of this plugin is offered. The
    devices of another plugin are still offered, and the problem is kept."""
    notes = {HAMI_NVIDIA: json.dumps([ENTRY, ENTRY | {"id": "GPU-b", "devmem": -1}])}
    assert read(notes).devices == ()
    found = read(notes, OFFERED | {"metax-tech.com/gpu": 2})
    assert (found.plugin, len(found.devices)) == ("vendor", 2)
    assert "GPU-b" in found.problem
