"""Tests of when an agent counts as silent and which scheduler records that, in virtual time."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec

from apportion.core.ledger.fold import Change
from apportion.runtime.ledger.batching import Appended
from apportion.runtime.ledger.membership import AGENT_BEAT_S, beat_of
from apportion.runtime.ledger.port import Draft
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.metrics import Metrics
from apportion.scheduler.presence import GRACE_MIN_S, Presence
from apportion_schemas import Event, NodeHeard, NodeReported, NodeSilent, decode, encode, subject_of
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.fleet import node
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer

GRACE_S = 20
ROUND_S = AGENT_BEAT_S
GIVEN_UP_S = GRACE_S * 2 + 2 * ROUND_S
"""The time after which a silent agent is reported at the latest."""


class SleepyClock(SkewedClock):
    """A clock whose pauses do not end while `asleep` is set, as in a suspended process."""

    asleep = False

    async def pause(self, longest_s: float) -> None:
        """Pause, and do not return while the clock is asleep."""
        await super().pause(longest_s)
        while self.asleep:
            await rest(longest_s / 10)


class Ear:
    """A scheduler that listens to the heartbeats of agents."""

    def __init__(
        self, server: MemoryServer, name: str, *, leads: bool = True, grace_s: int = GRACE_S
    ) -> None:
        self.leads = leads
        self.ledger = MemoryLedger(server, role="scheduler", writer=name)
        self.clock = SleepyClock(random.Random(name), skew_s=0.0)
        cluster, metrics = StateFold(), Metrics()
        self.state = cluster.state
        self._reader: Reader[Change] = Reader(self.ledger, cluster, metrics=metrics)
        self._presence = Presence(
            cluster.state,
            self.ledger,
            clock=self.clock,
            publisher=Publisher(f"scheduler/{name}", self.clock, _no_append),
            metrics=metrics,
            leads=lambda: self.leads,
        )
        self._tasks = [
            asyncio.create_task(self._reader.run()),
            asyncio.create_task(self._presence.run(self._reader, grace_s=grace_s)),
        ]

    def silent(self) -> list[str]:
        """Return the nodes whose agents this scheduler considers silent."""
        return sorted(name for name, each in self.state.nodes.items() if each.silent)


async def _no_append(_draft: Draft) -> Appended:
    raise AssertionError("presence appends by itself, with a fence")


def told(server: MemoryServer) -> list[str]:
    """Return a text for each event that records an agent as silent or as heard again, in order."""
    found = []
    for record in server.records:
        data = decode(record.payload, subject=record.subject).data if record else None
        if isinstance(data, NodeSilent | NodeHeard):
            found.append(f"{data.node} {type(data).__name__}")
    return found


async def reported(server: MemoryServer, *names: str) -> MemoryLedger:
    """Append reports of these nodes, and return a ledger connection of their agent."""
    intake = MemoryLedger(server, role="intake")
    for name in names:
        data: NodeReported = node(name)
        event = Event(id=name, source="agent", time="2026-01-01T00:00:00.000000Z", data=data)
        await intake.append([Draft(subject_of(data), name, encode(event))])
    return MemoryLedger(server, role="agent")


async def beat(agent: MemoryLedger, span_s: float, *names: str) -> None:
    """Send heartbeats of these nodes for `span_s` seconds."""
    end_s = asyncio.get_running_loop().time() + span_s
    while asyncio.get_running_loop().time() < end_s:
        for name in names:
            await agent.publish(*beat_of(name))
        await rest(AGENT_BEAT_S)


def played(play: Callable[[MemoryServer], Awaitable[None]]) -> None:
    """Run the test in virtual time with a new ledger server."""

    async def main() -> None:
        await play(MemoryServer())

    run_virtually(main())


def test_an_agent_that_beats_is_there_and_one_that_does_not_is_given_up() -> None:
    """If an agent stops sending heartbeats, the scheduler records that the agent is silent. When
    the next heartbeat arrives, the scheduler records that the agent was heard again."""

    async def play(server: MemoryServer) -> None:
        agent = await reported(server, "n1", "n2")
        ear = Ear(server, "one")
        await beat(agent, GIVEN_UP_S, "n1")
        assert ear.silent() == ["n2"]
        await beat(agent, 0.1, "n2")
        await rest(0.1)
        assert ear.silent() == []
        assert told(server) == ["n2 NodeSilent", "n2 NodeHeard"]

    played(play)


def test_an_agent_that_says_that_it_stops_is_away_at_once() -> None:
    """If an agent announces that it stops, it counts as silent at once. The scheduler records the
    silence once."""

    async def play(server: MemoryServer) -> None:
        agent = await reported(server, "n1", "n2")
        ear = Ear(server, "one")
        await beat(agent, 1, "n1", "n2")
        for _ in range(2):
            await agent.publish(*beat_of("n1", leaves=True))
            await rest(0.1)
        assert ear.silent() == ["n1"]
        await agent.publish(*beat_of("n1"))
        await rest(0.1)
        assert told(server) == ["n1 NodeSilent", "n1 NodeHeard"]

    played(play)


def test_nobody_is_given_up_before_the_grace() -> None:
    """No agent counts as silent before the grace period is over. A scheduler that has just started
    also waits for a full grace period."""

    async def play(server: MemoryServer) -> None:
        await reported(server, "n1")
        ear = Ear(server, "one")
        await rest(GRACE_S - 1)
        assert ear.silent() == []
        await rest(GIVEN_UP_S)
        assert ear.silent() == ["n1"]

    played(play)


def test_no_agent_that_beats_is_given_up_in_the_shortest_grace() -> None:
    """Even with the shortest grace period, an agent that sends regular heartbeats never counts as
    silent."""

    async def play(server: MemoryServer) -> None:
        agent = await reported(server, "n1")
        for name in ("one", "two", "three"):
            Ear(server, name, grace_s=GRACE_MIN_S)
        await beat(agent, 500 * ROUND_S, "n1")
        assert told(server) == []

    played(play)


def test_it_is_said_once_however_many_take_themselves_for_the_first() -> None:
    """Even if several schedulers consider themselves the leader, an agent's silence is recorded
    only once."""

    async def play(server: MemoryServer) -> None:
        agent = await reported(server, "n1", "n2")
        ears = [Ear(server, name) for name in ("one", "two", "three")]
        await rest(GIVEN_UP_S)
        await beat(agent, GIVEN_UP_S, "n1")
        assert [ear.silent() for ear in ears] == [["n2"]] * 3
        assert sorted(told(server)) == ["n1 NodeHeard", "n1 NodeSilent", "n2 NodeSilent"]

    played(play)


def test_who_is_not_the_first_writes_nothing() -> None:
    """Only the leading scheduler appends NodeSilent. A scheduler that becomes the leader begins to
    append it."""

    async def play(server: MemoryServer) -> None:
        agent = await reported(server, "n1", "n2")
        ear = Ear(server, "two", leads=False)
        await beat(agent, GIVEN_UP_S, "n1")
        assert told(server) == []
        ear.leads = True
        await beat(agent, 2 * ROUND_S, "n1")
        assert told(server) == ["n2 NodeSilent"]

    played(play)


def test_a_scheduler_that_was_stopped_gives_nobody_up_for_what_it_missed() -> None:
    """A scheduler that was suspended does not record agents as silent just because it missed their
    heartbeats."""

    async def play(server: MemoryServer) -> None:
        agent = await reported(server, "n1")
        ear = Ear(server, "one")
        await beat(agent, 2 * ROUND_S, "n1")
        ear.clock.asleep = True
        await rest(10 * GIVEN_UP_S)
        ear.clock.asleep = False
        await beat(agent, 2 * GIVEN_UP_S, "n1")
        assert told(server) == []

    played(play)


def test_a_node_that_no_agent_reported_is_never_silent() -> None:
    """A node that no agent has reported never counts as silent."""

    async def play(server: MemoryServer) -> None:
        ear = Ear(server, "one")
        await rest(3 * GIVEN_UP_S)
        assert (ear.silent(), told(server)) == ([], [])

    played(play)


def test_a_beat_that_cannot_be_read_is_nobody() -> None:
    """The scheduler ignores a heartbeat that it cannot read."""

    async def play(server: MemoryServer) -> None:
        agent = await reported(server, "n1")
        ear = Ear(server, "one")
        await agent.publish("apportion.beat.agent.n1", b"alive")
        await rest(GIVEN_UP_S)
        assert ear.silent() == ["n1"]
        await beat(agent, 0.1, "n1")
        await rest(0.1)
        assert ear.silent() == []

    played(play)


def test_the_agent_of_one_node_beats_for_no_other() -> None:
    """A heartbeat counts only if it arrives on the subject of the node that it names."""

    async def play(server: MemoryServer) -> None:
        agent = await reported(server, "n1", "n2")
        ear = Ear(server, "one")
        for nodes in (["n1"], ["n1", "n2"], ["n2", "n1"]):
            await agent.publish("apportion.beat.agent.n2", msgspec.json.encode({"nodes": nodes}))
        await rest(GIVEN_UP_S)
        assert ear.silent() == ["n1", "n2"]
        for nodes in (["n1"], ["n1", "n2"]):
            await agent.publish("apportion.beat.agent.n2", msgspec.json.encode({"nodes": nodes}))
        await rest(0.1)
        assert ear.silent() == ["n1", "n2"]
        await beat(agent, 0.1, "n1", "n2")
        await rest(0.1)
        assert ear.silent() == []

    played(play)
