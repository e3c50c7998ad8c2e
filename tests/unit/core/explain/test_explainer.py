"""Tests that the advice for a pending pod names only nodes that could fit the pod."""

import pytest

from apportion.core.answers.reads import Why
from apportion.core.explain.explainer import Explainer
from apportion.core.explain.waiting_lines import lines_answer
from apportion.core.explain.why import event_words, why
from apportion.core.placement.feasibility.causes import TooFewPlaces
from apportion.lab.fitting import EmptyFleet
from apportion_schemas import (
    Ask,
    DeviceConstraints,
    Host,
    NodeConstraints,
    NodeReported,
    PodSubmitted,
    RefusalCode,
)
from tests.support.fleet import T4, node, observed, rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod, shape

L40S, H100 = "NVIDIA L40S", "NVIDIA H100 80GB HBM3"


def small(name: str, count: int = 8) -> NodeReported:
    """Return a node of 46 GiB devices, too small for 70,000 MiB."""
    return rack(name, count, model=L40S, memory_mib=46_068)


def large(name: str, count: int = 8) -> NodeReported:
    """Return a node of 80 GiB devices, large enough for 70,000 MiB."""
    return rack(name, count, model=H100, memory_mib=81_559)


def held_up(*wanted: Ask, holds: Ask | None = None, **fields: object) -> Ledger:
    """Return a ledger with four small nodes, a large node in use, and the pending pod `p`."""
    ledger = Ledger(large("z-large")).submit(pod("big", holds or cards(8))).settle()
    for number in range(4):
        ledger.play(small(f"a-small-{number}"))
    return ledger.submit(pod("p", *wanted, **fields)).settle()


def answer_of(ledger: Ledger) -> Why:
    return why(ledger.state, ledger.pod("p"))


@pytest.mark.parametrize(
    ("holds", "code"),
    [
        (cards(8), RefusalCode.SLOTS_EXHAUSTED),
        (ask(30_000, count=8), RefusalCode.MEMORY_INSUFFICIENT),
    ],
)
def test_the_nearest_is_the_node_that_could_be_freed(holds: Ask, code: RefusalCode) -> None:
    """The answer calls the large node the nearest to fitting, because the pod would fit there once
    the pods on it end.

    The refusal event lists the small nodes instead, but the pod could never fit them."""
    ledger = held_up(ask(70_000, count=8), holds=holds)
    answer = answer_of(ledger)
    assert answer.refused is not None
    assert not answer.refused.never
    assert [miss.node for miss in answer.refused.nearest] == ["z-large"]
    near = answer.refused.nearest[0]
    assert near.code in ledger.pod("p").refusal.reasons  # type: ignore[union-attr]
    assert answer.refused.causes[0].code is near.code
    assert "closest: z-large" in answer.sentence
    assert "a-small" not in answer.sentence
    if code is RefusalCode.MEMORY_INSUFFICIENT:
        assert (near.code, near.needed, near.available) == (code, 70_000, 51_559)


def test_of_nodes_that_are_all_too_small_the_largest_is_the_nearest(golden: Golden) -> None:
    """If all nodes are too small for a pod, the largest node is the nearest to fitting.

    This holds even if little of the node's memory is free."""
    ledger = held_up(ask(100_000))
    answer = answer_of(ledger)
    assert answer.refused is not None
    assert answer.refused.never
    golden({"100000 MiB": answer.sentence})
    assert answer.refused.nearest[0].available_words == "81,559 MiB"
    assert {cause.code for cause in answer.refused.causes} == {RefusalCode.MEMORY_INSUFFICIENT}
    [line] = lines_answer(ledger.state).lines
    assert answer.sentence.endswith(line.sentence)
    assert (line.first[0].nearest, line.first[0].missing) == ("z-large", "18,441 MiB")


def test_what_ends_on_a_small_node_is_said_to_help_nobody(golden: Golden) -> None:
    """If a pending pod must wait until other pods end, the advice counts only the nodes that could
    then fit it."""
    answer = answer_of(held_up(ask(70_000, count=8), holds=ask(30_000, count=8)))
    assert answer.refused is not None
    [cause] = answer.refused.causes
    assert cause.nodes == 5
    golden({"5 nodes, one is large": cause.unblocked_by})


def test_a_type_that_is_not_there_is_named_beside_those_that_are() -> None:
    """If no device has the requested type, the answer shows the existing types too."""
    wanted = shape(ask(1_000), devices=DeviceConstraints(use_types=("H200",)))
    ledger = Ledger(large("n"), small("s"), rack("npu", 1, family="ascend", model="Ascend310P"))
    ledger.submit(pod("p", shape=wanted)).settle()
    answer = answer_of(ledger)
    assert answer.refused is not None
    assert "H200 (2 of 3 nodes)" in answer.sentence
    assert answer.refused.causes[0].unblocked_by.endswith(f"this fleet has {H100}, {L40S}")
    near = [(miss.node, miss.needed_words, miss.available_words) for miss in answer.refused.nearest]
    assert near[:2] == [("n", "H200", H100), ("s", "H200", L40S)]


