"""Devices that a container has to itself."""

from apportion.core.grants.edits import Edits
from apportion.core.grants.held import Held, Node
from apportion.core.grants.plan import Grant


def grant(held: Held, node: Node) -> Grant:  # noqa: ARG001 - every mode is asked alike
    """The cards by their ids; nothing holds the container to less."""
    return Grant(Edits({"NVIDIA_VISIBLE_DEVICES": ",".join(held.cards)}, cards=held.cards))
