"""Describe each event in one line, for `tail` and every log of the ledger.

Pods and nodes are marked as names, so that clients can link them. Invariant: every event of the
catalogue has a line (a test checks them all)."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Any, Final, NamedTuple

from msgspec import structs

import apportion_schemas as schemas
from apportion.core.answers.reads import Part, joined
from apportion.core.bounded import remember
from apportion.core.devices.catalogue import FAMILIES, PERCENT
from apportion.core.explain.text import words
from apportion.core.explain.text.words import LISTED, device_words, listed

NPU: Final = "NPU-"  # begins the id of an NPU
NPU_UNIT: Final = "AI core"
# HAMi-core copies the limit at `cuInit`, so a running process keeps the old one
CORES_LATER = "the new cores limit applies to processes started from now on"


NAMES_MAX = 100_000
SHAPES_MAX = 4_096  # pods whose requests are remembered, because a decision usually follows soon


class Line(NamedTuple):
    """An event as a line of text."""

    parts: tuple[str | Part, ...]
    own: int = 0  # how many of the first parts name its pod
    clauses: tuple[str, ...] = ()  # joined by semicolons

    @property
    def sentence(self) -> str:
        """Return the whole line as text, as in `default/a placed on node-1: GPU-1a2b3c4d …`."""
        return joined(self.parts) + "; ".join(self.clauses)


Pod = tuple[str | Part, ...]  # how a line names its pod: by name, or by uid if no event named it


class Teller:
    """Describes events in ledger order.

    Most events identify a pod only by uid, so the names of up to `NAMES_MAX` pods are remembered.
    """

    def __init__(self, find: Callable[[str], str] | None = None) -> None:
        self._names: dict[str, str] = {}
        self._newest: dict[str, str] = {}
        self._shapes: dict[str, tuple[schemas.Shape, bool]] = {}  # and whether it is in a gang
        self._find = find

    def line(self, data: Any) -> str:
        """Return an event as text, as in `default/a placed on node-1: …`."""
        return self.parts(data).sentence

    def parts(self, data: Any) -> Line:
        """Return an event as a line of text in which names are marked."""
        match data:
            case schemas.PodSubmitted():
                self._remember(data.uid, f"{data.namespace}/{data.name}")
                self._keep(data)
            case schemas.PodRejected():
                self._remember(data.uid, f"{data.namespace}/{data.name}")
            case schemas.PodAdopted():
                self._keep(data.submitted)
                self._remember(data.pod, f"{data.submitted.namespace}/{data.submitted.name}")
            case (
                schemas.PodPlaced()
                | schemas.PodRefused()
                | schemas.PodEvicted()
                | schemas.PodResized()
                | schemas.ResizeRefused()
            ):
                self._remember(data.pod, f"{data.namespace}/{data.name}")
        uid = getattr(data, "uid", "") or getattr(data, "pod", "")
        name = self.name_of(uid)
        pod: Pod = (f"pod {uid}",) if uid else ()
        if name:
            namespace, _, own = name.partition("/")
            pod = (Part(name=own, namespace=namespace),)
        if isinstance(data, schemas.PodGone):
            earlier = self._newest.get(name, uid) != uid
            said = (": ", "the previous pod ended") if earlier else (" ", "ended")
            return _about(pod, *said, *_because(data.reason))
        shape, in_gang = self._shapes.get(uid, (None, False))
        families = families_of(shape.asks) if shape is not None else {}
        if isinstance(data, schemas.PodRefused):
            # A gang's refusal may be about another pod of it.
            causes = words.event_causes(data, None if in_gang else shape)
            return _about(pod, " is pending: ", causes.lead, clauses=causes.clauses)
        if isinstance(data, schemas.PodResized):
            clauses = (shares_words(data.shares, families), CORES_LATER)
            return _about(pod, " ", "resized on ", _on(data.node), ": ", clauses=clauses)
        return _filled(data, pod, families)

    def name_of(self, uid: str) -> str:
        """Return the `namespace/name` of the pod with this uid; empty if it is unknown."""
        found = self._names.get(uid)
        if found is None and self._find is not None:
            found = self._find(uid)
        return found or ""

    def _keep(self, pod: schemas.PodSubmitted) -> None:
        remember(self._shapes, pod.uid, (pod.shape, bool(pod.group)), most=SHAPES_MAX)

    def _remember(self, uid: str, name: str) -> None:
        if uid not in self._names:
            self._newest[name] = uid
        self._names[uid] = name
        if len(self._names) > NAMES_MAX:
            oldest = next(iter(self._names))
            name = self._names.pop(oldest)
            if self._newest.get(name) == oldest:
                del self._newest[name]


def share_words(share: schemas.Share, family: str = "") -> str:
    """Return a share as text, as in `GPU-1a2b3c4d 3,000 MiB 50 %`.

    Without a `family`, the cores are those of an NVIDIA GPU or an NPU."""
    return f"{device_words(share.device)} {_piece(share, family)}"


def families_of(asks: Iterable[schemas.Ask]) -> dict[str, str]:
    """Return the family of the devices that each container requests."""
    return {ask.container: ask.family for ask in asks}


def shares_words(shares: Iterable[schemas.Share], families: Mapping[str, str] = {}) -> str:
    """Return a pod's shares, equal ones combined, as in `GPU-1+GPU-2 5 MiB each`.

    `families` has the family of each container's devices."""
    devices: dict[str, list[str]] = {}
    for share in shares:
        piece = _piece(share, families.get(share.container, ""))
        devices.setdefault(piece, []).append(device_words(share.device))
    held = []
    for piece, names in devices.items():
        more = f" and {len(names) - LISTED} more:" if len(names) > LISTED else ""
        each = " each" if len(names) > 1 else ""
        held.append(f"{'+'.join(names[:LISTED])}{more} {piece}{each}")
    return listed(held) or "no device"


