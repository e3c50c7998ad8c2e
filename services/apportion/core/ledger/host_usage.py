"""Count a pod's CPU, memory and extended resources as used on its node, and free them.

Invariant: `release_host` exactly undoes `charge_host`, even after a resize."""

from apportion.core.ledger.state import PENDING, PLACED, NodeState, Placement, PodState


def charge_host(pod: PodState, node: NodeState, placement: Placement) -> None:
    """Add the pod to the node, with its CPU, memory and extended resources.

    Call this after charging the pod's shares."""
    needs = pod.submitted.shape.node
    node.cpu_used_milli += needs.cpu_milli
    node.memory_used_mib += needs.memory_mib
    for name, amount in needs.extended.items():
        node.extended_used[name] = node.extended_used.get(name, 0) + amount
    node.pods[pod.submitted.uid] = pod
    pod.placement, pod.phase = placement, PLACED


def release_host(pod: PodState, node: NodeState) -> None:
    """Undo `charge_host` and make the pod pending."""
    needs = pod.submitted.shape.node
    node.cpu_used_milli -= needs.cpu_milli
    node.memory_used_mib -= needs.memory_mib
    for name, amount in needs.extended.items():
        left = node.extended_used[name] - amount
        if left:
            node.extended_used[name] = left
        else:
            del node.extended_used[name]
    del node.pods[pod.submitted.uid]
    pod.placement, pod.phase = None, PENDING
    pod.placed_revision = pod.bound_revision = pod.allocated_revision = 0
    pod.placed_time = ""


def resize_host(before: PodState, pod: PodState, node: NodeState) -> None:
    """Change the node's CPU and memory usage from that of `before` to that of the resized `pod`."""
    was, now = before.submitted.shape.node, pod.submitted.shape.node
    node.cpu_used_milli += now.cpu_milli - was.cpu_milli
    node.memory_used_mib += now.memory_mib - was.memory_mib
