"""Run real services on an in-memory ledger in virtual time, so that waiting takes no real time.

Use this module for tests of a few services without faults; `tests.simulation` runs all services."""

from __future__ import annotations

import asyncio
import random
from typing import TypeVar

from apportion.agent import main as agent
from apportion.core.intake.answers import Answer, decode_answer, subject_of_node
from apportion.intake import main as intake
from apportion.runtime.files.fleets import SimulatedNode
from apportion.runtime.ledger.port import Draft, Ledger
from apportion.runtime.process.clock import rfc3339
from apportion.runtime.service.lifecycle import Service
from apportion_schemas import Event, decode, encode, subject_of
from apportion_schemas.quantities import Payload
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest
from tests.simulation.processes import CONFIG, Body
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer

T = TypeVar("T", bound=Payload)


class Services:
    """One in-memory ledger, and the services that run on it until the event loop ends."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self._tasks: list[asyncio.Task[None]] = []
        self._clock = SkewedClock(random.Random(0), skew_s=0.0)

    async def intake(self) -> Service:
        """Start an intake, and return once it accepts agents' reports."""
        service = self._start("intake", intake.body)
        while service.reasons_against_ready():
            await rest(0.1)
        return service

    def agent(self, *nodes: SimulatedNode) -> Service:
        """Start an agent of these nodes."""
        backends = agent.Backends(nodes[0].name, nodes)
        return self._start("agent", lambda service: agent.body(service, backends))

    async def say(self, data: Payload, name: str) -> Answer:
        """Send an event as the agent of the event's node, and return the intake's answer."""
        node: str = data.node  # type: ignore[attr-defined] # as all that agents say
        event = Event(id=name, source=f"agent/{node}", time=rfc3339(self._clock.now()), data=data)
        asker = MemoryLedger(self.server, role="agent")
        return decode_answer(await asker.request(subject_of_node(node), encode(event), 10))

    async def write(self, data: Payload) -> None:
        """Append an event to the ledger as the watcher."""
        name = f"written-{self.server.last_revision}"
        time = rfc3339(self._clock.now())
        event = Event(id=name, source="watcher", time=time, data=data)
        draft = Draft(subject_of(data), name, encode(event))
        await MemoryLedger(self.server, role="watcher").append([draft])

    def written(self, kind: type[T]) -> list[T]:
        """Return all payloads of this type on the ledger."""
        records = [each for each in self.server.records if each is not None]
        every = [decode(each.payload, subject=each.subject).data for each in records]
        return [data for data in every if isinstance(data, kind)]

    def _start(self, name: str, body: Body) -> Service:
        async def connect() -> Ledger:
            return MemoryLedger(self.server, role=name)

        service = Service(name, CONFIG, clock=self._clock, connect=connect)
        self._tasks.append(asyncio.create_task(service.run_body(body)))
        return service
