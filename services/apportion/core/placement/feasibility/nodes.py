"""Node filters: each returns `(needed, available)`; the node passes if it has enough."""

from collections.abc import Callable

from apportion.core.ledger.state import NodeState
from apportion.core.placement.feasibility.descriptors import (
    HEARD,
    HOST,
    LARGER,
    TOLD,
    UNCORDONED,
    Cause,
    Kind,
    Unit,
    pairs,
)
from apportion.core.workloads.pods.affinity import holds
from apportion_schemas import NodeExpression, RefusalCode, Shape, Taint, Toleration

YES, NO = (1, 1), (1, 0)
# the taint to tolerate for `spec.unschedulable`
UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
PREFERABLY_NOT = "PreferNoSchedule"
_KEEPS_OUT = ("NoSchedule", "NoExecute")
_UNREADY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def present(shape: Shape, node: NodeState) -> tuple[int, int]:
    """Require that the node is in the cluster."""
    del shape
    return YES if node.present else NO


def ready(shape: Shape, node: NodeState) -> tuple[int, int]:
    """Require the node condition `Ready`, or that the pod tolerates the taints of an unready node.

    Until Kubernetes has added these taints, only pods without devices are admitted."""
    if node.runs:
        return YES
    closing = [t for t in _keeping_out(node) if t.key in _UNREADY]
    if closing:
        return len(closing), _tolerated(shape, closing)
    return NO if shape.asks or node.observed is None else YES


def heard(shape: Shape, node: NodeState) -> tuple[int, int]:
    """Require that the node's agent reports, unless another plugin allocates the node's devices.

    In Kubernetes, pods without devices do not need the agent."""
    needed = bool(shape.asks) or node.observed is None
    return NO if node.silent and needed and not node.foreign_plugin else YES


def plugin(shape: Shape, node: NodeState) -> tuple[int, int]:
    """Require that Apportion may use the devices that another system's plugin allocates.

    An operator labels such a node (`DEVICE_PLUGIN`) once no other scheduler places pods there. The
    plugin reads the annotations of its own system, so only pods of that system fit. A vendor's own
    plugin serves pods of HAMi's dialects, which use the vendor's resource names, too. An amount
    that would be capped does not fit, because the kubelet counts it as written."""
    foreign, registered = node.foreign_plugin, node.registered
    if not shape.asks or not foreign or registered is None:
        return YES
    families = {device.family for device in registered.devices}
    theirs = not families or any(ask.family in families for ask in shape.asks)
    system = "hami" if foreign == "vendor" else foreign
    may = bool(families) and node.keeps_plugin and shape.devices.plugin == system
    if may and any(ask.cap_memory for ask in shape.asks):
        most = max(device.memory_mib for device in registered.devices)
        may = all(not ask.cap_memory or (ask.memory_mib or 0) <= most for ask in shape.asks)
    return NO if theirs and not may else YES


def cordon(shape: Shape, node: NodeState) -> tuple[int, int]:
    """Require that no operator has cordoned the node in the ledger."""
    del shape
    return NO if node.cordon else YES


def unschedulable(shape: Shape, node: NodeState) -> tuple[int, int]:
    """Require that `spec.unschedulable` is not set, or that the pod tolerates its taint."""
    if not node.drained or any(_tolerates(each, UNSCHEDULABLE) for each in shape.node.tolerations):
        return YES
    return NO


def taints(shape: Shape, node: NodeState) -> tuple[int, int]:
    """Require that the pod tolerates every taint that keeps pods out (`spec.tolerations`)."""
    keeping_out = _keeping_out(node)
    return len(keeping_out), _tolerated(shape, keeping_out)


def _keeping_out(node: NodeState) -> list[Taint]:
    if node.observed is None:
        return []
    return [taint for taint in node.observed.taints if taint.effect in _KEEPS_OUT]


def _tolerated(shape: Shape, taints: list[Taint]) -> int:
    tolerations = shape.node.tolerations
    return sum(any(_tolerates(each, taint) for each in tolerations) for taint in taints)


