"""Whose pods a pod is: ours, those of a kube-scheduler that asks our extender, or another's.

Invariant: watcher and webhook judge by the same names, those of the ledger's configuration or else
what they were told; so no pod is taken by one and left by the other."""

from collections.abc import Collection
from enum import Enum

from msgspec import Struct

from apportion_schemas import Configuration

OURS = ("apportion", "volcano", "hami-scheduler")
"""Our own name, and those of the schedulers whose place we take."""
DEFAULT = "default-scheduler"
"""What the API server writes where a pod names no scheduler."""


class Chooser(Enum):
    """Who chooses the node of a pod."""

    US = "us"
    EXTENDED = "a kube-scheduler that asks our extender"
    NOBODY = "nobody yet: no scheduler is named"
    OTHERS = "another scheduler"


class SchedulerNames(Struct, frozen=True):
    """The values of `spec.schedulerName` that mean us, and those of extended kube-schedulers."""

    ours: frozenset[str] = frozenset(OURS)
    extended: frozenset[str] = frozenset()

    def chooser(self, name: str) -> Chooser:
        """Who chooses for a pod with this `spec.schedulerName`; empty is none."""
        if name in self.ours:
            return Chooser.US
        if name in self.extended or (not name and DEFAULT in self.extended):
            return Chooser.EXTENDED
        return Chooser.NOBODY if name in {"", DEFAULT} else Chooser.OTHERS


def scheduler_names(configuration: Configuration, given: Collection[str] = OURS) -> SchedulerNames:
    """The names in force; those of the configuration take the place of those that we were told."""
    return SchedulerNames(
        frozenset(configuration.scheduler_names) or frozenset(given),
        frozenset(configuration.extended_scheduler_names),
    )
