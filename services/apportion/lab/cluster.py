"""A simulated cluster for experiments: nodes from a fleet or a copied state, and the real engine.

Answers are rows: lists of dicts, as pandas takes them. Invariant: nothing leaves this process."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from apportion.core.answers.plans import PlanAnswer
from apportion.core.answers.replays import Measured, ReplayAnswer
from apportion.core.explain.explainer import Explainer
from apportion.core.explain.views import device_answers, node_answer, pod_answer
from apportion.core.explain.why import why
from apportion.core.ledger.state import State
from apportion.core.workloads.kinds.drafts import PodDraft, submitted
from apportion.core.workloads.pods.template import DEFAULT_CONFIG, ManifestConfig
from apportion.lab import changes as lab_changes
from apportion.lab.changes import Changes, known_policy
from apportion.lab.course import Course, copied
from apportion.lab.planning import Plan, plan
from apportion.lab.recording import Recorded
from apportion.lab.replaying import Otherwise, replay
from apportion.runtime.files.fleets import SimulatedNode
from apportion.runtime.files.manifests import read_manifest_files, read_wish
from apportion_schemas import PodGone, PodGroupObserved, PolicyChanged, QueueObserved, QuotaObserved

Row = dict[str, Any]


class Pods(NamedTuple):
    """The pods, gangs and limits read from manifests, and messages about unusable documents."""

    pods: list[PodDraft]
    groups: list[PodGroupObserved] = []
    problems: list[str] = []
    limits: list[QueueObserved | QuotaObserved] = []


def read_manifests(*names: str | Path, config: ManifestConfig = DEFAULT_CONFIG) -> Pods:
    """Read pods, gangs, queues and quotas from files and folders, as `apportion submit` does."""
    found = read_manifest_files([str(name) for name in names], sys.stdin.buffer)
    wish, problems = read_wish(found, config)
    return Pods(wish.pods, [*wish.groups.values()], [*map(str, problems)], wish.limits)


class Cluster:
    """A simulated cluster that starts from a fleet, from a copy of `state`, or from both."""

    def __init__(
        self, fleet: Iterable[SimulatedNode] = (), *, policy: str = "", state: State | None = None
    ) -> None:
        self._course = Course(copied(state) if state is not None else State())
        self._number = 0
        for node in fleet:
            for fact in lab_changes.node_facts(node):
                self._course.apply(fact)
        if policy:
            named = known_policy(policy)
            changed = PolicyChanged(by=lab_changes.WHO, node_policy=named, device_policy=named)
            self._course.apply(changed)

    @property
    def state(self) -> State:
        """Return the current state, which the caller must not change."""
        return self._course.state

    def submit(self, wanted: Pods | Sequence[PodDraft]) -> list[Row]:
        """Submit pods, let the engine decide, and return a row per pod.

        A row has the namespace, pod, node (empty while pending), devices and sentence."""
        pods = wanted if isinstance(wanted, Pods) else Pods(list(wanted))
        for fact in (*pods.limits, *pods.groups):
            self._course.apply(fact)
        uids = []
        for draft in pods.pods:
            self._number += 1
            uids.append(f"pod-{self._number}")
            self._course.apply(submitted(draft, uids[-1]))
        self.decide()
        live = [self.state.pods[uid] for uid in uids if uid in self.state.pods]
        return [
            {
                "namespace": pod.submitted.namespace,
                "pod": pod.submitted.name,
                "node": pod.placement.node if pod.placement is not None else "",
                "devices": [share.device for share in pod.placement.shares]
                if pod.placement is not None
                else [],
                "sentence": why(self.state, pod).sentence,
            }
            for pod in live
        ]

    def decide(self) -> None:
        """Let the engine decide until it makes no more decisions."""
        for _ in self._course.settle():
            pass

    def end(self, *names: str) -> None:
        """End the pods given as `namespace/name`, and let the engine decide. Raises KeyError."""
        live = {pod.full_name: uid for uid, pod in self.state.pods.items()}
        for name in names:
            self._course.apply(PodGone(uid=live[name]))
        self.decide()

    def plan(
        self, wanted: Pods | Sequence[PodDraft] = (), *, lose: Sequence[str] = (),
        add: Sequence[str] = (), policy: str = "",
    ) -> PlanAnswer:  # fmt: skip
        """Return what a plan would change, without changing the cluster. Raises WishInvalid."""
        pods = wanted if isinstance(wanted, Pods) else Pods(list(wanted))
        wish = Plan(
            pods=tuple(pods.pods),
            groups=tuple(pods.groups),
            changes=Changes(
                lose=tuple(lose), add=tuple(add), policy=policy, limits=tuple(pods.limits)
            ),
            problems=tuple(pods.problems),
        )
        return plan(self.state, wish)

    def pods(self) -> list[Row]:
        """Return all live pods, with the fields of `apportion get pods --json`."""
        explainer = Explainer(self.state)
        return rows(pod_answer(self.state, pod, explainer) for pod in self.state.pods.values())

    def nodes(self) -> list[Row]:
        """Return all nodes, with the fields of `apportion get nodes --json`."""
        return rows(map(node_answer, self.state.nodes.values()))

    def devices(self) -> list[Row]:
        """Return all devices and their pods, with the fields of `apportion get devices --json`."""
        return [row for node in self.state.nodes.values() for row in rows(device_answers(node))]


def rows(items: Iterable[msgspec.Struct]) -> list[Row]:
    """Return the structs of an answer as dicts of plain values."""
    return [msgspec.to_builtins(item) for item in items]


def compare(recorded: Recorded, courses: Mapping[str, Otherwise]) -> list[Row]:
    """Replay the recording once per course, and return a row of figures for each.

    The first row has the figures of the recording. Raises CourseFailed or WishInvalid."""
    found = [_figures("happened", recorded.happened)]
    for name, otherwise in courses.items():
        found.append(_figures(name, replay(recorded, otherwise).replayed))
    return found


def compare_policies(recorded: Recorded, policies: Iterable[str]) -> list[Row]:
    """Replay the recording with each policy, and return a row of figures for each.

    Raises CourseFailed or WishInvalid."""
    return compare(recorded, {name: Otherwise(changes=Changes(policy=name)) for name in policies})


def slices(answer: ReplayAnswer) -> list[Row]:
    """Return a row for each time interval of the recording, then for each of the replay."""
    return [
        {"course": name, **msgspec.to_builtins(each)}
        for name, course in (("happened", answer.happened), ("replayed", answer.replayed))
        for each in course.slices
    ]


def _figures(name: str, measured: Measured) -> Row:
    figures = msgspec.to_builtins(measured)
    del figures["slices"]
    return {"course": name, **figures}
