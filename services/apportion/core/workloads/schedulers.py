"""Derive from a pod's `spec.schedulerName` which scheduler chooses its node.

The names are in the ledger's configuration, or else in the options of watcher and webhook.
Invariant: both use the same names, so they treat each pod in the same way."""

from collections.abc import Collection
from enum import Enum

from msgspec import Struct

from apportion_schemas import Configuration

# our own name, and those of the schedulers that we replace
OURS = ("apportion", "volcano", "hami-scheduler")
DEFAULT = "default-scheduler"  # what the API server sets if a pod names no scheduler


class Chooser(Enum):
    """Which scheduler chooses a pod's node."""

    US = "us"
    EXTENDED = "a kube-scheduler with our extender"
    NOBODY = "none: no scheduler is named"
    OTHERS = "another scheduler"


class SchedulerNames(Struct, frozen=True):
    """The `spec.schedulerName` values for Apportion, and for kube-schedulers with our extender."""

    ours: frozenset[str] = frozenset(OURS)
    extended: frozenset[str] = frozenset()

    def chooser(self, name: str) -> Chooser:
        """Return which scheduler a `spec.schedulerName`, possibly empty, selects."""
        if name in self.ours:
            return Chooser.US
        if name in self.extended or (not name and DEFAULT in self.extended):
            return Chooser.EXTENDED
        return Chooser.NOBODY if name in {"", DEFAULT} else Chooser.OTHERS


def scheduler_names(configuration: Configuration, given: Collection[str] = OURS) -> SchedulerNames:
    """Return the scheduler names in the configuration, or `given` if it has none."""
    return SchedulerNames(
        frozenset(configuration.scheduler_names) or frozenset(given),
        frozenset(configuration.extended_scheduler_names),
    )
