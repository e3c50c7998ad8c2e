"""The ledger's contract: what a writer appends, what a reader gets, and what can go wrong.

Every service codes against this module and none against a client library, so the rules of the
ledger are stated once. Invariant: an append is all or nothing; a record is delivered once, in
revision order, and a hole is reported, never passed over."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

SUBJECT_PREFIX = "apportion.v1."
ALL_SUBJECTS = "apportion.v1.>"
MAX_DRAFTS = 1_000
"""The server's limit for one atomic batch."""
MAX_PAYLOAD_BYTES = 1_044_480
"""1 MiB, the server's limit for one message, less 4 KiB for subject and headers."""
MAX_ID_CHARS = 512
SHOWN_IDS = 3


class Draft(msgspec.Struct, frozen=True, gc=False):
    """One event to append.

    `id` is the pod fence: the server takes an id once (within its duplicate window of two minutes).
    `expect` is the node fence: the revision that the writer holds to be the newest on `subject`;
    0 says that the subject is empty, None asks for no fence."""

    subject: str
    id: str
    payload: bytes
    expect: int | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """One event of the ledger. `revision` is its sequence number in the stream, from 1."""

    revision: int
    subject: str
    payload: bytes


class LedgerError(Exception):
    """Anything that went wrong with the ledger. The message says what, the value and the fix."""


class InvalidDraft(LedgerError):
    """The draft was never sent: a field of it breaks the ledger's rules."""

    def __init__(self, field: str, found: str, fix: str) -> None:
        super().__init__(f"draft refused before sending: {field} is {found}; {fix}")
        self.field = field


class PayloadTooLarge(LedgerError):
    """The draft or batch was never sent: it has more bytes than the ledger takes."""

    def __init__(self, what: str, found_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{what} has {found_bytes} bytes and the ledger takes {limit_bytes}; "
            "split it or leave detail out"
        )
        self.found_bytes = found_bytes
        self.limit_bytes = limit_bytes


class FenceRefused(LedgerError):
    """Nothing was stored: `subject` has moved on since the writer folded it.

    `found` is the newest revision on the subject, None where the server did not say."""

    def __init__(self, subject: str, expected: int, found: int | None = None) -> None:
        newest = "a different revision" if found is None else f"revision {found}"
        super().__init__(
            f"append to {subject} expected revision {expected} to be the newest there, the ledger "
            f"has {newest}; fold up to it and decide again"
        )
        self.subject = subject
        self.expected = expected
        self.found = found


class DuplicateRefused(LedgerError):
    """Nothing new was stored: the ledger already holds one of `ids`.

    Of a batch the server does not say which one, so `ids` are all of the batch. `revision` is the
    place of the first copy where it is known, which it is for a single draft. `same`: what stands
    there is the event that was to be written, by whomever, or what stood there was dropped since;
    otherwise somebody took its id."""

    def __init__(
        self, ids: Sequence[str], revision: int | None = None, *, same: bool = False
    ) -> None:
        hidden = len(ids) - SHOWN_IDS
        shown = ", ".join(ids[:SHOWN_IDS]) + (f" and {hidden} more" if hidden > 0 else "")
        where = "" if revision is None else f" at revision {revision}"
        super().__init__(
            f"the ledger already holds an event with one of these ids{where}: {shown}; "
            "treat it as done, or use a new id for a new event"
        )
        self.ids = tuple(ids)
        self.revision = revision
        self.same = same


class OutcomeUnknown(LedgerError):
    """The acknowledgement never came: the append may be stored or not, but never in part."""

    def __init__(self, subjects: Sequence[str], reason: str) -> None:
        super().__init__(
            f"no acknowledgement for an append to {', '.join(sorted(set(subjects))[:3])} "
            f"({reason}); append again with the same ids, or read on to see whether it is there; "
            "if this goes on, look at the log and the disk of nats-server"
        )
        self.subjects = tuple(subjects)


class LedgerUnavailable(LedgerError):
    """The ledger cannot be reached or does not take appends now; nothing was stored.

    `again_s`: what refused the append asks for the next try in about so many seconds."""

    def __init__(self, why: str = "", *, again_s: float = 0.0) -> None:
        super().__init__(why)
        self.again_s = again_s


class NotServed(LedgerUnavailable):
    """The server answers, and no stream or service takes this request."""


class LedgerFull(LedgerError):
    """The stream or its disk is full; nothing was stored."""

    def __init__(self, answer: str) -> None:
        super().__init__(
            f"the ledger is full: {answer}; give its server more disk, or raise max_file_store "
            "or the stream's max_bytes"
        )


class LedgerDrifted(LedgerError):
    """The stream or consumer on the server is not set up as the ledger needs it."""

    def __init__(self, setting: str, found: object, wanted: object) -> None:
        super().__init__(
            f"setting {setting} is {found!r} on the server and must be {wanted!r}; "
            "put it back, or start with a new ledger"
        )
        self.setting = setting
        self.found = found
        self.wanted = wanted


class LedgerHole(LedgerError):
    """Events that were in the ledger are not there any more: every fold of it is in doubt."""

    def __init__(self, what: str, expected: int, found: int) -> None:
        super().__init__(
            f"the ledger lost events: {what}, expected revision {expected} and found {found}; "
            "stop the writers, compare with a snapshot or another reader, and restore the stream"
        )
        self.expected = expected
        self.found = found


class LedgerTrimmed(LedgerHole):
    """The ledger's beginning, which was not read yet, was dropped: begin with a snapshot."""


