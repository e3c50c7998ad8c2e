"""Tests that all pairs of text and background colours have enough contrast in both themes (WCAG 2,
level AA)."""

import re
from pathlib import Path

import pytest

from apportion.gateway.console import console

TOKENS = (Path(console.__file__).parent / "static" / "css" / "parts.css").read_text("utf-8")
TEXT = 4.5
SHAPES = 3.0
"""Shapes that must be distinguishable from their background, such as devices."""
ON_PAGE = ("text", "muted", "faint", "accent", "ok", "bad", "warn")
GROUNDS = ("bg", "surface", "raised", "stage")
PAIRS = [
    *((front, back) for front in ON_PAGE for back in GROUNDS),
    ("accent", "accent-bg"), ("bad", "bad-bg"), ("warn", "warn-bg"), ("ok", "ok-bg"),
    ("text", "accent-bg"), ("text", "sunk"), ("muted", "sunk"), ("surface", "accent"),
]  # fmt: skip


def themes() -> dict[str, dict[str, str]]:
    """Return the colours of each theme, by name."""
    light, dark = re.findall(r":root[^{]*\{([^}]*)\}", TOKENS)
    return {
        name: dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})\b", text))
        for name, text in (("light", light), ("dark", dark))
    }


def luminance(colour: str) -> float:
    """Return the colour's relative luminance by WCAG 2."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast of the two colours by WCAG 2, from 1 to 21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("front", "back"), PAIRS)
def test_text_can_be_read(theme: str, front: str, back: str) -> None:
    """In both themes, text has a contrast of at least 4.5 to 1 with its background."""
    colours = themes()[theme]
    assert contrast(colours[front], colours[back]) >= TEXT


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_states_of_cards_are_told_apart(theme: str) -> None:
    """The colours of device states contrast with the background. The colour of devices in use also
    contrasts with the colour of allocated devices."""
    colours = themes()[theme]
    for state in ("c-used", "c-broken", "c-cordon"):
        assert contrast(colours[state], colours["stage"]) >= SHAPES
    assert contrast(colours["c-used"], colours["c-granted"]) >= SHAPES


def test_the_rule_itself() -> None:
    """The contrast of black and white is 21, and that of two equal colours is 1."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#777777") == pytest.approx(1)
