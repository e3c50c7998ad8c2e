"""Finds and appends the events that make the ledger agree with the cluster.

Every event is fenced by the newest revision on its subject, so only one of two watchers writes the
event. If another writer was faster, the object is compared again unless its event is final.
Invariant: the watcher appends nothing while ledger and cluster agree."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec import structs

from apportion.core.devices.shares import Oversold
from apportion.core.explain.text.event_text import families_of, shares_words
from apportion.core.ledger.fold import Change
from apportion.core.ledger.handlers.adoption import charged
from apportion.core.ledger.handlers.unattributed_devices import taken
from apportion.core.ledger.state import Phase, PodState, State
from apportion.core.workloads.adoption.placement_annotations import shares_text
from apportion.core.workloads.document import shown
from apportion.core.workloads.kinds.drafts import claims_of, submitted
from apportion.runtime.ledger.fences import Fences
from apportion.runtime.ledger.port import FenceRefused, Ledger, LedgerUnavailable
from apportion.runtime.ledger.publisher import Append, Publisher
from apportion.runtime.ledger.reader import Reader
from apportion.watcher.kubernetes.kind import is_news
from apportion.watcher.kubernetes.view import (
    ClusterView,
    Marked,
    change_of,
    placed_on,
    says_otherwise,
)
from apportion_schemas import (
    DevicesRegistered,
    DifferenceFound,
    Disk,
    HostPort,
    InvalidEvent,
    Neighbour,
    NodeGone,
    NodeObserved,
    PodAdopted,
    PodChanged,
    PodGone,
    PodRejected,
    PodSubmitted,
    PodTerm,
    subject_of,
)
from apportion_schemas.catalogue import SUBJECTS
from apportion_schemas.quantities import NAME_MAX, TEXT_MAX, Payload

OTHERS_MAX, ALIKE_MAX = 1024, 4096
_Alike = tuple[
    str,
    tuple[tuple[str, str], ...],
    tuple[HostPort, ...],
    tuple[PodTerm, ...],
    tuple[Disk, ...],
    tuple[str, ...],
    bool,
]


class Fact(NamedTuple):
    """An event to append, its message id, and the newest revision expected on its subject."""

    data: Payload
    event_id: str
    expect: int


class Adoption(NamedTuple):
    """A pod that runs on a node without a placement in the ledger, to adopt."""

    data: PodAdopted
    problem: str = ""  # why the ledger cannot account for its devices
    assumed: bool = False  # no trusted source names its devices


class Revisions:
    """The newest revision of each subject, for fences."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._newest: dict[str, int] = {}
        self.fences = Fences()
        # Live pods whose submission is not the newest event on their subject.
        self.adopted: set[str] = set()

    def note(self, subject: str, revision: int) -> None:
        """Record that an event on the subject has this revision."""
        self._newest[subject] = max(revision, self._newest.get(subject, 0))

    def forget(self, subject: str) -> None:
        """Forget a subject to which no more events will be appended."""
        self._newest.pop(subject, None)

    def expected(self, newest: int) -> int:
        """Return the revision that a fence must expect: `newest`, or 0 if that was trimmed."""
        return self.fences.expected(newest, folded=self._state.revision)

    def of(self, data: Payload) -> int:
        """Return the revision that the next event with this payload must expect."""
        return self.expected(self._newest.get(subject_of(data), 0))


