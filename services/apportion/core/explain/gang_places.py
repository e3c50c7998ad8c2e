"""What keeps a gang out: too small a fleet, or what others hold beside its own places.

A gang is refused by the first of its pods that finds no place, after the others took theirs; so the
refusal counts nodes as held that are as empty as they look. Invariant: a node is called the gang's
own only if it would take such a pod now, and all pods of the gang are alike.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from msgspec import structs

from apportion.core.explain.natural import natural
from apportion.core.explain.room import Room
from apportion.core.ledger.state import PodState, State
from apportion_schemas import GangShortage, NearMiss, PodConstraints, PodRefused, RefusalCode

NEAREST_KEPT: Final = 3
CORDONED_WEIGHED: Final = 64
_CODE: Final = RefusalCode.NODE_CORDONED


def never_together(room: Room, state: State, pod: PodState, found: GangShortage) -> str:
    """That the whole fleet has too few places for the gang, where its pods are all alike; empty
    where it has enough, or nobody can say so easily.
    """
    if found.present < found.needed or not of_one_sort(room, state, pod):
        return ""
    most = room.once(("most", pod.shape_key), lambda: room.most(pod.submitted.shape))
    if most >= found.needed or not any(each.present for each in state.nodes.values()):
        return ""
    return (
        f"its gang needs {found.needed:,} places together, and this fleet has "
        f"{most:,} with nothing there"
    )


def beside_own(
    room: Room, state: State, pod: PodState, refused: PodRefused
) -> tuple[PodRefused, int]:
    """The refusal with the nearest of those nodes that others of the gang would not take, and how
    many these are; first the node whose cordon alone keeps the gang out.
    """
    found, shape = refused.gang, pod.submitted.shape
    if found is None or found.present < found.needed or shape.pods != PodConstraints():
        return refused, 0
    if not of_one_sort(room, state, pod):
        return refused, 0
    about = f"places of {pod.submitted.group} {pod.refused_revision}"
    own, lifted = room.once((about, b""), lambda: _places(room, state, pod, refused, found))
    near = [miss for miss in refused.nearest if miss.node not in own]
    if own and len(near) < NEAREST_KEPT:
        there = {miss.node for miss in near}
        near += [miss for miss in room.nearest(shape) or () if miss.node not in there]
    if lifted:
        near = [miss for miss in near if miss.node != lifted]
        near.insert(0, NearMiss(node=lifted, device="", code=_CODE, needed=1, available=0))
    return structs.replace(refused, nearest=tuple(near[:NEAREST_KEPT])), len(own)


def _places(
    room: Room, state: State, pod: PodState, refused: PodRefused, found: GangShortage
) -> tuple[set[str], str]:
    """The nodes that the others of the gang would take, and the node whose cordon alone keeps all
    of it out; none where that is not so.
    """
    shape, nodes = pod.submitted.shape, state.nodes.values()
    own = {each.name for each in nodes if room.holds(shape, each) and not room.miss(shape, each)}
    if len(own) > found.fitting:
        own = set()  # places that were not there when it was decided
    closed = (each for each in nodes if each.cordons and _CODE in refused.reasons)
    lifted = [
        each.name for each in islice(closed, CORDONED_WEIGHED)
        if room.holds(shape, each) and room.fits_uncordoned(shape, each, _CODE)
    ]  # fmt: skip
    return own, min(lifted, key=natural) if len(lifted) >= found.needed - found.fitting else ""


def of_one_sort(room: Room, state: State, pod: PodState) -> bool:
    """Whether all pods of its gang want the same: else nobody knows which of them was refused."""
    group = state.groups.get(pod.submitted.group)
    return group is not None and room.once(
        (f"alike {pod.submitted.group}", b""),
        lambda: len({each.shape_key for each in group.pods.values()}) <= 1,
    )
