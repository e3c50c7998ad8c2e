"""Tests of which replicas of a service count as alive, by their heartbeats."""

import random

import msgspec

from apportion.runtime.ledger.membership import BEAT_S, SILENT_S, Attendance, Beat
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer


class Heard:
    """A listener to heartbeats, and the replicas that send them."""

    def __init__(self) -> None:
        server = MemoryServer()
        self._ledger = MemoryLedger(server, role="scheduler", writer="one")
        self.attendance = Attendance("scheduler", SkewedClock(random.Random(1), skew_s=0.0))

    async def listen(self) -> None:
        await self.attendance.listen(self._ledger)

    async def beats(self, *members: str, here: bool = True, frozen: str = "") -> None:
        """Send a heartbeat from each replica, and wait for one heartbeat interval."""
        for member in members:
            beat = msgspec.json.encode(Beat(member=member, here=here, frozen=frozen))
            await self._ledger.publish("apportion.beat.scheduler.any", beat)
        await rest(BEAT_S)

    def sees(self, *members: str) -> None:
        """Assert that exactly these replicas count as alive."""
        assert self.attendance.members() == members


def test_a_scheduler_that_was_killed_and_began_anew_is_one() -> None:
    """If a replica restarts, the new process replaces the old one once it has joined."""

    async def scenario() -> None:
        heard = Heard()
        await heard.listen()
        await heard.beats("vm/a", "other/b")
        await heard.beats("vm/c", here=False)
        heard.sees("other/b", "vm/a")
        await heard.beats("vm/c")
        heard.sees("other/b", "vm/c")

    run_virtually(scenario())


def test_a_member_says_why_it_can_do_nothing() -> None:
    """If a replica's heartbeats say why it cannot work, the listener reports that reason, whatever
    other replicas send. It drops the reason once that replica is gone."""

    async def scenario() -> None:
        heard = Heard()
        await heard.listen()
        await heard.beats("vm/a", frozen="ledger-full")
        await heard.beats("vm/b", "other/b")
        assert heard.attendance.frozen() == ""  # replaced by another process of its name
        await heard.beats("other/b", frozen="ledger-silent")
        await heard.beats("vm/b")
        assert heard.attendance.frozen() == "ledger-silent"
        await heard.beats("other/b", here=False, frozen="ledger-silent")
        assert heard.attendance.frozen() == ""

    run_virtually(scenario())


def test_absence_is_known_after_a_time_of_silence() -> None:
    """A service counts as absent only after a whole timeout without a heartbeat."""

    async def scenario() -> None:
        heard = Heard()
        assert not heard.attendance.absent()
        await heard.listen()
        assert not heard.attendance.absent()
        await rest(SILENT_S * 2)
        assert heard.attendance.absent()
        await heard.beats("vm/a")
        assert not heard.attendance.absent()

    run_virtually(scenario())


def test_two_of_one_name_are_two() -> None:
    """If two processes of the same name both send heartbeats, they count as two replicas. When they
    stop, both disappear."""

    async def scenario() -> None:
        heard = Heard()
        await heard.listen()
        await heard.beats("vm/a")
        for _ in range(3):
            await heard.beats("vm/b", "vm/a")
            heard.sees("vm/a", "vm/b")
        await rest(SILENT_S)
        heard.sees()

    run_virtually(scenario())
