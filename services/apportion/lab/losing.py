"""Which nodes and devices a replay is to do without, where both may come later in its time.

Invariant: what is lost is known before the replay begins, so that one that makes no sense costs
nobody the time of another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import structs

from apportion.core.ledger.state import State
from apportion.lab.changes import lost_device
from apportion.lab.recording import Fact
from apportion_schemas import DeviceHealthChanged, NodeReported, PodAdopted
from apportion_schemas.quantities import Payload

REASON = "lost"


class Lost(NamedTuple):
    """Nodes by name, and devices by id."""

    nodes: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()

    def there(self, state: State) -> tuple[str, ...]:
        """Those of them that are there now, in order."""
        nodes = (name for name in self.nodes if (n := state.nodes.get(name)) and n.present)
        devices = (device for device in self.devices if _present(state, device))
        return (*sorted(nodes), *sorted(devices))

    def holds(self, data: PodAdopted) -> bool:
        """Whether the pod would run on what is lost."""
        return data.node in self.nodes or any(s.device in self.devices for s in data.shares)

    def tells(self, data: Payload) -> bool:
        """Whether it says how a device is that is lost, whatever it says."""
        return isinstance(data, DeviceHealthChanged) and data.device in self.devices

    def without(self, data: Payload) -> Payload:
        """The fact as it would be: a node tells of its lost devices that they have failed."""
        if not isinstance(data, NodeReported) or self.devices.isdisjoint(
            device.id for device in data.devices
        ):
            return data
        devices = tuple(
            structs.replace(device, healthy=False, health_reason=REASON)
            if device.id in self.devices
            else device
            for device in data.devices
        )
        return structs.replace(data, devices=devices)


def lost(names: Iterable[str], state: State, facts: Iterable[Fact]) -> Lost:
    """What these names mean: nodes and devices of the state, or of what the facts report.

    Raises:
        WishInvalid: there is nothing of that name in this time, or several devices.
    """
    wanted = tuple(dict.fromkeys(names))
    if not wanted:
        return Lost()
    nodes = {name for name, node in state.nodes.items() if node.present}
    devices = set(state.node_of_device)
    for fact in facts:
        if isinstance(fact.data, NodeReported):
            nodes.add(fact.data.node)
            devices.update(device.id for device in fact.data.devices)
        elif isinstance(node := getattr(fact.data, "node", None), str) and node:
            nodes.add(node)
    ids = [
        lost_device(name, nodes, devices, "in this time") for name in wanted if name not in nodes
    ]
    return Lost(frozenset(nodes.intersection(wanted)), frozenset(ids))


def _present(state: State, device: str) -> bool:
    node = state.nodes.get(state.node_of_device.get(device, ""))
    return node is not None and node.present and node.by_id[device].present
