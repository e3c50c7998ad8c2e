"""Computes the events that bring the ledger in line with a source of pods.

Two watchers of a source derive the same events with the same ids. If a pod is evicted or its
manifest changes, the pod ends and its next incarnation is submitted, as with the kubelet's static
pods. Invariant: the watcher appends nothing while source and ledger agree."""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.core.workloads.kinds.drafts import PodDraft, submitted
from apportion_schemas import Configuration, PodEvicted, PodGone, PodGroupObserved, PodSubmitted
from apportion_schemas.quantities import TEXT_MAX, Payload

DEFAULT = Configuration()
PREEMPTED = "evicted for"
REMOVED = "manifest removed"
CHANGED = "manifest changed"
SUPERSEDED = "superseded by a later pod of the same name"

_encode = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """The pods and gangs that a source requests at one time."""

    pods: Mapping[str, PodDraft] = field(default_factory=dict)  # by `namespace/name`
    groups: Mapping[str, PodGroupObserved] = field(default_factory=dict)  # by name
    seen: AbstractSet[str] = frozenset()  # pods that were readable before
    # False while a part of the source was never readable: any unseen pod may be in it
    whole: bool = True

    def lacks(self, key: str) -> bool:
        """Return True if the source certainly does not request the pod."""
        return key not in self.pods and (self.whole or key in self.seen)


class Source:
    """A source of pods to submit. This base class has none, for when only users submit pods.

    Invariant: an observation lacks a pod only if the pod is certainly gone."""

    _observation = Observation()

    @property
    def problems(self) -> int:
        """Return the number of current problems with files, documents and pod names."""
        return 0

    def uid(self, key: str, incarnation: int) -> str:
        """Return the uid of the pod's n-th incarnation (submission), counted from 1."""
        raise LookupError(f"no manifest has submission {incarnation} of pod {key}")

    def incarnation(self, key: str, uid: str) -> int:  # noqa: ARG002 - no pod is ours
        """Return which submission of the pod has this uid, or 0 for a pod of another source."""
        return 0

    async def observe(self, configuration: Configuration = DEFAULT) -> Observation:  # noqa: ARG002
        """Return the pods and gangs that the source requests now."""
        return self._observation

    async def changed(self) -> None:
        """Wait until the source may have changed. The base class waits for ever."""
        await asyncio.Event().wait()


class Fact(NamedTuple):
    """An event to append, and the event's id."""

    data: Payload
    event_id: str


class Known:
    """The ledger's pods that come from one source, kept up to date with the fold."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._moved = False
        self._declared_lately: set[str] = set()
        self.live: dict[str, dict[int, PodSubmitted]] = {}  # by `namespace/name` and incarnation
        self.latest: dict[str, int] = {}  # the highest incarnation, live or not
        self.declared: dict[str, int] = {}  # revision of a gang's last declaration or end
        self.since = 0

    def begin(self, state: State) -> None:
        """Start from a snapshot, which has only live pods."""
        self.since = state.revision
        for pod in state.pods.values():
            self._note(pod.submitted, live=True)

    def look_begins(self) -> None:
        """Start a new observation of the source. From now on, record events that may outdate it."""
        self._moved = False
        self._declared_lately.clear()

    def outdates(self, wanted: Observation) -> bool:
        """Return True if an event since `look_begins` may have made the observation outdated."""
        return self._moved or not self._declared_lately.isdisjoint(wanted.groups)

    def forgotten(self, wanted: Observation) -> list[str]:
        """Return the requested pods for which no submission is known."""
        return [key for key in wanted.pods if key not in self.latest]

    def spend(self, pod: PodSubmitted) -> None:
        """Record that this pod's uid was used, even if the state no longer has the pod.

        A state from a snapshot lacks ended pods, whose uids must not be used again."""
        key = f"{pod.namespace}/{pod.name}"
        self.recall(key, self._source.incarnation(key, pod.uid))

    def recall(self, key: str, incarnation: int) -> None:
        """Record that the pod has been submitted at least `incarnation` times."""
        self.latest[key] = max(incarnation, self.latest.get(key, 0))

    def observe(self, state: State, change: Change) -> bool:
        """Update after a change. Return True if it is about this source's pods or a gang."""
        data = change.data
        if change.refused:
            return False
        if isinstance(data, PodGroupObserved):
            self.declared[data.group] = state.revision
            self._declared_lately.add(data.group)
            return True
        if isinstance(data, PodEvicted):
            return True
        if isinstance(data, PodSubmitted | PodGone) and change.pod is not None:
            pod = change.pod.submitted
            if isinstance(data, PodGone) and pod.group and pod.group not in state.groups:
                self.declared[pod.group] = state.revision
            return self._note(pod, live=isinstance(data, PodSubmitted))
        return False

    def _note(self, pod: PodSubmitted, *, live: bool) -> bool:
        key = f"{pod.namespace}/{pod.name}"
        incarnation = self._source.incarnation(key, pod.uid)
        if not incarnation:
            return False
        self._moved = True
        pods = self.live.setdefault(key, {})
        if live:
            pods[incarnation] = pod
            self.latest[key] = max(incarnation, self.latest.get(key, 0))
        else:
            pods.pop(incarnation, None)
        if not pods:
            del self.live[key]
        return True


def next_facts(source: Source, known: Known, state: State, wanted: Observation) -> list[Fact]:
    """Return the next events to append: ends of pods before gangs, and gangs before new pods.

    Call again once the events are folded. Gangs come after the ends of old pods, because a fold
    forgets a gang with its last pod."""
    return (
        list(_gone(known, state, wanted))
        or list(_gangs(known, state, wanted))
        or list(_new(source, known, wanted))
    )


def _gone(known: Known, state: State, wanted: Observation) -> Iterator[Fact]:
    for key, pods in known.live.items():
        draft = wanted.pods.get(key)
        newest = max(pods)
        for incarnation, pod in pods.items():
            if incarnation != newest:
                reason = SUPERSEDED
            elif pod.uid in state.evictions:
                reason = f"{PREEMPTED} {state.evictions[pod.uid].beneficiary_name}"[:TEXT_MAX]
            elif draft is not None:
                reason = "" if submitted(draft, pod.uid) == pod else CHANGED
            else:
                reason = REMOVED if wanted.lacks(key) else ""
            if reason:
                yield Fact(PodGone(uid=pod.uid, reason=reason), f"{pod.uid}/gone")


def _gangs(known: Known, state: State, wanted: Observation) -> Iterator[Fact]:
    for name, group in wanted.groups.items():
        has = state.groups.get(name)
        if has is None or has.observed != group:
            digest = hashlib.sha256(_encode(group)).hexdigest()[:32]
            yield Fact(group, f"PodGroupObserved/{known.declared.get(name, known.since)}/{digest}")


def _new(source: Source, known: Known, wanted: Observation) -> Iterator[Fact]:
    for key, draft in wanted.pods.items():
        if key not in known.live:
            uid = source.uid(key, known.latest.get(key, 0) + 1)
            yield Fact(submitted(draft, uid), f"{uid}/submitted")