class Facts:
    """Compares a view of the cluster with the ledger's state, and yields the missing events."""

    def __init__(self, view: ClusterView, state: State, revisions: Revisions) -> None:
        self._view = view
        self._state = state
        self._revisions = revisions

    def ends(self, uids: Iterable[str]) -> Iterator[Fact]:
        """Yield PodGone for each pod in the ledger that ended, left or was bound elsewhere."""
        for uid in uids:
            known = self._state.pods.get(uid)
            rejected = self._state.rejected.get(uid)
            if known is None and rejected is None:
                self._view.gone.pop(uid, None)
                continue
            reason = self._why_gone(uid, known)
            if not reason:
                continue
            if known is not None and known.submitted.group:  # its PodGroup may be gone already
                self._view.pod_groups.mark(known.submitted.group)
            data = PodGone(uid=uid, reason=reason[:TEXT_MAX])
            if known is not None and not self._is_adopted(known):
                newest = max(known.submitted_revision, known.changed_revision)
                yield Fact(data, f"{uid}/gone/{newest}", self._revisions.expected(newest))
                continue
            # A pod that was released before it was adopted or submitted again ends twice.
            changed = self._revisions.expected(known.changed_revision) if known else 0
            expect = max(self._revisions.of(data), changed)
            yield Fact(data, f"{uid}/gone" + (f"/{expect}" if expect else ""), expect)

    def _is_adopted(self, pod: PodState) -> bool:
        # Then the newest event on the pod's subject is not its submission.
        return pod.uid in self._revisions.adopted or pod.placed_revision == pod.submitted_revision

    def _why_gone(self, uid: str, known: PodState | None) -> str:
        pod = self._view.pods.get(uid)
        if pod is None or uid in self._view.gone:
            return self._view.gone.get(uid, "")
        if pod.ended:
            return pod.ended
        if pod.deleting and not pod.node:
            return "deleted before it was bound"
        if pod.node and not placed_on(known, pod.node):
            return f"bound to {pod.node} without a placement in the ledger"
        placed = known.placement if known is not None and known.phase is Phase.PLACED else None
        if not pod.node or placed is None or not pod.attempt.isdecimal():
            return ""
        if pod.attempt != str(placed.attempt) and pod.shares != shares_text(placed.shares):
            return f"bound to {pod.node} by attempt {pod.attempt}, which had been abandoned"
        return ""

    def adoptions(self, uids: Iterable[str]) -> Iterator[Adoption]:
        """Yield pods that run on a node without a placement in the ledger, with their devices."""
        for uid in uids:
            pod = self._view.pods.get(uid)
            if pod is None or pod.claim is None or pod.ended or uid in self._state.pods:
                continue
            node = self._state.nodes.get(pod.node)
            devices = {name: each.device for name, each in node.by_id.items()} if node else {}
            known = self._state.configuration.nvidia.known_mig_geometries
            data, assumed = pod.claim.on(pod.node, devices, known), False
            if data is None and node is not None:
                data, assumed = taken(pod.claim, node, known), True
            if data is None:
                continue
            try:
                charged(self._state, data)
            except Oversold as error:
                yield Adoption(data, str(error), assumed=assumed)
            else:
                yield Adoption(data, assumed=assumed)

    def adoption(self, data: PodAdopted) -> Fact:
        """Return the event by which the ledger adopts the pod and its devices."""
        expect = self._revisions.of(data)
        return Fact(data, f"{data.pod}/adopted/{expect}", expect)

    def conflict(self, data: PodAdopted, problem: str) -> Iterator[Fact]:
        """Yield an event that reports why the ledger cannot account for the pod's devices."""
        about = data.submitted
        held = shares_words(data.shares, families_of(about.shape.asks))
        return self.difference(
            DifferenceFound(
                kind="conflict",
                name=f"{about.namespace}/{about.name}"[:NAME_MAX],
                pod=data.pod,
                ledger=problem[:TEXT_MAX],
                cluster=f"{data.node}: {held}"[:TEXT_MAX],
            )
        )

    def difference(self, data: DifferenceFound) -> Iterator[Fact]:
        """Yield `data` as an event, unless the ledger has this event already."""
        if self._state.differing.get(data.pod) != data:
            yield self._fact(data)

    def overtaken(self) -> Iterator[Fact]:
        """Yield an event for each of our pods that another scheduler bound, once it is adopted."""
        for uid in list(self._view.overtaken):
            known = self._state.pods.get(uid)
            if known is None or known.placement is None or not known.adopted:
                continue  # not adopted yet
            data = DifferenceFound(
                kind="overtaken", name=known.full_name[:NAME_MAX], pod=uid,
                ledger="pending", cluster=known.placement.node,
            )  # fmt: skip
            if self._state.differing.get(uid) == data:
                del self._view.overtaken[uid]
            else:
                yield self._fact(data)  # again after a refused append

    def annotations(self) -> Iterator[Fact]:
        """Yield an event for each bound pod whose annotated shares differ from the ledger's."""
        for uid, pod in self._view.pods.items():
            known = self._state.pods.get(uid)
            placed = known.placement if known else None
            if known is None or placed is None or placed.node != pod.node or pod.ended:
                continue
            held = shares_text(placed.shares)
            # Our binder writes the shares on the pod in the same request that binds it.
            written = placed.shares and known.bound_revision and not known.adopted
            if pod.shares != held and (pod.shares or written):
                yield from self.difference(
                    DifferenceFound(
                        kind="annotation", name=known.full_name[:NAME_MAX], pod=uid,
                        ledger=held[:TEXT_MAX], cluster=pod.shares[:TEXT_MAX],
                    )
                )  # fmt: skip

    def missed(self, facts: Iterable[Fact]) -> Iterator[Fact]:
        """Yield a DifferenceFound event for each fact that the watch should have reported."""
        for fact in facts:
            if not isinstance(fact.data, DifferenceFound):
                about = subject_of(fact.data).removeprefix(f"{SUBJECTS}.")
                kind = type(fact.data).__name__
                yield from self.difference(
                    DifferenceFound(kind="missed", name=about[:NAME_MAX], cluster=kind)
                )

    def arrivals(self, uids: Iterable[str]) -> Iterator[Fact]:
        """Yield events that submit pods in need of a placement, or reject invalid pods."""
        for uid in uids:
            pod = self._view.pods.get(uid)
            if pod is None or uid in self._state.pods or pod.ended or pod.node or pod.deleting:
                continue
            if pod.ungrouped and self._view.pod_groups.has_pod_grouper():
                continue
            problem = pod.problem
            if pod.draft is not None and pod.draft.group:
                problem = self._view.pod_groups.unread(pod.draft.group)
            if problem is not None:
                data = PodRejected(
                    uid=uid,
                    namespace=pod.namespace,
                    name=pod.name,
                    field=problem.field[-TEXT_MAX:],
                    value=shown(problem.value),
                    problem=problem.problem[:TEXT_MAX],
                    fix=problem.fix[:TEXT_MAX],
                )
                if self._state.rejected.get(uid) != data:
                    expect = self._revisions.of(data)
                    yield Fact(data, f"{uid}/rejected/{expect}", expect)
            elif pod.draft is not None:
                expect = self._revisions.of(PodGone(uid=uid))
                again = f"/{expect}" if expect else ""
                yield Fact(submitted(pod.draft, uid), f"{uid}/submitted{again}", expect)

    def changes(self, uids: Iterable[str]) -> Iterator[Fact]:
        """Yield events for pods whose labels, gates, CPU or memory changed, or that are deleted."""
        for uid in uids:
            pod, known = self._view.pods.get(uid), self._state.pods.get(uid)
            if pod is None or known is None or pod.ended:
                continue
            if says_otherwise(known, pod):
                newest = known.submitted_revision
                if self._is_adopted(known):
                    newest = self._revisions.of(PodGone(uid=uid))
                newest = max(known.changed_revision, newest)
                expect = self._revisions.expected(newest)
                yield Fact(change_of(pod), f"{uid}/changed/{newest}", expect)

    def nodes(self, names: Iterable[str]) -> Iterator[Fact]:
        """Yield events for nodes that were added, changed or removed."""
        for name in names:
            view = self._view.nodes.get(name)
            state = self._state.nodes.get(name)
            known = state.observed if state else None
            if view is not None:
                data = self._observed(view)
                if is_news(data, known):
                    yield self._fact(data)
                wanted = self._view.registered[name]
                if is_news(wanted, (state and state.registered) or DevicesRegistered(node=name)):
                    yield self._fact(wanted)
            elif known is not None:
                yield self._fact(NodeGone(node=name))

    def groups_of(self, uids: Iterable[str]) -> dict[str, None]:
        """Return the gangs of those pods in `uids` that need a placement."""
        drafts = (pod.draft for uid in uids if (pod := self._view.pods.get(uid)) is not None)
        return dict.fromkeys(draft.group for draft in drafts if draft and draft.group)

    def groups(self, names: Iterable[str]) -> Iterator[Fact]:
        """Yield events for gangs that the ledger lacks or stores with other values."""
        yield from map(self._fact, self._view.pod_groups.differences(names))

    def mirrored(self, marked: Marked) -> Iterator[Fact]:
        """Yield events for changed queues, quotas, disruption budgets and namespaces."""
        for kind, mirror in self._view.mirrors.items():
            yield from map(self._fact, mirror.differences(marked.others.get(kind, ())))

    def volume_claims(self, names: Iterable[str], uids: Iterable[str]) -> Iterator[Fact]:
        """Yield events for changed volume claims: those in `names`, and those of pods in `uids`."""
        drafts = (pod.draft for uid in uids if (pod := self._view.pods.get(uid)) is not None)
        coming = (
            f"{draft.namespace}/{claim}" for draft in drafts if draft for claim in claims_of(draft)
        )
        yield from map(self._fact, self._view.volumes.differences(names, coming))

    def _fact(self, data: Payload) -> Fact:
        expect = self._revisions.of(data)
        return Fact(data, f"{subject_of(data)}/{type(data).__name__}/{expect}", expect)

    def _observed(self, node: NodeObserved) -> NodeObserved:
        cpu_milli, memory_mib, pods = node.cpu_milli, node.memory_mib, node.pods
        extended = dict(node.extended)
        unnamed: set[str] = set()
        others: Counter[_Alike] = Counter()
        for uid, pod in self._view.pods_on.get(node.node, {}).items():
            if pod.ended or placed_on(self._state.pods.get(uid), node.node):
                continue
            minded = (pod.ports, pod.anti_affinity, pod.disks, pod.volume_claims)
            labels = tuple(sorted(pod.labels.items()))
            others[pod.namespace, labels, *minded, pod.deleting] += 1
            cpu_milli -= pod.amounts.cpu_milli
            memory_mib -= pod.amounts.memory_mib
            pods -= 1
            unnamed.update(pod.claim.families if pod.claim else ())
            for name, amount in pod.amounts.extended.items():
                if name in extended:
                    extended[name] = max(extended[name] - amount, 0)
        neighbours = [
            Neighbour(
                namespace=namespace,
                labels=dict(labels),
                count=min(count, ALIKE_MAX),
                ports=ports,
                anti_affinity=terms,
                disks=disks,
                volume_claims=claims,
                terminating=terminating,
            )
            for (namespace, labels, ports, terms, disks, claims, terminating), count in (
                others.items()
            )
        ]
        # In a fixed order; no kubelet runs so many pods that any would be left out.
        neighbours.sort(key=msgspec.json.encode)
        return structs.replace(
            node,
            cpu_milli=max(cpu_milli, 0),
            memory_mib=max(memory_mib, 0),
            pods=max(pods, 0),
            extended=extended,
            labels=self._view.topologies.labels(node),
            version=self._view.version_of(node),
            unnamed_families=tuple(sorted(unnamed)),
            others=tuple(neighbours[:OTHERS_MAX]),
            volume_limits=self._view.volume_limits(node.node),
        )


