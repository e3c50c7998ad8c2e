"""Unit tests of `core/workloads/dialects/vendors/iluvatar.py`."""

from typing import Any

import pytest

from apportion.core.workloads.dialects.node_annotations import registration
from apportion.core.workloads.dialects.vendors.iluvatar import CHIPS, DIALECTS
from apportion.core.workloads.document import ManifestError
from apportion_schemas import Ask, DeviceConstraints
from tests.support.manifests import asks, container, draft, pod, refused
from tests.support.vendor_nodes import VENDORS, vendor_node
from tests.support.vendor_placements import BOUND, NOW_S, ledger, place, sample, written

COUNT, MEMORY, CORES = "iluvatar.ai/vgpu", "iluvatar.ai/vcuda-memory", "iluvatar.ai/vcuda-core"
REGISTER = "hami.io/node-BI-V150-register"


def limits(count: object, memory: object = None, cores: object = None) -> dict[str, Any]:
    """Return the manifest of a pod with these amounts, under the resource names of HAMi 2.6's
    plugin."""
    amounts = {COUNT: count, MEMORY: memory, CORES: cores}
    return pod({name: amount for name, amount in amounts.items() if amount is not None})


def of_chip(document: dict[str, Any], word: str) -> dict[str, Any]:
    """Return the manifest with the resource names of this chip."""
    (only,) = document["spec"]["containers"]
    names = dict(zip((COUNT, MEMORY, CORES), CHIPS[word].names, strict=True))
    return pod({names[name]: amount for name, amount in only["resources"]["limits"].items()})


@pytest.mark.parametrize("word", [None, *CHIPS])
@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        (limits(1), {}),
        (limits(1, 64, 30), {"memory_mib": 16384, "cores": 30}),
        (limits(1, 0), {}),
        (limits(1, 4, 150), {"memory_mib": 1024, "cores": 100}),
        (limits(2), {"count": 2, "cores": 100}),
        (limits(2, 8, 200), {"count": 2, "memory_mib": 2048, "cores": 100}),
        (limits(0, 4), None),
    ],
)
def test_asks(document: dict[str, Any], wanted: dict[str, Any] | None, word: str | None) -> None:
    """Memory is in units of 256 MiB, cores in percent, each per GPU. A GPU is shared unless the
    container requests all of its cores, or several GPUs."""
    read = asks(of_chip(document, word) if word else document)
    family = CHIPS[word].family if word else "iluvatar"
    assert read == ((Ask(container="main", family=family, **wanted),) if wanted is not None else ())


def test_names_of_each_chip() -> None:
    """Each chip has resource names of its own."""
    assert CHIPS["MR-V50"].names == (
        "iluvatar.ai/MR-V50-vgpu", "iluvatar.ai/MR-V50.vMem", "iluvatar.ai/MR-V50.vCore"
    )  # fmt: skip
    assert set(CHIPS) == {"MR-V100", "MR-V50", "BI-V150", "BI-V100"}


def test_a_part_of_the_cores_of_several_gpus_is_refused() -> None:
    """A request for a part of the cores of several GPUs is refused, because HAMi's webhook would
    set 100 percent of each."""
    for document in (limits(2, None, 30), of_chip(limits(2, None, 30), "BI-V100")):
        error = refused(document)
        (name,) = (
            name
            for name in document["spec"]["containers"][0]["resources"]["limits"]
            if name.lower().endswith("core")
        )
        assert error.field == f'spec.containers[0].resources.limits["{name}"]'
        assert error.value == 30


def test_devices_are_chosen_by_id() -> None:
    """A chip's annotations select and exclude GPUs by id. They are refused on a pod that requests
    another chip."""
    chosen = {"hami.io/use-BI-V150-uuid": "a,b", "hami.io/no-use-BI-V150-uuid": "c"}
    found = draft(pod({"iluvatar.ai/BI-V150-vgpu": 1}, chosen)).shape.devices
    assert found == DeviceConstraints(use_ids=("a", "b"), nouse_ids=("c",), plugin="hami")
    assert refused(pod({"iluvatar.ai/BI-V100-vgpu": 1}, chosen)).field.startswith("metadata.")
    older = {"iluvatar.ai/use-gpuuuid": "a", "iluvatar.ai/nouse-gpuuuid": "c"}
    found = draft(pod({COUNT: 1}, older)).shape.devices
    assert (found.use_ids, found.nouse_ids) == (("a",), ("c",))


def test_a_chip_is_registered_by_its_plugin() -> None:
    """The plugin registers the GPUs of a chip in an annotation, in HAMi's older encoding."""
    text = "GPU-1,10,65536,100,BI-V150,1,true,3,hami-core:GPU-2,10,65536,100,BI-V150,0,false,4,:"
    found = registration(vendor_node({REGISTER: text}, {"iluvatar.ai/BI-V150-vgpu": 20}))
    assert (found.plugin, found.problem) == ("hami", "")
    first, second = found.devices
    assert (first.id, first.index, first.family, first.model) == (
        "GPU-1", 3, "iluvatar-bi-v150", "BI-V150"
    )  # fmt: skip
    assert (first.memory_mib, first.cores, first.slots, first.numa) == (65536, 100, 10, 1)
    assert (first.healthy, second.healthy) == (True, False)


