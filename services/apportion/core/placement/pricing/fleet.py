"""The nodes as a few types, each with how many there are: what prices are worked out against.

Nodes with the same devices and about the same CPU and memory are one type, with the mean of them.
"""

from typing import Final, NamedTuple

from apportion.core.ledger.state import NodeState, State
from apportion_schemas import Device

TYPES_MAX: Final = 32  # the smallest types beyond are left out
STEPS_PER_DOUBLING: Final = 4  # amounts of one type are within a fifth of each other


class NodeType(NamedTuple):
    """Nodes that are much alike; the amounts are those of one node."""

    device: Device | None
    devices: int
    cpu_milli: int
    memory_mib: int
    nodes: int


def node_types(state: State) -> list[NodeType]:
    """The types of the nodes that are there, those with most devices first."""
    groups: dict[tuple[str, ...], list[NodeState]] = {}
    for name in sorted(state.nodes):
        node = state.nodes[name]
        if node.ready and not node.drained:
            groups.setdefault(_key(node), []).append(node)
    found = []
    for _, nodes in sorted(groups.items()):
        present = [state.device for state in nodes[0].devices if state.present]
        hosts = [node.host for node in nodes]
        found.append(
            NodeType(
                device=present[0] if present else None,
                devices=len(present),
                cpu_milli=sum(host.cpu_milli for host in hosts) // len(hosts),
                memory_mib=sum(host.memory_mib for host in hosts) // len(hosts),
                nodes=len(nodes),
            )
        )
    largest = sorted(found, key=lambda t: -t.nodes * (t.devices * 1_000_000 + t.cpu_milli))
    return largest[:TYPES_MAX]


def _key(node: NodeState) -> tuple[str, ...]:
    host = node.host
    steps = (_step(host.cpu_milli), _step(host.memory_mib))
    present = [state.device for state in node.devices if state.present]
    if not present:
        return ("", *(f"{step:03}" for step in steps))
    device = present[0]
    what = (device.family, device.model, device.mode)
    how_much = (device.memory_mib, device.physical_memory_mib, device.cores, device.slots)
    return (*what, *(f"{each:09}" for each in (*how_much, len(present), *steps)))


def _step(amount: int) -> int:
    """Which of `STEPS_PER_DOUBLING` steps from one power of two to the next the amount is in."""
    doublings = amount.bit_length()
    within = amount * STEPS_PER_DOUBLING * 2 >> doublings
    return doublings * STEPS_PER_DOUBLING + within
