"""Tests of Kunlunxin XPUs, from manifest and node to the annotations of a placed pod."""

from typing import Any

import pytest

from apportion.core.placement.feasibility.evaluator import Room
from apportion.core.workloads.dialects.listing import SECTIONS
from apportion.core.workloads.dialects.node_annotations import registration
from apportion.core.workloads.document import ManifestError
from apportion_schemas import Ask, DeviceConstraints, RefusalCode, Share
from tests.support.ledger_of import Ledger
from tests.support.manifests import asks, container, draft, pod, refused
from tests.support.pods import placed as placement
from tests.support.vendor_nodes import ALLOWED, VENDORS, vendor_node
from tests.support.vendor_placements import BOUND, ledger, place, sample, written

COUNT = "kunlunxin.com/xpu"
NODE = VENDORS["kunlun"].node


@pytest.mark.parametrize("number", [1, 2, 4, 8])
def test_a_number_of_whole_xpus(number: int) -> None:
    """A container requests a number of whole XPUs, which no other pod shares."""
    wanted = Ask(container="main", family="kunlun", count=number, cores=100)
    assert asks(pod({COUNT: number})) == (wanted,)
    assert asks(pod({COUNT: 0})) == ()


@pytest.mark.parametrize(("number", "fix"), [(3, "2 or 4"), (5, "4 or 8"), (16, "write 8")])
def test_other_numbers_are_refused(number: int, fix: str) -> None:
    """A request for another number of XPUs is refused, because no node allocates that number."""
    error = refused(pod({COUNT: number}))
    assert error.field == f'spec.containers[0].resources.limits["{COUNT}"]'
    assert fix in error.fix


@pytest.mark.parametrize(
    "pair",
    [
        ("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"),
        ("baidu.com/use-gpuuuid", "baidu.com/nouse-gpuuuid"),
    ],
)
def test_xpus_are_chosen_by_id(pair: tuple[str, str]) -> None:
    """Pods choose and exclude XPUs by id, with either of two pairs of annotations."""
    found = draft(pod({COUNT: 1}, {pair[0]: "a,b", pair[1]: "b"})).shape.devices
    assert found == DeviceConstraints(use_ids=("a", "b"), nouse_ids=("b",), plugin="hami")


def test_what_a_node_offers() -> None:
    """A node offers as many XPUs as the vendor's plugin counts, under the names that HAMi uses. The
    second half of the XPUs is on another NUMA node."""
    found = registration(NODE)
    assert (found.plugin, found.problem) == ("vendor", "")
    assert [each.id for each in found.devices] == [f"n1-kunlun-{at}" for at in range(8)]
    assert [each.numa for each in found.devices] == [0] * 4 + [1] * 4
    one = found.devices[5]
    assert (one.index, one.memory_mib, one.cores, one.slots) == (5, 98304, 100, 1)
    assert (one.mode, one.model, one.healthy) == ("exclusive", "kunlun", True)
    assert registration(vendor_node({}, {COUNT: 65}, labels=ALLOWED)).problem
    assert registration(vendor_node({}, {COUNT: 0}, labels=ALLOWED)).devices == ()


def test_the_annotations_of_the_sample() -> None:
    """The annotations of the sample pod have the indexes, the whole memory and all cores of its
    XPUs, as HAMi writes them."""
    here = place(ledger(NODE), "p", sample("kunlun"))
    text = "".join(f"n1-kunlun-{at},kunlun,98304,100:" for at in range(4)) + ";"
    assert written(here, "p") == BOUND | {
        "hami.io/kunlun-allocated": text,
        "BAIDU_COM_DEVICE_IDX": "0,1,2,3",
    }


def test_the_indexes_are_those_of_the_last_container() -> None:
    """As in HAMi, the annotation for indexes has only those of the pod's last container with
    XPUs."""
    both = pod(containers=[container("a", {COUNT: 2}), container("b"), container("c", {COUNT: 1})])
    here = place(ledger(NODE), "p", both)
    found = written(here, "p")
    last = here.shares("p")[-1]
    assert found["hami.io/kunlun-allocated"].count(";") == 3
    assert last.container == "c"
    assert f"n1-kunlun-{found['BAIDU_COM_DEVICE_IDX']}" == last.device


def alone(name: str, *indexes: int) -> dict[str, object]:
    """Return a pod that gets the XPUs with these indexes."""
    ids = ",".join(f"n1-kunlun-{at}" for at in indexes)
    return pod({COUNT: len(indexes)}, {"hami.io/use-xpu-uuid": ids}) | {"name": name}


