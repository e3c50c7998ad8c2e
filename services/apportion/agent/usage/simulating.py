"""Simulates the use of shares on a simulated fleet, for reports and the console.

The load of a share follows from the names of its pod and container, and from the time. Samples and
records are counted and encoded as on a real node. Invariants: no share uses more than its size, and
no device more than it has. A lost node, or a node without shares, sends no samples."""

from __future__ import annotations

import contextlib
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from apportion.agent.backend import Load, Running
from apportion.agent.reporting.view import Claim
from apportion.agent.usage.account import Account
from apportion.agent.usage.owners import Owner
from apportion.agent.usage.sampling import (
    LOOKS_MISSED_MAX,
    SAMPLE_S,
    Send,
    publish_records,
    send_sample,
)
from apportion.agent.usage.uses import Counted, cut
from apportion.core.ledger.rationale import placed_of
from apportion.core.ledger.state import Phase, State
from apportion.runtime.ledger.port import LedgerUnavailable
from apportion.runtime.process.clock import Clock
from apportion_schemas import Device, MigInstance
from apportion_schemas.quantities import WHOLE

if TYPE_CHECKING:
    from apportion.agent.reporting.agent import Agent, Node

NODES_PER_S: Final = 200  # of the whole fleet: a large one is sampled less often
SAMPLE_MAX_S: Final = 30.0  # a gateway forgets a node after a minute without a sample
FIRST_S: Final = 30.0  # the first record of a node comes early, for a user who waits for it
RECORDS_PER_S: Final = 2  # of the whole fleet; real nodes write one an hour each
_LOOK_S: Final = 1.0
_WAVE_S: Final = 600.0  # period of a load's slow variation
_COMMAND: Final = "simulated"
_MIB: Final = 1 << 20


class _Level(NamedTuple):
    """A container's maximum use, as fractions of its share's memory and compute."""

    memory: float
    cores: float


# Half of the containers are busy, a quarter is half used, and a quarter only holds memory.
_LEVELS: Final = (_Level(0.92, 0.95), _Level(0.6, 0.5), _Level(0.3, 0.0), _Level(0.85, 0.8))


class _Part(NamedTuple):
    """One container's use of a device: memory in bytes, and compute in the device's units."""

    pid: int
    instance: MigInstance | None
    memory: int
    cores: int


def simulated_loads(
    claims: Iterable[Claim], devices: Mapping[str, Device], at_s: float
) -> tuple[list[Load], dict[int, Owner]]:
    """Return the simulated loads of a node's devices at a time in seconds since 1970.

    Each share has one process; the dict maps process ids to owners. A failed device is idle."""
    owners: dict[int, Owner] = {}
    parts: dict[str, list[_Part]] = {name: [] for name in devices}
    for claim in claims:
        for share in claim.placed.shares:
            device = devices.get(share.device)
            if device is None or not device.healthy:
                continue
            pid = len(owners) + 1
            owners[pid] = Owner(claim.pod, share.container, pid, _COMMAND)
            named = f"{claim.placed.namespace}/{claim.placed.name}/{share.container}"
            digest = zlib.crc32(named.encode())
            level = _LEVELS[digest % len(_LEVELS)]
            turn = at_s / _WAVE_S + digest / 2**32
            wave = 0.9 + 0.1 * math.sin(2 * math.pi * turn)
            fair = _compute(device) * share.memory_mib // max(1, device.memory_mib)
            cores = math.ceil((share.cores or fair) * level.cores * wave)
            memory = int(share.memory_mib * _MIB * level.memory * wave)
            parts[device.id].append(_Part(pid, cut(share.instance), memory, cores))
    loads: list[Load] = []
    for name, used in parts.items():
        device = devices[name]
        # Scale the processes to fit the device.
        memory_mib = device.physical_memory_mib or device.memory_mib
        by_memory = min(1.0, memory_mib * _MIB / max(1, sum(each.memory for each in used)))
        by_cores = min(1.0, _compute(device) / max(1, sum(each.cores for each in used)))
        running: dict[MigInstance | None, list[Running]] = defaultdict(list)
        for each in used:
            process = Running(each.pid, int(each.memory * by_memory), int(each.cores * by_cores))
            running[each.instance].append(process)
        every = [process for processes in running.values() for process in processes]
        whole = _load(device.id, every)._replace(processes=tuple(running.pop(None, ())))
        loads.append(whole)
        loads += (_load(device.id, those, instance) for instance, those in running.items())
    return loads, owners


