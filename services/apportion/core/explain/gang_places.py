"""What keeps a gang out: too small a fleet, or what others hold beside its own places.

A gang is refused by the first of its pods that finds no place, after the others took theirs; so the
refusal counts nodes as held that are as empty as they look. Invariant: a node is called the gang's
own only if it would take such a pod now, and all pods of the gang are alike.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Final

from msgspec import structs

from apportion.core.explain.lines import listed
from apportion.core.explain.natural import natural
from apportion.core.explain.room import Room
from apportion.core.ledger.state import PodState, State
from apportion_schemas import GangShortage, NearMiss, PodConstraints, PodRefused, RefusalCode

NEAREST_KEPT: Final = 3
CORDONED_WEIGHED: Final = 64
SORTS_WEIGHED: Final = 16  # sorts of pods of a gang of which it is found out how many fit at most
_CODE: Final = RefusalCode.NODE_CORDONED


def never_together(room: Room, state: State, pod: PodState, found: GangShortage) -> str:
    """That the whole fleet has too few places for the gang, and for which of its pods none; empty
    where it may have enough, whose pods are of several sorts or of very many.
    """
    if found.present < found.needed or not any(each.present for each in state.nodes.values()):
        return ""
    group = pod.submitted.group
    return room.once((f"never {group}", b""), lambda: _never_together(room, state, group, found))


def _never_together(room: Room, state: State, group: str, found: GangShortage) -> str:
    sorts: dict[bytes, list[PodState]] = {}
    for each in state.groups[group].pods.values() if group in state.groups else ():
        sorts.setdefault(each.shape_key, []).append(each)
    if not 0 < len(sorts) <= SORTS_WEIGHED:
        return ""
    places = {
        key: min(len(alike), room.once(("most", key), partial(room.most, alike[0].submitted.shape)))
        for key, alike in sorts.items()
    }
    most = sum(places.values())
    if most >= found.needed:
        return ""
    none = [alike[0].full_name for key, alike in sorts.items() if not places[key]]
    said = f", and none for {listed(sorted(none, key=natural))}" if most and none else ""
    return (
        f"its gang needs {found.needed:,} places together, and this fleet has {most:,} with "
        f"nothing there{said}"
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
    """Whether all pods of its gang that wait want the same, or it has none: else nobody knows which
    of them was refused.
    """
    if not pod.submitted.group:
        return True
    group = state.groups.get(pod.submitted.group)
    return group is not None and room.once(
        (f"alike {pod.submitted.group}", b""),
        lambda: len({each.shape_key for each in group.pods.values() if not each.placement}) <= 1,
    )
