"""Sample the use of a node every few seconds, for metrics, subscribers and hourly sums.

If idle pods may be evicted, the end of an idle period is recorded within about a minute.
Invariants: a failed sample is skipped and logged once. Sampling continues whatever containers do,
and while the ledger accepts no records. An hour's sums are kept until they are recorded."""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Final

import msgspec

from apportion.agent.kubelet.port import NotPrepared
from apportion.agent.places import Places
from apportion.agent.reporting.agent import Agent, Node
from apportion.agent.shares.cards import DriverLimits, limits_of
from apportion.agent.shares.regions import Regions
from apportion.agent.usage.account import Account, restored, saved
from apportion.agent.usage.names import Names, Seen, families, samples
from apportion.agent.usage.owners import Books
from apportion.agent.usage.uses import Counted, Key, Look, read, tell_pids, wrong_pids
from apportion.runtime.files.atomic import write_whole
from apportion.runtime.process.clock import Clock, rfc3339, rfc3339_of
from apportion.runtime.process.metrics import Metrics, Sample
from apportion_schemas import DeviceUse, ShareUse, UnsharedUse, UsageSample
from apportion_schemas.catalogue import token

SAMPLE_S: Final = 5.0
RECORD_S: Final = 3_600.0
EARLY_S: Final = 60.0  # the shortest period of a record
SAVE_S: Final = 60.0
# A sample counts for the time since the previous one, but for at most so many intervals.
LOOKS_MISSED_MAX: Final = 3
CLOSED_MAX: Final = 48  # hours kept while the ledger accepts no records; then one is dropped
SUBJECT: Final = "apportion.usage"
_SAVED: Final = "usage.msgpack"
_MIB: Final = 1 << 20
_UNSHARED_SENT: Final = 256

Send = Callable[[str, bytes], Awaitable[None]]

