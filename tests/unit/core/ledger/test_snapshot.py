"""Tests of snapshots, which are taken in several steps.

A snapshot includes the events that arrive between its steps."""

from hashlib import sha256

import pytest

from apportion.core.ledger.snapshot import (
    MAGIC,
    CorruptSnapshot,
    OtherFormat,
    Taking,
    restore,
    take,
)
from apportion.core.ledger.state import State
from apportion_schemas import (
    BindFailed,
    DeviceCordoned,
    DeviceHealthChanged,
    NodeGone,
    NodeHeard,
    NodeObserved,
    NodeSilent,
    PlacementVoided,
    PodGone,
    PodPlaced,
    PodRejected,
    ReportRefused,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import gpu, node
from tests.support.happenings import happen
from tests.support.pods import ask, gang, member, placed, pod, share
from tests.support.states import assert_same

N1 = node("n1", gpu("g0"), gpu("g1"))


def folded(*events: Payload) -> State:
    state = State()
    for data in events:
        happen(state, data)
    return state


def on(uid: str, at: str = "n1", device: str = "g0", attempt: int = 1) -> PodPlaced:
    return placed(uid, at, [share(device)], attempt=attempt)


def refused(name: str) -> ReportRefused:
    """Return the event that records the intake's refusal of a report from this node's agent."""
    return ReportRefused(node=name, cause="implausible-device", message="a T4 of 16 TiB")


BETWEEN: dict[str, tuple[list[Payload], list[Payload]]] = {
    "a device goes over from a node that is gone": (
        [N1, NodeGone(node="n1")],
        [node("n2", gpu("g0"))],
    ),
    "a refused placement spends its attempt": ([N1, pod("p1", ask(1))], [on("p1", device="none")]),
    "a refused placement makes a node": ([pod("p1", ask(1))], [on("p1", at="n9")]),
    "a pod ends": ([N1, pod("p1", ask(1)), on("p1")], [PodGone(uid="p1")]),
    "a pod ends and comes again": (
        [N1, pod("p1", ask(1)), pod("p2", ask(1))],
        [PodGone(uid="p1"), pod("p1", ask(2))],
    ),
    "a placement fails": (
        [N1, pod("p1", ask(1)), on("p1")],
        [BindFailed(pod="p1", node="n1", attempt=1, message="m", final=True)],
    ),
    "a placement is voided and made anew": (
        [N1, pod("p1", ask(1)), pod("p2", ask(1)), on("p1"), on("p2")],
        [PlacementVoided(pod="p1", node="n1", attempt=1, reason="r"), on("p1", attempt=2)],
    ),
    "a gang loses its last member": (
        [gang("t/g", 1), member("p1", ask(1), group="t/g")],
        [PodGone(uid="p1"), member("p2", ask(1), group="t/g")],
    ),
    "an event tells of a node that comes later": (
        [],
        [
            DeviceHealthChanged(node="n2", device="g0", healthy=False),
            NodeObserved(node="n1", ready=True, cpu_milli=1, memory_mib=1, pods=1),
            NodeObserved(node="n2", ready=True, cpu_milli=1, memory_mib=1, pods=1),
        ],
    ),
    "a device is cordoned": ([N1], [DeviceCordoned(device="g1", by="b", reason="r")]),
    "an agent falls silent and another is back": (
        [N1, NodeSilent(node="n1", grace_s=40)],
        [NodeHeard(node="n1"), NodeSilent(node="n2", grace_s=40)],
    ),
    "a report is refused, and another is taken": (
        [N1, refused("n1"), refused("n2")],
        [N1, refused("n2"), refused("n3")],
    ),
    "a pod is rejected": (
        [],
        [PodRejected(uid="p", namespace="d", name="p", field="f", value="v", problem="p", fix="x")],
    ),
}


@pytest.mark.parametrize("first", [0, 1, 2, 99])
@pytest.mark.parametrize("turn", BETWEEN)
def test_what_happens_between_slices_is_in_it(turn: str, first: int) -> None:
    """An event that arrives between two steps of a snapshot is in the snapshot, whatever it
    changes."""
    before, between = BETWEEN[turn]
    state = folded(*before)
    taking = Taking(state)
    taking.step(first)
    for data in between:
        taking.observe(happen(state, data))
        taking.step(first % 2)
    taken = taking.finish()
    assert taken.revision == state.revision
    assert_same(restore(b"".join(taken.parts)), state)
    assert_same(state, folded(*before, *between))


def test_pods_of_a_node_keep_the_order_of_their_placements() -> None:
    """A snapshot keeps the pods of a node in the order of their placements, not of their
    submissions."""
    state = folded(N1, pod("p1", ask(1)), pod("p2", ask(1)), on("p2"), on("p1"))
    assert list(restore(take(state)).nodes["n1"].pods) == ["p2", "p1"]
    assert_same(restore(take(state)), state)


def test_the_same_state_is_the_same_bytes() -> None:
    """Equal states have snapshots of equal bytes, even if one state was restored from a
    snapshot."""
    events = [N1, pod("p1", ask(1)), pod("p2", ask(2)), on("p2")]
    data = take(folded(*events))
    assert data == take(folded(*events)) == take(restore(data))


def test_every_byte_counts() -> None:
    """A snapshot with changed, missing or additional bytes is never restored."""
    data = take(folded(N1, pod("p1", ask(1)), on("p1")))
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        with pytest.raises((CorruptSnapshot, OtherFormat)):
            restore(flipped)
        with pytest.raises(CorruptSnapshot):
            restore(data[:at])
    with pytest.raises(CorruptSnapshot):
        restore(data + b"x")


def test_a_frame_that_is_too_deep_is_no_state() -> None:
    """A snapshot frame that is nested too deeply is refused."""
    good = take(folded(N1))
    head = len(MAGIC) + 2
    # one more field than the format has
    part = b"\x97\x00" + b"\x90" * 5 + b"\x91" * 100_000 + b"\xc0"
    body = good[:head] + len(part).to_bytes(4, "big") + part + good[head:-32]
    with pytest.raises(CorruptSnapshot):
        restore(body + sha256(body).digest())
