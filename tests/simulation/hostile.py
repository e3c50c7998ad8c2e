"""A compromised agent, which has the rights of one node's agent and sends false reports.

No pod is ever placed on its node, because the node has no device."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator

from msgspec import structs

from apportion.core.intake.answers import subject_of_node
from apportion.core.ledger.state import Phase, State
from apportion.intake.taking import UNANSWERED_MAX
from apportion_schemas import (
    AllocationFailed,
    Device,
    DeviceHealthChanged,
    Event,
    Host,
    NodeReported,
    PodGone,
    SharesAllocated,
    UsageRecorded,
    encode,
)
from apportion_schemas.quantities import MEMORY_MIB_MAX, Payload
from apportion_schemas.usage import ShareUsed
from tests.simulation.rogue import GARBAGE, TIME

NODE = "taken-over"
SUBJECT = subject_of_node(NODE)
FLOOD = 300
FUTURE = 1_000_000
NOTHING = NodeReported(node=NODE, devices=(), host=Host(cpu_milli=0, memory_mib=0, pods=0))


class Hostile:
    """Makes the random messages that a compromised agent sends."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._numbers = itertools.count(1)

    def payloads(self, state: State) -> Iterator[bytes]:
        """Yield the messages of the next attack: one request, or a flood of them."""
        makers = (
            self._another_node, self._another_node, self._stolen, self._huge, self._answers,
            self._answers, self._future, self._foreign_source, self._not_an_agents, self._unknown,
            self._fence, self._fence, self._usage, self._garbage,
        )  # fmt: skip
        if self._chance.random() < 0.05:
            return (self._fence(state) for _ in range(FLOOD))
        return iter([self._chance.choice(makers)(state)])

    def flood(self) -> Iterator[bytes]:
        """Yield as many changes of its own node as an agent may send before it gets an answer."""
        for _ in range(UNANSWERED_MAX):
            host = structs.replace(NOTHING.host, cpu_milli=next(self._numbers))
            yield self._said(structs.replace(NOTHING, host=host))

    def _said(
        self, data: Payload, *, by: str = NODE, basis: int = 0, time: str = TIME, name: str = ""
    ) -> bytes:
        identity = name or f"hostile/{next(self._numbers)}"
        return encode(Event(id=identity, source=f"agent/{by}", time=time, data=data, basis=basis))

    def _another_node(self, state: State) -> bytes:
        """Return a false report that another node is empty or that its device has failed."""
        node = self._victim(state)
        known = state.nodes.get(node)
        data: Payload = structs.replace(NOTHING, node=node)
        if known is not None and known.devices and self._chance.random() < 0.5:
            device = self._chance.choice(known.devices).device.id
            data = DeviceHealthChanged(node=node, device=device, healthy=False, reason="hostile")
        return self._said(data, by=self._chance.choice((NODE, node)))

    def _stolen(self, state: State) -> bytes:
        """Return a report that claims another node's devices for the agent's own node."""
        known = state.nodes.get(self._victim(state))
        there = known.devices if known is not None else ()
        cards = tuple(each.device for each in there if each.present)
        return self._said(structs.replace(NOTHING, devices=cards or (_card(1 << 20),)))

    def _huge(self, _state: State) -> bytes:
        return self._said(structs.replace(NOTHING, devices=(_card(MEMORY_MIB_MAX),)))

    def _answers(self, state: State) -> bytes:
        """Return a false report about the allocation of another node's pod."""
        pods = [pod for pod in state.pods.values() if pod.placement is not None]
        if not pods:
            return self._said(SharesAllocated(pod="nobody", node=NODE, attempt=1, devices=()))
        pod = self._chance.choice(pods)
        placed = pod.placement
        assert placed is not None
        node = self._chance.choice((NODE, placed.node))
        data: Payload = AllocationFailed(
            pod=pod.uid, node=node, attempt=placed.attempt, message="hostile"
        )
        if self._chance.random() < 0.5:
            devices = tuple(dict.fromkeys(share.device for share in placed.shares))
            data = SharesAllocated(pod=pod.uid, node=node, attempt=placed.attempt, devices=devices)
        return self._said(data)

    def _future(self, state: State) -> bytes:
        return self._said(NOTHING, basis=state.revision + FUTURE)

    def _foreign_source(self, state: State) -> bytes:
        return self._said(NOTHING, by=self._victim(state))

    def _not_an_agents(self, state: State) -> bytes:
        """Return an event that ends a user's pod. No agent may write such an event."""
        uid = self._chance.choice([*state.pods, "nobody"])
        return self._said(PodGone(uid=uid)).replace(b'"uid"', f'"node":"{NODE}","uid"'.encode())

    def _unknown(self, _state: State) -> bytes:
        found = self._said(NOTHING)
        if self._chance.random() < 0.5:
            return found.replace(b"dev/NodeReported", b"dev/Unheard")
        return of_a_later_version(found)

    def _fence(self, state: State) -> bytes:
        """Return an event under the id that a pending pod's next placement will have."""
        waiting = [pod for pod in state.pods.values() if pod.phase is Phase.PENDING]
        name = ""
        if waiting:
            pod = self._chance.choice(waiting)
            name = f"{pod.uid}/{pod.attempt}/placed"
        return self._said(NOTHING, name=name)

    def _usage(self, state: State) -> bytes:
        """Return a usage report for a pod of another node."""
        known = state.nodes.get(self._victim(state))
        if known is None or not known.devices:
            return self._said(UsageRecorded(node=self._victim(state), seconds=60))
        used = ShareUsed(
            pod="somebody", namespace="sim", name="somebody", container="c0",
            device=known.devices[0].device.id, seconds=60, memory_mib=1,
            memory_mib_seconds=1 << 40, memory_mib_peak=1,
        )  # fmt: skip
        return self._said(UsageRecorded(node=NODE, seconds=60, shares=(used,)))

    def _garbage(self, _state: State) -> bytes:
        return self._chance.choice((*GARBAGE, b"x" * 600_000))

    def _victim(self, state: State) -> str:
        others = sorted(n for n, node in state.nodes.items() if node.reported and n != NODE)
        return self._chance.choice(others or ["nowhere"])


def of_a_later_version(event: bytes) -> bytes:
    """Return the event in a version that this build cannot read, as a later build may write it."""
    return re.sub(rb'"schemaversion":\d+', b'"schemaversion":99', event)


def _card(memory_mib: int) -> Device:
    return Device(
        id="GPU-hostile", index=0, family="nvidia", model="NVIDIA Tesla T4",
        memory_mib=memory_mib, physical_memory_mib=memory_mib,
    )  # fmt: skip
