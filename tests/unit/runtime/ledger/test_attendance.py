"""Test which replicas count as alive by their heartbeats. A restarted process replaces its
predecessor."""

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
        """Start listening to heartbeats."""
        await self.attendance.listen(self._ledger)

    async def beats(self, *members: str, here: bool = True, frozen: str = "") -> None:
        """Send one heartbeat for each replica, and let one interval pass."""
        for member in members:
            beat = msgspec.json.encode(Beat(member=member, here=here, frozen=frozen))
            await self._ledger.publish("apportion.beat.scheduler.any", beat)
        await rest(BEAT_S)

    def sees(self, *members: str) -> None:
        """Check that the listener counts exactly these replicas as alive."""
        assert self.attendance.members() == members


def test_a_scheduler_that_was_killed_and_began_anew_is_one() -> None:
    """A restarted scheduler replaces its former process once it has joined."""

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
    """The listener has a frozen replica's reason while that replica sends it, whatever other
    replicas send."""

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
    """A service counts as absent only after the listener has received no heartbeat for the whole
    timeout."""

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
    """Two replicas with one name that both send heartbeats count as two. They disappear when they
    go silent."""

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
