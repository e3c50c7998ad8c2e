"""Find names and amounts in manifests that are probably not what the author meant.

An unknown resource fits only nodes that offer it. An unknown annotation or field has no effect.
Some amounts are clamped, ignored, or larger than any device. Invariant: an unknown name in one of
our domains is reported, any other only if it resembles a known name. Names for which the pod is
refused anyway are not reported, nor fields that a newer API may have."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import msgspec

from apportion.core.devices.catalogue import FAMILIES
from apportion.core.devices.simulating import models
from apportion.core.grants.controls import HIGH, PRIORITY, ends_hold
from apportion.core.names import nearest
from apportion.core.workloads import kube
from apportion.core.workloads.dialects import ManifestError, listing, nvidia, plain
from apportion.core.workloads.dialects import reading as preferences
from apportion.core.workloads.dialects.amounts import AMOUNT_MAX, Container, whole
from apportion.core.workloads.dialects.dialect import DEVICE_MEMORY, GPU_MILLI, PARTIAL_MEMORY
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.dialects.reading import read_pod
from apportion.core.workloads.document import below, entries, part, shown, within
from apportion.core.workloads.kinds.drafts import Manifest
from apportion.core.workloads.kinds.limits import OF_CLAIMS, QUEUE_AMOUNTS, QUOTA
from apportion.core.workloads.kinds.queues import CARDS, KAI_QUEUE, KAI_RESOURCES, VOLCANO_QUEUE
from apportion.core.workloads.lint import ignored_fields
from apportion.core.workloads.pods import gangs, unsupported
from apportion.core.workloads.pods.template import (
    CHECKPOINT,
    NOTICE,
    PREEMPTABLE,
    QUEUE_LABEL,
    QUEUES,
    TASK,
)
from apportion.core.workloads.schedulers import DEFAULT, OURS, Chooser, SchedulerNames
from apportion_schemas.quantities import MEMORY_MIB_MAX, WHOLE

NEAR: Final = 0.8
NEAR_OF_OTHERS: Final = 0.88  # how similar a name of a foreign domain must be to count as a typo
DEPTH_MAX: Final = 32
_OF_THE_NODE: Final = "only nodes that offer it as an extended resource can run the pod"
_UNREAD: Final = f"is not a known resource; {_OF_THE_NODE}"
_UNREAD_MIG: Final = f"is a MIG instance only with migStrategy: mixed; otherwise {_OF_THE_NODE}"
_NO_PROFILE: Final = f"is not a MIG profile of a known GPU model; {_OF_THE_NODE}"
_RIGHT: Final = (
    "pods of other namespaces are not affected unless the node's agent has --priority-namespace"
)
_HELD: Final = (
    "the container stays limited to its share unless the node's agent has --unheld-namespace"
)
_VOLCANO: Final = ".volcano.sh/"
# what a queue limits of nodes, in addition to huge pages and names with a domain
OF_NODES: Final = ("cpu", "memory", "pods", "ephemeral-storage")
_DIVIDED: Final = ("cpu", "memory")  # what queues deserve, in addition to devices

Part = Literal["pod", "container", "resources"]  # a part of a pod whose field names are checked
_PART_NAMES: Final[Mapping[Part, str]] = {
    "pod": "pod spec",
    "container": "container",
    "resources": "container's resources",
}
Kind = Literal["limits", "requests"]
_LESS: Final = "write the amount for one device"
NAME_CHARS_MAX: Final = 63
OWN_NOTES: Final = "metadata.annotations"  # of the document, not of a pod in it
_UNLESS_TAKEN: Final = " unless the webhook takes it over because it requests devices"
DEFAULT_QUEUE: Final = "default"  # the queue of pods that name none; it needs no declaration
_QUEUE_KEYS: Final = frozenset((*QUEUES, QUEUE_LABEL, "queue"))


class Suspect(NamedTuple):
    """A field of a manifest that is probably a mistake (`doubtful`), or that has no effect here.

    `partly`: it has an effect, but perhaps not the one that its author expects."""

    field: str
    why: str
    doubtful: bool = True
    partly: bool = False

    @property
    def said(self) -> str:
        """Return the reason as a complete message."""
        return self.why if self.doubtful or self.partly else f"has no effect: {self.why}"


def suspects(document: object, config: DialectConfig, *, placed: bool = False) -> Iterator[Suspect]:
    """Yield the suspicious names in a document, however deep its pods are nested.

    If `placed`, ignore the annotations that schedulers write on pods."""
    about = part(document)
    if about.get("kind") in (VOLCANO_QUEUE[1], QUOTA[1]):
        yield from _of_limit(about, config)
        return
    if about.get("kind") == "PodGroup":
        yield from of_pod_group(part(about, "spec"))
    for key, at, found in _parts(document, "", 0):
        if key == "annotations":
            yield from _annotations(found, at, placed=placed)
            if at == OWN_NOTES and about.get("kind") != "Pod":
                yield from of_owner(found, at)
            continue
        yield from (Suspect(f"{at}.{field}", why) for field, why in unknown_fields(key, found))
        if key == "container":
            yield from _priority(found, at, config)
            yield from _environment(found, at)
        if key == "resources":
            for kind, amounts in _amounts(found):
                yield from _resources(amounts, f"{at}.{kind}", config)
            for asked, why in doubtful_amounts(found, config):
                yield Suspect(within(f"{at}.{asked.kind}", asked.name), why)
            zero, besides = _zero(found, config)
            if besides:
                why = f"is 0, so no device is requested and {besides} has no effect"
                yield Suspect(f"{at}.{zero}", why)


def _environment(container: Mapping[Any, Any], at: str) -> Iterator[Suspect]:
    for place, each in entries(container, "env"):
        name, value = each.get("name"), each.get("value")
        if isinstance(name, str) and isinstance(value, str) and ends_hold(name, value):
            why = f"with {name}={value}, {_HELD}"
            yield Suspect(f"{at}.env[{place}].value", why, doubtful=False, partly=True)


def ignored(document: Mapping[Any, Any]) -> Iterator[Suspect]:
    """Yield the fields of a document's pods, Volcano Job or PodGroup that have no effect here."""
    parts = [(at, each) for key, at, each in _parts(document, "", 0) if key == "pod"]
    fields = [(at, each, ignored_fields.EXPECTED) for at, each in parts]
    if _VOLCANO in str(document.get("apiVersion")):
        of_group = document.get("kind") == "PodGroup"
        names = ignored_fields.POD_GROUP_FIELDS if of_group else ignored_fields.JOB_FIELDS
        paths = (("spec",), ("spec", "jobTemplate", "spec"))
        fields += [(".".join(keys), part(document, *keys), names) for keys in paths]
    for at, each, why in fields:
        for path, reason in why.items():
            for field, _ in unsupported.places(each, at, path.split(".")):
                yield Suspect(field, reason, doubtful=False)


