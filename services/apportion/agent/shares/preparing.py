"""Prepare the shares of a container on the node, as recorded in the ledger.

If the pod's binding is not in the ledger yet, the preparation waits for up to `PATIENCE_S`.
Invariant: a container starts only after its shares are ready, and after the ledger has the shares
and the event SharesAllocated."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from apportion.agent.backend import NotMade
from apportion.agent.boot_book import BootBook
from apportion.agent.kubelet.port import Holder, NotPrepared
from apportion.agent.reporting.agent import trouble_of
from apportion.agent.reporting.view import Claim, NodeView
from apportion.agent.shares.cards import Daemons, Instances
from apportion.agent.shares.regions import Kept, Regions, open_to_all
from apportion.agent.usage.owners import Books
from apportion.core.grants import Edits, Grant, GrantRefused, Held, MadeInstance
from apportion.core.grants.region import RegionInvalid
from apportion_schemas import Device, Share
from apportion_schemas.quantities import TEXT_MAX

_log = logging.getLogger(__name__)

PATIENCE_S: Final = 20.0  # how long a start waits for its binding; the kubelet retries after 30 s

# modes in which a share changes the state of the device, which others use too
_OF_THE_CARD: Final = frozenset({"mig", "mps"})

# Report that a claim is allocated, or why it cannot be.
Answer = Callable[[Claim, str], Awaitable[bool]]


class Rounds:
    """A lock for one node: preparations run concurrently, but a cleanup round runs alone.

    Without the lock, a round might remove what a new pod has just got."""

    def __init__(self) -> None:
        self._round = asyncio.Lock()
        self._preparing = 0

    @asynccontextmanager
    async def preparing(self) -> AsyncIterator[None]:
        """Wait until no cleanup round runs, then register a preparation for the block."""
        async with self._round:
            self._preparing += 1
        try:
            yield
        finally:
            self._preparing -= 1

    @asynccontextmanager
    async def tidying(self) -> AsyncIterator[bool]:
        """Yield True if a cleanup round may run now, or False if a preparation is in progress."""
        async with self._round:
            yield self._preparing == 0


def largest(shares: Iterable[Share]) -> dict[str, int]:
    """Return the memory of the largest share of each device, in MiB."""
    most: dict[str, int] = {}
    for share in shares:
        most[share.device] = max(most.get(share.device, 0), share.memory_mib)
    return most


class Hands(NamedTuple):
    """The components with which `SharePreparing` applies grants on the node."""

    regions: Regions
    instances: Instances
    daemons: Daemons
    books: Books
    rounds: Rounds


@dataclass(slots=True, eq=False)
class SharePreparing:
    """Prepares the containers of one node; see `port.Preparing`."""

    view: NodeView
    devices: Callable[[], dict[str, Device]]
    answer: Answer
    hands: Hands
    granted: Callable[[Held], Grant]
    _: KW_ONLY
    at_allocate: bool = False  # containers were given their edits at Allocate, before preparation
    handed: BootBook[str] | None = None  # what this node has handed out to which pod
    # True if containers of a namespace may decline HAMi-core
    may_be_unheld: Callable[[str], bool] = lambda _namespace: False
    _plans: dict[str, tuple[Claim, tuple[Kept, ...]]] = field(default_factory=dict, init=False)
    _planned_as: tuple[object, object] = field(default=(None, None), init=False)

    async def prepare(self, holder: Holder) -> Edits:
        """Prepare a container and return the edits to it; see `port.Preparing`."""
        claim = await self._claim(holder)
        self._check_doubtful(claim)
        try:
            async with self.hands.rounds.preparing():
                prepared = await self._made(claim, holder)
            if self.handed is not None:
                await asyncio.to_thread(self.handed.note, claim.pod, _digest(claim))
        except (GrantRefused, NotMade, RegionInvalid, OSError) as error:
            problem = f"cannot prepare the share of {_name(claim)}: {error}"[:TEXT_MAX]
            await self.answer(claim, problem)
            raise NotPrepared(problem) from None
        if not await self.answer(claim, ""):
            raise NotPrepared(f"{_name(claim)} is no longer placed on this node")
        return prepared.edits

    def _check_doubtful(self, claim: Claim) -> None:
        # Any client may have written the phase and annotations of the pod.
        book = self.handed
        if not claim.doubtful or book is None or book.entries.get(claim.pod) == _digest(claim):
            return
        problem = (
            f"the annotations and phase of {_name(claim)} claim a share that this node never "
            "provided; delete the pod, so that it is recreated"
        )
        _log.warning("%s", problem)
        raise NotPrepared(problem)

    async def live_shares(self, *, but: str = "") -> list[Share]:
        """Return every share that may be in use, except those of the pod `but`.

        Raises NotPrepared. The kubelet keeps a pod in its checkpoint until its containers have
        ended. Invariant: once the agent has read the ledger to its end, containers on this node use
        only these shares and those of `but`."""
        pods = await self.hands.books.pods() - {but}
        claims = [claim.placed for pod, claim in self.view.held.items() if pod in pods]
        return [share for each in claims for share in (*each.shares, *each.borrowed)]

    def plan(self, claim: Claim, container: str) -> Edits:
        """Return the edits for a container, but create nothing yet. Raises GrantRefused."""
        own = {share.container for share in claim.placed.shares}
        source = claim.placed.shares if container in own else claim.placed.borrowed
        return self.granted(self._held(claim, container, source)).edits

    def kept(self, configuration: object) -> list[Kept]:
        """Return the region that each container on the node must have, cached by claim."""
        planned_as = configuration, self.devices()
        if any(now is not then for now, then in zip(planned_as, self._planned_as, strict=True)):
            self._plans.clear()
            self._planned_as = planned_as
        before, self._plans = self._plans, {}
        for pod, claim in self.view.held.items():
            known = before.get(pod)
            if known is None or known[0] is not claim:
                known = claim, tuple(self._kept(claim))
            self._plans[pod] = known
        return [each for _, plans in self._plans.values() for each in plans]

    def _kept(self, claim: Claim) -> Iterator[Kept]:
        own = {share.container for share in claim.placed.shares}
        lent = {share.container for share in claim.placed.borrowed} - own
        for names, source in ((own, claim.placed.shares), (lent, claim.placed.borrowed)):
            for container in sorted(names):
                try:
                    plan = self.granted(self._held(claim, container, source)).region
                except GrantRefused:
                    continue  # its start reports why
                if plan is not None:
                    yield Kept(claim.placed.namespace, plan)

    async def resize(self, pod: str) -> None:
        """Apply the pod's current limits in the ledger to its running containers."""
        claim = self.view.held.get(pod)
        if claim is None:
            return
        for container in dict.fromkeys(share.container for share in claim.placed.shares):
            try:
                plan = self.granted(self._held(claim, container, claim.placed.shares)).region
            except GrantRefused as error:
                _log.warning("container %s of %s: %s", container, _name(claim), error)
                continue
            if plan is not None and await asyncio.to_thread(self.hands.regions.resize, plan):
                _log.info(
                    "resized container %s of %s: the new memory limit applies now, the new cores "
                    "limit to processes started from now on",
                    container,
                    _name(claim),
                )

    async def _made(self, claim: Claim, holder: Holder) -> Grant:
        """Apply the grant. Raises GrantRefused, NotMade, NotPrepared, RegionInvalid, OSError."""
        hands = self.hands
        shares, container = self._shares(claim, holder)
        needed: list[Share] = []
        if any(device.mode in _OF_THE_CARD for device in self.devices().values()):
            needed = await self.live_shares(but=claim.pod)
        instances = await hands.instances.ensure(shares, needed)
        prepared = self.granted(self._held(claim, container, shares, instances))
        if self.at_allocate:
            # After a resize the environment differs, but HAMi-core goes by its region.
            if not holder.handed:
                raise GrantRefused("the kubelet's checkpoint lacks the agent's answer to Allocate")
            to = claim.of(container)
            for handed in holder.handed:
                if handed.to != to and handed.edits != prepared.edits:
                    given = f"the devices of {handed.to}" if handed.to else "no devices"
                    raise GrantRefused(
                        f"it got {given} at Allocate, because this pod was not in the ledger "
                        "yet; delete the pod, so that it is recreated"
                    )
        most = largest([*needed, *claim.placed.shares, *claim.placed.borrowed])
        for card in prepared.daemons:
            await hands.daemons.ensure(card, most[card])
        for folder in prepared.folders:
            await asyncio.to_thread(open_to_all, Path(folder))
        if prepared.region is not None:
            await asyncio.to_thread(hands.regions.ensure, prepared.region, starting=holder.starting)
        return prepared

    def _held(
        self,
        claim: Claim,
        container: str,
        shares: Iterable[Share],
        instances: Mapping[Share, MadeInstance] | None = None,
    ) -> Held:
        return Held.of(
            claim.pod,
            container,
            shares,
            self.devices(),
            controls=dict[str, str](claim.placed.controls.get(container, {}).items()),
            may_be_unheld=self.may_be_unheld(claim.placed.namespace),
            instances=instances,
        )

    async def _claim(self, holder: Holder) -> Claim:
        try:
            # The binding may still be on its way.
            async with asyncio.timeout(PATIENCE_S):
                claim = await self.view.bound_claim(holder.pod)
        except TimeoutError:
            raise NotPrepared(
                f"the ledger has no placement of pod {holder.pod} "
                f"({holder.namespace}/{holder.name}) on this node; another scheduler bound it, or "
                "the agent is behind the ledger"
            ) from None
        named = (claim.placed.namespace, claim.placed.name)
        if holder.name and (holder.namespace, holder.name) != named:
            raise NotPrepared(
                f"pod {holder.pod} is {holder.namespace}/{holder.name} in the kubelet, but "
                f"{_name(claim)} in the ledger"
            )
        return claim

    def _shares(self, claim: Claim, holder: Holder) -> tuple[list[Share], str]:
        """Return the shares and the name of the container that starts.

        If several containers of the pod have the same slots, return the last of them. Raises
        GrantRefused if a device of the pod is missing or unhealthy."""
        if trouble := trouble_of(claim.node, self.devices(), claim):
            raise GrantRefused(trouble)
        # The kubelet does not say whether an init container or a later one with the same slots
        # starts. The init container gets what the later one has, which is at least as much.
        own = {share.container for share in claim.placed.shares}
        names = [name for name in holder.containers if name in own] or list(holder.containers)
        container = names[-1]
        source = claim.placed.shares if container in own else claim.placed.borrowed
        return [each for each in source if each.container == container], container


def _digest(claim: Claim) -> str:
    # Without amounts, because a resize changes them.
    devices = sorted((share.container, share.device) for share in claim.placed.shares)
    return hashlib.sha256(msgspec.json.encode(devices)).hexdigest()


def _name(claim: Claim) -> str:
    return f"{claim.placed.namespace}/{claim.placed.name}"
