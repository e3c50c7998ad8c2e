"""Events in one line each: what `tail` and every log of the ledger show a person.

A line is made of parts, in which names of pods and nodes are told apart from words, so that a
client can make links of them. Invariant: every event of the catalogue has a line (a test walks over
all of them).
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from apportion.core.answers.reads import Part, joined
from apportion.core.explain.text import constraint_text, words
from apportion.core.explain.text.words import device_words
from apportion_schemas import (
    AllocationFailed,
    Ask,
    BindFailed,
    BudgetGone,
    BudgetObserved,
    ConfigurationChanged,
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceHealthChanged,
    DeviceUncordoned,
    DifferenceFound,
    FormatEnabled,
    LedgerRebuilt,
    NamespaceGone,
    NamespaceObserved,
    NodeCordoned,
    NodeCordonLifted,
    NodeGone,
    NodeHeard,
    NodeObserved,
    NodeReported,
    NodeSilent,
    NodeUncordoned,
    NodeWeights,
    PlacementVoided,
    PodAdopted,
    PodBound,
    PodChanged,
    PodEvicted,
    PodGone,
    PodGroupGone,
    PodGroupObserved,
    PodPlaced,
    PodRefused,
    PodRejected,
    PodResized,
    PodSubmitted,
    PolicyChanged,
    PricesLearnt,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
    ReportRefused,
    ResizeAsked,
    ResizeRefused,
    RevisionSetAside,
    Shape,
    Share,
    ShareBreached,
    SharesAllocated,
    UsageRecorded,
    VolumeClaimGone,
    VolumeClaimObserved,
)

CORES_LATER = "new cores hold for processes that start from now on"
"""HAMi-core copies the limit at `cuInit`, so a process that runs keeps the old one."""
LISTED = 4
"""How many of several things a line names before it only counts them."""


NAMES_MAX = 100_000
SHAPES_MAX = 4_096
"""Of so many pods it is remembered what they ask for: a refusal follows soon."""


class Line(NamedTuple):
    """One event: its sentence is `parts`, then `clauses` with semicolons between them.

    `own`: so many parts at the front name the pod that it is about, and say what its type says.
    """

    parts: tuple[str | Part, ...]
    own: int = 0
    clauses: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The whole line, as in `default/a placed on node-1: GPU-1a2b3c4d …`."""
        return joined(self.parts) + "; ".join(self.clauses)


Pod = tuple[str | Part, ...]
"""What a line calls its pod: its name, or its uid where no event named it."""


class Teller:
    """Tells events one after the other, and remembers the names of the pods that it was told of.

    Most events name a pod by its uid alone; whoever was told of its submission or placement before
    hears its name instead. It remembers the newest `NAMES_MAX` names, and of others asks `find`,
    which says the name of a uid, or the empty text. A pod that goes after another one was given its
    name, as where a drain submitted it anew, is `the one before`.
    """

    def __init__(self, find: Callable[[str], str] | None = None) -> None:
        self._names: dict[str, str] = {}
        self._newest: dict[str, str] = {}
        self._shapes: dict[str, Shape] = {}
        self._find = find

    def line(self, data: Any) -> str:
        """One event's payload in words, as in `default/a placed on node-1: GPU-1a2b3c4d …`."""
        return self.parts(data).sentence

    def parts(self, data: Any) -> Line:
        """The same with its names told apart."""
        match data:
            case PodSubmitted():
                self._remember(data.uid, f"{data.namespace}/{data.name}")
                if not data.group:  # a gang's refusal is of some pod of it, perhaps another one
                    self._shapes[data.uid] = data.shape
                if len(self._shapes) > SHAPES_MAX:
                    del self._shapes[next(iter(self._shapes))]
            case PodRejected():
                self._remember(data.uid, f"{data.namespace}/{data.name}")
            case PodAdopted():
                self._remember(data.pod, f"{data.submitted.namespace}/{data.submitted.name}")
            case PodPlaced() | PodRefused() | PodEvicted() | PodResized() | ResizeRefused():
                self._remember(data.pod, f"{data.namespace}/{data.name}")
        uid = getattr(data, "uid", "") or getattr(data, "pod", "")
        name = self.name_of(uid)
        pod: Pod = (f"pod {uid}",) if uid else ()
        if name:
            namespace, _, own = name.partition("/")
            pod = (Part(name=own, namespace=namespace),)
        if isinstance(data, PodGone):
            return _gone(data, pod, earlier=self._newest.get(name, uid) != uid)
        if isinstance(data, PodRefused):
            causes = words.event_causes(data, self._shapes.get(data.pod))
            return _about(pod, " waits: ", causes.lead, clauses=causes.clauses)
        line = _LINES[type(data)](data, pod)
        if isinstance(line, Line):
            return line
        return Line((line,) if isinstance(line, str) else line)

    def name_of(self, uid: str) -> str:
        """What the pod of this uid is called, as `namespace/name`; empty where nobody said."""
        found = self._names.get(uid)
        if found is None and self._find is not None:
            found = self._find(uid)
        return found or ""

    def _remember(self, uid: str, name: str) -> None:
        if uid not in self._names:
            self._newest[name] = uid
        self._names[uid] = name
        if len(self._names) > NAMES_MAX:
            oldest = next(iter(self._names))
            name = self._names.pop(oldest)
            if self._newest.get(name) == oldest:
                del self._newest[name]


