"""Describe refusals: the only module that turns their codes and amounts into sentences.

Invariant: a text contains no number that is not in the refusal."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from apportion.core.answers.reads import Part, WhyIdle, joined
from apportion.core.devices.catalogue import NVIDIA
from apportion.core.ledger.handlers.idle import KEEP
from apportion.core.names import natural
from apportion.core.placement.feasibility.causes import (
    LIMIT_CODES,
    BeyondLimit,
    Explained,
    TooFewPlaces,
    cause_of,
    ranked,
    without_gone,
)  # fmt: skip
from apportion.core.placement.feasibility.descriptors import Unit
from apportion.core.workloads.dialects.amounts import AMOUNT_MAX
from apportion.core.workloads.dialects.dialect import GPU_MILLI
from apportion.core.workloads.pods.gangs import KUBERNETES, KUBERNETES_VERSIONS, api_of
from apportion_schemas import (
    DeviceConstraints,
    GangShortage,
    NearMiss,
    NodesReserved,
    PodEvicted,
    PodRefused,
    QueueShortage,
    QuotaShortage,
    RefusalCode,
    ResizeRefused,
    Shape,
    VolumeShortage,
)
from apportion_schemas.configuration import IdleConfiguration

_C = RefusalCode
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))
SYSTEMS: Final[Mapping[str, str]] = {
    "hami": "HAMi", "volcano": "Volcano", "vendor": "the vendor"
}  # fmt: skip
VOLUME_CLAIMS: Final = {
    "bound": "is bound",
    "first-consumer": "is bound once its pod is placed (WaitForFirstConsumer)",
    "unbound": "is not bound yet",
    "unavailable": "has no matching volume, and none can be provisioned",
    "lost": "has lost its volume",
    "missing": "does not exist",
    "deleting": "is being deleted",
    "in-use": "is in use by another pod (ReadWriteOncePod)",
}


def of_refusal(refused: PodRefused) -> list[str]:
    """Return one text for each volume, queue or quota that blocks the pod on every node."""
    limits = [volume(refused.volume)] if refused.volume is not None else []
    limits += [queue(refused.queue)] if refused.queue is not None else []
    return limits + ([quota(refused.quota)] if refused.quota is not None else [])


def volume(shortage: VolumeShortage) -> str:
    """Return what the claim lacks, as in `its PersistentVolumeClaim data is not bound yet`."""
    return f"its PersistentVolumeClaim {shortage.claim} {VOLUME_CLAIMS[shortage.state]}"


def queue(shortage: QueueShortage) -> str:
    """Return what the queue lacks, as in `its queue ml is short of A100: 1 left, 2 needed`."""
    if shortage.behind:
        return f"its queue {shortage.queue} is fifo, and {shortage.behind} is ahead of it"
    if not shortage.resource:
        return f"its queue {shortage.queue} is closed"
    needed, available = (
        of_resource(shortage.resource, much) for much in (shortage.needed, shortage.available)
    )
    said = f"its queue {shortage.queue} is short of {shortage.resource}: {available} left, "
    return f"{said}{needed} needed{'; other queues are guaranteed the rest' * shortage.reserved}"


def quota(shortage: QuotaShortage) -> str:
    """Return what the quota lacks, as in `its ResourceQuota gpus is short of …`."""
    return (
        f"its ResourceQuota {shortage.quota} is short of {shortage.resource}: "
        f"{shortage.used:,} of {shortage.most:,} used, {shortage.needed:,} more needed"
    )


def of_resource(resource: str, value: int) -> str:
    """Format an amount of this resource with its unit."""
    unit = {"cpu": " CPU", "memory": " MiB", GPU_MILLI: " GPUs"}.get(resource, "")
    return number_of_resource(resource, value) + unit * (value < AMOUNT_MAX)


def number_of_resource(resource: str, value: int) -> str:
    """Format an amount of this resource without its unit."""
    if value >= AMOUNT_MAX:
        return "unlimited"
    return f"{value / 1000:,g}" if resource in ("cpu", GPU_MILLI) else f"{value:,}"


LABELS_CHARS: Final = 200
DEVICES_NAMED: Final = 8
KINDS_NAMED: Final = 8
LISTED = 4  # things that a sentence names before it only counts them
_OPERATORS: Final = {
    "In": "in", "NotIn": "not in", "Exists": "exists", "DoesNotExist": "does not exist",
    "Gt": ">", "Lt": "<",
}  # fmt: skip


def labels(shape: Shape) -> str:
    """Return the node labels that the pod requires, as in `zone=b, disk in (ssd, nvme)`."""
    node = shape.node
    if len(node.required) > 1:
        return ""
    said = [f"{key}={value}" for key, value in sorted(node.selector.items())]
    for expression in node.required[0] if node.required else ():
        values = ", ".join(expression.values)
        operator = _OPERATORS[expression.operator]
        said.append(f"{expression.key} {operator}" + (f" ({values})" if values else ""))
    whole = ", ".join(said)
    return whole if len(whole) <= LABELS_CHARS else f"{whole[:LABELS_CHARS]}…"


def types(shape: Shape) -> str:
    """Return the device types that the pod accepts, as in `H100 or A100`; empty for any."""
    only, but = shape.devices.use_types, shape.devices.nouse_types
    if only and but:
        return f"{' or '.join(only)}, and not {' or '.join(but)}"
    return " or ".join(only) or (f"other than {' or '.join(but)}" if but else "")


def resources(shape: Shape) -> str:
    """Return the names of the requested extended resources, joined by "or"."""
    return " or ".join(sorted(shape.node.extended))


def modes(shape: Shape) -> str:
    """Return the sharing modes that the pod accepts, as in `mps or mig`; empty for any."""
    if shape.devices.modes:
        return " or ".join(shape.devices.modes)
    return "mig" if any(ask.profile for ask in shape.asks) else ""


def devices(shape: Shape) -> list[str]:
    """Return the pod's device constraints: `type H100`, `mps`, `only device indexes 0 and 2`."""
    wanted, of = shape.devices, types(shape)
    said = [f"type {of}"] if of else []
    said += [" or ".join(wanted.modes)] if wanted.modes else []
    return said + _cards(wanted)


