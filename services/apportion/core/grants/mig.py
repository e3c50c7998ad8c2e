"""Create grants for MIG instances. The GPU enforces the limits, so no library is needed."""

from apportion.core.grants.held import Edits, Grant, GrantRefused, Held, Node
from apportion_schemas import MigInstance


def grant(held: Held, node: Node) -> Grant:  # noqa: ARG001 - the signature of every mode
    """Return a grant that exposes the container's MIG instances. Raises GrantRefused."""
    made = []
    for part in held.parts:
        if part.instance is None:
            raise GrantRefused(
                f"the MIG instance of container {held.container!r} of pod {held.pod} on "
                f"{part.device.id} does not exist yet"
            )
        made.append(part.instance)
    visible = ",".join(instance.id for instance in made)
    nodes = tuple(dict.fromkeys(node for each in made for node in each.device_nodes))
    return Grant(Edits({"NVIDIA_VISIBLE_DEVICES": visible}, device_nodes=nodes, cards=held.cards))


def cut(instance: MigInstance) -> MigInstance:
    """Return the instance with only the fields that a GPU reports: profile, start and size."""
    return MigInstance(profile=instance.profile, start=instance.start, size=instance.size)


def overlap(one: MigInstance, other: MigInstance) -> bool:
    """Return True if both instances need the same memory slice."""
    return one.start < other.start + other.size and other.start < one.start + one.size


def named(instance: MigInstance) -> str:
    """Format the size and position of an instance for users."""
    return f"{instance.profile} from slice {instance.start}"
