"""Whether a node's agent is heard: agents say so over and over, and nobody stores that.

A scheduler that hears nothing for a while writes it down, and again when the agent is back. So all
readers know which nodes are without an agent, and since when.
"""

from typing import Annotated

from msgspec import Meta

from apportion_schemas.quantities import Name, Payload


class NodeSilent(Payload, frozen=True):
    """The agent of a node was not heard for `grace_s` seconds: nobody there hands out shares."""

    node: Name
    grace_s: Annotated[int, Meta(ge=1, le=86_400)]


class NodeHeard(Payload, frozen=True):
    """The agent of a node is heard again."""

    node: Name