def cards(shape: Shape) -> str:
    """Return which devices the pod accepts, as in `the pod accepts only …`; empty for all."""
    said = " and ".join(_cards(shape.devices))
    return f"the pod accepts {said}" if said else ""


def _cards(wanted: DeviceConstraints) -> list[str]:
    said = [f"only {indexes(wanted)}"] if wanted.indexes else []
    said += [f"only {_all(wanted.use_ids)}"] if wanted.use_ids else []
    return said + ([f"all but {_all(wanted.nouse_ids)}"] if wanted.nouse_ids else [])


def indexes(wanted: DeviceConstraints) -> str:
    """Return the device indexes that the pod accepts, as in `device indexes 0 and 2`."""
    return ("device index " if len(wanted.indexes) == 1 else "device indexes ") + _all(
        map(str, wanted.indexes)
    )


def _all(names: Iterable[str]) -> str:
    known = list(names)
    more = len(known) - DEVICES_NAMED
    if more > 0:
        return f"{', '.join(known[:DEVICES_NAMED])} and {more:,} more"
    return " and ".join(filter(None, (", ".join(known[:-1]), *known[-1:])))


NEVER: Final = "would not fit even on an empty fleet"
NEVER_LISTED: Final = "never fits"
IT_NEVER: Final = f"it {NEVER}: "
IT_NEVER_COULD: Final = "it would not have fit even on an empty fleet: "
DEVICE_CHARS = 12  # `GPU-` and the first eight digits of a UUID
WHOLE_CORES = 100
_OF_CARDS: Final = frozenset((_C.UUID_MISMATCH, _C.INDEX_MISMATCH))
_NAMED: Final[dict[RefusalCode, tuple[str, Callable[[Shape], str]]]] = {
    _C.NODE_LABELS_MISMATCH: ("node labels do not match {}", labels),
    _C.EXTENDED_RESOURCE_INSUFFICIENT: ("not enough of {} on the node", resources),
    _C.TYPE_MISMATCH: ("no device of type {}", types),
    _C.MODE_MISMATCH: ("no device is in sharing mode {}", modes),
    _C.UUID_MISMATCH: ("no matching device: {}", cards),
    _C.INDEX_MISMATCH: ("no matching device: {}", cards),
}
NO_NODES: Final = "the cluster has no nodes"
CAUSES_NAMED = 3  # causes that a sentence names before it counts the rest; tables show all


