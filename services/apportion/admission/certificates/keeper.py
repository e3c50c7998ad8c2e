"""Which certificate the webhook serves, and when the next one is made.

    made ── settle ──► served ─────────── two thirds of its life ──► the next is made …

A certificate is published first and served only once everybody who must trust it has had time to
learn of it; the one before stays trusted until then. Replicas share one store, so they publish the
same and change over within one look at it. Invariant: what is served is in what is published, at
every moment of a rotation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from apportion.admission.certificates.issued import Issued, issue
from apportion.runtime.process.clock import Clock
from apportion.runtime.service.serving_tls import Pem, Tls

LIFE_S = 90 * 86_400.0
SETTLE_MAX_S = 600.0
LOOK_MAX_S = 30.0
LOOK_MIN_S = 0.2

_log = logging.getLogger(__name__)


class StoreError(Exception):
    """The store cannot be used now; the message says why and what to do."""


class Store(Protocol):
    """Where replicas keep their certificates, and where they publish what to trust."""

    async def load(self) -> tuple[tuple[Issued, ...], str]:
        """What is kept, and its version. Raises StoreError."""

    async def save(self, chain: Sequence[Issued], version: str) -> bool:
        """Keep this; False where somebody else was first since that version. Raises StoreError."""

    async def publish(self, trusted: bytes) -> None:
        """Have the API server trust these certificates (PEM). Raises StoreError."""


def settle_s(life_s: float) -> float:
    """How long a new certificate is published before it is served."""
    return min(SETTLE_MAX_S, life_s / 6)


def kept(chain: Sequence[Issued], now_s: float, life_s: float) -> tuple[Issued, ...]:
    """What still matters, oldest first: the served one, and those made after it."""
    live = sorted((each for each in chain if each.ends_s > now_s), key=lambda each: each.made_s)
    # One more settling time, for a replica that has not looked since.
    settled = [each for each in live if each.made_s + 2 * settle_s(life_s) <= now_s]
    return tuple(live[len(settled) - 1 :] if settled else live)


def due(chain: Sequence[Issued], names: frozenset[str], now_s: float) -> bool:
    """Whether another certificate must be made."""
    if not chain:
        return True
    newest = max(chain, key=lambda each: each.made_s)
    return newest.names != names or now_s > newest.made_s + (newest.ends_s - newest.made_s) * 2 / 3


def served(chain: Sequence[Issued], now_s: float, life_s: float) -> Issued:
    """The newest that has settled; before any has, the oldest."""
    settled = [each for each in chain if each.made_s + settle_s(life_s) <= now_s]
    if settled:
        return max(settled, key=lambda each: each.made_s)
    return min(chain, key=lambda each: each.made_s)


class Keeper:
    """Makes, publishes and serves certificates for one webhook; `problem` says what is wrong."""

    def __init__(
        self, store: Store, tls: Tls, clock: Clock, names: Sequence[str], life_s: float = LIFE_S
    ) -> None:
        self._store = store
        self._tls = tls
        self._clock = clock
        self._names = tuple(names)
        self._life_s = life_s
        self._first = asyncio.Event()
        self.problem = "no certificate has been made yet"

    async def run(self) -> None:
        """Look after the certificates until cancelled."""
        look_s = max(LOOK_MIN_S, min(LOOK_MAX_S, settle_s(self._life_s) / 4))
        while True:
            try:
                await self.look()
            except StoreError as error:
                if str(error) != self.problem:
                    _log.warning("certificates: %s", error)
                self.problem = str(error)
            else:
                self.problem = ""
                self._first.set()
            await self._clock.pause(look_s)

    async def serving(self) -> None:
        """Return once there is something to serve."""
        await self._first.wait()

    async def look(self) -> None:
        """One look at the store: make what is due, publish it, serve what has settled.

        Raises:
            StoreError: see `Store`.
        """
        now_s = self._clock.now().timestamp()
        stored, version = await self._store.load()
        chain = kept(stored, now_s, self._life_s)
        if due(chain, frozenset(self._names), now_s):
            chain = (*chain, issue(self._names, now_s=now_s, life_s=self._life_s))
            _log.info("a certificate for %s is made", ", ".join(self._names))
        if chain != stored and not await self._store.save(chain, version):
            return await self.look()  # another replica was first: theirs counts
        await self._store.publish(b"".join(each.certificate for each in chain))
        due_now = served(chain, now_s, self._life_s)
        self._tls.use(Pem(due_now.certificate, due_now.key))
        return None
