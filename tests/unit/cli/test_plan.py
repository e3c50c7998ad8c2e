"""What `plan` says of a plan as a whole."""

from click.testing import CliRunner

from apportion.cli.plan import command, totals_words
from apportion.core.explain.plans import PlanAnswer, Totals

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


def test_help_promises_nothing_of_a_plan_of_nothing() -> None:
    """By itself the verb is wrong usage, and help says what it takes without a manifest."""
    assert CliRunner().invoke(command, []).exit_code == 2
    said = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert "With --lose, --add or --policy and no -f: what would become of the pods" in said
    assert "Without -f, what" not in said