def of_no_device(document: object, config: DialectConfig) -> Iterator[Suspect]:
    """Yield a container's fields that request 0 devices, if it requests no other devices.

    Some Helm charts write such a request."""
    for key, at, found in _parts(document, "", 0):
        zero, besides = _zero(found, config) if key == "resources" else ("", "")
        if zero and not besides:
            yield Suspect(f"{at}.{zero}", "0 requests no device", doubtful=False)


def of_annotations(found: Mapping[Any, Any], at: str) -> Iterator[Suspect]:
    """Yield each Volcano annotation that has no effect here, or adds the pod to no gang."""
    for key in found:
        if key in ignored_fields.ANNOTATIONS:
            yield Suspect(within(at, key), ignored_fields.ANNOTATIONS[key], doubtful=False)
    in_gang = bool(found.get(gangs.GROUP))
    if gangs.VOLCANO_GROUP in found and not in_gang:
        fix = f"write {gangs.GROUP}: {shown(found[gangs.VOLCANO_GROUP])}"
        said = f"creates no gang (not in Volcano either), so the pod starts alone; {fix}"
        yield Suspect(within(at, gangs.VOLCANO_GROUP), said)
    if gangs.MIN_MEMBER in found:
        why = (
            f"minMember of the PodGroup in {gangs.GROUP} applies instead"
            if in_gang
            else f"it makes no gang; create a PodGroup, and name it in {gangs.GROUP} of the pods"
        )
        yield Suspect(within(at, gangs.MIN_MEMBER), why, doubtful=False)


def of_owner(found: Mapping[Any, Any], at: str) -> Iterator[Suspect]:
    """Yield each annotation that only takes effect on pods, but is on an object that owns pods."""
    for key in (gangs.MODELS, CHECKPOINT, NOTICE):
        if key in found:
            why = "it is read only from pods; move it to the pod template"
            yield Suspect(within(at, key), why, doubtful=False)


