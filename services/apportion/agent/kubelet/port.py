"""The interface through which the kubelet's plugins use the rest of the agent."""

from typing import Final, Protocol

from msgspec import Struct

from apportion.core.grants import Edits

# Annotation in the answer to `Allocate` that names the claim and container it is meant for.
HANDED_TO: Final = "apportion.dev/handed-to"


class Handed(Struct, frozen=True):
    """An earlier answer to `Allocate`: the edits, and the container for which they were meant."""

    to: str  # the intended container; "" for none
    edits: Edits


class Holder(Struct, frozen=True):
    """The container that has certain slots, according to the kubelet's records."""

    pod: str
    namespace: str
    name: str
    # Several if an init container has the same slots: the kubelet does not name the starting one.
    containers: tuple[str, ...]
    resource: str
    slots: tuple[str, ...]
    handed: tuple[Handed, ...] = ()  # what each container already got
    starting: bool = True  # about to start, so it has no process; False when a claim is prepared


class NotPrepared(Exception):
    """Error: the container may not start now. The message has the reason; the kubelet retries."""


class Preparing(Protocol):
    """Prepares the shares of containers before the containers start."""

    async def prepare(self, holder: Holder) -> Edits:
        """Prepare a container before its start. Return the edits to it. Raises NotPrepared."""
