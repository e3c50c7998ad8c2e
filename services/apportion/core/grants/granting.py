"""Which module grants which share: the one place where a new mode is entered."""

from collections.abc import Callable

from apportion.core.devices.catalogue import FAMILIES
from apportion.core.grants import hami_core, mig, mps, vnpu, vnpu_soft, whole
from apportion.core.grants.held import GrantRefused, Held, Node
from apportion.core.grants.plan import Grant
from apportion_schemas import Device
from apportion_schemas.inventory import Mode

Granting = Callable[[Held, Node], Grant]
MODES: dict[Mode, Granting] = {
    "hami-core": hami_core.grant,
    "mps": mps.grant,
    "mig": mig.grant,
    "vnpu": vnpu.grant,
    "exclusive": whole.grant,
}
NPU_MODES: dict[Mode, Granting] = {
    "vnpu": vnpu.grant,
    "hami-core": vnpu_soft.grant,
    "exclusive": vnpu.grant,
}
"""Of families that know templates: a whole NPU is one without a template."""


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
    device = held.parts[0].device
    return _of(device)[device.mode](held, node)


def _of(device: Device) -> dict[Mode, Granting]:
    """The modes of its family, which need not be one of the catalogue."""
    family = FAMILIES.get(device.family)
    return NPU_MODES if family is not None and family.templates else MODES
