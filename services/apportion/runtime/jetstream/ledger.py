"""The ledger over one connection: appends, readers and shared queues.

An append is one message or one atomic batch, fenced by `Nats-Expected-Last-Subject-Sequence` and
`Nats-Msg-Id`. Invariants: an append is stored whole or not at all. An append without
acknowledgement has an unknown outcome. A known id is a duplicate only if its record is the event to
be appended. The server sees only the HMAC-SHA256 of an id if writers share a key, so an attacker
cannot use up an id that it guesses.

Observed behaviour of nats-server 2.15.1:
- In a batch the id is checked before the fence (10201 before 10071). For a single message the fence
  comes first, so a repeated message is refused as stale; we check the record after its fence.
- A refusal names neither subject nor id; 10071 names the newest revision, whose subject we read.
- An incomplete batch is answered 10176 at its commit, and nothing is stored. The reason is in
  the reply to its first message, so we retry with a reply there."""

import base64
import hmac
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

import msgspec

from apportion.runtime.jetstream import following, stream, work_queue
from apportion.runtime.jetstream.wire import STREAM, ApiError, LostReply, Message, Wire
from apportion.runtime.ledger.batching import check_batch, is_same
from apportion.runtime.ledger.port import (
    ALL_SUBJECTS,
    Draft,
    DuplicateRefused,
    FenceRefused,
    Handler,
    LedgerDrifted,
    LedgerError,
    LedgerFull,
    LedgerUnavailable,
    NotServed,
    OutcomeUnknown,
    Record,
    Request,
    Subscription,
    WorkQueue,
)
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.logs import get_logger

_FENCE_CODES = frozenset({10071, 10164})
_DUPLICATE = 10201
_INCOMPLETE = 10176
_TOO_MANY_OPEN = 10210
_ATOMIC_DISABLED = 10174
_acknowledged = logging.getLogger(f"{__name__}.acknowledged")
# called with outcome, number of drafts and seconds, as Metrics.appended is
AppendWatch = Callable[[str, int, float], None]
_OUTCOMES: dict[type[LedgerError], str] = {
    FenceRefused: "fence",
    DuplicateRefused: "duplicate",
    OutcomeUnknown: "unknown",
    LedgerUnavailable: "unavailable",
    NotServed: "unserved",
    LedgerFull: "full",
}

_log = get_logger(__name__)


class _PublishAnswer(msgspec.Struct, frozen=True):
    seq: int = 0
    duplicate: bool = False
    count: int = 1
    error: ApiError | None = None


_decode_answer = msgspec.json.Decoder(_PublishAnswer).decode


