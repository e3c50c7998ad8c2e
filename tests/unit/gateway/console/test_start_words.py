"""Tests, in Node.js, of the words in which the console shows when a pod is expected to start."""

from typing import Any

import msgspec
import pytest

from apportion.core.answers.reads import StartForecast
from apportion.core.explain.text.vocabulary import START_JUDGED_LEAST, START_UNKNOWN
from tests.support.golden import Golden
from tests.support.node_modules import NodeModules


def test_words_of_a_start(node: NodeModules) -> None:
    """The console shows in how long a pod is expected to start, or why that is not predictable."""
    codes = node.run("vocabulary.js", "return [m.START_UNKNOWN, m.START_JUDGED_LEAST];")
    assert codes == [START_UNKNOWN, START_JUDGED_LEAST]
    code = "return given.map(([start, now]) => m.startWords(start, Date.parse(now)));"
    at = "2026-05-01T12:00:00Z"
    band = StartForecast(
        as_of=at, earliest="2026-05-01T12:00:40Z", median="2026-05-01T12:45:00Z",
        latest="2026-05-01T14:40:00Z", probability=0.8, judged=200, within=158,
    )  # fmt: skip
    narrow = msgspec.structs.replace(band, earliest=band.median, latest=band.median, judged=0)
    asked = [
        (band, at), (band, "2026-05-01T13:00:00Z"), (band, "2026-05-01T14:50:00Z"), (narrow, at),
        (StartForecast(as_of=at, unknown="few-started"), at),
        (StartForecast(as_of=at, unknown="never"), at),
    ]  # fmt: skip
    found = node.run("words.js", code, *msgspec.to_builtins(asked))
    assert found == [
        "expected in 45 min 00 s (80 %: 40 s to 2 h 40 min) · 79 % of forecasts were right",
        "expected now (80 %: within 1 h 40 min) · 79 % of forecasts were right",
        "start overdue by 10 min 00 s",
        "expected in 45 min 00 s (80 %: about 45 min 00 s)",
        f"start not predictable: {START_UNKNOWN['few-started']}",
        "",
    ]


AT = "2026-05-01T12:00:00Z"
CELLS = """
    const words = markup => markup.text.replace(/<[^>]*>/g, " ").replace(/\\s+/g, " ").trim();
    const number = (text, name) => Number(RegExp(`${name}="([0-9.]+)%"`).exec(text)?.[1]);
    const axis = m.startAxis(given[0].starts, Date.parse(given[0].at));
    return {
      ticks: axis.ticks.map(tick => tick.words),
      places: axis.ticks.map(tick => tick.at),
      cells: given[0].starts.map(start => words(m.startCell(start, axis))),
      bars: given[0].starts.map(start => {
        const [, rect = ""] = /(<rect[^>]*>)/.exec(m.startCell(start, axis).text) ?? [];
        return rect ? [number(rect, "x"), number(rect, "width")] : null;
      }),
      note: words(m.startNote(given[0].starts, axis)),
    };
"""


def known(earliest: str, median: str, latest: str, **fields: Any) -> StartForecast:
    """Return a forecast of 80 % with these times."""
    return StartForecast(
        as_of=AT, earliest=earliest, median=median, latest=latest, probability=0.8, **fields
    )


def test_bands_on_one_axis(node: NodeModules, golden: Golden) -> None:
    """The bands of all requests have one axis, from now to the latest end. A band that begins
    later is further right, and one that has begun starts at its left end."""
    soon = known("2026-05-01T12:00:00Z", "2026-05-01T12:02:00Z", "2026-05-01T12:10:00Z")
    later = known("2026-05-01T14:20:00Z", "2026-05-01T15:00:00Z", "2026-05-01T16:05:00Z")
    tomorrow = known("2026-05-01T23:00:00Z", "2026-05-02T03:00:00Z", "2026-05-02T09:30:00Z")
    others = [
        known(AT, AT, "2026-05-01T11:50:00Z"), StartForecast(as_of=AT, unknown="limit"),
        StartForecast(as_of=AT, unknown="never"), None,
    ]  # fmt: skip
    given = {"at": AT, "starts": [soon, later, tomorrow, *others]}
    found = node.run("pages/starts.js", CELLS, msgspec.to_builtins(given))
    assert found["places"] == sorted(found["places"])
    first, second, third, *rest = found["bars"]
    assert rest == [None] * len(others)
    assert first[0] == 0 < sum(first) < second[0] < sum(second) < third[0]
    assert sum(third) == pytest.approx(100, abs=0.02)
    golden({"ticks": ", ".join(found["ticks"]), "cells": "\n".join(found["cells"])})


def test_how_good_forecasts_were_is_shown(node: NodeModules, golden: Golden) -> None:
    """The note below the bands has the measured part of right forecasts, if enough are known."""
    band = known(AT, "2026-05-01T12:45:00Z", "2026-05-01T14:40:00Z", judged=200, within=158)
    few = msgspec.structs.replace(band, judged=START_JUDGED_LEAST - 1, within=1)
    unknown = StartForecast(as_of=AT, judged=200, within=158, unknown="few-started")
    other = StartForecast(as_of=AT, judged=200, within=158, unknown="limit")
    notes = {
        name: node.run("pages/starts.js", CELLS, msgspec.to_builtins({"at": AT, "starts": starts}))[
            "note"
        ]
        for name, starts in (
            ("many", [None, band]),
            ("few", [few]),
            ("all unknown", [unknown, unknown]),
            ("of several causes", [unknown, other]),
        )
    }
    golden(notes)
    none = "return m.startAxis([null, null], 0) === null && m.axisRow(null) === '';"
    assert node.run("pages/starts.js", none) is True