def test_the_nearest_has_most_of_the_empty_cards_that_are_wanted() -> None:
    """If a pod requests empty devices, the nearest node is the one with the most empty devices."""
    ledger = Ledger(rack("a-full", 8)).submit(pod("all", ask(60_000, count=8))).settle()
    ledger.play(rack("b-half", 8)).submit(pod("four", ask(80_000, count=4))).settle()
    answer = answer_of(ledger.submit(pod("p", cards(8))).settle())
    assert answer.refused is not None
    near = [(miss.node, miss.missing) for miss in answer.refused.nearest]
    assert near == [("b-half", "4 devices"), ("a-full", "8 devices")]
    assert "closest: b-half" in answer.sentence


def test_who_holds_the_nearest_node_is_named() -> None:
    """The answer names the first pods on the nearest node and counts all of them. For a single
    device, only the pods on that device count."""
    ledger = Ledger(large("n"))
    for number in range(6):
        ledger.submit(pod(f"held-{number}", cards())).settle()
    answer = answer_of(ledger.submit(pod("p", cards(8))).settle())
    assert answer.refused is not None
    (near,) = answer.refused.nearest
    assert near.held_by == tuple(f"default/held-{number}" for number in range(4))
    assert near.holders == 6

    ledger = Ledger(large("n", 2)).submit(pod("a", ask(30_000))).submit(pod("b", cards())).settle()
    answer = answer_of(ledger.submit(pod("p", ask(60_000))).settle())
    assert answer.refused is not None
    assert [miss.held_by for miss in answer.refused.nearest] == [("default/a",)]


def test_cores_that_are_all_held_are_not_asked_for(golden: Golden) -> None:
    """If all cores are in use, a pod without a core request is not advised to request fewer
    cores."""
    ledger = Ledger(large("n", 1)).submit(pod("all", ask(1_000, cores=99))).settle()
    ledger.submit(pod("one", ask(1_000, cores=1))).settle()
    answer = answer_of(ledger.submit(pod("p", ask(1_000))).settle())
    golden({"no cores are left": answer.sentence})
    assert answer.refused is not None
    (near,) = answer.refused.nearest
    assert (near.needed_words, near.available_words, near.missing) == ("a free core", "none", "")


def told(ledger: Ledger) -> str:
    """Return the text of the Kubernetes event that reports why pod `p` was refused."""
    waits = ledger.pod("p")
    assert waits.refusal is not None
    return event_words(ledger.state, waits, waits.refusal)


def test_an_event_says_why_nothing_was_evicted() -> None:
    """If preemption rules keep lower-priority pods on the nearest nodes, the refused pod's
    Kubernetes event says so."""
    for policy, spared in (({"preempts": False}, True), ({}, False)):
        ledger = Ledger(large("n", 1)).submit(pod("low", ask(60_000), priority=1)).settle()
        ledger.submit(pod("p", ask(60_000), priority=9, **policy)).settle()
        waits = ledger.pod("p")
        assert waits.refusal is not None
        assert ("preemptionPolicy" in told(ledger)) is spared


def test_an_event_advises_no_node_that_could_never_hold_the_pod(golden: Golden) -> None:
    """A refused pod's Kubernetes event names only nodes that could fit the pod."""
    alone = told(held_up(ask(70_000, count=8)))
    both = Ledger(large("a-held", 1), small("b-small", 1)).submit(pod("big", ask(60_000))).settle()
    both.submit(pod("p", ask(70_000))).settle()
    assert "b-small" not in told(both)
    golden({"none could hold it": alone, "a-held could": told(both)})


def test_the_line_names_the_same_node() -> None:
    """The list of pending pods and `why` name the same node as the nearest to fitting the pod."""
    [line] = lines_answer(held_up(ask(70_000, count=8), holds=ask(30_000, count=8)).state).lines
    assert [miss.node for miss in line.nearest] == ["z-large"]
    assert (line.first[0].nearest, line.first[0].missing) == ("z-large", "18,441 MiB")
    assert not line.lasting


def test_a_node_that_lacks_less_is_nearer() -> None:
    """The nearest nodes would fit the pod if they were empty. They are sorted by what they lack."""
    ledger = Ledger(large("m"), small("s1"), small("s2"), small("s3"))
    ledger.submit(pod("all", ask(30_000, count=8))).settle()
    ledger.play(large("n"))
    ledger.submit(pod("some", ask(60_000, count=2))).settle()
    ledger.submit(pod("p", ask(70_000, count=8))).settle()
    refused = answer_of(ledger).refused
    assert refused is not None
    assert [miss.node for miss in refused.nearest] == ["m", "n"]


