"""The shared queue, from which replicas fetch records through one durable consumer.

Invariant: a record leaves the queue only by an explicit `ack`. If a worker dies or is silent past
the timeout, another worker gets its records. Delivery is at least once: nats-server 2.15.1 writes
acknowledgements late, so after a kill it repeats the most recent records."""

import asyncio
import collections
import contextlib
from collections.abc import Mapping, Sequence

import msgspec

from apportion.runtime.jetstream import consumers
from apportion.runtime.jetstream.wire import STREAM, ApiRefused, LostReply, Message, Wire, call_api
from apportion.runtime.ledger.port import Delivery, LedgerDrifted, LedgerUnavailable, Record

ACK_TIMEOUT_S = 5.0
_NS = 1_000_000_000
_GRACE_S = 1.0  # how much longer than the server we wait for the end of a fetch
_AT_ONCE_S = 0.1
_QUIET_S = 0.02  # after the first record of a fetch, this much silence means there are no more


class QueueDelivery:
    """A delivered record to acknowledge; implements `port.Delivery`."""

    def __init__(self, wire: Wire, message: Message) -> None:
        tokens = message.reply.split(".")
        first = 4 if len(tokens) == 9 else 6  # noqa: PLR2004 - tokens of the short form
        self.attempt = int(tokens[first])
        self.record = Record(int(tokens[first + 1]), message.subject, message.data)
        self._wire = wire
        self._reply = message.reply

    async def ack(self) -> None:
        """Acknowledge the record; it may still be redelivered. Raises LedgerUnavailable."""
        try:
            await self._wire.request(self._reply, b"+ACK", timeout_s=ACK_TIMEOUT_S, headers={})
        except LostReply as lost:
            raise LedgerUnavailable(
                f"the acknowledgement of revision {self.record.revision} was lost ({lost}); the "
                "record will be delivered again"
            ) from lost

    async def retry(self, delay_s: float) -> None:
        """Return the record to the queue, for delivery to any worker after `delay_s`."""
        answer = msgspec.json.encode({"delay": int(delay_s * _NS)})
        await self._wire.publish(self._reply, b"-NAK " + answer, headers={})

    async def progress(self) -> None:
        """Restart the acknowledgement timeout, because work continues."""
        await self._wire.publish(self._reply, b"+WPI", headers={})


class Queue:
    """A `port.WorkQueue` whose messages a JetStream consumer delivers."""

    def __init__(self, wire: Wire, settings: Mapping[str, object]) -> None:
        self._wire = wire
        self._settings = settings
        self._durable = str(settings["durable_name"])
        self._inbox = wire.new_inbox()
        self._ready: collections.deque[QueueDelivery] = collections.deque()
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        self._ended = False
        self._left = False

    async def begin(self) -> None:
        """Subscribe to the queue's deliveries. Raises NotPermitted."""
        await self._wire.subscribe(self._inbox, self._receive)

    async def fetch(self, batch: int, timeout_s: float) -> list[Delivery]:
        """Return up to `batch` deliveries. Raises LedgerUnavailable, NotPermitted."""
        async with self._turn:
            if len(self._ready) < batch:
                # Take what is there now; only if there is nothing, wait for the next record.
                await self._pull(batch, min(timeout_s, _AT_ONCE_S), no_wait=True)
            if not self._ready and timeout_s > _AT_ONCE_S:
                await self._pull(1, timeout_s - _AT_ONCE_S)
            return [self._ready.popleft() for _ in range(min(batch, len(self._ready)))]

    async def _pull(self, batch: int, expires_s: float, *, no_wait: bool = False) -> None:
        """Request `batch` records. Return once all have arrived, or as many as are available."""
        await self._wire.wait_connected(expires_s + _GRACE_S)
        self._ended = False
        pull = {"batch": batch, "expires": int(expires_s * _NS), "no_wait": no_wait}
        await self._wire.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{self._durable}",
            msgspec.json.encode(pull),
            reply=self._inbox,
            headers={},
        )
        wanted = len(self._ready) + batch
        patience_s = expires_s + _GRACE_S
        # The server does not report the end if too many records are in flight.
        while not self._ended and len(self._ready) < wanted:
            self._news.clear()
            try:
                async with asyncio.timeout(patience_s):
                    await self._news.wait()
            except TimeoutError:
                return
            patience_s = _QUIET_S

    async def leave(self) -> None:
        """Stop fetching. Records that were not delivered go to other workers."""
        self._left = True
        while self._ready:
            with contextlib.suppress(LedgerUnavailable):  # then it is redelivered after its timeout
                await self._ready.popleft().retry(0)

    async def _receive(self, message: Message) -> None:
        if message.reply.startswith("$JS.ACK."):
            self._ready.append(QueueDelivery(self._wire, message))
            if self._left:  # it was already on its way
                await self.leave()
        else:
            self._ended = True  # a status: no more records, or the timeout
        self._news.set()

    async def waiting(self) -> int:
        """Return the number of unacknowledged records. Raises LedgerUnavailable."""
        info = await consumers.read_info(self._wire, self._durable)
        return info.num_pending + info.num_ack_pending

    async def drift(self) -> list[LedgerDrifted]:
        """Return the changed settings of the queue's consumer. Raises LedgerUnavailable."""
        return await consumers.look(self._wire, self._settings)


async def open_queue(
    wire: Wire, durable: str, subjects: Sequence[str], *, ack_wait_s: float, max_in_flight: int
) -> Queue:
    """Return the shared queue `durable`. Raises LedgerDrifted, LedgerUnavailable, NotPermitted."""
    wanted: dict[str, object] = {
        "durable_name": durable,
        "name": durable,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": int(ack_wait_s * _NS),
        "max_ack_pending": max_in_flight,
        "max_deliver": -1,
    }
    api, filtered = consumers.creation(durable, subjects)
    wanted |= filtered
    body = {"stream_name": STREAM, "config": wanted, "action": "create"}
    try:
        await call_api(wire, api, body)
    except ApiRefused as refused:
        if refused.error.err_code in consumers.EXISTS:
            for drifted in await consumers.look(wire, wanted):
                raise drifted from refused
        raise
    queue = Queue(wire, wanted)
    await queue.begin()
    return queue
