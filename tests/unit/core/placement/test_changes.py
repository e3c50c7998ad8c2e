"""Tests of pods whose scheduling gates, labels or size change after they were submitted."""

from msgspec import structs

from apportion.core.explain.why import why
from apportion.core.placement.engine import Engine
from apportion_schemas import (
    LabelExpression,
    Neighbour,
    NodeConstraints,
    PodChanged,
    PodConstraints,
    PodPlaced,
    PodSelector,
    PodTerm,
    QueueObserved,
    SpreadConstraint,
    Taint,
)
from tests.support.deciding import decided
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, gang, member, pod, shape, wants

WEB = PodSelector(
    expressions=(LabelExpression(key="app", operator="In", values=("web",)),),
    namespaces=("default",),
)
HOST = "kubernetes.io/hostname"
NEAR_WEB = PodConstraints(affinity=(PodTerm(pods=WEB, topology_key=HOST),))
FAR_FROM_WEB = PodConstraints(anti_affinity=(PodTerm(pods=WEB, topology_key=HOST),))


def test_F14_a_pod_with_gates_waits_and_says_for_what() -> None:
    """A pod with scheduling gates is neither decided nor refused. It is placed when its last gate
    is removed."""
    ledger = Ledger(rack("n1", 1), pod("p", ask(1000), gates=("quota", "team.io/data")))
    assert ledger.decide() == []
    assert "quota, team.io/data" in why(ledger.state, ledger.pod("p")).sentence
    ledger.play(PodChanged(uid="p", gates=("quota",)))
    assert ledger.decide() == []
    ledger.play(PodChanged(uid="p")).settle()
    assert ledger.where("p") == "n1"


def test_a_pod_with_gates_keeps_nobody_behind_it_waiting() -> None:
    """A gated pod does not block other pods of the same shape."""
    ledger = Ledger(rack("n1", 1), pod("first", ask(1000), gates=("g",), priority=9))
    ledger.submit(pod("second", ask(1000))).settle()
    assert [ledger.where(uid) for uid in ("first", "second")] == ["", "n1"]


def test_a_gang_is_whole_without_its_gates_only() -> None:
    """The scheduler does not place a gang while one of its pods is gated."""
    ledger = Ledger(rack("n1", 2), gang(min_available=2), member("a", ask(1000)))
    ledger.submit(member("b", ask(1000), gates=("g",))).settle()
    short = ledger.refusal("a").gang
    assert short is not None
    assert (short.needed, short.present) == (2, 1)
    ledger.play(PodChanged(uid="b")).settle()
    assert [ledger.where(uid) for uid in ("a", "b")] == ["n1", "n1"]


def test_a_label_that_comes_later_counts_for_those_who_look_for_it() -> None:
    """If a running pod gets a label, the scheduler retries pending pods whose affinity selects that
    label."""
    ledger = Ledger(rack("n1", 1), pod("x", ask(1000))).settle()
    ledger.submit(pod("p", shape=shape(ask(1000), pods=NEAR_WEB))).settle()
    assert ledger.where("p") == ""
    ledger.play(PodChanged(uid="x", labels={"app": "web"})).settle()
    assert ledger.where("p") == "n1"


def test_H3_a_label_that_comes_later_keeps_others_away() -> None:
    """If a running pod gets a label, pods with anti-affinity to that label are kept off its node,
    as in kube-scheduler."""
    ledger = Ledger(rack("n1", 1), pod("x", ask(1000))).settle()
    ledger.submit(pod("q", shape=shape(ask(1000), pods=FAR_FROM_WEB))).settle()
    ledger.play(PodChanged(uid="x", labels={"app": "web"}))
    ledger.submit(pod("p", shape=shape(ask(1000), pods=FAR_FROM_WEB))).settle()
    assert [ledger.where(uid) for uid in ("q", "p")] == ["n1", ""]
    ledger.play(PodChanged(uid="x")).settle()
    assert ledger.where("p") == "n1"


def test_H2_spread_does_not_count_a_pod_that_is_being_deleted() -> None:
    """A topology spread constraint does not count a terminating pod, so its replacement can be
    placed. Required affinity still counts it."""
    one = wants(cpu_milli=1000, selector={HOST: "n1"})
    alone = SpreadConstraint(pods=WEB, topology_key=HOST, any_node=True)
    spreads = structs.replace(one, pods=PodConstraints(spread=(alone,)))
    nodes = [observed(name, labels={HOST: name}) for name in ("n1", "n2")]
    ledger = Ledger(*nodes, pod("old", shape=one, labels={"app": "web"})).settle()
    ledger.submit(pod("new", shape=spreads, labels={"app": "web"})).settle()
    assert ledger.where("new") == ""
    ledger.play(PodChanged(uid="old", labels={"app": "web"}, cpu_milli=1000, terminating=True))
    ledger.settle()
    assert ledger.where("new") == "n1"
    near = structs.replace(one, pods=NEAR_WEB)
    ledger.gone("new").submit(pod("near", shape=near)).settle()
    assert ledger.where("near") == "n1"


def test_H2_spread_does_not_count_others_pods_that_are_being_deleted() -> None:
    """A topology spread constraint does not count terminating pods of other schedulers either."""
    alone = SpreadConstraint(pods=WEB, topology_key=HOST, any_node=True)
    asked = wants(selector={HOST: "n1"})
    asked = structs.replace(asked, pods=PodConstraints(spread=(alone,)))
    for terminating, where in ((False, ""), (True, "n1")):
        web = Neighbour(namespace="default", labels={"app": "web"}, terminating=terminating)
        ledger = Ledger(
            observed("n1", labels={HOST: "n1"}, others=(web,)), observed("n2", labels={HOST: "n2"})
        )
        ledger.submit(pod("p", shape=asked, labels={"app": "web"})).settle()
        assert ledger.where("p") == where


