"""The cluster's HyperNodes of Volcano and Topologies of KAI.

They are not in the ledger: nodes get a label for each tier of HyperNodes, and PodGroups the label
keys of their levels. Invariant: in a cluster without them, nodes and PodGroups stay as they are."""

from collections.abc import Callable
from typing import Any

import msgspec

from apportion.core.bounded import remember
from apportion.core.workloads.kinds.topologies import (
    HYPER_NODES,
    KAI,
    HyperNode,
    HyperNodes,
    Topology,
    read_hyper_node,
    read_topology,
    resolved,
)
from apportion.runtime.kube.watch import Kind
from apportion.watcher.kubernetes.kind import Problem, readable
from apportion_schemas import NodeObserved, PodGroupObserved
from apportion_schemas.decoding import from_outside

TOPOLOGY_PATHS = {
    f"hypernodes.{HYPER_NODES}": f"/apis/{HYPER_NODES}/v1alpha1/hypernodes",
    f"topologies.{KAI}": f"/apis/{KAI}/v1alpha1/topologies",
}
TOPOLOGY_GROUPS = (HYPER_NODES, KAI)
NODES_MAX = 20_000  # whose labels are kept
_Labels = dict[str, str]
_decode = from_outside(msgspec.json.Decoder(dict[str, Any]).decode)


class TopologyView:
    """The HyperNodes and Topologies, and the labels and levels that nodes and PodGroups get."""

    def __init__(self, stir: Callable[[], None], problem: Problem) -> None:
        self._stir = stir
        self._problem = problem
        self._hyper_nodes: dict[str, HyperNode] = {}
        self._topologies: dict[str, Topology] = {}
        self._tree = HyperNodes({})
        self._changed_at: int | None = None
        self._labels: dict[str, tuple[_Labels, _Labels]] = {}  # by node: in Kubernetes, and here
        hyper_nodes, topologies = TOPOLOGY_PATHS
        self.kinds: dict[str, Kind[Any]] = {
            hyper_nodes: readable(
                "HyperNode",
                self._hyper_nodes,
                lambda raw: read_hyper_node(_decode(raw)),
                self._changed,
                problem,
            ),
            topologies: readable(
                "Topology",
                self._topologies,
                lambda raw: read_topology(_decode(raw)),
                self._changed,
                problem,
            ),
        }

    def take(self) -> int | None:
        """Return the revision of the newest change since the last call, or None without one."""
        changed, self._changed_at = self._changed_at, None
        if changed is not None:
            self._tree = HyperNodes(self._hyper_nodes)
            self._labels.clear()
            self._problem("HyperNodes", self._tree.problem)
        return changed

    @property
    def of_nodes(self) -> tuple[str, ...]:
        """Return the kind of HyperNodes if the labels of nodes depend on any."""
        return tuple(TOPOLOGY_PATHS)[:1] if self._tree.tiers else ()

    def labels(self, node: NodeObserved) -> _Labels:
        """Return the node's labels, with one for each tier of HyperNodes."""
        if not self._tree.tiers:
            return node.labels
        known = self._labels.get(node.node)
        if known is not None and known[0] == node.labels:
            return known[1]
        found = self._tree.labels(node.node, node.labels)
        remember(self._labels, node.node, (node.labels, found), most=NODES_MAX)
        self._problem("HyperNodes", self._tree.problem)
        return found

    def resolve(self, group: PodGroupObserved) -> PodGroupObserved:
        """Return the PodGroup with the label keys of its levels."""
        return resolved(group, self._topologies, self._tree)

    def _changed(self, _name: str, before: object, now: object, version: int) -> None:
        if before != now:
            self._changed_at = max(version, self._changed_at or 0)
            self._stir()