def share_words(share: Share) -> str:
    """What a container holds, as in `GPU-1a2b3c4d 3,000 MiB 50 %` or `GPU-1a2b3c4d 1g.5gb@0`."""
    return f"{device_words(share.device)} {_piece(share)}"


def shares_words(shares: Iterable[Share]) -> str:
    """What a pod holds; equal shares of several devices are said once: `GPU-1+GPU-2 5 MiB each`."""
    devices: dict[str, list[str]] = {}
    for share in shares:
        devices.setdefault(_piece(share), []).append(device_words(share.device))
    held = [
        f"{_joined(names)} {piece}" + (" each" if len(names) > 1 else "")
        for piece, names in devices.items()
    ]
    return listed(held) or "no device"


def _piece(share: Share) -> str:
    if share.instance is not None:
        return f"{share.instance.profile}@{share.instance.start}"
    if share.template:
        return share.template
    of_npu = share.device.startswith("NPU-")  # whose AI cores are counted: 8 are all of them
    cores = words.many(share.cores, "core") if of_npu else f"{share.cores} %"
    return f"{share.memory_mib:,} MiB" + (f" {cores}" if share.cores else "")


def _joined(names: list[str]) -> str:
    more = len(names) - LISTED
    return "+".join(names[:LISTED]) + (f" and {more} more:" if more > 0 else "")


def ask_words(ask: Ask) -> str:
    """What a container wants, as in `2 x nvidia 3,000 MiB 50 %` or `1 x nvidia whole`."""
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
    """For a pod that waits until those have left, behind `room`."""
    return f"is made for it on {node}, where it goes once these have left: {listed(leaving)}"


def listed(things: list[str], most: int = LISTED) -> str:
    """The first few of several, and how many more there are."""
    more = len(things) - most
    return ", ".join(things[:most]) + (f" and {more:,} more" if more > 0 else "")


def limit_name(limit: QueueObserved | QuotaObserved) -> str:
    """How people are told of it."""
    if isinstance(limit, QueueObserved):
        return f"queue {limit.queue}"
    return quota_name(limit.namespace, limit.quota)


def quota_name(namespace: str, quota: str) -> str:
    """The same of one that has left."""
    return f"quota {namespace}/{quota}"


def _queue(data: QueueObserved) -> str:
    said = f"queue {data.queue}: weight {data.weight}" + ("" if data.open else ", closed")
    limits = [
        f"{constraint_text.of_resource(resource, most)} of {resource}"
        for resource, most in sorted(data.capability.items())
    ]
    if limits:
        said += f", at most {listed(limits)}"
    if data.cards:
        cards = [f"{most:,} of {model}" for model, most in sorted(data.cards.items())]
        said += f"; cards: at most {listed(cards)}"
    return said


def rejection_words(rejected: PodRejected) -> str:
    """Why a pod cannot be read, as in `spec.nodeName: 'n1' has been placed already: remove it`."""
    return f"{rejected.field}: {rejected.value} {rejected.problem}: {rejected.fix}"


