"""Unit tests of `core/workloads/dialects/vendors/amd.py`."""

import json
from typing import Any

import pytest

from apportion.core.placement.limits import quotas
from apportion.core.workloads.dialects.node_annotations import registration
from apportion.core.workloads.dialects.vendors.amd import DIALECTS
from apportion.core.workloads.document import ManifestError
from apportion_schemas import (
    DEVICE_PLUGIN,
    Ask,
    Configuration,
    DeviceConstraints,
    QuotaObserved,
    RefusalCode,
)
from tests.support.manifests import asks, draft, pod, refused
from tests.support.vendor_nodes import VENDORS, vendor_node
from tests.support.vendor_placements import BOUND, ledger, place, sample, written

COUNT, MEMORY, CORES = "amd.com/gpu", "amd.com/gpumem", "amd.com/gpucores"
REGISTER = "hami.io/node-amd-register"
ENTRY = {
    "id": "9a4f", "index": 2, "count": 10, "devmem": 65520, "devcore": 104, "numa": 1,
    "type": "AMD Instinct MI210", "health": True, "custominfo": {"pciBDF": "0000:05:00.0"},
}  # fmt: skip


def amounts(count: object, memory: object = None, cores: object = None) -> dict[str, object]:
    """Return resource limits with these amounts of AMD GPUs; None leaves an amount out."""
    said = {COUNT: count, MEMORY: memory, CORES: cores}
    return {name: amount for name, amount in said.items() if amount is not None}


@pytest.mark.parametrize(
    ("limits", "dialect", "wanted"),
    [
        (amounts(1), "amd-gpu", {"cores": 100}),
        (amounts(2), "amd-gpu", {"count": 2, "cores": 100}),
        (amounts(1, 4096), "amd", {"memory_mib": 4096, "cores": 100}),
        (amounts(1, 0), "amd", {"cores": 100}),
        (amounts(1, None, 30), "amd", {"cores": 30}),
        (amounts(2, 8192, 1), "amd", {"count": 2, "memory_mib": 8192, "cores": 1}),
        (amounts(0, 8192), "none", None),
        ({MEMORY: 8192, CORES: 30}, "none", None),
    ],
)
def test_asks(limits: dict[str, object], dialect: str, wanted: dict[str, Any] | None) -> None:
    """Memory is in MiB and cores are in percent, both per GPU. By default, a request means all
    memory and all cores."""
    found = draft(pod(limits))
    assert found.dialect == dialect
    assert found.shape.asks == (
        () if wanted is None else (Ask(container="main", family="amd", **wanted),)
    )


@pytest.mark.parametrize("cores", [0, 101, 200])
def test_cores_are_a_percentage(cores: int) -> None:
    """Like HAMi's webhook, Apportion refuses less than 1 and more than 100 percent of cores."""
    error = refused(pod(amounts(1, None, cores)))
    assert error.field == f'spec.containers[0].resources.limits["{CORES}"]'
    assert error.value == cores


def test_devices_are_chosen_by_type_and_id() -> None:
    """Annotations select and exclude GPUs by type and by id, on pods with whole GPUs and on pods
    with parts of GPUs."""
    chosen = {
        "amd.com/use-gputype": "MI300X,MI325X",
        "amd.com/nouse-gputype": "MI210",
        "amd.com/use-gpu-uuid": "a",
        "amd.com/nouse-gpu-uuid": "b",
    }
    for limits in (amounts(1), amounts(1, 4096)):
        assert draft(pod(limits, chosen)).shape.devices == DeviceConstraints(
            use_types=("MI300X", "MI325X"),
            nouse_types=("MI210",),
            use_ids=("a",),
            nouse_ids=("b",),
            plugin="hami",
        )


def test_hamis_plugin_registers_compute_units() -> None:
    """A registered GPU has its compute units as cores, and its product name as model."""
    found = registration(vendor_node({REGISTER: json.dumps([ENTRY])}, {COUNT: 10}))
    assert (found.plugin, found.problem) == ("hami", "")
    (device,) = found.devices
    assert (device.id, device.index, device.family, device.model) == (
        "9a4f", 2, "amd", "AMD Instinct MI210"
    )  # fmt: skip
    assert (device.memory_mib, device.cores, device.slots, device.numa) == (65520, 104, 10, 1)
    assert (device.mode, device.healthy) == ("hami-core", True)


@pytest.mark.parametrize(
    ("text", "offered", "says"),
    [
        ("[{]", 10, REGISTER),
        (json.dumps([ENTRY, ENTRY]), 10, "twice"),
        (json.dumps([ENTRY | {"devcore": 0}]), 10, "'9a4f'"),
        (json.dumps([ENTRY]), 0, COUNT),
    ],
)
def test_a_registration_that_cannot_be_read(text: str, offered: int, says: str) -> None:
    """A node offers no GPUs if its registration is malformed, if a GPU has no compute units, or if
    the plugin is gone."""
    found = registration(vendor_node({REGISTER: text}, {COUNT: offered}))
    assert not found.devices
    assert says in found.problem


