"""Checks after the faults have ended: every pod that fits is placed, and nothing more happens.

Two checks decide whether a pending pod fits: a new engine, and the auditor's own record (`books`).
The record is used only for simple pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from apportion.core.ledger.digest import digest
from apportion.core.ledger.fold import UNNAMED
from apportion.core.ledger.state import NodeState, Phase, PodState
from apportion.core.placement.engine import Engine
from apportion_schemas import PodRefused
from tests.simulation.books import Books
from tests.support.deciding import decided

if TYPE_CHECKING:
    from tests.simulation.world import World


def undone(world: World) -> Iterator[str]:
    """Yield a description of each piece of work that is not finished."""
    state = world.auditor.state
    yield from world.side.differences(state)
    for pod in state.pods.values():
        if pod.phase in (Phase.PLACED, Phase.BOUND):
            yield f"pod {pod.uid} is {pod.phase.value} and not allocated"
    yield from _unplaced(world)
    for name, queue in world.server.queues.items():
        if queue.waiting:
            yield f"queue {name} holds {queue.waiting} records"
    for node in state.nodes.values():
        for name in _not_there(node):
            yield f"card {name} is on node {node.name}, and the ledger has it nowhere there"
    if world.all_well:
        for node in state.nodes.values():
            for device in node.devices:
                if not device.healthy and device.health_reason != UNNAMED:
                    yield f"device {device.device.id} is well and the ledger says it is not"


def _not_there(node: NodeState) -> Iterator[str]:
    """Yield the devices that the node reported but that the state marks as absent."""
    if node.reported is None or node.gone:
        return
    for device in node.reported.devices:
        if device.id in node.by_id and not node.by_id[device.id].present:
            yield device.id


def _unplaced(world: World) -> Iterator[str]:
    """Yield a problem for each pending pod that could be placed now."""
    state = world.auditor.state
    limited = bool(state.queues or state.quotas)  # of which the books know nothing
    for event in decided(Engine(state)).events:
        # The reasons of a refusal may have changed since it was reported, but not the refusal.
        if not isinstance(event, PodRefused):
            yield f"an engine would still say {type(event).__name__} of pod {event.pod}"
    for pod in state.pods.values():
        if pod.phase is Phase.PENDING and pod.backoff is not None and pod.refusal is None:
            yield f"pod {pod.uid} waits for the end of its pause"
        if pod.phase is Phase.PENDING and not pod.submitted.group and not limited:
            yield from _fits(pod, world.auditor.books)


def _fits(pod: PodState, books: Books) -> Iterator[str]:
    """Yield a problem if this pending pod fits according to the auditor's record.

    Only pods with a single device request are checked."""
    shape = pod.submitted.shape
    if len(shape.asks) != 1:
        return
    ask = shape.asks[0]
    memory_mib = ask.memory_mib
    if memory_mib is None:
        return
    by_node: dict[str, int] = {}
    for device_id, node in books.node_of.items():
        device = books.devices[device_id]
        memory, cores, slots = books.free(device_id)
        types = shape.devices.use_types
        open_ = not books.why_closed(device_id, node, 1 << 60)
        alone = slots == device.slots if ask.cores == 100 else cores > 0
        room = memory >= memory_mib and cores >= ask.cores and slots > 0 and alone
        right = device.mode == "hami-core" and all(name in device.model for name in types)
        if open_ and room and right:
            by_node[node] = by_node.get(node, 0) + 1
    for node, count in by_node.items():
        if count >= ask.count:
            yield f"pod {pod.uid} is pending and the books find {count} devices on {node}"


def unlike(world: World) -> Iterator[str]:
    """Yield a problem for each reader whose state differs from the auditor's."""
    expected = digest(world.auditor.state)
    for process in world.processes:
        for reader, into in process.folds:
            if reader.halted:
                yield f"{process.name} has {reader.halted}"
            elif into.state.revision != world.auditor.state.revision:
                yield (
                    f"{process.name} is at revision {into.state.revision} of "
                    f"{world.auditor.state.revision}"
                )
            elif digest(into.state) != expected:
                yield f"{process.name} holds another state than the auditor"
