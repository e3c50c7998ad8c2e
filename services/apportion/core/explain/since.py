"""What was taken off offer since a pod was refused: its causes are of the moment of its decision.

Nobody looks at a waiting pod anew for what only makes its chances worse, so the newest refusal may
count a node as short of memory that is cordoned by now. Invariant: only nodes that could hold the
pod with nothing there are told of, and only what was said after the decision, or is so now.
"""

from collections.abc import Iterator

from apportion.core.devices.cordons import Cordon, cordon_words
from apportion.core.explain.natural import natural
from apportion.core.explain.room import Room
from apportion.core.explain.words import device_words
from apportion.core.ledger.state import PodState, State
from apportion_schemas import NearMiss, RefusalCode

NAMED = 3
"""So many nodes and devices are named; more are counted."""
_OUT = (RefusalCode.NODE_NOT_READY, RefusalCode.AGENT_SILENT, RefusalCode.NODE_GONE)
"""Who was refused for these was out already."""


def taken_since(
    state: State, pod: PodState, nearest: tuple[NearMiss, ...], room: Room
) -> tuple[str, ...]:
    """What no longer takes the pod and did when it was refused, in words; of many the first few.

    `nearest` are the nodes that its refusal names.
    """
    found = sorted(_cordons(state, pod, room), key=lambda each: natural(each[0]))
    cordoned = {name for name, _ in found}
    out = [
        f"{name} is {'silent' if state.nodes[name].silent else 'not ready'}"
        for name in dict.fromkeys(miss.node for miss in nearest if miss.code not in _OUT)
        if name not in cordoned and name in state.nodes and not state.nodes[name].ready
    ]
    more = len(found) - NAMED
    said = [f"{name} is cordoned: {cordon_words(cordons)}" for name, cordons in found[:NAMED]]
    said += [f"{more:,} more are cordoned"] if more > 0 else []
    return (*said, *out)


def _cordons(state: State, pod: PodState, room: Room) -> Iterator[tuple[str, tuple[Cordon, ...]]]:
    """Nodes and devices that somebody has taken off offer since the pod was refused."""
    shape, refused = pod.submitted.shape, pod.refused_revision
    closed: set[str] = set()
    for name, node in state.nodes.items():
        if node.cordons and node.cordons[0].revision > refused and room.holds(shape, node):
            yield name, node.cordons
        elif node.cordons:
            closed.add(name)
    for device, cordons in state.device_cordons.items():
        where = state.node_of_device.get(device, "")
        if cordons[0].revision <= refused or not where or where in closed:
            continue
        if room.holds(shape, state.nodes[where]):
            yield f"{device_words(device)} of {where}", cordons
