"""Whether a node's agent is heard, and what an intake did not believe of it.

Agents say over and over that they are there, and nobody stores that. A scheduler that hears nothing
for a while writes it down, and again when the agent is back. So all readers know which nodes are
without an agent, and since when. A refused report is told once for each node and cause in an hour,
however often the agent tries.
"""

from typing import Annotated

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.quantities import Name, Payload, Text


@event("presence.{node}", "scheduler")
class NodeSilent(Payload, frozen=True):
    """The agent of a node was not heard for `grace_s` seconds: nobody there hands out shares."""

    node: Name
    grace_s: Annotated[int, Meta(ge=1, le=86_400)]


@event("presence.{node}", "scheduler")
class NodeHeard(Payload, frozen=True):
    """The agent of a node is heard again."""

    node: Name


@event("intake.{node}", "intake")
class ReportRefused(Payload, frozen=True):
    """Something that the agent of this node said was not appended.

    `cause` is the name under which it was refused, `message` the first of it in words.
    """

    node: Name
    cause: Name
    message: Text