def test_a_waiting_pod_with_another_label_is_another_question() -> None:
    """If a pending pod's labels change, the scheduler retries the pod, because another pod's
    anti-affinity may no longer select it."""
    keeper = pod("x", shape=shape(ask(1000), pods=FAR_FROM_WEB))
    ledger = Ledger(rack("n1", 1), keeper).settle()
    ledger.submit(pod("p", ask(1000), labels={"app": "web"})).settle()
    assert ledger.where("p") == ""
    ledger.play(PodChanged(uid="p", labels={"app": "db"})).settle()
    assert ledger.where("p") == "n1"


def test_a_pod_that_shrinks_makes_room() -> None:
    """A running pod that shrinks (`pods/resize`) makes room for other pods."""
    big = pod("x", shape=wants(cpu_milli=200_000))
    ledger = Ledger(observed("n1"), big, pod("p", shape=wants(cpu_milli=100_000))).settle()
    assert ledger.where("p") == ""
    ledger.play(PodChanged(uid="x", cpu_milli=150_000)).settle()
    assert ledger.where("p") == "n1"
    assert ledger.node().cpu_used_milli == 250_000
    ledger.play(PodChanged(uid="x", cpu_milli=170_000, memory_mib=5))
    assert (ledger.node().cpu_used_milli, ledger.node().memory_used_mib) == (270_000, 5)
    ledger.gone("x", "p")
    assert (ledger.node().cpu_used_milli, ledger.node().memory_used_mib) == (0, 0)


def test_a_waiting_pod_that_asks_for_less_may_fit() -> None:
    """If a pending pod's request shrinks, the scheduler retries the pod."""
    ledger = Ledger(observed("n1"), pod("p", shape=wants(cpu_milli=300_000))).settle()
    assert ledger.where("p") == ""
    ledger.play(PodChanged(uid="p", cpu_milli=1000)).settle()
    assert ledger.where("p") == "n1"


def test_a_pod_that_shrinks_frees_its_queue() -> None:
    """If a running pod's CPU request shrinks, its queue has that much CPU left for other pods."""
    capability = QueueObserved(queue="ml", capability={"cpu": 4000})
    asked = {"queue": "ml", "shape": wants(cpu_milli=3000)}
    ledger = Ledger(observed("n1"), capability, pod("x", **asked), pod("p", **asked)).settle()
    assert ledger.where("p") == ""
    ledger.play(PodChanged(uid="x", cpu_milli=1000)).settle()
    assert ledger.where("p") == "n1"


def test_nodes_that_a_pod_cannot_take_count_only_where_it_says_so() -> None:
    """By default, a spread constraint also counts nodes whose taints the pod does not tolerate.
    With `nodeTaintsPolicy: Honor`, it does not."""
    tainted = observed("n2", taints=(Taint(key="t", effect="NoSchedule"),), labels={HOST: "n2"})
    for untainted, where in ((False, ""), (True, "n1")):
        spread = SpreadConstraint(pods=WEB, topology_key=HOST, untainted=untainted)
        asked = shape(pods=PodConstraints(spread=(spread,)))
        ledger = Ledger(observed("n1", labels={HOST: "n1"}), tainted)
        ledger.submit(pod("x", labels={"app": "web"})).settle()
        ledger.submit(pod("p", shape=asked, labels={"app": "web"})).settle()
        assert ledger.where("p") == where


def test_nodes_that_the_selector_leaves_out_count_where_it_says_so() -> None:
    """A spread constraint counts only nodes that the pod's selector allows. With
    `nodeAffinityPolicy: Ignore`, it counts all."""
    for any_node, where in ((False, "n1"), (True, "")):
        spread = SpreadConstraint(pods=WEB, topology_key=HOST, any_node=any_node)
        asked = shape(
            node=NodeConstraints(selector={HOST: "n1"}), pods=PodConstraints(spread=(spread,))
        )
        ledger = Ledger(observed("n1", labels={HOST: "n1"}), observed("n2", labels={HOST: "n2"}))
        ledger.submit(pod("x", shape=wants(selector={HOST: "n1"}), labels={"app": "web"})).settle()
        ledger.submit(pod("p", shape=asked, labels={"app": "web"})).settle()
        assert ledger.where("p") == where


def test_a_restart_finds_the_same() -> None:
    """A scheduler that starts after a pod's labels have changed decides like one that has seen the
    change."""
    ledger = Ledger(rack("n1", 1), pod("x", ask(1000))).settle()
    ledger.submit(pod("p", shape=shape(ask(1000), pods=NEAR_WEB)), pod("g", ask(1), gates=("g",)))
    ledger.settle().play(PodChanged(uid="x", labels={"app": "web"}))
    anew = decided(Engine(ledger.state))
    assert anew.events == decided(ledger.engine).events != []


def test_a_pod_that_changed_while_another_placed_it_waits_once() -> None:
    """If a changed pod's placement is voided, the pod is placed once more, not twice."""
    ledger = Ledger(rack("n1", 2), pod("a", ask(300)))
    ledger.play(*ledger.consider().events)  # another scheduler's decision
    ledger.play(PodChanged(uid="a", cpu_milli=300)).voided("a")
    ledger.submit(pod("b", ask(300)))
    assert sorted(event.pod for event in ledger.decide() if isinstance(event, PodPlaced)) == [
        "a",
        "b",
    ]
