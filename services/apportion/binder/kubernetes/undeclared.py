"""Gangs that nobody declares: their pods wait, and no decision says so.

A scheduler is silent about a gang whose PodGroup it has not seen, for as a rule that comes a moment
after the pods. When it does not come, their owner has to be told. Invariant: each pod is named
once, and none whose gang was declared before the second look.
"""

from __future__ import annotations

from collections.abc import Iterator

from apportion.core.ledger.state import PENDING, PodState, State


class UndeclaredGangs:
    """The gangs without a declaration, as of the last look."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._before: frozenset[str] = frozenset()
        self._named: set[str] = set()

    def look(self) -> Iterator[PodState]:
        """Pods that wait for a declaration that was missing at the last look already."""
        groups = {
            name: group for name, group in self._state.groups.items() if group.observed is None
        }
        self._named.intersection_update(self._state.pods)
        for name in sorted(groups.keys() & self._before):
            for pod in groups[name].pods.values():
                if pod.phase is PENDING and pod.uid not in self._named:
                    self._named.add(pod.uid)
                    yield pod
        self._before = frozenset(groups)

    def named(self) -> Iterator[PodState]:
        """Pods that were named and wait for the same still."""
        for uid in self._named:
            pod = self._state.pods.get(uid)
            if pod is not None and pod.phase is PENDING:
                group = self._state.groups.get(pod.submitted.group)
                if group is not None and group.observed is None:
                    yield pod
