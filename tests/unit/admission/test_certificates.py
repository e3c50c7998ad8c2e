"""Certificates of the webhook: when they change, who trusts them, and what is served meanwhile."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from apportion.admission.certificates.issued import CertificateError, Issued, issue, read
from apportion.admission.certificates.keeper import (
    Keeper,
    StoreError,
    due,
    kept,
    served,
    settle_s,
)
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.service.serving_tls import Pem, Tls
from tests.support.polling import until

NAMES = ("localhost", "127.0.0.1")
LIFE_S = 6_000.0
NOW_S = 1_800_000_000.0


def made(age_s: float = 0.0) -> Issued:
    """A certificate of that age."""
    return issue(NAMES, now_s=NOW_S - age_s, life_s=LIFE_S)


class Memory:
    """A `Store` in memory; `rival` is what another replica keeps at the next save."""

    def __init__(self, *chain: Issued) -> None:
        self.chain: tuple[Issued, ...] = chain
        self.version = 1
        self.trusted: list[bytes] = []
        self.rival: Issued | None = None
        self.broken = ""

    async def load(self) -> tuple[tuple[Issued, ...], str]:
        """See `Store`."""
        if self.broken:
            raise StoreError(self.broken)
        return self.chain, str(self.version)

    async def save(self, chain: Sequence[Issued], version: str) -> bool:
        """See `Store`."""
        if self.rival is not None:
            chain, self.rival = (self.rival,), None
            self.version += 1
            self.chain = tuple(chain)
            return False
        assert version == str(self.version)
        self.chain, self.version = tuple(chain), self.version + 1
        return True

    async def publish(self, trusted: bytes) -> None:
        """See `Store`."""
        self.trusted.append(trusted)


class At(SystemClock):
    """A clock that is told the time."""

    def __init__(self) -> None:
        self.now_s = NOW_S

    def now(self) -> datetime:
        """See Clock."""
        return datetime.fromtimestamp(self.now_s, UTC)


async def test_what_is_served_was_trusted_before_through_a_whole_life() -> None:
    """Look by look over four lives: the API server, which hears late, always knows it."""
    store, clock, tls = Memory(), At(), Tls()
    keeper = Keeper(store, tls, clock, NAMES, LIFE_S)
    seen: list[Pem] = []
    delay = 3  # looks that the API server is behind
    while clock.now_s < NOW_S + 4 * LIFE_S:
        await keeper.look()
        assert tls.used is not None
        (live,) = (each for each in store.chain if each.certificate == tls.used.certificate)
        assert live.ends_s > clock.now_s
        heard = store.trusted[max(len(store.trusted) - 1 - delay, 0)]
        assert tls.used.certificate in heard
        if tls.used not in seen:
            seen.append(tls.used)
        assert len(store.chain) <= 3
        clock.now_s += settle_s(LIFE_S) / 4
    assert len(seen) == 6  # one for each two thirds of a life


def test_a_young_certificate_waits_for_its_turn() -> None:
    """It is published and not served until it has settled; alone, it is served at once."""
    old, young = made(age_s=4_000), made(age_s=10)
    assert served((old, young), NOW_S, LIFE_S) == old
    assert served((old, young), NOW_S + settle_s(LIFE_S), LIFE_S) == young
    assert served((young,), NOW_S, LIFE_S) == young


def test_what_no_replica_serves_any_more_is_dropped() -> None:
    """The one before goes when the next has been served for as long again."""
    old, young = made(age_s=4_000), made(age_s=10)
    assert kept((young, old), NOW_S, LIFE_S) == (old, young)
    assert kept((old, young), NOW_S + 2 * settle_s(LIFE_S), LIFE_S) == (young,)
    assert kept((old,), NOW_S + LIFE_S, LIFE_S) == ()


def test_a_new_one_is_due_in_time() -> None:
    """With none, after two thirds of a life, and for other names at once."""
    names = frozenset(NAMES)
    assert due((), names, NOW_S)
    assert not due((made(age_s=3_990),), names, NOW_S)
    assert due((made(age_s=4_010),), names, NOW_S)
    assert due((made(),), names | {"admission.apportion.svc"}, NOW_S)


async def test_of_two_replicas_one_makes_it() -> None:
    """The slower one takes what the other kept, and overwrites nothing."""
    store, tls = Memory(), Tls()
    store.rival = theirs = made()
    await Keeper(store, tls, At(), NAMES, LIFE_S).look()
    assert store.chain == (theirs,)
    assert tls.used == Pem(theirs.certificate, theirs.key)


async def test_a_store_that_is_away_is_told_and_asked_again() -> None:
    """The reason is there for whoever asks, and goes when it goes."""
    store, tls = Memory(), Tls()
    store.broken = "no Secret"
    keeper = Keeper(store, tls, At(), NAMES, life_s=1.0)
    running = asyncio.create_task(keeper.run())

    async def told() -> bool:
        return keeper.problem == "no Secret"

    await until(told, "the reason to be told")
    store.broken = ""
    async with asyncio.timeout(10):
        await keeper.serving()
    assert keeper.problem == ""
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("certificate", "key", "words"),
    [
        (b"", b"", "cannot be read"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", b"", "cannot be read"),
        (made().certificate, b"x", "cannot be read"),
        (made().certificate, made().key, "has another key"),
    ],
)
def test_what_cannot_be_served_is_named(certificate: bytes, key: bytes, words: str) -> None:
    """A broken file, and halves of two pairs."""
    with pytest.raises(CertificateError, match=words):
        read(certificate, key)
