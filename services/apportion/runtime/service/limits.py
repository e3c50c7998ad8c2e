"""How much one HTTP surface takes, of all its clients together and of each.

Invariant: what one client asks for leaves room for the others, whatever it asks; who is refused is
told why and when to come again, and nobody is queued but for long work, by turns."""

import asyncio
import ipaddress
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from msgspec import Struct

KNOWN_CLIENTS_MAX = 4_096
"""Clients whose pace is remembered; who was forgotten begins with a full burst."""
NETWORK_BITS = 64
"""Of an address of IPv6; the rest each may choose as he likes."""
WAITING_MAX = 32
WAITING_EACH = 4
"""Requests that wait for a turn, of all clients and of each."""
WAIT_S = 60.0


class Limits(Struct, frozen=True):
    """What a surface takes. 0 for `each_per_s` is any number.

    A client is an address (see `client_of`), or a person where there is a login. `heavy_bytes`: a
    body from there on counts among those of which `heavy_at_once` are read at a time."""

    body_bytes: int = 1 << 20
    heavy_bytes: int = 256 << 10
    heavy_at_once: int = 4
    connections: int = 2_048
    connections_each: int = 512
    each_per_s: float = 200.0
    each_burst: float = 400.0
    each_at_once: int = 64
    head_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 75.0


def client_of(address: str) -> str:
    """Who is at this address: of IPv6 the network, for whoever has one has all of it."""
    if ":" not in address:
        return address
    ip = ipaddress.IPv6Address(address)
    if ip.is_loopback:
        return address
    return str(ip.ipv4_mapped or ipaddress.IPv6Network((int(ip), NETWORK_BITS), strict=False))


class TooMany(Exception):
    """As many as may be are under way; `of_client` says whether one client has them all."""

    def __init__(self, count: int, *, of_client: bool) -> None:
        super().__init__(f"{count} under way already")
        self.count = count
        self.of_client = of_client


class AtOnce:
    """So many things at a time, and so many of them for one client."""

    def __init__(self, most: int, *, each: int) -> None:
        self._most = most
        self._each = each
        self._of: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many are under way."""
        return self._of.total()

    @contextmanager
    def one(self, client: str) -> Iterator[None]:
        """One more, for the length of the block. Raises TooMany."""
        self.enter(client)
        try:
            yield
        finally:
            self.leave(client)

    def enter(self, client: str) -> None:
        """Take a place, until `leave`. Raises TooMany."""
        if self._of[client] >= self._each:
            raise TooMany(self._of[client], of_client=True)
        if self.count >= self._most:
            raise TooMany(self.count, of_client=False)
        self._of[client] += 1

    def leave(self, client: str) -> None:
        """Give back the place that `enter` took."""
        self._of[client] -= 1
        if self._of[client] <= 0:
            del self._of[client]


class Turns:
    """Long work: so much at a time, one of each client, and whoever waits comes by turns.

    Who had a turn is behind all others who wait. So one client takes no more than one place,
    however much it asks for, and a few do not keep the places for themselves."""

    def __init__(
        self, most: int, *, each: int = 1, waiting: int = WAITING_MAX,
        waiting_each: int = WAITING_EACH, wait_s: float = WAIT_S,
    ) -> None:  # fmt: skip
        self._running = AtOnce(most, each=each)
        self._waiting = AtOnce(waiting, each=waiting_each)
        self.wait_s = wait_s
        self._queue: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def enter(self, client: str) -> None:
        """Take a place, until `leave`; wait for it if need be.

        Raises TooMany: as many wait already as may. Raises TimeoutError: no turn came in time."""
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
                    if turn.done():  # it came in the very moment
                        self.leave(client)
                    else:
                        self._queue[client].remove(turn)
                        self._forget_unless_waiting(client)
                    raise

    def leave(self, client: str) -> None:
        """Give back the place that `enter` took, to whoever is next."""
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


class Pace:
    """Requests per second of each client: a bucket that fills again, as large as a burst."""

    def __init__(
        self, per_s: float, burst: float, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s = per_s
        self._burst = burst
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str) -> bool:
        """Whether the client may ask once more now."""
        if not self._per_s:
            return True
        now = self._now()
        left, since = self._buckets.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_s)
        allowed = left >= 1
        self._buckets[client] = (left - 1 if allowed else left, now)
        if len(self._buckets) > KNOWN_CLIENTS_MAX:
            self._buckets.popitem(last=False)
        return allowed
