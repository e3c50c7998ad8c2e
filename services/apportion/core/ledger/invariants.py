"""What must hold at every revision, checked from the state alone.

The fold is built so that none of this can fail; this module does not trust it. Tests call it after
every event, and so does whoever verifies a ledger.
"""

from collections.abc import Iterator

from apportion.core.devices.shares import slice_mask, template_cpu, template_cpu_of
from apportion.core.ledger.state import DeviceState, NodeState, Phase, State
from apportion_schemas import Share


def violations(state: State) -> list[str]:
    """Every broken invariant, as a sentence that names the node, device or pod."""
    found = [line for node in state.nodes.values() for line in _node(state, node)]
    found.extend(_pods(state))
    found.extend(_gangs(state))
    return found


def _node(state: State, node: NodeState) -> Iterator[str]:
    held: dict[str, list[Share]] = {device.device.id: [] for device in node.devices}
    for pod in node.pods.values():
        if state.pods.get(pod.uid) is not pod or pod.placement is None:
            yield f"node {node.name} holds pod {pod.uid}, which is not placed"
            continue
        for share in pod.placement.shares:
            if share.device not in held:
                yield f"pod {pod.uid} holds {share.device}, which node {node.name} has not"
            else:
                held[share.device].append(share)
    for device in node.devices:
        yield from _device(node, device, held[device.device.id])
    shapes = [pod.submitted.shape.node for pod in node.pods.values()]
    if node.cpu_used_milli != sum(needs.cpu_milli for needs in shapes):
        yield f"node {node.name}: CPU in use is not what its pods asked for"
    if node.memory_used_mib != sum(needs.memory_mib for needs in shapes):
        yield f"node {node.name}: host memory in use is not what its pods asked for"


def _device(node: NodeState, state: DeviceState, shares: list[Share]) -> Iterator[str]:
    device = state.device
    where = f"device {device.id} of node {node.name}"
    for quantity, total, free, used in (
        ("memory", device.memory_mib, state.memory_free_mib, sum(s.memory_mib for s in shares)),
        ("cores", device.cores, state.cores_free, sum(s.cores for s in shares)),
        ("slots", device.slots, state.slots_free, len(shares)),
        (
            "AI CPUs",
            template_cpu_of(device),
            state.template_cpu_free,
            sum(template_cpu(s, state) for s in shares),
        ),
    ):
        if total - free != used:
            yield f"{where}: {quantity} free is {free} of {total}, but shares hold {used}"
        if used > total and state.present:
            yield f"{where}: {quantity} oversold, {used} of {total}"
    occupied = 0
    for share in shares:
        mask = slice_mask(share)
        if mask & occupied:
            yield f"{where}: MIG slices {mask:b} are held twice"
        occupied |= mask
    if occupied != state.slices:
        yield f"{where}: MIG slices occupied are {state.slices:b}, but shares hold {occupied:b}"


def _pods(state: State) -> Iterator[str]:
    for pod in state.pods.values():
        placed = pod.placement
        if (placed is None) != (pod.phase is Phase.PENDING):
            yield f"pod {pod.uid} is {pod.phase.value} and its placement is {placed}"
        if placed is not None and pod.uid not in state.nodes[placed.node].pods:
            yield f"pod {pod.uid} is placed on {placed.node}, which does not hold it"


def _gangs(state: State) -> Iterator[str]:
    for name, group in state.groups.items():
        for pod in group.pods.values():
            if state.pods.get(pod.uid) is not pod:
                yield f"gang {name} holds pod {pod.uid}, which is not live"