def device_words(device: str) -> str:
    """Abbreviate a device id for display; commands accept the short form too."""
    return device[:DEVICE_CHARS] if len(device) > DEVICE_CHARS + 4 else device


def phrase(code: RefusalCode, *, never: bool = False) -> str:
    """Return the text of a code, as in `not enough free memory on the device`."""
    known = cause_of(code)
    return (never and known.when_empty) or known.phrase


SEVERAL_ANY_MODE: Final = (
    "request one device per container, or set the annotation nvidia.com/vgpu-mode to mig"
)
PART_ANY_MODE: Final = (
    "add a node whose devices are in a suitable sharing mode, or request whole devices"
)


def cure(
    code: RefusalCode,
    shape: Shape | None = None,
    *,
    node: str = "NODE",
    device: str = "DEVICE",
    never: bool = False,
) -> str:
    """Return what would unblock the pod. `never` leaves out waiting for other pods."""
    if shape is not None and _any_mode(code, shape):
        several = any(ask.count > 1 and ask.family == NVIDIA for ask in shape.asks)
        return SEVERAL_ANY_MODE if several else PART_ANY_MODE
    known = cause_of(code)
    chosen = (never and known.fix_when_empty) or known.fix
    return chosen.format(node=node, device=device)


def amount(code: RefusalCode, value: int) -> str:
    """Format an amount with the unit of this code, as in `3,000 MiB`; empty without a unit."""
    unit = cause_of(code).unit
    if unit is Unit.NOTHING:
        return ""
    if unit is Unit.MILLI_CPU:
        return f"{value / 1000:,g} CPU"
    return f"{value:,} {unit.value[:-1] if value == 1 and unit is not Unit.MIB else unit.value}"


def missing(miss: NearMiss) -> str:
    """Return how much is missing, with its unit; empty for a code without amounts."""
    return amount(miss.code, miss.needed - miss.available) if miss.needed > miss.available else ""


def of_miss(
    miss: NearMiss, shape: Shape | None, kinds: list[str] | None, empty: tuple[int, int] | None
) -> dict[str, str]:
    """Return what the pod needs on a nearly fitting node, what the node has, and the shortage."""
    needed, available = (amount(miss.code, value) for value in (miss.needed, miss.available))
    short = missing(miss)
    if empty is not None:
        needed, available, short = (
            many(count, "device") for count in (*empty, empty[0] - empty[1])
        )
    elif miss.code is _C.CORES_INSUFFICIENT and shape is not None and _coreless(shape):
        needed, available, short = "a free core", "none", ""  # although it requests no cores
    elif kinds is not None and shape is not None and (wanted := _kind_wanted(miss.code, shape)):
        needed, available = wanted, " or ".join(kinds)
        if miss.code is _C.INDEX_MISMATCH:
            available = f"device indexes {listed(kinds, KINDS_NAMED)}"
        elif miss.code is _C.NODE_LABELS_MISMATCH:
            available = ", ".join(kinds) or "none of them"
    return {"needed_words": needed, "available_words": available, "missing": short}


def _coreless(shape: Shape) -> bool:
    return not any(ask.cores for ask in shape.asks)


