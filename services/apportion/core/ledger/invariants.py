"""Check the invariants that must hold at every revision, from the state alone.

The fold should never break an invariant, but this module does not rely on that. Tests and audits of
a ledger run these checks after every event."""

from collections import Counter
from collections.abc import Iterator
from functools import partial

from apportion.core.devices.shares import DeviceState, slice_mask, template_cpu, template_cpu_of
from apportion.core.ledger.fold import Change
from apportion.core.ledger.handlers import past_use
from apportion.core.ledger.state import NodeState, Phase, PodState, State
from apportion_schemas import Share


def violations(state: State) -> list[str]:
    """Return one sentence per violated invariant; it names the node, device or pod."""
    found = [line for node in state.nodes.values() for line in _node(state, node)]
    found.extend(_pods(state))
    for name, group in state.groups.items():
        found.extend(
            f"gang {name} has pod {pod.uid}, which is not live"
            for pod in group.pods.values()
            if state.pods.get(pod.uid) is not pod
        )
        found.extend(
            f"pod {uid} is held, although it is bound or has no placement"
            for uid in group.held  # the fold should have released it
            if (pod := group.pods.get(uid)) is None
            or pod.phase is not Phase.PLACED
            or pod.bound_revision
        )
        if group.pods and not 0 < group.since <= state.revision:
            found.append(f"gang {name} has pods, but no valid first revision: {group.since}")
        highest = max((pod.submitted.priority for pod in group.pods.values()), default=None)
        if highest not in (None, group.priority):
            found.append(f"gang {name}: its priority is {group.priority}, not {highest}")
    found.extend(
        f"gang {name} has pods, but is listed as a gang without pods"
        for name in state.gangs_left
        if name in state.groups and state.groups[name].pods
    )
    found.extend(_devices(state))
    for name in state.left:
        node = state.nodes.get(name)
        if node is None or not node.gone:
            known = "present" if node else "unknown"
            found.append(f"node {name} is recorded as gone, but is {known}")
    found.extend(past_use.errors(state))
    forgotten = [name for name in state.departed if name in state.nodes]
    return [*found, *(f"node {name} is dropped, but in the state" for name in forgotten)]


def violations_near(state: State, change: Change) -> list[str]:
    """Check only the node and the pod of one event; this is cheap enough for every event."""
    found: list[str] = []
    node, pod = change.node, change.pod
    if node is not None:
        found.extend(_node(state, node))
        found.extend(
            f"device {device.device.id} is on {node.name} but indexed under another node"
            for device in node.devices
            if device.present and state.node_of_device.get(device.device.id) != node.name
        )
    if pod is not None and state.pods.get(pod.uid) is pod:
        found.extend(_pod(state, pod))
    elif pod is not None:  # it is gone and holds nothing
        if pod.placement is not None or pod.phase is not Phase.PENDING:
            found.append(f"pod {pod.uid} is gone but still {pod.phase.value}")
        if pod.uid in state.failing:
            found.append(f"pod {pod.uid} is gone, but its placement is still to be voided")
        group = state.groups.get(pod.submitted.group)
        if group is not None and group.pods.get(pod.uid) is pod:
            found.append(f"gang {pod.submitted.group} has pod {pod.uid}, which is not live")
    return found


def _node(state: State, node: NodeState) -> Iterator[str]:
    # The shares of each device, and whether they were placed after the node's newest report. A
    # report may offer less than is in use, which does not count as oversold: no placement caused
    # it, and the device takes nothing more until enough is released.
    held: dict[str, list[tuple[Share, bool]]] = {device.device.id: [] for device in node.devices}
    for pod in node.pods.values():
        if state.pods.get(pod.uid) is not pod or pod.placement is None:
            yield f"node {node.name} has pod {pod.uid}, which is not placed"
            continue
        newer = pod.placed_revision > node.reported_revision
        for share in pod.placement.shares:
            if share.device not in held:
                yield f"pod {pod.uid} has a share of {share.device}, which {node.name} lacks"
            else:
                held[share.device].append((share, newer))
    for device in node.devices:
        yield from _device(node, device, held[device.device.id])
    needs = [pod.submitted.shape.node for pod in node.pods.values()]
    if node.cpu_used_milli != sum(need.cpu_milli for need in needs):
        yield f"node {node.name}: CPU in use is not the sum of its pods' requests"
    if node.memory_used_mib != sum(need.memory_mib for need in needs):
        yield f"node {node.name}: host memory in use is not the sum of its pods' requests"
    extended: Counter[str] = Counter()
    for need in needs:
        extended.update(need.extended)
    if +extended != +Counter(node.extended_used):
        yield f"node {node.name}: extended resources in use are not the sum of its pods' requests"