class Appender:
    """Appends drafts over one connection; many appends may run concurrently."""

    def __init__(self, wire: Wire, *, ack_timeout_s: float, key: bytes = b"") -> None:
        self._wire = wire
        self._key = key
        self._ack_timeout_s = ack_timeout_s
        self._prefix = secrets.token_hex(8)
        self._batches = itertools.count(1)

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append drafts, all or none, and return the revision of each; see `Ledger.append`."""
        if not drafts:
            return []
        fences = check_batch(drafts)
        await self._wire.wait_connected(self._ack_timeout_s)
        try:
            if len(drafts) == 1:
                answer = await self._ask(drafts[0], self._headers(drafts[0], dict(fences)))
            else:
                answer = await self._publish_batch(drafts, fences)
                if answer.error is not None and answer.error.err_code == _INCOMPLETE:
                    answer = await self._publish_batch(drafts, fences, ask_first=True)
        except LostReply as lost:
            raise OutcomeUnknown([draft.subject for draft in drafts], str(lost)) from lost
        if answer.error is not None:
            raise await self._refusal(drafts, fences, answer.error)
        if answer.duplicate:
            stored = await stream.read_stored(self._wire, {"seq": answer.seq})
            # A record that was dropped since had been stored, and is in a snapshot.
            same = stored is None or is_same(drafts[0], stored.subject, stored.data)
            raise DuplicateRefused((drafts[0].id,), answer.seq, same=same)
        return list(range(answer.seq - len(drafts) + 1, answer.seq + 1))

    async def _publish_batch(
        self, drafts: Sequence[Draft], fences: dict[str, int], *, ask_first: bool = False
    ) -> _PublishAnswer:
        unused = dict(fences)
        batch = f"{self._prefix}{next(self._batches)}"
        last = len(drafts)
        subjects = frozenset(draft.subject for draft in drafts)
        for number, draft in enumerate(drafts, 1):
            headers = self._headers(draft, unused)
            headers["Nats-Batch-Id"] = batch
            headers["Nats-Batch-Sequence"] = str(number)
            if number == last:
                headers["Nats-Batch-Commit"] = "1"
                return await self._ask(draft, headers, also=subjects)
            if number == 1 and ask_first:
                opened = await self._ask(draft, headers, also=subjects)
                if opened.error is not None:
                    return opened
            else:
                await self._wire.publish(draft.subject, draft.payload, headers=headers)
        raise AssertionError("a batch has a last draft")

    async def _ask(
        self, draft: Draft, headers: dict[str, str], *, also: frozenset[str] = frozenset()
    ) -> _PublishAnswer:
        reply = await self._wire.request(
            draft.subject, draft.payload, timeout_s=self._ack_timeout_s, headers=headers, also=also
        )
        if not reply.data:
            return _PublishAnswer()
        try:
            return _decode_answer(reply.data)
        except msgspec.DecodeError as bad:
            raise LostReply(f"the acknowledgement is not JSON: {bad}") from bad

    async def _refusal(
        self, drafts: Sequence[Draft], fences: dict[str, int], error: ApiError
    ) -> LedgerError:
        code = error.err_code
        if code == _DUPLICATE:
            return DuplicateRefused([draft.id for draft in drafts])
        if code in _FENCE_CODES:
            return await self._fence_refusal(drafts, fences, error)
        if code in stream.FULL:
            return LedgerFull(f"{error.description} ({code})")
        if code == _ATOMIC_DISABLED:
            return LedgerDrifted(f"stream {STREAM} allow_atomic", found=False, wanted=True)
        if code in (_TOO_MANY_OPEN, _INCOMPLETE):
            return LedgerUnavailable(
                f"the server rejected a batch of {len(drafts)}: {error.description} ({code}); "
                "nothing was stored, so append again"
            )
        return LedgerUnavailable(f"the server rejected the append: {error.description} ({code})")

    async def _fence_refusal(
        self, drafts: Sequence[Draft], fences: dict[str, int], error: ApiError
    ) -> LedgerError:
        """Return FenceRefused, or DuplicateRefused if the single draft is stored already."""
        suspects = list(fences.items())
        if len(suspects) > 1:
            newest = error.description.rpartition(" ")[2]
            stored = None
            if newest.isdecimal() and newest != "0":
                stored = await stream.read_stored(self._wire, {"seq": int(newest)})
            if stored is not None:
                suspects.sort(key=lambda fence: fence[0] != stored.subject)
        for subject, expected in suspects:
            found = await stream.newest_on(self._wire, subject)
            if found == expected:
                continue
            if len(drafts) == 1:
                behind = await stream.read_stored(
                    self._wire, {"seq": expected + 1, "next_by_subj": subject}
                )
                if behind is not None and self._took_id(drafts[0], behind):
                    same = is_same(drafts[0], behind.subject, behind.data)
                    return DuplicateRefused((drafts[0].id,), behind.seq, same=same)
            return FenceRefused(subject, expected, found)
        subject, expected = next(iter(fences.items()))
        return FenceRefused(subject, expected)

    async def holds(self, drafts: Sequence[Draft]) -> bool:
        """Return True if exactly these drafts were stored together."""
        for at, draft in enumerate(drafts):
            revision = await self._place(draft)
            if revision is None:
                continue
            # They were stored together if they follow each other from here on, in their order.
            for place, wanted in enumerate(drafts, revision - at):
                found = await stream.read_stored(self._wire, {"seq": place})
                if found is None or not self._took_id(wanted, found):
                    return False
                if not is_same(wanted, found.subject, found.data):
                    return False
            return True
        return False

    async def _place(self, draft: Draft) -> int | None:
        """Return the revision at which the draft is stored, or None if the draft is not found."""
        places: list[dict[str, object]] = [{"last_by_subj": draft.subject}]
        if draft.expect is not None:
            places.append({"seq": draft.expect + 1, "next_by_subj": draft.subject})
        for place in places:
            found = await stream.read_stored(self._wire, place)
            if found is not None and self._took_id(draft, found):
                return found.seq
        return None

    def _took_id(self, draft: Draft, stored: stream.Stored) -> bool:
        for line in base64.b64decode(stored.hdrs).decode("utf-8", "replace").split("\r\n"):
            name, _, value = line.partition(":")
            if name.lower() == "nats-msg-id":
                return value.strip() == self._hidden(draft.id)
        return False

    def _hidden(self, event_id: str) -> str:
        if not self._key:
            return event_id
        return hmac.new(self._key, event_id.encode(), "sha256").hexdigest()

    def _headers(self, draft: Draft, unused_fences: dict[str, int]) -> dict[str, str]:
        headers = {"Nats-Msg-Id": self._hidden(draft.id)}
        expected = unused_fences.pop(draft.subject, None)
        if expected is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
        return headers


class JetStreamLedger:
    """The `port.Ledger` on JetStream; as a context manager, it disconnects at the end."""

    def __init__(self, wire: Wire, appender: Appender, *, watch: AppendWatch) -> None:
        self.wire = wire
        self._watch = watch
        self._clock = SystemClock()
        self._appender = appender
        self._followers: list[following.Follower] = []
        self._queues: list[work_queue.Queue] = []
        self._held = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        """Return True if the server can be reached now."""
        return self.wire.connected

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append drafts, all or none, and return the revision of each; see `Ledger.append`."""
        began = self._clock.monotonic()
        outcome = "ok"
        try:
            if self._held:
                raise LedgerUnavailable(self._held)
            revisions = await self._appender.append(drafts)
        except LedgerError as failure:
            outcome = _OUTCOMES.get(type(failure), "refused")
            raise
        else:
            if _acknowledged.isEnabledFor(logging.DEBUG):
                for revision, draft in zip(revisions, drafts, strict=True):
                    _acknowledged.debug("acknowledged %d %s", revision, draft.id)
            return revisions
        finally:
            self._watch(outcome, len(drafts), self._clock.monotonic() - began)

    async def follow(
        self,
        deliver: Callable[[Record], None],
        *,
        start: int = 1,
        subjects: Sequence[str] = (ALL_SUBJECTS,),
    ) -> Subscription:
        """Deliver records to `deliver`. Raises LedgerUnavailable, LedgerHole, NotPermitted."""
        follower = following.Follower(self.wire, deliver, start=max(start, 1), subjects=subjects)
        await follower.begin()
        self._followers = [old for old in self._followers if old.running]
        self._followers.append(follower)
        return follower

    async def last_revision(self) -> int:
        """Return the newest revision, or 0 if there is none. Raises LedgerUnavailable."""
        return (await stream.read_info(self.wire)).state.last_seq

    async def first_revision(self) -> int:
        """Return the oldest revision, or the next if empty. Raises LedgerUnavailable."""
        return max((await stream.read_info(self.wire)).state.first_seq, 1)

    async def holds(self, drafts: Sequence[Draft]) -> bool:
        """Return True if exactly these drafts were stored together. Raises LedgerUnavailable."""
        return await self._appender.holds(drafts)

    async def last_on_subject(self, subject: str) -> int:
        """Return the newest revision on the subject, or 0. Raises LedgerUnavailable."""
        return await stream.newest_on(self.wire, subject)

    async def record_at(self, revision: int) -> Record | None:
        """Return the record at that revision, or None. Raises LedgerUnavailable."""
        return await stream.read_record(self.wire, revision)

    async def work_queue(
        self, durable: str, subjects: Sequence[str], *, ack_wait_s: float, max_in_flight: int
    ) -> WorkQueue:
        """Return the shared queue. Raises LedgerDrifted, LedgerUnavailable, NotPermitted."""
        queue = await work_queue.open_queue(
            self.wire, durable, subjects, ack_wait_s=ack_wait_s, max_in_flight=max_in_flight
        )
        self._queues.append(queue)
        return queue

    async def look(self) -> stream.Look:
        """Check the settings of the stream and our consumers. Raises LedgerUnavailable."""
        info = await stream.read_info(self.wire)
        drifted = stream.stream_drift(info)
        for follower in self._followers:
            drifted += await follower.drift()
        for queue in self._queues:
            drifted += await queue.drift()
        room_bytes = max(info.config.get("max_bytes", 0), 0)
        return stream.Look(tuple(str(each) for each in drifted), info.lost, info.free, room_bytes)

    def hold(self, why: str) -> None:
        """Block appends for the reason `why`; an empty reason resumes appends."""
        self._held = why

    async def publish(self, subject: str, payload: bytes) -> None:
        """Send a plain message that is not stored. Raises LedgerUnavailable."""
        await self.wire.publish(subject, payload, headers={})

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """Send a plain message and return the reply; see `Ledger.request`."""
        try:
            reply = await self.wire.request(subject, payload, timeout_s=timeout_s, headers={})
        except LostReply as lost:
            raise LedgerUnavailable(f"no reply to {subject}: {lost}") from lost
        return reply.data

    async def serve(self, subject: str, handler: Handler) -> None:
        """Answer plain messages on `subject`. Raises LedgerUnavailable, NotPermitted."""

        async def receive(message: Message) -> None:
            try:
                answer = await handler(message.subject, message.data)
                if answer is not None and message.reply:
                    await self.wire.publish(message.reply, answer, headers={})
            except Exception:  # noqa: BLE001
                # One bad message must not stop the following ones.
                _log.exception("cannot answer a message", subject=message.subject)

        await self.wire.subscribe(subject, receive, waits=True)

    async def take_requests(
        self, subject: str, take: Callable[[Request], None], *, group: str
    ) -> Callable[[], Awaitable[None]]:
        """Receive requests on `subject`, each in one process of `group`; see `Ledger`."""

        async def receive(message: Message) -> None:
            take(_Request(self.wire, message))

        return await self.wire.subscribe(subject, receive, group=group)

    async def close(self) -> None:
        """Disconnect. The outcome of unacknowledged appends is unknown."""
        for follower in self._followers:
            await follower.stop()
        await self.wire.close()


class _Request:
    __slots__ = ("_wire", "payload", "reply", "subject")

    def __init__(self, wire: Wire, message: Message) -> None:
        self._wire = wire
        self.subject = message.subject
        self.reply = message.reply
        self.payload = message.data

    async def answer(self, payload: bytes) -> None:
        """Send the answer. Raises LedgerUnavailable."""
        await self._wire.publish(self.reply, payload, headers={})
