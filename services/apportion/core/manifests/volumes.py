"""PersistentVolumeClaims, volumes and storage classes: where the volume of a claim is or could be.

Source: kube-scheduler's VolumeBinding and VolumeZone, and the rules by which Kubernetes matches a
claim with a volume. Invariant: what is read here of one object is never half of it: a node affinity
that cannot be read raises, and is never taken for none.
"""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import product
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from apportion.core.dialects.quantity import quantity
from apportion.core.manifests import kube, neighbours, nodes
from apportion.core.manifests.labels import meet
from apportion_schemas import NodeExpression, VolumeClaimObserved

ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
_TOPOLOGY: Final = {
    ZONE: ZONE,
    REGION: REGION,
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": REGION,
}
"""Labels of a volume that say where it is, and the label of a node that is compared."""
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
WAITS: Final = "WaitForFirstConsumer"
SINGLE_POD: Final = "ReadWriteOncePod"
FILESYSTEM: Final = "Filesystem"
VALUES_MAX: Final = 256
Terms = tuple[tuple[NodeExpression, ...], ...]


class _Meta(kube.Kube, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Requests(kube.Kube, frozen=True):
    requests: dict[str, Any] | None = None


class _ClaimSpec(kube.Kube, frozen=True):
    volume_name: str = ""
    storage_class_name: str | None = None
    access_modes: list[str] | None = None
    volume_mode: str = FILESYSTEM
    selector: kube.LabelSelector | None = None
    resources: _Requests = _Requests()


class _Status(kube.Kube, frozen=True):
    phase: str = ""


class Claim(kube.Kube, frozen=True):
    """A PersistentVolumeClaim, as far as its volume is concerned."""

    metadata: _Meta
    spec: _ClaimSpec = _ClaimSpec()
    status: _Status = _Status()

    @property
    def key(self) -> str:
        """How it is called here: `namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def storage_class(self) -> str:
        """The name of its storage class; empty where it has none."""
        return self.spec.storage_class_name or ""

    @property
    def bound(self) -> bool:
        """Whether it has its volume, from both sides."""
        return bool(self.spec.volume_name) and BIND_COMPLETED in self.metadata.annotations

    @property
    def selected_node(self) -> str:
        """The node for which its volume is being made; empty while it is made for none."""
        return self.metadata.annotations.get(SELECTED_NODE, "")


class ClaimRef(kube.Kube, frozen=True):
    """The claim that a volume is for."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class _VolumeAffinity(kube.Kube, frozen=True):
    required: kube.NodeTerms | None = None


class _VolumeSpec(kube.Kube, frozen=True):
    capacity: dict[str, Any] | None = None
    access_modes: list[str] | None = None
    claim_ref: ClaimRef | None = None
    storage_class_name: str = ""
    volume_mode: str = FILESYSTEM
    node_affinity: _VolumeAffinity | None = None


class Volume(kube.Kube, frozen=True):
    """A PersistentVolume: what it offers, and from where it can be had."""

    metadata: _Meta
    spec: _VolumeSpec = _VolumeSpec()

    def is_for(self, claim: Claim) -> bool:
        """Whether nobody else's claim has the volume."""
        ref = self.spec.claim_ref
        if ref is None:
            return True
        same = (ref.namespace, ref.name) == (claim.metadata.namespace, claim.metadata.name)
        return same and ref.uid in ("", claim.metadata.uid)


class _TopologyLabel(kube.Kube, frozen=True):
    key: str
    values: list[str]


class _TopologyTerm(kube.Kube, frozen=True):
    match_label_expressions: list[_TopologyLabel] | None = None


class StorageClass(kube.Kube, frozen=True):
    """A StorageClass: whether volumes are made, when, and where."""

    metadata: _Meta
    provisioner: str = ""
    volume_binding_mode: str = ""
    allowed_topologies: Annotated[list[_TopologyTerm], Meta(max_length=1024)] | None = None

    @property
    def provisions(self) -> bool:
        """Whether volumes are made when they are wanted."""
        return self.provisioner not in ("", NO_PROVISIONER)


read_claim = msgspec.json.Decoder(Claim).decode
read_volume = msgspec.json.Decoder(Volume).decode
read_class = msgspec.json.Decoder(StorageClass).decode


class Storage(NamedTuple):
    """All that is known of volumes and classes, by name."""

    volumes: Mapping[str, Volume]
    classes: Mapping[str, StorageClass]


def claim_fact(
    key: str, claim: Claim | None, storage: Storage, version: int
) -> VolumeClaimObserved:
    """What a pod that mounts the claim has to know of it.

    Raises:
        ManifestError: the node affinity of a volume cannot be read.
    """
    namespace, _, name = key.partition("/")
    fact = VolumeClaimObserved(namespace=namespace, claim=name, state="missing", version=version)
    if claim is None:
        return fact
    single = SINGLE_POD in (claim.spec.access_modes or ())
    fact = msgspec.structs.replace(fact, single_pod=single, state="unbound")
    if claim.metadata.deletion_timestamp is not None:
        return msgspec.structs.replace(fact, state="deleting")
    if claim.bound or claim.status.phase == "Lost":
        volume = storage.volumes.get(claim.spec.volume_name)
        if volume is None or claim.status.phase == "Lost":
            return msgspec.structs.replace(fact, state="lost")
        return msgspec.structs.replace(fact, state="bound", nodes=merged(terms_of(volume)))
    class_ = storage.classes.get(claim.storage_class)
    if class_ is None or class_.volume_binding_mode != WAITS:
        return fact
    found = _possible(claim, class_, storage)
    if found is None:
        return msgspec.structs.replace(fact, state="unavailable")
    return msgspec.structs.replace(fact, state="first-consumer", nodes=found)


def matching(claim: Claim, volumes: Iterable[Volume]) -> list[Volume]:
    """The volumes that the claim could have, the smallest first, and one that is kept for it."""
    wanted = size_of(claim)
    modes = set(claim.spec.access_modes or ())
    selector = claim.spec.selector
    means = neighbours.expressions(selector, "spec.selector") if selector else ()
    found = [
        (volume.spec.claim_ref is None, quantity(_capacity(volume), "capacity"), volume)
        for volume in volumes
        if volume.is_for(claim)
        and volume.metadata.deletion_timestamp is None
        and volume.spec.storage_class_name == claim.storage_class
        and volume.spec.volume_mode == claim.spec.volume_mode
        and modes <= set(volume.spec.access_modes or ())
        and quantity(_capacity(volume), "capacity") >= wanted
        and meet(volume.metadata.labels, means)
    ]
    found.sort(key=lambda each: (each[0], each[1], each[2].metadata.name))
    return [volume for _, _, volume in found]


def size_of(claim: Claim) -> Fraction:
    """How much storage the claim asks for, in bytes. Raises ManifestError."""
    return quantity((claim.spec.resources.requests or {}).get("storage", 0), "storage")


def _capacity(volume: Volume) -> Any:
    return (volume.spec.capacity or {}).get("storage", 0)


def terms_of(volume: Volume) -> Terms:
    """The nodes from which the volume can be had: its node affinity, and the labels of its zone.

    A node without any label of a zone or region is not asked for them.
    """
    required = volume.spec.node_affinity.required if volume.spec.node_affinity else None
    at = "spec.nodeAffinity.required.nodeSelectorTerms"
    own = [
        nodes.term(each, f"{at}[{i}]")
        for i, each in enumerate(required.node_selector_terms if required else ())
    ]
    there = tuple(
        NodeExpression(key=_TOPOLOGY[key], operator="In", values=tuple(sorted(value.split("__"))))
        for key, value in sorted(volume.metadata.labels.items())
        if key in _TOPOLOGY
    )
    unzoned = tuple(NodeExpression(key=key, operator="DoesNotExist") for key in sorted(_TOPOLOGY))
    zones = [there, unzoned] if there else [()]
    if required is None:
        return tuple(zones) if there else ()
    return tuple((*left, *right) for left, right in product(own, zones) if left)


def _possible(claim: Claim, class_: StorageClass, storage: Storage) -> Terms | None:
    """Where the claim could have a volume; nothing is anywhere, and None nowhere."""
    if claim.selected_node:
        return ((_named(claim.selected_node),),)
    options: list[Terms] = [
        terms_of(volume) for volume in matching(claim, storage.volumes.values())
    ]
    if class_.provisions:
        options.append(tuple(_topologies(class_)))
    if not options:
        return None
    return () if not all(options) else merged(term for terms in options for term in terms)


def _topologies(class_: StorageClass) -> Iterator[tuple[NodeExpression, ...]]:
    for term in class_.allowed_topologies or ():
        labels = term.match_label_expressions or ()
        yield tuple(
            NodeExpression(key=label.key, operator="In", values=tuple(label.values))
            for label in labels
        )


def _named(node: str) -> NodeExpression:
    return NodeExpression(key="metadata.name", operator="In", values=(node,), of_field=True)


def merged(terms: Iterable[tuple[NodeExpression, ...]]) -> Terms:
    """The same nodes in fewer terms: single lists of values of one key are one list."""
    lists: dict[tuple[str, bool], dict[str, None]] = {}
    others: dict[tuple[NodeExpression, ...], None] = {}
    for term in terms:
        if len(term) == 1 and term[0].operator == "In":
            values = lists.setdefault((term[0].key, term[0].of_field), {})
            values.update(dict.fromkeys(term[0].values))
        else:
            others[term] = None
    found = list(others)
    for (key, of_field), values in sorted(lists.items()):
        every = sorted(values)
        found += [
            (NodeExpression(key=key, operator="In", values=tuple(part), of_field=of_field),)
            for part in (every[at : at + VALUES_MAX] for at in range(0, len(every), VALUES_MAX))
        ]
    return tuple(found)