def _device(node: NodeState, state: DeviceState, held: list[tuple[Share, bool]]) -> Iterator[str]:
    device = state.device
    where = f"device {device.id} of node {node.name}"
    cpu_of = partial(template_cpu, state=state)
    for quantity, total, free, charged in (
        ("memory", device.memory_mib, state.memory_free_mib, lambda s: s.memory_mib),
        ("cores", device.cores, state.cores_free, lambda s: s.cores),
        ("slots", device.slots, state.slots_free, lambda _: 1),
        ("AI CPUs", template_cpu_of(device), state.template_cpu_free, cpu_of),
    ):
        used = sum(charged(share) for share, _ in held)
        if total - free != used:
            yield f"{where}: {quantity} free is {free} of {total}, but shares use {used}"
        if used > total and any(newer and charged(share) for share, newer in held):
            yield f"{where}: {quantity} oversold, {used} of {total}"
    occupied = 0
    for share, _ in held:
        mask = slice_mask(share)
        if mask & occupied:
            yield f"{where}: MIG slices {mask:b} are allocated twice"
        occupied |= mask
        if mask and share.instance and share.instance.group != state.group:
            group = share.instance.group
            yield f"{where}: a share's MIG instance is of group {group!r}, not {state.group!r}"
    if occupied != state.slices:
        yield f"{where}: MIG slices occupied are {state.slices:b}, but shares use {occupied:b}"


def _pods(state: State) -> Iterator[str]:
    for pod in state.pods.values():
        yield from _pod(state, pod)
    for uid in state.failing:
        failed = state.pods.get(uid)
        if failed is None or failed.phase not in {Phase.PLACED, Phase.BOUND}:
            phase = failed.phase.value if failed else "not live"
            yield f"the placement of pod {uid} is to be voided, but the pod is {phase}"
    for uid in state.evictions:
        if uid not in state.pods or state.pods[uid].placement is None:
            yield f"pod {uid} is to be evicted but has no placement"
    for uid in state.resizes:
        if uid not in state.pods or state.pods[uid].placement is None:
            yield f"pod {uid} is to be resized but has no placement"
    for uid in state.idle or ():
        if uid not in state.pods or state.pods[uid].placement is None:
            yield f"pod {uid} is idle but has no placement"
    for uid in state.nominated:
        if uid not in state.pods or state.pods[uid].placement is not None:
            yield f"a node is nominated for pod {uid}, which is not pending"


def _pod(state: State, pod: PodState) -> Iterator[str]:
    placed = pod.placement
    if (placed is None) != (pod.phase is Phase.PENDING):
        yield f"pod {pod.uid} is {pod.phase.value} but its placement is {placed}"
    if placed is not None and pod.uid not in state.nodes[placed.node].pods:
        yield f"pod {pod.uid} is placed on {placed.node}, which does not list it"


def _devices(state: State) -> Iterator[str]:
    offered: dict[str, str] = {}
    for node in state.nodes.values():
        for device in node.devices:
            name = device.device.id
            if not device.present:
                continue
            if offered.setdefault(name, node.name) != node.name:
                yield f"device {name} is on two nodes: {offered[name]} and {node.name}"
            if state.node_of_device.get(name) != node.name:
                yield f"device {name} is on {node.name} but indexed under another node"
    for name, at in state.node_of_device.items():
        if name not in state.nodes[at].by_id:
            yield f"device {name} is indexed under node {at}, which does not have it"
