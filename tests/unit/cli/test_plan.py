"""What `plan` says of a plan as a whole."""

import io

from click.testing import CliRunner
from rich.console import Console

from apportion.cli.plan import _show_waiting, command, totals_words
from apportion.core.explain.plans import Ahead, PlanAnswer, Totals

BEFORE = Totals(
    nodes=2, devices=4, devices_used=1, memory_mib=8, memory_free_mib=4, placed=1, waiting=0
)
AFTER = Totals(
    nodes=1, devices=2, devices_used=0, memory_mib=4, memory_free_mib=4, placed=0, waiting=1
)


def test_what_a_change_is_compared_with_is_not_called_the_present() -> None:
    """Pods that wait have been decided there too, so it may differ from what there is."""
    answer = PlanAnswer(revision=7, outcome="fits", sentence="", before=BEFORE, after=AFTER)
    assert totals_words(answer) == (
        "before: 1 of 4 devices used, 1 pod placed, 0 waiting; "
        "after: 0 of 2 devices used, 0 pods placed, 1 waiting; as of revision 7"
    )


def test_who_waits_for_the_sake_of_the_plan_does_so_since_no_revision() -> None:
    """The ledger ends before: a revision that it has not would be looked for."""
    waiting = (Ahead("default", "long", 0, 6, "room"), Ahead("default", "moved", 9, 8, "room"))
    answer = PlanAnswer(revision=7, outcome="fits", sentence="", waiting=waiting)
    out = Console(file=io.StringIO(), width=120, color_system=None)
    _show_waiting(out, answer)
    assert isinstance(out.file, io.StringIO)
    shown = [line.split() for line in out.file.getvalue().splitlines()[1:]]
    assert shown == [
        ["default/long", "0", "6", "room"], ["default/moved", "9", "the", "plan", "room"],
    ]  # fmt: skip


def test_help_promises_nothing_of_a_plan_of_nothing() -> None:
    """By itself the verb is wrong usage, and help says what it takes without a manifest."""
    assert CliRunner().invoke(command, []).exit_code == 2
    said = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert "With --lose, --add or --policy and no -f: what would become of the pods" in said
    assert "Without -f, what" not in said
