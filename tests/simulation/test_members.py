"""Schedulers with a wrong list of each other do no harm, because fences refuse conflicting
placements."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from apportion.runtime.ledger.membership import Membership
from apportion.runtime.ledger.port import Draft, DuplicateRefused, FenceRefused
from tests.simulation.weather import Weather
from tests.simulation.world import run
from tests.support.memory_server import MemoryServer

SEEDS = range(500, 520)
View = Callable[[Membership, list[str]], list[str]]
"""Returns the list of schedulers that a scheduler works with, given those that it has heard."""


def alone(_membership: Membership, _others: list[str]) -> list[str]:
    """Return an empty list of other schedulers, so that each scheduler decides every pod."""
    return []


class Mistaken:
    """Gives each scheduler a wrong list of the other schedulers, until the faults end."""

    def __init__(self, weather: Weather) -> None:
        self._weather = weather
        self._chances: dict[str, random.Random] = {}

    def __call__(self, membership: Membership, others: list[str]) -> list[str]:
        """Return about half of the other schedulers. Return all of them once the faults have
        ended."""
        if self._weather.calm:
            return others
        chance = self._chances.setdefault(membership.member, random.Random(membership.member))
        return [name for name in others if chance.random() < 0.5]


def deluded(patch: pytest.MonkeyPatch, view: View) -> None:
    """Make schedulers get their list of members from `view` instead of from heartbeats."""

    def tell(self: Membership) -> None:
        if not (self._here or self._joined.is_set()):
            return
        others = sorted(name for name, heard in self._heard.items() if heard.here)
        members = tuple(sorted([self.member, *view(self, others)]))
        if members != self.members:
            self.members = members
            self._on_change(members)
        self._joined.set()

    patch.setattr(Membership, "_tell", tell)


def refusals(patch: pytest.MonkeyPatch) -> Counter[str]:
    """From now on, count refused placements by the type of the ledger's error."""
    counted: Counter[str] = Counter()
    real = MemoryServer.append

    def append(
        self: MemoryServer,
        drafts: Sequence[Draft],
        fences: dict[str, int],
        *,
        role: str,
        writer: str,
    ) -> list[int]:
        try:
            return real(self, drafts, fences, role=role, writer=writer)
        except (FenceRefused, DuplicateRefused) as refused:
            if role == "scheduler" and any(".placement." in draft.subject for draft in drafts):
                counted[type(refused).__name__] += 1
            raise

    patch.setattr(MemoryServer, "append", append)
    return counted


def delays(weather: Weather) -> None:
    """Turn on late deliveries, so that decisions of several schedulers often conflict."""
    weather.rates["delayed delivery"] = 0.2


def heard(weather: Weather) -> None:
    """Turn on late deliveries, and turn off the fault that drops a scheduler's heartbeats."""
    delays(weather)
    weather.rates.pop("unheard member", None)


@pytest.mark.timeout(900)  # this lane runs at the lowest priority
def test_mistaken_lists_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedulers that have wrong lists of each other break no invariant.

    The ledger refuses their conflicting placements, and all pods that fit are placed."""
    counted = refusals(monkeypatch)

    def adjust(weather: Weather) -> None:
        delays(weather)
        deluded(monkeypatch, Mistaken(weather))

    for seed in SEEDS:
        outcome = run(seed, adjust=adjust)
        assert not outcome.trouble, outcome.told()
    assert counted["FenceRefused"] > 0


@pytest.mark.timeout(900)  # this lane runs at the lowest priority
def test_right_lists_spare_most_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """If schedulers divide the pods, the ledger refuses far fewer duplicate placements.

    If each scheduler decides every pod instead, the refusals prevent any harm."""
    counts = {}
    for name, adjust in (("shared", heard), ("alone", delays)):
        with monkeypatch.context() as patch:
            counts[name] = refusals(patch)
            if name == "alone":
                deluded(patch, alone)
            for seed in SEEDS:
                outcome = run(seed, adjust=adjust)
                assert not outcome.trouble, outcome.told()
    assert counts["alone"]["FenceRefused"] > 0
    shared, apart = (counts[name]["DuplicateRefused"] for name in ("shared", "alone"))
    assert shared < apart / 2, counts
