"""Put a refusal into the context of the fleet: nearest nodes, limits, and "never".

`Room` answers which nodes could run a pod when empty and what each lacks now; advice must not point
to a node that is too small even when empty. `Explainer` finds the nearest nodes of a refusal, or a
limit that is too small. Invariant: "never" appears only if every node is too small or unsuitable
even when empty, or a limit is too small without any other pod; `lab.fitting`, which runs the engine
on an empty fleet, agrees.

A gang is refused for the first pod that finds no node after others were placed, so the refusal
counts empty nodes as in use. Invariant: a node counts as the gang's own only if it would run such a
pod now, and all pods of the gang have the same shape."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import structs

from apportion.core.answers.reads import QueueAnswer, QuotaAnswer, fields_of
from apportion.core.devices.catalogue import type_matches
from apportion.core.devices.shares import template_cpu_of
from apportion.core.explain.text import words
from apportion.core.explain.text.natural import natural
from apportion.core.ledger.state import NodeState, PodState, State, queue_of
from apportion.core.placement.feasibility.evaluator import (
    NO_PLACE,
    Occupancy,
    Rules,
    Verdict,
    devices_feasibility,
    empty,
    feasibility,
    now,
    on_offer,
    refused_amount,
    refused_kind,
    refused_node,
    rules_of,
    uncordoned,
    usable,
    without,
)
from apportion.core.placement.limits.quotas import (
    EXTENDED,
    Amount,
    Amounts,
    amounts_by_name,
    at_least,
    of_devices,
    of_shares,
)
from apportion.core.workloads.dialects.dialect import DEVICE_MEMORY, SHARES
from apportion.core.workloads.dialects.names import dialect_config
from apportion.core.workloads.kinds.limits import OF_CLAIMS
from apportion_schemas import (
    Device,
    GangShortage,
    MigSize,
    NearMiss,
    PodConstraints,
    PodRefused,
    QueueObserved,
    RefusalCode,
    Shape,
    Share,
)

T = TypeVar("T")
NEAREST_KEPT: Final = 3
NODES_WEIGHED: Final = 64  # nodes that could hold a pod of which the nearest are looked for

Build = tuple[tuple[str, str, str, int, int, int, int, tuple[MigSize, ...]], ...]


class Room:
    """Capacity queries about empty nodes, for one unchanged state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._by_build: dict[Build, list[NodeState]] = {}
        self._done: dict[tuple[str, bytes], Any] = {}

    def most(self, shape: Shape) -> int:
        """Return an upper bound for the number of pods of this shape on the empty fleet."""
        rules = rules_of(self._state, shape)
        return sum(_most_pods(shape, node, rules) for node in self._state.nodes.values())

    def devices_short(self, shape: Shape, miss: NearMiss) -> int:
        """Return how many more empty devices the pod needs on this node."""
        node = self._state.nodes.get(miss.node)
        wanted, free = self.empty_devices(shape, node) if node is not None else (0, 0)
        return max(wanted - free, 0)

    def possible(self, pod: PodState, refused: PodRefused) -> tuple[NearMiss, ...]:
        """Return those of the event's nearest nodes that could run the pod when empty."""
        shape = pod.submitted.shape
        near = {miss.node: self._state.nodes.get(miss.node) for miss in refused.nearest}
        could = {
            name for name, node in near.items() if node is not None and self.holds(shape, node)
        }
        return tuple(miss for miss in refused.nearest if miss.node in could)

    def nearest_nodes(self, shape: Shape) -> tuple[NearMiss, ...] | None:
        """Return the shortages of the nearest nodes that could run the pod, or None."""
        could = list(islice(self.could(shape), NODES_WEIGHED))
        misses = [found for node in could if (found := self.miss(shape, node)) is not None]
        misses.sort(key=lambda each: (self.devices_short(shape, each[1]), each[0]))
        return tuple(miss for _, miss in misses[:NEAREST_KEPT]) if could else None

    def with_nothing_there(self, shape: Shape, refused: PodRefused) -> PodRefused:
        """Return the refusal as it would be on an empty fleet, where no node could run the pod."""
        alike, reasons = _unnamed(shape), Counter[RefusalCode]()
        rules, verdicts = rules_of(self._state, shape), list[tuple[NodeState, Verdict]]()
        for nodes in self._builds():
            of_build = devices_feasibility(shape, empty(nodes[0]).devices, rules)
            for node in nodes:
                verdict = (
                    refused_node(shape, empty(node)) or of_build
                    if alike == shape
                    else feasibility(shape, node, empty, rules)
                )
                if verdict is not None and node.present:
                    reasons[verdict.code] += 1
                    verdicts.append((node, verdict))
        near = nsmallest(NEAREST_KEPT, verdicts, key=lambda each: (each[1].order, each[0].name))
        return structs.replace(
            refused,
            nodes=len(verdicts),
            reasons=dict(reasons),
            nearest=tuple(_near(node, verdict) for node, verdict in near),
        )

    def lacks_only(self, shape: Shape, node: NodeState, pods: Iterable[PodState]) -> bool:
        """Return True if the node lacks only what ending `pods` would free."""
        if self.miss(shape, node) is None:
            return False
        return self.miss(shape, node, without(pods)) is None

    def fits_on_offer(self, shape: Shape, node: NodeState) -> bool:
        """Return True if the pod would fit now without cordons and device failures."""
        return self.holds(shape, node) and self.miss(shape, node, on_offer) is None

    def fits_uncordoned(
        self, shape: Shape, node: NodeState, code: RefusalCode, device: str = ""
    ) -> bool:
        """Return True if the pod would fit now after this one cordon is lifted."""
        return self.miss(shape, node, uncordoned(code, device)) is None

    def would_do(self, shape: Shape, node: NodeState) -> set[str]:
        """Return the devices of the node that could satisfy one of the pod's asks when empty."""
        rules = rules_of(self._state, shape)
        found = (usable(ask, shape.devices, node.devices, rules) for ask in shape.asks)
        return {node.devices[place].device.id for each in found for place, _ in each}

    def _builds(self) -> Iterable[list[NodeState]]:
        if not self._by_build:
            for node in self._state.nodes.values():
                build = tuple(
                    (each.family, each.model, each.mode, each.memory_mib, each.physical_memory_mib,
                     each.cores, each.slots, each.mig_sizes)
                    for each in (held.device for held in node.devices)
                )  # fmt: skip
                self._by_build.setdefault(build, []).append(node)
        return self._by_build.values()

    def once(self, key: tuple[str, bytes], work: Callable[[], T]) -> T:
        """Return the result of `work`, computed once per key."""
        if key not in self._done:
            self._done[key] = work()
        found: T = self._done[key]
        return found

    def could(self, shape: Shape) -> Iterator[NodeState]:
        """Yield the nodes that could run a pod of this shape when empty."""
        alike, rules = _unnamed(shape), rules_of(self._state, shape)
        for nodes in self._builds():
            if devices_feasibility(alike, empty(nodes[0]).devices, rules) is not None:
                continue
            for node in nodes:
                if alike == shape:
                    refused = refused_node(shape, empty(node))
                else:
                    refused = feasibility(shape, node, empty, rules)
                if refused is None:
                    yield node

    def holds(self, shape: Shape, node: NodeState) -> bool:
        """Return True if the node could run a pod of this shape when empty."""
        return feasibility(shape, node, empty, rules_of(self._state, shape)) is None

    def empty_devices(self, shape: Shape, node: NodeState) -> tuple[int, int]:
        """Return how many exclusive devices the pod needs on the node, and how many are free."""
        wanted, free, rules = 0, set[int](), rules_of(self._state, shape)
        for ask in shape.asks:
            would_do = list(usable(ask, shape.devices, node.devices, rules))
            if not ask.init and any(need.alone for _, need in would_do):
                wanted += ask.count
                free.update(
                    place for place, need in would_do
                    if refused_amount(need, node.devices[place]) is None
                )  # fmt: skip
        return wanted, len(free)

    def miss(
        self, shape: Shape, node: NodeState, occupancy: Occupancy = now
    ) -> tuple[tuple[int, float], NearMiss] | None:
        """Return a node's nearness and what it lacks; None if the pod fits or never could.

        Nearness is as in the events: the last filter first, then the least shortage."""
        rules = rules_of(self._state, shape)
        verdict = feasibility(shape, node, occupancy, rules, large_enough=True)
        return (verdict.order, _near(node, verdict)) if verdict is not None else None


