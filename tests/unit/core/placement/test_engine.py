"""Tests of the engine, the part of a scheduler that decides: where it places pods, and what happens
if a decision is not appended to the ledger."""

import pytest

from apportion.core.placement import classes
from apportion.core.placement.engine import Decision, DecisionEvent, Engine
from apportion_schemas import (
    AllocationFailed,
    BindFailed,
    DeviceConstraints,
    DeviceCordoned,
    DeviceHealthChanged,
    DeviceUncordoned,
    LabelExpression,
    NodeCordoned,
    NodeExpression,
    NodeHeard,
    NodeSilent,
    NodeUncordoned,
    PlacementVoided,
    PodConstraints,
    PodPlaced,
    PodRefused,
    PodSelector,
    PodTerm,
    PolicyChanged,
    PreferredTerm,
    PricedShape,
    PricesLearnt,
    RefusalCode,
    Shape,
    Taint,
    Toleration,
)
from apportion_schemas.quantities import Payload
from tests.support.deciding import decided
from tests.support.fleet import gpu, node, observed, rack, registered
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod, shape, share, wants
from tests.support.pods import placed as placement

C = RefusalCode


def policy(nodes: str, devices: str = "binpack") -> PolicyChanged:
    return PolicyChanged(by="ann", node_policy=nodes, device_policy=devices)  # type: ignore[arg-type]


def half_full(*policies: PolicyChanged) -> Ledger:
    """Return a ledger with two nodes of two devices. Half of one device of node `b` is in use."""
    return Ledger(
        *policies,
        rack("a", 2),
        rack("b", 2),
        pod("x"),
        placement("x", "b", [share("b-g1", 40_960, 50)]),
    )


@pytest.mark.parametrize(
    ("nodes", "devices", "where"),
    [
        ("binpack", "binpack", "b-g1"),
        ("binpack", "spread", "b-g0"),
        ("spread", "binpack", "a-g0"),
        ("spread", "spread", "a-g0"),
    ],
)
def test_policies(nodes: str, devices: str, where: str) -> None:
    """The node policy chooses a pod's node, and the device policy the device on that node."""
    ledger = half_full(policy(nodes, devices)).submit(pod("p", ask(1000)))
    ledger.decide()
    assert ledger.devices("p") == [where]


def test_a_pod_may_name_its_own_policies() -> None:
    """If a pod names its own policies, they override the cluster's."""
    own = shape(ask(1000), node_policy="spread", device_policy="spread")
    ledger = half_full(policy("binpack")).submit(pod("p", shape=own), pod("q", ask(1000)))
    ledger.decide()
    assert (ledger.where("p"), ledger.where("q")) == ("a", "b")


def test_a_policy_changes_live() -> None:
    """A changed policy applies to all decisions after its revision."""
    ledger = half_full(policy("binpack"))
    ledger.submit(pod("p", ask(1000))).settle()
    ledger.play(policy("spread")).submit(pod("q", ask(1000))).settle()
    assert (ledger.where("p"), ledger.where("q")) == ("b", "a")


def test_equal_nodes_go_by_name() -> None:
    """Of equal nodes, the scheduler chooses the first by name, whatever the order of arrival."""
    ledger = Ledger(rack("c", 1), rack("a", 1), rack("b", 1), pod("p", ask(1))).settle()
    assert ledger.where("p") == "a"


def test_pods_without_devices_go_by_the_host() -> None:
    """With binpack, pods without devices go to the host with more CPU and memory in use."""
    ledger = Ledger(
        policy("binpack"),
        rack("a", 1),
        observed("b"),
        pod("x", shape=wants(cpu_milli=128_000)),
        placement("x", "b"),
        pod("p", shape=wants(cpu_milli=1000)),
    ).settle()
    assert (ledger.where("p"), ledger.shares("p")) == ("b", ())


def test_preferred_affinity_weighs_as_much_as_the_policy() -> None:
    """Preferred affinity weighs as much as the policy: a node that meets all of a pod's preferences
    beats a fuller node."""
    term = PreferredTerm(weight=10, term=(NodeExpression(key="zone", operator="Exists"),))
    ledger = half_full(policy("binpack")).play(observed("a", labels={"zone": "z"}))
    ledger.submit(pod("p", shape=wants(ask(1000), preferred=(term,)))).settle()
    assert ledger.where("p") == "a"
    assert ledger.placement("p").score.total == 50.0


