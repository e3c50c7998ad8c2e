"""The dialect of Volcano vGPU: `volcano.sh/vgpu-number`, `vgpu-memory`, `vgpu-cores` and others.

A count alone requests whole GPUs. 100 percent of memory without cores requests shares, because
Volcano lets pods share the cores of such a GPU. The device plugin identifies a MIG instance by its
group and position, so the groups must be those of `knownMigGeometries` or the plugin's defaults."""

from collections.abc import Iterator
from functools import partial

from apportion.core.devices.demand import generated, laid_out, memory_needed_mib
from apportion.core.workloads.dialects import nvidia
from apportion.core.workloads.dialects.dialect import (
    BoundPod,
    Held,
    Lock,
    Notes,
    PlacedPod,
    Unclear,
    record,
    records,
    whole_number,
)
from apportion.core.workloads.dialects.inventory import (
    Entry,
    Inventory,
    NodeFacts,
    Unread,
    devices_of,
    number,
    readable,
)
from apportion_schemas import Device, DeviceConstraints, Share
from apportion_schemas.quantities import WHOLE

NAME = "volcano-vgpu"
TYPE = "NVIDIA"
IDS = "volcano.sh/vgpu-ids-new"
TO_ALLOCATE = "volcano.sh/devices-to-allocate"
PHASE = "volcano.sh/bind-phase"
TIME = "volcano.sh/vgpu-time"
NEVER = str(2**64 - 1)  # Volcano's plugin serves the pod with the earliest time
REGISTER = "volcano.sh/node-vgpu-register"
# Volcano's scheduler and plugin use only the time.
LOCK = Lock("hamivgpu", names_pod=False)
# source: Volcano's `ExtractResourceRequest` and `checkNodeGPUSharingPredicateAndScore`
MANNER = nvidia.Manner(
    names=lambda config: config.volcano_vgpu,
    system="Volcano",
    cap_memory=True,
    percentage_first=True,
    zero_is_unset=False,
    clamp_cores=False,
    full_percentage_is_alone=False,
)


def render(it: PlacedPod) -> dict[str, str]:
    """Return the annotations that Volcano's scheduler writes for this placement."""
    held = [shares for name in it.containers if (shares := it.shares(name))]
    segments = ";".join("".join(_record(it, share) for share in shares) for shares in held)
    return {
        IDS: segments,
        TO_ALLOCATE: segments,
        "volcano.sh/vgpu-node": it.placed.node,
        TIME: it.seconds,
        PHASE: "allocating",
        "volcano.sh/bind-time": it.seconds,
    }


def _record(it: PlacedPod, share: Share) -> str:
    # Memory is in units of `gpuMemoryFactor` MiB; that of a MIG instance is what was requested.
    factor = it.config.memory_factor
    if (instance := share.instance) is None:
        return record(share.device, TYPE, share.memory_mib // factor, min(share.cores, WHOLE))
    device, ask = it.devices[share.device], it.ask(share.container)
    where = f"{instance.profile}-{instance.start}"
    if instance.group:
        where = f"{instance.group}-{instance.position}"
    for group in () if instance.group else generated(device.model):
        if group.geometries[0].name == instance.profile:
            places = laid_out(group, 1, device.model)
            found = (p.position for p in places if p.start == instance.start)
            where = f"{group.group}-{next(found, 0)}"
            break
    name = f"{share.device}[{where}]"
    return record(name, TYPE, memory_needed_mib(ask, device) // factor, ask.cores)


def _recover(pod: BoundPod, text: str) -> Iterator[Held]:
    asking = {ask.container for ask in pod.asks if not ask.init}
    names = [name for name in pod.containers if name in asking]
    # An amount of 0 leaves an empty segment in Volcano, but no ask here.
    segments = list(filter(None, text.split(";")))
    if len(segments) != len(names):
        # Volcano gives no GPU to a container with neither a count nor an amount of memory.
        keys = {pod.config.volcano_vgpu.count, pod.config.volcano_vgpu.memory}
        names = [name for name in names if not keys.isdisjoint(pod.limits.get(name, ()))]
    if len(segments) != len(names):
        raise Unclear
    for name, segment in zip(names, segments, strict=True):
        for device_named, memory, cores in records(segment, places=True):
            if TYPE not in segment:
                raise Unclear
            # The group and position of an instance follow the id, as in `GPU-a[group1-0]`.
            device, bracket, rest = device_named.partition("[")
            group, _, position = rest.removesuffix("]").rpartition("-")
            if bracket and not (device and group and rest.endswith("]")):
                raise Unclear
            place = (group, whole_number(position)) if bracket else None
            memory_mib = memory * pod.config.memory_factor
            yield Held(name, nvidia.FAMILY, device, -1, memory_mib, cores, place=place)


def choose(notes: Notes) -> DeviceConstraints:
    """Return the constraints that annotations set on a pod's GPUs. Raises ManifestError.

    Types that a pod excludes count only if it chooses none (Volcano's `checkGPUtype`)."""
    use, nouse = nvidia.SELECTING[:2]
    if any(notes.values.get(key, "").strip() for key in use):
        kept = {key: value for key, value in notes.values.items() if key not in nouse}
        notes = notes._replace(values=kept)
    return nvidia.choose(notes)


_FIELDS = 6


def _registered(node: NodeFacts) -> Iterator[Device]:
    text, names, entries = node.text(REGISTER), node.config.volcano_vgpu, list[Entry]()
    for position, item in enumerate(filter(None, text.split(":")) if readable(text) else ()):
        parts = item.split(",")
        if len(parts) < _FIELDS:
            raise Unread(f"{REGISTER} has {len(parts)} fields, not {_FIELDS}")
        name, count, memory, kind, health, mode = parts[:_FIELDS]
        mode = mode if mode == "mig" else "hami-core"  # Volcano's `getSharingMode`
        memory_mib = number(memory) * node.config.memory_factor
        entries.append(
            Entry(
                name, position, number(count), memory_mib, WHOLE, kind, -1, mode, health == "true"
            )
        )
    if entries:
        node.runs(names.count, names.cores, names.memory)
        made = partial(nvidia.registered, mig=lambda *_: nvidia.unhealthy(nvidia.VOLCANOS_MIG))
        yield from devices_of(entries, nvidia.FAMILY, made)


DIALECT = MANNER.dialect(
    NAME,
    choose=choose,
    render=render,
    recover={IDS: _recover},
    plugin=lambda _: "volcano",
    locks={"volcano": LOCK},
    served={TO_ALLOCATE: "", PHASE: "success", TIME: NEVER},
    inventory=Inventory("volcano", (REGISTER,), _registered),
    writes=("volcano.sh/vgpu-",),
)
