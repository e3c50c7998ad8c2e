"""Tests of Enflame GCUs, whole, in slices (DRS) and shared by HAMi up to 2.9 (vGCU)."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from apportion.core.configuration.hami_volcano_keys import without_foreign
from apportion.core.workloads.adoption.recovery import recover
from apportion.core.workloads.dialects import DialectConfig
from apportion.core.workloads.dialects.dialect import BoundPod, Held
from apportion.core.workloads.dialects.node_annotations import Registration, registration
from apportion.core.workloads.document import ManifestError
from apportion_schemas import Ask, DeviceConstraints, RefusalCode
from tests.support.manifests import asks, container, draft, pod, refused
from tests.support.vendor_nodes import DRS_CAPACITY, VENDORS, vendor_node
from tests.support.vendor_placements import BOUND, NOW_S, annotations, ledger, place

SAMPLES = Path(__file__).resolve().parents[6] / "examples" / "vendors"
GCU = "enflame.com/gcu"
DRS, MEMORY, CORES = "enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"
VGCU, PERCENT, SLICES = (
    "enflame.com/vgcu",
    "enflame.com/vgcu-percentage",
    "enflame.com/shared-gcu",
)
CARDS, CAPACITY = "enflame.com/gcu-count", "enflame.com/gcu-drs-capacity"
ALLOCATED = "hami.io/enflame-vgpu-devices-allocated"
TIME = f"{NOW_S}000000000"
SLICED = VENDORS["enflame-drs"].node
SHARED = VENDORS["enflame-vgcu"].node


def ask(family: str, **fields: Any) -> tuple[Ask, ...]:
    return (Ask(container="main", family=family, **fields),)


def registered(**changes: Any) -> Registration:
    """Return what a node registers whose annotation of slices per GCU has these changes."""
    return registration(vendor_node({CAPACITY: json.dumps(DRS_CAPACITY | changes)}, {DRS: 24}))


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({GCU: 2}, ask("enflame-gcu", count=2, cores=100)),
        ({GCU: 0}, ()),
        ({DRS: 3}, ask("enflame-drs", cores=3)),
        ({VGCU: 1, SLICES: 4}, ask("enflame-vgcu", memory_percent=100, cores=4)),
        ({VGCU: 1, PERCENT: 22, SLICES: 1}, ask("enflame-vgcu", memory_percent=22, cores=1)),
        ({VGCU: 2, SLICES: 8}, ask("enflame-vgcu", count=2, memory_percent=100, cores=4)),
        ({VGCU: 0}, ()),
        ({PERCENT: 20}, ()),
    ],
)
def test_asks(limits: dict[str, object], wanted: tuple[Ask, ...]) -> None:
    """A container requests a number of whole GCUs, a slice of a certain size, or a number of vGCUs.
    A vGCU has a percentage of the memory, by default all of it."""
    assert asks(pod(limits)) == wanted


@pytest.mark.parametrize(
    ("limits", "resource", "fact"),
    [
        ({DRS: 0}, DRS, "3g.20gb"),
        ({DRS: 100}, DRS, "3g.20gb"),
        ({MEMORY: 20480}, MEMORY, DRS),
        ({MEMORY: 20480, CORES: 40}, MEMORY, DRS),
        ({CORES: 40}, CORES, DRS),
        ({DRS: 3, CORES: 40}, CORES, DRS),
        ({VGCU: 1, PERCENT: 22}, VGCU, SLICES),
        ({VGCU: 1, PERCENT: 101, SLICES: 1}, PERCENT, "100"),
        ({VGCU: 1, PERCENT: 0, SLICES: 1}, PERCENT, "100"),
        ({VGCU: 2, PERCENT: 50, SLICES: 4}, PERCENT, "2 vGCUs"),
        ({VGCU: 2, SLICES: 7}, SLICES, "2 vGCUs"),
        ({VGCU: 1, SLICES: 100}, SLICES, "1 vGCUs"),
        ({SLICES: 2}, SLICES, VGCU),
        ({VGCU: 65, SLICES: 65}, VGCU, "64"),
        ({GCU: 65}, GCU, "64"),
    ],
)
def test_refusals(limits: dict[str, object], resource: str, fact: str) -> None:
    """An amount whose meaning depends on the node is refused. So is an amount that no GCU has."""
    error = refused(pod(limits))
    assert error.field == f'spec.containers[0].resources.limits["{resource}"]'
    assert fact in str(error)


@pytest.mark.parametrize("limits", [{DRS: 1}, {VGCU: 1, SLICES: 1}])
def test_choice_by_id(limits: dict[str, object]) -> None:
    """Lists of ids choose among GCUs that are shared, and are refused for whole GCUs."""
    notes = {"enflame.com/use-gpuuuid": "a,b", "enflame.com/nouse-gpuuuid": "c"}
    assert draft(pod(limits, notes)).shape.devices == DeviceConstraints(
        use_ids=("a", "b"), nouse_ids=("c",), plugin="hami"
    )
    assert "use-gpuuuid" in refused(pod({GCU: 1}, notes)).field


def test_annotations_of_whole_gcus() -> None:
    """A pod with whole GCUs gets HAMi's annotations, in which every GCU has a memory of 100."""
    notes = annotations(VENDORS["enflame-gcu"].node, pod({GCU: 1}))
    segment = notes["hami.io/enflame-gcu-devices-allocated"]
    assert segment.startswith("n1-GCU-")
    assert segment.endswith(",GCU,100,100:;")
    assert notes == BOUND | {
        "hami.io/enflame-gcu-devices-to-allocate": segment,
        "hami.io/enflame-gcu-devices-allocated": segment,
    }


