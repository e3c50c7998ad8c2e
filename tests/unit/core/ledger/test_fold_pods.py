"""Tests of how the fold handles pods: their phases, their placements, and contradicting events."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from apportion.core.ledger import fold
from apportion.core.ledger.state import REFUSED_EVENTS_KEPT, Phase, State
from apportion_schemas import (
    AllocationFailed,
    BindFailed,
    NodeConstraints,
    PlacementVoided,
    PodBound,
    PodChanged,
    PodGone,
    PodRefused,
    RefusalCode,
    ShareBreached,
    SharesAllocated,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import A100_40, gpu, node, npu, rack
from tests.support.ledger_of import Ledger, event_of
from tests.support.pods import ask, gang, instance, member, pod, shape, share
from tests.support.pods import placed as placement

AT: dict[str, Any] = {"pod": "p1", "node": "n1", "attempt": 1}
BOUND = PodBound(**AT)
ALLOCATED = SharesAllocated(**AT, devices=("n1-g0",))
VOIDED = PlacementVoided(**AT, reason="test")
BIND_FAILED = BindFailed(**AT, message="conflict", final=True)
ALLOCATION_FAILED = AllocationFailed(**AT, message="no such device")
GONE = PodGone(uid="p1")


def pending() -> Ledger:
    """Return a ledger with a node of two devices and a pending pod."""
    return Ledger(rack("n1", 2), pod("p1", ask(1000)))


def placed() -> Ledger:
    """Return the ledger of `pending` after its pod was placed on the first device."""
    return pending().play(placement("p1", shares=[share("n1-g0")]))


def test_life_of_a_pod() -> None:
    """Every event of a pod moves the pod to its next phase, and the pod records the event's
    revision."""
    ledger = placed()
    seen = [ledger.pod("p1").phase]
    seen += [ledger.play(event).pod("p1").phase for event in (BOUND, ALLOCATED)]
    assert seen == [Phase.PLACED, Phase.BOUND, Phase.ALLOCATED]
    pod_state = ledger.pod("p1")
    assert (pod_state.submitted_revision, pod_state.placed_revision) == (2, 3)
    assert (pod_state.bound_revision, pod_state.allocated_revision) == (4, 5)
    assert not ledger.play(GONE).state.pods
    assert ledger.device("n1-g0").idle


def test_agent_may_be_faster_than_the_binder() -> None:
    """SharesAllocated may come before PodBound, because agent and binder append their events
    independently."""
    ledger = placed().play(ALLOCATED, BOUND)
    assert ledger.pod("p1").phase is Phase.ALLOCATED
    assert (ledger.pod("p1").allocated_revision, ledger.pod("p1").bound_revision) == (4, 5)


def test_a_breach_changes_nothing_and_must_be_of_the_pods_own_device() -> None:
    """An event that reports use beyond a share changes no state.

    The fold refuses the event if the pod's current attempt does not use that device."""
    ledger = placed().play(BOUND, ALLOCATED)
    breach = ShareBreached(**AT, container="main", device="n1-g0", code="unheld")
    assert ledger.play(breach).pod("p1").phase is Phase.ALLOCATED
    for wrong in (
        msgspec.structs.replace(breach, device="n1-g1"),
        msgspec.structs.replace(breach, attempt=2),
    ):
        assert ledger.take(wrong).refused


@pytest.mark.parametrize("before", [(), (BOUND,)], ids=["placed", "bound"])
def test_voided_pod_waits_for_its_next_attempt(before: tuple[Payload, ...]) -> None:
    """If a placement is voided, its shares are free, and the pod is pending again."""
    ledger = placed().play(*before, VOIDED)
    found = ledger.pod("p1")
    assert (found.phase, found.attempt, found.placement) == (Phase.PENDING, 2, None)
    assert (found.placed_revision, found.bound_revision) == (0, 0)
    assert found.last_failure == "test"
    assert ledger.device("n1-g0").idle


