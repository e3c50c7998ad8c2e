"""What the node really handed to the container, as its agent saw it."""

from typing import Annotated

from msgspec import Meta

from apportion_schemas.quantities import Name, Natural, Payload, Text


class SharesAllocated(Payload, frozen=True):
    """The shares of a pod are in its containers; `devices` are the real device ids."""

    pod: Name
    node: Name
    attempt: Natural
    devices: Annotated[tuple[Name, ...], Meta(max_length=8192)]


class AllocationFailed(Payload, frozen=True):
    """The node could not hand out the shares of a placement."""

    pod: Name
    node: Name
    attempt: Natural
    message: Text
