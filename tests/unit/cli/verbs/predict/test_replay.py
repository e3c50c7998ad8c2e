"""Tests of the table and the bar charts that `apportion replay` prints."""

import io
from functools import partial

import pytest
from click.testing import CliRunner
from msgspec import structs

from apportion.cli.render.output import Screen
from apportion.cli.verbs.predict.replay import (
    ASCII,
    AT_ONCE,
    EIGHTHS,
    HEIGHT,
    OF_A_CHANGE,
    OF_SHARES,
    ROWS,
    SCALE_CELLS,
    TEAMS_MAX,
    _show,
    _show_teams,
    amount,
    bars,
    command,
    difference,
    fitted,
    gate_words,
    saved,
    span_of,
)
from apportion.core.answers.replays import Gate, ReplayAnswer, Span, Team, TeamFigures
from apportion.core.ledger.state import State
from apportion.lab.meter import Meter
from tests.support.golden import Golden


def test_bars_are_as_high_as_their_values() -> None:
    """The bars of a chart are scaled so that the highest value fills the chart."""
    assert bars([0.0, 2.0, 4.0], 4.0) == ["  █", "  █", " ██", " ██"]
    assert bars([1.0], 8.0) == [" ", " ", " ", "▄"]


def test_bars_for_terminals_with_ascii_alone() -> None:
    """On an ASCII-only terminal, the bars have the same heights but are drawn in ASCII."""
    drawn = bars([4.0, 2.0, 0.5], 4.0, in_ascii=True)
    assert len(drawn) == HEIGHT
    assert set("".join(drawn)) <= set(ASCII)
    assert drawn[-1][:2] == ASCII[-1] * 2
    assert not set("".join(drawn)) & set(EIGHTHS[1:])


def test_a_narrow_terminal_has_fewer_bars() -> None:
    """On a narrow terminal, `replay` merges neighbouring bars into one with the highest value."""
    values = [float(number) for number in range(60)]
    assert fitted(values, 80 - SCALE_CELLS) == values
    assert fitted(values, 31) == values[1::2]
    assert fitted([1.0, 9.0, 2.0], 2) == [9.0, 2.0]
    assert fitted([], 60) == []


@pytest.mark.parametrize(
    ("gpus", "hours", "words"),
    [
        (0, 0.0, "peak GPUs in use: same number; GPU-hours pending: same"),
        (1, 1.5, "peak GPUs in use: 1 GPU fewer; GPU-hours pending: 1.5 fewer"),
        (-8, -0.25, "peak GPUs in use: 8 GPUs more; GPU-hours pending: 0.25 more"),
        (0, 0.004, "peak GPUs in use: same number; GPU-hours pending: same"),
    ],
)
def test_what_would_have_been_saved(gpus: int, hours: float, words: str) -> None:
    """The last line of `replay` compares peak GPUs and pending GPU-hours with the recording."""
    course = Meter(State(), 0.0, 1.0).measured()
    span = Span(from_revision=1, from_time="", to_revision=2, to_time="", seconds=1.0)
    before, after = (structs.replace(course, gpu_hours_waited=each) for each in (9.0, 9.0 - hours))
    answer = ReplayAnswer(
        span=span, changes=(), happened=before, replayed=after, gpus_saved=gpus,
        gpu_hours_waited_saved=hours,
    )  # fmt: skip
    assert saved(answer) == words


def test_what_is_saved_is_the_difference_of_what_is_shown() -> None:
    """The saving that `replay` states in its closing line is the difference of the rounded values
    in its table."""
    course = Meter(State(), 0.0, 1.0).measured()
    before, after = (structs.replace(course, gpu_hours_waited=each) for each in (0.3449, 0.4251))
    span = Span(from_revision=1, from_time="", to_revision=2, to_time="", seconds=1.0)
    answer = ReplayAnswer(
        span=span, changes=(), happened=before, replayed=after, gpus_saved=0,
        gpu_hours_waited_saved=before.gpu_hours_waited - after.gpu_hours_waited,
    )  # fmt: skip
    assert difference(0.3449, 0.4251, "") == "+0.09"
    assert " 0.09 " in saved(answer)


@pytest.mark.parametrize(
    ("happened", "replayed", "words"),
    [(0, 2, "; evicted pods: 2 more"), (2, 1, "; evicted pods: 1 fewer"), (3, 3, ": same")],
)
def test_who_pays_with_evictions_is_said(happened: int, replayed: int, words: str) -> None:
    """In its closing line, `replay` states how many more or fewer pods are evicted in the replay
    than in the recorded history."""
    course = Meter(State(), 0.0, 1.0).measured()
    before, after = (structs.replace(course, evicted=each) for each in (happened, replayed))
    span = Span(from_revision=1, from_time="", to_revision=2, to_time="", seconds=1.0)
    answer = ReplayAnswer(
        span=span, changes=(), happened=before, replayed=after, gpus_saved=0,
        gpu_hours_waited_saved=0.0,
    )  # fmt: skip
    assert saved(answer).endswith(words)