def of_queue(document: Mapping[Any, Any]) -> Iterator[Suspect]:
    """Yield the fields and annotations of a Queue of Volcano or KAI that have no effect here."""
    spec, of_kai = part(document, "spec"), document.get("apiVersion") == KAI_QUEUE[0]
    fields = ignored_fields.KAI_QUEUE_FIELDS if of_kai else ignored_fields.QUEUE_FIELDS
    for name, why in fields.items():
        if spec.get(name) not in (None, "", {}, []):
            yield Suspect(f"spec.{name}", f"has no effect: {why}")
    if of_kai:
        resources = part(spec, "resources")
        weight = part(resources, "gpu").get("overQuotaWeight") or 0
        if isinstance(weight, float) and math.isfinite(weight) and weight % 1:
            why = f"is {weight:g} and counts as {math.ceil(weight)}; write whole numbers"
            yield Suspect("spec.resources.gpu.overQuotaWeight", why)
        for name in sorted(KAI_RESOURCES.keys() - {"gpu"}):
            at, found = f"spec.resources.{name}", part(resources, name)
            if not (found.get("quota") or found.get("limit")):
                why = "is 0 or unset, so pods of the queue can request none of it, as in KAI"
                yield Suspect(f"{at}.limit", f"{why}; write -1 for no limit")
            elif (found.get("overQuotaWeight") or 0) != weight:
                why = f"has no effect: the weight of gpu, {shown(weight)}, applies to all resources"
                yield Suspect(f"{at}.overQuotaWeight", why)
    notes = part(document, "metadata", "annotations")
    yield from of_annotations(notes, "metadata.annotations")
    for key in notes:
        if isinstance(key, str) and (hint := _hint(key, CARDS)):
            why = f"is not a known annotation and has no effect{hint}"
            yield Suspect(within("metadata.annotations", key), why)


def of_pod_group(spec: Mapping[Any, Any]) -> Iterator[Suspect]:
    """Yield the disruption mode or the network topology of a PodGroup if it has no effect here.

    A hard topology of Volcano needs a tier. With any mode, the minimum of a gang is evicted
    together, and pods of no gang one by one. The API server writes `single` into every PodGroup
    that has no mode."""
    network = part(spec, "networkTopology")
    tier = network.get("highestTierAllowed"), network.get("highestTierName") or None
    if network and network.get("mode") != "soft" and tier == (None, None):
        why = "set highestTierAllowed or highestTierName, or write mode: soft"
        yield Suspect("spec.networkTopology", f"has no effect: {why}")
    mode = spec.get("disruptionMode")
    together = mode == "PodGroup" or (isinstance(mode, dict) and "all" in mode)  # v1alpha2 has text
    least = part(spec, "schedulingPolicy", "gang").get("minCount", 1)
    if together and (not isinstance(least, int) or least <= 1):
        why = "only gangs are evicted completely; set schedulingPolicy.gang.minCount above 1"
        yield Suspect("spec.disruptionMode", f"has no effect: {why}")


_OF_CLAIMS: Final = ("deviceclass", "cores.deviceclass", "memory.deviceclass")
"""Domains of names in Volcano's Queues that limit claims of a device class."""


def _of_limit(document: Mapping[Any, Any], config: DialectConfig) -> Iterator[Suspect]:
    is_queue = document["kind"] == VOLCANO_QUEUE[1]
    if is_queue:
        yield from of_queue(document)
    before = ("",) if is_queue else ("", *OF_CLAIMS)
    known = frozenset(prefix + name for name in listing.claimed(config) for prefix in before)
    idle = {n: each for n, each in listing.resources(config).items() if each.bound is None}
    if is_queue:
        known |= {GPU_MILLI}
    for path in QUEUE_AMOUNTS if is_queue else ("hard",):
        field = f"spec.{path}"
        for name in part(document, "spec", *path.split(".")):
            # The API server itself enforces a quota of `requests.`.
            if isinstance(name, str) and (bare := name.removeprefix(before[-1])) in idle:
                why = f"has no effect: Apportion counts no {bare}"
                counted = [
                    other for other, each in listing.resources(config).items()
                    if each.bound and each.families == idle[bare].families
                    and _domain(other) == _domain(bare)
                ]  # fmt: skip
                if counted:
                    nearest = max(filter(bare.startswith, counted), key=len, default=counted[0])
                    why = f"{why}; limit {nearest}"
                yield Suspect(within(field, name), why)
            if not isinstance(name, str) or name in known:
                continue
            if is_queue and _domain(name) in _OF_CLAIMS:
                why = "has no effect; limit volcano.sh/vgpu-number, which counts claims, too"
                yield Suspect(within(field, name), why)
                continue
            if "/" in name:
                hint = _hint(name, known)
                is_slip = bool(hint) or _domain(name) in _domains(known)
            else:
                hint = meant(name, OF_NODES, NEAR)
                is_slip = is_queue and name not in OF_NODES and not name.startswith("hugepages-")
            if is_slip:
                said = f"is not a known resource and limits no device{hint}"
                yield Suspect(within(field, name), said)
            elif path in QUEUE_AMOUNTS[1:] and name not in _DIVIDED:
                divided = "queues divide only CPU, memory and devices"
                why = f"has no effect: {divided}; write it in capability"
                yield Suspect(within(field, name), why)