def _piece(share: schemas.Share, family: str) -> str:
    if share.instance is not None:
        return f"{share.instance.profile}@{share.instance.start}"
    if share.template:
        return share.template
    cores = f" {cores_words(share.cores, family, share.device)}" if share.cores else ""
    return f"{share.memory_mib:,} MiB{cores}"


def cores_words(cores: int, family: str, device: str = "") -> str:
    """Return an amount of cores in the unit of the family, as in `30 %` or `24 compute units`.

    Without a `family`, the device's id decides between an NVIDIA GPU and an NPU."""
    known = FAMILIES.get(family)
    unit = known.unit if known else NPU_UNIT if device.startswith(NPU) else PERCENT
    return f"{cores} %" if unit == PERCENT else words.many(cores, unit)


def added_up(asks: Iterable[schemas.Ask]) -> list[schemas.Ask]:
    """Return the asks, with equal ones of a container as one ask, as its manifest has them."""
    return [structs.replace(ask, count=ask.count * times) for ask, times in Counter(asks).items()]


def ask_words(ask: schemas.Ask) -> str:
    """Return an ask as text, as in `2 x nvidia 3,000 MiB 50 %` or `1 x nvidia whole`."""
    said = f"{ask.count} x {ask.family}"
    if ask.whole:
        return f"{said} whole"
    if ask.profile:
        said += f" {ask.profile}"
    elif ask.memory_mib is not None:
        said += f" {ask.memory_mib:,} MiB"
    elif ask.memory_percent is not None:
        said += f" {ask.memory_percent} % memory"
    else:
        said += " all memory"
    return f"{said} {ask.cores} % cores" if ask.cores else said


def room_made(node: str, leaving: list[str]) -> str:
    """Return which pods must end before the pod can run, as in `it will run on n1 once …`."""
    left = "has left" if len(leaving) == 1 else "have left"
    return f"it will run on {node} once {listed(leaving)} {left}"


def limit_name(limit: schemas.QueueObserved | schemas.QuotaObserved) -> str:
    """Return the name of a queue or quota, as users know it."""
    if isinstance(limit, schemas.QueueObserved):
        return f"queue {limit.queue}"
    return quota_name(limit.namespace, limit.quota)


def quota_name(namespace: str, quota: str) -> str:
    """Return the name of a quota, as users know it."""
    return f"quota {namespace}/{quota}"


