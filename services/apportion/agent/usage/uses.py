"""Compute what each container uses of its shares, from device loads and HAMi-core regions.

Invariants: every share of a pod on the node has exactly one `Use`, which is at most the size of the
device. Limits come from the ledger. A container can change its region, so the region counts only
where the driver reports no use. A process counts only for a share of its own pod. The agent writes
the host's process id only to the slot of that process in the region."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from apportion.agent.backend import Load, Running
from apportion.agent.reporting.view import Claim
from apportion.agent.shares.regions import Breach, Regions
from apportion.agent.usage.owners import Owner
from apportion_schemas import Device, MigInstance, Share
from apportion_schemas.quantities import WHOLE

Container = tuple[str, str]  # pod and container
_MIB: Final = 1 << 20
# Bytes of a process, for context and modules, that the driver counts and a region may not.
_UNCOUNTED: Final = 512 * _MIB
# MPS's server has a context of its own on the device. The kernel cuts names after 15 characters.
_OUR_DAEMONS: Final = frozenset({"nvidia-cuda-mps", "nvidia-cuda-mps-server"})
Key = tuple[str, str, str, MigInstance | None]  # pod, container, device and its instance
OwnerOf = Callable[[int], Owner | None]


class Reading(NamedTuple):
    """The use of a device that a HAMi-core region reports: bytes of memory, percent of compute."""

    memory_used: int
    cores_used: int
    kinds: tuple[int, int, int]  # as in `Use`
    idle_s: float | None
    running: bool  # HAMi-core knows a process
    pids: Mapping[int, int] = {}  # node id by id in the container, according to the region


def read(regions: Regions, now_s: float) -> dict[Container, dict[str, Reading]]:
    """Read all regions into a dict by container and device. `now_s` is in seconds since 1970."""
    found = {}
    for pod, name, region in regions.read():
        with suppress(OSError):  # a disk error affects that container alone
            processes = list(region.processes())
            last_s = region.last_kernel
            pids = {each.pid: each.host_pid for each in processes}
            found[pod, name] = {
                device: Reading(
                    sum(each.memory[at] for each in processes),
                    min(sum(each.cores[at] for each in processes), WHOLE),
                    (
                        sum(each.kinds[at][0] for each in processes),
                        sum(each.kinds[at][1] for each in processes),
                        sum(each.kinds[at][2] for each in processes),
                    ),
                    max(0.0, now_s - last_s) if last_s else None,
                    bool(processes),
                    pids,
                )
                for at, device in enumerate(region.devices)
            }
    return found


def wrong_pids(
    readings: Mapping[Container, Mapping[str, Reading]], pids: Mapping[Container, Mapping[int, int]]
) -> dict[Container, Mapping[int, int]]:
    """Return those entries of `pids` whose container has a region with a wrong process id."""
    return {
        container: known
        for container, known in pids.items()
        for reading in list(readings.get(container, {}).values())[:1]
        if any(known.get(inner, pid) != pid for inner, pid in reading.pids.items())
    }


def tell_pids(regions: Regions, pids: Mapping[Container, Mapping[int, int]]) -> int:
    """Correct the host's process ids in the regions of containers. Return how many were wrong."""
    written = 0
    for pod, name, region in regions.read(pids):
        known = pids[pod, name]
        with suppress(OSError):  # on a full disk, a hole in the container's file cannot be filled
            for process in region.processes():
                pid = known.get(process.pid, 0)
                if pid and pid != process.host_pid:
                    region.tell_host_pid(process.slot, pid)
                    written += 1
    return written


class Use(NamedTuple):
    """The use of one device by one container: memory in bytes, compute in percent."""

    pod: str
    namespace: str
    name: str
    container: str
    position: int  # index of the device in the container
    device: str
    instance: MigInstance | None
    memory_limit: int
    memory_used: int
    cores_limit: int
    cores_used: int | None
    # bytes of contexts, modules and data, from the region
    kinds: tuple[int, int, int] | None = None
    idle_s: float | None = None  # since the last kernel launch, from the region
    bound: int = 0  # the revision of the pod's binding

    @property
    def key(self) -> Key:
        """Return the key that identifies this use on the node."""
        return self.pod, self.container, self.device, self.instance


class Unshared(NamedTuple):
    """A process that uses a device without having a share of that device."""

    device: str
    pid: int
    owner: Owner
    memory: int


class Look(NamedTuple):
    """One sample of a node: uses, loads, processes without a share, and breaches."""

    uses: tuple[Use, ...] = ()
    loads: tuple[Load, ...] = ()
    unshared: tuple[Unshared, ...] = ()
    # of processes that use a device: node id by inner id
    pids: Mapping[Container, Mapping[int, int]] = {}
    cgroups: Mapping[Container, str] = {}  # if the kernel names one
    # Containers whose region lacks their processes or counts far less memory than the driver. A
    # process that has just started or ended can cause one, too.
    breaches: tuple[Breach, ...] = ()