def test_annotations_of_slices() -> None:
    """The annotations of a placed pod have the profile of each container's slice, and the GCU of
    the first slice."""
    document = pod(
        {}, containers=[container("a"), container("b", {DRS: 3}), container("c", {DRS: 1})]
    )
    notes = annotations(SLICED, document)
    _, first, second, _ = notes[ALLOCATED].split(";")
    device, *rest = first.split(",")
    assert rest == ["Enflame", "20480", "50:"]
    assert second.split(",")[1:] == ["Enflame", "6144", "17:"]
    index = device.removeprefix("n1-enflame-drs-")
    assert json.loads(notes.pop("assigned-containers")) == {
        "b": {"allocated": False, "request": 3, "profileID": "1", "profileName": "3g.20gb"},
        "c": {"allocated": False, "request": 1, "profileID": "0", "profileName": "1g.6gb"},
    }
    assert notes == BOUND | {
        ALLOCATED: f";{first};{second};",
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-time": TIME,
        "enflame.com/gcu-assigned-index": index,
        "enflame.com/gcu-assigned-id": index,
        "enflame.com/gcu-assigned-minor": str(int(index) + 4),
        "enflame.com/gcu-request-size": "3",
    }


def test_slices_fill_a_gcu_by_size() -> None:
    """A GCU of six parts takes slices of any size until the sizes add up to six."""
    capacity = DRS_CAPACITY | {"devices": [{"index": "0", "capacity": 6}]}
    here = ledger(vendor_node({CAPACITY: json.dumps(capacity)}, {DRS: 6}))
    for uid, size in (("a", 3), ("b", 1), ("c", 1), ("d", 1)):
        place(here, uid, pod({DRS: size}))
    assert [here.shares(uid)[0].memory_mib for uid in "abcd"] == [20480, 6144, 6144, 6144]
    assert place(here, "e", pod({DRS: 1})).reasons("e") == {RefusalCode.CORES_INSUFFICIENT: 1}


def test_a_size_without_profile_does_not_fit() -> None:
    """A slice fits only on nodes with a profile of exactly its size."""
    here = place(ledger(SLICED), "p", pod({DRS: 2}))
    assert here.reasons("p") == {RefusalCode.MODE_MISMATCH: 1}


def test_registered_slices() -> None:
    """A GCU has one slot and one core for each of its parts, and the memory of its largest profile.

    Names that are not profiles are ignored. If a GCU's index is not a number, its position in the
    list counts."""
    found = registered(
        devices=[{"index": "2", "capacity": "6"}, {"index": "x", "minor": "7", "capacity": 4}],
        profiles={"3g.20gb": "1", "1g.6gb": "0", "all": "9", "2g": "8"},
    )
    assert (found.plugin, found.problem) == ("hami", "")
    first, second = found.devices
    assert (first.id, first.index, first.model) == ("n1-enflame-drs-2", 2, "Enflame")
    assert (first.cores, first.slots, first.memory_mib) == (6, 6, 20480)
    assert (first.mode, first.healthy, second.id) == ("vnpu", True, "n1-enflame-drs-1")
    assert [(each.profile, each.memory_mib) for each in first.mig_sizes] == [
        ("1g.6gb/0/2", 6144), ("3g.20gb/1/2", 20480),
    ]  # fmt: skip
    assert second.mig_sizes[0].profile == "1g.6gb/0/7"


@pytest.mark.parametrize(
    "changes",
    [
        {"profiles": {}},
        {"profiles": {"4294967299g.20gb": "0"}},
        {"profiles": {"3g.20gb": 1}},
        {"devices": [{"index": "0", "capacity": 0}]},
        {"devices": [{"index": "0", "capacity": "many"}]},
        {"devices": [{"index": "0", "capacity": 251}]},
        {"devices": [{"index": "0"}]},
        {"devices": [{"index": "0", "capacity": 6}, {"index": "0", "capacity": 6}]},
    ],
)
def test_malformed_slices(changes: dict[str, Any]) -> None:
    """If a node's capacity of slices cannot be read, the node offers no GCUs, and `registration`
    returns a problem."""
    found = registered(**changes)
    assert found.devices == ()
    assert found.problem


def test_an_annotation_that_remains() -> None:
    """Slices are offered only while the kubelet reports them."""
    found = registration(vendor_node(SLICED.annotations, {}))
    assert found.devices == ()
    assert DRS in found.problem


