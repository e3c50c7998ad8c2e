"""Property: a gang with required pod affinity is placed whenever some racks have room for it."""

from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from apportion_schemas import LabelExpression, PodConstraints, PodSelector, PodSubmitted, PodTerm
from tests.properties.core_histories import trying
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import cards, gang, member, pod, shape

RACK = "example.com/rack"
SETTINGS = trying(100)


def member_of(uid: str, app: str, near: str, count: int) -> PodSubmitted:
    """Return a pod of a gang, with the label `app` and `count` GPUs.

    If `near` is given, the pod must share a rack with a pod labelled `near`."""
    means = PodSelector(expressions=(LabelExpression(key="app", operator="In", values=(near,)),))
    wishes = PodConstraints(affinity=(PodTerm(pods=means, topology_key=RACK),) if near else ())
    made = member(uid, labels={"app": app}, shape=shape(cards(count)))
    return structs.replace(made, shape=structs.replace(made.shape, pods=wishes))


def fleet(nodes: list[tuple[str, int]]) -> Ledger:
    """Return a ledger with these nodes, each given as (rack, number of GPUs). An empty rack name
    stands for no rack."""
    ledger = Ledger()
    for at, (where, count) in enumerate(nodes):
        labels = {RACK: where} if where else {}
        ledger.play(rack(f"n{at}", count), observed(f"n{at}", labels=labels))
    return ledger


def rooms(nodes: list[tuple[str, int]], each: int = 1) -> dict[str, int]:
    """Return how many pods with `each` GPUs fit into each rack."""
    found: dict[str, int] = {}
    for where, count in nodes:
        if where:
            found[where] = found.get(where, 0) + count // each
    return found


def placed_whole(ledger: Ledger, pods: list[PodSubmitted]) -> bool:
    """Submit the gang, and return True if it is placed. Fail if only a part of it is placed."""
    ledger.play(gang(min_available=len(pods))).submit(*pods).settle()
    where = [ledger.where(pod.uid) for pod in pods]
    assert all(where) or not any(where)
    return all(where)


@pytest.mark.parametrize("racks", sorted(set(permutations((8, 16, 16)))))
def test_a_gang_of_16_is_placed_in_a_rack_of_16(racks: tuple[int, ...]) -> None:
    """A gang of 16 is placed in the rack of 16, although the rack of 8 is fuller."""
    small = "abc"[racks.index(8)]
    nodes = [(name, room // 4) for name, room in zip("abc", racks, strict=True)] * 4
    alone = fleet(nodes).submit(pod("alone", cards(1))).settle()
    assert alone.node(alone.where("alone")).host.labels[RACK] == small
    pods = [member_of(f"w{n}", "w", "w", 1) for n in range(16)]
    ledger = fleet(nodes)
    assert placed_whole(ledger, pods)
    (used,) = {ledger.node(ledger.where(pod.uid)).host.labels[RACK] for pod in pods}
    assert used != small


nodes = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "d", ""]), st.integers(1, 4)), min_size=1, max_size=9
)


@SETTINGS
@given(nodes, st.integers(2, 9), st.integers(1, 2))
def test_pods_that_must_be_together(fleet_of: list[tuple[str, int]], size: int, each: int) -> None:
    """A gang whose pods must all share a rack is placed exactly when some rack has room for it."""
    ledger = fleet(fleet_of)
    pods = [member_of(f"w{n}", "w", "w", each) for n in range(size)]
    found = placed_whole(ledger, pods)
    assert found == any(room >= size for room in rooms(fleet_of, each).values())
    if found:
        at = {ledger.where(pod.uid) for pod in pods}
        assert len({ledger.node(name).host.labels[RACK] for name in at}) == 1


@SETTINGS
@given(nodes, st.integers(1, 8))
def test_workers_that_must_be_near_a_leader(fleet_of: list[tuple[str, int]], workers: int) -> None:
    """A leader, and workers that must share its rack, are placed if some rack has room for all of
    them."""
    pods = [member_of("leader", "leader", "", 1)]
    pods += [member_of(f"w{n}", "w", "leader", 1) for n in range(workers)]
    could = any(room >= 1 + workers for room in rooms(fleet_of).values())
    assert placed_whole(fleet(fleet_of), pods) == could


@SETTINGS
@given(nodes, st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_two_sets_that_must_each_be_together(
    fleet_of: list[tuple[str, int]], first: int, second: int, mixed: bool
) -> None:
    """Two sets of pods, each of which must share a rack, are placed whenever both fit at once.

    Both sets may use the same rack."""
    pods = [member_of(f"a{n}", "a", "a", 1) for n in range(first)]
    pods += [member_of(f"b{n}", "b", "b", 1) for n in range(second)]
    if mixed:
        pods.sort(key=lambda pod: pod.uid[1:])
    room = rooms(fleet_of)
    could = any(
        room[one] >= first and room[other] >= second
        if one != other
        else room[one] >= first + second
        for one, other in product(room, room)
    )
    assert placed_whole(fleet(fleet_of), pods) == could
