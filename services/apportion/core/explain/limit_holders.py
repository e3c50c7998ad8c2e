"""Queues and quotas: usage, its pods, and limits that are too small for a pod.

Amounts have the unit of the limit's event: CPU in thousandths, memory in MiB. Invariant: without
queues and quotas this costs nothing."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import structs

from apportion.core.answers.reads import QueueAnswer, QuotaAnswer, fields_of
from apportion.core.devices.catalogue import type_matches
from apportion.core.explain.empty_capacity import Room
from apportion.core.explain.text.natural import natural
from apportion.core.ledger.state import NodeState, PodState, State, queue_of
from apportion.core.placement.feasibility import refused_kind
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
from apportion_schemas import Device, PodRefused, QueueObserved, Shape, Share

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

    If none does, as with limits by card model or on no device, the placed pods within the limit."""
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
    """Return the refusal's limit if it is too small even without other pods.

    None if that depends on which devices are chosen beyond their models."""
    submitted = pod.submitted
    group = state.groups.get(submitted.group)
    together = group is not None and group.observed is not None and group.together
    sort = b"" if together else pod.shape_key  # a gang is counted as a whole for each of its pods
    whose = f"{submitted.group} {submitted.namespace} {queue_of(state, pod)}"
    limits = f"{refused.queue is not None} {refused.quota is not None}"
    return room.once((f"within {whose} {limits}", sort), lambda: _never_within(state, pod, refused))


def of_its_card(room: Room, state: State, pod: PodState, refused: PodRefused) -> PodRefused:
    """Return the refusal with the card model of the queue's limit that is short.

    The engine may have named a card last that the limit does not list."""
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
    """Return the limit's card models that suit a pod, and an upper bound of their total."""
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
    """Return what a pod of this shape uses at least."""
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
    """Return how device resources among the names of a quota are counted."""
    found = {}
    for name in hard:
        resource = name
        for prefix in OF_CLAIMS:
            resource = resource.removeprefix(prefix)
        if resource in known:
            found[name] = known[resource]
    return found


def held_by(state: State, pods: Iterable[PodState], taken: Taken) -> Counter[Amount]:
    """Return the sum over all placed pods; `taken` computes the amounts of a pod."""
    held: Counter[Amount] = Counter()
    for pod in pods:
        if pod.placement is not None:
            node = state.nodes[pod.placement.node]
            held.update(taken(pod.submitted.shape, pod.placement.shares, node))
    return held


def _held(state: State, pods: Iterable[PodState]) -> Iterator[tuple[str, str]]:
    """Yield device and model of each share of these pods."""
    for pod in pods:
        if pod.placement is not None:
            by_id = state.nodes[pod.placement.node].by_id
            for share in pod.placement.shares:
                yield share.device, by_id[share.device].device.model


def used(counted: Mapping[str, tuple[Amount, int]], held: Amounts) -> dict[str, int]:
    """Return the usage by name, rounded up to whole units, as limits are compared."""
    return {name: -(-held.get(amount, 0) // unit) for name, (amount, unit) in counted.items()}
