"""Who of a service is there by its beats: a process that began anew is not two of one name."""

import random

import msgspec

from apportion.runtime.ledger.attendance import SILENT_S, Attendance
from apportion.runtime.ledger.membership import BEAT_S, Beat
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer


class Heard:
    """One listener, and those who beat for it."""

    def __init__(self) -> None:
        server = MemoryServer()
        self._ledger = MemoryLedger(server, role="scheduler", writer="one")
        self._attendance = Attendance("scheduler", SkewedClock(random.Random(1), skew_s=0.0))

    async def listen(self) -> None:
        """From now on."""
        await self._attendance.listen(self._ledger)

    async def beats(self, *members: str, here: bool = True) -> None:
        """Each once, and a beat's time passes."""
        for member in members:
            beat = msgspec.json.encode(Beat(member=member, here=here))
            await self._ledger.publish("apportion.beat.scheduler.any", beat)
        await rest(BEAT_S)

    def sees(self, *members: str) -> None:
        """Whom it takes to be there."""
        assert self._attendance.members() == members


def test_a_scheduler_that_was_killed_and_began_anew_is_one() -> None:
    """Its old life is over once the new one takes its part, not only when its beats are old."""

    async def scenario() -> None:
        heard = Heard()
        await heard.listen()
        await heard.beats("vm/a", "other/b")
        await heard.beats("vm/c", here=False)
        heard.sees("other/b", "vm/a")
        await heard.beats("vm/c")
        heard.sees("other/b", "vm/c")

    run_virtually(scenario())


def test_two_of_one_name_are_two() -> None:
    """Both go on to beat, whoever came last; who is silent is gone."""

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
