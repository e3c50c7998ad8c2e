"""MIG instances: the card itself holds a container to its part, so it only has to be shown."""

from apportion.core.grants.held import Edits, Grant, GrantRefused, Held, Node
from apportion_schemas import MigInstance


def grant(held: Held, node: Node) -> Grant:  # noqa: ARG001 - every mode is asked alike
    """The instances by their ids.

    Raises GrantRefused: an instance was not made."""
    made = []
    for part in held.parts:
        if part.instance is None:
            raise GrantRefused(
                f"the instance of container {held.container!r} of pod {held.pod} on "
                f"{part.device.id} is not made"
            )
        made.append(part.instance)
    visible = ",".join(instance.id for instance in made)
    nodes = tuple(dict.fromkeys(node for each in made for node in each.device_nodes))
    return Grant(Edits({"NVIDIA_VISIBLE_DEVICES": visible}, device_nodes=nodes, cards=held.cards))


def cut(instance: MigInstance) -> MigInstance:
    """What a card has to be cut into for it, without what the scheduler wants to know of it."""
    return MigInstance(profile=instance.profile, start=instance.start, size=instance.size)


def overlap(one: MigInstance, other: MigInstance) -> bool:
    """Whether both want the same slice of memory."""
    return one.start < other.start + other.size and other.start < one.start + one.size


def named(instance: MigInstance) -> str:
    """The size and the place of an instance, for people."""
    return f"{instance.profile} from slice {instance.start}"
