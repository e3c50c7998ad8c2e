"""Where a watcher learns what is wanted.

Invariant: an observation never claims that something is gone unless the source could tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from apportion.core.workloads.kinds.drafts import PodDraft
from apportion_schemas import Configuration, PodGroupObserved

DEFAULT = Configuration()


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """All that a source wants at one moment; pods by `namespace/name`, gangs by their name.

    `whole` is false while some of the source has never been readable: then only what was `seen`
    before can be told to be gone, for the rest may be where nobody can look.
    """

    pods: Mapping[str, PodDraft] = field(default_factory=dict)
    groups: Mapping[str, PodGroupObserved] = field(default_factory=dict)
    seen: AbstractSet[str] = frozenset()
    whole: bool = True

    def lacks(self, key: str) -> bool:
        """Whether the pod is surely not wanted."""
        return key not in self.pods and (self.whole or key in self.seen)


class Nothing:
    """A `Source` that wants nothing: all pods are submitted by hand."""

    problems = 0

    def __init__(self) -> None:
        self._observation = Observation()

    def uid(self, key: str, incarnation: int) -> str:
        """See `Source`; nobody asks, for it wants none."""
        raise LookupError(f"no pod {key} ({incarnation}) is wanted")

    def incarnation(self, key: str, uid: str) -> int:  # noqa: ARG002 - none is ours
        """See `Source`."""
        return 0

    async def observe(self, configuration: Configuration = DEFAULT) -> Observation:  # noqa: ARG002
        """See `Source`."""
        return self._observation

    async def changed(self) -> None:
        """See `Source`: never."""
        await asyncio.Event().wait()


class Source(Protocol):
    """One place that says which pods are wanted."""

    def uid(self, key: str, incarnation: int) -> str:
        """The uid of the n-th pod of that `namespace/name`, counted from 1."""

    def incarnation(self, key: str, uid: str) -> int:
        """The inverse of `uid`; 0 where the pod is none of this source's."""

    async def observe(self, configuration: Configuration = DEFAULT) -> Observation:
        """What is wanted now, as manifests read under this configuration."""

    async def changed(self) -> None:
        """Return when another look may find something else."""
