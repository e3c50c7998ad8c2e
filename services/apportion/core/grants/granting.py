"""Which module grants which share: the one place where a new mode is entered."""

from collections.abc import Callable

from apportion.core.grants import hami_core, mig, mps, vnpu, whole
from apportion.core.grants.held import GrantRefused, Held, Node
from apportion.core.grants.plan import Grant
from apportion_schemas.inventory import Mode

MODES: dict[Mode, Callable[[Held, Node], Grant]] = {
    "hami-core": hami_core.grant,
    "mps": mps.grant,
    "mig": mig.grant,
    "vnpu": vnpu.grant,
    "exclusive": whole.grant,
}


def grant(held: Held, node: Node) -> Grant:
    """What the container gets.

    Raises:
        GrantRefused: the node cannot give it, or its devices are shared in different ways.
    """
    modes = {part.device.mode for part in held.parts}
    if len(modes) > 1:
        raise GrantRefused(
            f"container {held.container!r} of pod {held.pod} holds devices that are shared in "
            f"different ways ({', '.join(sorted(modes))}); one container has one of them"
        )
    (mode,) = modes
    return MODES[mode](held, node)
