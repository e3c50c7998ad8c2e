"""Tests of the patterns by which `tail` selects channels of events."""

import click
import pytest

from apportion.cli.verbs.see.tail import pattern_of
from apportion_schemas import CATALOGUE


@pytest.mark.parametrize("prefix", ["", "apportion.v1."])
def test_a_pattern_of_what_there_is_is_taken(prefix: str) -> None:
    """`tail` accepts every channel of the event catalogue, with or without the prefix
    `apportion.v1.`."""
    assert pattern_of(f"{prefix}>") == "apportion.v1.>"
    assert pattern_of(f"{prefix}*.node-1") == "apportion.v1.*.node-1"
    for channel in {row.channel for row in CATALOGUE}:
        assert pattern_of(f"{prefix}{channel}.>") == f"apportion.v1.{channel}.>"
        assert pattern_of(f"{prefix}{channel}.node-1") == f"apportion.v1.{channel}.node-1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("placement", r"'placement' matches no event; did you mean placement\.>\?"),
        ("*", r"did you mean \*\.>\?"),
        ("placements.>", r"did you mean placement\.>"),
        ("foo", r"known: adoption\.>, allocation\.>, .*, usage\.>, workload\.>"),
        ("apportion.v2.placement.>", "matches no event"),
        ("placement..>", "not a NATS subject; write one such as"),
    ],
)
def test_a_pattern_of_nothing_is_met_with_what_there_is(text: str, says: str) -> None:
    """If no event can ever match a pattern, `tail` refuses it and lists the valid channels.
    Otherwise it would wait forever."""
    with pytest.raises(click.ClickException, match=says) as refused:
        pattern_of(text)
    assert refused.value.exit_code == 2