def _kind_wanted(code: RefusalCode, shape: Shape) -> str:
    match code:
        case _C.TYPE_MISMATCH:
            return types(shape)
        case _C.MODE_MISMATCH:
            return modes(shape)
        case _C.INDEX_MISMATCH if shape.devices.indexes:
            return indexes(shape.devices)
        case _C.NODE_LABELS_MISMATCH:
            return labels(shape)
    return ""


def _any_mode(code: RefusalCode, shape: Shape) -> bool:
    """Return True if a device's sharing mode rules out a pod that names no mode."""
    return code is _C.MODE_MISMATCH and not modes(shape)


def named(code: RefusalCode, shape: Shape | None, *, never: bool = False) -> str:
    """Return the text of a refusal code, with what the pod requires if `shape` is given."""
    if shape is None:
        return phrase(code, never=never)
    if code is _C.CORES_INSUFFICIENT and _coreless(shape):
        return "all cores of the device are in use"
    if _any_mode(code, shape):
        return "no device is in a sharing mode that serves the request"
    said, wanted = _NAMED.get(code, ("", None))
    name = wanted(shape) if wanted is not None else ""
    return said.format(name) if name else phrase(code, never=never)


def wished(code: RefusalCode | None, shape: Shape) -> Hashable:
    """Return the requirement of the pod that this refusal code is about."""
    node, devices = shape.node, shape.devices
    match code:
        case _C.NODE_LABELS_MISMATCH:
            return tuple(sorted(node.selector.items())), node.required
        case _C.EXTENDED_RESOURCE_INSUFFICIENT:
            return tuple(sorted(node.extended))
        case _C.TYPE_MISMATCH:
            return devices.use_types, devices.nouse_types
        case _C.MODE_MISMATCH:
            return devices.modes, any(ask.profile for ask in shape.asks)
        case _C.CORES_INSUFFICIENT:
            return _coreless(shape)
        case None:
            return devices.indexes, devices.use_ids, devices.nouse_ids
    return None


class Causes(NamedTuple):
    """A refusal as one sentence, split into clauses."""

    lead: str
    clauses: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Return the sentence, as in `no node fits: device is cordoned (2 of 3 nodes); …`."""
        return self.lead + "; ".join(self.clauses)


def refusal(
    refused: PodRefused, shape: Shape | None = None, *, short: bool = False, never: bool = False
) -> str:
    """Return the refusal as one sentence."""
    return refusal_causes(refused, shape, short=short, never=never).sentence


def refusal_causes(
    refused: PodRefused, shape: Shape | None = None, *, short: bool = False, never: bool = False
) -> Causes:
    """Return why no node fits: node counts, causes and nearest miss; `short` is for lists."""
    near = joined(nearest(refused.nearest[0], shape)) if refused.nearest and not short else ""
    most = 1 if short else CAUSES_NAMED
    return _causes(refused, shape, near, most=most, never=never)


def event_causes(
    refused: PodRefused, shape: Shape | None = None, *, even_when_empty: bool = False
) -> Causes:
    """Return why no node fits, from the event alone."""
    near = lacks(refused.nearest[0], shape) if refused.nearest else ""
    if near and even_when_empty:
        near += ", too little even when empty"
    return _causes(refused, shape, near, most=CAUSES_NAMED, never=False)


def _causes(
    refused: PodRefused, shape: Shape | None, near: str, *, most: int, never: bool
) -> Causes:
    # A limit is the only reason, except for one on a card model that some nodes do not have.
    if refused.gang is not None and refused.gang.present < refused.gang.needed:
        return Causes("", (gang(refused.gang),))
    refused = without_gone(refused)
    reasons = ranked(refused)
    lead, clauses = "", tuple(of_refusal(refused))
    if not clauses:
        lead, clauses = _of_nodes(refused, reasons, shape, most=most, never=never)
        clauses += (near,) if near else ()
    elif _C.QUEUE_CARDS_EXCEEDED in refused.reasons and len(refused.reasons) > 1:
        clauses += (_of_nodes(refused, reasons, shape, most=most, never=never).sentence,)
    if refused.gang is None:
        return Causes(lead, clauses)
    if not refused.reasons:  # no node refuses the pod by itself
        return Causes("", (gang(refused.gang),))
    whom = "one more pod" if shape else "one of its pods"
    return Causes(_of_gang(refused, refused.gang, lead, whom), clauses)


def limit_of(refused: PodRefused) -> str:
    """Return the limit or gang shortage that blocks the pod on every node; may be empty."""
    limits = "; ".join(of_refusal(refused))
    if refused.gang is None:
        return limits
    return _of_gang(refused, refused.gang, limits) if limits else gang(refused.gang)


def _of_gang(
    refused: PodRefused, found: GangShortage, said: str, whom: str = "one more pod"
) -> str:
    """Return how many of the gang's pods fit, and which limit blocks the next one."""
    counted = found.fitting and (refused.queue is not None or refused.quota is not None)
    return f"{gang(found)}; {'with these placed' if counted else f'for {whom}'}, {said}"


