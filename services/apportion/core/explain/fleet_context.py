"""Put a refusal into the context of the fleet: nearest nodes, and "never".

Invariant: "never" is said only if every node is too small or unsuitable even when empty, or a limit
is too small without any other pod; `lab.fitting`, which runs the engine on an empty fleet, agrees.

A gang is refused for the first pod that finds no node after others were placed, so the refusal
counts empty nodes as in use. Invariant: a node counts as the gang's own only if it would take such
a pod now, and all pods of the gang have the same shape."""

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

# Nodes a list may check for pods that can never fit: 20 shapes on 1,000 nodes, each about 10 ms
LISTED_LOOKS: Final = 20_000

# Equal for pods whose refusals have the same explanation
Alike = tuple[bytes, int, tuple[tuple[RefusalCode, int], ...], tuple[NearMiss, ...], bool]


class TooFewPlaces(NamedTuple):
    """The empty fleet has too few places for a gang, and `none` for these pods."""

    needed: int
    places: int
    none: tuple[str, ...]


class Explained(NamedTuple):
    """A refusal with nearest nodes that could take the pod; `never`: none ever could.

    `limit` is too small even without other pods. `own` counts nodes for the gang's other pods,
    which the refusal counts as in use. `shape` is the refused shape; None if the gang's pods differ
    and another one may have been refused."""

    refused: PodRefused
    never: bool
    limit: BeyondLimit | TooFewPlaces | PodRefused | None = None
    own: int = 0
    shape: Shape | None = None

    @property
    def of_limits(self) -> bool:
        """True if a queue, quota, volume or incomplete gang blocks the pod on all nodes."""
        refused, gang = self.refused, self.refused.gang
        short = gang is not None and gang.present < gang.needed
        return bool(refused.queue or refused.quota or refused.volume or short)


class Explainer:
    """Explains refusals of one unchanged state; common results are computed once."""

    def __init__(self, state: State) -> None:
        self.room = Room(state)
        self._state = state
        self._explained: dict[Alike, Explained] = {}
        self._unbelieved: list[NodeState] | None = None
        self._looks = 0

    def explained(self, pod: PodState, refused: PodRefused, *, brief: bool = False) -> Explained:
        """Return the refusal with the nearest nodes that could take the pod.

        If there are none, it says what each node lacks when empty. A queue or quota has no nearest
        nodes, and a gang leaves out those for its other pods. `brief` is for lists: the event's
        nearest nodes suffice, and beyond `LISTED_LOOKS` no others are searched."""
        found = self._found(pod, refused, brief=brief)
        return found._replace(shape=self.wishes(pod))

    def wishes(self, pod: PodState) -> Shape | None:
        """Return the shape that was refused; None if it may be another pod's of the gang."""
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
        # For exclusive devices, count the empty ones.
        short = (self.room.devices_short(shape, miss) for miss in kept)
        if kept and len(kept) == len(refused.nearest) and not any(short):
            return Explained(refused, never=False)
        could = {miss.node for miss in kept}
        found = self.room.once(("nearest", pod.shape_key), lambda: self.room.nearest(shape))
        if found is None:
            if not any(node.present for node in self._state.nodes.values()):
                return Explained(refused, never=False)  # without any node nothing is known
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
        """Return nodes that may fit, but whose agents' reports are refused."""
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
SORTS_WEIGHED: Final = 16  # shapes of a gang for which an upper bound is computed
_CORDONED: Final = RefusalCode.NODE_CORDONED


def never_together(
    room: Room, state: State, pod: PodState, found: GangShortage
) -> TooFewPlaces | None:
    """Return a shortage if the gang does not fit on the empty fleet; None if unknown."""
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
    """Return the refusal without the gang's own nodes, and the number of these.

    A node whose cordon alone blocks the gang comes first."""
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
    """Return the gang's own nodes, and the node whose cordon alone blocks it, if any."""
    shape, nodes = pod.submitted.shape, state.nodes.values()
    own = {each.name for each in nodes if room.holds(shape, each) and not room.miss(shape, each)}
    if len(own) > found.fitting:
        own = set()  # places that did not exist at the decision
    closed = (each for each in nodes if each.cordons and _CORDONED in refused.reasons)
    lifted = [
        each.name for each in islice(closed, CORDONED_WEIGHED)
        if room.holds(shape, each) and room.fits_uncordoned(shape, each, _CORDONED)
    ]  # fmt: skip
    return own, min(lifted, key=natural) if len(lifted) >= found.needed - found.fitting else ""


def of_one_sort(room: Room, state: State, pod: PodState) -> bool:
    """Return True if all pending pods of the gang have one shape, or there is no gang."""
    if not pod.submitted.group:
        return True
    group = state.groups.get(pod.submitted.group)
    return group is not None and room.once(
        (f"alike {pod.submitted.group}", b""),
        lambda: len({each.shape_key for each in group.pods.values() if not each.placement}) <= 1,
    )
