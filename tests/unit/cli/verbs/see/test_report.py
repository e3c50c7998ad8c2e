"""Tests of the help of `report`."""

from click.testing import CliRunner

from apportion.cli.verbs.see.report import command
from apportion.core.reports.prices import EXAMPLE


def test_the_list_of_reports_ends_no_line_in_the_midst() -> None:
    """The help of `report` describes each report in a single complete line."""
    said = CliRunner().invoke(command, ["--help"]).output
    [line] = [line for line in said.splitlines() if line.startswith("  cost ")]
    assert (line.endswith("."), len(line) <= 80) == (True, True)


def test_help_shows_a_price_file() -> None:
    """The help of `report cost` shows a price file that a user can copy."""
    said = CliRunner().invoke(command, ["cost", "--help"]).output
    assert [line.strip() for line in EXAMPLE.splitlines()] == [
        line.strip() for line in said.splitlines() if line.strip() in EXAMPLE.splitlines()
    ]