def cause(refused: PodRefused, shape: Shape | None = None, *, never: bool = False) -> str:
    """Return the first cause of a refusal, and how many others there are.

    The first is a limit, or what the nearest node lacks. The nearest nodes of the refusal must be
    nodes that could ever run the pod."""
    limits = of_refusal(refused)
    if refused.gang is not None:
        return _of_gang(refused, refused.gang, limits[0]) if limits else gang(refused.gang)
    if limits:
        return limits[0]
    refused = without_gone(refused)
    reasons = ranked(refused)
    for code, count in reasons:
        said = f"{named(code, shape, never=never)} ({_of_all(count, refused)})"
        said += "; ".join(("", *_certain_cards((code,), shape)))
        near = next((miss for miss in refused.nearest if miss.code is code), None)
        if near is not None and code is _C.EXTENDED_RESOURCE_INSUFFICIENT:
            said += f": {near.needed:,} needed, {near.available:,} free"
        more = len(reasons) - 1
        return said + (f"; {many(more, 'more cause')}" if more else "")
    return NO_NODES


def _of_nodes(
    refused: PodRefused, reasons: list[tuple[RefusalCode, int]], shape: Shape | None,
    *, most: int, never: bool,
) -> Causes:  # fmt: skip
    if not refused.nodes:
        return Causes("", (NO_NODES,))
    causes = [
        f"{named(code, shape, never=never)} ({_of_all(count, refused)})" for code, count in reasons
    ]
    if len(causes) > most + 1:
        causes[most:] = [f"{len(causes) - most} more causes"]
    causes += _certain_cards(refused.reasons, shape)
    # "would not fit even on an empty fleet" comes before these causes
    return Causes("" if never else "no node fits: ", tuple(causes))


def _of_all(count: int, refused: PodRefused) -> str:
    return (f"{count:,} of " if count < refused.nodes else "") + nodes(refused.nodes)


def _certain_cards(codes: Iterable[RefusalCode], shape: Shape | None) -> list[str]:
    said = cards(shape) if shape is not None and _OF_CARDS.isdisjoint(codes) else ""
    return [said] if said else []


def nearest(miss: NearMiss, shape: Shape | None) -> tuple[str | Part, ...]:
    """Return which node comes nearest, as in `closest: n1 g0 (15,436 MiB short)`."""
    device = f" {device_words(miss.device)}" if miss.device else ""
    if miss.code is _C.DEVICE_IN_USE:
        needs = _empty_cards(shape)
        lead, rest = f"{needs}{', ' if needs else ''}closest: ", device
    elif miss.code is _C.EXTENDED_RESOURCE_INSUFFICIENT:
        rest = f"{device} (has {miss.available:,} of {miss.needed:,})"
        lead = "closest: "
    elif miss.code is _C.CORES_INSUFFICIENT and miss.needed == 1:
        lead, rest = "closest: ", f"{device} (no free cores)"
    elif short := missing(miss):
        lead, rest = "closest: ", f"{device} ({short} short)"
    else:
        return ()
    return (lead, Part(name=miss.node), rest) if rest else (lead, Part(name=miss.node))