class Counted:
    """Adds up the use of each share from the processes that the driver reports."""

    def __init__(self, claims: Iterable[Claim], loads: Iterable[Load], owner_of: OwnerOf) -> None:
        self._claims = {claim.pod: claim for claim in claims}
        self._owner_of = owner_of
        self._used: dict[Key, tuple[int, int | None]] = {}
        self._loads = {(load.device, load.instance): load for load in loads}
        self._unshared: list[Unshared] = []
        self._pids: dict[Container, dict[int, int]] = {}
        self._cgroups: dict[Container, str] = {}
        self._own: dict[tuple[str, str, str], tuple[frozenset[int], int]] = {}
        for load in self._loads.values():
            for process in load.processes:
                self._add(load, process)

    def look(
        self, devices: Mapping[str, Device], readings: Mapping[Container, Mapping[str, Reading]]
    ) -> Look:
        """Combine the counted use with the regions' readings into one sample."""
        uses = tuple(
            self._use(claim, position, share, devices[share.device], readings)
            for claim in self._claims.values()
            for position, share in _positions(claim, devices)
        )
        loads, unshared = tuple(self._loads.values()), tuple(self._unshared)
        breaches = []
        for (pod, container, device), (pids, memory) in self._own.items():
            if device not in devices or devices[device].mode != "hami-core":
                continue
            found = readings.get((pod, container), {}).get(device)
            if found is None or pids - found.pids.keys():
                breaches.append(Breach(pod, container, device, "unheld", memory))
            elif memory > 2 * found.memory_used + len(pids) * _UNCOUNTED:
                breaches.append(Breach(pod, container, device, "zeroed", memory))
        return Look(uses, loads, unshared, self._pids, self._cgroups, tuple(breaches))

    def _use(
        self,
        claim: Claim,
        position: int,
        share: Share,
        card: Device,
        readings: Mapping[Container, Mapping[str, Reading]],
    ) -> Use:
        # HAMi-core records all devices that NVML lists, but in CUDA's order (see `Regions`), so a
        # region that names devices of other containers is ignored.
        found = readings.get((claim.pod, share.container), {})
        shares = (each for each in claim.placed.shares if each.container == share.container)
        region = (
            found.get(share.device) if found.keys() <= {each.device for each in shares} else None
        )
        instance = cut(share.instance)
        named = (claim.pod, claim.placed.namespace, claim.placed.name, share.container)
        where = (position, share.device, instance)
        # Without an answer of the driver, the use is not known.
        unused = (0, 0) if (share.device, None) in self._loads else (0, None)
        memory, cores = self._used.get((claim.pod, share.container, share.device, instance), unused)
        if instance is not None:
            load = self._loads.get((share.device, instance))
            memory, cores = (load.memory, load.cores) if load else (0, None)
        granted = share.memory_mib * _MIB
        if region is None:
            return Use(
                *named, *where, granted, memory, share.cores, cores, bound=claim.bound_revision
            )
        if region.running:
            memory = memory or region.memory_used
            cores = cores or region.cores_used or cores  # 0 in a region does not show idleness
        memory = min(memory, max(card.memory_mib, card.physical_memory_mib) * _MIB)
        reported = region.kinds, region.idle_s, claim.bound_revision
        return Use(*named, *where, granted, memory, share.cores, cores, *reported)

    def _add(self, load: Load, process: Running) -> None:
        # A process that has just ended counts for no share.
        owner = self._owner_of(process.pid)
        if owner is None:
            return
        claim = self._claims.get(owner.pod)
        if owner.command in _OUR_DAEMONS and claim is None:
            return  # processes choose their names, so those of a pod with shares always count
        shares = [
            share
            for share in ((*claim.placed.shares, *claim.placed.borrowed) if claim else ())
            if share.device == load.device and cut(share.instance) == load.instance
        ]
        if not shares:
            unshared = Unshared(load.device, process.pid, owner, process.memory or 0)
            self._unshared.append(unshared)
            return
        share = next((each for each in shares if each.container == owner.container), shares[0])
        self._pids.setdefault((owner.pod, share.container), {})[owner.inner] = process.pid
        if owner.container == share.container and load.instance is None:
            of = owner.pod, share.container, load.device
            pids, held = self._own.get(of, (frozenset(), 0))
            self._own[of] = pids | {owner.inner}, held + (process.memory or 0)
        if owner.cgroup and owner.container == share.container:
            self._cgroups[owner.pod, share.container] = owner.cgroup
        key = (owner.pod, share.container, load.device, load.instance)
        memory, cores = self._used.get(key, (0, 0))
        both = None if cores is None or process.cores is None else cores + process.cores
        self._used[key] = (memory + (process.memory or 0), both)


def _positions(claim: Claim, devices: Mapping[str, Device]) -> Iterator[tuple[int, Share]]:
    counts: dict[str, int] = {}
    here = [share for share in claim.placed.shares if share.device in devices]
    # NVML's order, as in a grant.
    here.sort(
        key=lambda share: (
            devices[share.device].index,
            share.instance.start if share.instance else 0,
        )
    )
    for share in here:
        position = counts.get(share.container, 0)
        counts[share.container] = position + 1
        yield position, share


def cut(instance: MigInstance | None) -> MigInstance | None:
    """Return the instance as the driver identifies it, without its group; None for None."""
    if instance is None:
        return None
    return msgspec.structs.replace(instance, group="", position=0)