@pytest.mark.parametrize(
    ("failure", "doomed"),
    [
        (BIND_FAILED, True),
        (ALLOCATION_FAILED, True),
        (BindFailed(**AT, message="timeout", final=False), False),
    ],
)
def test_failures_are_kept_until_somebody_voids(failure: Payload, *, doomed: bool) -> None:
    """A pod whose binding or allocation failed for good counts as failing until its placement is
    voided. A temporary failure leaves only its message."""
    ledger = placed().play(failure)
    assert ledger.pod("p1").last_failure == getattr(failure, "message", None)
    assert ("p1" in ledger.state.failing) is doomed
    assert ledger.pod("p1").phase is Phase.PLACED
    assert not ledger.play(VOIDED).state.failing


@pytest.mark.parametrize("end", [GONE, ALLOCATED, VOIDED])
def test_failure_is_settled_by_what_comes_of_the_pod(end: Payload) -> None:
    """A pod no longer counts as failing once it has ended, was voided or got its shares after
    all."""
    assert not placed().play(BIND_FAILED, end).state.failing


def test_placement_charges_node_and_devices_and_end_gives_all_back() -> None:
    """A placement reduces the free amounts of its node and devices. When the pod ends, every amount
    is free again."""
    needs = NodeConstraints(cpu_milli=500, memory_mib=64, extended={"example.com/nic": 2})
    ledger = Ledger(rack("n1", 2), pod("p1", shape=shape(ask(1000, count=2), node=needs)))
    empty = ledger.digest()
    ledger.play(placement("p1", shares=[share("n1-g0"), share("n1-g1", 5, cores=0)]))
    at = ledger.node()
    assert (at.cpu_used_milli, at.memory_used_mib) == (500, 64)
    assert (at.extended_used, list(at.pods)) == ({"example.com/nic": 2}, ["p1"])
    assert [d.memory_free_mib for d in at.devices] == [80920, 81915]
    ledger.voided("p1")
    assert (at.cpu_used_milli, at.memory_used_mib, at.extended_used) == (0, 0, {})
    assert all(device.idle and device.memory_free_mib == 81920 for device in at.devices)
    assert ledger.digest() != empty  # the attempt, the failure and the revision remain


def test_refusal_is_kept_until_the_pod_is_placed() -> None:
    """A pod keeps its newest refusal, with the revision, until the pod is placed."""
    ledger = pending()
    for code in (RefusalCode.CORES_INSUFFICIENT, RefusalCode.DEVICE_IN_USE):
        ledger.play(PodRefused(pod="p1", namespace="d", name="p1", reasons={code: 1}, nodes=1))
    assert ledger.reasons("p1") == {RefusalCode.DEVICE_IN_USE: 1}
    assert ledger.pod("p1").refused_revision == 4
    ledger.play(placement("p1", shares=[share("n1-g0")]))
    assert (ledger.pod("p1").refusal, ledger.pod("p1").refused_revision) == (None, 0)


def test_a_pod_that_goes_on_with_its_life_changes_no_node() -> None:
    """Only a pod's placement and its end change its node's state. Binding and allocation do not."""
    ledger = pending()
    lived = [BAD, BOUND, ALLOCATED, GONE]
    assert [ledger.take(data).node is not None for data in lived] == [True, False, False, True]


def test_gang_is_known_while_it_has_pods() -> None:
    """The state has a gang as long as the gang has pods, whether its declaration comes before or
    after them."""
    ledger = Ledger(member("a"), gang("team/job", 2), member("b"))
    group = ledger.state.groups["team/job"]
    assert (sorted(group.pods), group.min_available) == (["a", "b"], 2)
    assert not ledger.gone("a", "b").state.groups


def test_shapes_are_shared() -> None:
    """Pods with equal requests and constraints share one `Shape` object, which saves memory."""
    ledger = Ledger(*(pod(f"p{n}", ask(1000)) for n in range(3)), pod("q", ask(1001)))
    shapes = {id(state.submitted.shape) for state in ledger.state.pods.values()}
    assert len(shapes) == len(ledger.state.shapes) == 2


def _after(*events: Payload) -> Callable[[], Ledger]:
    return lambda: placed().play(*events)


