"""The cluster as its API server reports it, and the objects to compare with the ledger.

Invariant: a pod counts as gone only after a report of the API server. Such a report is a deletion,
a list that began after the pod was in the ledger, or the answer to a query for that pod."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from apportion.core.bounded import remember
from apportion.core.ledger.state import Phase, PodState, State
from apportion.core.workloads.dialects.node_annotations import SIGNS
from apportion.core.workloads.kinds.queues import KAI, KAI_QUEUE
from apportion.core.workloads.pods.volumes import read_node_drivers
from apportion.runtime.kube.watch import Kind
from apportion.watcher.kubernetes.kind import Marks, Mirror, Source, readable
from apportion.watcher.kubernetes.objects import ObjectReader, PodView, read_namespace
from apportion.watcher.kubernetes.pod_groups import GROUPS, PodGroupView
from apportion.watcher.kubernetes.resource_claims import ResourceClaimView
from apportion.watcher.kubernetes.topologies import TopologyView
from apportion.watcher.kubernetes.volumes import CLAIMS, VolumeView
from apportion_schemas import (
    BudgetGone,
    BudgetObserved,
    DevicesRegistered,
    NamespaceGone,
    NamespaceObserved,
    NodeGone,
    NodeObserved,
    PodAdopted,
    PodChanged,
    PodGone,
    PodRejected,
    PodSubmitted,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
)
from apportion_schemas.quantities import Payload

_log = logging.getLogger(__name__)
DELETED = "deleted"
KAI_QUEUES = f"queues.{KAI}"
# Remembered pods that left before the ledger had them; submitting one takes seconds.
LEFT_MAX = 10_000


@dataclass(slots=True, eq=False)
class Marked:
    """Objects to compare with the ledger, in order of marking: pods by uid, others by name."""

    pods: dict[str, None] = field(default_factory=dict)
    nodes: dict[str, None] = field(default_factory=dict)
    others: dict[str, dict[str, None]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.pods or self.nodes or any(self.others.values()))


class ClusterView:
    """A copy of one cluster's pods, nodes, gangs, queues, quotas and disruption budgets."""

    def __init__(self, reader: ObjectReader, state: State) -> None:
        self._reader = reader
        self._state = state
        self.pods: dict[str, PodView] = {}
        self.nodes: dict[str, NodeObserved] = {}
        self.registered: dict[str, DevicesRegistered] = {}
        self.volume_counts: dict[str, dict[str, int | None]] = {}  # by node and CSI driver
        self.pods_on: defaultdict[str, dict[str, PodView]] = defaultdict(dict)
        self.touched: dict[str, int] = {}  # newest version at which a pod came or left
        self.gone: dict[str, str] = {}  # reason, until the ledger has it
        # Running pods that name one of our schedulers, and that another scheduler bound; until the
        # ledger has the report.
        self.overtaken: dict[str, None] = {}
        self._left: dict[str, None] = {}
        self.problems: dict[str, str] = {}  # objects that cannot be read
        self.marked = Marked()
        self.stirred = asyncio.Event()
        self.volumes = VolumeView(state, self.stirred.set, self._problem)
        self.volumes.required_changed = self._required_changed
        self.claims = ResourceClaimView(state, self.stirred.set, self._problem)
        self.pod_groups = PodGroupView(reader, state, self.stirred.set, self._problem)
        self.topologies = TopologyView(self.stirred.set, self._problem)
        self.pod_groups.resolve = self.topologies.resolve
        self.mirrors = self._mirrors()
        self.others: dict[str, Marks] = {
            **self.mirrors,
            GROUPS: self.pod_groups,
            CLAIMS: self.volumes,
        }
        self.audiences: dict[str, Kind[Any]] = {
            "pods": Kind(
                self.pods,
                lambda raw: reader.pod(raw, self.pods),
                self._pod_changed,
                expected=self._live,
            ),
            "nodes": Kind(self.nodes, self._read_node, self._node_changed, expected=self._observed),
            "csinodes": readable(
                "CSINode",
                self.volume_counts,
                lambda raw: read_node_drivers(raw).counts,
                self._counts_changed,
                self._problem,
            ),
            **{kind: of for each in self.mirrors.values() for kind, of in each.kinds.items()},
            **self.pod_groups.kinds,
            **self.topologies.kinds,
            **self.volumes.kinds,
            **self.claims.kinds,
        }

    def _mirrors(self) -> dict[str, Mirror[Any]]:
        reader, state = self._reader, self._state
        common: dict[str, Any] = {"stir": self.stirred.set, "problem": self._problem}
        return {
            "queues": Mirror(
                {
                    "queues": Source("Queue", reader.queue),
                    KAI_QUEUES: Source("KAI Queue", lambda raw: reader.queue(raw, KAI_QUEUE)),
                },
                lambda: state.queues,
                (QueueObserved,),
                ("queue",),
                **common,
            ),
            "resourcequotas": Mirror(
                {"resourcequotas": Source("ResourceQuota", reader.quota)},
                lambda: state.quotas,
                (QuotaObserved, QuotaGone),
                ("namespace", "quota"),
                keeps=False,
                # The API server writes its status as pods come and go.
                minor=lambda before, now: before.hard == now.hard,
                **common,
            ),
            "poddisruptionbudgets": Mirror(
                {"poddisruptionbudgets": Source("PodDisruptionBudget", reader.budget)},
                lambda: state.budgets,
                (BudgetObserved, BudgetGone),
                ("namespace", "budget"),
                **common,
            ),
            "namespaces": Mirror(
                {"namespaces": Source("Namespace", read_namespace)},
                lambda: state.namespaces,
                (NamespaceObserved, NamespaceGone),
                ("namespace",),
                **common,
            ),
        }

    def take(self) -> Marked:
        """Return the marked objects, and unmark them."""
        for raw in self.claims.take():
            self.audiences["pods"].seen(raw)
        if (version := self.topologies.take()) is not None:
            for node in self.nodes:
                self._touch(node, version)
            self.pod_groups.mark_levels()
        marked, self.marked = self.marked, Marked()
        marked.others = {kind: marks.take() for kind, marks in self.others.items()}
        self.stirred.clear()
        return marked

    def everything(self) -> Marked:
        """Return all objects in the cluster or in the ledger, for a full comparison."""
        return Marked(
            pods=dict.fromkeys((*self.pods, *self.gone)),
            nodes=dict.fromkeys((*self.nodes, *self._observed())),
            others={kind: marks.everything() for kind, marks in self.others.items()},
        )

    def mark(self, data: Payload) -> None:
        """Mark the object of the event `data`, to compare it with the ledger."""
        match data:
            case PodSubmitted() | PodChanged() | PodRejected() | PodGone():
                self.mark_pod(data.uid)
            case PodAdopted():
                self.mark_pod(data.pod)
            case NodeObserved() | NodeGone() | DevicesRegistered():
                self.marked.nodes[data.node] = None
            case _:
                for marks in self.others.values():
                    if isinstance(data, marks.reports):
                        marks.mark("/".join(getattr(data, field) for field in marks.key))
        self.stirred.set()

    def mark_pod(self, uid: str) -> None:
        """Mark the pod and its node for comparison with the ledger."""
        self.marked.pods[uid] = None
        view = self.pods.get(uid)
        if view is not None and view.node:
            self.marked.nodes[view.node] = None
        self.stirred.set()

    def mark_claims(self, node: str) -> None:
        """Mark for comparison the node's pods that claim devices but are not in the ledger."""
        for uid, view in self.pods_on.get(node, {}).items():
            if view.claim is not None and uid not in self._state.pods:
                self.mark_pod(uid)

    def came(self, uid: str) -> None:
        """Record that the ledger has the pod. If it has left the cluster, mark it as gone."""
        if uid in self._left:
            del self._left[uid]
            self.note_gone(uid, DELETED)

    def note_gone(self, uid: str, reason: str) -> None:
        """Record that the API server no longer has this pod."""
        self.gone[uid] = reason
        self.marked.pods[uid] = None
        self.stirred.set()

    def version_of(self, node: NodeObserved) -> int:
        """Return the API server's revision up to which this view knows the node and its pods."""
        kinds = ("pods", "nodes", "csinodes", *self.topologies.of_nodes)
        reached = min(self.audiences[kind].version for kind in kinds)
        return max(node.version, self.touched.get(node.node, 0), reached)

    def ungrouped(self) -> list[str]:
        """Return the uids of the pods whose PodGroup KAI's pod-grouper has not named yet."""
        return [uid for uid, pod in self.pods.items() if pod.ungrouped]

    def unread(self, uids: Iterable[str]) -> list[PodView]:
        """Return the pods that the ledger lacks and whose device requests are not read yet."""
        views = (self.pods.get(uid) for uid in uids if uid not in self._state.pods)
        return [view for view in views if view is not None and view.unread and not view.ended]

    def unseen(self) -> list[str]:
        """Return the uids of pods that the ledger has and this view of the cluster lacks."""
        return [uid for uid in self._live() if uid not in self.pods and uid not in self.gone]

    def unbound(self) -> list[PodView]:
        """Return the pods that are bound in the ledger but have no node in the cluster."""
        bound = (Phase.BOUND, Phase.ALLOCATED)
        views = (self.pods.get(uid) for uid, pod in self._state.pods.items() if pod.phase in bound)
        return [
            view
            for view in views
            if view is not None and not (view.node or view.ended or view.deleting)
        ]

    def _live(self) -> list[str]:
        return [*self._state.pods, *self._state.rejected]

    def _observed(self) -> list[str]:
        return [node.name for node in self._state.nodes.values() if node.observed is not None]

    def _pod_changed(
        self, uid: str, before: PodView | None, now: PodView | None, version: int
    ) -> None:
        pod = self._state.pods.get(uid)
        known = pod is not None or uid in self._state.rejected
        if now is not None:
            self.gone.pop(uid, None)
            self._left.pop(uid, None)
        elif known:
            self.gone[uid] = DELETED
        elif before is not None and (before.ours or before.claim is not None):
            # A watcher may be submitting the pod just now: remember that it has left.
            remember(self._left, uid, None, most=LEFT_MAX)
        for view in (before, now):
            if view is not None and view.node:
                self.touched[view.node] = max(self.touched.get(view.node, 0), version)
                if not placed_on(pod, view.node):  # the node does not report what the ledger placed
                    self.marked.nodes[view.node] = None
        self._note_overtaken(uid, before, now)
        self.volumes.follow(uid, before, now)
        self.claims.follow(uid, now, known=pod is not None)
        if before is not None and before.node:
            self.pods_on[before.node].pop(uid, None)
        if now is not None and now.node:
            self.pods_on[now.node][uid] = now
        views = [view for view in (before, now) if view is not None]
        matters = known or any(view.ours or view.claim is not None for view in views)
        # Our own binding needs no comparison; if the ledger releases the pod, it is marked then.
        echo = (
            now is not None
            and pod is not None
            and pod.placement is not None
            and (now.node, now.attempt) == (pod.placement.node, str(pod.placement.attempt))
            and not (now.ended or now.deleting)
            and not says_otherwise(pod, now)
        )
        if matters and not echo:
            self.marked.pods[uid] = None
        if self.marked:
            self.stirred.set()

    def _note_overtaken(self, uid: str, before: PodView | None, now: PodView | None) -> None:
        if now is None or now.ended:
            self.overtaken.pop(uid, None)
            return
        bound = now.node and before is not None and not before.node
        # Our binder writes the attempt with the binding. A kube-scheduler with our extender may
        # bind its pods itself.
        if bound and now.ours and not now.extended and not now.attempt:
            self.overtaken[uid] = None

    def _read_node(self, raw: bytes) -> tuple[str, NodeObserved | None, int]:
        view = self._reader.node(raw)
        nothing = DevicesRegistered(node=view.node, version=view.version)
        signs = any(sign in raw for sign in SIGNS)  # most nodes are not decoded twice
        self.registered[view.node] = self._reader.registered(raw) if signs else nothing
        return view.node, view, view.version

    def _node_changed(
        self, name: str, _before: NodeObserved | None, now: NodeObserved | None, version: int
    ) -> None:
        if now is None:
            self.touched.pop(name, None)
            self.registered.pop(name, None)
        else:
            self.touched[name] = max(self.touched.get(name, 0), version)
        self.marked.nodes[name] = None
        self.stirred.set()

    def volume_limits(self, node: str) -> dict[str, int]:
        """Return how many volumes each CSI driver can attach to the node, for drivers with a limit.

        As in Kubernetes 1.37, the limit is 0 for a missing driver that keeps pods off such nodes
        (`preventPodSchedulingIfMissing`)."""
        counts = self.volume_counts.get(node, {})
        limits = {driver: count for driver, count in counts.items() if count is not None}
        return limits | {name: 0 for name in self.volumes.required if name not in counts}

    def _counts_changed(self, name: str, before: object, now: object, version: int) -> None:
        # Other changes of a CSINode do not matter.
        if (before or {}) != (now or {}):
            self._touch(name, version)

    def _required_changed(self, version: int) -> None:
        for name in self.nodes:
            self._touch(name, version)

    def _touch(self, node: str, version: int) -> None:
        self.touched[node] = max(self.touched.get(node, 0), version)
        self.marked.nodes[node] = None
        self.stirred.set()

    def _problem(self, title: str, problem: str) -> None:
        if not problem:
            self.problems.pop(title, None)
            return
        if self.problems.get(title) != problem:
            _log.error("%s: %s", title, problem)
        self.problems[title] = problem


def placed_on(pod: PodState | None, node: str) -> bool:
    """Return True if the ledger has the pod placed on that node."""
    return pod is not None and pod.placement is not None and pod.placement.node == node


def change_of(view: PodView) -> PodChanged:
    """Return a PodChanged event with the pod's current values."""
    return PodChanged(
        uid=view.uid,
        labels=view.labels,
        gates=view.gates,
        cpu_milli=view.amounts.cpu_milli,
        memory_mib=view.amounts.memory_mib,
        terminating=view.deleting,
    )


def says_otherwise(pod: PodState, view: PodView) -> bool:
    """Return True if a field of the pod that may change differs between ledger and cluster."""
    about, now = pod.submitted, view.amounts
    needs = about.shape.node
    same = (needs.cpu_milli, needs.memory_mib) == (now.cpu_milli, now.memory_mib)
    same = same and pod.terminating == view.deleting
    return not (same and about.labels == view.labels and about.gates == view.gates)
