"""Tests of how a user's permissions on NATS subjects are evaluated."""

import pytest

from apportion.runtime.jetstream.examining import covers


@pytest.mark.parametrize(
    ("pattern", "subject", "may"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.b.c", "a.b", False),
        (">", "a", True),
        ("*.b", "a.b", True),
        ("a.b", "a.c", False),
    ],
)
def test_wildcards(pattern: str, subject: str, may: bool) -> None:
    """Wildcards in a permitted subject match as in NATS. Without permitted subjects, nothing
    matches."""
    assert covers([pattern], subject) is may
    assert covers([], subject) is False
