"""What the ledger takes: drafts and batches checked before anything is sent.

Invariant: whatever carries the ledger, the same drafts are refused, with the same words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from apportion.runtime.ledger.port import (
    MAX_DRAFTS,
    MAX_ID_CHARS,
    MAX_PAYLOAD_BYTES,
    SUBJECT_PREFIX,
    Draft,
    DuplicateRefused,
    InvalidDraft,
    PayloadTooLarge,
)

MAX_BATCH_BYTES = 16 << 20
"""The server holds an open batch in memory; this bounds what one writer can make it hold."""

_SUBJECT = re.compile(r"[!-)+-\-/-=?-~]+(\.[!-)+-\-/-=?-~]+)*")
_ID = re.compile(r"[ -~]+")


def check_draft(draft: Draft) -> None:
    """Raise InvalidDraft or PayloadTooLarge when the ledger would not take `draft`."""
    subject = draft.subject
    if not subject.startswith(SUBJECT_PREFIX) or not _SUBJECT.fullmatch(subject):
        raise InvalidDraft(
            "subject",
            repr(subject[:120]),
            f"use {SUBJECT_PREFIX}<kind>.<name> without wildcards, blanks or empty tokens",
        )
    if len(draft.id) > MAX_ID_CHARS or not _ID.fullmatch(draft.id):
        raise InvalidDraft(
            "id", repr(draft.id[:120]), f"use 1 to {MAX_ID_CHARS} printable ASCII characters"
        )
    if draft.expect is not None and draft.expect < 0:
        raise InvalidDraft("expect", str(draft.expect), "use a revision, 0 for an empty subject")
    if len(draft.payload) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(f"the event for {subject}", len(draft.payload), MAX_PAYLOAD_BYTES)


def check_batch(drafts: Sequence[Draft]) -> dict[str, int]:
    """The fences of a batch by subject, after checking every draft and the batch itself.

    Raises InvalidDraft, PayloadTooLarge, DuplicateRefused (an id twice in the batch).
    """
    if len(drafts) > MAX_DRAFTS:
        raise InvalidDraft(
            "the batch", f"{len(drafts)} drafts", f"append at most {MAX_DRAFTS} at a time"
        )
    expects: dict[str, int | None] = {}
    ids: set[str] = set()
    for draft in drafts:
        check_draft(draft)
        if draft.id in ids:
            raise DuplicateRefused((draft.id,))
        ids.add(draft.id)
        first = expects.setdefault(draft.subject, draft.expect)
        if draft.expect is not None and draft.expect != first:
            raise InvalidDraft(
                "expect",
                f"{draft.expect} on {draft.subject}, where the batch's first draft has {first}",
                "fence a subject by its first draft in the batch",
            )
    total = sum(len(draft.payload) for draft in drafts)
    if total > MAX_BATCH_BYTES:
        raise PayloadTooLarge(f"a batch of {len(drafts)} events", total, MAX_BATCH_BYTES)
    return {subject: expect for subject, expect in expects.items() if expect is not None}


class _Named(msgspec.Struct, frozen=True):
    id: str = ""
    type: str = ""


_decode_named = msgspec.json.Decoder(_Named).decode


def is_same(draft: Draft, subject: str, payload: bytes) -> bool:
    """Whether a record is the event that was to be written, by whomever and wherever to.

    Two schedulers may place one pod on different nodes, and two watchers tell of one pod at
    different times: it is the same event, on the same kind of subject.
    """
    if _channel(draft.subject) != _channel(subject):
        return False
    try:
        return _decode_named(draft.payload) == _decode_named(payload)
    except msgspec.DecodeError:
        return draft.payload == payload


def _channel(subject: str) -> list[str]:
    return subject.split(".", 3)[:3]