def _about(pod: Pod, says: str, *more: str | Part, clauses: tuple[str, ...] = ()) -> Line:
    """A line that begins with its pod, and says first what its type says."""
    return Line((*pod, says, *(part for part in more if part)), len(pod) + 1, clauses)


def _on(node: str) -> Part:
    return Part(name=node)


def _said(text: str) -> Part:
    """What a person, a driver or a program wrote."""
    return Part(name=text, quoted=True)


def _gone(data: PodGone, pod: Pod, *, earlier: bool) -> Line:
    because = _because(data.reason)
    if earlier:
        return _about(pod, ": ", "the one before is gone", *because)
    return _about(pod, " ", "is gone", *because)


def _submitted(data: PodSubmitted, pod: Pod) -> Line:
    asks = ", ".join((listed([ask_words(ask) for ask in data.shape.asks]) or "no device",
                      *constraint_text.devices(data.shape)))  # fmt: skip
    gang = f", gang {data.group}" if data.group else ""
    return _about(pod, " submitted: ", f"{asks} ({data.dialect}{gang})")


def _changed(data: PodChanged, pod: Pod) -> Line:
    waits = f"; it waits for {listed(list(data.gates))}" if data.gates else ""
    labels = listed([f"{key}={value}" for key, value in sorted(data.labels.items())]) or "no label"
    ends = "; it is being deleted" if data.terminating else ""
    size = f"{data.cpu_milli / 1000:g} CPU, {data.memory_mib} MiB"
    return _about(pod, " ", f"changed: {size}, {labels}{waits}{ends}")


def _placed(data: PodPlaced, pod: Pod) -> Line:
    return _about(pod, " placed ", "on ", _on(data.node), f": {shares_words(data.shares)}")


def _adopted(data: PodAdopted, pod: Pod) -> Line:
    source = f" (by {data.evidence})" if data.evidence else ""
    held = shares_words(data.shares)
    return _about(pod, " adopted ", "on ", _on(data.node), f": {held}{source}")


def difference_words(data: DifferenceFound) -> str:
    """How cluster and ledger differ, as in `default/a: the ledger has …, the cluster has …`."""
    said = (("the ledger has", data.ledger), ("the cluster has", data.cluster))
    return f"{data.name}: " + ", ".join(f"{who} {what or 'nothing'}" for who, what in said)


def _rebuilt(data: LedgerRebuilt) -> Pod:
    unread = f", {data.unread} of which do not tell their devices" if data.unread else ""
    pods = f"{data.pods} bound pods{unread}"
    by, cluster = _said(data.by), _said(data.cluster)
    return "ledger rebuilt by ", by, " from ", cluster, f": {pods}", *_because(data.reason)


def _reported(data: NodeReported) -> Pod:
    models: dict[str, int] = {}
    for device in data.devices:
        models[device.model] = models.get(device.model, 0) + 1
    held = listed([f"{count} x {model}" for model, count in models.items()]) or "no devices"
    return _on(data.node), f" reports {held}" + (" (simulated)" if data.simulated else "")


def _health(data: DeviceHealthChanged) -> Pod:
    of = f"device {data.device} of ", _on(data.node)
    if data.healthy:
        return *of, " recovered"
    return *of, " failed: ", _said(data.reason or "no reason given")


def _observed(data: NodeObserved) -> Pod:
    ready = "ready" if data.ready else "not ready"
    closed = " and unschedulable" if data.unschedulable else ""
    return "node ", _on(data.node), f" is {ready}{closed}"


def _resize_asked(data: ResizeAsked, pod: Pod) -> Pod:
    wanted = [f"{data.memory_mib:,} MiB"] if data.memory_mib is not None else []
    wanted += [f"{data.cores} %"] if data.cores is not None else []
    whose = f" for container {data.container}" if data.container else ""
    wants = f" wants {' and '.join(wanted)} for "
    return _said(data.by), wants, *pod, *((whose,) if whose else ()), *_because(data.reason)


def _whose(of: str, by: str) -> Pod:
    """Whose word `by` lifts: his own has no need of his name again."""
    return ("a cordon of their own",) if of == by else ("what ", _said(of), " said")


