"""What `apportion who` says of a device or a node that takes nothing new."""

from apportion.cli.who import trouble, trouble_of_node
from apportion.core.explain.views import device_answers, node_answer
from apportion_schemas import DeviceHealthChanged, NodeSilent
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger
from tests.support.pods import cards, pod


def test_who_is_on_a_failed_card_is_told_what_moves_him() -> None:
    """The card alone, and not its node; off one that nobody is on there is nothing to move."""
    ledger = Ledger(rack("n1", 2), pod("a", cards())).settle()
    (share,) = ledger.shares("a")
    for held in ledger.node("n1").devices:
        ledger.play(
            DeviceHealthChanged(node="n1", device=held.device.id, healthy=False, reason="XID 79")
        )
    said = {each.device: trouble(each).plain for each in device_answers(ledger.node("n1"))}
    on = said.pop(share.device)
    assert on.endswith(f"; `apportion drain {share.device} --reason WHY` moves what is on it")
    (other,) = said.values()
    assert "XID 79" in other
    assert "drain" not in other


def test_who_is_on_a_node_that_is_not_heard_is_told_what_moves_him() -> None:
    """Off one that nobody is on there is nothing to move."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), pod("a", cards())).settle()
    on = ledger.where("a")
    for name in ("n1", "n2"):
        ledger.play(NodeSilent(node=name, grace_s=40))
        said = trouble_of_node(node_answer(ledger.node(name))).plain
        assert "its agent is not heard" in said
        moves = f"`apportion drain {name} --reason WHY` moves what is on it"
        assert (moves in said) == (name == on)
