"""The bars of `apportion replay`."""

from apportion.cli.replay import ASCII, EIGHTHS, HEIGHT, bars


def test_bars_are_as_high_as_their_values() -> None:
    """From the top: the highest fills all lines, half of it half, and nothing none."""
    assert bars([0.0, 2.0, 4.0], 4.0) == ["  █", "  █", " ██", " ██"]
    assert bars([1.0], 8.0) == [" ", " ", " ", "▄"]


def test_bars_for_terminals_with_ascii_alone() -> None:
    """The same heights in steps that such a terminal has."""
    drawn = bars([4.0, 2.0, 0.5], 4.0, in_ascii=True)
    assert len(drawn) == HEIGHT
    assert set("".join(drawn)) <= set(ASCII)
    assert drawn[-1][:2] == ASCII[-1] * 2
    assert not set("".join(drawn)) & set(EIGHTHS[1:])


def test_nothing_is_no_bar() -> None:
    """Where nobody waited there is no scale either."""
    assert bars([0.0, 0.0], 0.0) == ["  "] * HEIGHT