_Part = tuple[Literal["annotations"] | Part, str, Mapping[Any, Any]]


def _parts(value: object, field: str, depth: int) -> Iterator[_Part]:
    if depth > DEPTH_MAX:
        return
    if isinstance(value, list):
        for place, each in enumerate(value):
            yield from _parts(each, f"{field}[{place}]", depth + 1)
        return
    if not isinstance(value, dict):
        return
    if isinstance(value.get("containers"), list):
        yield "pod", field, value
        for kind in ("initContainers", "containers"):
            for place, each in entries(value, kind):
                yield "container", f"{field}.{kind}[{place}]", each
    for key, each in value.items():
        at = f"{field}.{key}" if field else str(key)
        if key in ("annotations", "resources") and isinstance(each, dict):
            yield key, at, each
        else:
            yield from _parts(each, at, depth + 1)


def _amounts(resources: Mapping[Any, Any]) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    for kind in ("limits", "requests"):
        if isinstance(found := resources.get(kind), dict):
            yield kind, found


# The field of an amount of 0 for which a container gets no device, and another name that it uses.
def _zero(resources: Mapping[Any, Any], config: DialectConfig) -> tuple[str, str]:
    claimed, kinds = listing.claimed(config), dict(_amounts(resources))
    asked = [
        (kind, name, str(amount))
        for kind, amounts in kinds.items()
        for name, amount in amounts.items()
        if isinstance(name, str) and name in claimed
    ]
    zeros = [within(kind, name) for kind, name, amount in asked if amount == "0"]
    container = Container("", "", kinds.get("limits", {}), kinds.get("requests", {}))
    try:
        if not zeros or read_pod([container], {}, config=config).asks:
            return "", ""
    except ManifestError:
        return "", ""  # reported by reading the pod
    return zeros[0], next((name for _, name, amount in asked if amount != "0"), "")


def _priority(found: Mapping[Any, Any], at: str, config: DialectConfig) -> Iterator[Suspect]:
    amounts = dict(_amounts(part(found, "resources")))
    container = Container("", "", amounts.get("limits", {}), amounts.get("requests", {}))
    written = {
        f"{at}.env[{place}].value": each.get("value")
        for place, each in entries(found, "env")
        if each.get("name") == PRIORITY
    }
    for name in filter(None, (config.hami.priority, config.volcano_vgpu.priority)):
        if not written and str(container.limits.get(name)) == HIGH:
            field = within(f"{at}.resources.limits", name)
            yield Suspect(field, _RIGHT, doubtful=False, partly=True)
    if not written:
        return
    try:
        pod = read_pod([container], {}, config=config)
    except ManifestError:
        return  # reading the pod refuses it
    for field, value in written.items():
        if all(ask.family != nvidia.FAMILY for ask in pod.asks):
            yield Suspect(
                field, f"{PRIORITY} applies only to a container with a GPU", doubtful=False
            )
        elif value == HIGH:
            why = f"with {PRIORITY}={HIGH}, {_RIGHT}"
            yield Suspect(field, why, doubtful=False, partly=True)
        elif pod.high_priority:
            said = f"sets {PRIORITY}={value}, which overrides the priority in limits; remove one"
            yield Suspect(field, said)
        else:
            said = f"{PRIORITY} matters only if it is {HIGH}"
            yield Suspect(field, said, doubtful=False)


def _annotations(found: Mapping[Any, Any], at: str, *, placed: bool) -> Iterator[Suspect]:
    known = _KNOWN_ANNOTATIONS
    yield from of_annotations(found, at)
    for key in found:
        if (
            not isinstance(key, str)
            or key in known
            or (placed and key.startswith(("apportion.dev/", *listing.WRITES)))
        ):
            continue
        hint = _hint(key, known)
        if hint or _domain(key) in _domains(known):
            yield Suspect(within(at, key), f"is not a known annotation and has no effect{hint}")