BAD = placement("p1", shares=[share("n1-g0")])
CONTRADICTIONS: list[tuple[str, Callable[[], Ledger], Payload, str]] = [
    ("submitted twice", pending, pod("p1"), "pod p1 was submitted already"),
    (
        "a policy that nobody knows",
        pending,
        pod("p2", shape=shape(node_policy="topology-aware")),
        "pod p2 names the policy 'topology-aware', which nobody knows",
    ),
    (
        "a device policy that nobody knows",
        pending,
        pod("p2", shape=shape(device_policy="mutex,price")),
        "pod p2 names the policy 'mutex,price', which nobody knows",
    ),
    ("gone twice", _after(GONE), GONE, "pod p1 is not live"),
    ("gone, never there", Ledger, GONE, "pod p1 is not live"),
    ("placed, never there", Ledger, BAD, "pod p1 is not live"),
    ("placed twice", placed, BAD, "pod p1 is placed already"),
    ("placed when bound", _after(BOUND), BAD, "pod p1 is bound already"),
    ("void when gone", _after(GONE), VOIDED, "pod p1 is not live"),
    ("void when pending", pending, VOIDED, "pod p1 has no placement"),
    ("void twice", _after(VOIDED), VOIDED, "pod p1 has no placement"),
    ("void when allocated", _after(ALLOCATED), VOIDED, "pod p1 is allocated already"),
    ("bound when pending", pending, BOUND, "pod p1 has no placement"),
    ("bound twice", _after(BOUND), BOUND, "pod p1 is bound already"),
    ("bind failed when bound", _after(BOUND), BIND_FAILED, "pod p1 is bound already"),
    ("bind failed when allocated", _after(ALLOCATED), BIND_FAILED, "is allocated already"),
    ("allocated when pending", pending, ALLOCATED, "pod p1 has no placement"),
    ("allocated twice", _after(ALLOCATED), ALLOCATED, "pod p1 is allocated already"),
    ("allocation failed late", _after(ALLOCATED), ALLOCATION_FAILED, "is allocated already"),
    (
        "refused when placed",
        placed,
        PodRefused(pod="p1", namespace="d", name="p1", reasons={}, nodes=0),
        "pod p1 is not pending",
    ),
    (
        "bound elsewhere",
        placed,
        PodBound(pod="p1", node="n2", attempt=1),
        "pod p1 is placed on n1 by attempt 1, not on n2 by 1",
    ),
    (
        "bound by another attempt",
        placed,
        PodBound(pod="p1", node="n1", attempt=2),
        "pod p1 is placed on n1 by attempt 1, not on n1 by 2",
    ),
    (
        "placed before its gates are gone",
        lambda: Ledger(rack("n1", 1), pod("p1", ask(1000), gates=("a", "b"))),
        placement("p1", shares=[share("n1-g0")]),
        "pod p1 waits for its gates: a, b",
    ),
    ("changed and not there", Ledger, PodChanged(uid="p9"), "pod p9 is not live"),
]


@pytest.mark.parametrize(
    ("made", "event", "because"),
    [case[1:] for case in CONTRADICTIONS],
    ids=[case[0] for case in CONTRADICTIONS],
)
def test_contradictions(made: Callable[[], Ledger], event: Payload, because: str) -> None:
    """The fold refuses and records a contradicting event, and changes nothing else."""
    assert because in made().contradict(event)


MIG = gpu("m0", model=A100_40, mode="mig")
OVERSOLD = [
    ("memory", gpu(), [share(memory_mib=81921)], "memory_mib needed 81921, available 81920"),
    ("cores", gpu(), [share(cores=101)], "cores needed 101, available 100"),
    ("slots", gpu(slots=1), [share(), share()], "slots needed 1, available 0"),
    ("no such device", gpu(), [share("g9")], "node n1 has no device g9"),
    (
        "the second of two",
        gpu(),
        [share(memory_mib=60000), share(memory_mib=30000)],
        "memory_mib needed 30000, available 21920",
    ),
    (
        "AI CPUs",
        npu("g0"),
        [share(cores=0, template="vir04"), share(cores=0, template="vir04")],
        "template_cpu needed 4, available 3",
    ),
    (
        "MIG slices held",
        MIG,
        [
            share("m0", instance=instance("3g.20gb", 0, 4)),
            share("m0", instance=instance("1g", 3, 1)),
        ],
        "slices needed 1, available 0",
    ),
    (
        "MIG slices that no card has",
        MIG,
        [share("m0", instance=instance("1g.5gb", 8, 1))],
        "slices beyond the last needed 1, available 0",
    ),
]