def test_amds_own_plugin_counts_whole_gpus() -> None:
    """If HAMi's plugin has registered nothing, the GPUs that AMD's plugin counts are offered as
    whole devices. Labels of the node may give their model and memory."""
    found = registration(vendor_node({}, {COUNT: 2}))
    assert (found.plugin, found.problem) == ("vendor", "")
    assert [(d.id, d.memory_mib, d.mode, d.slots, d.cores) for d in found.devices] == [
        (f"n1-AMDGPU-{at}", 192_000, "exclusive", 1, 100) for at in range(2)
    ]
    labels = {"amd.com/gpu.vram": "64G", "amd.com/gpu.product-name": "AMD_Instinct_MI210"}
    (device,) = registration(vendor_node({}, {COUNT: 1}, labels=labels)).devices
    assert (device.memory_mib, device.model) == (65536, "AMD_Instinct_MI210")


def test_slots_of_hamis_plugin_are_no_gpus() -> None:
    """On a node with the label for HAMi's plugin, the counted slots are not offered as whole GPUs.
    The plugin reports its slots before it registers GPUs."""
    labels = {DEVICE_PLUGIN: "hami"}
    assert registration(vendor_node({}, {COUNT: 20}, labels=labels)).devices == ()


def test_a_part_needs_hamis_plugin() -> None:
    """Whole GPUs of AMD's plugin take pods that request GPUs, but no pods that request parts."""
    here = place(ledger(VENDORS["amd-gpu"].node), "part", pod(amounts(1, 4096)))
    assert here.reasons("part").keys() == {RefusalCode.MODE_MISMATCH}
    assert place(here, "whole", pod(amounts(8))).where("whole") == "n1"


def test_annotations_of_a_share() -> None:
    """The annotations of the sample pod have the GPU's model and 100 compute units, which are 33
    percent of 304."""
    found = written(place(ledger(VENDORS["amd"].node), "p", sample("amd")), "p")
    (device,) = {text.partition(",")[0] for key, text in found.items() if "devices-" in key}
    segments = f"{device},AMD Instinct MI300X,65536,100:;"
    assert found == BOUND | {
        "hami.io/amd-devices-to-allocate": segments,
        "hami.io/amd-devices-allocated": segments,
    }


def test_compute_units_of_shares_add_up() -> None:
    """A share has at least one compute unit. A GPU with five units therefore takes five shares of
    one percent."""
    entry = ENTRY | {"devcore": 5}
    here = ledger(vendor_node({REGISTER: json.dumps([entry])}, {COUNT: 10}))
    for number in range(6):
        place(here, f"p{number}", pod(amounts(1, 8, 1)))
    assert [bool(here.where(f"p{number}")) for number in range(6)] == [True] * 5 + [False]


def test_a_quota_counts_percent() -> None:
    """A quota on `gpucores` counts percent, the unit in which pods request cores."""
    here = place(ledger(VENDORS["amd"].node), "p", pod(amounts(2, 8, 33)))
    held = quotas.of_shares(here.pod("p").submitted.shape, here.shares("p"), here.node())
    for most, exceeded in ((66, False), (65, True)):
        hard = {f"limits.{CORES}": most}
        quota = quotas.NamespaceQuota(
            QuotaObserved(namespace="n", quota="q", hard=hard), Configuration()
        )
        assert (quota.exceeded({}, held) is not None) is exceeded


def test_the_lock_and_the_section() -> None:
    """HAMi's plugin needs HAMi's node lock; AMD's own plugin needs no lock.

    In HAMi's configuration, only the vendor's usual resource names are accepted."""
    for each in DIALECTS:
        assert {plugin: lock.key for plugin, lock in each.locks.items()} == {
            "hami": "hami.io/mutex.lock"
        }
    check = DIALECTS[1].sections["amd"]
    assert check(
        {"resourceCountName": COUNT, "resourceMemoryName": MEMORY, "resourceCoreName": CORES}, "amd"
    )
    with pytest.raises(ManifestError) as caught:
        check({"resourceCoreName": "example.com/cores"}, "amd")
    assert caught.value.field == "amd.resourceCoreName"


def test_two_containers_each_have_gpus() -> None:
    """A pod may request whole AMD GPUs in one container and a part of an AMD GPU in another
    container."""
    whole = {"name": "a", "image": "app", "resources": {"limits": amounts(1)}}
    part = {"name": "b", "image": "app", "resources": {"limits": amounts(1, 4096, 10)}}
    assert [ask.cores for ask in asks(pod(containers=[whole, part]))] == [100, 10]
