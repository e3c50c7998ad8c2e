"""A second record of the ledger's pods, devices and placements, independent of core's fold.

The record contains less than the fold's state, and is computed in another way. So a bug of the fold
shows as a difference. Invariant: an entry at a revision never depends on a later event."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from apportion_schemas import (
    Device,
    DeviceCordoned,
    DeviceHealthChanged,
    DeviceUncordoned,
    NodeCordoned,
    NodeGone,
    NodeHeard,
    NodeObserved,
    NodeReported,
    NodeSilent,
    NodeUncordoned,
    PlacementVoided,
    PodAdopted,
    PodBound,
    PodGone,
    PodGroupObserved,
    PodPlaced,
    PodSubmitted,
    Score,
    SharesAllocated,
)

GONE = "gone"
PENDING = "pending"
PLACED = "placed"
BOUND = "bound"
ALLOCATED = "allocated"
LEFT = "gone from the cluster"


class History:
    """A value that changes over time, and its value at each revision."""

    def __init__(self, first: Any) -> None:
        self._revisions = [0]
        self._values = [first]

    @property
    def now(self) -> Any:
        return self._values[-1]

    def set(self, revision: int, value: Any) -> None:
        """Set the value from this revision on."""
        self._revisions.append(revision)
        self._values.append(value)

    def at(self, revision: int) -> Any:
        """Return the value as it was right after this revision."""
        return self._values[bisect_right(self._revisions, revision) - 1]


@dataclass
class Standing:
    """One pod in the auditor's own record."""

    group: str
    life: History = field(default_factory=lambda: History((GONE, 0)))  # Of (phase, attempt).
    placed: PodPlaced | None = None
    last_attempt: int = 0
    adopted: int = 0  # The revision of the adoption, or 0 if the pod was submitted.


