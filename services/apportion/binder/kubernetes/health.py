"""Devices that fail under the pods that hold them, and recover: whose owners are to hear of it.

A device fails by an event of its agent, by a mark on its node, or because its agent no longer
reports it; so what failed is compared with what had, whatever the event was. Invariant: each
failure is named once, and a recovery only where the failure was seen.
"""

from __future__ import annotations

from collections.abc import Iterator

from apportion.core.explain.answers import FailedDevice
from apportion.core.explain.health import failure, pods_on
from apportion.core.ledger.state import NodeState, PodState, State
from apportion_schemas import DeviceHealthChanged, NodeObserved, NodeReported

HEALTH = (DeviceHealthChanged, NodeObserved, NodeReported)
"""The events by which a device may fail or recover."""


class FailedDevices:
    """The devices that are no good, by node, as of the last look."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._failed: dict[str, dict[str, FailedDevice]] = {}

    def at_first(self) -> Iterator[PodState]:
        """Every pod that holds a failed device; from here on `news` tells what changed."""
        for node in self._state.nodes.values():
            for pod, _ in self.news(node):
                yield pod

    def news(self, node: NodeState) -> Iterator[tuple[PodState, str]]:
        """The pods whose devices failed or recovered since the last look.

        With the device that recovered, or nothing where one failed.
        """
        before = self._failed.pop(node.name, {})
        now = {each.device: each for each in map(failure, node.devices) if each is not None}
        if now:
            self._failed[node.name] = now
        for device in sorted(now.keys() | before.keys()):
            if now.get(device) != before.get(device):
                for pod in pods_on(node, device):
                    yield pod, "" if device in now else device