@pytest.mark.parametrize(
    ("device", "shares", "because"),
    [case[1:] for case in OVERSOLD],
    ids=[case[0] for case in OVERSOLD],
)
def test_oversold(device: object, shares: list[object], because: str) -> None:
    """The fold refuses a placement if one of its shares does not fit, and changes no free amount.
    The pod's next attempt then has the next number."""
    ledger = Ledger(node("n1", device), pod("p1"))  # type: ignore[arg-type]
    free = [state.memory_free_mib for state in ledger.node().devices]
    assert because in ledger.contradict(placement("p1", shares=shares))  # type: ignore[arg-type]
    assert [state.memory_free_mib for state in ledger.node().devices] == free
    assert (ledger.pod("p1").phase, ledger.pod("p1").attempt) == (Phase.PENDING, 2)


@pytest.mark.parametrize(
    ("wrong", "because"),
    [
        ({"attempt": 2}, "attempt 2, expected 1"),
        ({"node": "n9"}, "node n9 is not known"),
        ({"previous": "abc"}, "chain broken: previous 'abc', expected ''"),
    ],
)
def test_placement_that_skips_a_fence(wrong: dict[str, object], because: str) -> None:
    """The fold refuses a placement with a wrong attempt number, a wrong node, or a wrong digest of
    the node's previous placement.

    If the attempt number was right, it counts as used: the pod's next attempt has the next number.
    """
    ledger = pending()
    assert because in ledger.contradict(placement("p1", **wrong))  # type: ignore[arg-type]
    assert ledger.pod("p1").attempt == (1 if "attempt" in wrong else 2)


def test_chain_moves_with_every_placement_on_its_node() -> None:
    """Every event on a node's placement subject advances the node's fence, even if the fold refuses
    the event.

    The fence is the revision of the last event on this subject. The next placement must name the
    digest of that event."""
    state = State()
    for revision, (data, digest) in enumerate(
        [
            (rack("n1", 1), ""),
            (pod("p1"), ""),
            (placement("p1", previous="forged"), "one"),
            (placement("p1", attempt=2, previous="one"), "two"),
            (VOIDED, "three"),
            (PlacementVoided(pod="p1", node="n1", attempt=2, reason="x", previous="two"), "four"),
        ],
        1,
    ):
        fold.apply(state, revision, event_of(data), digest=digest)
    assert (state.nodes["n1"].fence, state.nodes["n1"].chain) == (6, "four")
    assert [refused.revision for refused in state.refused_events] == [3, 5]
    assert state.pods["p1"].attempt == 3


@pytest.mark.parametrize(
    ("subject", "moves"),
    [("apportion.v1.placement.n1%2Eexample", True), ("apportion.v1.workload.p1", False)],
)
def test_bytes_that_are_no_event(subject: str, *, moves: bool) -> None:
    """The fold records undecodable bytes as a refused event.

    On a placement subject, they also advance the node's fence, the last revision on that subject.
    """
    state = State()
    change = fold.refuse(state, 7, subject, "not JSON", digest="d")
    assert (state.revision, change.refused, state.refused_count) == (7, "not JSON", 1)
    assert (state.refused_events[0].subject, state.refused_events[0].revision) == (subject, 7)
    assert [(n.name, n.fence, n.chain) for n in state.nodes.values()] == (
        [("n1.example", 7, "d")] if moves else []
    )
    assert change.node is (state.nodes["n1.example"] if moves else None)


def test_events_at_or_below_the_revision_are_passed_over() -> None:
    """Redelivered events change nothing, not even the count of refusals."""
    ledger = placed()
    before = ledger.digest()
    for revision, data in enumerate(ledger.events, 1):
        assert not fold.apply(ledger.state, revision, event_of(data)).refused
    fold.refuse(ledger.state, ledger.state.revision, "apportion.v1.x", "old")
    assert ledger.digest() == before


def test_the_newest_refused_events_are_kept_and_all_are_counted() -> None:
    """All refused events are counted, but only the newest are kept in memory."""
    state = State()
    for revision in range(1, REFUSED_EVENTS_KEPT + 11):
        fold.apply(state, revision, event_of(GONE))
    assert state.refused_count == REFUSED_EVENTS_KEPT + 10
    assert len(state.refused_events) == REFUSED_EVENTS_KEPT
    assert state.refused_events[0].revision == 11