def test_free_xpus_that_are_no_set_are_refused_and_awaited() -> None:
    """A pod that requests two XPUs is refused while no two free XPUs are linked. It is placed when
    another pod ends and a linked pair is free."""
    here = ledger(NODE)
    for uid, at in (("a", 0), ("b", 1), ("c", 2), ("d", 4), ("e", 6), ("f", 7)):
        place(here, uid, alone(uid, at))
    place(here, "p", pod({COUNT: 2}))
    assert here.reasons("p") == {RefusalCode.MODULES_IN_USE: 1}
    (nearest,) = here.refusal("p").nearest
    assert (nearest.needed, nearest.available) == (2, 1)
    here.gone("c").settle()
    assert here.devices("p") == ["n1-kunlun-2", "n1-kunlun-3"]


def test_containers_with_sets_of_their_own() -> None:
    """If the first set that is tried for one container leaves no set for another container, the
    search tries other sets."""
    here = ledger(NODE)
    for uid, at in (("a", 3), ("b", 6)):
        place(here, uid, alone(uid, at))
    names = (("x", 1), ("y", 1), ("z", 4))
    place(here, "p", pod(containers=[container(name, {COUNT: n}) for name, n in names]))
    assert here.where("p") == "n1"
    quad = {share.device[-1] for share in here.shares("p") if share.container == "z"}
    assert quad == {"0", "1", "4", "5"}


def test_a_node_that_never_has_a_set() -> None:
    """Even an empty node cannot run a pod if the node has fewer XPUs than every set that the pod
    could get."""
    here = ledger(vendor_node({}, {COUNT: 4}, labels=ALLOWED))
    four = draft(pod({COUNT: 4})).shape
    assert Room(here.state).holds(four, here.node())
    few = ledger(vendor_node({}, {COUNT: 3}, labels=ALLOWED))
    assert not Room(few.state).holds(four, few.node())


def test_the_section_of_hamis_chart() -> None:
    """Kunlunxin's section in HAMi's configuration is accepted only with Kunlunxin's usual resource
    names."""
    usual = {"resourceCountName": COUNT, "resourceVMemoryName": "kunlunxin.com/vxpu-memory"}
    SECTIONS["kunlun"](usual, "kunlun")
    with pytest.raises(ManifestError) as caught:
        SECTIONS["kunlun"](usual | {"resourceVCountName": "a/b"}, "kunlun")
    assert caught.value.field == "kunlun.resourceVCountName"


SHARED, MEMORY = "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"
VXPUS = VENDORS["kunlun-vxpu"].node
SMALL, LARGE = {SHARED: 1, MEMORY: 24576}, {SHARED: 1, MEMORY: 49152}


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({SHARED: 1}, {"cores": 100}),
        ({SHARED: 2, MEMORY: 49153}, {"count": 2, "cores": 100}),
        ({SHARED: 1, MEMORY: 200_000}, {"cores": 100}),
        ({SHARED: 4, MEMORY: 24577}, {"count": 4, "memory_mib": 49152}),
        ({SHARED: 1, MEMORY: 24576}, {"memory_mib": 24576}),
        ({SHARED: 1, MEMORY: 0}, {"memory_mib": 24576}),
    ],
)
def test_memory_of_a_vxpu_is_rounded_up(limits: dict[str, int], wanted: dict[str, Any]) -> None:
    """A vXPU's memory is rounded up to one of three sizes. A request for the largest size, or
    without memory, gets a whole XPU."""
    assert asks(pod(limits)) == (Ask(container="main", family="kunlun-vxpu", **wanted),)


def test_vxpus_that_are_not_requested() -> None:
    """A container without a number of vXPUs gets no vXPU. The number must be 1, 2, 4 or 8, as for
    whole XPUs."""
    assert asks(pod({SHARED: 0})) == asks(pod({MEMORY: 24576})) == ()
    assert "2 or 4" in refused(pod({SHARED: 3, MEMORY: 1})).fix


def test_what_the_plugin_of_vxpus_registers() -> None:
    """A registered XPU takes as many pods as it has parts of the smallest size, whatever count the
    plugin registers."""
    found = registration(VXPUS)
    assert (found.plugin, found.problem, len(found.devices)) == ("hami", "", 8)
    one = found.devices[2]
    assert (one.mode, one.memory_mib, one.cores, one.slots) == ("vnpu", 98304, 100, 4)
    both = VXPUS._replace(allocatable={SHARED: 32, COUNT: 8})
    assert {each.family for each in registration(both).devices} == {"kunlun-vxpu"}
    stale = registration(VXPUS._replace(allocatable={}))
    assert (stale.devices, SHARED in stale.problem) == ((), True)


