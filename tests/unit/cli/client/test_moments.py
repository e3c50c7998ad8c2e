"""Tests of how the CLI reads and prints times and revisions."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import click
import pytest

from apportion.cli.client.moments import FORMS, MOMENT, both, head
from apportion.cli.main import root
from apportion.cli.render.output import clock
from apportion.core.answers.past import MomentAnswer
from tests.support.golden import Golden

NOW = datetime(2026, 11, 25, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("#120", "120"), ("#1,200", "1200"), ("1,200", "1200"), ("120", "120"), ("14:20", "14:20"),
     ("#", "#"), ("#1,20", "#1,20"), ("2026-11-20", "2026-11-20")],
)  # fmt: skip
def test_a_revision_may_be_written_as_it_is_shown(written: str, meant: str) -> None:
    """A user may type a revision as tables show it, with `#` or thousands separators."""
    assert MOMENT.convert(written, None, None) == meant


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        ("2026-11-25T00:04:59.123Z", "00:04:59Z"),
        ("2026-11-24T23:59:59.123Z", "2026-11-24T23:59:59Z"),
        ("2025-11-25T00:04:59Z", "2025-11-25T00:04:59Z"),
        ("", ""),
    ],
)
def test_a_time_drops_its_date_when_it_is_today(time: str, shown: str) -> None:
    """A time is printed without its date if the date is today in UTC."""
    assert clock(time, NOW) == shown


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (datetime(2026, 11, 25, 0, 4, tzinfo=UTC),
         "as of 00:04:00Z: revision 7, written at 00:02:03Z"),
        (datetime(2026, 11, 24, 23, 50, tzinfo=UTC),
         "as of yesterday, 2026-11-24T23:50:00Z: revision 7, written at 00:02:03Z"),
        (datetime(2026, 11, 20, 3, tzinfo=timezone(timedelta(hours=1))),
         "as of 2026-11-20T02:00:00Z: revision 7, written at 00:02:03Z"),
        (None, "as of revision 7, 2026-11-25T00:02:03Z"),
    ],
)  # fmt: skip
def test_the_head_says_the_moment_that_was_asked_for(asked: datetime | None, said: str) -> None:
    """The heading of an answer about the past has the requested time and the revision at that
    time."""
    meant = MomentAnswer(revision=7, time="2026-11-25T00:02:03.456Z")
    assert head(meant, asked, NOW) == said


def test_both_ends_of_a_difference_say_which_day_they_meant() -> None:
    """For both ends of its time span, `diff` prints the requested time and the time of the event
    that it found for that end."""
    meant = MomentAnswer(revision=7, time="2026-11-24T23:40:03.456Z")
    event = "revision 7 (2026-11-24T23:40:03Z)"
    assert both("23:50", meant, NOW) == f"yesterday, 2026-11-24T23:50:00Z: {event}"
    assert both("", meant, NOW) == both("7", meant, NOW) == event


def test_a_time_before_the_ledger_says_that_it_is(golden: Golden) -> None:
    """If the requested time is before the first event, the output says so."""
    first = MomentAnswer(revision=1, time="2026-11-24T23:40:03.456Z")
    event = "revision 1 (2026-11-24T23:40:03Z)"
    golden({"-30m": both("-30m", first, NOW)})
    assert both("1", first, NOW) == event
    assert both("23:50", first, NOW) == f"yesterday, 2026-11-24T23:50:00Z: {event}"


def test_the_help_says_what_a_time_of_day_means() -> None:
    """The help explains that a time of day means today, or yesterday if that time is yet to come
    today."""
    assert "14:20 (today, else yesterday)" in FORMS


def commands(made: click.Command, context: click.Context) -> Iterator[click.Command]:
    """Yield a verb and all its subcommands."""
    yield made
    for name in made.list_commands(context) if isinstance(made, click.Group) else ():
        inner = made.get_command(context, name) if isinstance(made, click.Group) else None
        if inner is not None:
            yield from commands(inner, click.Context(inner, info_name=name, parent=context))


def test_every_verb_that_takes_a_moment_reads_it_alike() -> None:
    """All options that take a time or revision use the same parser."""
    asked = [
        option
        for verb in commands(root, click.Context(root))
        for option in verb.params
        if option.metavar == "TIME"
    ]
    assert len(asked) > 10
    assert [option.name for option in asked if option.type is not MOMENT] == []
