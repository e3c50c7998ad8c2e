"""Adopt running pods that this ledger has not placed, with the devices they use.

A pod may be adopted before its node's agent has reported any devices. Until then the pod's devices
are recorded as absent devices, each as large as the pod's share. Invariant: a pod is charged for
all of its shares or for none, and no device is oversold."""

from msgspec import structs

from apportion.core.devices.cordons import reasons
from apportion.core.devices.shares import DeviceState, Oversold, occupy, template_cpu_of
from apportion.core.ledger.host_usage import charge_host
from apportion.core.ledger.state import NodeState, Phase, Placement, PodState, State, other_owner
from apportion_schemas import Device, PodAdopted, Share
from apportion_schemas.quantities import COUNT_MAX, MEMORY_MIB_MAX

SLOTS_MAX = 250
CORES_MAX = 10_000
UNKNOWN_MODEL = "unknown"
_AMOUNTS = (
    "device", "memory_free_mib", "cores_free", "slots_free", "template_cpu_free", "slices", "group",
)  # fmt: skip


def charged(state: State, data: PodAdopted) -> list[DeviceState]:
    """Return copies of the adopted pod's devices, on which the pod's shares are allocated.

    The state is not changed. Raises Oversold if a device has too little free for its share."""
    if data.pod != data.submitted.uid:
        raise Oversold(f"pod {data.pod} is described as pod {data.submitted.uid}")
    families = {ask.container: ask.family for ask in data.submitted.shape.asks}
    known = state.nodes.get(data.node)
    found: dict[str, DeviceState] = {}
    for share in data.shares:
        family = families.get(share.container)
        if family is None:
            raise Oversold(f"container {share.container} asks for nothing, and holds a share")
        if share.device not in found:
            found[share.device] = _copy(state, known, data.node, share.device, family=family)
        device = found[share.device]
        if device.device.family != family:
            raise Oversold(f"device {share.device} is {device.device.family}, not {family}")
        if not device.present:
            _make_room(device, share)
        occupy(device, share)
    return list(found.values())


def hold(state: State, node: NodeState, devices: list[DeviceState]) -> None:
    """Update the node with the device states from `charged`."""
    for made in devices:
        name = made.device.id
        device = node.by_id.get(name)
        if device is None:
            node.devices.append(made)
            node.by_id[name] = made
            state.node_of_device[name] = node.name
            continue
        for amount in _AMOUNTS:
            setattr(device, amount, getattr(made, amount))


def settle(pod: PodState, node: NodeState, data: PodAdopted) -> None:
    """Add an adopted pod to its node: as allocated if its containers run, else as bound."""
    charge_host(pod, node, Placement(data.node, data.attempt, data.shares))
    pod.attempt = max(data.attempt, 1)
    pod.placed_revision = pod.bound_revision = pod.submitted_revision
    pod.placed_time = pod.submitted_time
    pod.phase = Phase.BOUND
    if data.running:
        pod.phase, pod.allocated_revision = Phase.ALLOCATED, pod.submitted_revision


def _copy(
    state: State, node: NodeState | None, name: str, device: str, *, family: str
) -> DeviceState:
    known = node.by_id.get(device) if node else None
    if known is not None:
        return structs.replace(known)
    owner = other_owner(state, name, device)
    if owner is not None:
        raise Oversold(f"device {device} is of node {owner.name}")
    count = len(node.devices) if node else 0
    if count >= COUNT_MAX:
        raise Oversold(f"node {name} would have more than {COUNT_MAX} devices")
    absent = Device(
        id=device, index=count, family=family, model=UNKNOWN_MODEL,
        memory_mib=0, physical_memory_mib=0, cores=0, slots=1,
    )  # fmt: skip
    return DeviceState(
        device=absent, memory_free_mib=0, cores_free=0, slots_free=1,
        template_cpu_free=template_cpu_of(absent), present=False,
        cordon=reasons(state.device_cordons.get(device, ())),
        cordons=state.device_cordons.get(device, ()),
    )  # fmt: skip


def _make_room(state: DeviceState, share: Share) -> None:
    device = state.device
    memory_mib = max(share.memory_mib - state.memory_free_mib, 0)
    cores = max(share.cores - state.cores_free, 0)
    slots = max(1 - state.slots_free, 0)
    more = structs.replace(
        device,
        memory_mib=device.memory_mib + memory_mib,
        physical_memory_mib=max(device.physical_memory_mib, device.memory_mib + memory_mib),
        cores=device.cores + cores,
        slots=device.slots + slots,
    )
    if more.memory_mib > MEMORY_MIB_MAX or more.cores > CORES_MAX or more.slots > SLOTS_MAX:
        raise Oversold(f"device {device.id}: more is said to be held of it than any device has")
    state.device = more
    state.memory_free_mib += memory_mib
    state.cores_free += cores
    state.slots_free += slots
