"""The fleet in a few sums, for whoever scrapes: devices, what is granted of them, and who waits.

By namespace and model, never by pod or device, so there are as many series on ten thousand nodes
as on ten. Every gateway tells the same of the same ledger: take the greatest, not the sum.

Invariant: a scrape costs the nodes that changed since the one before, and what is told is the state
at one revision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import PENDING, NodeState, PodState, State
from apportion.core.reports.accounts import card_part
from apportion.core.reports.meters import CARD
from apportion.gateway.fleet import FleetRows
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.metrics import Family, Metrics, Sample

_MIB: Final = 1 << 20

DEVICES: Final = Family(
    "apportion_fleet_devices",
    "Devices by state: open, cordoned, or broken (failed, or of a node that is not ready).",
    ("model", "state"),
)
MEMORY: Final = Family("apportion_fleet_memory_bytes", "Memory of all devices.", ("model",))
GRANTED: Final = Family(
    "apportion_fleet_granted_devices",
    "Devices that pods hold; a share counts as its part of the device.",
    ("namespace", "model"),
)
GRANTED_MEMORY: Final = Family(
    "apportion_fleet_granted_memory_bytes",
    "Device memory that pods hold.",
    ("namespace", "model"),
)
WAITING: Final = Family(
    "apportion_fleet_waiting_pods", "Pods that wait for a place.", ("namespace",)
)
OLDEST: Final = Family(
    "apportion_fleet_waiting_seconds",
    "How long the pod that waits longest has waited.",
    ("namespace",),
)
FAMILIES: Final = (DEVICES, MEMORY, GRANTED, GRANTED_MEMORY, WAITING, OLDEST)

_Key = tuple[Family, tuple[str, ...]]


class FleetSums:
    """The sums of one fold; `observe` wants every change of it, after `rows` has had it."""

    def __init__(self, state: State, rows: FleetRows, clock: Clock) -> None:
        self._state = state
        self._rows = rows
        self._clock = clock
        self._seen = -1
        self._sums: Counter[_Key] = Counter()
        self._of_node: dict[str, Counter[_Key]] = {}
        self._waiting = {uid: pod for uid, pod in state.pods.items() if pod.phase is PENDING}

    def observe(self, change: Change) -> None:
        """Note who waits, and who does no longer."""
        pod = change.pod
        if pod is None:
            return
        if pod.phase is PENDING and pod.uid in self._state.pods:
            self._waiting[pod.uid] = pod
        else:
            self._waiting.pop(pod.uid, None)

    def expose(self, metrics: Metrics) -> None:
        """Let whoever scrapes this process have them."""
        metrics.looked_up(FAMILIES, self.samples)

    def samples(self) -> Iterator[Sample]:
        """All sums as of now."""
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
            yield family, labels, value / CARD if family is GRANTED else value
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
            yield WAITING, (namespace,), count
            yield OLDEST, (namespace,), max(0.0, (now - since).total_seconds())


def _counted(node: NodeState) -> Counter[_Key]:
    """What one node adds to the sums; parts of cards in millionths, so that sums are exact."""
    found: Counter[_Key] = Counter()
    for state in node.devices:
        if not state.present:
            continue
        model = state.device.model
        how = "open"
        if not state.healthy or not node.ready:
            how = "broken"
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
            found[GRANTED, key] += card_part(held.device, share.memory_mib, share.cores)
            found[GRANTED_MEMORY, key] += share.memory_mib * _MIB
    return found