@pytest.mark.parametrize(
    ("types", "facts"),
    [
        ({"ResizeAsked": 1}, "1 event (1 ResizeAsked)"),
        ({"A": 1, "B": 1_000}, "1,001 events (1 A, 1,000 B)"),
    ],
)
def test_what_came_to_nothing_is_said_with_its_kind(types: dict[str, int], facts: str) -> None:
    """`replay` prints how many recorded events had no effect in the replay, by event type."""
    course = Meter(State(), 0.0, 1.0).measured()
    span = Span(from_revision=1, from_time="", to_revision=2, to_time="", seconds=1.0)
    answer = ReplayAnswer(
        span=span, changes=(), happened=course, replayed=course, gpus_saved=0,
        gpu_hours_waited_saved=0.0, passed_over=sum(types.values()), passed_over_types=types,
    )  # fmt: skip
    assert f"; {facts} " in saved(answer)
    assert "event" not in saved(structs.replace(answer, passed_over=0, passed_over_types={}))


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0004, "0"), (12, "12"), (2.0, "2"), (1234.5, "1,234.5"), (0.126, "0.13")],
)
def test_two_digits_behind_the_point_and_no_more(value: float, words: str) -> None:
    """`replay` prints amounts with no more than two decimals."""
    assert amount(value) == words


def test_nothing_is_no_bar() -> None:
    """`replay` draws no bars if all values are zero."""
    assert bars([0.0, 0.0], 0.0) == ["  "] * HEIGHT


@pytest.mark.parametrize(
    ("before", "after", "unit", "words"),
    [(40, 43.21, "%", "+3.21 points"), (1.0, 0.5, "%", "-0.5 points"), (1.0, 3.0, " s", "+2 s"),
     (7.0, 7.0, "%", ""), (5, 2, "", "-3"), (1.0, 1.0049, "%", ""), (0.0049, 0.0, "", ""),
     (0.0, 1234.5678, " s", "+1,234.57 s"), (0.0678, 0.0, " s", "-0.07 s"),
     (0.3449, 0.4251, "", "+0.09"), (0.9051, 0.8349, "", "-0.08"), (2.5049, 2.4951, "", "")],
)  # fmt: skip
def test_percentages_differ_by_points(before: float, after: float, unit: str, words: str) -> None:
    """`replay` prints the difference between two percentages in percentage points of the rounded
    values."""
    assert difference(before, after, unit) == words


def test_a_beginning_before_the_ledgers_is_noted() -> None:
    """If the requested time span starts before the first event, `replay` prints a note."""
    course = Meter(State(), 0.0, 1.0).measured()
    span = Span(from_revision=0, from_time="2026-01-02T03:04:05.6Z", to_revision=9,
                to_time="2026-01-02T03:09:05.6Z", seconds=300.0)  # fmt: skip
    answer = ReplayAnswer(
        span=span, changes=(), happened=course, replayed=course, gpus_saved=0,
        gpu_hours_waited_saved=0.0,
    )  # fmt: skip
    plain = "2026-01-02T03:04:05Z to 2026-01-02T03:09:05Z"
    noted = plain.replace(" to", " (before the first event) to")
    assert span_of(answer, "-5m") == noted
    assert span_of(answer, "") == plain, "the beginning itself"
    assert span_of(answer, "1") == plain, "its first event"
    later = structs.replace(answer, span=structs.replace(span, from_revision=3))
    assert span_of(later, "-5m") == plain


def test_what_the_bars_are_and_how_shares_count_stands_beside_them() -> None:
    """The heading of each bar chart says how much time a bar covers. A note explains how shares of
    GPUs are counted."""
    course = Meter(State(), 0.0, 600.0).measured()
    span = Span(from_revision=1, from_time="2026-01-02T03:04:05Z", to_revision=9,
                to_time="2026-01-02T03:14:05Z", seconds=600.0)  # fmt: skip
    answer = ReplayAnswer(
        span=span, changes=(), happened=course, replayed=course, gpus_saved=0,
        gpu_hours_waited_saved=0.0,
    )  # fmt: skip
    out = Screen(file=io.StringIO(), width=120, color_system=None)
    _show(out, answer, "")
    assert isinstance(out.file, io.StringIO)
    lines = [line.strip() for line in out.file.getvalue().splitlines()]
    assert OF_SHARES in lines
    for title in ("GPUs in use, actual", "GPUs requested by pending pods, replay"):
        assert [line for line in lines if line.startswith(f"{title} (") and "10s" in line], title
    assert lines[-1] == AT_ONCE
    _show(out, structs.replace(answer, changes=("by the policy spread",)), "")
    assert out.file.getvalue().splitlines()[-1].strip() == OF_A_CHANGE
    assert OF_SHARES in " ".join(CliRunner().invoke(command, ["--help"]).output.split())


