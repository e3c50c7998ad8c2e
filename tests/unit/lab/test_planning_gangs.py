"""Tests of plans for gangs, whose pods are placed all together or not at all."""

from typing import Any

from apportion.core.answers.plans import MixedGang
from apportion.core.explain.views import gang_answer
from tests.support.fleet import A100_80, T4, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member
from tests.unit.lab.test_planning import draft, full, planned


def test_a_gang_on_a_lost_node_moves_whole_or_not_at_all() -> None:
    """If a gang's node is lost, the plan moves the whole gang or leaves all of it pending."""
    ledger = Ledger(rack("n1", 2), rack("n2", 2, model=T4))
    ledger.play(gang(min_available=2))
    ledger.submit(member("a", ask(60_000)), member("b", ask(60_000)))
    ledger.decide()
    assert ledger.pod("a").placement is not None
    answer = planned(ledger, lose=("n1",))
    assert {each.outcome for each in answer.moved} == {"never"}
    answer = planned(ledger, lose=("n1",), add=("2xA100-80GB",))
    assert [each.node for each in answer.moved] == ["added-1", "added-1"]


def test_a_gang_has_its_places_once_all_have_left_that_go_for_any_of_it() -> None:
    """If a gang needs evictions, the plan lists all of these evictions for each pod of the gang."""
    ledger = full(nodes=2, count=1)
    ledger.play(gang("default/job", min_available=2))
    drafts = [draft(name, cards(), priority=9, group="default/job") for name in ("u0", "u1")]
    answer = planned(ledger, *drafts)
    assert [set(each.evicts) for each in answer.pods] == [{"default/n1-0", "default/n2-0"}] * 2


def test_a_drain_would_move_a_gang_whole_of_which_a_part_is_lost() -> None:
    """If only some of a gang's pods are on a lost node, the plan notes that a drain would move the
    whole gang."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), rack("n3", 1))
    ledger.play(gang(min_available=2))
    ledger.submit(member("a", cards()), member("b", cards()))
    ledger.decide()
    place = ledger.pod("a").placement
    assert place is not None
    answer = planned(ledger, lose=(place.node,))
    said = "the displaced pod would move; a drain would move all of team/job, 1 more pod"
    assert answer.sentence == said
    assert "all of" not in planned(ledger, drain=(place.node,)).sentence
    assert "all of" not in planned(ledger, lose=("n1", "n2", "n3")).sentence


def test_a_gang_on_different_device_models_is_named_with_them() -> None:
    """If the devices of a gang are of different models, the plan lists the gang with the number of
    each model."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1, model=T4), rack("n3", 2, model=T4))
    ledger.play(gang("default/job", min_available=2))
    drafts = [draft(name, cards(2), group="default/job") for name in ("a", "b")]
    assert planned(ledger, *drafts).mixed_gangs == ()
    mixing: dict[str, Any] = {"group": "default/job", "any_model": True}
    drafts = [draft(name, cards(), **mixing) for name in ("a", "b", "c", "d")]
    assert planned(ledger, *drafts[:1]).mixed_gangs == ()
    mixed = MixedGang(group="default/job", models={A100_80: 1, T4: 3})
    assert planned(ledger, *drafts).mixed_gangs == (mixed,)
    ledger.submit(*(member(name, cards(), **mixing) for name in "abcd")).settle()
    group = ledger.state.groups["default/job"]
    assert gang_answer(ledger.state, "default/job", group).models == mixed.models
    ledger.report(rack("n4", 1))
    assert planned(ledger, drain=("n2",)).mixed_gangs == (
        MixedGang(group="default/job", models={A100_80: 2, T4: 2}),
    )
