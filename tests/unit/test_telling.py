"""A benchmark with limits fails if a figure exceeds its limit."""

import json

import pytest

from tests.benchmarks.telling import parser_of, tell


@pytest.mark.parametrize("figure", [70.0, 78.0])
def test_a_figure_that_is_not_below_its_limit_ends_with_an_error(
    figure: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A figure that is not below its limit is an error, and all figures are still printed."""
    monkeypatch.setattr("sys.argv", ["benchmark", "--json"])
    figures = {"rss_mb": figure, "series": 336}
    with pytest.raises(SystemExit, match="rss_mb"):
        tell(parser_of("A benchmark."), lambda _: figures, {"rss_mb": 70.0})
    assert json.loads(capsys.readouterr().out) == figures


def test_figures_below_their_limits_are_printed_with_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures below their limits are printed with them; others have none."""
    monkeypatch.setattr("sys.argv", ["benchmark"])
    tell(parser_of("A benchmark."), lambda _: {"rss_mb": 69.9, "series": 336}, {"rss_mb": 70.0})
    assert capsys.readouterr().out.splitlines() == ["rss_mb: 69.9 (limit: 70)", "series: 336"]
