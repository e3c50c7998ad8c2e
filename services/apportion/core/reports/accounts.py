"""Convert changes of the folded state into rates (devices and MiB in use) for the meters.

A share counts as the fraction of the device's memory that it has. An event dated before its
predecessor gets the predecessor's time. Invariant: the parts of a device add up to one device, or
to its allocated part if that is more than the node reports."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

import apportion_schemas as schemas
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.reports.meters import CARD, Key, Meters, Part
from apportion.core.reports.rows import By
from apportion.core.reports.used import IDLE, Used

# Usage is reported after each hour, so events are read for this long after the period
LATE = 3_700 * 1_000_000


def card_part(device: schemas.Device, memory_mib: int, cores: int) -> int:
    """Return a share's fraction of its device, in millionths.

    The fraction is of the memory, or of the cores if the share or the device has no memory."""
    if memory_mib and device.memory_mib:
        return memory_mib * CARD // device.memory_mib
    return cores * CARD // device.cores if device.cores else 0


class _Held(Struct, frozen=True):
    key: Key
    part: Part
    node: str
    device: str
    cards: int
    mib: int


class Rest(Struct, frozen=True):
    """The unallocated part of a device, and the row in which it counts."""

    key: Key
    part: Part
    cards: int
    mib: int
    device: schemas.Device


class Account:
    """Measures what pods have allocated over time, in the rows given by `by`."""

    def __init__(self, state: State, by: By, meters: Meters, idle: int = IDLE) -> None:
        """Start with what is allocated now. Ignore idle periods below `idle` microseconds."""
        self._state, self._by, self._meters = state, by, meters
        self._held: dict[str, tuple[_Held, ...]] = {}
        self._of_device: dict[tuple[str, str], list[int]] = {}
        self._rest: dict[str, dict[str, Rest]] = {}
        self._node_of: dict[str, str] = {}
        self._of_kubernetes = state.of_kubernetes
        self._time = 0
        self.begins = 0  # start of the ledger, if it was read from its first event
        self._from_the_first = not state.revision
        self.used = Used(state, by, meters, idle)
        for node in state.nodes.values():
            self._count(node)

    @property
    def over(self) -> bool:
        """Return True if the period, plus a delay for late reports, has ended."""
        return self._time >= self._meters.end + LATE

    def observe(self, change: Change, moment: int) -> None:
        """Meter a change that the fold made at `moment`. Raises `TooMuch`."""
        if self._from_the_first:
            self.begins, self._from_the_first = moment, False
        self._time = max(self._time, moment)
        self._meters.go_to(self._time)
        data = change.data
        for node in change.forgotten:
            for device_id, rest in self._rest.pop(node.name, {}).items():
                self._turn(rest, -1)
                self._node_of.pop(device_id, None)
        if change.refused:
            return
        if isinstance(data, schemas.UsageRecorded):
            self.used.take(data, self._time)
            return
        if isinstance(data, schemas.PodGone) and change.pod is not None:
            held = self._held.get(change.pod.uid)
            row = held[0].key[0] if held else self._by.row_of(self._state, change.pod, "", "")
            self.used.leave(change.pod, row)
        if isinstance(data, schemas.PodGroupObserved | schemas.PodGroupGone):
            group = self._state.groups.get(data.group)
            self._recount(group.pods.values() if group else ())
        elif isinstance(data, schemas.PodChanged) and change.pod is not None:
            self._recount((change.pod,))
        elif change.node is not None:
            self._node_changed(change, change.node)

    def finish(self) -> None:
        """End the period. Pods that are still allocated count up to its end."""
        self._meters.finish()

    def _node_changed(self, change: Change, node: NodeState) -> None:
        if change.shares is not None and change.pod is not None:
            self._recount((change.pod,))
            for share in change.shares:
                self._count_device(node, node.by_id.get(share.device), share.device)
            return
        if self._state.of_kubernetes and not self._of_kubernetes:
            # from now on, nodes that Kubernetes does not know are not present
            self._of_kubernetes = True
            for other in self._state.nodes.values():
                self._count(other)
        elif isinstance(change.data, schemas.NodeReported):
            # Devices in the report may have moved here from other nodes, which now have less.
            devices = change.data.devices
            owners = {self._node_of.get(device.id, node.name) for device in devices}
            for name in sorted(owners - {node.name}):
                self._count(self._state.nodes[name])
        if change.pod is not None:
            self._recount((change.pod,))
        self._count(node)

    def _count(self, node: NodeState) -> None:
        self._recount(node.pods.values())
        known = self._rest.get(node.name, {})
        for device_id in [*known, *(each for each in node.by_id if each not in known)]:
            self._count_device(node, node.by_id.get(device_id), device_id)

    def _recount(self, pods: Iterable[PodState]) -> None:
        for pod in pods:
            before, after = self._held.get(pod.uid, ()), tuple(self._holds(pod))
            if before == after:
                continue
            for sign, all_held in ((-1, before), (1, after)):
                for held in all_held:
                    self._meters.turn(held.key, held.part, sign * held.cards, sign * held.mib)
                    of_device = self._of_device.setdefault((held.node, held.device), [0, 0])
                    of_device[0] += sign * held.cards
                    of_device[1] += sign * held.mib
            if after:
                self._held[pod.uid] = after
            else:
                self._held.pop(pod.uid, None)

    def _holds(self, pod: PodState) -> Iterator[_Held]:
        placed = pod.placement
        if placed is None or pod.uid not in self._state.pods:
            return
        node, part = self._state.nodes[placed.node], self._part_of(pod)
        for share in placed.shares:
            device = node.by_id[share.device].device
            cards = card_part(device, share.memory_mib, share.cores)
            row = self._by.row_of(self._state, pod, placed.node, device.model)
            key = (row, device.model)
            yield _Held(key, part, node.name, device.id, cards, share.memory_mib)

    def _part_of(self, pod: PodState) -> Part:  # noqa: ARG002 - for subclasses
        return Part.ALLOCATED

    def _count_device(self, node: NodeState, device: DeviceState | None, device_id: str) -> None:
        of_node = self._rest.setdefault(node.name, {})
        before = of_node.get(device_id)
        after = self._rest_of(node, device) if device is not None else None
        if before == after:
            return
        for sign, rest in ((1, after), (-1, before)):
            if rest is not None:
                self._turn(rest, sign)
        if after is None:
            del of_node[device_id]
            self._node_of.pop(device_id, None)
        else:
            of_node[device_id] = after
            self._node_of[device_id] = node.name

    def _turn(self, rest: Rest, sign: int) -> None:
        self._meters.turn(rest.key, rest.part, sign * rest.cards, sign * rest.mib)

    def _rest_of(self, node: NodeState, device: DeviceState) -> Rest | None:
        if not device.present or not node.present:
            return None
        cards, mib = self._of_device.get((node.name, device.device.id), (0, 0))
        if not device.healthy or not node.ready:
            part = Part.UNHEALTHY
        elif device.cordon or node.cordoned:
            part = Part.CORDONED
        else:
            part = Part.FREE
        model = device.device.model
        return Rest(
            (self._by.row_of_device(node.name, model), model),
            part,
            max(CARD - cards, 0),
            max(device.device.memory_mib - mib, 0),
            device.device,
        )
