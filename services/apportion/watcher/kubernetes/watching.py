"""The watcher's loop over a cluster: compare marked objects, append, fold, repeat.

Invariant: a change of the cluster is compared only after the fold has reached the revision that the
ledger had when the change was read. So a binding is never seen before its placement."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import msgspec

from apportion.core.explain.text.event_text import families_of, shares_words
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.core.workloads.adoption.claims import WRITERS
from apportion.core.workloads.kinds.queues import KAI, KAI_QUEUE
from apportion.core.workloads.pods.gangs import VERSIONS
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.runtime.kube.client import KubeApi, KubeRefused, KubeUnavailable, pod_path
from apportion.runtime.kube.examining import CLAIMS
from apportion.runtime.kube.pods import find_pod, read_pod
from apportion.runtime.kube.watch import Discovery, Watch, any_problem, newest_version
from apportion.runtime.ledger.port import Ledger
from apportion.runtime.ledger.publisher import Append, Publisher
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.metrics import Metrics
from apportion.watcher.kubernetes.doubts import Doubts
from apportion.watcher.kubernetes.facts import Fact, Facts, FactWriting, Revisions
from apportion.watcher.kubernetes.ineffective import Ineffective
from apportion.watcher.kubernetes.objects import ObjectReader
from apportion.watcher.kubernetes.pod_groups import GROUPS, POD_GROUPS, VOLCANO
from apportion.watcher.kubernetes.resource_claims import RESOURCE_CLAIMS
from apportion.watcher.kubernetes.topologies import TOPOLOGY_GROUPS, TOPOLOGY_PATHS
from apportion.watcher.kubernetes.view import DELETED, KAI_QUEUES, ClusterView, Marked
from apportion.watcher.kubernetes.volumes import CLAIMS as VOLUME_CLAIMS
from apportion_schemas import (
    ConfigurationChanged,
    DifferenceFound,
    NodeGone,
    NodeObserved,
    NodeReported,
    PlacementVoided,
    PodAdopted,
    PodGone,
    PodRejected,
    PodSubmitted,
    subject_of,
)
from apportion_schemas.quantities import NAME_MAX

PATHS = {
    "pods": "/api/v1/pods",
    "nodes": "/api/v1/nodes",
    "resourcequotas": "/api/v1/resourcequotas",
    "poddisruptionbudgets": "/apis/policy/v1/poddisruptionbudgets",
    "namespaces": "/api/v1/namespaces",
    "persistentvolumeclaims": "/api/v1/persistentvolumeclaims",
    "persistentvolumes": "/api/v1/persistentvolumes",
    "storageclasses": "/apis/storage.k8s.io/v1/storageclasses",
    "csinodes": "/apis/storage.k8s.io/v1/csinodes",
    "csidrivers": "/apis/storage.k8s.io/v1/csidrivers",
    "csistoragecapacities": "/apis/storage.k8s.io/v1/csistoragecapacities",
    "queues": f"/apis/{VOLCANO}/queues",
    KAI_QUEUES: f"/apis/{KAI_QUEUE[0]}/queues",
    **TOPOLOGY_PATHS,
    **{kind: f"/apis/{api_version}/podgroups" for kind, api_version in POD_GROUPS.items()},
}
# Kinds that a cluster may lack: gangs, queues, topologies, and those introduced in 1.21 and 1.24.
OPTIONAL = ("queues", KAI_QUEUES, *POD_GROUPS, *TOPOLOGY_PATHS)
OPTIONAL += ("poddisruptionbudgets", "csistoragecapacities")
ASKED_MAX = 500  # pods that one whole comparison queries by name
MISSED_MAX = 100  # differences of one kind that one comparison reports individually
# how often the API server's revision is checked, as a dead connection may hide a restore
PROBE_S = 10.0
LISTED_S = 0.5  # how often to check that every kind was listed again after an outage
UNBOUND = "the API server lost its binding"
_FENCED = (DifferenceFound, NodeGone, NodeObserved, PodAdopted, PodRejected)

_log = logging.getLogger(__name__)


class KubernetesWatching:
    """The watcher of one cluster."""

    def __init__(
        self,
        api: KubeApi,
        view: ClusterView,
        state: State,
        publisher: Publisher,
        append: Append,
        *,
        reader: ObjectReader,
        clock: Clock,
        paths: Mapping[str, str] = PATHS,
    ) -> None:
        self._api = api
        self._reader = reader
        self._view = view
        self._clock = clock
        self._state = state
        self._fenced = sum((marks.reports for marks in view.others.values()), _FENCED)
        self._revisions = Revisions(state)
        self._writing = FactWriting(state, view, self._revisions, publisher, append)
        self._facts = Facts(view, state, self._revisions)
        self._discovery = Discovery(api, clock, (*VERSIONS, KAI, *TOPOLOGY_GROUPS))
        self._discovery.changed = self._look_at_rejected
        view.pod_groups.served = partial(self._discovery.versions, resource=GROUPS)
        self._watches = {
            kind: Watch(
                api,
                path,
                view.audiences[kind],
                clock=clock,
                discovery=self._discovery if kind in OPTIONAL else None,
                returned=self._returned,
            )
            for kind, path in paths.items()
        }
        self._doubts = Doubts(api, view, state, self._revisions, clock)
        self._ineffective = Ineffective(api, clock)
        reader.ineffective = self._ineffective.note
        self._unsettled = "not all pods of the cluster are in the ledger yet"
        self._returns = 0
        self._conflicts: dict[str, str] = {}
        self.repairs: Counter[str] = Counter()

    def observe(self, change: Change) -> None:
        """Update the view after a change of the fold. The reader calls this method."""
        data = change.data
        self._view.volumes.observe(change)
        self._view.claims.observe(change)
        if isinstance(data, PodSubmitted):
            self._revisions.forget(subject_of(data))
            self._view.came(data.uid)
        elif isinstance(data, PodGone):
            # The pod may still be running, and then comes back.
            self._revisions.adopted.discard(data.uid)
            self._doubts.note(data.uid, self._state.revision)
            if self._look_again(data.uid):
                self._revisions.note(subject_of(data), self._state.revision)
            else:
                self._revisions.forget(subject_of(data))
                if data.uid in self._view.pods:
                    self._view.mark_pod(data.uid)
        elif isinstance(data, self._fenced):
            self._revisions.note(subject_of(data), self._state.revision)
        if isinstance(data, PodAdopted) and not change.refused:
            self._revisions.adopted.add(data.pod)
            self._view.came(data.pod)
            self._look_again(data.pod)
        elif isinstance(data, PlacementVoided):
            self._look_again(data.pod)
        elif isinstance(data, NodeReported):
            self._view.mark_claims(data.node)
        if isinstance(data, ConfigurationChanged):
            self._reader.configure(self._state.configuration)
        if isinstance(data, PodRejected):
            self._writing.final.discard(data.uid)
            self._view.came(data.uid)

    def _look_again(self, uid: str) -> bool:
        """If the pod runs on a node, mark it for comparison and return True."""
        pod = self._view.pods.get(uid)
        if pod is None or not pod.node or pod.ended:
            return False
        self._view.mark_pod(uid)
        return True

    def _look_at_rejected(self) -> None:
        # Their gangs' PodGroups may be served by now, or no longer.
        for uid in (*self._state.rejected, *self._view.ungrouped()):
            self._view.mark_pod(uid)

    def not_ready(self) -> list[str]:
        """Return why the watcher is not ready; empty while it is in sync with the cluster."""
        late = [self._unsettled] if self._unsettled else []
        return late + any_problem(self._watches)

    def _returned(self, since_s: float) -> None:
        # Other watches may be open without delivering anything: list everything again.
        self._returns += 1
        if not self._unsettled:
            self._unsettled = "the API server was unreachable; comparing cluster and ledger"
            _log.warning("%s", self._unsettled)
        for watch in self._watches.values():
            watch.doubt(since_s)
        self._view.stirred.set()

    def _all_listed(self) -> bool:
        return all(watch.in_step for watch in self._watches.values())

    async def _probe(self) -> None:
        while True:
            await self._clock.pause(PROBE_S)
            self._doubts.mark_due()
            if self._unsettled:
                continue
            known = max(kind.version for kind in self._view.audiences.values())
            with contextlib.suppress(KubeUnavailable, KubeRefused, msgspec.MsgspecError):
                if 0 < await newest_version(self._api, PATHS["nodes"]) < known:
                    self._returned(self._clock.monotonic())

    def measure(self, metrics: Metrics) -> None:
        """Export the watcher's problems, repairs and adoptions as metrics."""
        metrics.gauge(
            "apportion_watcher_problems", "Number of invalid objects in the cluster."
        ).set_function(lambda: len(self._view.problems) + len(self._state.rejected))
        repairs = metrics.gauge(
            "apportion_watcher_repairs",
            "Differences between the cluster and the ledger that only a full comparison found, by "
            "kind: ledger (it had missed a change), pod (it no longer exists), annotation (it "
            "differs from the ledger), or conflict (a running pod has devices that the ledger "
            "cannot assign to it).",
            ("kind",),
        )
        for kind in ("ledger", "pod", "annotation", "conflict"):
            repairs.labels(kind).set_function(partial(self.repairs.__getitem__, kind))
        metrics.gauge(
            "apportion_watcher_adopted",
            "Number of pods that ran without a placement in the ledger and were adopted.",
        ).set_function(lambda: self._writing.written[PodAdopted.__name__])

    async def run(self, reader: Reader[Change], ledger: Ledger, *, compare_every_s: float) -> None:
        """Keep the ledger in sync with the cluster until cancelled."""
        await reader.caught_up()
        await reader.reached(await ledger.last_revision())
        await self._discovery.look()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._discovery.run(), name="discover kinds")
            tasks.create_task(self._ineffective.run(), name="report fields without effect")
            for kind, watch in self._watches.items():
                tasks.create_task(watch.run(), name=f"watch {kind}")
            for watch in self._watches.values():
                await watch.synced()
            await self._settle(reader, ledger, self._view.take())
            await self._compare_annotations(reader, ledger)
            self._unsettled = ""
            tasks.create_task(self._probe(), name="probe the API server")
            while True:
                await self._follow(reader, ledger, for_s=compare_every_s)
                returns = self._returns
                await self._compare(reader, ledger)
                if returns == self._returns and self._all_listed():
                    self._unsettled = ""

    async def _follow(self, reader: Reader[Change], ledger: Ledger, *, for_s: float) -> None:
        try:
            async with asyncio.timeout(for_s) as turn:
                while True:
                    await self._view.stirred.wait()
                    when = turn.when()
                    turn.reschedule(None)
                    await self._settle(reader, ledger, self._view.take())
                    if self._unsettled:
                        if self._all_listed():
                            return
                        await self._clock.pause(LISTED_S)
                        self._view.stirred.set()
                    turn.reschedule(when)
        except TimeoutError:
            return

    async def _settle(
        self, reader: Reader[Change], ledger: Ledger, marked: Marked, *, missed: bool = False
    ) -> int:
        await reader.reached(await ledger.last_revision())
        final = self._writing.final
        final.difference_update(uid for uid in marked.pods if uid not in self._view.pods)
        await self._doubts.resolve(marked.pods)
        pods = [uid for uid in marked.pods if uid not in final]
        written = 0
        for facts in self._steps(marked, pods):
            if missed and facts:
                found = list(self._facts.missed(facts[:MISSED_MAX]))
                await self._writing.append(reader, ledger, found)
            await self._writing.append(reader, ledger, facts)
            written += len(facts)
            for pod in self._view.unread(marked.pods):
                try:
                    raw = await self._api.get(pod_path(pod.namespace, pod.name))
                except KubeRefused as error:
                    _log.info("cannot read pod %s/%s again: %s", pod.namespace, pod.name, error)
                except KubeUnavailable:
                    break
                else:
                    same = self._view.pods.get(pod.uid) is pod
                    if same and read_pod(raw).metadata.uid == pod.uid:
                        # otherwise the watch has reported it
                        self._view.audiences["pods"].seen(raw)
        return written

    def _steps(self, marked: Marked, pods: list[str]) -> Iterator[list[Fact]]:
        # Pods leave before gangs are declared, and gangs are declared before their pods come.
        facts = self._facts
        # Yielded even if empty, because the pods' claims are read after it.
        yield [*facts.ends(self._unchanged(marked.pods))]
        yield [*self._adoptions(self._unchanged(marked.pods))]
        yield [*facts.overtaken()]  # after their adoption, so that the state keeps them
        yield [*facts.changes(self._unchanged(marked.pods))]
        # Before nodes, which report the pods of other schedulers that mount them.
        yield [*facts.volume_claims(marked.others[VOLUME_CLAIMS], pods)]
        yield [*facts.nodes(marked.nodes), *facts.mirrored(marked)]
        groups = facts.groups_of(pods) | {
            name: None for name in marked.others[GROUPS] if self._view.pod_groups.concerns_us(name)
        }
        yield [*facts.groups(groups)]
        yield [*facts.arrivals(uid for uid in pods if uid not in self._doubts)]

    def _unchanged(self, uids: Iterable[str]) -> list[str]:
        # Changed pods are compared again: the cause, such as a binding, may not be folded yet.
        return [uid for uid in uids if uid not in self._view.marked.pods]

    def _adoptions(self, uids: Iterable[str]) -> Iterator[Fact]:
        certain = [uid for uid in uids if uid not in self._doubts]
        for data, problem, assumed in self._facts.adoptions(certain):
            if not problem:
                self._conflicts.pop(data.pod, None)
                if assumed:
                    held = shares_words(data.shares, families_of(data.submitted.shape.asks))
                    name = _named(data.submitted)
                    _log.warning(
                        "pod %s counts as using %s: no trusted source names its devices", name, held
                    )
                yield self._facts.adoption(data)
            elif self._conflicts.get(data.pod) != problem:
                self._conflicts[data.pod] = problem
                self.repairs["conflict"] += 1
                name = _named(data.submitted)
                _log.error("pod %s has devices that the ledger cannot assign: %s", name, problem)
                yield from self._facts.conflict(data, problem)

    async def _compare(self, reader: Reader[Change], ledger: Ledger) -> None:
        for uid in self._conflicts.keys() - self._view.pods.keys():
            del self._conflicts[uid]
        await self._ask_for(reader, ledger, self._view.unseen()[:ASKED_MAX])
        for pod in self._view.unbound()[:ASKED_MAX]:
            try:
                found = read_pod(await self._api.get(pod_path(pod.namespace, pod.name)))
            except KubeRefused:
                continue
            except KubeUnavailable:
                break
            # A restored API server has lost the binding. The pod ends, and is submitted again.
            if found.metadata.uid == pod.uid and not found.spec.node_name:
                _log.warning("pod %s/%s: the API server lost its binding", pod.namespace, pod.name)
                self._view.note_gone(pod.uid, UNBOUND)
        await self._settle(reader, ledger, self._view.take())
        repaired = await self._settle(reader, ledger, self._view.everything(), missed=True)
        if repaired:
            self.repairs["ledger"] += repaired
            _log.warning("repaired %d differences between cluster and ledger", repaired)
        await self._compare_annotations(reader, ledger)

    async def _compare_annotations(self, reader: Reader[Change], ledger: Ledger) -> None:
        facts = list(self._facts.annotations())
        for fact in facts:
            self.repairs["annotation"] += 1
            name = getattr(fact.data, "name", "")
            _log.warning("pod %s: annotation differs from the ledger", name)
        await self._writing.append(reader, ledger, facts)

    async def _ask_for(self, reader: Reader[Change], ledger: Ledger, uids: Iterable[str]) -> None:
        for uid in uids:
            known = self._state.pods.get(uid)
            about = known.submitted if known else self._state.rejected.get(uid)
            if about is None:
                continue
            try:
                there = await find_pod(self._api, about.namespace, about.name)
                found = "" if there is None else there.metadata.uid
            except KubeRefused:
                found = uid
            except KubeUnavailable:
                return
            if found != uid and uid not in self._view.pods:
                self.repairs["pod"] += 1
                at = known.placement.node if known and known.placement else "pending"
                gone = DifferenceFound(kind="gone", name=_named(about), pod=uid, ledger=at)
                await self._writing.append(reader, ledger, list(self._facts.difference(gone)))
                self._view.note_gone(uid, DELETED)


def kubernetes_watching(
    api: KubeApi,
    state: State,
    publisher: Publisher,
    append: Append,
    *,
    schedulers: frozenset[str],
    clock: Clock,
    dra: bool = False,
    writers: frozenset[str] = WRITERS,
) -> KubernetesWatching:
    """Create a watcher for the pods of `schedulers` and, with `dra`, for their ResourceClaims."""
    known = state.pods
    reader = ObjectReader(
        schedulers, ManifestConfig(), knows=lambda uid: uid in known, writers=writers
    )
    view = ClusterView(reader, state)
    paths = PATHS
    if dra:
        reader.claimed = view.claims.drafted
        paths = PATHS | {RESOURCE_CLAIMS: CLAIMS}
    reader.configure(state.configuration)
    return KubernetesWatching(
        api, view, state, publisher, append, reader=reader, clock=clock, paths=paths
    )


def _named(about: PodSubmitted | PodRejected) -> str:
    return f"{about.namespace}/{about.name}"[:NAME_MAX]
