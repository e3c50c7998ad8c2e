"""What `apportion who` says of a device that takes nothing new."""

from apportion.cli.who import trouble
from apportion.core.explain.views import device_answers
from apportion_schemas import DeviceHealthChanged
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
