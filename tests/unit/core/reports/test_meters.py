"""Tests of how device time is divided among rows."""

from collections import Counter

from apportion.core.reports.meters import Division, Part


def test_rows_get_no_more_than_was_divided() -> None:
    """A row that gets no time because of rounding does not get it later, at a new weight."""
    given = Counter[str]()
    division = Division(0, lambda row, _, cards: given.update({row: cards}))
    division.weigh("a", 1_200, 0)
    division.weigh("b", 1_000_000, 0)
    division.divide({Part.GANG: 1}, 0)
    division.weigh("a", 1_000_000_000, 800)
    division.settle(800)
    assert given == {"b": 799}
