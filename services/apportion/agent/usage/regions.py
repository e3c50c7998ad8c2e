"""What regions tell of the use of their devices, and what they are told of their processes.

HAMi-core finds out the id on the node of each of its processes by comparing lists of processes,
which can err where two containers start at once; by it, it reads how much they compute. We know it
from the kernel. Invariant: a number is written only into the slot of the process that it is of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from apportion.agent.shares.regions import Regions
from apportion.core.grants.region import Region
from apportion_schemas.quantities import WHOLE

Container = tuple[str, str]
"""Pod and container."""


class Reading(NamedTuple):
    """What a region tells of the use of one of its devices: bytes, and percent of its compute.

    `kinds` and `idle_s` are as in `uses.Use`; `running` is whether HAMi-core knows of a process.
    `pids` has by the id in the container of each process the id on the node that the region says.
    """

    memory_used: int
    cores_used: int
    kinds: tuple[int, int, int]
    idle_s: float | None
    running: bool
    pids: Mapping[int, int] = {}


def read(regions: Regions, now_s: float) -> dict[Container, dict[str, Reading]]:
    """By container and device; `now_s` is in seconds since 1970."""
    found = {}
    for pod, name, region in regions.read():
        with suppress(OSError):  # the disk fails, and that container's file is on it
            found[pod, name] = _reading(region, now_s)
    return found


def wrong_pids(
    readings: Mapping[Container, Mapping[str, Reading]],
    pids: Mapping[Container, Mapping[int, int]],
) -> dict[Container, Mapping[int, int]]:
    """Those `pids` whose region has another id on the node for one of its processes."""
    return {
        container: known
        for container, known in pids.items()
        for reading in list(readings.get(container, {}).values())[:1]
        if any(known.get(inner, pid) != pid for inner, pid in reading.pids.items())
    }


def tell_pids(regions: Regions, pids: Mapping[Container, Mapping[int, int]]) -> int:
    """Write down each process's id on the node, where another one stands; how many there were."""
    written = 0
    for pod, name, region in regions.read(pids):
        known = pids[pod, name]
        with suppress(OSError):  # a full disk has no room for what a container left out of its file
            for process in region.processes():
                pid = known.get(process.pid, 0)
                if pid and pid != process.host_pid:
                    region.tell_host_pid(process.slot, pid)
                    written += 1
    return written


def _reading(region: Region, now_s: float) -> dict[str, Reading]:
    processes = list(region.processes())
    last_s = region.last_kernel
    pids = {each.pid: each.host_pid for each in processes}
    return {
        device: Reading(
            sum(each.memory[at] for each in processes),
            min(sum(each.cores[at] for each in processes), WHOLE),
            _sums(each.kinds[at] for each in processes),
            max(0.0, now_s - last_s) if last_s else None,
            bool(processes),
            pids,
        )
        for at, device in enumerate(region.devices)
    }


def _sums(kinds: Iterable[tuple[int, int, int]]) -> tuple[int, int, int]:
    contexts, modules, data = 0, 0, 0
    for each in kinds:
        contexts, modules, data = contexts + each[0], modules + each[1], data + each[2]
    return contexts, modules, data
