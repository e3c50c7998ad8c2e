"""What `apportion who` says of a device or a node that takes nothing new."""

import io

from rich.console import Console

from apportion.cli.rows import Rows
from apportion.cli.who import rows_of, trouble, trouble_of_node
from apportion.core.explain.past_answers import WhoRow
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


def test_who_held_the_cards_of_a_node_is_told_card_by_card() -> None:
    """By time alone the cards of a node were mixed; a share without a limit of cores has none."""
    rows = [held("n1-g10", 9, cores=0), held("n1-g2", 8, cores=50)]
    rows += [held("n1-g2", 7), held("n1-g0", 8)]
    lines = [line.split() for line in printed(rows_of(rows)).splitlines()]
    at = lines[0].index("DEVICE"), -1
    assert [(line[at[0]], line[at[1]]) for line in lines[1:]] == [
        ("n1-g0", "8"), ("n1-g2", "7"), ("n1-g2", "8"), ("n1-g10", "9"),
    ]  # fmt: skip
    assert [line[lines[0].index("CORES") + 1] for line in lines[1:]] == ["30", "30", "50", "-"]


def printed(rows: Rows) -> str:
    """What a wide terminal shows."""
    out = io.StringIO()
    Console(file=out, width=200).print(rows)
    return out.getvalue()


def held(device: str, decision: int, *, cores: int = 30) -> WhoRow:
    """A share that a pod holds since that decision."""
    return WhoRow(
        namespace="default", pod="a", uid="a", container="main", device=device, node="n1",
        memory_mib=1000, cores=cores, from_revision=decision, from_time="2026-01-01T00:00:00Z",
        to_revision=0, to_time="", decision_revision=decision,
    )  # fmt: skip


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