def lacks(miss: NearMiss, shape: Shape | None) -> str:
    """Return what this node lacks for the pod, as in `n1 g0 is 15,436 MiB short`; may be empty."""
    if miss.code is _C.DEVICE_IN_USE:
        needs = _empty_cards(shape)
        return f"{needs}, but {miss.node} has too few" if needs else ""
    if miss.code is _C.EXTENDED_RESOURCE_INSUFFICIENT:
        return f"{_where(miss)} has {miss.available:,} of {miss.needed:,} needed"
    if miss.code is _C.CORES_INSUFFICIENT and miss.needed == 1:
        return f"{_where(miss)} has no free cores"
    short = missing(miss)
    return f"{_where(miss)} is {short} short" if short else ""


def _empty_cards(shape: Shape | None) -> str:
    asks = shape.asks if shape is not None else ()
    alone = sum(ask.count for ask in asks if ask.whole or ask.cores >= WHOLE_CORES)
    if not alone:
        return ""
    noun = "GPU" if all(ask.family == NVIDIA for ask in asks) else "device"
    there = " on one node" if alone > 1 else ""
    return f"needs {many(alone, f'empty {noun}')}{there}"


def undeclared(group: str) -> str:
    """Return a clause for a gang that waits for its PodGroup."""
    said = f"its gang {group} has no PodGroup yet"
    if api_of(group) == KUBERNETES:
        said += f" in {KUBERNETES} {', '.join(KUBERNETES_VERSIONS)} (the supported versions)"
    return said


def _where(miss: NearMiss) -> str:
    return f"{miss.node} {device_words(miss.device)}".rstrip()


def gang(shortage: GangShortage) -> str:
    """Return what the gang lacks: pods that do not exist yet, or nodes with room."""
    if shortage.present < shortage.needed:
        return (
            f"its gang needs {many(shortage.needed, 'pod')} to start, but has {shortage.present:,}"
        )
    said = f"its gang needs to place {many(shortage.needed, 'pod')} together"
    if not shortage.level:
        return f"{said}, but only {shortage.fitting:,} can be placed"
    said += f" in one topology domain ({shortage.level})"
    if shortage.domain:
        return f"{said}, but only {shortage.fitting:,} fit in {shortage.domain}"
    if shortage.fitting:
        return (
            f"{said}, but the nodes of its {many(shortage.fitting, 'placed pod')} lack this label"
        )
    return f"{said}, but no node with this label has room"


def domains(pods: dict[str, int]) -> str:
    """Return as text how many pods of a gang are in each topology domain."""
    named = (f"{many(pods[name], 'pod')} in {name}" for name in sorted(pods, key=natural) if name)
    there = list(named)
    if pods.get(""):
        there.append(f"{many(pods[''], 'pod')} on nodes without this label")
    return listed(there)


def mixed_gang(group: str, models: dict[str, int]) -> str:
    """Return a note that the gang's pods use devices of different models."""
    counts = (f"{many(count, 'pod')} on {model}" for model, count in models.items())
    return f"gang {group} uses different device models: {', '.join(counts)}"


def eviction(evicted: PodEvicted, *, in_vain: bool = False) -> str:
    """Return a sentence about the eviction: its pod, its node, and the pod that needs the room."""
    return (
        f"{evicted.namespace}/{evicted.name} (priority {evicted.priority}) is evicted from "
        f"{evicted.node}{evicted_for(evicted, in_vain=in_vain)}"
    )


