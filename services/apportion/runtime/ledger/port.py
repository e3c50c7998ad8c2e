"""The ledger's interface: the appends of writers, the deliveries to readers, and the errors.

Services depend on this module and not on a client library. Invariants: an append is all or nothing.
Each record is delivered once, in revision order. A gap is reported, never skipped."""

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Protocol

import msgspec

from apportion_schemas.decoding import from_outside

SUBJECT_PREFIX = "apportion.v1."
ALL_SUBJECTS = "apportion.v1.>"
MAX_DRAFTS = 1_000  # the server's limit for one atomic batch
# 1 MiB, the server's limit for one message, less 4 KiB for subject and headers
MAX_PAYLOAD_BYTES = 1_044_480
MAX_ID_CHARS = 512
SHOWN_IDS = 3
_decode = from_outside(msgspec.json.Decoder().decode)


class Draft(msgspec.Struct, frozen=True, gc=False):
    """An event to append, as bytes, with the fences under which the server accepts it."""

    subject: str
    id: str  # pod fence: the server takes an id once in its duplicate window of two minutes
    payload: bytes
    # Node fence: the newest revision on `subject` that the writer knows; 0 if empty, None for none.
    expect: int | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """An event in the ledger. `revision` is its number in the stream, from 1."""

    revision: int
    subject: str
    payload: bytes

    @property
    def digest(self) -> bytes:
        """Return a digest that shows whether two histories contain the same record."""
        return sha256(self.subject.encode() + b"\n" + self.payload).digest()

    @property
    def json(self) -> msgspec.Raw | None:
        """Return the payload as it is, or None if it is not JSON."""
        try:
            _decode(self.payload)
        except msgspec.DecodeError:
            return None
        return msgspec.Raw(self.payload)


class LedgerError(Exception):
    """Base of all ledger errors. The message has the failed action, the value and the fix."""


class InvalidDraft(LedgerError):
    """Error: the draft was not sent, because a field breaks the ledger's rules."""

    def __init__(self, field: str, found: str, fix: str) -> None:
        super().__init__(f"invalid draft, not sent: {field} is {found}; {fix}")
        self.field = field


class PayloadTooLarge(LedgerError):
    """Error: the draft or batch was not sent, because it is larger than the ledger accepts."""

    def __init__(self, what: str, found_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{what} has {found_bytes} bytes, but the limit is {limit_bytes}; "
            "split it or omit details"
        )
        self.found_bytes = found_bytes
        self.limit_bytes = limit_bytes


class FenceRefused(LedgerError):
    """Error: nothing was stored, because `subject` has a newer record than the writer folded."""

    def __init__(self, subject: str, expected: int, found: int | None = None) -> None:
        newest = "a different revision" if found is None else f"revision {found}"
        super().__init__(
            f"append to {subject} expected {expected} as its newest revision, but the ledger "
            f"has {newest}; read up to it and decide again"
        )
        self.subject = subject
        self.expected = expected
        self.found = found  # the newest revision there; None if the server did not report it


class DuplicateRefused(LedgerError):
    """Error: nothing was stored, because the ledger already has one of `ids`."""

    def __init__(
        self, ids: Sequence[str], revision: int | None = None, *, same: bool = False
    ) -> None:
        hidden = len(ids) - SHOWN_IDS
        shown = ", ".join(ids[:SHOWN_IDS]) + (f" and {hidden} more" if hidden > 0 else "")
        where = "" if revision is None else f" at revision {revision}"
        super().__init__(
            f"the ledger already has an event with one of these ids{where}: {shown}; "
            "treat it as done, or use a new id for a new event"
        )
        self.ids = tuple(ids)  # all of a batch, for which the server does not report which one
        self.revision = revision  # of the first copy, known for a single draft
        self.same = same  # the stored event is the one to write, or was dropped since


class OutcomeUnknown(LedgerError):
    """Error: no acknowledgement came, so the append was stored completely or not at all."""

    def __init__(self, subjects: Sequence[str], reason: str) -> None:
        super().__init__(
            f"no acknowledgement for an append to {', '.join(sorted(set(subjects))[:3])} "
            f"({reason}); append again with the same ids, or read on to see whether it was stored; "
            "if this persists, check the log and the disk of nats-server"
        )
        self.subjects = tuple(subjects)


class LedgerUnavailable(LedgerError):
    """Error: the ledger cannot be reached or accepts no appends now. Nothing was stored."""

    def __init__(self, why: str = "", *, again_s: float = 0.0) -> None:
        super().__init__(why)
        self.again_s = again_s  # delay before a retry that the refusal requests


class NotServed(LedgerUnavailable):
    """Error: the server answers, but no stream or service accepts this request."""


class LedgerFull(LedgerError):
    """Error: the stream or its disk is full. Nothing was stored."""

    def __init__(self, answer: str) -> None:
        super().__init__(
            f"the ledger is full: {answer}; give its server more disk, or raise max_file_store "
            "or the stream's max_bytes"
        )


class LedgerDrifted(LedgerError):
    """Error: the stream or consumer on the server does not have the required settings."""

    def __init__(self, setting: str, found: object, wanted: object) -> None:
        super().__init__(
            f"setting {setting} is {found!r} on the server but must be {wanted!r}; "
            "restore it, or start with a new ledger"
        )
        self.setting = setting
        self.found = found
        self.wanted = wanted