@pytest.mark.parametrize(
    ("limits", "amounts"), [(SMALL, "24576,25"), (LARGE, "49152,50"), ({SHARED: 1}, "98304,100")]
)
def test_the_annotations_of_a_vxpu(limits: dict[str, int], amounts: str) -> None:
    """The annotations of a pod with a vXPU have the rounded memory and its percentage of the XPU's
    memory, as HAMi writes them."""
    document = sample("kunlun-vxpu") if limits == SMALL else pod(limits)
    here = place(ledger(VXPUS), "p", document)
    text = f"{here.devices('p')[0]},XPU,{amounts}:;"
    assert written(here, "p") == BOUND | {
        "hami.io/xpu-devices-to-allocate": text,
        "hami.io/xpu-devices-allocated": text,
    }


def test_shares_of_an_xpu_have_one_size() -> None:
    """All shares of an XPU have the same size. If each XPU with shares of the requested size is
    full, a share goes to an empty XPU."""
    here = ledger(VXPUS)
    for uid, limits in (("a", SMALL), ("b", LARGE), ("c", SMALL), ("d", LARGE), ("e", LARGE)):
        place(here, uid, pod(limits))
    small, large, other = here.devices("a"), here.devices("b"), here.devices("e")
    assert here.devices("c") == small
    assert here.devices("d") == large
    assert len({*small, *large, *other}) == 3


def one_xpu() -> Ledger:
    """Return a ledger with a node that has one shared XPU."""
    text = '[{"id": "X", "devmem": 98304, "type": "XPU", "health": true}]'
    return ledger(vendor_node({"hami.io/node-register-xpu": text}, {SHARED: 4}))


def test_another_size_waits_for_an_empty_xpu() -> None:
    """If the shares on the only XPU have another size, a pod is refused until the last of these
    shares is released."""
    here = one_xpu()
    for uid, limits in (("a", SMALL), ("b", SMALL), ("p", LARGE)):
        place(here, uid, pod(limits))
    assert here.reasons("p") == {RefusalCode.SIZES_DIFFER: 1}
    here.gone("a").settle()
    assert here.reasons("p") == {RefusalCode.SIZES_DIFFER: 1}
    here.gone("b").settle()
    assert here.devices("p") == ["X"]
    place(here, "q", pod(SMALL))
    assert here.reasons("q") == {RefusalCode.SIZES_DIFFER: 1}


def test_containers_of_one_pod_have_one_size_on_an_xpu() -> None:
    """Two containers of a pod share an XPU only with shares of the same size."""
    here = one_xpu()
    place(here, "p", pod(containers=[container("a", SMALL), container("b", LARGE)]))
    assert here.reasons("p") == {RefusalCode.CONTAINERS_COLLIDE: 1}
    place(here, "q", pod(containers=[container("a", SMALL), container("b", SMALL)]))
    assert here.devices("q") == ["X", "X"]


def test_a_second_size_is_not_taken() -> None:
    """The fold refuses a placement whose share has another size than the shares on the XPU,
    whatever process has appended it."""
    here = place(one_xpu(), "a", pod(SMALL))
    submitted = place(here, "p", pod(LARGE)).pod("p").submitted
    share = Share(container="main", device="X", memory_mib=49152, cores=50, template="48g")
    assert "another template" in here.contradict(placement(submitted.uid, "n1", (share,)))


def test_xpus_that_hamis_scheduler_may_choose_need_a_label() -> None:
    """A node offers XPUs only with the label `apportion.dev/device-plugin: vendor`, because HAMi's
    scheduler also chooses XPUs by index, and the kubelet only counts them. Without it, the
    registration's problem names the label."""
    without = registration(vendor_node({}, {COUNT: 8}))
    assert (without.plugin, without.devices) == ("vendor", ())
    assert "device-plugin=vendor" in without.problem
    assert registration(vendor_node({}, {COUNT: 0})).plugin == ""
    assert len(registration(vendor_node({}, {COUNT: 8}, labels=ALLOWED)).devices) == 8


def test_a_container_with_no_xpus_beside_another_vendors_device() -> None:
    """If a container requests zero XPUs, the pod's dialect is that of its other devices. The pod
    therefore gets no annotations of Kunlunxin."""
    document = pod(containers=[container("a", {"hygon.com/dcunum": 1}), container("b", {COUNT: 0})])
    assert draft(document).dialect == "hygon"