def test_annotations_of_vgcus() -> None:
    """A placed pod gets HAMi's record and the indexes of its first container's GCUs. In the record,
    memory is a percentage and cores are 0."""
    document = pod({VGCU: 2, SLICES: 8})
    notes = annotations(SHARED, document)
    devices = [each.split(",")[0] for each in notes[ALLOCATED].split(":")[:2]]
    assert notes == BOUND | {
        ALLOCATED: "".join(f"{each},Enflame,100,0:" for each in devices) + ";",
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-time": TIME,
        "enflame.com/gcu-assigned-id": ",".join(each[-1] for each in devices),
    }


def test_vgcus_share_memory_and_slices() -> None:
    """Containers share a GCU until its memory or its slices are used up."""
    here = ledger(vendor_node({}, {CARDS: 1, SLICES: 4}))
    for uid in ("a", "b"):
        place(here, uid, pod({VGCU: 1, PERCENT: 50, SLICES: 2}))
    assert [here.shares(uid)[0].memory_mib for uid in "ab"] == [50, 50]
    assert place(here, "c", pod({VGCU: 1, PERCENT: 25, SLICES: 1})).reasons("c")


def test_counted_gcus() -> None:
    """The vendor's plugins only count GCUs and slices. Apportion gives these devices the ids and
    the memory that HAMi would give them."""
    plugin, whole, problem = registration(vendor_node({}, {GCU: 2}))
    assert (plugin, problem, [each.id for each in whole]) == (
        "vendor", "", ["n1-GCU-0", "n1-GCU-1"],
    )  # fmt: skip
    assert {(each.memory_mib, each.slots, each.mode) for each in whole} == {(100, 1, "exclusive")}
    plugin, shared, problem = registration(vendor_node({}, {CARDS: 2, SLICES: 8}))
    assert (plugin, problem, shared[1].id) == ("hami", "", "n1-enflame-1")
    assert {(each.memory_mib, each.cores, each.slots) for each in shared} == {(100, 4, 100)}


def test_vgcus_without_slices_or_next_to_slices() -> None:
    """If a node reports GCUs but no slices, it offers no vGCUs, and `registration` returns a
    problem. A node with DRS offers no vGCUs, as in HAMi 2.10."""
    found = registration(vendor_node({}, {CARDS: 2}))
    assert (found.devices, SLICES in found.problem) == ((), True)
    both = registration(vendor_node(SLICED.annotations, {DRS: 24, CARDS: 2, SLICES: 8}))
    assert {each.family for each in both.devices} == {"enflame-drs"}


def test_pods_that_hami_has_placed() -> None:
    """The devices of a bound pod are read from one annotation, for slices and for vGCUs. The size
    of a slice is in its container's request, or else in a second annotation."""
    text = "n1-enflame-drs-1,Enflame,20480,50:;"
    notes = {ALLOCATED: text, "assigned-containers": '{"main":{"allocated":true,"request":3}}'}
    found = recover(BoundPod(notes, (), ("main",), (), DialectConfig()))
    assert found is not None
    assert found.held == (Held("main", "enflame-drs", "n1-enflame-drs-1", -1, 20480, 3),)
    assert recover(BoundPod({ALLOCATED: text}, (), ("main",), (), DialectConfig())) is None
    asked = Ask(container="main", family="enflame-drs", cores=3)
    known = recover(BoundPod({ALLOCATED: text}, (), ("main",), (asked,), DialectConfig()))
    assert known == found
    notes = {ALLOCATED: "n1-enflame-1,Enflame,50,0:;"}
    found = recover(BoundPod(notes, (), ("main",), (), DialectConfig()))
    assert found is not None
    assert found.held == (Held("main", "enflame-vgcu", "n1-enflame-1"),)


@pytest.mark.parametrize(
    "section",
    [
        {"resourceCountName": VGCU, "resourcePercentageName": PERCENT},
        {"resourceNameGCU": GCU, "resourceNameVGCU": VGCU, "resourceNameVGCUPercentage": PERCENT},
        {
            "resourceNameGCU": GCU, "resourceNameDRSGCU": DRS, "resourceNameGCUMemory": MEMORY,
            "resourceNameGCUCore": CORES,
        },
    ],
)  # fmt: skip
def test_the_sections_of_three_charts(section: dict[str, str]) -> None:
    """In HAMi's configuration, only the resource names of three versions of its chart are accepted:
    those up to 2.6, those up to 2.9, and those of 2.10."""
    left, passed = without_foreign({"enflame": section})
    assert (left, passed[0].path) == ({}, "enflame")
    for key in section:
        with pytest.raises(ManifestError) as caught:
            without_foreign({"enflame": section | {key: "x/y"}})
        assert caught.value.field == f"enflame.{key}"


@pytest.mark.parametrize("kind", ["gcu", "drs", "vgcu"])
def test_the_samples(kind: str) -> None:
    """Each sample manifest is placed on a suitable node, and its pod gets annotations."""
    document = yaml.safe_load((SAMPLES / f"enflame-{kind}.yaml").read_text("utf-8"))
    assert draft(document).dialect == f"enflame-{kind}"
    assert annotations(VENDORS[f"enflame-{kind}"].node, document).keys() > BOUND.keys()