def evicted_for(evicted: PodEvicted, *, in_vain: bool = False) -> str:
    """Return the end of the `eviction` sentence: the pod that needs the room, and the budgets."""
    said = f" for {evicted.beneficiary_name} (priority {evicted.beneficiary_priority})"
    if evicted.reason == "reclaimed":
        said = f" for {evicted.beneficiary_name}, because queue {evicted.beneficiary_queue} is "
        said += f"entitled to what queue {evicted.queue} borrows"
    if evicted.reason == "idle":
        said += f", because it did no work for {span(evicted.idle_s)}"
    elif evicted.idle_s:
        said += f", after {span(evicted.idle_s)} without work"
    if in_vain:
        said += ", which has since ended"
    elif evicted.nominated != evicted.node:
        said += f", which will run on {evicted.nominated}"
    if evicted.budgets:
        budgets = "budget" if len(evicted.budgets) == 1 else "budgets"
        said += f"; this exceeds the disruption {budgets} {', '.join(evicted.budgets)}"
    if evicted.notice_s:
        said += f"; it has {evicted.notice_s:,} s of notice"
    return said


def reserved(reserved: NodesReserved) -> str:
    """Return which nodes are reserved for a gang or pod, and when it starts at the latest."""
    if not reserved.name:
        return "the reservation of nodes ended"
    names = sorted({each.node for each in reserved.kept})  # none if they are hidden from a tenant
    nodes = f"nodes {listed(names)} are" if names else "nodes are"
    said = f"{f'node {names[0]} is' if len(names) == 1 else nodes} reserved for {reserved.name}, "
    if not reserved.starts:
        return said + "but it is not known when it can start"
    return said + f"which can start by {reserved.starts}"


def idle(idle: WhyIdle) -> str:
    """Return for how long a pod has been idle, and whether it may be evicted."""
    said = f"It has been idle for {span(idle.seconds)}"
    if idle.evictable:
        said += "; a pending pod of its queue and priority may evict it"
    return said


def idle_notice(policy: IdleConfiguration, *, evictable: bool) -> str:
    """Return the text of the Kubernetes event of an idle pod."""
    said = f"did no work on its devices for at least {policy.after}"
    if policy.below:
        said = f"never used more than {policy.below}% of its devices for at least {policy.after}"
    if policy.action == "reclaim" and evictable:
        said += "; a pending pod of its queue and priority may evict it"
    return f"{said}. To keep it, set the label {'='.join(KEEP)}"


def span(seconds: float) -> str:
    """Return a rounded period, as in `40 s`, `12 min` or `2 h 40 min`."""
    for at, (size, unit) in enumerate(_UNITS):
        if seconds >= size:
            much, rest = divmod(round(seconds), size)
            below = _UNITS[at + 1 :][:1]
            more = [f"{rest // less} {smaller}" for less, smaller in below if rest >= less]
            return " ".join((f"{much:,} {unit}", *more))
    return f"{seconds:.0f} s"


def resize_refused(refused: ResizeRefused) -> str:
    """Return why a pod cannot be resized, and what would help."""
    device, held = device_words(refused.device), ", ".join(refused.containers)
    if refused.queue is not None:
        return queue(refused.queue)
    if refused.quota is not None:
        return quota(refused.quota)
    return {
        "no-device": "it has no device",
        "container-unknown": f"that container has no device; devices are allocated to {held}",
        "container-ambiguous": f"several containers have devices; name one of {held}",
        "mode": f"{device} is in sharing mode {refused.mode}; only shares of NVIDIA GPUs in mode "
        "hami-core can be resized while the pod runs",
        "plugin": "another system's device plugin allocates the devices of its node, and only "
        "Apportion's agent can change a running share",
        "memory-beyond-device": f"{device} has {refused.available:,} MiB in total, but "
        f"{refused.needed:,} MiB are requested",
        "memory": f"{device} has {refused.available:,} MiB free, but {refused.needed:,} MiB more "
        "are needed",
        "cores": f"{device} has {refused.available} % of its cores free, but {refused.needed} % "
        "more are needed",
        "device-gone": f"the agent no longer reports {device}",
        "limit": "it would exceed a limit of its queue or namespace",
    }[refused.code]


def nodes(count: int) -> str:
    """Return `1 node`, or the number with `nodes`."""
    return many(count, "node")


