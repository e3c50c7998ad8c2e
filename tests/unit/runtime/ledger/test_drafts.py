"""Tests of how new events and batches are checked before they are sent to the ledger."""

import pytest

from apportion.runtime.ledger.batching import MAX_BATCH_BYTES, check_batch, check_draft
from apportion.runtime.ledger.port import (
    MAX_PAYLOAD_BYTES,
    Draft,
    DuplicateRefused,
    InvalidDraft,
    LedgerError,
    OutcomeUnknown,
    PayloadTooLarge,
)


def _draft(
    subject: str = "apportion.v1.workload.a",
    *,
    key: str = "x",
    payload: bytes = b"{}",
    expect: int | None = None,
) -> Draft:
    return Draft(subject, key, payload, expect)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "apportion.v1.",
        "apportion.v1..a",
        "apportion.v1.a.",
        "apportion.v1.*",
        "apportion.v1.>",
        "apportion.v1.a.b>c",
        "apportion.v1.a b",
        "apportion.v1.a\r\nPUB x 0",
        "apportion.v1.\u00fc",
        "apportion.v2.workload.a",
        "$JS.API.STREAM.DELETE.APPORTION",
        "_INBOX.x",
    ],
)
def test_a_subject_outside_the_ledger_or_its_alphabet_is_refused(subject: str) -> None:
    """A subject is refused if it lacks the ledger's prefix or has a forbidden character."""
    with pytest.raises(InvalidDraft, match=r"subject is .*; use apportion\.v1\."):
        check_draft(_draft(subject))


@pytest.mark.parametrize("subject", ["apportion.v1.a", "apportion.v1.cluster.node.gpu-1_x=%2E"])
def test_a_plain_subject_is_taken(subject: str) -> None:
    """A subject is accepted if its names are encoded."""
    check_draft(_draft(subject))


@pytest.mark.parametrize("name", ["", "a\nb", "a\r\nNats-Rollup: all", "\u2603", "x" * 513])
def test_an_id_that_is_no_clean_header_is_refused(name: str) -> None:
    """An event id is refused if it is not safe as the value of a NATS header."""
    with pytest.raises(InvalidDraft, match="id is"):
        check_draft(_draft(key=name))


def test_a_negative_fence_is_refused() -> None:
    """An event is refused if its fence is negative. A fence is the expected newest revision of the
    event's subject."""
    with pytest.raises(InvalidDraft, match="expect is -1"):
        check_draft(_draft(expect=-1))


def test_sizes_are_refused_with_found_and_limit() -> None:
    """If an event or batch is too large, the error states its size and the limit."""
    with pytest.raises(PayloadTooLarge) as single:
        check_draft(_draft(payload=b"x" * (MAX_PAYLOAD_BYTES + 1)))
    assert (single.value.found_bytes, single.value.limit_bytes) == (1_044_481, 1_044_480)
    many = [_draft(key=str(n), payload=b"x" * MAX_PAYLOAD_BYTES) for n in range(17)]
    with pytest.raises(PayloadTooLarge, match="a batch of 17 events") as batch:
        check_batch(many)
    assert batch.value.limit_bytes == MAX_BATCH_BYTES


def test_a_batch_has_one_fence_for_each_subject() -> None:
    """In a batch, the first event on a subject sets the fence for that subject."""
    fences = check_batch(
        [
            _draft("apportion.v1.a", key="1", expect=4),
            _draft("apportion.v1.b", key="2"),
            _draft("apportion.v1.a", key="3"),
            _draft("apportion.v1.c", key="4", expect=0),
        ]
    )
    assert fences == {"apportion.v1.a": 4, "apportion.v1.c": 0}


def test_an_id_twice_is_refused() -> None:
    """If two events of a batch have the same id, the error names it."""
    with pytest.raises(DuplicateRefused, match="one of these ids: x"):
        check_batch([_draft(key="x"), _draft(key="x")])


def test_long_lists_are_shortened_in_messages() -> None:
    """Error messages show only the beginning of long lists."""
    many = [f"pod-{n}" for n in range(1000)]
    assert "pod-2 and 997 more" in str(DuplicateRefused(many))
    assert len(str(OutcomeUnknown([f"s{n}" for n in range(1000)], "timeout"))) < 200
    assert isinstance(OutcomeUnknown([], ""), LedgerError)