class ServerTooOld(LedgerError):
    """The nats-server cannot do atomic batches, or lacks security fixes."""

    needed = "2.14.0, or 2.12.7 of the 2.12 line"

    def __init__(self, found: str) -> None:
        super().__init__(
            f"nats-server {found} is too old: {self.needed}, is needed for atomic batches and "
            "security fixes; upgrade the server"
        )
        self.found = found


class NotPermitted(LedgerError):
    """The server refuses this user or this action; nothing was stored."""


class Subscription(Protocol):
    """A reader's place in the ledger. It resumes by itself after any disconnection."""

    @property
    def position(self) -> int:
        """The newest revision delivered; before the first, the one before `start`."""

    @property
    def lag(self) -> int:
        """How many records the server still held back when it sent the last one."""

    @property
    def stalled(self) -> bool:
        """Whether the ledger has had, for a while, what has not come."""

    @property
    def stored_ns(self) -> int:
        """When the server stored the record that it sent last, in ns since 1970; 0 before it."""

    async def caught_up(self) -> None:
        """Return once all that the ledger held when `follow` began has been delivered."""

    async def join(self) -> None:
        """Return when stopped.

        Raises what ended it: LedgerHole, NotPermitted, LedgerDrifted, or what `deliver` raised."""

    async def stop(self) -> None:
        """Stop delivering. Nothing is delivered after this returns."""


class Delivery(Protocol):
    """One record handed to one worker of a shared queue, until it answers or its time is up."""

    @property
    def record(self) -> Record:
        """The record that was handed out, as the ledger holds it."""

    @property
    def attempt(self) -> int:
        """1 on the first delivery, more after each `retry` or time-out."""

    async def ack(self) -> None:
        """Done; returns when the server has noted it. Raises LedgerUnavailable.

        A server that is killed may forget it and deliver again: doing a record twice must be safe.
        """

    async def retry(self, delay_s: float) -> None:
        """Hand it to some worker again after `delay_s`."""

    async def progress(self) -> None:
        """Still working: start the acknowledgement time anew."""


class WorkQueue(Protocol):
    """A named place in the ledger that several replicas share."""

    async def fetch(self, batch: int, timeout_s: float) -> list[Delivery]:
        """Up to `batch` deliveries; the empty list if none came within `timeout_s`."""

    async def leave(self) -> None:
        """Fetch no more; what has come for this worker and was not handed out goes to others."""

    async def waiting(self) -> int:
        """How many records of the queue are not acknowledged yet."""


Handler = Callable[[str, bytes], Awaitable[bytes | None]]
"""Takes subject and payload of a plain message; what it returns is the reply, None is none."""


class Request(Protocol):
    """A plain message that waits for an answer. `reply` is where, as its sender wrote it."""

    subject: str
    reply: str
    payload: bytes

    async def answer(self, payload: bytes) -> None:
        """Send the answer to whoever asked. Raises LedgerUnavailable."""


class Readable(Protocol):
    """What a reader needs of the stream, or of the part of it that he may read."""

    async def follow(
        self,
        deliver: Callable[[Record], None],
        *,
        start: int = 1,
        subjects: Sequence[str] = (ALL_SUBJECTS,),
    ) -> Subscription:
        """Deliver every record of `subjects` from revision `start` on, in order, then live."""


class Ledger(Readable, Protocol):
    """The stream, as its readers and writers see it."""

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append 1 to 1,000 drafts, all or none, and return the revision of each.

        Of several drafts on one subject only the first may carry `expect`; the same value on a
        later one is taken to mean the same fence. Raises InvalidDraft, PayloadTooLarge,
        FenceRefused, DuplicateRefused, OutcomeUnknown, LedgerUnavailable, LedgerFull,
        LedgerDrifted, NotPermitted."""

    async def holds(self, drafts: Sequence[Draft]) -> bool:
        """Whether they were stored together, as they are.

        One of them is looked for as the newest of its subject, or behind its fence."""

    async def last_revision(self) -> int:
        """The newest revision, 0 when the ledger is empty."""

    async def first_revision(self) -> int:
        """The oldest revision that is there, or the next one; 1 unless some were dropped."""

    async def last_on_subject(self, subject: str) -> int:
        """The newest revision on one subject, 0 when it has none, or none any more."""

    async def record_at(self, revision: int) -> Record | None:
        """The record at that revision, None where there is none, or none any more.

        Raises LedgerUnavailable."""

    async def work_queue(
        self, durable: str, subjects: Sequence[str], *, ack_wait_s: float, max_in_flight: int
    ) -> WorkQueue:
        """The shared queue `durable`, made on first use. Raises LedgerDrifted."""

    async def publish(self, subject: str, payload: bytes) -> None:
        """Send a plain message that nobody stores, such as a liveness beat."""

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """Send a plain message and return the reply. Raises LedgerUnavailable, NotPermitted."""

    async def serve(self, subject: str, handler: Handler) -> None:
        """Answer plain messages on `subject`, which may hold wildcards, until closed."""

    async def take_requests(
        self, subject: str, take: Callable[[Request], None], *, group: str
    ) -> Callable[[], Awaitable[None]]:
        """Take requests on `subject` as they arrive; of a group one takes each.

        Whoever takes answers each in its own time. What is returned ends it, as closing does.
        Raises LedgerUnavailable, NotPermitted."""

    async def close(self) -> None:
        """Leave; what was not acknowledged is of unknown outcome."""