class Books:
    """The auditor's own record of pods, devices and gangs, made from the accepted events."""

    def __init__(self) -> None:
        self.pods: dict[str, Standing] = {}
        self.devices: dict[str, Device] = {}
        self.node_of: dict[str, str] = {}
        self.started: set[str] = set()
        self.held: dict[str, set[str]] = {}  # pods by gang, until its last batch is placed
        self._of_kubernetes: set[str] | None = None  # its nodes, once it has reported some
        self._shut: dict[str, History] = defaultdict(lambda: History(""))
        self._sick: dict[str, History] = defaultdict(lambda: History(""))
        self._cordon: dict[str, History] = defaultdict(lambda: History(""))
        self._silent: dict[str, History] = defaultdict(lambda: History(""))
        self._least: dict[str, History] = defaultdict(lambda: History(1))

    def why_closed(self, device: str, node: str, revision: int) -> str:
        """Return why the device accepted no new pod at that revision, or "" if it did."""
        for what, key in (("node", node), ("device", device)):
            for history in (self._shut, self._sick, self._cordon, self._silent):
                if why := history[f"{what} {key}"].at(revision):
                    return f"{what} {key} was {why}"
        return ""

    def least(self, group: str, revision: int) -> int:
        """Return the gang's minimum number of pods, as declared at that revision."""
        return int(self._least[group].at(revision))

    def held_shares(self, device: str) -> Iterator[tuple[int, int]]:
        """Yield the memory and cores of every share of the device."""
        for pod in self.pods.values():
            if pod.placed is not None:
                for share in pod.placed.shares:
                    if share.device == device:
                        yield share.memory_mib, share.cores

    def free(self, device: str) -> tuple[int, int, int]:
        """Return the free memory, cores and slots of the device."""
        held = list(self.held_shares(device))
        known = self.devices[device]
        return (
            known.memory_mib - sum(memory for memory, _ in held),
            known.cores - sum(cores for _, cores in held),
            known.slots - len(held),
        )

    def take(self, revision: int, data: Any) -> str:
        """Record an event that the fold accepted. Return the error in the event, or ""."""
        match data:
            case NodeReported():
                self._report(revision, data)
            case DeviceHealthChanged():
                why = "" if data.healthy else "unhealthy"
                self._sick[f"device {data.device}"].set(revision, why)
            case DeviceCordoned() | DeviceUncordoned():
                why = "cordoned" if isinstance(data, DeviceCordoned) else ""
                self._cordon[f"device {data.device}"].set(revision, why)
            case NodeCordoned() | NodeUncordoned():
                why = "cordoned" if isinstance(data, NodeCordoned) else ""
                self._cordon[f"node {data.node}"].set(revision, why)
            case NodeSilent() | NodeHeard():
                why = "its agent silent" if isinstance(data, NodeSilent) else ""
                self._silent[f"node {data.node}"].set(revision, why)
            case NodeObserved():
                self._observe(revision, data)
            case NodeGone():
                self._shut[f"node {data.node}"].set(revision, LEFT)
                if self._of_kubernetes is not None:
                    self._of_kubernetes.discard(data.node)
            case PodGroupObserved():
                self._least[data.group].set(revision, data.min_available)
                self._release(data.group)
            case _:
                return self._life(revision, data)
        return ""

    def _report(self, revision: int, data: NodeReported) -> None:
        for device in data.devices:
            self.devices[device.id] = device
            self.node_of[device.id] = data.node
            why = "" if device.healthy else "unhealthy"
            self._sick[f"device {device.id}"].set(revision, why)
        shut, nodes = self._shut[f"node {data.node}"], self._of_kubernetes
        if nodes is not None and data.node not in nodes:
            shut.set(revision, LEFT)  # an agent's report does not create a Kubernetes node
        elif shut.now == LEFT:
            shut.set(revision, "")  # a node that reports exists

    def _observe(self, revision: int, data: NodeObserved) -> None:
        self._shut[f"node {data.node}"].set(revision, _why_shut(data))
        if self._of_kubernetes is None and data.version:
            self._of_kubernetes = set()
            for node in {*self.node_of.values()} - {data.node}:
                self._shut[f"node {node}"].set(revision, LEFT)
        if self._of_kubernetes is not None:
            self._of_kubernetes.add(data.node)

    def _life(self, revision: int, data: Any) -> str:
        match data:
            case PodSubmitted():
                pod = self.pods.setdefault(data.uid, Standing(data.group))
                pod.adopted = 0
                pod.life.set(revision, (PENDING, 1))
            case PodGone() if data.uid in self.pods:  # otherwise it was rejected, and had nothing
                pod = self.pods[data.uid]
                pod.placed = None
                self.held.get(pod.group, set()).discard(data.uid)
                pod.life.set(revision, (GONE, 0))
                self._end_gang(pod.group)
            case PodPlaced():
                return self._place(revision, data)
            case PodAdopted():
                return self._adopt(revision, data)
            case PlacementVoided():
                pod = self.pods[data.pod]
                if pod.placed is None or pod.placed.attempt != data.attempt:
                    return f"pod {data.pod}: attempt {data.attempt} is voided and does not live"
                pod.placed = None
                self.held.get(pod.group, set()).discard(data.pod)
                beyond = max(data.attempt, pod.adopted)  # the attempts of an earlier life
                pod.life.set(revision, (PENDING, beyond + 1))
            case PodBound():
                if data.pod in self.held.get(self.pods[data.pod].group, ()):
                    return f"pod {data.pod} is bound before its gang is placed"
                return self._step(revision, data, PLACED, BOUND)
            case SharesAllocated():
                pod = self.pods[data.pod]
                if pod.placed is not None:
                    given = tuple(dict.fromkeys(share.device for share in pod.placed.shares))
                    if set(data.devices) != set(given):
                        return f"pod {data.pod} was given {data.devices} and holds {given}"
                return self._step(revision, data, BOUND, ALLOCATED)
        return ""

    def _step(self, revision: int, data: Any, before: str, after: str) -> str:
        pod = self.pods[data.pod]
        found = pod.life.now
        pod.life.set(revision, (after, data.attempt))
        if found != (before, data.attempt):
            return f"pod {data.pod} is {after} by attempt {data.attempt} and was {found} before"
        return ""

    def _place(self, revision: int, data: PodPlaced) -> str:
        pod = self.pods[data.pod]
        if pod.placed is not None:
            return f"pod {data.pod} is placed twice: on {pod.placed.node} and on {data.node}"
        if data.attempt <= pod.last_attempt:
            return f"pod {data.pod}: attempt {data.attempt} comes twice"
        pod.placed, pod.last_attempt = data, data.attempt
        pod.life.set(revision, (PLACED, data.attempt))
        if data.held or self.held.get(pod.group):
            self.held.setdefault(pod.group, set()).add(data.pod)
            if not data.held:
                self._release(pod.group)
        for share in data.shares:
            if min(self.free(share.device)) < 0:
                return f"device {share.device} is oversold by pod {data.pod}"
            if self._overlaps(share.device):
                return f"a MIG slice of {share.device} is held twice, by pod {data.pod} too"
        return ""

    def _release(self, group: str) -> None:
        """Release the gang's held pods for binding if the gang has its minimum number of pods."""
        placed = sum(pod.group == group and pod.placed is not None for pod in self.pods.values())
        if placed >= self._least[group].now:
            self.held.pop(group, None)

    def models(self, group: str) -> set[str]:
        """Return the device models that the gang's pods use."""
        return {
            self.devices[share.device].model
            for pod in self.pods.values()
            if pod.group == group and pod.placed is not None
            for share in pod.placed.shares
            if share.device in self.devices
        }

    def _adopt(self, revision: int, data: PodAdopted) -> str:
        """Record a running pod as submitted, placed and bound at once."""
        about = data.submitted
        pod = self.pods.setdefault(about.uid, Standing(about.group))
        if pod.life.now[0] != GONE:
            return f"pod {about.uid} is adopted and was {pod.life.now[0]} before"
        pod.last_attempt, pod.adopted = data.attempt - 1, revision
        placed = PodPlaced(
            pod=about.uid, namespace=about.namespace, name=about.name, attempt=data.attempt,
            node=data.node, shares=data.shares, score=Score(node=data.node, total=0.0),
        )  # fmt: skip
        wrong = self._place(revision, placed)
        pod.life.set(revision, (ALLOCATED if data.running else BOUND, data.attempt))
        if about.group:
            self.started.add(about.group)
        return wrong

    def _overlaps(self, device: str) -> bool:
        """Return True if two instances on the device cover the same memory slice."""
        covered = [
            at
            for pod in self.pods.values()
            for share in (pod.placed.shares if pod.placed else ())
            if share.device == device and share.instance
            for at in range(share.instance.start, share.instance.start + share.instance.size)
        ]
        return len(covered) != len(set(covered))

    def _end_gang(self, group: str) -> None:
        """If the gang's last pod has ended, forget that the gang has started."""
        if group and all(
            pod.life.now[0] == GONE for pod in self.pods.values() if pod.group == group
        ):
            self.started.discard(group)


def _why_shut(data: NodeObserved) -> str:
    """Return why the node is closed to new pods, or "".

    A node is also closed if pods of other schedulers use unknown NVIDIA devices there."""
    if not data.ready or data.unschedulable:
        return "not ready"
    return "held by nobody knows whom" if data.unnamed_families else ""
