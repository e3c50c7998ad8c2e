"""Events about differences between cluster and ledger, and their repair.

A healthy cluster has none, so their count shows whether the two agree."""

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


@event("adoption.{node}.{pod}", "watcher", born=3)
class PodAdopted(Payload, frozen=True):
    """A running pod without a placement of this ledger is adopted with its devices.

    Another scheduler bound it, or an attempt that was voided, or the ledger was lost. `evidence`
    names the annotation that lists the shares, `attempt` is the attempt in it (0: none). `pod` is
    the uid, as in `submitted`. `running`: the shares were already handed out to its containers."""

    pod: Name
    node: Name
    submitted: PodSubmitted
    attempt: Natural = 0
    shares: Annotated[tuple[Share, ...], Meta(max_length=CONTAINERS_MAX * COUNT_MAX)] = ()
    evidence: Text = ""
    running: bool = False


@event("cluster.difference.{name}", "watcher")
class DifferenceFound(Payload, frozen=True):
    """A full comparison found a difference between the cluster and the ledger.

    `ledger` and `cluster` describe the two sides. If it can be repaired, another event right after
    this one does so. `pod` is the uid; if the difference is not about a pod, `name` is its
    object."""

    kind: DifferenceKind
    name: Name
    pod: Annotated[str, Meta(max_length=253)] = ""
    ledger: Text = ""
    cluster: Text = ""


@event("operator.ledger", "operator")
class LedgerRebuilt(Payload, frozen=True):
    """A lost ledger is rebuilt from the annotations of `pods` bound pods.

    Their PodAdopted events follow; `unread` counts the pods whose devices could not be
    determined."""

    by: Name
    reason: Text
    cluster: Text
    pods: Natural = 0
    unread: Natural = 0
