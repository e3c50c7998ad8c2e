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
# change in the cluster that no watch reported. overtaken: the pod names one of our schedulers, and
# another scheduler bound it.
DifferenceKind = Literal["gone", "annotation", "conflict", "missed", "overtaken"]


@event("adoption.{node}.{pod}", "watcher", born=6)
class PodAdopted(Payload, frozen=True):
    """The watcher records a pod that is bound to a node but has no placement in the ledger.

    Another scheduler bound the pod, or its placement was voided, or the ledger was lost. `pod` is
    the uid. `evidence` names the annotation from which the shares and `attempt` (or 0) were read.
    `running` is True if the pod's containers already have the shares."""

    pod: Name
    node: Name
    submitted: PodSubmitted
    attempt: Natural = 0
    shares: Annotated[tuple[Share, ...], Meta(max_length=CONTAINERS_MAX * COUNT_MAX)] = ()
    evidence: Text = ""
    running: bool = False


@event("cluster.difference.{name}", "watcher", born=2)
class DifferenceFound(Payload, frozen=True):
    """The watcher compared the whole cluster with the ledger and found a difference.

    The next event repairs the difference, if it can be repaired. `pod` is the uid, or empty for
    another kind of object."""

    kind: DifferenceKind
    name: Name
    pod: Annotated[str, Meta(max_length=253)] = ""
    ledger: Text = ""
    cluster: Text = ""


@event("operator.ledger", "operator")
class LedgerRebuilt(Payload, frozen=True):
    """An operator rebuilds a lost ledger from annotations of bound pods.

    A PodAdopted event follows for each of the `pods`. `unread` counts pods whose devices are
    unknown."""

    by: Name
    reason: Text
    cluster: Text
    pods: Natural = 0
    unread: Natural = 0
