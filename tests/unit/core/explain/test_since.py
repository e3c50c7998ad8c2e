"""Tests that `why` lists the nodes and devices that were cordoned or lost after the pod was
refused."""

from apportion.core.answers.reads import OffOffer, Why
from apportion.core.explain.causes import TAKEN_NAMED
from apportion.core.explain.why import why
from apportion_schemas import (
    DeviceCordoned,
    NodeCordoned,
    NodeHeard,
    NodeSilent,
    NodeUncordoned,
    RefusalCode,
)
from tests.support.fleet import T4, observed, rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod


def told(ledger: Ledger) -> Why:
    return why(ledger.state, ledger.pod("large"))


def taken(ledger: Ledger) -> tuple[OffOffer, ...]:
    """Return the nodes and devices that stopped taking pods after the large pod was refused."""
    refused = told(ledger).refused
    assert refused is not None
    return refused.since


def waiting(*nodes: str) -> Ledger:
    """Return a ledger in which pod `large` is refused.

    Each of these nodes has one device, most of which another pod uses. A further node has a T4,
    which is too small for the pod."""
    ledger = Ledger(*(rack(name, 1) for name in nodes), rack("small", 1, model=T4))
    for name in nodes:
        ledger.submit(pod(f"holds-{name}", ask(70_000)))
    ledger.settle().submit(pod("large", ask(60_000))).settle()
    assert ledger.pod("large").refused_revision
    return ledger


def test_a_cordon_before_the_decision_is_among_its_causes() -> None:
    """A cordon from before the refusal is one of its causes, not a change since the refusal."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), NodeCordoned(node="n1", by="ann", reason="fan"))
    ledger.submit(pod("holds", ask(70_000))).settle().submit(pod("large", ask(60_000))).settle()
    assert taken(ledger) == ()


def test_a_cordon_after_the_decision_is_told_with_who_and_why(golden: Golden) -> None:
    """A cordon set after the refusal is listed with operator and reason, if the pod could use the
    node or device."""
    ledger = waiting("n1", "n2")
    ledger.play(
        NodeCordoned(node="n2", by="ann", reason="fan"),
        NodeCordoned(node="small", by="ann", reason="fan"),
        DeviceCordoned(device="n1-g0", by="bob", reason="noise"),
    )
    first, second = taken(ledger)
    assert (first.node, first.device, second.node, second.device) == ("n1", "n1-g0", "n2", "")
    assert (first.state, second.state) == ("cordoned", "cordoned")
    [noise], [fan] = first.cordons, second.cordons
    assert (noise.reason, noise.by, fan.reason, fan.by) == ("noise", "bob", "fan", "ann")
    golden({"n1-g0 and n2 are cordoned": told(ledger).sentence})
    ledger.play(NodeUncordoned(node="n2", by="ann"))
    assert taken(ledger) == (first,)


def test_a_nearest_node_that_is_not_ready_any_more_is_told(golden: Golden) -> None:
    """If the nearest node became silent or not ready after the refusal, the answer lists it."""
    ledger = waiting("n1").play(observed("n1", ready=False))
    answer = told(ledger)
    assert answer.refused is not None
    assert [miss.node for miss in answer.refused.nearest] == ["n1"]
    assert answer.refused.since == (OffOffer("n1", state="not-ready"),)
    ledger.play(observed("n1"), NodeSilent(node="n1", grace_s=40))
    assert taken(ledger) == (OffOffer("n1", state="silent"),)
    golden({"not ready": answer.sentence, "silent": told(ledger).sentence})
    ledger.play(NodeHeard(node="n1"))
    ledger.play(observed("n1"))
    assert taken(ledger) == ()


def test_a_node_that_was_not_ready_before_is_not_new() -> None:
    """A node that was already not ready at the refusal is not listed."""
    ledger = Ledger(rack("n1", 1), observed("n1", ready=False))
    answer = told(ledger.submit(pod("large", ask(60_000))).settle())
    assert answer.refused is not None
    assert RefusalCode.NODE_NOT_READY in [cause.code for cause in answer.refused.causes]
    assert answer.refused.since == ()


def test_of_many_the_first_are_named() -> None:
    """If many nodes were cordoned after the refusal, the answer lists the first few by name and
    counts the rest."""
    nodes = [f"n{number}" for number in range(1, 11)]
    ledger = waiting(*nodes)
    ledger.play(*(NodeCordoned(node=name, by="ann", reason="power") for name in nodes))
    answer = told(ledger)
    assert answer.refused is not None
    assert [each.node for each in answer.refused.since] == nodes[:TAKEN_NAMED]
    assert answer.refused.since_more == len(nodes) - TAKEN_NAMED


def test_a_second_cordon_of_what_was_off_offer_is_no_news() -> None:
    """If a node was cordoned before the refusal, further cordons of the node or its devices are not
    listed."""
    ledger = Ledger(rack("n1", 2), NodeCordoned(node="n1", by="ann", reason="fan"))
    ledger.submit(pod("large", ask(60_000))).settle()
    ledger.play(
        NodeCordoned(node="n1", by="bob", reason="disk"),
        DeviceCordoned(device="n1-g0", by="bob", reason="disk"),
    )
    assert taken(ledger) == ()


def test_a_cause_that_no_node_has_any_more_has_no_fix(golden: Golden) -> None:
    """Once all silent agents report again, `why` says that this cause of the refusal has ended."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1))
    for name in ("a", "b"):
        ledger.submit(pod(name, ask(70_000))).settle()
    ledger.play(NodeSilent(node="n1", grace_s=40)).submit(pod("large", ask(60_000))).settle()
    said = {}
    for when, events in (("silent", ()), ("heard", (NodeHeard(node="n1"),))):
        refused = told(ledger.play(*events).settle()).refused
        assert refused is not None
        (row,) = (each for each in refused.causes if each.code is RefusalCode.AGENT_SILENT)
        said[when] = row.unblocked_by
    golden(said)
