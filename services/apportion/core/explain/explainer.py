"""Find the nearest nodes for a refused pod, or the limit that blocks it, and whether it never fits.

Invariant: "never" appears only if every node is too small or unsuitable even when empty, or a limit
is too small without any other pod."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import islice
from typing import Final

from msgspec import structs

from apportion.core.answers.reads import QueueAnswer, QuotaAnswer, fields_of
from apportion.core.devices.catalogue import type_matches
from apportion.core.explain.queue_entitlement import past_use_of, queue_parts
from apportion.core.ledger.state import GroupState, NodeState, PodState, State, queue_of
from apportion.core.names import natural
from apportion.core.placement.feasibility.causes import (
    BeyondLimit,
    Explained,
    TooFewPlaces,
    without_gone,
)  # fmt: skip
from apportion.core.placement.feasibility.evaluator import (
    NEAREST_KEPT,
    NODES_WEIGHED,
    Room,
    refused_kind,
)
from apportion.core.placement.limits.queues import Queues
from apportion.core.placement.limits.quotas import (
    EXTENDED,
    Amount,
    Amounts,
    amounts_by_name,
    at_least,
    of_devices,
    of_shares,
)
from apportion.core.placement.limits.tree import path_in
from apportion.core.workloads.dialects.dialect import DEVICE_MEMORY, SHARES
from apportion.core.workloads.dialects.names import dialect_config
from apportion.core.workloads.kinds.limits import OF_CLAIMS
from apportion_schemas import (
    Device,
    GangShortage,
    NearMiss,
    PodConstraints,
    PodRefused,
    QueueObserved,
    RefusalCode,
    Shape,
    Share,
)

Taken = Callable[[Shape, Iterable[Share], NodeState], Amounts]


def _cards_allowed(
    state: State, queue: QueueObserved, pods: Iterable[PodState]
) -> tuple[list[str], int]:
    """Return the models that the queue limits and the pods accept, and the sum of those limits."""
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


def _least(shape: Shape) -> Counter[Amount]:
    least = Counter(at_least(shape))
    for ask in shape.asks:
        if not ask.init and not ask.cap_memory:
            least[DEVICE_MEMORY, ask.family] += ask.count * (ask.memory_mib or 0)
    return least


_QUEUE_FIELDS: Final = (
    "queue parent weight priority open capability cards deserved cards_deserved guarantee"
    " cards_guarantee reclaimable fifo safe_s"
)


def queue_answers(state: State, names: Iterable[str]) -> tuple[QueueAnswer, ...]:
    """Return these queues with what their pods use; the cost is a scan of all live pods.

    The pods of a queue include those of the queues below it."""
    queues = [state.queues[name] for name in names]
    pods = {each.queue: list[PodState]() for each in queues}
    paths = dict[str, tuple[str, ...]]()
    for pod in state.pods.values() if queues else ():
        name = queue_of(state, pod)
        if name not in paths:
            paths[name] = path_in(state.queues, name)
        for each in paths[name]:
            if each in pods:
                pods[each].append(pod)
    known = amounts_by_name(dialect_config(state.configuration))
    counted = Queues(state)
    divides = counted.lends or counted.past.memory is not None
    return tuple(
        QueueAnswer(
            **fields_of(each, _QUEUE_FIELDS),
            above=tuple(
                name for name in path_in(state.queues, each.queue)[:0:-1] if name in state.queues
            ),
            parts=queue_parts(counted, each.queue) if divides else (),
            past_use=past_use_of(counted, each.queue),
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
    """Return these quotas with what their pods use; the cost is a scan of all live pods."""
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
    """Return, for each device resource in `hard`, the amount that it limits, and its unit.

    Other resources are left out."""
    found = {}
    for name in hard:
        resource = name
        for prefix in OF_CLAIMS:
            resource = resource.removeprefix(prefix)
        if resource in known:
            found[name] = known[resource]
    return found


def held_by(state: State, pods: Iterable[PodState], taken: Taken) -> Counter[Amount]:
    """Return the total that the placed pods use; `taken` computes the usage of one pod."""
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
    """Return how much of each limit is in use, rounded up to whole units."""
    return {name: -(-held.get(amount, 0) // unit) for name, (amount, unit) in counted.items()}


# Nodes a list may check for pods that can never fit: 20 shapes on 1,000 nodes, each about 10 ms
LISTED_LOOKS: Final = 20_000

# Equal for pods whose refusals have the same explanation
Alike = tuple[bytes, int, tuple[tuple[RefusalCode, int], ...], tuple[NearMiss, ...], bool]


SORTS_WEIGHED: Final = 16  # shapes of a gang for which an upper bound is computed
_CORDONED: Final = RefusalCode.NODE_CORDONED


class Explainer:
    """Explains refusals in one unchanged state, and caches results that several pods share."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.room = Room(state)
        self.once = self.room.once
        self._explained: dict[Alike, Explained] = {}
        self._looks = 0

    @cached_property
    def _amounts(self) -> Mapping[str, tuple[Amount, int]]:
        return amounts_by_name(dialect_config(self.state.configuration))

    def explained(self, pod: PodState, refused: PodRefused, *, brief: bool = False) -> Explained:
        """Return the refusal with the nearest nodes that could run the pod.

        If no node could, return what each node lacks when empty. `brief` is for lists: once this
        explainer has searched `LISTED_LOOKS` nodes for all pods together, it searches no more."""
        found = self._found(pod, refused, brief=brief)
        return found._replace(shape=self.wishes(pod))

    def wishes(self, pod: PodState) -> Shape | None:
        """Return the refused pod's shape; None if its gang has pending pods of several shapes."""
        name = pod.submitted.group
        if not name:
            return pod.submitted.shape
        group = self.state.groups.get(name)
        if group is None:
            return None
        pending = (each for each in group.pods.values() if not each.placement)
        key = f"alike {name}", b""
        alike = self.once(key, lambda: len({each.shape_key for each in pending}) <= 1)
        return pod.submitted.shape if alike else None

    def _found(self, pod: PodState, refused: PodRefused, *, brief: bool) -> Explained:
        if refused.queue or refused.quota:
            limit = self.never_within(pod, refused)
            if not limit and self.wishes(pod) is not None:
                # Name the device model whose queue limit is too small.
                key = f"card/{self._limit_key(pod, refused)}/{refused.gang}/{pod.submitted.group}"
                queue = self.once(
                    (key, pod.shape_key), lambda: self._on_its_card(pod, refused).queue
                )
                refused = structs.replace(refused, queue=queue)
            return Explained(structs.replace(refused, nearest=()), never=False, limit=limit)
        if refused.gang:
            short, too_few = refused.gang, None
            present = any(each.present for each in self.state.nodes.values())
            if short.present >= short.needed and present:
                # A shortage if the gang would not fit on an empty fleet; None if it may fit.
                group = pod.submitted.group
                too_few = self.once(
                    (f"never {group}", b""), lambda: self._too_few_places(group, short)
                )
            if too_few or brief or self._looks >= LISTED_LOOKS:
                return Explained(refused, never=False, limit=too_few)
            self._looks += len(self.state.nodes)
            refused, own = self._beside_own(pod, refused)
            return Explained(refused, never=False, own=own)
        if refused.volume or not refused.nodes:
            return Explained(refused, never=False)
        reasons = tuple(refused.reasons.items())
        sort = (pod.shape_key, refused.nodes, reasons, refused.nearest, brief)
        if sort not in self._explained:
            if brief and self._looks >= LISTED_LOOKS:
                near = self.room.possible(pod, refused)
                return Explained(structs.replace(refused, nearest=near), never=False)
            self._looks += len(self.state.nodes)
            of_nodes, never = self.room.in_context(pod, without_gone(refused), brief=brief)
            self._explained[sort] = Explained(of_nodes, never=never)
        found = self._explained[sort]
        return found._replace(refused=structs.replace(found.refused, pod=refused.pod))

    def _limit_key(self, pod: PodState, refused: PodRefused) -> str:
        if refused.queue is not None:
            return f"queue/{queue_of(self.state, pod)}/{refused.queue.resource}"
        resource = refused.quota.resource if refused.quota is not None else ""
        return f"quota/{pod.submitted.namespace}/{resource}"

    def holders(self, pod: PodState, refused: PodRefused) -> list[PodState]:
        """Return the pods that use what the refusal's limit counts, highest usage first.

        If no pod uses any of it, return all pods under the limit."""
        key = f"holders/{self._limit_key(pod, refused)}"
        return self.once((key, b""), lambda: self._holders(pod, refused))

    def _holders(self, pod: PodState, refused: PodRefused) -> list[PodState]:
        state, known = self.state, self._amounts
        if refused.queue is not None:
            whose = queue_of(self.state, pod)
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
            each.uid: used(counted, held_by(state, [each], taken)).get(resource, 0)
            for each in placed
        }
        if any(held.values()):
            placed = [each for each in placed if held[each.uid]]
        return sorted(placed, key=lambda each: (-held[each.uid], natural(each.full_name)))

    def never_within(self, pod: PodState, refused: PodRefused) -> BeyondLimit | None:
        """Return the limit that refused the pod, if the pod exceeds it even without other pods."""
        state, submitted = self.state, pod.submitted
        group = state.groups.get(submitted.group)
        whole = group if group is not None and group.observed and group.together else None
        sort = pod.shape_key if whole is None else b""  # a gang counts as a whole for each pod
        whose = f"{submitted.group}/{submitted.namespace}/{queue_of(self.state, pod)}"
        about = f"within/{whose}/{refused.queue is not None}/{refused.quota is not None}"
        return self.once((about, sort), lambda: self._smallest_limit(pod, refused, whole))

    def _smallest_limit(
        self, pod: PodState, refused: PodRefused, gang: GroupState | None
    ) -> BeyondLimit | None:
        state, known, together = self.state, self._amounts, gang is not None
        if refused.queue is not None and not refused.queue.resource:
            return None  # the queue is closed, and may be opened again
        if gang is None:
            much = _least(pod.submitted.shape)
        else:
            shapes = [_least(each.submitted.shape) for each in gang.pods.values()]
            much = Counter[Amount]()
            for amount in set().union(*shapes):  # its smallest requests, of whichever pods
                much[amount] = sum(sorted(each[amount] for each in shapes)[: gang.min_available])
        queue = state.queues.get(queue_of(self.state, pod)) if refused.queue is not None else None
        quotas = state.quotas.get(pod.submitted.namespace, {}) if refused.quota is not None else {}
        limits: list[tuple[str, str, Mapping[str, int], Mapping[str, tuple[Amount, int]]]] = []
        if queue is not None:
            of_queue = {name: known.get(name, ((EXTENDED, name), 1)) for name in queue.capability}
            limits.append((queue.queue, "", queue.capability, of_queue))
        limits += [
            ("", each.quota, each.hard, counted_devices(known, each.hard))
            for each in quotas.values()
        ]
        for in_queue, in_quota, most, counted in limits:
            for name, needed in sorted(used(counted, much).items()):
                if needed > most[name]:
                    return BeyondLimit(in_queue, in_quota, name, most[name], needed, together)
        if queue is not None and queue.cards:
            needed = sum(count for (what, *_), count in much.items() if what == SHARES)
            pods = [pod] if gang is None else gang.pods.values()
            cards, most_cards = _cards_allowed(state, queue, pods)
            if needed > most_cards:
                of = " and ".join(cards) or (refused.queue.resource if refused.queue else "")
                return BeyondLimit(queue.queue, "", of, most_cards, needed, together)
        return None

    def _on_its_card(self, pod: PodState, refused: PodRefused) -> PodRefused:
        state = self.state
        short, queue = refused.queue, state.queues.get(queue_of(self.state, pod))
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
            if queue_of(self.state, each) == queue.queue and each.placement is not None
            and not (fitting and each.submitted.group == pod.submitted.group)
        )  # fmt: skip
        held = sum(
            type_matches(cards[0].partition("/")[0], model) and count
            for model, count in Counter(model for _, model in _held(state, others)).items()
        )
        left = max(most - held - fitting * short.needed, 0)
        if left >= short.needed:
            return refused
        return structs.replace(
            refused, queue=structs.replace(short, resource=cards[0], available=left)
        )

    def _too_few_places(self, group: str, found: GangShortage) -> TooFewPlaces | None:
        sorts: dict[bytes, list[PodState]] = {}
        gang = self.state.groups.get(group)
        for each in gang.pods.values() if gang is not None else ():
            sorts.setdefault(each.shape_key, []).append(each)
        if not 0 < len(sorts) <= SORTS_WEIGHED:
            return None
        places: dict[bytes, int] = {}
        for key, alike in sorts.items():
            most = self.once(("most", key), partial(self.room.most, alike[0].submitted.shape))
            places[key] = min(len(alike), most)
        most = sum(places.values())
        if most >= found.needed:
            return None
        none = [alike[0].full_name for key, alike in sorts.items() if not places[key]]
        return TooFewPlaces(found.needed, most, tuple(sorted(none, key=natural)) if most else ())

    def _beside_own(self, pod: PodState, refused: PodRefused) -> tuple[PodRefused, int]:
        """Return the refusal without nodes that the gang's other pods need, and their number."""
        found, shape = refused.gang, pod.submitted.shape
        if found is None or found.present < found.needed or shape.pods != PodConstraints():
            return refused, 0
        if found.level:  # only nodes of one domain count
            return refused, 0
        if self.wishes(pod) is None:
            return refused, 0
        about = f"places/{pod.submitted.group}/{pod.refused_revision}"
        own, lifted = self.once((about, b""), lambda: self._own_places(pod, refused, found))
        near = [miss for miss in refused.nearest if miss.node not in own]
        if own and len(near) < NEAREST_KEPT:
            there = {miss.node for miss in near}
            more = self.room.nearest_nodes(shape) or ()
            near += [miss for miss in more if miss.node not in there]
        if lifted:
            near = [miss for miss in near if miss.node != lifted]
            near.insert(0, NearMiss(node=lifted, device="", code=_CORDONED, needed=1, available=0))
        return structs.replace(refused, nearest=tuple(near[:NEAREST_KEPT])), len(own)

    def _own_places(
        self, pod: PodState, refused: PodRefused, found: GangShortage
    ) -> tuple[set[str], str]:
        """Return the nodes that the gang's other pods can use, and a node to uncordon.

        The node is "" if removing cordons would not make enough room for the gang."""
        shape, room, nodes = pod.submitted.shape, self.room, self.state.nodes.values()
        own = {
            each.name for each in nodes if room.holds(shape, each) and not room.miss(shape, each)
        }
        if len(own) > found.fitting:
            own = set()  # places that did not exist at the decision
        closed = room.cordoned(_CORDONED) if _CORDONED in refused.reasons else ()
        lifted = [
            name for name, node in islice(closed, NODES_WEIGHED)
            if room.holds(shape, node) and room.fits_uncordoned(shape, node, _CORDONED)
        ]  # fmt: skip
        return own, min(lifted, key=natural) if len(lifted) >= found.needed - found.fitting else ""