def many(count: int, noun: str) -> str:
    """Return the number with the noun, as in `1 pod` or `2,000 pods`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def listed(things: list[str], most: int = LISTED) -> str:
    """Return the first few of several things as a list, and how many more there are."""
    more = len(things) - most
    return ", ".join(things[:most]) + (f" and {more:,} more" if more > 0 else "")


def refusal_words(explained: Explained, *, short: bool = False) -> str:
    """Return a refusal as one sentence, which says "can never fit" if no node ever could."""
    return explained_causes(explained, short=short).sentence


def explained_causes(
    explained: Explained, *, short: bool = False, lead: str = f"{NEVER}: "
) -> Causes:
    """Return why the pod is refused, as clauses; `lead` marks a pod that can never fit."""
    if limit := limit_words(explained):
        return Causes("", (limit,))
    refused, never = explained.refused, explained.never
    found = refusal_causes(refused, explained.shape, short=short, never=never)
    before = lead if never else whose(refused, explained.shape)
    return Causes(before + found.lead, found.clauses)


def because(explained: Explained, *, short: bool = False) -> str:
    """Return the refusal as one sentence, without a leading "can never fit"."""
    return explained_causes(explained, short=short, lead="").sentence


def cause_words(explained: Explained) -> str:
    """Return the refusal in a few words: the limit, or the first cause."""
    if limit := limit_words(explained):
        return limit
    said = cause(explained.refused, explained.shape, never=explained.never)
    return (
        f"{NEVER_LISTED}: {said}"
        if explained.never
        else whose(explained.refused, explained.shape) + said
    )


def whose(refused: PodRefused, shape: Shape | None) -> str:
    """Return "for one pod of its gang, " if another pod may be the refused one; else empty."""
    return "for one pod of its gang, " if shape is None and refused.gang is None else ""


def reason_parts(explained: Explained) -> tuple[str | Part, ...]:
    """Return the main reason: a limit, the gang, or the first cause and the nearest node."""
    if limit := blocking_limit(explained):
        return (limit,)
    refused, said = explained.refused, because(explained, short=True)
    near = nearest(refused.nearest[0], explained.shape) if refused.nearest else ()
    never = (IT_NEVER,) if explained.never else ()
    return (*never, said, *(("; ", *near) if near else ()))


def blocking_limit(explained: Explained) -> str:
    """Return the limit or gang shortage that blocks the pod on every node; may be empty."""
    return limit_words(explained) or limit_of(explained.refused)


def limit_words(explained: Explained) -> str:
    """Return a sentence about the limit that is too small for the pod; empty if none is."""
    match explained.limit:
        case BeyondLimit(queue, quota, resource, most, needed, together):
            allowed, wanted = (of_resource(resource, of) for of in (most, needed))
            limit = f"its queue {queue}" if queue else f"its ResourceQuota {quota}"
            needs = f"its gang needs {wanted} in total" if together else f"the pod needs {wanted}"
            return f"{limit} caps {resource} at {allowed}, but {needs}"
        case TooFewPlaces(needed, places, none):
            said = (
                f"its gang needs to place {many(needed, 'pod')} together, but only {places:,} "
                "would fit on an empty fleet"
            )
            return said + (f", with no node for {listed(list(none))}" if none else "")
        case PodRefused() as refused:
            return refusal(refused, explained.shape)
    return ""


def texts_of(explained: Explained) -> dict[str, Any]:
    """Return the texts of a refusal, by the names of the `WhyRefused` fields."""
    parts = reason_parts(explained)
    return {
        "limit": blocking_limit(explained),
        "reason": joined(parts),
        "reason_parts": parts,
        "text": because(explained),
    }


def cause_text(explained: Explained, code: RefusalCode) -> str:
    """Return one cause of a refusal: the limit, or what the nodes lack."""
    if code not in LIMIT_CODES:
        return named(code, explained.shape, never=explained.never)
    return limit_words(explained) or next(iter(of_refusal(explained.refused)), "")
