"""Pods whose node somebody else chooses: placed there when they are asked to, or told why not.

A choice is a wish, not a fact: it waits here until the ledger says what came of it, and whoever
made it asks again where that never happens. Invariant: a pod with a chooser is placed on the node
that was chosen last, by a question about that node alone, and never by the queue.
"""

from collections.abc import Callable
from typing import Final

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.fit_query import FitQuery
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.limits.limits import Limits
from apportion.core.placement.queueing.shape_queue import is_pending
from apportion.core.placement.reservations import Reservations
from apportion_schemas import PodGone, PodPlaced, PodRefused, Score

CHOICES_MAX: Final = 10_000
"""Choices that wait; beyond, the oldest is forgotten, and whoever made it asks again."""


class ExternalChoices:
    """The choices that wait over one state; `columns` are those of its engine, if it has one."""

    def __init__(self, state: State, columns: Columns | None = None) -> None:
        self._state = state
        self._fit_query = FitQuery(state, columns)
        self._limits: Limits | None = None  # until there is a choice
        self._nodes: dict[str, str] = {}

    def choose(self, uid: str, node: str) -> None:
        """The pod is to be placed on this node; a choice before this one is void."""
        self._nodes.pop(uid, None)
        self._nodes[uid] = node
        if len(self._nodes) > CHOICES_MAX:
            del self._nodes[next(iter(self._nodes))]

    def observe(self, change: Change) -> None:
        """Take note of what the fold changed."""
        self._fit_query.observe(change)
        if self._limits is not None:
            self._limits.observe(change)
        data = change.data
        if isinstance(data, PodPlaced | PodRefused):
            self._nodes.pop(data.pod, None)
        elif isinstance(data, PodGone):
            self._nodes.pop(data.uid, None)

    def prepare(self) -> bool:
        """Do a part of what `decide` needs that takes long; whether all of it is there."""
        return not self._nodes or self._fit_query.prepare()

    def decide(
        self, owns: Callable[[PodState], bool], *, events_max: int
    ) -> list[tuple[PodState, PodPlaced | PodRefused]]:
        """What becomes of the choices for pods that are ours, each beside those before it.

        A choice for a pod that is not in the ledger yet waits for it.
        """
        decided: list[tuple[PodState, PodPlaced | PodRefused]] = []
        reservations: Reservations | None = None
        for uid, name in self._nodes.items():
            pod = self._state.pods.get(uid)
            if pod is None or not is_pending(self._state, pod) or not owns(pod):
                continue
            if reservations is None:
                # Nobody asks which pods stand beside each other.
                limits, columns = self._known_limits(), self._fit_query.columns
                reservations = Reservations(self._state, columns, limits, None)
            reservations.charge()
            found = self._place(pod, name)
            decided.append((pod, found))
            if isinstance(found, PodPlaced):
                reservations.reserve(pod, found)
            if len(decided) >= events_max:
                break
        if reservations is not None:
            reservations.roll_back()
        return decided

    def _known_limits(self) -> Limits:
        if self._limits is None:
            self._limits = Limits(self._state)
        return self._limits

    def _place(self, pod: PodState, name: str) -> PodPlaced | PodRefused:
        about, shape = pod.submitted, pod.submitted.shape
        fit = self._fit_query.fit_on(shape, name)
        exceeded = self._known_limits().exceeded(pod, name, fit.shares) if fit is not None else None
        if exceeded is not None:
            return PodRefused(
                pod=pod.uid,
                namespace=about.namespace,
                name=about.name,
                reasons={exceeded.code: 1},
                nodes=1,
                queue=exceeded.queue,
                quota=exceeded.quota,
            )
        if fit is not None:
            return PodPlaced(
                pod=pod.uid,
                namespace=about.namespace,
                name=about.name,
                attempt=pod.attempt,
                node=name,
                shares=fit.shares,
                score=Score(node=name, total=fit.total, parts={fit.policy: fit.total}),
                fitting=fit.fitting,
                nodes=self._fit_query.columns.count,
            )
        code, nearest = self._fit_query.shortage(shape, name)
        return PodRefused(
            pod=pod.uid,
            namespace=about.namespace,
            name=about.name,
            reasons={code: 1},
            nodes=1,
            nearest=(nearest,) if nearest else (),
        )