@pytest.mark.parametrize(
    ("text", "offered", "says"),
    [
        ("GPU-1,10,65536,100,BI-V150:", 10, "5 fields"),
        ("GPU-1,10,many,100,BI-V150,0,true,0,:", 10, "'many'"),
        ("GPU-1,10,65536,100,BI-V150,0,true,0,:", 0, "no iluvatar.ai/BI-V150-vgpu"),
    ],
)
def test_a_registration_that_cannot_be_read(text: str, offered: int, says: str) -> None:
    """A malformed registration, or one whose plugin is gone, offers nothing and says why."""
    found = registration(vendor_node({REGISTER: text}, {"iluvatar.ai/BI-V150-vgpu": offered}))
    assert not found.devices
    assert says in found.problem


def test_the_plugin_of_hami_2_6_counts_percent_and_units() -> None:
    """HAMi 2.6's plugin reports only a node's total percentage of cores and total memory. Like
    HAMi, Apportion offers one GPU per 100 percent, rounded up. All GPUs have the same memory."""
    found = registration(vendor_node({}, {CORES: 250, MEMORY: 320}))
    assert [each.id for each in found.devices] == [f"n1-iluvatar-{at}" for at in range(3)]
    assert {each.memory_mib for each in found.devices} == {320 * 256 * 100 // 250}
    assert {(each.cores, each.slots, each.family) for each in found.devices} == {
        (100, 100, "iluvatar")
    }
    assert not registration(vendor_node({}, {COUNT: 4, MEMORY: 320})).devices


def test_annotations_of_a_chip() -> None:
    """The pod of the sample manifest gets the annotations that HAMi writes for the pod's chip."""
    document = sample("iluvatar")
    found = written(place(ledger(VENDORS["iluvatar-bi-v150"].node), "p", document), "p")
    (device,) = {text.partition(",")[0] for key, text in found.items() if "devices-" in key}
    segments = f"{device},BI-V150,16384,30:;"
    assert found == BOUND | {
        "hami.io/BI-V150-devices-to-allocate": segments,
        "hami.io/BI-V150-devices-allocated": segments,
    }


def test_annotations_of_hami_2_6() -> None:
    """For HAMi 2.6's plugin, the annotations of a pod also list the indexes of each container's
    GPUs. The number in such an annotation's name is the position of the container."""
    containers = [container("a"), container("b", {COUNT: 2}), container("c", {COUNT: 1, CORES: 1})]
    found = written(place(ledger(VENDORS["iluvatar"].node), "p", pod(containers=containers)), "p")
    segments = found["hami.io/iluvatar-vgpu-devices-allocated"]
    ids = [record.partition(",")[0] for record in segments.replace(";", "").split(":") if record]
    first, second, third = (name.removeprefix("n1-iluvatar-") for name in ids)
    assert found == BOUND | {
        "hami.io/iluvatar-vgpu-devices-to-allocate": segments,
        "hami.io/iluvatar-vgpu-devices-allocated": (
            f";{ids[0]},Iluvatar,32768,100:{ids[1]},Iluvatar,32768,100:;{ids[2]},Iluvatar,32768,1:;"
        ),
        "iluvatar.ai/gpu-assigned": "false",
        "iluvatar.ai/predicate-time": str(NOW_S * 10**9),
        "iluvatar.ai/predicate-gpu-idx-1": f"{first},{second}",
        "iluvatar.ai/predicate-gpu-idx-2": third,
    }


def test_shares_fill_a_gpu() -> None:
    """GPUs take shares until their memory is used up."""
    here = ledger(VENDORS["iluvatar"].node)
    for number in range(9):
        place(here, f"p{number}", limits(1, 64))  # 16 of 32 GiB
    assert [bool(here.where(f"p{number}")) for number in range(9)] == [True] * 8 + [False]


def test_locks() -> None:
    """A chip's plugin needs HAMi's node lock; the plugin of HAMi 2.6 needs none."""
    *chips, older = DIALECTS
    assert {each.locks["hami"].key for each in chips} == {"hami.io/mutex.lock"}
    assert not older.locks


def test_sections_of_hamis_chart() -> None:
    """The resource names of HAMi's chart are accepted. Other names and unknown chips are
    refused."""
    check = DIALECTS[0].sections["iluvatars"]
    chip = {
        "chipName": "MR-V50",
        "commonWord": "MR-V50",
        "resourceCountName": "iluvatar.ai/MR-V50-vgpu",
        "resourceMemoryName": "iluvatar.ai/MR-V50.vMem",
        "resourceCoreName": "iluvatar.ai/MR-V50.vCore",
    }
    assert check([chip, {"chipName": "BI-V100"}], "iluvatars")
    for key, value in (("resourceCoreName", "example.com/core"), ("commonWord", "BI-V200")):
        with pytest.raises(ManifestError) as caught:
            check([chip, chip | {key: value}], "iluvatars")
        assert (caught.value.field, caught.value.value) == (f"iluvatars[1].{key}", value)
    (name,) = (name for each in DIALECTS[-1:] for name in each.sections)
    assert name == "iluvatar"
    with pytest.raises(ManifestError):
        DIALECTS[-1].sections[name]({"resourceCountName": "example.com/gpu"}, name)
