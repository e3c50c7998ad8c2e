"""Wait until every submitted pod is placed or refused, or optionally until it is allocated.

Invariants: no decision is missed; a pod that is refused and later placed counts as placed."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from apportion.cli.client.ledger import follow_until
from apportion.cli.exits import Outdated
from apportion.cli.pods.append import Submitted
from apportion.core.ledger.rules import RULES, Rules
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.port import Record
from apportion_schemas import (
    FormatEnabled,
    InvalidEvent,
    PodEvicted,
    PodPlaced,
    PodRefused,
    SharesAllocated,
    UnknownEvent,
    UnreadableEvent,
)

SUBJECTS = tuple(f"apportion.v1.{each}.>" for each in ("placement", "pending", "allocation"))


class Decided(msgspec.Struct, frozen=True):
    """The scheduler's decision on one pod, with its revision."""

    revision: int
    placed: PodPlaced | None = None
    refused: PodRefused | None = None


class Awaited:
    """Collects the decisions on some pods as they arrive. Calls `progress` for each settled pod."""

    def __init__(
        self, pods: Iterable[Submitted], progress: Callable[[], None], *, allocated: bool = False
    ) -> None:
        self.pods = {pod.uid: pod for pod in pods}
        self.decided: dict[str, Decided] = {}
        self.unlooked: dict[str, str] = {}  # why no scheduler considers a pod, by uid
        self.evicted: dict[str, list[str]] = {}  # pods evicted for a pod, by its uid
        self.first_placed_s = 0.0  # monotonic time
        self.revision = 0  # newest revision read
        self._progress = progress
        self._to_the_end = allocated
        self._settled: set[str] = set()
        self._of = set(self.pods)
        self._enough = len(self.pods)
        self._all = asyncio.Event()
        self._rules = Rules()

    @property
    def refused(self) -> list[str]:
        """Return the uids of pods that were refused and have not been placed since."""
        return [uid for uid, said in self.decided.items() if said.refused]

    @property
    def undecided(self) -> list[str]:
        """Return the uids of pods that still wait for a decision."""
        return [uid for uid in self.pods if uid not in self.decided and uid not in self.unlooked]

    @property
    def settled(self) -> bool:
        """Return True once no pod needs waiting: each is decided, or no scheduler considers it."""
        return self._all.is_set()

    def set_aside(self, unlooked: Mapping[str, str]) -> None:
        """Stop waiting for pods that no scheduler considers; `unlooked` has the reason by uid."""
        self.unlooked |= unlooked
        for uid in unlooked:
            self._settle(uid)

    async def recall(self, ledger: JetStreamLedger, revisions: Iterable[int]) -> None:
        """Read the earlier decisions at these revisions. Raises the errors of `wait`."""
        self._rules = await stream.read_rules(ledger.wire)
        for revision in revisions:
            record = await stream.read_record(ledger.wire, revision)
            if record is not None:  # None if trimmed; the next decision counts
                self._deliver(record)

    async def wait(self, ledger: JetStreamLedger, timeout_s: float) -> None:
        """Return when all pods are settled, or after `timeout_s`. Raises LedgerError, Outdated."""
        if self.pods:
            start = min(pod.revision for pod in self.pods.values())
            self.revision = max(self.revision, start - 1)
            await self._follow(ledger, start, timeout_s)

    async def wait_on(self, ledger: JetStreamLedger, timeout_s: float) -> None:
        """After `wait`, wait until a refused pod gets another decision, at most `timeout_s`."""
        self._all.clear()
        self._settled.clear()
        self._of = set(self.refused)
        self._enough = 1
        await self._follow(ledger, self.revision + 1, timeout_s)

    async def _follow(self, ledger: JetStreamLedger, start: int, timeout_s: float) -> None:
        self._rules = await stream.read_rules(ledger.wire)
        await follow_until(
            self._all.wait(), ledger, self._deliver,
            start=start or 1, subjects=(*SUBJECTS, RULES), timeout_s=timeout_s,
        )  # fmt: skip

    def _deliver(self, record: Record) -> None:
        try:
            data = self._rules.read(record.revision, record.subject, record.payload).data
        except UnknownEvent as error:
            raise Outdated(
                f"the pods are submitted, but this build cannot read the decisions from revision "
                f"{record.revision} on: {error}"
            ) from None
        except (UnreadableEvent, InvalidEvent):
            return  # the fold reports it; it decides nothing
        if isinstance(data, FormatEnabled):
            self._rules.enable(record.revision, data)
        if isinstance(data, PodPlaced | PodRefused | SharesAllocated):
            self._take(record.revision, data.pod, data)
        elif isinstance(data, PodEvicted):
            self._take(record.revision, data.beneficiary, data)

    def _take(
        self, revision: int, uid: str, data: PodPlaced | PodRefused | SharesAllocated | PodEvicted
    ) -> None:
        if uid not in self._of:
            return
        self.revision = revision
        before = self.decided.get(uid)
        if isinstance(data, PodEvicted):
            self.evicted.setdefault(uid, []).append(f"{data.namespace}/{data.name}")
        if isinstance(data, PodPlaced):
            self.first_placed_s = self.first_placed_s or time.monotonic()
            self.decided[uid] = Decided(revision, placed=data)
        elif isinstance(data, PodRefused) and (before is None or before.refused):
            self.decided[uid] = Decided(revision, refused=data)
        if self._to_the_end and isinstance(data, PodPlaced):
            self._settled.discard(uid)
        else:
            self._settle(uid)

    def _settle(self, uid: str) -> None:
        if uid not in self._settled:
            self._settled.add(uid)
            self._progress()
        if len(self._settled) >= self._enough:
            self._all.set()
