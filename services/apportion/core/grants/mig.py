"""MIG instances: the card itself holds a container to its part, so it only has to be shown."""

from apportion.core.grants.edits import Edits
from apportion.core.grants.held import GrantRefused, Held, Node
from apportion.core.grants.plan import Grant


def grant(held: Held, node: Node) -> Grant:  # noqa: ARG001 - every mode is asked alike
    """The instances by their ids.

    Raises:
        GrantRefused: an instance was not made.
    """
    for part in held.parts:
        if not part.instance_id:
            raise GrantRefused(
                f"the instance of container {held.container!r} of pod {held.pod} on "
                f"{part.device.id} is not made"
            )
    visible = ",".join(part.instance_id for part in held.parts)
    return Grant(Edits({"NVIDIA_VISIBLE_DEVICES": visible}))
