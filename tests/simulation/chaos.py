"""Disturb a running system: users, operators, broken devices, crashes, partitions, rogue clients.

Invariant: `mend` ends all faults, except that failed devices stay failed in some runs. Any problem
after `mend` is a bug of the system."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from apportion.core.ledger.state import Phase
from apportion.runtime.ledger.port import Draft, LedgerError
from apportion.runtime.ledger.starting import command_subject
from apportion_schemas import (
    DeviceCordoned,
    DeviceUncordoned,
    Event,
    NodeCordoned,
    NodeObserved,
    NodeUncordoned,
    PodGone,
    PolicyChanged,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
    encode,
    subject_of,
)
from apportion_schemas.quantities import Payload
from tests.simulation import hostile
from tests.simulation.auditor import ROGUE
from tests.simulation.hostile import Hostile
from tests.simulation.loop import after_steps, rest
from tests.simulation.processes import Process
from tests.simulation.rogue import TIME, Rogue
from tests.simulation.weather import Weather
from tests.simulation.wishes import NAMESPACE
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer

if TYPE_CHECKING:
    from tests.simulation.world import World

TICK_S = 0.5
ORDER_TIMEOUT_S = 2.0
ORDERS_OVER_S = 30.0
"""The time after which every operator command in transit has arrived."""
STEPS_MAX = 60
AT_WORK_S = (0.0, 0.012)
"""The shortest and the longest time from an event to the appends that it causes."""
_encode = msgspec.json.Encoder().encode


class Chaos:
    """Injects the faults of a run."""

    def __init__(self, world: World, weather: Weather, server: MemoryServer) -> None:
        self._world = world
        self._weather = weather
        self._server = server
        self._chance: random.Random = weather.stream("chaos")
        self._of_limits: random.Random = weather.stream("limits")
        self._rogue = Rogue(weather.stream("rogue"))
        self._hostile = Hostile(weather.stream("hostile"))
        self._operator = MemoryLedger(server, role="operator")
        self._numbers = 0
        self._deeds: dict[str, Callable[[], object]] = {
            "crash": self._crash,
            "crash mid-instant": self._crash_soon,
            "partition": self._partition,
            "unheard member": self._mute,
            "vanished agent": self._vanish,
            "early redelivery": self._redeliver,
            "forgotten acks": self._forget_acks,
            "ledger full": self._fill,
            "torn snapshot": self._tear,
            "forged snapshot": self._forge,
            "ledger trimmed": self._trim,
            "rogue event": self._rogue_event,
            "hostile agent": self._attack,
            "agent flood": self._flood,
            "device failed": lambda: self._order("fail"),
            "device recovered": lambda: self._order("recover"),
            "cordon": self._cordon,
            "policy change": self._change_policy,
            "limits changed": self._change_limits,
            "node not ready": self._node_ready,
            "let go by hand": self._let_go,
            **world.side.deeds,
        }

    async def reign(self) -> None:
        """Inject faults at the run's rates, until this task is cancelled."""
        while True:
            await rest(TICK_S * self._chance.uniform(0.2, 1.8))
            for kind, deed in self._deeds.items():
                rate = self._weather.rates.get(kind, 0.0)
                if rate and self._chance.random() < rate * TICK_S:
                    self._weather.struck[kind] += 1
                    if self._chance.random() < 0.5:
                        self._with_the_next(deed)
                    else:
                        deed()

    def _with_the_next(self, deed: Callable[[], object]) -> None:
        """Call `deed`, which injects a fault, while the services process the next event.

        A fault does the most harm then."""

        def arm() -> None:
            self._server.forget(number)
            self._later(self._chance.uniform(*AT_WORK_S), strike)

        def strike() -> None:
            if not self._weather.calm:
                deed()

        number = self._server.on_news(arm)

    async def mend(self) -> None:
        """End every fault. In half of the runs, repair the failed devices too."""
        self._weather.calm = True
        self._server.full = False
        self._world.side.mend()
        for process in self._world.processes:
            process.mend()
            process.start()
        if self._chance.random() < 0.5:
            await rest(ORDERS_OVER_S)
            for node, devices in self._world.fleet.items():
                for device in devices:
                    await self._insist(node, device)
            self._world.all_well = True

    async def _insist(self, node: str, device: str) -> None:
        while not await self._command(node, "recover", device):
            await rest(1.0)

    def say(self, data: Payload) -> None:
        """Append `data` as an event, with the rights of an operator."""
        self._numbers += 1
        identity = f"operator/{self._numbers}"
        basis = self._server.last_revision
        event = Event(id=identity, source="cli/sim", time=TIME, data=data, basis=basis)
        draft = Draft(subject_of(data), identity, encode(event))
        with contextlib.suppress(LedgerError):
            self._server.append([draft], {}, role="operator", writer="operator")

    # ------------------------------------------------------------------ processes

    def _any(self, role: str = "") -> Process | None:
        found = [p for p in self._world.processes if p.running and role in ("", p.role)]
        return self._chance.choice(found) if found else None

    # ------------------------------------------------------------------ snapshots

    def _tear(self) -> None:
        self._world.shelf.tear(self._chance)

    def _forge(self) -> None:
        """Replace a snapshot by a false one, as someone with a scheduler's stolen key could."""
        self._world.shelf.forge(self._chance)

    def _trim(self) -> None:
        """Drop old events, as `apportion ledger trim --older-than 0` does."""
        pods = self._world.auditor.state.pods.values()
        waiting = [pod.placed_revision for pod in pods if pod.phase is Phase.PLACED]
        if begins := self._world.shelf.begin():
            self._server.drop(min([begins, *waiting]) - 1)

    # ------------------------------------------------------------------ processes

    def _crash(self) -> None:
        process = self._any()
        if process is not None:
            process.kill()
            self._later(self._chance.uniform(0.1, 8.0), process.start)

    def _crash_soon(self) -> None:
        """Kill a process between two steps of the event loop, while it processes the next event."""
        process = self._any()
        if process is None:
            return
        chosen, back_s = process, self._chance.uniform(0.1, 8.0)

        def strike() -> None:
            chosen.kill()
            self._later(back_s, chosen.start)

        at = self._server.on_news(lambda: after_steps(self._chance.randint(0, STEPS_MAX), once))

        def once() -> None:
            self._server.forget(at)
            if chosen.running and not self._weather.calm:
                strike()

    def _vanish(self) -> None:
        process = self._any("agent")
        if process is not None:
            process.kill()
            self._later(self._chance.uniform(10.0, 40.0), process.start)

    def _partition(self) -> None:
        process = self._any()
        if process is not None:
            process.cut()
            longest_s = 180.0 if self._chance.random() < 0.05 else 30.0
            self._later(self._chance.uniform(0.2, longest_s), process.mend)

    def _mute(self) -> None:
        """Drop a working scheduler's messages for a while, so that its peers consider it gone."""
        process = self._any("scheduler")
        if process is not None:
            process.mute()
            self._later(self._chance.uniform(2.0, 15.0), process.unmute)

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_s, call)

    # ------------------------------------------------------------------ the server

    def _redeliver(self) -> None:
        for queue in self._server.queues.values():
            queue.hasten(self._chance.randrange)

    def _forget_acks(self) -> None:
        for queue in self._server.queues.values():
            queue.forget_acks(self._chance.randint(1, 5))

    def _fill(self) -> None:
        self._server.full = True
        self._later(self._chance.uniform(0.2, 8.0), self._empty)

    def _empty(self) -> None:
        self._server.full = False

    def _rogue_event(self) -> None:
        role, draft = self._rogue.draft(self._world.auditor.state)
        with contextlib.suppress(LedgerError):
            self._server.append([draft], {}, role=role, writer=ROGUE)

    def _attack(self) -> None:
        """Send a random attack with the rights of one node's agent. Ignore the answers."""
        for payload in self._hostile.payloads(self._world.auditor.state):
            self._server.send(hostile.SUBJECT, payload, reply="_INBOX_agent.hostile")

    def _flood(self) -> None:
        """Flood the intakes with changes of one node, as fast as an agent can send them."""
        for payload in self._hostile.flood():
            self._server.send(hostile.SUBJECT, payload, reply="_INBOX_agent.hostile")

    # ------------------------------------------------------------------ people and GPUs

    def _order(self, verb: str) -> None:
        node, device = self._card()
        self._operator.spawn(self._ordered(node, verb, device))

    async def _ordered(self, node: str, verb: str, device: str) -> None:
        await self._command(node, verb, device)

    async def _command(self, node: str, verb: str, device: str) -> bool:
        order = {"verb": verb, "device": device}
        try:
            await self._operator.request(command_subject(node), _encode(order), ORDER_TIMEOUT_S)
        except LedgerError:
            return False  # the agent is away
        return True

    def _card(self) -> tuple[str, str]:
        node = self._node()
        return node, self._chance.choice(self._world.fleet[node])

    def _node(self) -> str:
        return self._chance.choice(list(self._world.fleet))

    def _cordon(self) -> None:
        node, device = self._card()
        on = self._chance.random() < 0.5
        if self._chance.random() < 0.5:
            by = {"by": "sim", "reason": "cordon"}
            self.say(NodeCordoned(node=node, **by) if on else NodeUncordoned(node=node, **by))
        else:
            by = {"by": "sim", "reason": "cordon"}
            self.say(
                DeviceCordoned(device=device, **by) if on else DeviceUncordoned(device=device, **by)
            )

    def _change_policy(self) -> None:
        choose = self._chance.choice
        self.say(
            PolicyChanged(
                by="sim",
                node_policy=choose(("binpack", "spread")),
                device_policy=choose(("binpack", "spread")),
            )
        )

    def _change_limits(self) -> None:
        """Change a queue's limit or guarantee, or change or remove the namespace's quota."""
        chance = self._of_limits
        name, most = chance.choice(("a", "b", "default")), {"nvidia.com/gpu": chance.randint(1, 6)}
        if chance.random() < 0.4:
            self.say(QuotaObserved(namespace=NAMESPACE, quota="cards", hard=most))
        elif chance.random() < 0.3:
            self.say(QuotaGone(namespace=NAMESPACE, quota="cards"))
        else:
            kind = chance.choice(("capability", "capability", "guarantee", ""))
            limits = {kind: most} if kind else {}
            self.say(structs.replace(QueueObserved(queue=name), **limits))

    def _let_go(self) -> None:
        """Report a pod as gone while it still runs, as an operator may do."""
        phases = (Phase.BOUND, Phase.ALLOCATED)
        pods = self._world.auditor.state.pods.values()
        running = [pod.uid for pod in pods if pod.phase in phases]
        if running:
            self.say(PodGone(uid=self._chance.choice(running), reason="let go by hand"))

    def _node_ready(self) -> None:
        ready = self._chance.random() < 0.6
        self.say(
            NodeObserved(
                node=self._node(), ready=ready, cpu_milli=64_000, memory_mib=500_000, pods=100
            )
        )