SHUN = Taint(key="t", effect="PreferNoSchedule")


def test_H4_a_taint_that_prefers_no_pods_outdoes_the_policy() -> None:
    """A PreferNoSchedule taint outweighs the policy, but the scheduler uses the tainted node if no
    other node fits.

    A pod that tolerates the taint ignores it."""
    tolerant = wants(ask(1000), tolerations=(Toleration(key="t", operator="Exists"),))
    ledger = half_full(policy("binpack")).submit(pod("before", ask(1000))).settle()
    ledger.play(observed("b", taints=(SHUN,))).submit(pod("after", ask(1000))).settle()
    ledger.submit(pod("tolerant", shape=tolerant)).settle()
    ledger.play(observed("a", ready=False)).submit(pod("must", ask(1000))).settle()
    assert [ledger.where(uid) for uid in ("before", "after", "tolerant", "must")] == list("babb")


def test_H4_who_tolerates_a_cordon_goes_there() -> None:
    """The scheduler places a pod that tolerates the cordon taint, such as a DaemonSet pod; all
    other pods are refused."""
    cordon = Toleration(key="node.kubernetes.io/unschedulable", operator="Exists")
    ledger = Ledger(rack("n1", 1), observed("n1", unschedulable=True))
    ledger.submit(pod("p", shape=wants(ask(1000), tolerations=(cordon,)))).settle()
    ledger.submit(pod("q", ask(1000))).settle()
    assert ledger.where("p") == "n1"
    assert ledger.reasons("q") == {RefusalCode.NODE_UNSCHEDULABLE: 1}


def test_taints_and_affinity_count_three_to_two() -> None:
    """As in kube-scheduler, PreferNoSchedule taints count with weight three and preferred affinity
    with weight two."""
    term = PreferredTerm(weight=10, term=(NodeExpression(key="zone", operator="Exists"),))
    wish = wants(ask(1000), preferred=(term,))
    ledger = half_full(policy("binpack")).submit(pod("early", shape=wish)).settle()
    ledger.play(observed("a", labels={"zone": "z"}, taints=(SHUN,)))
    ledger.submit(pod("p", shape=wish)).settle()
    assert ledger.where("p") == "b"
    assert ledger.placement("p").runners_up[0].total == 20.0


def test_placement_names_score_runners_up_and_how_many_fitted() -> None:
    """A placement records its score in parts, the runners-up in order, and how many nodes
    fitted."""
    ledger = half_full(policy("binpack")).report(rack("c", 1), node("bare"))
    ledger.submit(pod("p", ask(1000))).settle()
    found = ledger.placement("p")
    assert (found.score.node, found.score.total, found.score.parts) == ("b", 25.0, {"binpack": 25})
    assert [(s.node, s.total) for s in found.runners_up] == [("a", 0.0), ("c", 0.0)]
    assert (found.fitting, found.nodes) == (3, 4)


@pytest.mark.parametrize(("second", "fitting"), [(50_000, 2), (50_001, 4)])
def test_runners_up_could_have_taken_the_pod(second: int, fitting: int) -> None:
    """A node that has room for each of a pod's containers, but not for all together, is not among
    the runners-up.

    If the containers are equal, such a node does not count as fitting either."""
    both = [ask(50_000, container="a"), ask(second, container="b")]
    ledger = Ledger(
        policy("spread"), rack("a", 1), rack("b", 2), rack("c", 1), rack("d", 2), pod("p", *both)
    ).settle()
    assert ledger.where("p") == "b"
    assert [score.node for score in ledger.placement("p").runners_up] == ["d"]
    assert ledger.placement("p").fitting == fitting


def test_what_one_pod_takes_is_not_there_for_the_next() -> None:
    """A decision on several pods counts what its earlier placements use. Pods that no longer fit
    are refused accordingly."""
    ledger = Ledger(rack("n1", 1), *(pod(f"p{n}", ask(30_000)) for n in range(3)))
    events = ledger.decide()
    assert [type(event) for event in events] == [PodPlaced, PodPlaced, PodRefused]
    (miss,) = ledger.refusal("p2").nearest
    assert (miss.code, miss.available) == (C.MEMORY_INSUFFICIENT, 81_920 - 60_000)


