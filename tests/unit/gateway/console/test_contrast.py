"""Colours: every pair that text uses can be read, in both themes (WCAG 2, AA)."""

import re
from pathlib import Path

import pytest

from apportion.gateway.console import console

TOKENS = (Path(console.__file__).parent / "static" / "css" / "parts.css").read_text("utf-8")
TEXT = 4.5
SHAPES = 3.0
"""What is no text but must be told apart: cards against the ground they stand on."""
ON_PAGE = ("text", "muted", "faint", "accent", "ok", "bad", "warn")
GROUNDS = ("bg", "surface", "raised", "stage")
PAIRS = [
    *((front, back) for front in ON_PAGE for back in GROUNDS),
    ("accent", "accent-bg"), ("bad", "bad-bg"), ("warn", "warn-bg"), ("ok", "ok-bg"),
    ("text", "accent-bg"), ("text", "sunk"), ("muted", "sunk"), ("surface", "accent"),
]  # fmt: skip


def themes() -> dict[str, dict[str, str]]:
    """The colours of each theme by name."""
    light, dark = re.findall(r":root[^{]*\{([^}]*)\}", TOKENS)
    return {
        name: dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})\b", text))
        for name, text in (("light", light), ("dark", dark))
    }


def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """From 1 to 21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("front", "back"), PAIRS)
def test_text_can_be_read(theme: str, front: str, back: str) -> None:
    """The smallest text has 4.5 to 1."""
    colours = themes()[theme]
    assert contrast(colours[front], colours[back]) >= TEXT


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_states_of_cards_are_told_apart(theme: str) -> None:
    """Used, broken and cordoned against the ground, and used against granted."""
    colours = themes()[theme]
    for state in ("c-used", "c-broken", "c-cordon"):
        assert contrast(colours[state], colours["stage"]) >= SHAPES
    assert contrast(colours["c-used"], colours["c-granted"]) >= SHAPES


def test_the_rule_itself() -> None:
    """Known pairs: black on white has 21, and a colour on itself has none."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#777777") == pytest.approx(1)