TOGETHER_MAX = 512  # events appended at once, however large the cluster is

_log = logging.getLogger(__name__)


class FactWriting:
    """Appends the events of one watcher to the ledger."""

    def __init__(
        self,
        state: State,
        view: ClusterView,
        revisions: Revisions,
        publisher: Publisher,
        append: Append,
    ) -> None:
        self._state = state
        self._view = view
        self._revisions = revisions
        self._publisher = publisher
        self._append_one = append
        # Pods that were in the ledger already, or that no event can hold.
        self.final: set[str] = set()
        self.written: Counter[str] = Counter()  # by name of the event

    async def append(self, reader: Reader[Change], ledger: Ledger, facts: list[Fact]) -> None:
        """Append and fold the events. Raises LedgerErrors that a retry cannot fix."""
        for first in range(0, len(facts), TOGETHER_MAX):
            batch = facts[first : first + TOGETHER_MAX]
            basis = self._state.revision
            revisions = await asyncio.gather(*(self._write(ledger, fact, basis) for fact in batch))
            await reader.reached(max(revisions))

    async def _write(self, ledger: Ledger, fact: Fact, basis: int) -> int:
        try:
            draft = self._publisher.draft(fact.data, event_id=fact.event_id, basis=basis)
        except InvalidEvent as error:
            _log.error("invalid event, not appended: %s", error)
            self.final.add(getattr(fact.data, "uid", ""))
            return 0
        try:
            done = await self._append_one(structs.replace(draft, expect=fact.expect))
        except FenceRefused as refused:
            await self._overtaken(fact.data, refused, ledger)
            return 0
        if done.already_there and (done.revision or 0) <= basis:
            # An older event: this watcher began with a snapshot, which has no revisions.
            found = await ledger.last_on_subject(draft.subject)
            if found != fact.expect:  # otherwise the id is free again once the server forgets it
                late = FenceRefused(draft.subject, fact.expect, found)
                await self._overtaken(fact.data, late, ledger)
            return 0
        self.written[type(fact.data).__name__] += 1
        return done.revision or 0

    async def _overtaken(self, data: Payload, refused: FenceRefused, ledger: Ledger) -> None:
        """After a refused fence, mark the object for comparison unless the event is final."""
        uid = getattr(data, "uid", "")
        with suppress(LedgerUnavailable):  # the next refusal reads it again
            await self._revisions.fences.refused(refused, ledger)
        if isinstance(data, PodSubmitted) and uid not in self._state.rejected:
            self.final.add(uid)  # it was in the ledger, or is now
        elif isinstance(data, PodGone | PodChanged) and refused.found is not None:
            self._revisions.adopted.add(uid)  # the fence is not about its submission
            self._revisions.forget(subject_of(data))
            self._revisions.note(subject_of(data), refused.found)
            self._view.mark(data)
        elif refused.found == 0:
            self._view.mark(data)
        elif refused.found is not None and refused.found > refused.expected:
            self._revisions.note(subject_of(data), refused.found)
            self._view.mark(data)
