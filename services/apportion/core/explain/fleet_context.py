"""Refusals in the light of the fleet: which nodes are nearest, and what can never be.

The event names nodes that were near when it was written, among them such as never could hold the
pod. Whoever explains it looks at the fleet as it is now. Invariant: "never" is said only where
every node is too small or of the wrong kind with nothing on it, or a limit is too small with nobody
else in it; `lab.fitting`, which tries an empty fleet with the engine, says it then as well.

A gang is refused by the first of its pods that finds no place, after the others took theirs; so the
refusal counts nodes as held that are as empty as they look. Invariant: a node is called the gang's
own only if it would take such a pod now, and all pods of the gang are alike."""

from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from msgspec import structs

from apportion.core.explain.empty_capacity import NEAREST_KEPT, Room, host_holds
from apportion.core.explain.limit_holders import BeyondLimit, never_within, of_its_card
from apportion.core.explain.text import words
from apportion.core.explain.text.natural import natural
from apportion.core.ledger.state import NodeState, PodState, State
from apportion_schemas import GangShortage, NearMiss, PodConstraints, PodRefused, RefusalCode, Shape

LISTED_LOOKS: Final = 20_000
"""So many looks at nodes a list may take to find out which of its pods can never fit: on a fleet of
1,000 nodes for 20 sorts of pods, each some ten milliseconds.
"""

Alike = tuple[bytes, int, tuple[tuple[RefusalCode, int], ...], tuple[NearMiss, ...], bool]
"""What pods have in common whose refusals are explained alike."""


class TooFewPlaces(NamedTuple):
    """A gang for which the whole fleet has too few places with nothing there, and `none` for these
    of its pods, where it has some for others."""

    needed: int
    places: int
    none: tuple[str, ...]


class Explained(NamedTuple):
    """A refusal whose nearest nodes could hold the pod; `never`: none could, whatever ends.

    `limit` is the limit that could never hold it, whatever else ends, in amounts or as the refusal
    has it; no node is at fault. `own` counts the nodes that others of its gang would take, which
    the refusal counts as held. `shape` is what was asked for and refused; None where nobody knows,
    for it is of a gang whose pods differ, and may be another one's."""

    refused: PodRefused
    never: bool
    limit: BeyondLimit | TooFewPlaces | PodRefused | None = None
    own: int = 0
    shape: Shape | None = None

    @property
    def of_limits(self) -> bool:
        """Whether a queue, quota, volume or incomplete gang is what keeps it from all nodes."""
        refused, gang = self.refused, self.refused.gang
        short = gang is not None and gang.present < gang.needed
        return bool(refused.queue or refused.quota or refused.volume or short)


class Explainer:
    """Explains the refusals of a state, of as many pods as ask; good for that state as it is.

    What pods have in common is found once, and `room` is of the same state."""

    def __init__(self, state: State) -> None:
        self.room = Room(state)
        self._state = state
        self._explained: dict[Alike, Explained] = {}
        self._unbelieved: list[NodeState] | None = None
        self._looks = 0

    def explained(self, pod: PodState, refused: PodRefused, *, brief: bool = False) -> Explained:
        """The refusal with the nearest among the nodes that could hold the pod; where none could,
        with what each lacks when empty.

        Where a volume is what keeps it out, the nodes stay as they are; where a gang is, those that
        the others of it would take are left out; where a queue or quota is, none is near, for what
        a node lacks is not why. `brief`: for a list, those of the event that could hold it will do;
        of many sorts of pods, these alone are looked at."""
        found = self._found(pod, refused, brief=brief)
        return found._replace(shape=self.wishes(pod))

    def wishes(self, pod: PodState) -> Shape | None:
        """What a refusal of the pod is about; None where it may be about another pod of its gang,
        which wants something else."""
        return pod.submitted.shape if of_one_sort(self.room, self._state, pod) else None

    def _found(self, pod: PodState, refused: PodRefused, *, brief: bool) -> Explained:
        if refused.queue or refused.quota:
            limit = never_within(self.room, self._state, pod, refused)
            if not limit and self.wishes(pod) is not None:
                refused = of_its_card(self.room, self._state, pod, refused)
            return Explained(structs.replace(refused, nearest=()), never=False, limit=limit)
        if refused.gang:
            too_few = never_together(self.room, self._state, pod, refused.gang)
            if too_few or brief or self._looks >= LISTED_LOOKS:
                return Explained(refused, never=False, limit=too_few)
            self._looks += len(self._state.nodes)
            refused, own = beside_own(self.room, self._state, pod, refused)
            return Explained(refused, never=False, own=own)
        if refused.volume or not refused.nodes:
            return Explained(refused, never=False)
        reasons = tuple(refused.reasons.items())
        sort = (pod.shape_key, refused.nodes, reasons, refused.nearest, brief)
        if sort not in self._explained:
            if brief and self._looks >= LISTED_LOOKS:
                near = self.room.possible(pod, refused)
                return Explained(structs.replace(refused, nearest=near), never=False)
            self._looks += len(self._state.nodes)
            self._explained[sort] = self._of_nodes(pod, refused, brief=brief)
        found = self._explained[sort]
        return found._replace(refused=structs.replace(found.refused, pod=refused.pod))

    def _of_nodes(self, pod: PodState, refused: PodRefused, *, brief: bool) -> Explained:
        refused = words.without_gone(refused)
        shape = pod.submitted.shape
        kept = self.room.possible(pod, refused)
        if brief and kept:
            return Explained(structs.replace(refused, nearest=kept), never=False)
        # A pod that wants devices for itself counts how many are empty.
        short = (self.room.devices_short(shape, miss) for miss in kept)
        if kept and len(kept) == len(refused.nearest) and not any(short):
            return Explained(refused, never=False)
        could = {miss.node for miss in kept}
        found = self.room.once(("nearest", pod.shape_key), lambda: self.room.nearest(shape))
        if found is None:
            if not any(node.present for node in self._state.nodes.values()):
                return Explained(refused, never=False)  # where there is no node, nobody knows
            empty = self.room.once(
                ("with nothing there", pod.shape_key),
                lambda: self.room.with_nothing_there(shape, refused),
            )
            return Explained(empty, never=True)
        more = (miss for miss in found if miss.node not in could)
        nearest = sorted((*kept, *more), key=partial(self.room.devices_short, shape))
        return Explained(
            structs.replace(refused, nearest=tuple(nearest[:NEAREST_KEPT])), never=False
        )

    def unbelieved(self, pod: PodState, refused: PodRefused) -> tuple[str, ...]:
        """The nodes that the pod may use and whose agents are not believed: what devices they have
        is not known, or was known before something was refused of them."""
        if refused.gang or refused.queue or refused.quota or refused.volume:
            return ()
        if self._unbelieved is None:
            nodes = self._state.nodes.values()
            self._unbelieved = [each for each in nodes if each.refused and not each.gone]
        shape = pod.submitted.shape
        return tuple(
            node.name for node in self._unbelieved if not node.present or host_holds(shape, node)
        )