def _bind_failed(data: BindFailed, pod: Pod) -> Line:
    final = "for good" if data.final else "and is tried again"
    said = f" failed {final}: ", _said(data.message)
    return _about(pod, ": ", "binding to ", _on(data.node), *said)


def _weighed(weights: NodeWeights | None) -> str:
    """The weights of a node's resources, where they are set."""
    if weights is None:
        return ""
    return f" (CPU {weights.cpu}, memory {weights.memory}, devices {weights.devices})"


def policy_words(policy: PolicyChanged) -> str:
    """How nodes and devices are preferred, as in `nodes price, devices price`."""
    weights = _weighed(policy.node_weights)
    return f"nodes {policy.node_policy}{weights}, devices {policy.device_policy}"


def _because(reason: str) -> Pod:
    return (": ", _said(reason)) if reason else ()


def breach_words(data: ShareBreached) -> str:
    """What the agent found, as in `container main raised its limit of GPU-1a2b to 9,000 MiB …`."""
    device, granted = device_words(data.device), f"{data.memory_mib:,} MiB"
    used = f"{data.memory_found_mib:,} MiB"
    whose = f"container {data.container}"
    if data.code == "raised":
        granted += f" and {data.cores} %" if data.cores != data.cores_found else ""
        used += f" and {data.cores_found} %" if data.cores != data.cores_found else ""
        return f"{whose} set its limit of {device} to {used}; the agent restored {granted}"
    if data.code == "removed":
        return f"{whose} removed its region for {device}; the agent made it again with {granted}"
    if data.code == "zeroed":
        return (
            f"{whose} uses {used} of {device}, of which its region counts far less; "
            f"its share is {granted}"
        )
    return f"{whose} uses {used} of {device} and is not held to its share of {granted}"


def _usage(data: UsageRecorded) -> Pod:
    """How much of its shares a node used, and what used it without one."""
    seconds = max(1, data.seconds)
    used = sum(share.memory_mib_seconds for share in data.shares) / seconds / 1024
    held = sum(share.memory_mib * share.seconds for share in data.shares) / seconds / 1024
    without = sorted({each.command for each in data.unshared})
    said = f": {used:,.1f} of {held:,.1f} GiB in shares used in {seconds / 60:.0f} min"
    unshared = ("; without a share: ", _said(listed(without))) if without else ()
    return "node ", _on(data.node), said, *unshared


