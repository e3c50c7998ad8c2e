"""Tests of what `shadow` prints if there is no other scheduler's placement to compare with ours."""

from pathlib import Path

from click.testing import CliRunner

from apportion.cli.verbs.predict.shadow import command, summary
from apportion.core.answers.replays import ShadowAnswer
from tests.support.golden import Golden

GUIDE = "docs/tasks/shadow.md"


def test_nothing_to_compare_says_what_a_shadow_needs(golden: Golden) -> None:
    """If there are no pods to compare, `shadow` prints what it needs and names the guide."""
    said = summary(ShadowAnswer(1, 9, (), 0, 0, 0, 0, 0, 0))
    assert said.endswith(GUIDE)
    golden({"no pods": said})


def test_help_says_first_what_a_shadow_needs() -> None:
    """The help of `shadow` says first that `shadow` needs Kubernetes, and names a guide that
    exists."""
    said = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert said.index("Kubernetes") < said.index("Exit codes")
    assert GUIDE in said
    assert (Path(__file__).parents[5] / GUIDE).is_file()
