"""Tests that a plan that drains nodes predicts what `drain` does."""

from tests.support.fleet import A100_80, T4, rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod
from tests.unit.lab.test_planning import planned


def test_what_only_the_drained_node_could_hold_waits_while_it_is_cordoned(golden: Golden) -> None:
    """If a pod fits only on a node that the plan drains, the pod's outcome is `not-now`. If the
    plan assumes that this node is lost, the outcome is `never`."""
    ledger = Ledger(rack("n1", 1, model=A100_80), rack("n2", 1, model=T4))
    ledger.submit(pod("large", ask(60_000))).settle()
    (moved,) = planned(ledger, drain=("n1",)).moved
    assert moved.outcome == "not-now"
    golden({"large": moved.sentence})
    (lost,) = planned(ledger, lose=("n1",)).moved
    assert lost.outcome == "never"


def test_a_drain_moves_one_by_one() -> None:
    """A planned drain moves pods one at a time, by priority and age. It leaves commands of
    `apportion run` in place."""
    ledger = Ledger(rack("n1", 4), rack("n2", 4))
    ledger.submit(pod("old", cards()), pod("urgent", cards(), priority=5)).settle()
    ledger.submit(pod("command", cards(), owner="Process/1")).settle()
    there = {each.placement.node: each for each in ledger.state.pods.values() if each.placement}
    for node in sorted(there):
        on_it = [each for each in ledger.state.pods.values()
                 if each.placement and each.placement.node == node]  # fmt: skip
        moved = planned(ledger, drain=(node,)).moved
        names = sorted(
            (each for each in on_it if each.submitted.name != "command"),
            key=lambda each: -each.submitted.priority,
        )
        assert [each.name for each in moved] == [each.submitted.name for each in names]
        assert all(each.node and each.node != node for each in moved)


def test_a_gang_that_is_drained_begins_anew_also_where_it_was() -> None:
    """A planned drain restarts the whole gang. A pod of the gang that stays on its node is reported
    as restarted, not as moved."""
    ledger = Ledger(rack("n1", 1), rack("n2", 3), gang("default/g"))
    ledger.submit(
        *(member(f"w-{number}", cards(), group="default/g") for number in range(2))
    ).settle()
    held = {each.submitted.name: each.placement for each in ledger.state.pods.values()}
    nodes = {name: each.node for name, each in held.items() if each is not None}
    assert set(nodes.values()) == {"n1", "n2"}, "one is on each"
    for moved in planned(ledger, drain=("n1",)).moved:
        assert moved.node == "n2"
        words = "would restart on n2 (" if nodes[moved.name] == "n2" else "would move to n2 ("
        assert f"default/{moved.name} {words}" in moved.sentence
