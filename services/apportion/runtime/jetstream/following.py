"""Delivers every record in revision order, exactly once, across disconnections.

A push consumer's sequence and heartbeats reveal lost deliveries. After a lost delivery, silence or
reconnection, a new consumer starts after the last delivered record. Only the stream's leader
decides what the ledger contains, because a restarted server may lack the newest records. Invariant:
if the stream lacks a record, or the last delivered record has changed, the subscription raises
LedgerHole."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence

from apportion.core.ledger.rules import Enabled, Rules
from apportion.runtime.jetstream import consumers, stream
from apportion.runtime.jetstream.object_store import Bucket
from apportion.runtime.jetstream.snapshots import BEGINNING, CONFIGURATION, kept_configuration
from apportion.runtime.jetstream.wire import STREAM, Message, Wire
from apportion.runtime.ledger.port import (
    ALL_SUBJECTS,
    LedgerDrifted,
    LedgerError,
    LedgerHole,
    LedgerTrimmed,
    LedgerUnavailable,
    NotPermitted,
    Record,
    Subscription,
)
from apportion.runtime.process.clock import BackOff, SystemClock
from apportion.runtime.process.logs import get_logger
from apportion.runtime.process.waiting import first_of
from apportion_schemas import ConfigurationChanged
from apportion_schemas.formats import VERSION_MAX

HEARTBEAT_S = 1.0
SILENCE_S = 4.0  # without message or heartbeat for longer, the consumer is replaced
BACK_OFF = BackOff(0.05, 2.0)
CONNECT_WAIT_S = 60.0
_INACTIVE_S = 30.0
_NS = 1_000_000_000

_log = get_logger(__name__)


class Follower:
    """Delivers the stream to one reader and keeps its position; a `port.Subscription`."""

    def __init__(
        self, wire: Wire, deliver: Callable[[Record], None], *, start: int, subjects: Sequence[str]
    ) -> None:
        self._wire = wire
        self._deliver = deliver
        self._subjects = list(subjects)
        self._whole = self._subjects == [ALL_SUBJECTS]
        self.position = start - 1
        self._last: Record | None = None
        self._goal: int | None = None
        self.lag = 0
        self._stored = "0"
        self._consumer_sequence = 0
        self._created = ""
        self._generation = itertools.count(1)
        self._live = 0
        self._consumer: dict[str, object] = {}
        self._heard = False
        self.stalled = False
        self._again = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._failure: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def stored_ns(self) -> int:
        """Return when the server stored the last delivered record, in ns since 1970."""
        return int(self._stored)

    @property
    def running(self) -> bool:
        """Return True if this follower may still deliver records."""
        return self._task is not None and not self._task.done()

    async def caught_up(self) -> None:
        """Wait until all earlier records are delivered. Raises the error that stopped delivery."""
        await first_of(self._caught_up.wait(), self.join())
        if not self._caught_up.is_set():
            raise LedgerUnavailable("stopped reading before the end of the ledger was reached")

    async def join(self) -> None:
        """Wait until stopped. Raises a LedgerError, or the error of `deliver`."""
        if self._task is not None:
            await asyncio.wait({self._task})
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """Stop delivering. No record is delivered after this method returns."""
        self._live = 0
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def begin(self) -> None:
        """Check the stream once, then start to deliver. Raises the error that the check finds."""
        await self._look()
        self._task = asyncio.create_task(self._run(), name="follow")

    async def _run(self) -> None:
        forget = self._wire.on_reconnect(self._again.set)
        failures = 0
        try:
            while self._failure is None:
                try:
                    await self._one_consumer()
                    failures = 0
                except (LedgerHole, LedgerDrifted, NotPermitted):
                    raise
                except LedgerError:
                    # Keep the position while the ledger is unreachable.
                    failures += 1
                    await SystemClock().pause(BACK_OFF.after(failures))
        except Exception as failure:  # noqa: BLE001 - raised by `join`
            self._failure = failure
        finally:
            self._live = 0
            forget()

    async def _one_consumer(self) -> None:
        await self._wire.wait_connected(CONNECT_WAIT_S)
        self._again.clear()
        await self._look()
        generation = next(self._generation)
        self._live = generation
        self._consumer_sequence = 0
        inbox = self._wire.new_delivery()

        async def receive(message: Message) -> None:
            if self._live == generation:
                await self._receive(message)

        unsubscribe = await self._wire.subscribe(inbox, receive)
        try:
            settings: dict[str, object] = {
                "description": consumers.OURS,
                "deliver_subject": inbox,
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": self.position + 1,
                "ack_policy": "none",
                "max_deliver": 1,
                "flow_control": True,
                "idle_heartbeat": int(HEARTBEAT_S * _NS),
                "inactive_threshold": int(_INACTIVE_S * _NS),
                "mem_storage": True,
                "num_replicas": 1,
            }
            before = str(self._consumer.get("name", ""))
            self._consumer = await consumers.create(
                self._wire, settings, self._subjects, first=before
            )
            await self._watch()
        finally:
            if self._live == generation:
                self._live = 0
            await unsubscribe()

    async def _watch(self) -> None:
        newest = 0
        while True:
            self._heard = False
            try:
                async with asyncio.timeout(SILENCE_S):
                    await self._again.wait()
                return
            except TimeoutError:
                if not self._heard:
                    return
                if self.position < newest:
                    # A record that the stream had at the last check has still not arrived.
                    self.stalled = True
                    _log.warning(
                        "a consumer is alive but delivers nothing; replacing it",
                        consumer=self._consumer.get("name"),
                        revision=self.position,
                        ledger=newest,
                    )
                    return
            newest = 0
            if self._whole:
                with contextlib.suppress(LedgerUnavailable):
                    newest = (await stream.read_info(self._wire)).state.last_seq

    async def drift(self) -> list[LedgerDrifted]:
        """Return the changed settings of our consumer; if any, replace the consumer."""
        if not (self._consumer and self._live and self.running):
            return []
        drifted = await consumers.look(self._wire, self._consumer)
        if drifted:
            self._renew()
        return drifted

    async def _look(self) -> None:
        """Compare our position with the stream's leader. Raises LedgerHole."""
        last = self._last
        found = None if last is None else await stream.read_record(self._wire, last.revision)
        info = await stream.read_info(self._wire)
        self._check_stream(info)
        if last is not None and found != last and info.state.first_seq <= last.revision:
            what = "the last record read is missing or was replaced"
            raise LedgerHole(what, last.revision, found.revision if found else 0)
        if self._goal is None:
            self._goal = info.state.last_seq
            if not self._whole:
                newest = [await stream.newest_on(self._wire, each) for each in self._subjects]
                self._goal = max(newest)
        self._note_goal()

    def _note_goal(self) -> None:
        if self._goal is not None and self.position >= self._goal:
            self._caught_up.set()

    def _check_stream(self, info: stream.StreamInfo) -> None:
        if self._created and info.created != self._created:
            raise LedgerHole(f"stream {STREAM} was recreated at {info.created}", self.position, 0)
        self._created = info.created
        state = info.state
        if state.last_seq < self.position and info.config.get("mirror"):
            raise LedgerUnavailable("the replica restarted and is behind the last record read")
        if state.last_seq < self.position:
            raise LedgerHole("the newest revision moved back", self.position, state.last_seq)
        if state.last_seq > self.position and state.first_seq > self.position + 1:
            raise LedgerTrimmed(
                "the oldest events were dropped", self.position + 1, state.first_seq
            )

    async def _receive(self, message: Message) -> None:
        self._heard = True
        reply = message.reply
        if not reply.startswith("$JS.ACK."):
            headers = message.headers or {}
            reply = reply or headers.get("Nats-Consumer-Stalled", "")
            if reply:
                # Flow control: our reply confirms that all earlier messages are delivered.
                await self._wire.publish(reply, b"", headers={})
            last = headers.get("Nats-Last-Consumer")
            if last is not None and int(last) != self._consumer_sequence:
                self._renew()
            return
        # $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<attempt>.<revision>.<number>.<time>.
        # <pending>[.<random>]; the parts in brackets come together or not at all.
        tokens = reply.split(".")
        first = 5 if len(tokens) == 9 else 7  # noqa: PLR2004 - tokens of the short form
        revision, number, pending = int(tokens[first]), int(tokens[first + 1]), tokens[first + 3]
        if number != self._consumer_sequence + 1 or revision <= self.position:
            self._renew()
            return
        if self._whole and revision != self.position + 1:
            # The consumer's number is next but the revision skips: the record is gone, not late.
            self._fail(LedgerHole("a record is missing", self.position + 1, revision))
            return
        record = Record(revision, message.subject, message.data)
        self._stored = tokens[first + 2]
        try:
            self._deliver(record)
        except Exception as failure:  # noqa: BLE001 - the reader's own error ends its following
            self._fail(failure)
            return
        self._consumer_sequence = number
        self.position = revision
        self.stalled = False
        self._last = record
        self.lag = int(pending)
        self._note_goal()

    def _renew(self) -> None:
        self._live = 0
        self._again.set()

    def _fail(self, failure: Exception) -> None:
        self._failure = failure
        self._renew()


