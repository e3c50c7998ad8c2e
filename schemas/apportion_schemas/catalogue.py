"""Which event goes where, who may write it, and what it was before: the one table of the ledger.

Old events stay in the ledger, so a row holds every version of its event. Invariants: one event type
has one writer and one kind of subject, which no version changes; a version that was written once
keeps its fields. The JSON Schemas, `asyncapi.yaml` and the table in the documentation are made from
here; who may append to a subject stands in `apportion.core.identity.roles`.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from apportion_schemas.agreement import DifferenceFound, LedgerRebuilt, PodAdopted
from apportion_schemas.allocation import (
    AllocationFailed,
    BindFailed,
    PodBound,
    ShareBreached,
    SharesAllocated,
)
from apportion_schemas.cluster import (
    BudgetGone,
    BudgetObserved,
    NamespaceGone,
    NamespaceObserved,
    NodeGone,
    NodeObserved,
    PodGroupGone,
    PodGroupObserved,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
    VolumeClaimGone,
    VolumeClaimObserved,
)
from apportion_schemas.configuration import ConfigurationChanged
from apportion_schemas.formats import BORN, FormatEnabled, RevisionSetAside
from apportion_schemas.inventory import DeviceHealthChanged, NodeReported
from apportion_schemas.operations import (
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceUncordoned,
    NodeCordoned,
    NodeCordonLifted,
    NodeUncordoned,
    PolicyChanged,
    ResizeAsked,
)
from apportion_schemas.placement import (
    PlacementVoided,
    PodEvicted,
    PodPlaced,
    PodRefused,
    PodResized,
    ResizeRefused,
)
from apportion_schemas.presence import NodeHeard, NodeSilent, ReportRefused
from apportion_schemas.pricing import PricesLearnt
from apportion_schemas.quantities import Payload
from apportion_schemas.usage import UsageRecorded
from apportion_schemas.workload import PodChanged, PodGone, PodRejected, PodSubmitted

SUBJECTS = "apportion.v1"
TYPE_PREFIX = "apportion.dev/"
READING = "reading"
"""Below `operator`: how the ledger is to be read, which readers look up before they begin."""
_is_token = re.compile(r"[A-Za-z0-9_~-]+").fullmatch  # most names; `quote` leaves them as they are


class Older(NamedTuple):
    """One version of an event that is written no more, and how the next version tells the same.

    `payload` has the fields as they were written, in a class of the event's own name; it is kept in
    a module of a package `older`. `lift` takes the JSON object of a payload of this version and
    returns that of the next one. It may change what it is given, and it finds an answer for
    whatever this version allowed: a build that refused what another has applied would hold another
    state.
    """

    payload: type[Payload]
    lift: Callable[[dict[str, Any]], dict[str, Any]]


class EventType(NamedTuple):
    """One row: the payload, the subject below `apportion.v1`, its only writer, and the meaning.

    `payload` is of the newest version, which is the one that is written. `older` are those before
    it, from `first` on.
    """

    payload: type[Payload]
    channel: str
    key: Callable[[Any], str]
    writer: str
    readers: str
    meaning: str
    older: tuple[Older, ...] = ()

    @property
    def appender(self) -> str:
        """The role that appends it to the stream: the writer, but for agents, who are not trusted
        with the ledger: they hand in what they write, and an intake judges and appends it.
        """
        return "intake" if self.writer == "agent" else self.writer

    @property
    def version(self) -> int:
        """The version that this build writes; older ones are lifted to it."""
        return (BORN.get(self.payload.__name__) or 1) + len(self.older)  # for each event written

    @property
    def first(self) -> int:
        """The version of the first release, or 1 for an event that came later.

        Builds before that release counted the versions that they wrote too. Each had some of the
        fields of `first` and no other, so those are read as `first` is.
        """
        return self.born or 1

    @property
    def born(self) -> int:
        """Up to which version it is legal on every ledger; 0 where an operator enables each."""
        return BORN.get(self.name, 0)

    def payload_of(self, version: int) -> type[Payload]:
        """The payload by which that version, from 1 to the newest, is read."""
        at = max(version - self.first, 0)
        return self.older[at].payload if at < len(self.older) else self.payload

    @property
    def name(self) -> str:
        """The bare name, as in `PodPlaced`."""
        return self.payload.__name__

    @property
    def type(self) -> str:
        """The CloudEvents `type`, as in `apportion.dev/PodPlaced`."""
        return TYPE_PREFIX + self.name


def token(name: str) -> str:
    """Encode any name as one NATS subject token, reversibly (`.` and wildcards cannot stand)."""
    if _is_token(name):
        return name
    return quote(name, safe="").replace(".", "%2E")


def untoken(text: str) -> str:
    """The name that `token` encoded."""
    return unquote(text)


def _node(data: Any) -> str:
    return token(data.node)


def _pod(data: Any) -> str:
    return token(data.pod)


def _uid(data: Any) -> str:
    return token(data.uid)


def _quota(data: Any) -> str:
    return f"quota.{token(data.namespace)}.{token(data.quota)}"


def _budget(data: Any) -> str:
    return f"budget.{token(data.namespace)}.{token(data.budget)}"


def _namespace(data: Any) -> str:
    return f"namespace.{token(data.namespace)}"


def _volume_claim(data: Any) -> str:
    return f"volume-claim.{token(data.namespace)}.{token(data.claim)}"


CATALOGUE: tuple[EventType, ...] = (
    EventType(
        NodeReported,
        "inventory",
        _node,
        "agent",
        "all",
        "the whole inventory of a node",
    ),
    EventType(
        DeviceHealthChanged, "inventory", _node, "agent", "all", "a device failed or recovered"
    ),
    EventType(
        SharesAllocated, "allocation", _node, "agent", "all", "the containers have their shares"
    ),
    EventType(
        AllocationFailed, "allocation", _node, "agent", "all", "the node could not hand them out"
    ),
    EventType(
        ShareBreached,
        "allocation",
        _node,
        "agent",
        "all",
        "a container is not held to its share, or was not",
    ),
    EventType(
        ReportRefused,
        "intake",
        _node,
        "intake",
        "all",
        "what a node's agent said was not taken",
    ),
    EventType(
        PodSubmitted,
        "workload",
        _uid,
        "watcher",
        "all",
        "a pod wants a place",
    ),
    EventType(
        PodChanged,
        "workload",
        _uid,
        "watcher",
        "all",
        "a pod's labels, gates or size changed, or it is being deleted",
    ),
    EventType(PodRejected, "workload", _uid, "watcher", "all", "a pod cannot be read, and why"),
    EventType(PodGone, "workload", _uid, "watcher", "all", "a pod ended: its shares are free"),
    EventType(
        PodAdopted,
        "adoption",
        lambda data: f"{token(data.node)}.{token(data.pod)}",
        "watcher",
        "all",
        "a pod runs without a placement of this ledger: what it holds is held",
    ),
    EventType(
        DifferenceFound,
        "cluster",
        lambda data: "difference." + token(data.name),
        "watcher",
        "operator",
        "cluster and ledger differ: none of these in health",
    ),
    EventType(
        NodeObserved,
        "cluster",
        lambda data: "node." + token(data.node),
        "watcher",
        "all",
        "a node as Kubernetes has it",
    ),
    EventType(
        NodeGone,
        "cluster",
        lambda data: "node." + token(data.node),
        "watcher",
        "all",
        "a node left the cluster",
    ),
    EventType(
        PodGroupObserved,
        "cluster",
        lambda data: "group." + token(data.group),
        "watcher",
        "all",
        "a gang and how many of it must start together",
    ),
    EventType(
        PodGroupGone,
        "cluster",
        lambda data: "group." + token(data.group),
        "watcher",
        "all",
        "the declaration of a gang left the cluster",
    ),
    EventType(
        QueueObserved,
        "cluster",
        lambda data: "queue." + token(data.queue),
        "watcher",
        "all",
        "a queue, its weight and its limits",
    ),
    EventType(
        QuotaObserved,
        "cluster",
        _quota,
        "watcher",
        "all",
        "how much of its devices a namespace may hold",
    ),
    EventType(
        QuotaGone, "cluster", _quota, "watcher", "all", "a quota of devices left the cluster"
    ),
    EventType(
        BudgetObserved,
        "cluster",
        _budget,
        "watcher",
        "all",
        "how many pods of a disruption budget may be evicted",
    ),
    EventType(BudgetGone, "cluster", _budget, "watcher", "all", "a disruption budget left"),
    EventType(
        NamespaceObserved, "cluster", _namespace, "watcher", "all", "the labels of a namespace"
    ),
    EventType(
        NamespaceGone, "cluster", _namespace, "watcher", "all", "a namespace has no labels now"
    ),
    EventType(
        VolumeClaimObserved,
        "cluster",
        _volume_claim,
        "watcher",
        "all",
        "where the volume of a claim is, or could be",
    ),
    EventType(
        VolumeClaimGone, "cluster", _volume_claim, "watcher", "all", "no pod mounts the claim now"
    ),
    EventType(
        PodPlaced,
        "placement",
        _node,
        "scheduler",
        "all",
        "a pod has a node and shares",
    ),
    EventType(
        PlacementVoided, "placement", _node, "scheduler", "all", "a placement came to nothing"
    ),
    EventType(
        PodEvicted,
        "placement",
        _node,
        "scheduler",
        "all",
        "a pod is to give its place up to one of higher priority",
    ),
    EventType(
        PodResized,
        "placement",
        _node,
        "scheduler",
        "all",
        "a pod that runs holds more or less of its devices",
    ),
    EventType(
        ResizeRefused,
        "pending",
        _pod,
        "scheduler",
        "all",
        "a pod cannot have the size that was asked for it",
    ),
    EventType(
        PodRefused,
        "pending",
        _pod,
        "scheduler",
        "all",
        "no node fits, and why",
    ),
    EventType(
        PricesLearnt,
        "policy",
        lambda _: "prices",
        "scheduler",
        "all",
        "what pods of each shape are worth, learnt from those that came",
    ),
    EventType(
        NodeSilent, "presence", _node, "scheduler", "all", "a node's agent is not heard any more"
    ),
    EventType(NodeHeard, "presence", _node, "scheduler", "all", "a node's agent is heard again"),
    EventType(PodBound, "binding", _node, "binder", "all", "the pod is bound to its node"),
    EventType(BindFailed, "binding", _node, "binder", "all", "the binding was refused"),
    EventType(
        DeviceCordoned,
        "operator",
        lambda data: "device." + token(data.device),
        "operator",
        "all",
        "a person took a device off offer",
    ),
    EventType(
        DeviceUncordoned,
        "operator",
        lambda data: "device." + token(data.device),
        "operator",
        "all",
        "a person put a device back on offer",
    ),
    EventType(
        NodeCordoned,
        "operator",
        lambda data: "node." + token(data.node),
        "operator",
        "all",
        "a person took a node off offer",
    ),
    EventType(
        NodeUncordoned,
        "operator",
        lambda data: "node." + token(data.node),
        "operator",
        "all",
        "a person put a node back on offer",
    ),
    EventType(
        DeviceCordonLifted,
        "operator",
        lambda data: "device." + token(data.device),
        "operator",
        "all",
        "one person's reason against a device stands no more",
    ),
    EventType(
        NodeCordonLifted,
        "operator",
        lambda data: "node." + token(data.node),
        "operator",
        "all",
        "one person's reason against a node stands no more",
    ),
    EventType(
        ResizeAsked,
        "operator",
        lambda data: "resize." + token(data.pod),
        "operator",
        "all",
        "a person wants another size for a pod that runs",
    ),
    EventType(
        UsageRecorded,
        "usage",
        _node,
        "agent",
        "all",
        "what the shares of a node were used for, hour by hour",
    ),
    EventType(
        PolicyChanged,
        "operator",
        lambda _: "policy",
        "operator",
        "scheduler",
        "how nodes and devices are preferred from now on",
    ),
    EventType(
        ConfigurationChanged,
        "operator",
        lambda _: "configuration",
        "operator",
        "all",
        "resource names, defaults, how devices are offered and cut, from now on",
    ),
    EventType(
        LedgerRebuilt,
        "operator",
        lambda _: "ledger",
        "operator",
        "all",
        "a lost ledger is written anew from what runs in the cluster",
    ),
    EventType(
        FormatEnabled,
        "operator",
        lambda data: f"{READING}.format.{token(data.format)}",
        "operator",
        "all",
        "a type of event, or a newer version of one, is legal from now on",
    ),
    EventType(
        RevisionSetAside,
        "operator",
        lambda data: f"{READING}.aside.{data.revision}",
        "operator",
        "all",
        "what stands at a revision changes nothing, for any reader",
    ),
)

BY_TYPE = {row.type: row for row in CATALOGUE}
BY_PAYLOAD = {row.payload: row for row in CATALOGUE}


def subject_of(data: Payload) -> str:
    """The NATS subject of an event with this payload, as in `apportion.v1.placement.node-1`."""
    row = BY_PAYLOAD[type(data)]
    return f"{SUBJECTS}.{row.channel}.{row.key(data)}"
