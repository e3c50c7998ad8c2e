"""Tests that a benchmark fails if a figure exceeds its limit."""

import json

import pytest

from tests.benchmarks.telling import parser_of, tell


@pytest.mark.parametrize("figure", [70.0, 78.0])
def test_a_figure_that_is_not_below_its_limit_ends_with_an_error(
    figure: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If a figure is not below its limit, the benchmark fails. It still prints all figures."""
    monkeypatch.setattr("sys.argv", ["benchmark", "--json"])
    figures = {"rss_mb": figure, "series": 336}
    with pytest.raises(SystemExit, match="rss_mb"):
        tell(parser_of("A benchmark."), lambda _: figures, {"rss_mb": 70.0})
    assert json.loads(capsys.readouterr().out) == figures


def test_figures_below_their_limits_are_printed_with_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A benchmark prints each figure, with its limit if it has one."""
    monkeypatch.setattr("sys.argv", ["benchmark"])
    tell(parser_of("A benchmark."), lambda _: {"rss_mb": 69.9, "series": 336}, {"rss_mb": 70.0})
    assert capsys.readouterr().out.splitlines() == ["rss_mb: 69.9 (limit: 70)", "series: 336"]
