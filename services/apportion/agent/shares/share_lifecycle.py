"""Create, limit and remove the shares of one node, for a kubelet or for `apportion run`.

Invariant: nothing that belongs to a pod is removed while `Books` lists the pod."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Final

from msgspec import structs

from apportion.agent.boot_book import BootBook
from apportion.agent.kubelet.port import NotPrepared
from apportion.agent.places import Places, label_for_containers, needed_glibc
from apportion.agent.reporting.agent import Agent, Node
from apportion.agent.reporting.view import NodeView
from apportion.agent.shares.cards import Daemons, DriverLimits, Instances
from apportion.agent.shares.preparing import Hands, Rounds, SharePreparing, largest
from apportion.agent.shares.regions import Breach, Regions
from apportion.agent.usage.owners import Books
from apportion.agent.usage.sampling import Sampling
from apportion.core import grants
from apportion.core.grants import Grant, Held
from apportion.core.grants.controls import heeded, uncontrolled
from apportion.runtime.files.atomic import write_whole
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import ShareBreached

ADVISE_S: Final = 5.0  # between two rounds of deciding which containers wait; as in HAMi's monitor
RECENT_S: Final = 2 * ADVISE_S  # a kernel this long ago still counts as use
TIDY_S: Final = 10.0
_HANDED: Final = "handed.json"
DAEMON_DIED: Final = "its MPS daemon died, with the processes of its pods"
DAEMON_STAYS_AWAY: Final = "its MPS daemon died and does not restart; see the agent's log"
_PRELOAD: Final = b"/usr/local/vgpu/libvgpu.so\n"

Adapt = Callable[[str, Grant], Grant]

_log = logging.getLogger(__name__)


class ShareLifecycle:
    """The loops that create, limit and remove the shares of one node."""

    def __init__(
        self,
        agent: Agent,
        node: Node,
        places: Places,
        books: Books,
        *,
        metrics: Metrics,
        clock: Clock,
        adapt: Adapt = lambda _pod, made: made,
    ) -> None:
        """Set up the loops. `adapt` changes the grant of a pod that runs outside a container."""
        self._agent = agent
        self._node = node
        self._places = places
        self._books = books
        self._clock = clock
        self._view = view = agent.view_of(node.name)
        self._daemons_died: set[str] = set()
        self._daemons_away: set[str] = set()
        self._daemons_seen = asyncio.Event()
        self._handed = BootBook(places.state / _HANDED, places.proc, str, outlives_boot=True)
        self._hands = hands = Hands(
            Regions(places.state / "shares", places.priority_namespaces),
            Instances(node.backend),
            Daemons(places.mps, node.backend, places.mps_launcher),
            books,
            Rounds(),
        )

        def granted(held: Held) -> Grant:
            # Read the configuration each time, because it may change.
            core_limit = not agent.configuration.nvidia.disable_core_limit
            on_node = structs.replace(places.of_grants(), core_limit=core_limit)
            return adapt(held.pod, grants.grant(held, on_node))

        self.preparing = SharePreparing(
            view, lambda: node.devices, agent.answer, hands, granted,
            at_allocate=places.no_cdi, handed=self._handed,
            may_be_unheld=places.may_be_unheld,
        )  # fmt: skip
        limits = DriverLimits(node.backend, places.cgroups) if places.driver_limits else None
        self.sampling = Sampling(
            agent, node, hands.regions, books, clock=clock, places=places, limits=limits
        )
        self.breaches = Breaches(node, view, clock, lambda: agent.revision, places.may_be_unheld)
        self.sampling.expose(metrics, places.metrics_as)

    async def look(self) -> set[str]:
        """Return the pods that `Books` lists; the agent then keeps their claims. Raises
        NotPrepared."""
        pods = await self._books.pods()
        self._view.there = frozenset(pods)
        return pods

    def loops(self) -> list[Callable[[], Coroutine[None, None, None]]]:
        """Return the loops to run until cancelled."""
        return [
            self._advise, self._tidy, self._resize, self._report_daemons, self.breaches.report,
        ]  # fmt: skip

    async def _advise(self) -> None:
        await self._agent.reported(1)  # the ledger has been read to its end
        seen = self.sampling.look
        while True:
            await asyncio.sleep(ADVISE_S)
            now_s = self._clock.now().timestamp()
            kept = self.preparing.kept(self._agent.configuration)
            regions = self._hands.regions
            self.breaches.note(await asyncio.to_thread(regions.round, kept, now_s, RECENT_S))
            if self.sampling.look is not seen and self._places.library:
                seen = self.sampling.look
                self.breaches.note_again("look", seen.breaches)

    async def _resize(self) -> None:
        await self._agent.reported(1)  # the ledger has been read to its end
        view = self._view
        # All running containers first, then those that were resized.
        view.resized.update(view.held)
        while True:
            view.was_resized.clear()
            while view.resized:
                await self.preparing.resize(view.resized.pop())
            await view.was_resized.wait()

    async def _tidy(self) -> None:
        hands = self._hands
        await self._agent.reported(1)  # the ledger has been read to its end
        while True:
            try:
                async with hands.rounds.tidying() as alone:
                    if alone:
                        pods = await self.look()
                        await asyncio.to_thread(hands.regions.keep, pods)
                        # After a reboot, a pod with only claims is in the books only once it was
                        # prepared again, and a doubtful pod cannot be prepared without its entry.
                        doubtful = {pod for pod, claim in self._view.held.items() if claim.doubtful}
                        over = self._handed.entries.keys() - pods - doubtful
                        await asyncio.to_thread(self._handed.strike, *over)
                        needed = await self.preparing.live_shares()
                        modes = {each.id: each.mode for each in self._node.devices.values()}
                        cut = [card for card in modes if modes[card] == "mig"]
                        await hands.instances.keep(cut, needed)
                        served = largest(each for each in needed if modes.get(each.device) == "mps")
                        died = await hands.daemons.keep(served)
                        self._daemons_died |= died.keys()
                        self._daemons_away = {card for card, runs in died.items() if not runs}
                        self._daemons_seen.set()
            except (NotPrepared, OSError) as problem:  # a full disk may recover
                _log.warning("cleanup skipped: %s", problem)
            await asyncio.sleep(TIDY_S)

    async def _report_daemons(self) -> None:
        node = self._node
        while True:
            # A separate loop, so that no container's start waits for the ledger.
            await self._daemons_seen.wait()
            self._daemons_seen.clear()
            died, self._daemons_died = self._daemons_died, set()
            away = dict.fromkeys(self._daemons_away, DAEMON_STAYS_AWAY)
            for failed in (dict.fromkeys(died, DAEMON_DIED) | away | node.failed, away):
                if failed != node.failed:
                    node.failed = failed
                    await self._agent.report(node)

    def make_places(self) -> None:
        """Create the folders that containers mount. This call blocks. Raises OSError."""
        (self._places.state / "shares").mkdir(parents=True, exist_ok=True)
        given = [self._places.state / "shares", self._places.run]
        if self._places.library:
            write_whole(self._places.preload, _PRELOAD)
            given += [self._places.preload, self._places.library]
            if version := needed_glibc(self._places.library):
                _log.info(
                    "%s needs glibc %s: it has no effect in containers with an older glibc",
                    self._places.library,
                    version,
                )
        label_for_containers(path for path in given if path.exists())


HOUR_S: Final = 3_600
_MIB: Final = 1 << 20

_Key = tuple[str, str, str, str]


class Breaches:
    """Reports containers that exceed their shares, at most once per hour, container and device."""

    def __init__(
        self,
        node: Node,
        view: NodeView,
        clock: Clock,
        revision: Callable[[], int],
        may_be_unheld: Callable[[str], bool] = lambda _namespace: False,
    ) -> None:
        self._may_be_unheld = may_be_unheld
        self._node = node
        self._view = view
        self._clock = clock
        self._revision = revision
        self._hour = 0
        self._noted: set[_Key] = set()
        self._due: dict[_Key, Breach] = {}
        self._news = asyncio.Event()
        self._doubtful: dict[str, set[_Key]] = {}

    def note(self, found: Iterable[Breach]) -> None:
        """Queue each breach that was not already queued in the current hour."""
        hour = self._hour_now()
        if hour != self._hour:
            self._hour = hour
            self._noted.clear()
        for each in found:
            if _key(each) not in self._noted:
                self._noted.add(_key(each))
                self._due[_key(each)] = each
                self._news.set()

    def note_again(self, source: str, found: Iterable[Breach]) -> None:
        """Queue breaches that `source` found twice in a row.

        A process that is starting may look like a breach once."""
        now = {_key(each): each for each in found}
        before = self._doubtful.get(source, set())
        self._doubtful[source] = set(now)
        self.note(each for key, each in now.items() if key in before)

    async def report(self) -> None:
        """Append the queued reports until cancelled."""
        while True:
            await self._news.wait()
            while self._due:
                await self._report(self._due.pop(next(iter(self._due))))
            self._news.clear()

    async def _report(self, found: Breach) -> None:
        claim = self._view.held.get(found.pod)
        if claim is None or found.device not in claim.devices:
            return
        shares = (*claim.placed.shares, *claim.placed.borrowed)
        where = found.container, found.device
        share = next((each for each in shares if (each.container, each.device) == where), None)
        if share is None:
            return
        said = dict[str, str](claim.placed.controls.get(found.container, {}).items())
        may_be_unheld = self._may_be_unheld(claim.placed.namespace)
        if found.code != "raised" and uncontrolled(heeded(said, may_be_unheld=may_be_unheld)):
            return
        data = ShareBreached(
            pod=claim.pod,
            node=claim.node,
            attempt=claim.attempt,
            container=found.container,
            device=found.device,
            code=found.code,
            memory_mib=share.memory_mib,
            memory_found_mib=found.memory // _MIB,
            cores=share.cores,
            cores_found=found.cores,
        )
        what = f"{found.container}/{found.device}/{found.code}/{self._hour_now()}"
        await self._node.publisher.publish(
            data,
            event_id=f"{claim.pod}/{claim.attempt}/breach/{what}",
            basis=self._revision(),
            cause=claim.bound_revision,
        )

    def _hour_now(self) -> int:
        return int(self._clock.now().timestamp()) // HOUR_S


def _key(found: Breach) -> _Key:
    return found.pod, found.container, found.device, found.code
