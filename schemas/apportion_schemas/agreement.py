"""Events about differences between the cluster and the ledger, and about their repair.

A healthy cluster has no such events, so their number shows how well cluster and ledger agree."""

from typing import Annotated, Literal

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.placement import Share
from apportion_schemas.quantities import CONTAINERS_MAX, COUNT_MAX, Name, Natural, Payload, Text
from apportion_schemas.workload import PodSubmitted

# gone: only the ledger has the pod. annotation: the pod's annotation has other shares than the
# ledger. conflict: the pod runs with shares that the ledger cannot account for. missed: another
# change in the cluster that no watch reported.
DifferenceKind = Literal["gone", "annotation", "conflict", "missed"]


@event("adoption.{node}.{pod}", "watcher", born=4)
class PodAdopted(Payload, frozen=True):
    """The watcher records a pod that is bound to a node but has no placement in the ledger.

    Another scheduler bound the pod, or its placement was voided, or the ledger was lost.
    `submitted` describes the pod, and `shares` are its shares of devices. `evidence` names the
    annotation that lists the shares; `attempt` is the attempt in it, or 0. `pod` is the uid.
    `running` is True if the pod's containers already have the shares."""

    pod: Name
    node: Name
    submitted: PodSubmitted
    attempt: Natural = 0
    shares: Annotated[tuple[Share, ...], Meta(max_length=CONTAINERS_MAX * COUNT_MAX)] = ()
    evidence: Text = ""
    running: bool = False


@event("cluster.difference.{name}", "watcher")
class DifferenceFound(Payload, frozen=True):
    """The watcher compared the whole cluster with the ledger and found a difference.

    `ledger` and `cluster` describe the two sides. If the difference can be repaired, the next event
    repairs it. `pod` is the uid, if the difference is about a pod; otherwise `name` names the
    object."""

    kind: DifferenceKind
    name: Name
    pod: Annotated[str, Meta(max_length=253)] = ""
    ledger: Text = ""
    cluster: Text = ""


@event("operator.ledger", "operator")
class LedgerRebuilt(Payload, frozen=True):
    """An operator rebuilds a lost ledger from annotations of bound pods; `pods` counts them.

    The PodAdopted events of these pods follow. `unread` counts pods whose devices are unknown."""

    by: Name
    reason: Text
    cluster: Text
    pods: Natural = 0
    unread: Natural = 0
