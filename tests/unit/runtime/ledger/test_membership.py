"""Tests of how replicas of a service learn which replicas join, leave, die or are silent, in
virtual time."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from apportion.core.ledger.fold import Change
from apportion.runtime.ledger.membership import BEAT_S, MEMBERS_MAX, SILENT_ROUNDS, Beat, Membership
from apportion.runtime.ledger.port import Draft
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.metrics import Metrics
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer

GONE_S = BEAT_S * (SILENT_ROUNDS + 1)
"""The time after which all members have given up a silent one."""


class SleepyClock(SkewedClock):
    """A clock whose pauses do not end while `asleep` is set, as in a suspended process."""

    asleep = False

    async def pause(self, longest_s: float) -> None:
        """Pause, and do not return while the clock is asleep."""
        await super().pause(longest_s)
        while self.asleep:
            await rest(longest_s / 10)


class Member:
    """A replica of the scheduler with its ledger connection, its fold and its list of live
    replicas."""

    def __init__(self, server: MemoryServer, name: str) -> None:
        self.seen: list[tuple[str, ...]] = []
        self._ledger = MemoryLedger(server, role="scheduler", writer=name)
        self.clock = SleepyClock(random.Random(name), skew_s=0.0)
        metrics = Metrics()
        self.reader: Reader[Change] = Reader(self._ledger, StateFold(), metrics=metrics)
        self.membership = Membership(
            self._ledger,
            "scheduler",
            name,
            clock=self.clock,
            metrics=metrics,
            on_change=self.seen.append,
        )
        self._tasks: list[asyncio.Task[None]] = []

    def sees(self, *names: str) -> None:
        """Assert that the replica's list has exactly these names, in this order."""
        assert self.membership.members == names

    async def join(self) -> None:
        """Start the replica, and wait until it has joined."""
        self.start()
        await self.membership.joined()

    def start(self) -> None:
        """Begin to read the ledger and to send heartbeats."""
        self._tasks = [
            asyncio.create_task(self.reader.run()),
            asyncio.create_task(self.membership.run(self.reader)),
        ]

    async def leave(self) -> None:
        """Stop the replica as SIGTERM would. The replica announces that it is leaving."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def die(self) -> None:
        """Stop the replica as SIGKILL would: it sends nothing more."""
        self._ledger.vanish()
        for task in self._tasks:
            task.cancel()


def played(play: Callable[[MemoryServer], Awaitable[None]]) -> None:
    """Run the test in virtual time with a new ledger server."""

    async def main() -> None:
        await play(MemoryServer())

    run_virtually(main())


def test_alone_a_member_is_a_member_within_a_second() -> None:
    """If no other replica is running, a replica joins within a second."""

    async def play(server: MemoryServer) -> None:
        one = Member(server, "one")
        await one.join()
        assert one.seen == [("one",)]
        assert asyncio.get_running_loop().time() < 1.0

    played(play)


def test_who_joins_knows_the_others_before_it_counts_itself() -> None:
    """A replica finds all other replicas before it adds itself to its list."""

    async def play(server: MemoryServer) -> None:
        one, two, three = (Member(server, name) for name in ("one", "two", "three"))
        for each in (one, two, three):
            await each.join()
        assert three.seen[0] == ("one", "three", "two")
        await rest(BEAT_S)
        for each in (one, two, three):
            each.sees("one", "three", "two")
        assert one.seen == [("one",), ("one", "two"), ("one", "three", "two")]

    played(play)


def test_who_leaves_is_gone_at_once() -> None:
    """If a replica leaves, the others remove it from their lists at once."""

    async def play(server: MemoryServer) -> None:
        one, two = Member(server, "one"), Member(server, "two")
        await one.join()
        await two.join()
        await rest(BEAT_S)
        await two.leave()
        await rest(0.0)
        one.sees("one")

    played(play)


@pytest.mark.parametrize("killed_after_s", [0.0, 0.1, 0.25, 0.4, 0.55])
def test_who_is_killed_is_given_up_in_time_and_not_before(killed_after_s: float) -> None:
    """If a replica is killed, the others remove it after a few rounds without a heartbeat, and not
    before."""

    async def play(server: MemoryServer) -> None:
        one, two = Member(server, "one"), Member(server, "two")
        await one.join()
        await two.join()
        await rest(10 * BEAT_S + killed_after_s)
        two.die()
        await rest(BEAT_S * (SILENT_ROUNDS - 2) / 2)
        one.sees("one", "two")
        await rest(GONE_S)
        one.sees("one")
        assert GONE_S <= 3.0

    played(play)


def test_who_has_not_folded_the_ledger_is_no_member_yet() -> None:
    """A replica does not join before it has folded the ledger."""

    async def play(server: MemoryServer) -> None:
        one, two = Member(server, "one"), Member(server, "two")
        await one.join()
        late = asyncio.create_task(two.membership.run(two.reader))  # nothing reads yet
        await rest(20 * BEAT_S)
        one.sees("one")
        two.sees()
        two.start()
        await two.membership.joined()
        await rest(BEAT_S)
        one.sees("one", "two")
        two.sees("one", "two")
        late.cancel()

    played(play)


def test_a_member_whose_fold_has_halted_leaves() -> None:
    """A replica leaves if its fold halts, and joins again when the fold continues."""

    async def play(server: MemoryServer) -> None:
        one, two = Member(server, "one"), Member(server, "two")
        await one.join()
        await two.join()
        two.reader.halted = "an event of a newer build"
        await rest(2 * BEAT_S)
        one.sees("one")
        two.reader.halted = ""
        await rest(2 * BEAT_S)
        one.sees("one", "two")

    played(play)


def test_one_that_slept_does_not_take_itself_for_the_only_one() -> None:
    """When a suspended replica resumes, it keeps the other replicas in its list, although it missed
    their heartbeats."""

    async def play(server: MemoryServer) -> None:
        one, two = Member(server, "one"), Member(server, "two")
        await one.join()
        await two.join()
        await rest(BEAT_S)
        two.clock.asleep = True
        await rest(100.0)
        one.sees("one")
        two.clock.asleep = False
        await rest(4 * BEAT_S)
        one.sees("one", "two")
        assert two.seen == [("one", "two")]

    played(play)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"here",
        b'{"member":"x"}',
        b'{"member":"","here":true}',
        b'{"member":7,"here":true}',
        msgspec.json.encode({"member": "x" * 257, "here": True}),
    ],
)
def test_what_is_no_beat_is_passed_over(payload: bytes) -> None:
    """A replica ignores an invalid heartbeat and reads the next one."""

    async def play(server: MemoryServer) -> None:
        one = Member(server, "one")
        await one.join()
        server.send("apportion.beat.scheduler.x", payload)
        await rest(BEAT_S)
        one.sees("one")
        server.send("apportion.beat.scheduler.x", msgspec.json.encode(Beat(member="x", here=True)))
        await rest(BEAT_S / 4)
        one.sees("one", "x")

    played(play)


def test_there_is_a_limit_to_members() -> None:
    """The list of replicas has a maximum length. Silent replicas are removed from it."""

    async def play(server: MemoryServer) -> None:
        one = Member(server, "one")
        await one.join()
        for number in range(2 * MEMBERS_MAX):
            beat = Beat(member=f"x{number:03}", here=True)
            server.send("apportion.beat.scheduler.x", msgspec.json.encode(beat))
            await rest(0.0)
        await rest(BEAT_S / 4)
        assert len(one.membership.members) == 1 + MEMBERS_MAX
        await rest(GONE_S)
        one.sees("one")

    played(play)


def test_beats_are_no_facts() -> None:
    """Heartbeats do not add records to the ledger."""

    async def play(server: MemoryServer) -> None:
        one, two = Member(server, "one"), Member(server, "two")
        await one.join()
        await two.join()
        await rest(10 * BEAT_S)
        assert server.last_revision == 0
        draft = Draft("apportion.v1.pending.x", "x", b"{}")
        server.append([draft], {}, role="scheduler", writer="test")
        assert server.last_revision == 1

    played(play)