NEVER = {
    "memory": ((small("s"), rack("t", 1, model=T4)), pod("p", ask(70_000))),
    "count": ((large("n", 4),), pod("p", cards(8))),
    "type": (
        (large("n"), small("s")),
        pod("p", shape=shape(ask(70_000), devices=DeviceConstraints(use_types=("L40S",)))),
    ),
    "id": (
        (large("n"), small("s")),
        pod("p", shape=shape(ask(70_000), devices=DeviceConstraints(use_ids=("s-g1",)))),
    ),
    "labels": (
        (large("n"), small("s")),
        pod("p", shape=shape(ask(1_000), node=NodeConstraints(selector={"zone": "x"}))),
    ),
    "host": (
        (node("n", host=Host(cpu_milli=4_000, memory_mib=1_000, pods=10)),),
        pod("p", shape=shape(node=NodeConstraints(cpu_milli=8_000))),
    ),
}


@pytest.mark.parametrize("kind", NEVER)
def test_what_no_node_could_hold_is_said_to_never_fit(golden: Golden, kind: str) -> None:
    """If no node could ever fit a pod, the answer says so. It does not advise freeing or repairing
    a node."""
    fleet, wanted = NEVER[kind]
    ledger = Ledger(*fleet).submit(wanted).settle()
    answer = answer_of(ledger)
    assert EmptyFleet(ledger.state).lasting(ledger.pod("p")) is not None
    golden({kind: answer.sentence})
    assert answer.refused is not None
    assert answer.refused.never
    for cause in answer.refused.causes:
        assert "freed" not in cause.unblocked_by
        assert "end on" not in cause.unblocked_by
    [line] = lines_answer(ledger.state).lines
    assert line.lasting
    assert line.sentence.startswith("would not fit")


def waits_for(*fleet: object, wanted: PodSubmitted) -> Why:
    """Submit the pod to a fleet that would fit it if empty. Return why the pod is pending."""
    ledger = Ledger(*fleet)  # type: ignore[arg-type]
    ledger.submit(wanted).settle()
    assert EmptyFleet(ledger.state).lasting(ledger.pod("p")) is None
    return answer_of(ledger)


def test_a_large_node_that_is_not_ready_may_recover() -> None:
    """If a node that is not ready could fit the pod, the answer advises repairing that node."""
    answer = waits_for(
        observed("n", ready=False), large("n"), small("s"), wanted=pod("p", ask(70_000))
    )
    assert answer.refused is not None
    assert not answer.refused.never
    assert [miss.node for miss in answer.refused.nearest] == ["n"]
    assert answer.refused.causes[0].unblocked_by.endswith("ready")


@pytest.mark.parametrize(
    ("pods", "limit"), [(4, None), (5, TooFewPlaces(needed=5, places=4, none=()))]
)
def test_a_gang_that_the_empty_fleet_has_no_room_for(pods: int, limit: TooFewPlaces | None) -> None:
    """A gang that would not fit the empty fleet is reported as too large."""
    ledger = Ledger(rack("n1", 4), rack("n2", 4), gang("team/job", pods))
    ledger.submit(pod("holds", cards())).settle()
    ledger.submit(*(member(f"m{number}", cards(2)) for number in range(pods))).settle()
    waits = ledger.pod("m0")
    assert waits.refusal is not None
    found = Explainer(ledger.state).explained(waits, waits.refusal)
    assert found.limit == limit


@pytest.mark.parametrize(
    ("memory_mib", "limit"),
    [(80_000, None), (90_000, TooFewPlaces(needed=2, places=1, none=("default/m1",)))],
)
def test_of_a_gang_whose_pods_differ_each_must_have_a_place(
    memory_mib: int, limit: TooFewPlaces | None
) -> None:
    """A gang of different pods is reported as too large only if one of the pods never fits."""
    ledger = Ledger(rack("n1", 1), gang("team/job", 2))
    ledger.submit(member("m0", cards()), member("m1", ask(memory_mib))).settle()
    for name in ("m0", "m1"):
        waits = ledger.pod(name)
        assert waits.refusal is not None
        found = Explainer(ledger.state).explained(waits, waits.refusal)
        assert found.limit == limit


def test_of_a_fleet_without_nodes_no_gang_is_told_that_it_is_too_small() -> None:
    """If the fleet has no nodes, no gang is reported as too large."""
    ledger = Ledger(gang("team/job", 2)).submit(member("m0", cards()), member("m1", cards()))
    waits = ledger.settle().pod("m0")
    assert waits.refusal is not None
    assert not Explainer(ledger.state).explained(waits, waits.refusal).limit