class LedgerHole(LedgerError):
    """Error: events are missing from the ledger, so states folded from it may be wrong."""

    def __init__(self, what: str, expected: int, found: int) -> None:
        super().__init__(
            f"the ledger lost events: {what} (expected revision {expected}, found {found}); "
            "stop the writers, compare with a snapshot or another reader, and restore the stream"
        )
        self.expected = expected
        self.found = found


class LedgerTrimmed(LedgerHole):
    """Error: the ledger's beginning was dropped before it was read; start with a snapshot."""


class ServerTooOld(LedgerError):
    """Error: the nats-server does not support atomic batches, or lacks security fixes."""

    needed = "2.14.0, or 2.12.7 in the 2.12 series"

    def __init__(self, found: str) -> None:
        super().__init__(
            f"nats-server {found} is too old; upgrade it to {self.needed}, for atomic batches "
            "and security fixes"
        )
        self.found = found


class NotPermitted(LedgerError):
    """Error: the server refuses this user or this action. Nothing was stored."""


class Subscription(Protocol):
    """A reader's position in the ledger, which resumes automatically after a disconnection."""

    @property
    def position(self) -> int:
        """Return the newest delivered revision, initially the one before `start`."""

    @property
    def lag(self) -> int:
        """Return how many records were still to come when the server sent the last one."""

    @property
    def stalled(self) -> bool:
        """Return True if the ledger has had newer records for a while that were not delivered."""

    @property
    def stored_ns(self) -> int:
        """Return when the server stored the last delivered record, in ns since 1970, or 0."""

    async def caught_up(self) -> None:
        """Wait until every record that existed when `follow` began has been delivered."""

    async def join(self) -> None:
        """Wait until stopped. Raises a LedgerError, or the error of `deliver`."""

    async def stop(self) -> None:
        """Stop delivering. No record is delivered after this method returns."""


class Delivery(Protocol):
    """A record that one worker of a shared queue must acknowledge before a timeout."""

    @property
    def record(self) -> Record:
        """Return the delivered record, as in the ledger."""

    @property
    def attempt(self) -> int:
        """Return 1 on the first delivery, and one more after each `retry` or timeout."""

    async def ack(self) -> None:
        """Acknowledge the record; it may still be redelivered. Raises LedgerUnavailable."""

    async def retry(self, delay_s: float) -> None:
        """Return the record to the queue, for delivery to any worker after `delay_s`."""

    async def progress(self) -> None:
        """Restart the acknowledgement timeout, because work continues."""


class WorkQueue(Protocol):
    """A queue of records that replicas share; each record goes to one replica at a time."""

    async def fetch(self, batch: int, timeout_s: float) -> list[Delivery]:
        """Return up to `batch` deliveries, or none if none arrived within `timeout_s`."""

    async def leave(self) -> None:
        """Stop fetching. Records that were not delivered go to other workers."""

    async def waiting(self) -> int:
        """Return the number of the queue's records that are not acknowledged yet."""


# Takes subject and payload of a plain message; returns the reply, or None for no reply.
Handler = Callable[[str, bytes], Awaitable[bytes | None]]


class Request(Protocol):
    """A plain message whose sender expects an answer on `reply`."""

    subject: str
    reply: str
    payload: bytes

    async def answer(self, payload: bytes) -> None:
        """Send the answer. Raises LedgerUnavailable."""


class Readable(Protocol):
    """Read access to the stream, or to the part of it that a user may read."""

    async def follow(
        self,
        deliver: Callable[[Record], None],
        *,
        start: int = 1,
        subjects: Sequence[str] = (ALL_SUBJECTS,),
    ) -> Subscription:
        """Deliver all records of `subjects` from `start` on, in order, including future ones."""


class Ledger(Readable, Protocol):
    """The stream, with all operations of its readers and writers."""

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append 1 to 1,000 drafts, all or none, and return the revision of each.

        If drafts share a subject, only the first may set `expect`, or all set the same value.
        Raises InvalidDraft, PayloadTooLarge, FenceRefused, DuplicateRefused, OutcomeUnknown,
        LedgerUnavailable, LedgerFull, LedgerDrifted, NotPermitted."""

    async def holds(self, drafts: Sequence[Draft]) -> bool:
        """Return True if exactly these drafts are in the ledger, and were appended together."""

    async def last_revision(self) -> int:
        """Return the newest revision; 0 if the ledger is empty."""

    async def first_revision(self) -> int:
        """Return the oldest revision, or the next one if the ledger is empty; 1 unless trimmed."""

    async def last_on_subject(self, subject: str) -> int:
        """Return the newest revision on one subject, or 0 if the subject has no records."""

    async def record_at(self, revision: int) -> Record | None:
        """Return the record at that revision, or None. Raises LedgerUnavailable."""

    async def work_queue(
        self, durable: str, subjects: Sequence[str], *, ack_wait_s: float, max_in_flight: int
    ) -> WorkQueue:
        """Return the shared queue `durable`, creating it on first use. Raises LedgerDrifted."""

    async def publish(self, subject: str, payload: bytes) -> None:
        """Send a plain message that is not stored, such as a heartbeat."""

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """Send a plain message; return the reply. Raises LedgerUnavailable, NotPermitted."""

    async def serve(self, subject: str, handler: Handler) -> None:
        """Answer plain messages on `subject` (wildcards allowed) until closed."""

    async def take_requests(
        self, subject: str, take: Callable[[Request], None], *, group: str
    ) -> Callable[[], Awaitable[None]]:
        """Receive requests, each in only one process of `group`. Return an unsubscribe function.

        Raises LedgerUnavailable, NotPermitted."""

    async def close(self) -> None:
        """Disconnect. The outcome of unacknowledged appends is unknown."""
