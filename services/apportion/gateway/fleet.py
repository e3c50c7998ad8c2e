"""Cached, encoded rows of all nodes. The console's fleet picture gets only the rows that changed.

Each event moves its node to the end of one ordered map. So the end of the map has the nodes that
changed since a given revision. Invariant: all rows of an answer are of the same revision."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

import msgspec

from apportion.core.explain.fleet_rows import FleetAnswer, packed_row
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import PENDING, NodeState, PodState, State
from apportion.core.reports.accounts import card_part
from apportion.core.reports.meters import CARD
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.metrics import Family, Metrics, Sample
from apportion_schemas import NodeReported

SLICE_NODES: Final = 250  # rows encoded before the event loop gets a turn


class FleetRows:
    """Caches the encoded rows of all nodes in one fold. Pass every change to `observe`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._begin = state.revision
        self._of_kubernetes = state.of_kubernetes
        self._changed: dict[str, int] = dict.fromkeys(state.nodes, state.revision)
        self._rows: dict[str, msgspec.Raw] = {}
        self._reporter = dict(state.node_of_device)

    def observe(self, change: Change) -> None:
        """Mark the nodes that an event changed, so their rows are encoded again when needed."""
        state = self._state
        if state.of_kubernetes != self._of_kubernetes:  # changes which nodes count as present
            self._of_kubernetes = state.of_kubernetes
            self._touch(list(state.nodes))
        for node in change.forgotten:
            self._begin = max(self._begin, self._changed.pop(node.name, 0))
            self._rows.pop(node.name, None)
        if change.node is not None:
            self._touch((change.node.name,))
        elif change.pod is not None and change.pod.placement is not None:  # its phase is in the row
            self._touch((change.pod.placement.node,))
        if isinstance(change.data, NodeReported) and not change.refused:
            # A device that moved here changes the row of its previous node, too.
            for device in change.data.devices:
                before = self._reporter.get(device.id, change.data.node)
                if before != change.data.node:
                    self._touch((before,))
                self._reporter[device.id] = change.data.node

    def _touch(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._state.nodes:
                continue
            self._changed.pop(name, None)
            self._changed[name] = self._state.revision
            self._rows.pop(name, None)

    async def answer(self, after: int) -> FleetAnswer:
        """Return the nodes that changed after `after`; all nodes if that revision is unknown."""
        whole = after < self._begin or after > self._state.revision
        since = -1 if whole else after
        while len(stale := [it for it in self.behind(since) if it not in self._rows]) > SLICE_NODES:
            for name in stale[:SLICE_NODES]:
                self._row(name)
            await asyncio.sleep(0)
        names, nodes = self.behind(since), self._state.nodes
        return FleetAnswer(
            revision=self._state.revision,
            whole=whole,
            nodes=tuple(self._row(name) for name in names if nodes[name].present),
            gone=() if whole else tuple(name for name in names if not nodes[name].present),
        )

    def behind(self, after: int) -> list[str]:
        """Return the nodes that changed after revision `after`, newest change first."""
        names: list[str] = []
        for name, revision in reversed(self._changed.items()):
            if revision <= after:
                break
            names.append(name)
        return names

    def _row(self, name: str) -> msgspec.Raw:
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = packed_row(self._state.nodes[name])
        return row


_MIB: Final = 1 << 20

DEVICES: Final = Family(
    "apportion_fleet_devices",
    "Devices by state: `open`, `cordoned` or `unhealthy` (failed, or on a node that is not ready).",
    ("model", "state"),
)
MEMORY: Final = Family("apportion_fleet_memory_bytes", "Total memory of the devices.", ("model",))
ALLOCATED: Final = Family(
    "apportion_fleet_allocated_devices",
    "Number of devices allocated to pods. A share counts as a fraction of a device.",
    ("namespace", "model"),
)
ALLOCATED_MEMORY: Final = Family(
    "apportion_fleet_allocated_memory_bytes",
    "Device memory allocated to pods.",
    ("namespace", "model"),
)
PENDING_PODS: Final = Family("apportion_fleet_pending_pods", "Pending pods.", ("namespace",))
OLDEST: Final = Family(
    "apportion_fleet_pending_seconds",
    "How long the oldest pending pod has been pending.",
    ("namespace",),
)
FAMILIES: Final = (DEVICES, MEMORY, ALLOCATED, ALLOCATED_MEMORY, PENDING_PODS, OLDEST)

_Key = tuple[Family, tuple[str, ...]]


class FleetSums:
    """The fleet metrics of one fold, by namespace and model. Pass each change to `observe`.

    Every gateway exports the same values: take the maximum, not the sum. Invariant: a scrape shows
    the state at one revision, and costs only the nodes that changed since the last scrape."""

    def __init__(self, state: State, rows: FleetRows, clock: Clock) -> None:
        self._state = state
        self._rows = rows
        self._clock = clock
        self._seen = -1
        self._sums: Counter[_Key] = Counter()
        self._of_node: dict[str, Counter[_Key]] = {}
        self._waiting = {uid: pod for uid, pod in state.pods.items() if pod.phase is PENDING}

    def observe(self, change: Change) -> None:
        """Note which pods are pending after this change."""
        pod = change.pod
        if pod is None:
            return
        if pod.phase is PENDING and pod.uid in self._state.pods:
            self._waiting[pod.uid] = pod
        else:
            self._waiting.pop(pod.uid, None)

    def expose(self, metrics: Metrics) -> None:
        """Register the fleet metrics next to those of the process."""
        metrics.looked_up(FAMILIES, self.samples)

    def samples(self) -> Iterator[Sample]:
        """Yield all fleet metrics with their current values."""
        for name in self._rows.behind(self._seen):
            self._sums.subtract(self._of_node.pop(name, Counter()))
            node = self._state.nodes.get(name)
            if node is not None and node.present:
                self._of_node[name] = _counted(node)
                self._sums.update(self._of_node[name])
        for key in [key for key, value in self._sums.items() if not value]:
            del self._sums[key]
        self._seen = self._state.revision
        for (family, labels), value in self._sums.items():
            yield family, labels, value / CARD if family is ALLOCATED else value
        oldest: dict[str, PodState] = {}
        counts: Counter[str] = Counter()
        for pod in self._waiting.values():
            namespace = pod.submitted.namespace
            counts[namespace] += 1
            known = oldest.setdefault(namespace, pod)
            if pod.submitted_revision < known.submitted_revision:
                oldest[namespace] = pod
        now = self._clock.now()
        for namespace, count in counts.items():
            since = datetime.fromisoformat(oldest[namespace].submitted_time)
            yield PENDING_PODS, (namespace,), count
            yield OLDEST, (namespace,), max(0.0, (now - since).total_seconds())


def _counted(node: NodeState) -> Counter[_Key]:
    """Return what the node adds to the fleet metrics."""
    found: Counter[_Key] = Counter()
    for state in node.devices:
        if not state.present:
            continue
        model = state.device.model
        how = "open"
        if not state.healthy or not node.ready:
            how = "unhealthy"
        elif state.cordon or node.cordoned:
            how = "cordoned"
        found[DEVICES, (model, how)] += 1
        found[MEMORY, (model,)] += state.device.memory_mib * _MIB
    for pod in node.pods.values():
        for share in pod.placement.shares if pod.placement else ():
            held = node.by_id.get(share.device)
            if held is None:
                continue
            key = (pod.submitted.namespace, held.device.model)
            found[ALLOCATED, key] += card_part(held.device, share.memory_mib, share.cores)
            found[ALLOCATED_MEMORY, key] += share.memory_mib * _MIB
    return found