def _queue(data: schemas.QueueObserved) -> str:
    said = f"queue {data.queue}" + (f" below {data.parent}" if data.parent else "")
    said += f": weight {data.weight}" + (f", priority {data.priority}" if data.priority else "")
    said += "" if data.open else ", closed"
    said += "" if data.reclaimable else ", not reclaimable"
    said += ", fifo" if data.fifo else ""
    said += f", pods reclaimable after running for {data.safe_s:,} s" if data.safe_s else ""
    for what, amounts, cards in (
        ("guarantee", data.guarantee, data.cards_guarantee),
        ("deserved", data.deserved, data.cards_deserved),
        ("capability", data.capability, {}),
    ):
        much = [
            f"{words.of_resource(name, most)} ({name})" for name, most in sorted(amounts.items())
        ]
        much += [f"{most:,} {model}" for model, most in sorted(cards.items())]
        said += f"; {what} {listed(much)}" if much else ""
    if data.cards:
        most = [f"{most:,} {model}" for model, most in sorted(data.cards.items())]
        said += f"; devices: at most {listed(most)}"
    return said


def rejection_words(rejected: schemas.PodRejected) -> str:
    """Return why a pod's manifest cannot be read, as in `spec.nodeName: 'n1' …: remove it`."""
    return f"{rejected.field}: {rejected.value} {rejected.problem}: {rejected.fix}"


def _about(pod: Pod, says: str, *more: str | Part, clauses: tuple[str, ...] = ()) -> Line:
    return Line((*pod, says, *(part for part in more if part)), len(pod) + 1, clauses)


def _on(node: str) -> Part:
    return Part(name=node)


def _said(text: str) -> Part:
    return Part(name=text, quoted=True)


def difference_words(data: schemas.DifferenceFound) -> str:
    """Return the difference that an audit found, as in `default/a: the ledger has …`."""
    if data.kind == "overtaken":
        name, node = data.name, data.cluster
        return f"{name} names Apportion's scheduler, but another scheduler bound it to {node}"
    said = (("the ledger has", data.ledger), ("the cluster has", data.cluster))
    return f"{data.name}: " + ", ".join(f"{who} {what or 'nothing'}" for who, what in said)


def policy_words(policy: schemas.PolicyChanged) -> str:
    """Return the placement policy, as in `nodes price, devices price`."""
    weights, of = "", policy.node_weights
    if of is not None:
        weights = f" (CPU {of.cpu}, memory {of.memory}, devices {of.devices})"
    return f"nodes {policy.node_policy}{weights}, devices {policy.device_policy}"


def breach_words(data: schemas.ShareBreached) -> str:
    """Return how a share was exceeded, as in `container main set its limit of GPU-1a2b to …`."""
    device, granted = device_words(data.device), f"{data.memory_mib:,} MiB"
    used = f"{data.memory_found_mib:,} MiB"
    whose = f"container {data.container}"
    if data.code == "raised":
        granted += f" and {data.cores} %" if data.cores != data.cores_found else ""
        used += f" and {data.cores_found} %" if data.cores != data.cores_found else ""
        return f"{whose} raised its limit on {device} to {used}; the agent restored {granted}"
    if data.code == "removed":
        return f"{whose} removed its region file for {device}; the agent restored it with {granted}"
    if data.code == "zeroed":
        return (
            f"{whose} uses {used} of {device}, far more than its region file counts; "
            f"its share is {granted}"
        )
    return f"{whose} uses {used} of {device} and exceeds its share of {granted}"


def _because(reason: str) -> Pod:
    return (": ", _said(reason)) if reason else ()


def _submitted(data: schemas.PodSubmitted) -> str:
    asks = ", ".join((listed([*map(ask_words, added_up(data.shape.asks))]) or "no device",
                      *words.devices(data.shape)))  # fmt: skip
    gang = f", gang {data.group}" if data.group else ""
    return f"{asks} ({data.dialect}{gang})"


def _registered(data: schemas.DevicesRegistered) -> Pod:
    system = words.SYSTEMS.get(data.plugin, "")
    if data.problem:
        said = f": Apportion cannot read the devices that {system}'s plugin registers: "
        return (said, _said(data.problem))
    if not data.plugin:
        return (" no longer has devices of another system's plugin",)
    return (f": {system}'s device plugin registers {_models(data.devices)}",)


def _models(devices: Sequence[schemas.Device]) -> str:
    counts = Counter(device.model for device in devices)
    return listed([f"{count} x {model}" for model, count in counts.items()]) or "no devices"