_LINES: dict[type, Callable[[Any, Pod], str | Pod | Line]] = {
    NodeReported: lambda e, _: _reported(e),
    DeviceHealthChanged: lambda e, _: _health(e),
    UsageRecorded: lambda e, _: _usage(e),
    ReportRefused: lambda e, _: (
        "report of node ",
        _on(e.node),
        f" refused ({e.cause}): ",
        _said(e.message),
    ),
    SharesAllocated: lambda e, pod: _about(
        pod,
        " ",
        "holds its shares on ",
        _on(e.node),
        f": {listed([device_words(d) for d in e.devices])}",
    ),
    AllocationFailed: lambda e, pod: _about(
        pod, ": ", _on(e.node), " could not hand out shares: ", _said(e.message)
    ),
    ShareBreached: lambda e, pod: _about(pod, " ", "on ", _on(e.node), f": {breach_words(e)}"),
    PodSubmitted: _submitted,
    PodChanged: _changed,
    PodRejected: lambda e, pod: _about(pod, " rejected: ", _said(rejection_words(e))),
    PodAdopted: _adopted,
    DifferenceFound: lambda e, _: f"difference ({e.kind}): {difference_words(e)}",
    LedgerRebuilt: lambda e, _: _rebuilt(e),
    FormatEnabled: lambda e, _: (
        f"format {e.format}@{e.version} enabled by ",
        _said(e.by),
        *_because(e.reason),
    ),
    RevisionSetAside: lambda e, _: (
        f"revision {e.revision} set aside by ",
        _said(e.by),
        *_because(e.reason),
    ),
    NodeObserved: lambda e, _: _observed(e),
    NodeGone: lambda e, _: ("node ", _on(e.node), " left the cluster"),
    NodeSilent: lambda e, _: (
        "the agent of node ",
        _on(e.node),
        f" was not heard for {e.grace_s} s" if e.grace_s > 1 else " is about to stop",
    ),
    NodeHeard: lambda e, _: ("the agent of node ", _on(e.node), " is heard again"),
    PodGroupObserved: lambda e, _: (
        f"gang {e.group} needs {words.many(e.min_available, 'pod')} together"
    ),
    PodGroupGone: lambda e, _: f"the declaration of gang {e.group} left the cluster",
    QueueObserved: lambda e, _: _queue(e),
    QuotaObserved: lambda e, _: (
        f"quota {e.quota} of namespace {e.namespace}: "
        + listed([f"{most:,} of {resource}" for resource, most in sorted(e.hard.items())])
    ),
    NamespaceObserved: lambda e, _: (
        f"namespace {e.namespace} has the labels "
        + (listed([f"{key}={value}" for key, value in sorted(e.labels.items())]) or "of its name")
    ),
    NamespaceGone: lambda e, _: f"namespace {e.namespace} has no labels of its own any more",
    VolumeClaimObserved: lambda e, _: (
        f"claim {e.namespace}/{e.claim}: {constraint_text.VOLUME_CLAIMS[e.state]}"
    ),
    VolumeClaimGone: lambda e, _: f"no pod mounts claim {e.namespace}/{e.claim} any more",
    QuotaGone: lambda e, _: f"quota {e.quota} of namespace {e.namespace} left the cluster",
    PodPlaced: _placed,
    PlacementVoided: lambda e, pod: _about(
        pod, ": ", "placement on ", _on(e.node), " voided: ", _said(e.reason)
    ),
    PodEvicted: lambda e, pod: _about(
        pod, f" (priority {e.priority}) ", "is evicted from ", _on(e.node), words.evicted_for(e)
    ),
    ResizeAsked: _resize_asked,
    PodResized: lambda e, pod: _about(
        pod, " ", "resized on ", _on(e.node), ": ", clauses=(shares_words(e.shares), CORES_LATER)
    ),
    ResizeRefused: lambda e, pod: _about(pod, " ", f"is not resized: {words.resize_refused(e)}"),
    BudgetObserved: lambda e, _: (
        f"disruption budget {e.namespace}/{e.budget} lets {words.many(e.allowed, 'pod')} be evicted"
    ),
    BudgetGone: lambda e, _: f"disruption budget {e.namespace}/{e.budget} left the cluster",
    PodBound: lambda e, pod: _about(pod, " bound ", "to ", _on(e.node)),
    BindFailed: _bind_failed,
    DeviceCordoned: lambda e, _: (
        f"device {e.device} cordoned by ",
        _said(e.by),
        ": ",
        _said(e.reason),
    ),
    DeviceUncordoned: lambda e, _: (
        f"device {e.device} uncordoned by ",
        _said(e.by),
        *_because(e.reason),
    ),
    NodeCordoned: lambda e, _: (
        "node ",
        _on(e.node),
        " cordoned by ",
        _said(e.by),
        ": ",
        _said(e.reason),
    ),
    DeviceCordonLifted: lambda e, _: (
        f"device {e.device}: ",
        _said(e.by),
        " lifts ",
        *_whose(e.of, e.by),
        *_because(e.reason),
    ),
    NodeCordonLifted: lambda e, _: (
        "node ",
        _on(e.node),
        ": ",
        _said(e.by),
        " lifts ",
        *_whose(e.of, e.by),
        *_because(e.reason),
    ),
    NodeUncordoned: lambda e, _: (
        "node ",
        _on(e.node),
        " uncordoned by ",
        _said(e.by),
        *_because(e.reason),
    ),
    PolicyChanged: lambda e, _: (
        "policy changed by ",
        _said(e.by),
        f": {policy_words(e)}",
        *_because(e.reason),
    ),
    ConfigurationChanged: lambda e, _: (
        "configuration changed by ",
        _said(e.by),
        *_because(e.reason),
    ),
    PricesLearnt: lambda e, _: f"prices learnt from {e.pods} pods of {len(e.shapes)} sorts",
}