def _resources(found: Mapping[Any, Any], at: str, config: DialectConfig) -> Iterator[Suspect]:
    known = listing.claimed(config)
    for key, (other, why) in listing.NEEDS.items():
        if other not in found and found.get(key) not in (None, 0, "0"):
            yield Suspect(within(at, key), why)
    for key in found:
        if not isinstance(key, str) or "/" not in key or key in known:
            continue
        if key in plain.PROFILES:
            model, memory_mib = plain.example(key)
            memory = -(-memory_mib // config.memory_factor)
            fix = f"request as much memory as an instance of {model} has"
            amounts = f"{config.hami.count}: 1 and {config.hami.memory}: {memory}"
            why = f"{_UNREAD_MIG}. Set migStrategy, or {fix}: {amounts}"
            yield Suspect(within(at, key), why)
        elif key.startswith(plain.MIG):
            why = _NO_PROFILE + _hint(key, {*known, *plain.PROFILES})
            yield Suspect(within(at, key), why)
        elif (hint := _hint(key, known)) or _domain(key) in _domains(known):
            yield Suspect(within(at, key), _UNREAD + hint)


def _hint(key: str, known: Collection[str]) -> str:
    if key in known:
        return ""
    cutoff = NEAR if _domain(key) in _domains(frozenset(known)) else NEAR_OF_OTHERS
    return meant(key, known, cutoff)


def _domain(key: str) -> str:
    return key.partition("/")[0] if "/" in key else ""


@lru_cache(maxsize=16)
def _domains(known: frozenset[str]) -> frozenset[str]:
    return frozenset(map(_domain, known)) - {""}


# all annotations that some dialect, a manifest or an ignored-field note knows
_KNOWN_ANNOTATIONS: Final = frozenset(
    (
        *(*listing.RESERVED, *listing.RECOVERS, *ignored_fields.ANNOTATIONS),
        *(preferences.SCORING_WEIGHTS, preferences.NODE_POLICY, preferences.DEVICE_POLICY),
        *(preferences.GROUP_POLICY, gangs.GROUP, gangs.MIN_MEMBER, gangs.VOLCANO_GROUP),
        *(gangs.MODELS, CHECKPOINT, NOTICE),
        *(*QUEUES, unsupported.NUMA_POLICY, PREEMPTABLE, TASK),
        *(gangs.KAI_GROUP, gangs.KAI_SKIPS, "kai.scheduler/batch-min-member"),
        # read by Volcano's agent on the node, with any scheduler
        *("volcano.sh/enable-quota-burst", "volcano.sh/quota-burst-time"),
    )
)


def unknown_fields(of: Part, found: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Yield each unknown field of this part of a pod that resembles a known field, with a hint."""
    known = _KNOWN_FIELDS[of]
    for field in found:
        if isinstance(field, str) and field not in known and (hint := meant(field, known, NEAR)):
            yield field, f"is not a field of a {_PART_NAMES[of]} and has no effect{hint}"


def _read_names(kind: type[msgspec.Struct], *passed_over: Iterable[str]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind)) | {
        path.split(".")[0].removesuffix("[]") for paths in passed_over for path in paths
    }


_KNOWN_FIELDS: Final[Mapping[Part, frozenset[str]]] = {
    "pod": _read_names(
        kube.PodSpec,
        ignored_fields.POD_FIELDS,
        ignored_fields.OTHER_FIELDS,
        (row.path for row in unsupported.POD_SPEC),
    ),
    "container": _read_names(kube.ContainerSpec, ignored_fields.CONTAINER_FIELDS),
    "resources": _read_names(kube.Resources, ("claims",)),
}


class Asked(NamedTuple):
    """The amount of a device resource that a container sets, from its limit or else its request."""

    kind: Kind
    name: str
    value: int


def doubtful_amounts(
    resources: Mapping[Any, Any], config: DialectConfig
) -> Iterator[tuple[Asked, str]]:
    """Yield the amounts in `resources` that are probably mistakes, with the reason."""
    meanings, asked = listing.meanings(config), dict[str, Asked]()
    kinds: tuple[Kind, Kind] = ("limits", "requests")
    for kind in kinds:
        for name, written in part(resources, kind).items():
            if not isinstance(name, str) or name not in meanings or name in asked:
                continue
            with suppress(ManifestError):  # reading the pod refuses it
                asked[name] = Asked(kind, name, whole(written, name, limit=AMOUNT_MAX))
    for each in asked.values():
        if each.value > WHOLE and any(meaning.clamps for meaning in meanings[each.name]):
            why = f"is {each.value} percent of one device and counts as 100, the whole device"
            yield each, f"{why}, as in HAMi; write 0 to 100"
        elif why := _too_much(each, config):
            yield each, why
    for dialect in listing.DIALECTS if asked else ():
        for name, number in dialect.raises.items():
            whole_device = not any(f"{name}-memory" in part(resources, kind) for kind in kinds)
            if whole_device and name in asked and asked[name].value == 1:
                why = f"means {number} devices, which HAMi's plugin refuses without a webhook"
                yield asked[name], f"{why} that writes {number}; write {number}"
        if dialect.idle is None:
            continue
        # If memory is given as an amount and as a percentage, one of the two is ignored.
        idle_name, counting_name, system = dialect.idle(config)
        idle, counting = asked.get(idle_name), asked.get(counting_name)
        if idle and counting and idle.value and counting.value:
            why = f"is {idle.value} and is ignored because {counting.name} is set, as in {system}"
            yield idle, f"{why}; keep one of them"


def _too_much(asked: Asked, config: DialectConfig) -> str:
    resource = listing.resources(config)[asked.name]
    bound = resource.bound
    if bound is None or bound.counts not in (DEVICE_MEMORY, PARTIAL_MEMORY):
        return ""
    sizes = [model.memory_mib for model in models().values() if model.family in resource.families]
    sizes += [FAMILIES[family].printed_mib for family in resource.families]
    mib, most_mib = asked.value * bound.unit, max(sizes, default=0)
    if not most_mib or not most_mib < mib <= MEMORY_MIB_MAX:
        return ""
    of = f" ({asked.value:,} units of {bound.unit} MiB)" if bound.unit > 1 else ""
    said = f"is {mib:,} MiB{of}, but the largest known device has {most_mib:,} MiB"
    if all(meaning.caps for meaning in listing.meanings(config)[asked.name]):
        return f"{said}; it counts as all memory of the allocated GPU, as in Volcano; {_LESS}"
    if bound.unit > 1 and asked.value <= most_mib:
        return f"{said}; write {-(-asked.value // bound.unit)} if you meant MiB"
    return f"{said}; {_LESS}"


def left_elsewhere(document: object, names: SchedulerNames) -> Iterator[Suspect]:
    """Yield each `schedulerName` that names a scheduler other than Apportion."""
    for field, name in _fields(document, ("schedulerName",), skip="metadata"):
        if names.chooser(name) in {Chooser.OTHERS, Chooser.NOBODY}:
            ours = OURS[0] if OURS[0] in names.ours else min(names.ours)
            unless, serve = _UNLESS_TAKEN, ""
            if name != DEFAULT:
                unless, serve = "", ", or add the name to schedulerNames in the configuration"
            yield Suspect(
                field,
                f"{name[:NAME_CHARS_MAX]} is another scheduler; in Kubernetes, Apportion leaves "
                f"the pod to it{unless}. Without Kubernetes, Apportion places it anyway. To use "
                f"Apportion, write {ours}{serve}",
            )


def queues_named(document: object, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield each queue that the manifest's pods or gang name, and the field that names it."""
    queues = {pod.queue for pod in manifest.pods}
    queues |= {group.queue for group in manifest.groups}
    for queue in sorted(queues - {"", DEFAULT_QUEUE}):
        named = (at for at, value in _fields(document, _QUEUE_KEYS) if value == queue)
        yield queue, next(named, "")


def _fields(
    value: object, keys: Collection[str], field: str = "", depth: int = 0, *, skip: str = ""
) -> Iterator[tuple[str, str]]:
    if depth > DEPTH_MAX:
        return
    if isinstance(value, list):
        for place, each in enumerate(value):
            yield from _fields(each, keys, f"{field}[{place}]", depth + 1, skip=skip)
    elif isinstance(value, dict):
        for key, each in value.items():
            if isinstance(each, str):
                if each and key in keys:
                    yield below(field, str(key)), each
            elif isinstance(each, dict | list) and key != skip:
                yield from _fields(each, keys, below(field, str(key)), depth + 1, skip=skip)


def meant(name: str, known: Collection[str], cutoff: float) -> str:
    """Return a hint like `. Did you mean a, b or c?`; empty if no known name is similar."""
    *others, last = nearest(name, known, alike=cutoff) or [""]
    if not last:
        return ""
    return f". Did you mean {', '.join(others)} or {last}?" if others else f". Did you mean {last}?"