def _changed(data: schemas.PodChanged) -> str:
    waits = f"; scheduling gates {listed(list(data.gates))}" if data.gates else ""
    ends = "; it is being deleted" if data.terminating else ""
    size = f"{data.cpu_milli / 1000:g} CPU, {data.memory_mib} MiB"
    return f"{size}, {_labels(data.labels) or 'no labels'}{waits}{ends}"


def _labels(labels: Mapping[str, str]) -> str:
    return listed([f"{key}={value}" for key, value in sorted(labels.items())])


def _usage(data: schemas.UsageRecorded) -> Pod:
    seconds = max(1, data.seconds)
    used = sum(share.memory_mib_seconds for share in data.shares) / seconds / 1024
    held = sum(share.memory_mib * share.seconds for share in data.shares) / seconds / 1024
    without = sorted({each.command for each in data.unshared})
    said = f": used {used:,.1f} of {held:,.1f} GiB allocated, over {seconds / 60:.0f} min"
    return said, *(("; processes without a share: ", _said(listed(without))) if without else ())


# Formats of fields: a string is joined with the text before it, a part is kept separate
_FORMATS: dict[str, Callable[[Any], str | Part | Pod]] = {
    "": str,
    "node": _on,
    "said": _said,
    "because": _because,
    "count": lambda shapes: str(len(shapes)),
    "pods": lambda count: words.many(count, "pod"),
    "devices": lambda ids: listed([device_words(each) for each in ids]),
    "models": _models,
    "simulated": lambda simulated: " (simulated)" if simulated else "",
    "by": lambda evidence: f" (by {evidence})" if evidence else "",
    "unread": lambda pods: f", {pods} of them without known devices" if pods else "",
    "silent": lambda s: f" has not reported for {s} s" if s > 1 else " is stopping",
    "ready": lambda ready: "ready" if ready else "not ready",
    "closed": lambda unschedulable: ", cordoned in Kubernetes" if unschedulable else "",
    "labels": lambda labels: _labels(labels) or "none except kubernetes.io/metadata.name",
    "amounts": lambda hard: listed([f"{name} {most:,}" for name, most in sorted(hard.items())]),
    "claim": words.VOLUME_CLAIMS.__getitem__,
    "container": lambda container: f" for container {container}" if container else "",
    "final": lambda final: "permanently" if final else "and is retried",
    "health": lambda event: (
        " recovered" if event.healthy else (" failed: ", _said(event.reason or "no reason given"))
    ),
    "registered": _registered,
    "usage": _usage,
    "breach": breach_words,
    "submitted": _submitted,
    "changed": _changed,
    "rejection": lambda event: _said(rejection_words(event)),
    "difference": difference_words,
    "queue": _queue,
    "evicted_for": words.evicted_for,
    "wanted": lambda asked: " and ".join(
        f"{much:,}{unit}"
        for much, unit in ((asked.memory_mib, " MiB"), (asked.cores, " %"))
        if much is not None
    ),
    "resize_refused": words.resize_refused,
    "reserved": words.reserved,
    # A user's own cordon needs no second name.
    "lifted": lambda event: (
        ("their own cordon",) if event.of == event.by else ("the cordon by ", _said(event.of))
    ),
    "policy": policy_words,
}