EVERYTHING = (
    rack("a", 2),
    observed("b", extended={"example.com/nic": 2}),
    rack("b", 1),
    pod("p1", ask(1000)),
    pod("p2", shape=wants(cpu_milli=10, memory_mib=5, extended={"example.com/nic": 1})),
    pod("p3", ask(99_999)),
    gang(min_available=2),
    member("m1", cards()),
    member("m2", cards()),
    member("m3", cards(3)),
)


def test_decide_leaves_the_state_as_it_was() -> None:
    """The engine's decisions do not change the state. The state changes only when a decision's
    events are folded."""
    ledger = Ledger(*EVERYTHING, pod("p4", ask(7)), placement("p4", "a", [share("a-g0", 7, 0)]))
    ledger.play(AllocationFailed(pod="p4", node="a", attempt=1, message="x"))
    before = ledger.digest()
    decision = ledger.engine.decide()
    assert ledger.digest() == before
    assert {type(event) for event in decision.events} == {PodPlaced, PodRefused, PlacementVoided}
    for event in decision.events:
        assert not ledger.take(event).refused


def by_pod(decision: Decision) -> list[DecisionEvent]:
    return sorted(decision.events, key=lambda event: event.pod)


def test_a_decision_that_never_arrived_is_decided_again() -> None:
    """If a decision could not be appended, `retry` lets the engine decide the same events again,
    exactly once."""
    ledger = Ledger(*EVERYTHING)
    first = lost = ledger.engine.decide()
    for _ in range(3):
        ledger.engine.retry(lost)
        lost = ledger.engine.decide()
        assert by_pod(lost) == by_pod(first)
    assert len(first.events) == 6


def test_without_retry_nothing_is_decided_twice() -> None:
    """If a decision's events have not arrived, the engine decides again only after `retry`."""
    ledger = Ledger(*EVERYTHING)
    ledger.engine.decide()
    assert ledger.engine.decide().events == []


def test_pods_of_a_lost_decision_that_ended_are_dropped() -> None:
    """After a decision that could not be appended, the engine drops the decision's pods that have
    ended or were placed elsewhere."""
    ledger = Ledger(rack("n1", 4), *(pod(uid, ask(1)) for uid in "abc"))
    lost = ledger.engine.decide()
    ledger.gone("a").play(placement("b", shares=[share("n1-g0")]))
    ledger.engine.retry(lost)
    assert [event.pod for event in ledger.engine.decide().events] == ["c"]


def test_a_refused_pod_that_is_woken_after_a_lost_decision_is_placed_once() -> None:
    """If several decisions about a pod could not be appended, the pod is still placed only once
    when room becomes free."""
    ledger = Ledger(rack("n1", 1), pod("first", cards())).settle()
    ledger.submit(pod("p", cards()))
    for _ in range(3):
        ledger.engine.retry(ledger.engine.decide())
    ledger.gone("first")
    assert [(type(e), e.pod) for e in ledger.engine.decide().events] == [(PodPlaced, "p")]


def test_a_refused_pod_that_others_mind_stands_in_one_queue_after_a_lost_decision() -> None:
    """If a decision could not be appended, the pods that it had refused are queued exactly once."""
    app = LabelExpression(key="app", operator="In", values=("web",))
    web = PodSelector(expressions=(app,))
    away = PodTerm(pods=web, topology_key="kubernetes.io/hostname")
    guard = shape(cards(), pods=PodConstraints(anti_affinity=(away,)))
    ledger = Ledger(rack("n1", 4), pod("guard", shape=guard)).settle()
    ledger.submit(pod("p", ask(1), labels={"app": "web"}))
    ledger.engine.retry(ledger.engine.decide())
    assert ledger.engine.pending == 1
    ledger.gone("guard")
    assert [(type(e), e.pod) for e in ledger.engine.decide().events] == [(PodPlaced, "p")]


def test_a_new_pod_is_refused_for_the_causes_of_now() -> None:
    """A pod is refused for current causes only, not because its node's agent was silent before.

    Earlier pods of the same shape get the same refusal."""
    ledger = Ledger(rack("n1", 1), pod("holds", cards())).settle()
    ledger.play(NodeSilent(node="n1", grace_s=40)).submit(pod("old", cards())).settle()
    ledger.play(NodeHeard(node="n1")).settle()
    ledger.submit(pod("new", cards())).settle()
    found = [each.refusal for each in map(ledger.pod, ("old", "new"))]
    assert [each and each.reasons for each in found] == [{RefusalCode.DEVICE_IN_USE: 1}] * 2