def test_help_explains_every_row() -> None:
    """The help of `replay` explains every row of its table within 80 columns."""
    lines = CliRunner().invoke(command, ["--help"], terminal_width=80).output.splitlines()
    for row in ROWS:
        [line] = [line for line in lines if line.startswith(f"    {row.title}  ")]
        assert line.endswith(row.means)
        assert len(line) <= 80


def _figures(waits_s: float, **others: float | None) -> TeamFigures:
    none = TeamFigures(4, 4, 0, 0, *(0.0,) * 7)
    return structs.replace(
        none, wait_mean_s=waits_s / 2, wait_p95_s=waits_s, gpu_hours_waited=waits_s / 3600,
        gpus=1.5, **others,
    )  # fmt: skip


def test_teams_and_gates_are_tables(golden: Golden) -> None:
    """`replay` prints two rows for each queue and namespace with pods (recorded and replayed), and
    a row for each gate.

    For a gate that is not kept, it also prints a sentence."""
    course = Meter(State(), 0.0, 600.0).measured()
    span = Span(from_revision=1, from_time="2026-01-02T03:04:05Z", to_revision=9,
                to_time="2026-01-02T03:14:05Z", seconds=600.0)  # fmt: skip
    before, after = _figures(0, gpus_entitled=2.0), _figures(5400, gpus_entitled=1.0, evicted=2,
                                                             gpu_hours_evicted=0.75)  # fmt: skip
    idle = TeamFigures(0, 0, 0, 0, *(0.0,) * 7)
    of_ml = partial(Gate, kind="queue", name="ml", happened=0.0)
    gates = (
        of_ml("ml:wait-p95<=30m", measure="wait-p95", bound=1800, measured=5400,
              verdict="exceeded"),
        of_ml("ml:gpu-hours-pending<=1", measure="gpu-hours-pending", bound=1, measured=1.5,
              verdict="exceeded"),
        of_ml("ml:evictions<=1", measure="evictions", bound=1, measured=1, verdict="kept"),
        of_ml("ml:wait-max<=1h", measure="wait-max", bound=3600, measured=0, verdict="no-pods"),
    )  # fmt: skip
    answer = ReplayAnswer(
        span=span, changes=(), happened=course, replayed=course, gpus_saved=0,
        gpu_hours_waited_saved=0.0, gates=gates,
        teams=(
            Team("queue", "idle", idle, idle), Team("queue", "ml", before, after),
            Team("queue", "web", before, before),
            Team("namespace", "default", _figures(7), _figures(60)),
        ),
    )  # fmt: skip

    def shown(answer: ReplayAnswer, width: int) -> str:
        out = Screen(file=io.StringIO(), width=width, color_system=None)
        _show_teams(out, answer)
        assert isinstance(out.file, io.StringIO)
        return "\n".join(line.rstrip() for line in out.file.getvalue().splitlines())

    alone = structs.replace(answer, gates=(), teams=(Team("queue", "default", before, after),))
    assert shown(alone, 120) == ""
    names = [f"q{number:02}" for number in range(TEAMS_MAX + 2)]
    many = tuple(
        Team("queue", name, _figures(number), _figures(0)) for number, name in enumerate(names)
    )
    lines = shown(structs.replace(answer, gates=(), teams=many), 120).splitlines()
    assert [line.split()[0] for line in lines[1:-1:2]] == names[2:]
    assert lines[-1].split()[:2] == ["2", "queues"]
    priced = tuple(
        structs.replace(
            team,
            happened=structs.replace(team.happened, cost=2.5),
            replayed=structs.replace(team.replayed, cost=2.25),
        )
        for team in answer.teams[1:2]
    )
    money = structs.replace(answer, gates=(), teams=priced, currency="EUR")
    default = structs.replace(money, teams=(structs.replace(priced[0], name="default"),))
    golden({
        "costs": shown(money, 140), "costs of the default queue": shown(default, 140),
        "120 columns": shown(answer, 120), "80 columns": shown(answer, 80),
        "not kept": "\n".join(map(gate_words, (*gates[:2], gates[3]))),
    })  # fmt: skip