def _compute(device: Device) -> int:
    return min(device.cores or WHOLE, WHOLE)  # a device may offer more percent than it has


def _load(device: str, processes: list[Running], instance: MigInstance | None = None) -> Load:
    memory = sum(each.memory or 0 for each in processes)
    cores = sum(each.cores or 0 for each in processes)
    return Load(device, memory, cores, instance, tuple(processes))


class _Open:
    """A node's usage since its last record, and the time of its last sample."""

    def __init__(self, began_s: float, looked_s: float, *, first: bool) -> None:
        self.account = Account(began_s)
        self.looked_s = looked_s  # monotonic
        self.first = first


class SimulatedUse:
    """Samples and records the use of a simulated fleet's nodes. `state` is the folded ledger.

    If the agent restarts, the use since a node's last record is lost."""

    def __init__(
        self, agent: Agent, nodes: Iterable[Node], state: State, *, clock: Clock, record_s: float
    ) -> None:
        """Set up the fleet. Each node's use is recorded at the start, then every `record_s`."""
        self._agent = agent
        self._nodes = {node.name: node for node in nodes}
        self._state = state
        self._clock = clock
        self._record_s = record_s
        self._open: dict[str, _Open] = {}

    async def sample(self, send: Send) -> None:
        """Sample the nodes that have shares, one after another, until cancelled."""
        while True:
            used = [name for name in self._nodes if name in self._open or self._claims(name)]
            used = [name for name in used if not self._agent.lost(name)]
            every_s = min(max(SAMPLE_S, len(used) / NODES_PER_S), SAMPLE_MAX_S)
            for name in used:
                with contextlib.suppress(LedgerUnavailable):  # no one would receive it
                    node, now_s, at_s = self._nodes[name], self._clock.monotonic(), self._wall_s()
                    if name not in self._open:
                        self._open[name] = _Open(at_s, now_s, first=True)
                    found, claims = self._open[name], self._claims(name)
                    loads, owners = simulated_loads(claims, node.devices, at_s)
                    look = Counted(claims, loads, owners.get).look(node.devices, {})
                    found.account.add(look, min(now_s - found.looked_s, LOOKS_MISSED_MAX * every_s))
                    found.looked_s = now_s
                    await send_sample(send, name, look, self._clock)
                await self._clock.pause(every_s / len(used))
            if not used:
                await self._clock.pause(_LOOK_S)

    async def record(self) -> None:
        """Record the use of each node at intervals, until cancelled."""
        while True:
            for name, found in list(self._open.items()):
                due_s = min(FIRST_S, self._record_s) if found.first else self._record_s
                now_s = self._wall_s()
                if now_s - found.account.began_s >= due_s and not self._agent.lost(name):
                    found.account.ended_s = now_s
                    if self._claims(name):
                        self._open[name] = _Open(now_s, found.looked_s, first=False)
                    else:
                        del self._open[name]
                    await publish_records(self._nodes[name], found.account, self._state.revision)
                    await self._clock.pause(1 / RECORDS_PER_S)
            await self._clock.pause(_LOOK_S)

    def _claims(self, name: str) -> list[Claim]:
        node = self._state.nodes.get(name)
        pods = node.pods.values() if node is not None else ()
        return [
            Claim(placed_of(pod, pod.placement), pod.bound_revision)
            for pod in pods
            if pod.placement is not None and pod.placement.shares and pod.phase is Phase.ALLOCATED
        ]

    def _wall_s(self) -> float:
        return self._clock.now().timestamp()