def test_nobody_is_refused_in_the_decision_that_places_him() -> None:
    """A decision that places a pod contains no refusal of the same pod, although an older pod of
    its shape is refused."""
    ledger = Ledger(rack("n1", 1), pod("first", cards())).settle()
    ledger.submit(pod("old", cards())).settle()
    ledger.gone("first").submit(pod("urgent", cards(), priority=9))
    assert [(type(e), e.pod) for e in ledger.engine.decide().events] == [(PodPlaced, "urgent")]


@pytest.mark.parametrize(
    "failure",
    [
        BindFailed(pod="p", node="n1", attempt=1, message="conflict", final=True),
        AllocationFailed(pod="p", node="n1", attempt=1, message="conflict"),
    ],
)
def test_what_failed_for_good_is_voided_and_placed_again(failure: Payload) -> None:
    """The scheduler voids a permanently failed placement once, with the cause, and places the pod
    again as attempt 2."""
    ledger = Ledger(rack("n1", 1), pod("p", ask(1))).settle()
    ledger.play(failure)
    assert ledger.decide() == [PlacementVoided(pod="p", attempt=1, node="n1", reason="conflict")]
    (again,) = ledger.decide()
    assert isinstance(again, PodPlaced)
    assert again.attempt == 2
    assert ledger.decide() == []


def test_a_failure_that_may_pass_voids_nothing() -> None:
    """After a temporary failure, the scheduler keeps the placement, because the binder retries."""
    ledger = Ledger(rack("n1", 1), pod("p", ask(1))).settle()
    ledger.play(BindFailed(pod="p", node="n1", attempt=1, message="timeout", final=False))
    assert ledger.decide() == []


def test_a_placement_that_no_fold_took_is_made_anew() -> None:
    """If the fold refuses a placement that another process appended, its attempt number is used up.
    The scheduler places the pod as attempt 2."""
    ledger = Ledger(rack("n1", 1), pod("p", ask(1)))
    ledger.contradict(placement("p", shares=[share("n1-g0", 99_999)]))
    (found,) = ledger.decide()
    assert isinstance(found, PodPlaced)
    assert found.attempt == 2


CLOSED: list[tuple[str, Payload, Payload, RefusalCode]] = [
    (
        "unhealthy",
        DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID"),
        DeviceHealthChanged(node="n1", device="n1-g0", healthy=True),
        C.DEVICE_UNHEALTHY,
    ),
    (
        "cordoned",
        DeviceCordoned(device="n1-g0", by="ann", reason="fan"),
        DeviceUncordoned(device="n1-g0", by="ann"),
        C.DEVICE_CORDONED,
    ),
    (
        "node cordoned",
        NodeCordoned(node="n1", by="ann", reason="kernel"),
        NodeUncordoned(node="n1", by="ann"),
        C.NODE_CORDONED,
    ),
    ("not ready", observed("n1", ready=False), observed("n1"), C.NODE_NOT_READY),
    ("silent", NodeSilent(node="n1", grace_s=40), NodeHeard(node="n1"), C.AGENT_SILENT),
    ("another plugin", registered("n1"), registered("n1", ""), C.DEVICE_PLUGIN_FOREIGN),
    ("drained", observed("n1", unschedulable=True), observed("n1"), C.NODE_UNSCHEDULABLE),
    ("not reported", node("n1"), rack("n1", 1), C.DEVICE_UNHEALTHY),
]


@pytest.mark.parametrize(
    ("closing", "opening", "code"), [case[1:] for case in CLOSED], ids=[case[0] for case in CLOSED]
)
def test_nothing_goes_onto_what_is_closed(
    closing: Payload, opening: Payload, code: RefusalCode
) -> None:
    """While a node or device is closed, the scheduler places nothing there. Pods already there
    stay, and pending pods are placed when it opens."""
    ledger = Ledger(rack("n1", 1), pod("there", ask(1))).settle()
    ledger.play(closing).submit(pod("p", ask(2))).settle()
    assert ledger.reasons("p") == {code: 1}
    assert ledger.where("there") == "n1"
    ledger.play(opening).settle()
    assert ledger.where("p") == "n1"


