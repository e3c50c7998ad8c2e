"""What a state says that a doctor wants to know."""

from apportion.core.doctor.facts import ClusterFacts, FailedDevices
from apportion.core.explain.health import failure, pods_on
from apportion.core.ledger.state import NodeState, State

DEVICE_RESOURCES = ("nvidia.com/", "huawei.com/", "cambricon.com/", "volcano.sh/", "tencent.com/")
"""How the names of extended resources begin by which a node of Kubernetes offers devices."""


def cluster_facts(state: State) -> ClusterFacts:
    """Nodes, agents and drivers, as of the state's revision."""
    there = [node for _, node in sorted(state.nodes.items()) if node.present]
    drivers: dict[str, list[str]] = {}
    for node in there:
        if node.reported is not None and node.reported.driver and not node.reported.simulated:
            drivers.setdefault(node.reported.driver, []).append(node.name)
    refused = state.refused_events[-1] if state.refused_events else None
    return ClusterFacts(
        revision=state.revision,
        nodes=len(there),
        devices=sum(len(node.devices) for node in there),
        failed=tuple(failed for node in there if (failed := _failed(node)) is not None),
        silent=tuple((node.name, node.silent) for node in there if node.silent),
        simulated=tuple(
            node.name for node in there if node.silent and node.reported and node.reported.simulated
        ),
        refused=tuple(
            (name, node.refused.cause)
            for name, node in sorted(state.nodes.items())
            if node.refused is not None
        ),
        without_agent=tuple(node.name for node in there if _offers(node) and not node.reported),
        without_node=tuple(
            name
            for name, node in sorted(state.nodes.items())
            if state.of_kubernetes and node.reported is not None and node.observed is None
        ),
        drivers={version: tuple(names) for version, names in sorted(drivers.items())},
        refused_events=state.refused_count,
        last_refusal=f"revision {refused.revision}: {refused.reason}" if refused else "",
    )


def _failed(node: NodeState) -> FailedDevices | None:
    """Its devices that are no good, and who is on them; None where all are well."""
    bad = [each.device.id for each in node.devices if failure(each) is not None]
    pods = {pod.uid for device in bad for pod in pods_on(node, device)}
    return FailedDevices(node.name, len(bad), len(pods)) if bad else None


def _offers(node: NodeState) -> bool:
    """Whether Kubernetes says that it has devices."""
    extended = node.observed.extended if node.observed else {}
    return any(count and name.startswith(DEVICE_RESOURCES) for name, count in extended.items())
