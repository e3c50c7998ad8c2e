"""Where bindings and evictions take effect.

Kubernetes stands behind this port with one `pods/binding` call, or one deletion
(`kubernetes.target`); where there is no Kubernetes the ledger is all there is, and neither has an
effect outside it. Invariant:
`bind` may be called again for the same placement and then says what the first call did.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from apportion_schemas import PodEvicted, PodPlaced, PodResized


class Bound(msgspec.Struct, frozen=True):
    """The pod is bound to the node of the placement, now or already."""


class Failed(msgspec.Struct, frozen=True):
    """The pod is not bound. `final`: trying this placement again cannot help.

    `unknown`: nobody answered, so the pod may be bound all the same; such a placement is never
    given up, for its devices may be in use. `waits`: what it needs is on its way, so that it is
    tried however often that takes, until it is `final`.
    """

    message: str
    final: bool
    unknown: bool = False
    waits: bool = False


class Evicted(msgspec.Struct, frozen=True):
    """The pod is told to go, or has gone; its end is for the watcher to tell."""


Outcome = Bound | Failed


class Target(Protocol):
    """One place where pods are bound to nodes."""

    async def bind(self, placed: PodPlaced) -> Outcome:
        """Bind the pod. What goes wrong is an outcome, not an exception."""

    async def evict(self, evicted: PodEvicted) -> Evicted | Failed:
        """Let the pod end, with the grace that is its own. As `bind` it may be asked again."""

    async def resize(self, resized: PodResized) -> Failed | None:
        """Let the pod say what it holds now. `final`: there is no such pod any more."""


class LocalTarget:
    """No API server: the agent of the node acts on the ledger's PodBound alone."""

    async def bind(self, placed: PodPlaced) -> Outcome:  # noqa: ARG002 - nothing can go wrong
        """See `Target`."""
        return Bound()

    async def evict(self, evicted: PodEvicted) -> Evicted | Failed:  # noqa: ARG002 - as above
        """See `Target`: its source reads the event, and lets the pod go."""
        return Evicted()

    async def resize(self, resized: PodResized) -> Failed | None:  # noqa: ARG002 - as above
        """See `Target`: the ledger says it."""
        return None
