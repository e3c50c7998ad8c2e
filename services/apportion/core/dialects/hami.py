"""HAMi: `nvidia.com/gpu`, `gpumem`, `gpumem-percentage`, `gpucores`, `priority`.

The defaults are those of HAMi's admission webhook, which sets `gpucores` to 100 where the memory is
the whole card and no cores were given. Its device plugin takes a placement from the pod's
annotations: one segment per container, init containers first, empty ones kept.
"""

from collections.abc import Iterable

import msgspec

from apportion.core.devices.catalogue import mig_profiles
from apportion.core.dialects import vgpu
from apportion.core.dialects.container import Amounts, Container
from apportion.core.dialects.dialect import Dialect
from apportion.core.dialects.names import DialectConfig
from apportion.core.dialects.placed_pod import PlacedPod, record
from apportion_schemas import Ask, Share
from apportion_schemas.quantities import WHOLE

NAME = "hami"
TYPE = "NVIDIA"
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
_encode = msgspec.json.Encoder().encode


def of(config: DialectConfig) -> tuple[Dialect, ...]:
    """The dialect as configured."""
    names = config.hami

    def read(container: Container, amounts: Amounts) -> Ask | None:
        return vgpu.read(container, amounts, names, config)

    return (Dialect(NAME, names.every, read, names.priority or ""),)


def render(it: PlacedPod) -> dict[str, str]:
    """What HAMi's scheduler writes on a pod of this placement."""
    segments = "".join(
        "".join(_record(it, share) for share in it.shares(name)) + ";"
        for name in (*it.init_containers, *it.containers)
    )
    instances = list(_mig_allocations(it))
    return {
        "hami.io/vgpu-devices-to-allocate": segments,
        "hami.io/vgpu-devices-allocated": segments,
        **bound(it),
        **({MIG_ALLOCATIONS: _encode(instances).decode()} if instances else {}),
    }


def bound(it: PlacedPod) -> dict[str, str]:
    """What HAMi writes whatever the device: where, and since when."""
    return {
        "hami.io/vgpu-node": it.placed.node,
        "hami.io/vgpu-time": it.seconds,
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": it.seconds,
    }


def _record(it: PlacedPod, share: Share) -> str:
    if share.instance is None:
        return record(share.device, TYPE, share.memory_mib, min(share.cores, WHOLE))
    device, name = it.devices[share.device], share.instance.profile
    known = {profile.name: profile for profile in mig_profiles(device.family, device.model)}
    if name not in known:
        return record(share.device, TYPE, share.memory_mib, 0)
    return record(share.device, TYPE, known[name].memory_mib, known[name].cores)


def _mig_allocations(it: PlacedPod) -> Iterable[dict[str, object]]:
    """Each instance with where it stands: the container and the device in it, counted from 0."""
    for container, name in enumerate((*it.init_containers, *it.containers)):
        for position, share in enumerate(it.shares(name)):
            if share.instance is not None:
                yield {
                    "containerIndex": container,
                    "deviceIndex": position,
                    "gpuUUID": share.device,
                    "profile": share.instance.profile,
                    "placement": {"start": share.instance.start, "size": share.instance.size},
                }