_BROKEN: Final = ".broken"  # suffix of an unreadable account that was set aside

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class Sampling:
    """The loop that samples the use of one node."""

    def __init__(
        self,
        agent: Agent,
        node: Node,
        regions: Regions,
        books: Books,
        *,
        clock: Clock,
        places: Places,
        limits: DriverLimits | None = None,
    ) -> None:
        """Set up the loop. `limits` sets the driver's memory limits after each sample."""
        self._agent = agent
        self._node = node
        self._view = agent.view_of(node.name)
        self._regions = regions
        self._books = books
        self._limits = limits
        self._clock = clock
        self._saved = places.state / _SAVED
        self._sample_s = places.sample_s
        self._record_s = places.record_s
        # Nodes begin their hours at different times, so that they do not all write at once.
        self._offset_s = zlib.crc32(node.name.encode()) % places.record_s
        self._accounts = [Account(0.0)]  # the last one is open
        self._closed = asyncio.Event()
        self._saved_s = 0.0
        self.look = Look()  # the result of the last sample
        self._unshared: set[tuple[str, int]] = set()
        # Shares that did nothing in the last full hour; None if unknown, as after a start.
        self._idle: set[Key] | None = None
        self._problem = ""

    def expose(self, metrics: Metrics, also: tuple[Names, ...]) -> None:
        """Export the last sample as metrics, also under other systems' names."""

        def found() -> Iterator[Sample]:
            return samples(Seen(self._node.name, self._node.devices, self.look), also)

        metrics.looked_up(families(also), found)

    async def run(self, send: Send) -> None:
        """Sample the node and record each hour's sums, until cancelled."""
        await self._agent.reported(1)  # the ledger has been read to its end by that time
        self._accounts = await asyncio.to_thread(self._restored)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_on(send), name="usage looks")
            tasks.create_task(self._record_closed(), name="usage records")

    async def _look_on(self, send: Send) -> None:
        looked_s = self._saved_s = self._clock.monotonic()
        while True:
            now_s, account = self._clock.monotonic(), self._accounts[-1]
            if await self._looked():
                passed_s = min(now_s - looked_s, LOOKS_MISSED_MAX * self._sample_s)
                account.add(self.look, passed_s)
                await send_sample(send, self._node.name, self.look, self._clock)
            looked_s = now_s
            if self.is_over(account):
                account.ended_s = self._wall_s()
                self._accounts.append(Account(account.ended_s))
                if len(self._accounts) > CLOSED_MAX + 1:
                    dropped = self._accounts.pop(1)  # the first is being sent
                    _log.warning(
                        "usage since %s is lost: it was not recorded in time",
                        rfc3339_of(dropped.began_s),
                    )
                self._saved_s = -SAVE_S
                self._closed.set()
            if now_s - self._saved_s >= SAVE_S:
                self._saved_s = now_s
                await asyncio.to_thread(self._save, list(self._accounts))
            await asyncio.sleep(max(0.0, now_s + self._sample_s - self._clock.monotonic()))

    async def _looked(self) -> bool:
        # Processes before pods: a pod is in the books before its first process runs.
        loads = await self._node.backend.loads()
        try:
            pods = await self._books.pods()
        except NotPrepared as problem:
            if str(problem) != self._problem:
                _log.warning("usage unknown: %s", problem)
            self._problem = str(problem)
            return False
        self._problem = ""
        claims = [claim for pod, claim in self._view.held.items() if pod in pods]
        readings = await asyncio.to_thread(read, self._regions, self._wall_s())
        counted = await asyncio.to_thread(Counted, claims, loads, self._books.owner)
        self.look = counted.look(self._node.devices, readings)
        if wrong := wrong_pids(readings, self.look.pids):
            await asyncio.to_thread(tell_pids, self._regions, wrong)
        if self._limits is not None:
            cgroups = self.look.cgroups
            await self._limits.hold(limits_of(claims, cgroups, self._node.devices))
        # Log a process that uses a GPU without a share, once.
        found = {(each.device, each.pid): each for each in self.look.unshared}
        for key in found.keys() - self._unshared:
            each = found[key]
            _log.warning(
                "process %d (%s%s) uses %d MiB of %s without a share of it",
                each.pid,
                each.owner.command,
                f", pod {each.owner.pod}" if each.owner.pod else "",
                each.memory // _MIB,
                each.device,
            )
        self._unshared = set(found)
        return True

    async def _record_closed(self) -> None:
        while True:
            while len(self._accounts) > 1:
                await publish_records(self._node, self._accounts[0], self._agent.revision)
                del self._accounts[0]
                self._saved_s = -SAVE_S
            self._closed.clear()
            await self._closed.wait()

    def is_over(self, account: Account) -> bool:
        """Return True if the account's hour is over.

        If idle pods may be evicted, the hour ends early if a share works that may have done nothing
        in the hour before, because the scheduler must not evict its pod as idle."""
        now_s, idle = self._wall_s(), self._agent.configuration.idle
        reclaims = bool(idle.after) and idle.action == "reclaim"
        if self._hour(now_s) != self._hour(account.began_s):
            self._idle = account.shares(idle.below, working=False) if reclaims else None
            return True
        if not reclaims or self._idle == set() or now_s - account.began_s < EARLY_S:
            return False
        woken = account.shares(idle.below, working=True)
        if self._idle is None:
            self._idle = account.shares(idle.below, working=False)
        else:
            woken &= self._idle
            self._idle -= woken
        return bool(woken)

    def _hour(self, at_s: float) -> int:
        return int((at_s - self._offset_s) // self._record_s)

    def _wall_s(self) -> float:
        return self._clock.now().timestamp()

    def _restored(self) -> list[Account]:
        # The accounts before the restart: hours that were not recorded yet, and an open one.
        accounts: list[Account] = []
        try:
            accounts = restored(self._saved.read_bytes())
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            # An unreadable account is kept under another name for examination.
            aside = self._saved.with_name(self._saved.name + _BROKEN)
            with suppress(OSError):
                self._saved.replace(aside)
            _log.warning("cannot read %s (%s); moving it to %s", self._saved, error, aside)
        if not accounts or accounts[-1].ended_s:
            accounts.append(Account(self._wall_s()))
        return accounts

    def _save(self, accounts: list[Account]) -> None:
        try:
            write_whole(self._saved, saved(accounts))
        except (OSError, ValueError, OverflowError) as error:
            _log.warning("cannot write %s: %s", self._saved, error)


async def send_sample(send: Send, node: str, look: Look, clock: Clock) -> None:
    """Send one sample of a node to its subscribers."""
    sample = UsageSample(
        node=node,
        time=rfc3339(clock.now()),
        devices=tuple(
            DeviceUse(
                device=load.device, memory_used_mib=load.memory // _MIB, cores_used=load.cores
            )
            for load in look.loads
            if load.instance is None
        ),
        shares=tuple(
            ShareUse(
                pod=use.pod,
                namespace=use.namespace,
                name=use.name,
                container=use.container,
                device=use.device,
                instance=use.instance,
                memory_mib=use.memory_limit // _MIB,
                memory_used_mib=use.memory_used // _MIB,
                cores=use.cores_limit,
                cores_used=use.cores_used,
            )
            for use in look.uses
        ),
        unshared=tuple(
            UnsharedUse(
                device=each.device,
                pid=each.pid,
                command=each.owner.command,
                pod=each.owner.pod,
                memory_used_mib=each.memory // _MIB,
            )
            for each in look.unshared[:_UNSHARED_SENT]
        ),
    )
    await send(f"{SUBJECT}.{token(node)}", _encode(sample))


async def publish_records(node: Node, account: Account, basis: int) -> None:
    """Append the records of a closed `Account`. `basis` is the last revision read."""
    named = f"{node.name}/usage/{account.began_s:.0f}"
    for number, record in enumerate(account.records(node.name)):
        await node.publisher.publish(
            record, event_id=f"{named}/{number}", basis=basis, time=rfc3339_of(account.ended_s)
        )
