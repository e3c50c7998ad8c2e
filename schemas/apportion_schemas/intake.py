"""What an intake did not believe of a node's agent: the one thing that it says of its own.

It is said once for each node and cause in an hour, however often the agent tries.
"""

from apportion_schemas.quantities import Name, Payload, Text


class ReportRefused(Payload, frozen=True):
    """Something that the agent of this node said was not appended.

    `cause` is the name under which it was refused, `message` the first of it in words.
    """

    node: Name
    cause: Name
    message: Text