_LINES: dict[type, str] = {
    schemas.NodeReported: "{node:node} reports {devices:models}{simulated:simulated}",
    schemas.DeviceHealthChanged: "device {device} of {node:node}{:health}",
    schemas.UsageRecorded: "node {node:node}{:usage}",
    schemas.ReportRefused: "report of node {node:node} refused ({cause}): {message:said}",
    schemas.SharesAllocated: "{pod} |allocated on {node:node}: {devices:devices}",
    schemas.AllocationFailed: "{pod}: |allocation failed on {node:node}: {message:said}",
    schemas.ShareBreached: "{pod} |on {node:node}: {:breach}",
    schemas.PodSubmitted: "{pod} submitted: |{:submitted}",
    schemas.PodChanged: "{pod} |changed: {:changed}",
    schemas.PodRejected: "{pod} rejected: |{:rejection}",
    schemas.PodAdopted: "{pod} adopted |on {node:node}: {shares}{evidence:by}",
    schemas.DifferenceFound: "difference ({kind}): {:difference}",
    schemas.LedgerRebuilt: (
        "ledger rebuilt by {by:said} from {cluster:said}: {pods} bound pods{unread:unread}"
        "{reason:because}"
    ),
    schemas.FormatEnabled: "format {format}@{version} enabled by {by:said}{reason:because}",
    schemas.RevisionSetAside: "revision {revision} set aside by {by:said}{reason:because}",
    schemas.NodeObserved: "node {node:node} is {ready:ready}{unschedulable:closed}",
    schemas.DevicesRegistered: "node {node:node}{:registered}",
    schemas.NodeGone: "node {node:node} left the cluster",
    schemas.NodeSilent: "the agent of node {node:node}{grace_s:silent}",
    schemas.NodeHeard: "the agent of node {node:node} reports again",
    schemas.PodGroupObserved: "gang {group} needs {min_available:pods} to start",
    schemas.PodGroupGone: "the PodGroup of gang {group} was deleted",
    schemas.QueueObserved: "{:queue}",
    schemas.QuotaObserved: "quota {namespace}/{quota}: {hard:amounts}",
    schemas.NamespaceObserved: "namespace {namespace} has labels: {labels:labels}",
    schemas.NamespaceGone: "namespace {namespace} was deleted, or lost its last label",
    schemas.VolumeClaimObserved: "claim {namespace}/{claim} {state:claim}",
    schemas.VolumeClaimGone: "claim {namespace}/{claim} is no longer mounted",
    schemas.QuotaGone: "quota {namespace}/{quota} was deleted",
    schemas.PodPlaced: "{pod} placed |on {node:node}: {shares}",
    schemas.PlacementVoided: "{pod}: |placement on {node:node} voided: {reason:said}",
    schemas.PodEvicted: "{pod} (priority {priority}) |evicted from {node:node}{:evicted_for}",
    schemas.ResizeAsked: (
        "{by:said} requests {:wanted} for {pod}{container:container}{reason:because}"
    ),
    schemas.ResizeRefused: "{pod} |not resized: {:resize_refused}",
    schemas.BudgetObserved: "disruption budget {namespace}/{budget} allows evicting {allowed:pods}",
    schemas.BudgetGone: "disruption budget {namespace}/{budget} was deleted",
    schemas.PodBound: "{pod} bound |to {node:node}",
    schemas.BindFailed: "{pod}: |binding to {node:node} failed {final:final}: {message:said}",
    schemas.DeviceCordoned: "device {device} cordoned by {by:said}: {reason:said}",
    schemas.DeviceUncordoned: "device {device} uncordoned by {by:said}{reason:because}",
    schemas.NodeCordoned: "node {node:node} cordoned by {by:said}: {reason:said}",
    schemas.NodeUncordoned: "node {node:node} uncordoned by {by:said}{reason:because}",
    schemas.DeviceCordonLifted: "device {device}: {by:said} removed {:lifted}{reason:because}",
    schemas.NodeCordonLifted: "node {node:node}: {by:said} removed {:lifted}{reason:because}",
    schemas.PolicyChanged: "policy changed by {by:said}: {:policy}{reason:because}",
    schemas.ConfigurationChanged: "configuration changed by {by:said}{reason:because}",
    schemas.LimitsChecked: "limits of {kind} {name} checked for the decisions in this batch",
    schemas.NodesReserved: "{:reserved}",
    schemas.PricesLearnt: "prices learnt from {pods} pods, {shapes:count} distinct requests",
}
"""The line of each event: `{field:format}`, or `{:format}` for the whole event.

`{pod}` is the name of the pod; the text before `|` contains it and repeats the event's type.
Foreign text must always be a field, because braces in a template are interpreted."""


_PARSED = {event: list(Formatter().parse(template)) for event, template in _LINES.items()}


def _filled(data: Any, pod: Pod, families: Mapping[str, str]) -> Line:
    parts: list[str | Part] = []
    text, own = "", 0
    for literal, field, how, _ in _PARSED[type(data)]:
        before, bar, after = literal.partition("|")
        text += before
        if bar:
            parts.append(text)
            own, text = len(parts), after
        if field is None:
            break
        if field == "shares":
            said: str | Part | Pod = shares_words(data.shares, families)
        else:
            said = pod if field == "pod" else _FORMATS[how or ""](getattr(data, field, data))
        if isinstance(said, tuple | Part):
            parts += [text] if text else []
            parts += said if isinstance(said, tuple) else (said,)
            text = ""
        else:
            text += str(said)
    return Line((*parts, text) if text else tuple(parts), own)
