"""What a handler of the fold is given, what it answers, and which handler takes which event.

Invariant: a handler that raises `Refused` has changed nothing."""

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct

from apportion.core.ledger.state import NodeState, PodState, State
from apportion_schemas import Share


class Change(Struct, frozen=True, gc=False):
    """What one event touched, for whatever is derived from the state (index, queue, metrics).

    `node` is one that offers or holds something else now; that a pod goes on with its life where it
    is placed changes nothing there. `refused` is empty, or why the event was not applied. `shares`
    came to the node or left it with the pod and nothing else of it changed; None where anything may
    have. `before` is the pod as it was, where the event says otherwise of what it is or wants.
    `forgotten` are nodes that the state no longer has."""

    data: Any
    node: NodeState | None = None
    pod: PodState | None = None
    refused: str = ""
    shares: tuple[Share, ...] | None = None
    before: PodState | None = None
    forgotten: tuple[NodeState, ...] = ()


class Refused(Exception):
    """The event contradicts the state."""


class Context(Struct, frozen=True, gc=False):
    """What a handler may need of the event beside its payload."""

    state: State
    revision: int
    time: str


HANDLERS: dict[type, Callable[[Context, Any], Change]] = {}
"""What the fold does with each payload; `folds` fills it as modules of handlers are imported."""
_Handler = TypeVar("_Handler", bound=Callable[..., Change])


def folds(*payloads: type) -> Callable[[_Handler], _Handler]:
    """Register the decorated function as the handler of these payloads."""

    def register(handler: _Handler) -> _Handler:
        HANDLERS.update(dict.fromkeys(payloads, handler))
        return handler

    return register
