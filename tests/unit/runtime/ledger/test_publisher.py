"""Tests of how a service appends events: their content, the check before sending, and retries."""

import pytest

from apportion.runtime.ledger.batching import Appended
from apportion.runtime.ledger.port import (
    Draft,
    LedgerError,
    LedgerFull,
    LedgerUnavailable,
    NotPermitted,
    OutcomeUnknown,
)
from apportion.runtime.ledger.publisher import Insistence, Publisher
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import InvalidEvent, PodBound, PodGone, decode

DRAFT = Draft("apportion.v1.workload.p", "p/gone", b"{}")


class Moody:
    """A fake ledger. Its `append` first raises the errors that the test has given, one per call,
    and then succeeds."""

    def __init__(self, *failures: LedgerError) -> None:
        self._failures = list(failures)
        self.taken: list[Draft] = []

    async def append(self, draft: Draft) -> Appended:
        """Raise the next error, or accept the event if there is none left."""
        if self._failures:
            raise self._failures.pop(0)
        self.taken.append(draft)
        return Appended(7)


class Hasty(SystemClock):
    """A fake clock whose pauses end at once. It records their lengths."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def pause(self, longest_s: float) -> None:
        self.pauses.append(longest_s)


async def test_an_event_carries_who_when_and_upon_what() -> None:
    """An event that the publisher appends has its source, its time, the revision that it is based
    on and its cause. It can be decoded."""
    moody = Moody()
    publisher = Publisher("binder", SystemClock(), moody.append)
    data = PodBound(pod="p", node="rack.1", attempt=2)
    appended = await publisher.publish(data, event_id="p/2/bound", basis=40, cause=39)
    (draft,) = moody.taken
    assert appended.revision == 7
    assert (draft.subject, draft.id, draft.expect) == (
        "apportion.v1.binding.rack%2E1",
        "p/2/bound",
        None,
    )
    event = decode(draft.payload, subject=draft.subject)
    assert (event.id, event.source, event.basis, event.cause) == ("p/2/bound", "binder", 40, 39)
    assert event.data == data
    assert event.time.endswith("Z")


async def test_what_a_reader_would_refuse_is_never_appended() -> None:
    """If readers would refuse an event, the publisher does not append it."""
    moody = Moody()
    publisher = Publisher("watcher", SystemClock(), moody.append)
    with pytest.raises(InvalidEvent, match="PodGone"):
        await publisher.publish(PodGone(uid="u", reason="x" * 2_000), event_id="u", basis=0)
    assert not moody.taken


async def test_a_ledger_that_is_away_or_full_is_waited_for() -> None:
    """While the ledger is unreachable or full, the publisher retries with the same event id and
    longer and longer pauses."""
    moody = Moody(
        LedgerUnavailable("gone"), OutcomeUnknown(["s"], "gone"), LedgerFull("no space left")
    )
    clock = Hasty()
    assert (await Insistence(moody.append, clock).append(DRAFT)).revision == 7
    assert moody.taken == [DRAFT]
    assert clock.pauses == sorted(clock.pauses)
    assert len(clock.pauses) == 3


async def test_pauses_are_bounded() -> None:
    """The publisher's pauses between retries do not exceed a maximum."""
    clock = Hasty()
    await Insistence(Moody(*[LedgerUnavailable("gone")] * 50).append, clock).append(DRAFT)
    assert max(clock.pauses) == 5


async def test_what_waiting_cannot_cure_is_raised() -> None:
    """If a retry cannot fix an error, the publisher raises it at once."""
    clock = Hasty()
    with pytest.raises(NotPermitted):
        await Insistence(Moody(NotPermitted("no")).append, clock).append(DRAFT)
    assert not clock.pauses
