"""The shared queue: several replicas take records from one durable place in the ledger.

Invariant: a record leaves the queue only by an explicit `ack`; a worker that dies, or is silent
for longer than the acknowledgement time, has its records handed to another.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from apportion.runtime.ledger import Delivery, LedgerDrifted, LedgerUnavailable, Record
from apportion.runtime.wire import (
    STREAM,
    ApiRefused,
    LostReply,
    Message,
    Wire,
    call_api,
)

ACK_TIMEOUT_S = 5.0
_NS = 1_000_000_000
_GRACE_S = 1.0
"""How much longer than the server we wait for the end of a fetch."""
_EXISTS_DIFFERENTLY = frozenset({10013, 10148})


class _ConsumerInfo(msgspec.Struct, frozen=True):
    config: dict[str, Any]
    num_pending: int = 0
    num_ack_pending: int = 0


_decode_info = msgspec.json.Decoder(_ConsumerInfo).decode


class QueueDelivery:
    """See ledger.Delivery."""

    def __init__(self, wire: Wire, message: Message) -> None:
        tokens = message.reply.split(".")
        first = 4 if len(tokens) == 9 else 6  # noqa: PLR2004 - tokens of the short form
        self.attempt = int(tokens[first])
        self.record = Record(int(tokens[first + 1]), message.subject, message.data)
        self._wire = wire
        self._reply = message.reply

    async def ack(self) -> None:
        """See ledger.Delivery."""
        try:
            await self._wire.request(self._reply, b"+ACK", timeout_s=ACK_TIMEOUT_S, headers={})
        except LostReply as lost:
            raise LedgerUnavailable(
                f"the acknowledgement of revision {self.record.revision} was not noted ({lost}); "
                "it will be delivered again"
            ) from lost

    async def retry(self, delay_s: float) -> None:
        """See ledger.Delivery."""
        answer = msgspec.json.encode({"delay": int(delay_s * _NS)})
        await self._wire.publish(self._reply, b"-NAK " + answer, headers={})

    async def progress(self) -> None:
        """See ledger.Delivery."""
        await self._wire.publish(self._reply, b"+WPI", headers={})


class Queue:
    """See ledger.WorkQueue. What comes too late for one fetch is kept for the next."""

    def __init__(self, wire: Wire, durable: str) -> None:
        self._wire = wire
        self._durable = durable
        self._inbox = wire.new_inbox()
        self._ready: collections.deque[QueueDelivery] = collections.deque()
        self._wanted = 0
        self._turn = asyncio.Lock()
        self._answered = asyncio.Event()

    async def begin(self) -> None:
        """Listen for deliveries. Raises NotPermitted."""
        await self._wire.subscribe(self._inbox, self._receive)

    async def fetch(self, batch: int, timeout_s: float) -> list[Delivery]:
        """See ledger.WorkQueue. Raises LedgerUnavailable, NotPermitted."""
        async with self._turn:
            if len(self._ready) < batch:
                # What is there now, and only if that is nothing, the next one to come.
                await self._pull(batch, 0.0)
            if not self._ready:
                await self._pull(1, timeout_s)
            return [self._ready.popleft() for _ in range(min(batch, len(self._ready)))]

    async def _pull(self, batch: int, timeout_s: float) -> None:
        await self._wire.wait_connected(timeout_s + _GRACE_S)
        self._wanted = batch
        self._answered.clear()
        pull: dict[str, object] = {"batch": batch}
        if timeout_s > 0:
            pull["expires"] = int(timeout_s * _NS)
        else:
            pull["no_wait"] = True
        await self._wire.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{self._durable}",
            msgspec.json.encode(pull),
            reply=self._inbox,
            headers={},
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s + _GRACE_S):
                await self._answered.wait()

    async def _receive(self, message: Message) -> None:
        if message.reply.startswith("$JS.ACK."):
            self._ready.append(QueueDelivery(self._wire, message))
            self._wanted -= 1
            if self._wanted <= 0:
                self._answered.set()
        else:
            self._answered.set()  # a status: nothing (more) there, or the time is up

    async def waiting(self) -> int:
        """See ledger.WorkQueue. Raises LedgerUnavailable."""
        info = await _read_info(self._wire, self._durable)
        return info.num_pending + info.num_ack_pending


async def open_queue(
    wire: Wire,
    durable: str,
    subjects: Sequence[str],
    *,
    ack_wait_s: float,
    max_in_flight: int,
) -> Queue:
    """See Ledger.work_queue. Raises LedgerDrifted, LedgerUnavailable, NotPermitted."""
    wanted: dict[str, object] = {
        "durable_name": durable,
        "name": durable,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": int(ack_wait_s * _NS),
        "max_ack_pending": max_in_flight,
        "max_deliver": -1,
    }
    api = f"CONSUMER.CREATE.{STREAM}.{durable}"
    if len(subjects) == 1:
        wanted["filter_subject"] = subjects[0]
        api = f"{api}.{subjects[0]}"
    else:
        wanted["filter_subjects"] = list(subjects)
    body = {"stream_name": STREAM, "config": wanted, "action": "create"}
    try:
        await call_api(wire, api, body)
    except ApiRefused as refused:
        if refused.error.err_code not in _EXISTS_DIFFERENTLY:
            raise LedgerUnavailable(str(refused)) from refused
        found = (await _read_info(wire, durable)).config
        for setting, value in wanted.items():
            if found.get(setting) != value:
                raise LedgerDrifted(
                    f"consumer {durable} {setting}", found.get(setting), value
                ) from refused
        raise LedgerUnavailable(str(refused)) from refused
    queue = Queue(wire, durable)
    await queue.begin()
    return queue


async def _read_info(wire: Wire, durable: str) -> _ConsumerInfo:
    try:
        return _decode_info(await call_api(wire, f"CONSUMER.INFO.{STREAM}.{durable}"))
    except ApiRefused as refused:
        raise LedgerUnavailable(str(refused)) from refused