def discouraged(shape: Shape, node: NodeState) -> bool:
    """Return True if the node has a `PreferNoSchedule` taint that the pod does not tolerate."""
    taints = node.observed.taints if node.observed else ()
    return any(
        taint.effect == PREFERABLY_NOT
        and not any(_tolerates(toleration, taint) for toleration in shape.node.tolerations)
        for taint in taints
    )


def labels(shape: Shape, node: NodeState) -> tuple[int, int]:
    """Require labels that match `spec.nodeSelector` and the required node affinity."""
    needs = shape.node
    if not needs.selector and not needs.required:
        return YES
    have = node.host.labels
    if any(have.get(key) != value for key, value in needs.selector.items()):
        return NO
    if needs.required and not any(matches(term, node) for term in needs.required):
        return NO
    return YES


def cpu(shape: Shape, node: NodeState) -> tuple[int, int]:
    """Require enough free CPU on the host, in milli-cores."""
    return shape.node.cpu_milli, max(node.host.cpu_milli - node.cpu_used_milli, 0)


def host_memory(shape: Shape, node: NodeState) -> tuple[int, int]:
    """Require enough free memory on the host, in MiB."""
    return shape.node.memory_mib, max(node.host.memory_mib - node.memory_used_mib, 0)


def pods(shape: Shape, node: NodeState) -> tuple[int, int]:
    """Require room for one more pod (`status.allocatable.pods`)."""
    del shape
    return 1, max(node.host.pods - len(node.pods), 0)


def extended(shape: Shape, node: NodeState) -> tuple[int, int]:
    """Require enough of each extended resource that is not a device; return the first shortage."""
    offered = node.observed.extended if node.observed else {}
    for name, needed in sorted(shape.node.extended.items()):
        available = max(offered.get(name, 0) - node.extended_used.get(name, 0), 0)
        if available < needed:
            return needed, available
    return YES


def ports(shape: Shape, node: NodeState) -> tuple[int, int]:
    """Require that every host port of the pod is free (kube-scheduler's NodePorts)."""
    wanted = shape.node.ports
    if not wanted:
        return YES
    taken = [port for pod in node.pods.values() for port in pod.submitted.shape.node.ports]
    if node.observed is not None:
        taken += [port for each in node.observed.others for port in each.ports]
    clashing = sum(
        any(
            (each.port, each.protocol) == (other.port, other.protocol)
            and (each.ip == other.ip or not each.ip or not other.ip)
            for other in taken
        )
        for each in wanted
    )
    return len(wanted), len(wanted) - clashing


def disks(shape: Shape, node: NodeState) -> tuple[int, int]:
    """Require that no other pod mounts the pod's disks, unless read-only (VolumeRestrictions)."""
    wanted = shape.node.disks
    if not wanted:
        return YES
    taken = [disk for pod in node.pods.values() for disk in pod.submitted.shape.node.disks]
    if node.observed is not None:
        taken += [disk for each in node.observed.others for disk in each.disks]
    held = {disk.name for disk in taken}
    written = {disk.name for disk in taken if not disk.read_only}
    free = [each for each in wanted if each.name not in (written if each.read_only else held)]
    return len(wanted), len(free)


def matches(term: tuple[NodeExpression, ...], node: NodeState) -> bool:
    """Return True if every expression of a term holds; an empty term matches nothing."""
    return bool(term) and all(holds(each, value_of(each, node)) for each in term)


def value_of(expression: NodeExpression, node: NodeState) -> str | None:
    """Return the value of the expression's label, or the node's name for `matchFields`."""
    return node.name if expression.of_field else node.host.labels.get(expression.key)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value


NodeCheck = Callable[[Shape, NodeState], tuple[int, int]]
_C = RefusalCode