def test_a_batch_holds_so_many_events() -> None:
    """Each batch of decisions has at most `events_max` events; the next batches have the rest."""
    ledger = Ledger(rack("n1", 8), *(pod(f"p{n}", ask(1)) for n in range(5)), pod("q", ask(99_999)))
    assert [len(ledger.decide(events_max=2)) for _ in range(4)] == [2, 2, 2, 0]


def test_shapes_beyond_the_limit_are_indexed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are more shapes than the cache keeps, the scheduler still places all pods
    correctly."""
    monkeypatch.setattr(classes, "CLASSES_MAX", 2)
    ledger = Ledger(rack("n1", 8))
    for number in range(12):
        ledger.submit(pod(f"p{number}", ask(1000 + number % 4))).settle()
    assert sum(d.device.memory_mib - d.memory_free_mib for d in ledger.node().devices) == 12_018


def test_an_engine_that_is_new_to_a_state_decides_as_the_old_one() -> None:
    """A new engine over a state decides like the old engine."""
    ledger = half_full(policy("binpack")).submit(*(pod(f"p{n}", ask(1000 * n)) for n in range(9)))
    fresh: Decision = Engine(ledger.state).decide()
    assert fresh.events == decided(ledger.engine).events


def test_devices_that_are_no_more_weigh_nothing() -> None:
    """An engine that has seen a removed kind of device decides like a new engine."""
    small, part = ask(1000, container="a"), ask(memory_percent=30, container="b")
    sorts = (ask(3000), ask(memory_percent=50), cards())
    priced = tuple(
        PricedShape(ask=each, cpu_milli=100, memory_mib=10, pods=5, size=1_000_000, value=value)
        for each, value in zip(sorts, (800_000, 500_000, 1_500_000), strict=True)
    )
    ledger = Ledger(PricesLearnt(pods=10, shapes=priced), rack("old", 1, memory_mib=1000))
    ledger.report(*(rack(name, 2, memory_mib=4000) for name in "bc"))
    ledger.submit(pod("first", small, part), pod("second", ask(900, cores=10))).settle()
    ledger.report(node("old")).submit(pod("p", small, part))
    fresh = decided(Engine(ledger.state))
    assert fresh.events == decided(ledger.engine).events


def test_ids_that_left_and_came_are_looked_at_again() -> None:
    """If a device moves to another node, a pod that requests the device by id is placed there."""
    only = shape(ask(1), devices=DeviceConstraints(use_ids=("g7",)))
    ledger = Ledger(node("a", gpu("g6"), gpu("g7")), node("b", gpu("g5")))
    ledger.submit(pod("p", shape=only)).settle()
    ledger.gone("p").report(node("a", gpu("g6")), node("b", gpu("g5"), gpu("g7")))
    ledger.submit(pod("q", shape=only)).settle()
    assert (ledger.where("q"), ledger.devices("q")) == ("b", ["g7"])


def test_who_looks_for_another_is_placed_in_the_decision_that_places_him() -> None:
    """If one pod has affinity to another, one decision can place both pods."""
    near = PodTerm(
        pods=PodSelector(expressions=(LabelExpression(key="app", operator="Exists"),)),
        topology_key="kubernetes.io/hostname",
    )
    follower = Shape(pods=PodConstraints(affinity=(near,)))
    ledger = Ledger(rack("a", 1), rack("b", 1), pod("follower", shape=follower)).settle()
    assert ledger.reasons("follower") == {C.POD_AFFINITY_MISMATCH: 2}
    ledger.submit(pod("leader", ask(1), labels={"app": "x"}))
    fresh = Engine(ledger.state).decide()
    assert [event.pod for event in fresh.events] == ["leader", "follower"]
    assert ledger.engine.decide().events == fresh.events


def test_a_pod_refused_beside_one_that_never_came_is_asked_again() -> None:
    """If a decision could not be appended, the engine also retries the pods that this decision had
    refused.

    Here, the second pod was refused only because the same decision had placed the first one."""
    ledger = Ledger(rack("a", 1), rack("b", 1), pod("x", cards())).settle()
    ledger.submit(pod("first", cards()), pod("second", cards(memory_percent=100)))
    lost = ledger.engine.decide()
    assert [type(event) for event in lost.events] == [PodPlaced, PodRefused]
    ledger.gone("first")
    ledger.engine.retry(lost)
    assert [(type(e), e.pod) for e in ledger.engine.decide().events] == [(PodPlaced, "second")]
