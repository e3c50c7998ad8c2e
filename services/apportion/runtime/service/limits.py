"""Limits of an HTTP server, in total and for each client.

Invariant: no client's requests use up the capacity for other clients. A refused client gets the
reason and when to retry. Only long requests are queued, fairly between clients."""

import asyncio
import ipaddress
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from msgspec import Struct

from apportion.core.bounded import remember

# clients with a remembered pace; a forgotten one starts with a full burst
KNOWN_CLIENTS_MAX = 4_096
NETWORK_BITS = 64  # of an IPv6 address; the client chooses the rest freely
WAITING_MAX = 32  # requests that wait for a turn, of all clients
WAITING_EACH = 4
WAIT_S = 60.0


class Limits(Struct, frozen=True):
    """The limits of a server, in total and per client."""

    body_bytes: int = 1 << 20
    heavy_bytes: int = 256 << 10
    heavy_at_once: int = 4  # bodies of `heavy_bytes` or more that are read at a time
    connections: int = 2_048
    connections_each: int = 512
    each_per_s: float = 200.0  # 0 for no limit
    each_burst: float = 400.0
    each_at_once: int = 64
    head_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 75.0


def client_of(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or the network of an IPv6 address."""
    if ":" not in address:
        return address
    ip = ipaddress.IPv6Address(address)
    if ip.is_loopback:
        return address
    return str(ip.ipv4_mapped or ipaddress.IPv6Network((int(ip), NETWORK_BITS), strict=False))


class TooMany(Exception):
    """Error: a limit is reached. `of_client` is True for the limit of one client."""

    def __init__(self, count: int, *, of_client: bool) -> None:
        super().__init__(f"{count} already in progress")
        self.count = count
        self.of_client = of_client


class AtOnce:
    """A limit on concurrent requests or connections, in total and for each client."""

    def __init__(self, most: int, *, each: int) -> None:
        self._most = most
        self._each = each
        self._of: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Return the number of requests or connections in progress."""
        return self._of.total()

    @contextmanager
    def one(self, client: str) -> Iterator[None]:
        """Count one more request or connection during a `with` block. Raises TooMany."""
        self.enter(client)
        try:
            yield
        finally:
            self.leave(client)

    def enter(self, client: str) -> None:
        """Count one more request or connection until `leave`. Raises TooMany."""
        if self._of[client] >= self._each:
            raise TooMany(self._of[client], of_client=True)
        if self.count >= self._most:
            raise TooMany(self.count, of_client=False)
        self._of[client] += 1

    def leave(self, client: str) -> None:
        """Stop counting a request or connection that `enter` counted."""
        self._of[client] -= 1
        if self._of[client] <= 0:
            del self._of[client]


class Turns:
    """Limits long work: one job at a time per client. Clients with queued jobs take turns."""

    def __init__(
        self, most: int, *, each: int = 1, waiting: int = WAITING_MAX,
        waiting_each: int = WAITING_EACH, wait_s: float = WAIT_S,
    ) -> None:  # fmt: skip
        self._running = AtOnce(most, each=each)
        self._waiting = AtOnce(waiting, each=waiting_each)
        self.wait_s = wait_s
        self._queue: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def enter(self, client: str) -> None:
        """Wait for a slot and use it until `leave`. Raises TooMany, or TimeoutError."""
        try:
            self._running.enter(client)
        except TooMany:
            with self._waiting.one(client):
                turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._queue.setdefault(client, deque()).append(turn)
                try:
                    async with asyncio.timeout(self.wait_s):
                        await asyncio.shield(turn)
                except BaseException:
                    if turn.done():  # it came at the same time
                        self.leave(client)
                    else:
                        self._queue[client].remove(turn)
                        self._forget_unless_waiting(client)
                    raise

    def leave(self, client: str) -> None:
        """Free the slot that `enter` took, for the next client."""
        self._running.leave(client)
        if client in self._queue:
            self._queue.move_to_end(client)
        for waits in list(self._queue):
            with suppress(TooMany):
                self._running.enter(waits)
                self._queue[waits].popleft().set_result(None)
                self._forget_unless_waiting(waits)

    def _forget_unless_waiting(self, client: str) -> None:
        if not self._queue[client]:
            del self._queue[client]


class Bucket:
    """Holds at most `burst` tokens, and gains `rate` tokens per second."""

    __slots__ = ("_at_s", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at_s = now_s

    def take(self, tokens: float, now_s: float) -> float:
        """Take tokens, at most `burst`. Return how many seconds the caller must wait first."""
        self._left = self._filled(now_s) - min(tokens, self._burst)
        self._at_s = now_s
        return max(0.0, -self._left / self._rate)

    def may_take(self, tokens: float, now_s: float) -> bool:
        """Take the tokens and return True if all are available; otherwise take none."""
        if self._filled(now_s) < tokens:
            return False
        self.take(tokens, now_s)
        return True

    def full(self, now_s: float) -> bool:
        """Return True if the bucket is full, so that its state need not be kept."""
        return self._filled(now_s) >= self._burst

    def _filled(self, now_s: float) -> float:
        return min(self._burst, self._left + self._rate * max(0.0, now_s - self._at_s))


class Pace:
    """Limits each client's requests per second, with a token bucket that allows bursts."""

    def __init__(
        self, per_s: float, burst: float, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s = per_s
        self._burst = burst
        self._now = now
        self._buckets: dict[str, Bucket] = {}

    def allows(self, client: str) -> bool:
        """Return True if the client may send a request now."""
        if not self._per_s:
            return True
        now = self._now()
        bucket = self._buckets.get(client) or Bucket(self._per_s, self._burst, now)
        remember(self._buckets, client, bucket, most=KNOWN_CLIENTS_MAX)
        return bucket.may_take(1, now)