def host_holds(shape: Shape, node: NodeState) -> bool:
    """Return True if the empty node would be suitable and large enough."""
    return refused_node(shape, empty(node)) is None


def _most_pods(shape: Shape, node: NodeState, rules: Rules) -> int:
    """Return an upper bound for the number of such pods on the empty node, ask by ask."""
    if not host_holds(shape, node):
        return 0
    needs, host = shape.node, node.host
    most = host.pods
    if needs.cpu_milli:
        most = min(most, host.cpu_milli // needs.cpu_milli)
    if needs.memory_mib:
        most = min(most, host.memory_mib // needs.memory_mib)
    for ask in shape.asks:
        if not ask.init:
            shares = 0
            for place, need in usable(ask, shape.devices, node.devices, rules):
                device = node.devices[place].device
                amounts = (
                    (need.memory_mib, device.memory_mib),
                    (need.cores_needed, device.cores),
                    (need.template_cpu, template_cpu_of(device)),
                )
                slots = 1 if need.alone else device.slots
                shares += min([slots, *(there // wanted for wanted, there in amounts if wanted)])
            most = min(most, shares // ask.count)
    return most


def _unnamed(shape: Shape) -> Shape:
    devices = structs.replace(shape.devices, use_ids=(), nouse_ids=(), indexes=())
    return structs.replace(shape, devices=devices)


def _near(node: NodeState, verdict: Verdict) -> NearMiss:
    place = verdict.place
    return NearMiss(
        node=node.name, device="" if place == NO_PLACE else node.devices[place].device.id,
        code=verdict.code, needed=verdict.needed, available=verdict.available,
    )  # fmt: skip


Taken = Callable[[Shape, Iterable[Share], NodeState], Amounts]


class BeyondLimit(NamedTuple):
    """A queue or quota that is too small for a pod, or for its gang `together`."""

    queue: str
    quota: str
    resource: str
    most: int
    needed: int
    together: bool


def holders(room: Room, state: State, pod: PodState, refused: PodRefused) -> list[PodState]:
    """Return the pods that use the resource of the refusal's limit, most usage first.

    If no pod uses it (a limit by device model, or not on devices), return all pods in the limit."""
    key = f"holders of {limit_of(state, pod, refused)}"
    return room.once((key, b""), lambda: _holders(state, pod, refused))


def limit_of(state: State, pod: PodState, refused: PodRefused) -> str:
    """Return a key of the limit that blocks the pod, equal for all such pods."""
    if refused.queue is not None:
        return f"queue {queue_of(state, pod)} {refused.queue.resource}"
    resource = refused.quota.resource if refused.quota is not None else ""
    return f"quota {pod.submitted.namespace} {resource}"


def never_within(
    room: Room, state: State, pod: PodState, refused: PodRefused
) -> BeyondLimit | None:
    """Return the refusal's limit if the limit is too small even without other pods.

    Return None if that depends on more than the models of the chosen devices."""
    submitted = pod.submitted
    group = state.groups.get(submitted.group)
    together = group is not None and group.observed is not None and group.together
    sort = b"" if together else pod.shape_key  # a gang is counted as a whole for each of its pods
    whose = f"{submitted.group} {submitted.namespace} {queue_of(state, pod)}"
    limits = f"{refused.queue is not None} {refused.quota is not None}"
    return room.once((f"within {whose} {limits}", sort), lambda: _never_within(state, pod, refused))


def of_its_card(room: Room, state: State, pod: PodState, refused: PodRefused) -> PodRefused:
    """Correct the device model in the refusal to the one that the queue's limit lacks.

    The model that the engine named last may be missing in the limit."""
    about = f"card of {limit_of(state, pod, refused)} {refused.gang} {pod.submitted.group}"
    found = room.once((about, pod.shape_key), lambda: _of_its_card(state, pod, refused).queue)
    return structs.replace(refused, queue=found)


def _never_within(state: State, pod: PodState, refused: PodRefused) -> BeyondLimit | None:
    if refused.queue is not None and not refused.queue.resource:
        return None  # the queue is closed, and may be opened again
    group = state.groups.get(pod.submitted.group)
    together = group is not None and group.observed is not None and group.together
    if group is None or not together:
        much = _least(pod.submitted.shape)
    else:
        shapes = [_least(each.submitted.shape) for each in group.pods.values()]
        much = Counter[Amount]()
        for amount in set().union(*shapes):  # the smallest of each amount, whichever pods have it
            much[amount] = sum(sorted(each[amount] for each in shapes)[: group.min_available])
    known = amounts_by_name(dialect_config(state.configuration))
    queue = state.queues.get(queue_of(state, pod)) if refused.queue is not None else None
    quotas = state.quotas.get(pod.submitted.namespace, {}) if refused.quota is not None else {}
    limits: list[tuple[str, str, Mapping[str, int], Mapping[str, tuple[Amount, int]]]] = []
    if queue is not None:
        of_queue = {name: known.get(name, ((EXTENDED, name), 1)) for name in queue.capability}
        limits.append((queue.queue, "", queue.capability, of_queue))
    limits += [
        ("", each.quota, each.hard, counted_devices(known, each.hard)) for each in quotas.values()
    ]
    for in_queue, in_quota, most, counted in limits:
        for name, needed in sorted(used(counted, much).items()):
            if needed > most[name]:
                return BeyondLimit(in_queue, in_quota, name, most[name], needed, together)
    if queue is not None and queue.cards:
        needed = sum(count for (what, *_), count in much.items() if what == SHARES)
        cards, most_cards = _cards_allowed(
            state, queue, group.pods.values() if group is not None and together else [pod]
        )
        if needed > most_cards:
            of = " and ".join(cards) or (refused.queue.resource if refused.queue else "")
            return BeyondLimit(queue.queue, "", of, most_cards, needed, together)
    return None


def _cards_allowed(
    state: State, queue: QueueObserved, pods: Iterable[PodState]
) -> tuple[list[str], int]:
    """Return the limit's device models that suit a pod, and an upper bound of their total."""
    kinds: dict[tuple[str, str, str], Device] = {}
    for node in state.nodes.values():
        for held in node.devices:
            found = held.device
            kinds.setdefault((found.family, found.model, found.mode), found)
    models = set[str]()
    for shape in {each.shape_key: each.submitted.shape for each in pods}.values():
        wanted = structs.replace(shape.devices, use_ids=(), nouse_ids=(), indexes=())
        for device in kinds.values():
            if any(refused_kind(ask, wanted, device) is None for ask in shape.asks):
                models.add(device.model)
    cards = [
        card
        for card in sorted(queue.cards)
        if any(type_matches(card.partition("/")[0], model) for model in models)
    ]
    return cards, sum(queue.cards[card] for card in cards)


def _of_its_card(state: State, pod: PodState, refused: PodRefused) -> PodRefused:
    short, queue = refused.queue, state.queues.get(queue_of(state, pod))
    if short is None or queue is None or not queue.cards or short.available:
        return refused
    if any(type_matches(card.partition("/")[0], short.resource) for card in queue.cards):
        return refused
    cards, most = _cards_allowed(state, queue, [pod])
    if len(cards) != 1:
        return refused
    fitting = refused.gang.fitting if refused.gang is not None else 0
    others = (
        each
        for each in state.pods.values()
        if queue_of(state, each) == queue.queue and each.placement is not None
        and not (fitting and each.submitted.group == pod.submitted.group)
    )  # fmt: skip
    held = sum(
        type_matches(cards[0].partition("/")[0], model) and count
        for model, count in Counter(model for _, model in _held(state, others)).items()
    )
    left = max(most - held - fitting * short.needed, 0)
    if left >= short.needed:
        return refused
    return structs.replace(refused, queue=structs.replace(short, resource=cards[0], available=left))


def _holders(state: State, pod: PodState, refused: PodRefused) -> list[PodState]:
    known = amounts_by_name(dialect_config(state.configuration))
    if refused.queue is not None:
        whose = queue_of(state, pod)
        within = [each for each in state.pods.values() if queue_of(state, each) == whose]
        resource, taken = refused.queue.resource, of_shares
        counted = {resource: known.get(resource, ((EXTENDED, resource), 1))}
    elif refused.quota is not None:
        space = pod.submitted.namespace
        within = [each for each in state.pods.values() if each.submitted.namespace == space]
        resource, taken = refused.quota.resource, of_devices
        counted = counted_devices(known, [resource])
    else:
        return []
    placed = [each for each in within if each.placement is not None]
    held = {
        each.uid: used(counted, held_by(state, [each], taken)).get(resource, 0) for each in placed
    }
    if any(held.values()):
        placed = [each for each in placed if held[each.uid]]
    return sorted(placed, key=lambda each: (-held[each.uid], natural(each.full_name)))


def _least(shape: Shape) -> Counter[Amount]:
    least = Counter(at_least(shape))
    for ask in shape.asks:
        if not ask.init and not ask.cap_memory:
            least[DEVICE_MEMORY, ask.family] += ask.count * (ask.memory_mib or 0)
    return least


def queue_answers(state: State, names: Iterable[str]) -> tuple[QueueAnswer, ...]:
    """Return these queues with their usage; scans all live pods."""
    queues = [state.queues[name] for name in names]
    pods: defaultdict[str, list[PodState]] = defaultdict(list)
    for pod in state.pods.values() if queues else ():
        pods[queue_of(state, pod)].append(pod)
    known = amounts_by_name(dialect_config(state.configuration))
    return tuple(
        QueueAnswer(
            **fields_of(each, "queue weight open capability cards"),
            used=used(
                {name: known.get(name, ((EXTENDED, name), 1)) for name in each.capability},
                held_by(state, pods[each.queue] if each.capability else (), of_shares),
            ),
            # by device, because several shares may be on one
            devices=dict(sorted(Counter(dict(_held(state, pods[each.queue])).values()).items())),
            pods=sum(pod.placement is not None for pod in pods[each.queue]),
            waiting=sum(pod.placement is None for pod in pods[each.queue]),
        )
        for each in queues
    )


def quota_answers(state: State, names: Iterable[tuple[str, str]]) -> tuple[QuotaAnswer, ...]:
    """Return these quotas with their usage; scans all live pods."""
    quotas = [state.quotas[namespace][name] for namespace, name in names]
    wanted = {each.namespace for each in quotas}
    pods: defaultdict[str, list[PodState]] = defaultdict(list)
    for pod in state.pods.values() if wanted else ():
        if pod.submitted.namespace in wanted:
            pods[pod.submitted.namespace].append(pod)
    held = {name: held_by(state, pods[name], of_devices) for name in wanted}
    known = amounts_by_name(dialect_config(state.configuration))
    return tuple(
        QuotaAnswer(
            **fields_of(each, "namespace quota hard"),
            used=used(counted_devices(known, each.hard), held[each.namespace]),
            of_kubernetes=each.version > 0,
        )
        for each in quotas
    )


def counted_devices(
    known: Mapping[str, tuple[Amount, int]], hard: Iterable[str]
) -> dict[str, tuple[Amount, int]]:
    """Return how each device resource in a quota is counted."""
    found = {}
    for name in hard:
        resource = name
        for prefix in OF_CLAIMS:
            resource = resource.removeprefix(prefix)
        if resource in known:
            found[name] = known[resource]
    return found


def held_by(state: State, pods: Iterable[PodState], taken: Taken) -> Counter[Amount]:
    """Return the sum of amounts over all placed pods; `taken` computes the amounts of a pod."""
    held: Counter[Amount] = Counter()
    for pod in pods:
        if pod.placement is not None:
            node = state.nodes[pod.placement.node]
            held.update(taken(pod.submitted.shape, pod.placement.shares, node))
    return held


def _held(state: State, pods: Iterable[PodState]) -> Iterator[tuple[str, str]]:
    for pod in pods:
        if pod.placement is not None:
            by_id = state.nodes[pod.placement.node].by_id
            for share in pod.placement.shares:
                yield share.device, by_id[share.device].device.model


def used(counted: Mapping[str, tuple[Amount, int]], held: Amounts) -> dict[str, int]:
    """Return the usage by name, rounded up to whole units, as limits are compared."""
    return {name: -(-held.get(amount, 0) // unit) for name, (amount, unit) in counted.items()}


# Nodes a list may check for pods that can never fit: 20 shapes on 1,000 nodes, each about 10 ms
LISTED_LOOKS: Final = 20_000

# Equal for pods whose refusals have the same explanation
Alike = tuple[bytes, int, tuple[tuple[RefusalCode, int], ...], tuple[NearMiss, ...], bool]


class TooFewPlaces(NamedTuple):
    """The empty fleet has room for `places` pods of a gang; `none` are pods that fit nowhere."""

    needed: int
    places: int
    none: tuple[str, ...]


class Explained(NamedTuple):
    """A refusal with nearest nodes that could run the pod; `never`: no node ever could.

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
        """Return True if a queue, quota, volume or incomplete gang blocks the pod on all nodes."""
        refused, gang = self.refused, self.refused.gang
        short = gang is not None and gang.present < gang.needed
        return bool(refused.queue or refused.quota or refused.volume or short)


class Explainer:
    """Explanations of refusals in one unchanged state; common results are computed once."""

    def __init__(self, state: State) -> None:
        self.room = Room(state)
        self._state = state
        self._explained: dict[Alike, Explained] = {}
        self._unbelieved: list[NodeState] | None = None
        self._looks = 0

    def explained(self, pod: PodState, refused: PodRefused, *, brief: bool = False) -> Explained:
        """Return the refusal with the nearest nodes that could run the pod.

        Without such nodes, it has what each node lacks when empty. A queue or quota has no nearest
        nodes, and a gang leaves out those for its other pods. `brief` is for lists: the event's
        nearest nodes suffice, and beyond `LISTED_LOOKS` no others are searched."""
        found = self._found(pod, refused, brief=brief)
        return found._replace(shape=self.wishes(pod))

    def wishes(self, pod: PodState) -> Shape | None:
        """Return the refused shape; None if another pod of the gang may have been refused."""
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
        found = self.room.once(("nearest", pod.shape_key), lambda: self.room.nearest_nodes(shape))
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
    """Return the refusal without the gang's own nodes, and the number of the gang's nodes.

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
        near += [miss for miss in room.nearest_nodes(shape) or () if miss.node not in there]
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
