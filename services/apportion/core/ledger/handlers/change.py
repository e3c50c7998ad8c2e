"""The input and the result of a fold handler, and the registry of handlers.

Invariant: a handler that raises `Refused` has changed nothing."""

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct

from apportion.core.ledger.state import NodeState, PodState, State
from apportion_schemas import Share


class Change(Struct, frozen=True, gc=False):
    """What one event changed in the state, for indexes and accounts derived from the state."""

    data: Any
    node: NodeState | None = None  # if its offer or usage changed
    pod: PodState | None = None
    refused: str = ""  # why the event was not applied
    shares: tuple[Share, ...] | None = None  # those that changed; None: any may have
    before: PodState | None = None  # if its shape or identity changed
    forgotten: tuple[NodeState, ...] = ()  # dropped from the state


class Refused(Exception):
    """Raised by a handler if the event contradicts the state; the fold then skips the event."""


class Context(Struct, frozen=True, gc=False):
    """The state to change, and the event's revision and time, for a handler."""

    state: State
    revision: int
    time: str


# Filled by `folds` when the modules of handlers are imported.
HANDLERS: dict[type, Callable[[Context, Any], Change]] = {}
_Handler = TypeVar("_Handler", bound=Callable[..., Change])


def folds(*payloads: type) -> Callable[[_Handler], _Handler]:
    """Register the decorated function as the handler of events with these payloads."""

    def register(handler: _Handler) -> _Handler:
        HANDLERS.update(dict.fromkeys(payloads, handler))
        return handler

    return register
