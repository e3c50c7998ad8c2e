"""Compare our decisions with those of another scheduler, for the same pods and revisions.

Invariant: no decision of ours is applied or appended, so the state stays that of the cluster."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import structs

from apportion.core.answers.replays import ShadowAnswer, ShadowPod, Spot, Verdict
from apportion.core.explain.text import words
from apportion.core.ledger.state import NodeState, State
from apportion.core.placement.engine import DecisionEvent
from apportion.lab.course import Course, CourseFailed
from apportion.lab.recording import RecordingFailed
from apportion.runtime.ledger.port import Record
from apportion_schemas import (
    DEVICE_PLUGIN,
    DevicesRegistered,
    FormatEnabled,
    InvalidEvent,
    NodeObserved,
    PodAdopted,
    PodGone,
    PodPlaced,
    PodRefused,
    RevisionSetAside,
    Share,
    UnreadableEvent,
)

UID: Final = "shadow-of-"
# Evidence of our own placements, which are not another scheduler's decisions.
OURS: Final = "apportion.dev/shares"
DECISIONS_MAX: Final = 10_000
PODS_MAX: Final = 200_000  # comparisons that are kept
Seen = Callable[[ShadowPod], None]


def _as_kept(state: State, seen: NodeObserved) -> NodeObserved:
    """Label a node with the plugin that registered its devices, so that we may place pods there."""
    node = state.nodes.get(seen.node)
    plugin = node.registered.plugin if node is not None and node.registered else ""
    labels = {**seen.labels, DEVICE_PLUGIN: plugin}
    return structs.replace(seen, labels=labels) if plugin else seen


class Shadowing:
    """Compares each placement after revision `after` with our own decision.

    `follow` is called with each compared pod; without `follow`, the pods are collected for the
    answer."""

    def __init__(
        self, state: State, *, after: int, upto: int = sys.maxsize, follow: Seen | None = None
    ) -> None:
        for node in state.nodes.values():
            if node.observed is not None:
                node.observed = _as_kept(state, node.observed)
        self._course = Course(state)
        self._after = after
        self._upto = upto
        self._follow = follow
        self._revision = state.revision
        self._passed_over = 0
        self.pods: list[ShadowPod] = []

    def take(self, record: Record) -> bool:
        """Read the next record. Return False if no more records of the span follow.

        Raises UnknownEvent if a newer build wrote it, and RecordingFailed for too many pods."""
        if record.revision > self._upto:
            return False
        self._revision = record.revision
        try:
            event = self._course.state.rules.read(record.revision, record.subject, record.payload)
        except (UnreadableEvent, InvalidEvent):
            self._passed_over += 1
            return record.revision < self._upto
        self._course.time = event.time
        data, rules = event.data, self._course.state.rules
        # The first two name revisions of the ledger, and the course has its own.
        if isinstance(data, FormatEnabled):
            rules.enable(record.revision, data)
        elif isinstance(data, RevisionSetAside):
            rules.heed(record.revision, data)
        else:
            theirs = isinstance(data, PodAdopted) and data.evidence not in ("", OURS)
            if theirs and record.revision > self._after:
                self._compare(record.revision, event.time, data)
            try:
                state = self._course.state
                kept = _as_kept(state, data) if isinstance(data, NodeObserved) else data
                self._course.apply(kept)
                node = state.nodes.get(data.node) if isinstance(data, DevicesRegistered) else None
                if node is not None and node.observed is not None:
                    self._course.apply(_as_kept(state, node.observed))
            except CourseFailed:
                self._passed_over += 1
        return record.revision < self._upto

    def finish(self) -> ShadowAnswer:
        """Return all pods compared so far, with totals."""
        counts = Counter(pod.verdict for pod in self.pods)
        both = [(pod.theirs, pod.ours) for pod in self.pods if pod.theirs.devices]
        return ShadowAnswer(
            from_revision=self._after,
            to_revision=self._revision,
            pods=tuple(self.pods),
            same=counts["same"],
            other_devices=counts["other-devices"],
            other_node=counts["other-node"],
            would_wait=counts["would-wait"],
            opened_theirs=sum(theirs.opened for theirs, ours in both if ours is not None),
            opened_ours=sum(ours.opened for _, ours in both if ours is not None),
            passed_over=self._passed_over,
        )

    def _compare(self, revision: int, time: str, data: PodAdopted) -> None:
        about = data.submitted
        uid = f"{UID}{revision}"
        # Decide about the pod alone: it is bound already, without its gang or a kube-scheduler.
        wish = structs.replace(about, uid=uid, group="", task="", chooser="", gates=())
        try:
            self._course.apply(wish)
        except CourseFailed:
            self._passed_over += 1
            return
        found = self._decide(uid)
        self._course.apply(PodGone(uid=uid))
        theirs = self._spot(data.node, data.shares)
        ours = self._spot(found.node, found.shares) if isinstance(found, PodPlaced) else None
        reason = words.refusal(found, about.shape) if isinstance(found, PodRefused) else ""
        verdict: Verdict = "same"
        if ours is None:
            verdict = "would-wait"
        elif theirs.node != ours.node:
            verdict = "other-node"
        elif theirs.devices and ours.devices and set(theirs.devices) != set(ours.devices):
            verdict = "other-devices"
        made = ShadowPod(
            revision=revision, time=time, namespace=about.namespace, name=about.name,
            verdict=verdict, theirs=theirs, ours=ours, reason=reason,
        )  # fmt: skip
        if self._follow is not None:
            self._follow(made)
            return
        self.pods.append(made)
        if len(self.pods) > PODS_MAX:
            raise RecordingFailed(f"more than {PODS_MAX:,} pods; compare a shorter span")

    def _decide(self, uid: str) -> DecisionEvent | None:
        for _ in range(DECISIONS_MAX):
            decision = self._course.engine.decide(
                events_max=len(self._course.state.pods) + 1, looks_max=sys.maxsize
            )
            self._course.engine.retry(decision)
            for event in decision.events:
                if isinstance(event, PodPlaced | PodRefused) and event.pod == uid:
                    return event
            if not decision.more:
                return None
        return None

    def _spot(self, node: str, shares: Iterable[Share]) -> Spot:
        devices = tuple(dict.fromkeys(share.device for share in shares))
        known: NodeState | None = self._course.state.nodes.get(node)
        by_id = known.by_id if known is not None else {}
        opened = sum(name not in by_id or by_id[name].idle for name in devices)
        return Spot(node=node, devices=devices, opened=opened)
