"""Where cluster and ledger came to differ, and what was done about it.

In health there is none of these events: whoever counts them knows whether the two agree."""

from typing import Annotated, Literal

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.placement import Share
from apportion_schemas.quantities import CONTAINERS_MAX, COUNT_MAX, Name, Natural, Payload, Text
from apportion_schemas.workload import PodSubmitted

DifferenceKind = Literal["gone", "annotation", "conflict", "missed"]
"""`gone`: the ledger has a pod that the cluster has not. `annotation`: the pod says otherwise of
its shares than the ledger. `conflict`: the pod runs with shares that the ledger cannot account for.
`missed`: another fact of the cluster that no watch told of."""


@event("adoption.{node}.{pod}", "watcher", born=3)
class PodAdopted(Payload, frozen=True):
    """A pod that runs in the cluster without a placement of this ledger: it is held from now on.

    Another scheduler bound it, or an attempt that was given up, or the ledger was lost. `evidence`
    names the annotation that tells of the shares, `attempt` is the one it speaks of (0: none).
    `pod` is its uid, which `submitted` has as well. `running`: no agent of ours has to hand the
    shares out, for the kubelet has, or another plugin does."""

    pod: Name
    node: Name
    submitted: PodSubmitted
    attempt: Natural = 0
    shares: Annotated[tuple[Share, ...], Meta(max_length=CONTAINERS_MAX * COUNT_MAX)] = ()
    evidence: Text = ""
    running: bool = False


@event("cluster.difference.{name}", "watcher")
class DifferenceFound(Payload, frozen=True):
    """A comparison of the whole found that cluster and ledger differ, in what each of them says.

    What can be repaired is, by an event of its own right after this one. `pod` is the uid; where
    the difference is not about a pod, `name` says what it is about."""

    kind: DifferenceKind
    name: Name
    pod: Annotated[str, Meta(max_length=253)] = ""
    ledger: Text = ""
    cluster: Text = ""


@event("operator.ledger", "operator")
class LedgerRebuilt(Payload, frozen=True):
    """A lost ledger is written anew from the annotations of bound pods, of which there are `pods`.

    The PodAdopted of each of them follow; `unread` are those whose devices nobody can tell."""

    by: Name
    reason: Text
    cluster: Text
    pods: Natural = 0
    unread: Natural = 0