def configuration_rules() -> Rules:
    """Return reading rules that accept every version of the configuration."""
    return Rules(enabled={ConfigurationChanged.__name__: (Enabled(VERSION_MAX, at=0),)})


class ConfigurationFollower(Follower):
    """Delivers only records of the configuration, even one that was trimmed from the ledger."""

    def __init__(self, wire: Wire, deliver: Callable[[Record], None]) -> None:
        super().__init__(wire, self._count, start=1, subjects=[CONFIGURATION])
        self._tell = deliver
        self._beginning = Bucket(wire, BEGINNING)
        self._delivered = 0

    @property
    def in_touch(self) -> bool:
        """Return True if the follower would receive a new configuration now."""
        return self._live != 0

    def _count(self, record: Record) -> None:
        self._tell(record)
        self._delivered += 1

    async def _look(self) -> None:
        info = await stream.read_info(self._wire, subject=CONFIGURATION)
        if not self._caught_up.is_set():
            self._goal = info.state.subjects.get(CONFIGURATION, 0)
        try:
            self._check_stream(info)
        except LedgerTrimmed:
            record = await kept_configuration(self._beginning)
            if record is not None and record.revision > self.position:
                try:
                    self._tell(record)
                except Exception as failure:  # noqa: BLE001 - the reader's own error ends its following
                    self._fail(failure)
        self._note_goal()

    def _note_goal(self) -> None:
        if self._goal is not None and self._delivered >= self._goal:
            self._caught_up.set()


class ConfigurationLedger:
    """The ledger for a user who may read only the configuration; implements `port.Readable`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._follower: ConfigurationFollower | None = None

    @property
    def in_touch(self) -> bool:
        """Return True if the follower would receive a new configuration now."""
        return self._follower is not None and self._follower.in_touch

    async def follow(
        self,
        deliver: Callable[[Record], None],
        *,
        start: int = 1,  # noqa: ARG002 - the kept configuration may be older
        subjects: Sequence[str] = (ALL_SUBJECTS,),  # noqa: ARG002 - always the configuration
    ) -> Subscription:
        """Deliver configuration records. Raises LedgerUnavailable, LedgerHole, NotPermitted."""
        self._follower = ConfigurationFollower(self._wire, deliver)
        await self._follower.begin()
        return self._follower
