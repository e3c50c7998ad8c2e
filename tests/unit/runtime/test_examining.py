"""Test which subjects a user may publish to, according to the NATS server's patterns."""

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
    """Wildcards in a subject pattern match as they do in NATS."""
    assert covers([pattern], subject) is may
    assert covers([], subject) is False