CORDONED_WEIGHED: Final = 64
SORTS_WEIGHED: Final = 16  # sorts of pods of a gang of which it is found out how many fit at most
_CORDONED: Final = RefusalCode.NODE_CORDONED


def never_together(
    room: Room, state: State, pod: PodState, found: GangShortage
) -> TooFewPlaces | None:
    """That the whole fleet has too few places for the gang, and for which of its pods none; None
    where it may have enough, whose pods are of several sorts or of very many."""
    if found.present < found.needed or not any(each.present for each in state.nodes.values()):
        return None
    group = pod.submitted.group
    return room.once((f"never {group}", b""), lambda: _never_together(room, state, group, found))


def _never_together(
    room: Room, state: State, group: str, found: GangShortage
) -> TooFewPlaces | None:
    sorts: dict[bytes, list[PodState]] = {}
    for each in state.groups[group].pods.values() if group in state.groups else ():
        sorts.setdefault(each.shape_key, []).append(each)
    if not 0 < len(sorts) <= SORTS_WEIGHED:
        return None
    places = {
        key: min(len(alike), room.once(("most", key), partial(room.most, alike[0].submitted.shape)))
        for key, alike in sorts.items()
    }
    most = sum(places.values())
    if most >= found.needed:
        return None
    none = [alike[0].full_name for key, alike in sorts.items() if not places[key]]
    return TooFewPlaces(found.needed, most, tuple(sorted(none, key=natural)) if most else ())


def beside_own(
    room: Room, state: State, pod: PodState, refused: PodRefused
) -> tuple[PodRefused, int]:
    """The refusal with the nearest of those nodes that others of the gang would not take, and how
    many these are; first the node whose cordon alone keeps the gang out."""
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
        near.insert(0, NearMiss(node=lifted, device="", code=_CORDONED, needed=1, available=0))
    return structs.replace(refused, nearest=tuple(near[:NEAREST_KEPT])), len(own)


def _places(
    room: Room, state: State, pod: PodState, refused: PodRefused, found: GangShortage
) -> tuple[set[str], str]:
    """The nodes that the others of the gang would take, and the node whose cordon alone keeps all
    of it out; none where that is not so."""
    shape, nodes = pod.submitted.shape, state.nodes.values()
    own = {each.name for each in nodes if room.holds(shape, each) and not room.miss(shape, each)}
    if len(own) > found.fitting:
        own = set()  # places that were not there when it was decided
    closed = (each for each in nodes if each.cordons and _CORDONED in refused.reasons)
    lifted = [
        each.name for each in islice(closed, CORDONED_WEIGHED)
        if room.holds(shape, each) and room.fits_uncordoned(shape, each, _CORDONED)
    ]  # fmt: skip
    return own, min(lifted, key=natural) if len(lifted) >= found.needed - found.fitting else ""


def of_one_sort(room: Room, state: State, pod: PodState) -> bool:
    """Whether all pods of its gang that wait want the same, or it has none: else nobody knows which
    of them was refused."""
    if not pod.submitted.group:
        return True
    group = state.groups.get(pod.submitted.group)
    return group is not None and room.once(
        (f"alike {pod.submitted.group}", b""),
        lambda: len({each.shape_key for each in group.pods.values() if not each.placement}) <= 1,
    )