FACTS: tuple[Cause[NodeCheck], ...] = (
    Cause(_C.NODE_GONE, "node is not in the cluster", "add the node to the cluster again", TOLD,
          check=present, closes=lambda node: not node.present),
    Cause(_C.NODE_NOT_READY, "node is not ready", "wait until the node is ready", TOLD,
          fix_when_empty=LARGER, check=ready, closes=lambda node: not node.runs),
    Cause(_C.AGENT_SILENT, "the node's agent is not reporting", "restart the agent", HEARD,
          fix_when_empty=LARGER, check=heard, closes=lambda node: node.silent),
    Cause(_C.DEVICE_PLUGIN_FOREIGN,
          "another system's device plugin allocates the node's devices",
          "replace that plugin with our agent, or set the label apportion.dev/device-plugin", TOLD,
          fix_when_empty=LARGER, check=plugin, closes=lambda node: node.foreign_plugin),
    Cause(_C.NODE_CORDONED, "node is cordoned", "apportion uncordon {node}", UNCORDONED,
          fix_when_empty=LARGER, check=cordon, closes=lambda node: node.cordon),
    Cause(_C.NODE_UNSCHEDULABLE, "node is cordoned in Kubernetes", "kubectl uncordon {node}",
          TOLD, fix_when_empty=LARGER, check=unschedulable, closes=lambda node: node.drained),
    Cause(_C.TAINT_NOT_TOLERATED, "node has a taint that the pod does not tolerate",
          "add a toleration to the pod, or remove the taint from the node", TOLD, unit=Unit.TAINTS,
          check=taints, closes=_keeping_out),
    Cause(_C.NODE_LABELS_MISMATCH, "node labels do not match the pod's selector or affinity",
          "label a node to match, or change the selector or affinity", TOLD, kind=Kind.LASTING,
          check=labels, closes=lambda _: False),  # the index has columns of labels
)  # fmt: skip
"""Causes whose check gives the same result until an event about the node itself."""

ROOM: tuple[Cause[NodeCheck], ...] = (
    Cause(_C.CPU_INSUFFICIENT, "not enough CPU on the node",
          "wait for pods on the node to end, or request less", HOST, unit=Unit.MILLI_CPU,
          fix_when_empty="use a larger node, or request less", check=cpu),
    Cause(_C.HOST_MEMORY_INSUFFICIENT, "not enough host memory on the node",
          "wait for pods on the node to end, or request less", HOST, unit=Unit.MIB,
          fix_when_empty="use a larger node, or request less", check=host_memory),
    Cause(_C.PODS_EXHAUSTED, "node has reached its pod limit", "wait for a pod on the node to end",
          HOST,
          unit=Unit.PODS, fix_when_empty=LARGER, check=pods),
)  # fmt: skip
"""Causes about amounts that the index has as columns."""

NEEDS: tuple[Cause[NodeCheck], ...] = (
    Cause(_C.EXTENDED_RESOURCE_INSUFFICIENT, "not enough of an extended resource on the node",
          "wait for pods on the node to end, or use a node with more of the resource", HOST,
          unit=Unit.UNITS,
          fix_when_empty="use a node with enough of the resource", check=extended,
          wanted=lambda shape: shape.node.extended),
    Cause(_C.HOST_PORT_TAKEN, "another pod on the node uses the host port",
          "wait for that pod to end, or change hostPort", HOST, unit=Unit.PORTS, check=ports,
          wanted=lambda shape: shape.node.ports),
    Cause(_C.DISK_IN_USE, "another pod on the node uses the same disk, and at least one of the two "
          "may write to it",
          "wait for that pod to end, or set readOnly in both pods", HOST, unit=Unit.DISKS,
          check=disks, wanted=lambda shape: shape.node.disks),
)  # fmt: skip
"""Causes about rare requirements, for which the index has no columns."""

FACT_FILTERS = pairs(FACTS)
NODE_FILTERS = (*FACT_FILTERS, *pairs(ROOM), *pairs(NEEDS))


def closed(node: NodeState) -> bool:
    """Return True if a filter may refuse the node for a fact such as a taint or a cordon."""
    return any(each.closes is None or each.closes(node) for each in FACTS)


def needs(shape: Shape) -> tuple[tuple[RefusalCode, NodeCheck], ...]:
    """Return the filters in `NEEDS` that apply to pods of this shape."""
    return pairs(tuple(each for each in NEEDS if each.wanted is None or each.wanted(shape)))
