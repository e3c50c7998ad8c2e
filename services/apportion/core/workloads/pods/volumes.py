"""Find the nodes that can access a claim's volume, or where the volume could be provisioned.

Source: kube-scheduler's VolumeBinding, VolumeZone and NodeVolumeLimits, and Kubernetes' rules for
matching claims with volumes. Invariant: an object is read completely or not at all. A node affinity
that cannot be read raises an error, and is never ignored."""

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import product
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.structs import astuple

from apportion.core.workloads import kube
from apportion.core.workloads.dialects.amounts import quantity
from apportion.core.workloads.pods import affinity, node_needs
from apportion.core.workloads.pods.affinity import meet
from apportion_schemas import NodeExpression, VolumeClaimObserved
from apportion_schemas.decoding import from_outside

ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
# topology labels of a volume, and the node label that each is compared with
_TOPOLOGY: Final = {
    ZONE: ZONE,
    REGION: REGION,
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": REGION,
}
# annotation with the class before Kubernetes 1.6; it still overrides the field
BETA_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
WAITS: Final = "WaitForFirstConsumer"
AVAILABLE: Final = "Available"
SINGLE_POD: Final = "ReadWriteOncePod"
FILESYSTEM: Final = "Filesystem"
# volume sources from before CSI, their provisioners, and the drivers that serve them today
_IN_TREE: Final = (
    ("awsElasticBlockStore", "kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("azureDisk", "kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("azureFile", "kubernetes.io/azure-file", "file.csi.azure.com"),
    ("cinder", "kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("gcePersistentDisk", "kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("portworxVolume", "kubernetes.io/portworx-volume", "pxd.portworx.com"),
    ("vsphereVolume", "kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
)
MIGRATED: Final = {source: driver for source, _, driver in _IN_TREE}
_PROVISIONED: Final = {provisioner: driver for _, provisioner, driver in _IN_TREE}
VALUES_MAX: Final = 256
TERMS_MAX: Final = 1024
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
    volume_attributes_class_name: str | None = None
    access_modes: list[str] | None = None
    volume_mode: str = FILESYSTEM
    selector: kube.LabelSelector | None = None
    resources: _Requests = _Requests()


class _Status(kube.Kube, frozen=True):
    phase: str = ""


class Claim(kube.Kube, frozen=True):
    """The fields of a PersistentVolumeClaim that decide which volume it gets."""

    metadata: _Meta
    spec: _ClaimSpec = _ClaimSpec()
    status: _Status = _Status()

    @property
    def key(self) -> str:
        """Return the full name of the claim, as in `namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def storage_class(self) -> str:
        """Return the name of the claim's storage class; empty if it has none."""
        return self.metadata.annotations.get(BETA_CLASS, self.spec.storage_class_name or "")

    @property
    def bound(self) -> bool:
        """Return True if claim and volume are bound to each other."""
        return bool(self.spec.volume_name) and BIND_COMPLETED in self.metadata.annotations

    @property
    def selected_node(self) -> str:
        """Return the node for which a volume is being provisioned; empty if none is chosen."""
        return self.metadata.annotations.get(SELECTED_NODE, "")


class ClaimRef(kube.Kube, frozen=True):
    """The reference of a volume to the claim that it is reserved for."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class _VolumeAffinity(kube.Kube, frozen=True):
    required: kube.NodeTerms | None = None


class _CsiSource(kube.Kube, frozen=True):
    driver: str = ""


class _VolumeSpec(kube.Kube, frozen=True):
    capacity: dict[str, Any] | None = None
    access_modes: list[str] | None = None
    claim_ref: ClaimRef | None = None
    storage_class_name: str = ""
    volume_attributes_class_name: str | None = None
    volume_mode: str = FILESYSTEM
    node_affinity: _VolumeAffinity | None = None
    csi: _CsiSource | None = None
    aws_elastic_block_store: dict[str, Any] | None = None
    azure_disk: dict[str, Any] | None = None
    azure_file: dict[str, Any] | None = None
    cinder: dict[str, Any] | None = None
    gce_persistent_disk: dict[str, Any] | None = None
    portworx_volume: dict[str, Any] | None = None
    vsphere_volume: dict[str, Any] | None = None


class Volume(kube.Kube, frozen=True):
    """A PersistentVolume: its size and class, and from which nodes it is accessible."""

    metadata: _Meta
    spec: _VolumeSpec = _VolumeSpec()
    status: _Status = _Status()

    @property
    def storage_class(self) -> str:
        """Return the name of the volume's storage class; empty if it has none."""
        return self.metadata.annotations.get(BETA_CLASS, self.spec.storage_class_name)

    @property
    def driver(self) -> str:
        """Return the CSI driver that attaches the volume; empty if it is no CSI volume."""
        if self.spec.csi is not None:
            return self.spec.csi.driver
        sources = zip(self.spec.__struct_encode_fields__, astuple(self.spec), strict=True)
        return next((MIGRATED[name] for name, set_ in sources if set_ and name in MIGRATED), "")

    def is_for(self, claim: Claim) -> bool:
        """Return True unless the volume is reserved for another claim."""
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
    """A StorageClass: whether, when and where it provisions volumes."""

    metadata: _Meta
    provisioner: str = ""
    volume_binding_mode: str = ""
    allowed_topologies: Annotated[list[_TopologyTerm], Meta(max_length=1024)] | None = None

    @property
    def driver(self) -> str:
        """Return the CSI driver that provisions volumes of the class; empty if none does."""
        if not self.provisions:
            return ""
        return _PROVISIONED.get(self.provisioner, self.provisioner)

    @property
    def provisions(self) -> bool:
        """Return True if volumes of the class are created on demand."""
        return self.provisioner not in ("", NO_PROVISIONER)


read_claim = from_outside(msgspec.json.Decoder(Claim).decode)
read_volume = from_outside(msgspec.json.Decoder(Volume).decode)
read_class = from_outside(msgspec.json.Decoder(StorageClass).decode)


class _Allocatable(kube.Kube, frozen=True):
    count: int | None = None


class _Driver(kube.Kube, frozen=True):
    name: str
    allocatable: _Allocatable | None = None


class _DriversSpec(kube.Kube, frozen=True):
    drivers: list[_Driver] | None = None  # null on a node without any


class NodeDrivers(kube.Kube, frozen=True):
    """A CSINode: the CSI drivers on one node, and how many volumes each can attach there."""

    metadata: _Meta
    spec: _DriversSpec = _DriversSpec()

    @property
    def counts(self) -> dict[str, int | None]:
        """Return how many volumes each driver can attach, or None for a driver without a limit."""
        rooms = ((each.name, each.allocatable) for each in self.spec.drivers or ())
        return {
            name: None if room is None or room.count is None else max(room.count, 0)
            for name, room in rooms
        }


read_node_drivers = from_outside(msgspec.json.Decoder(NodeDrivers).decode)


class Capacity(kube.Kube, frozen=True):
    """A CSIStorageCapacity: how large a new volume of a class can be, on some nodes."""

    metadata: _Meta
    storage_class_name: str = ""
    node_topology: kube.LabelSelector | None = None
    capacity: str | int | None = None
    maximum_volume_size: str | int | None = None

    def has_room(self, size: Fraction) -> bool:
        """Return True if a volume of `size` bytes can be provisioned on these nodes."""
        most = self.capacity if self.maximum_volume_size is None else self.maximum_volume_size
        return most is not None and quantity(most, "capacity") >= size


class _CsiDriverSpec(kube.Kube, frozen=True):
    storage_capacity: bool = False
    prevent_pod_scheduling_if_missing: bool = False


class CsiDriver(kube.Kube, frozen=True):
    """A CSIDriver: whether capacities are checked before provisioning, and whether pods with its
    volumes stay off nodes without the driver."""

    metadata: _Meta
    spec: _CsiDriverSpec = _CsiDriverSpec()


read_capacity = from_outside(msgspec.json.Decoder(Capacity).decode)
read_driver = from_outside(msgspec.json.Decoder(CsiDriver).decode)


class Storage(NamedTuple):
    """All volumes, classes, drivers and capacities of the cluster, by name."""

    volumes: Mapping[str, Volume]
    classes: Mapping[str, StorageClass]
    drivers: Mapping[str, CsiDriver] = {}
    capacities: Mapping[str, Capacity] = {}


def claim_fact(
    key: str, claim: Claim | None, storage: Storage, version: int
) -> VolumeClaimObserved:
    """Return the event that records a claim's state and the nodes that can access its volume.

    Raises ManifestError if the node affinity of a volume cannot be read."""
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
        return msgspec.structs.replace(
            fact, state="bound", nodes=merged(terms_of(volume)), driver=volume.driver
        )
    class_ = storage.classes.get(claim.storage_class)
    if class_ is None:
        return fact
    fact = msgspec.structs.replace(fact, driver=class_.driver)
    if class_.volume_binding_mode != WAITS:
        return fact
    found = _possible(claim, class_, storage)
    if found is None:
        return msgspec.structs.replace(fact, state="unavailable")
    return msgspec.structs.replace(fact, state="first-consumer", nodes=found)


def matching(claim: Claim, volumes: Iterable[Volume]) -> list[Volume]:
    """Return the volumes that may be bound to the claim, smallest first.

    If a volume is reserved for the claim, return only such volumes."""
    wanted = size_of(claim)
    selector = claim.spec.selector
    means = affinity.expressions(selector, "spec.selector") if selector else ()
    modes = set(claim.spec.access_modes or ())
    attributes = claim.spec.volume_attributes_class_name or ""
    found = [
        (volume.spec.claim_ref is None, size, volume)
        for volume in volumes
        if volume.is_for(claim)
        and volume.metadata.deletion_timestamp is None
        and volume.storage_class == claim.storage_class
        and volume.spec.volume_mode == claim.spec.volume_mode
        and (volume.spec.volume_attributes_class_name or "") == attributes
        and (size := quantity((volume.spec.capacity or {}).get("storage", 0), "capacity")) >= wanted
        and (
            volume.spec.claim_ref is not None
            or (
                volume.status.phase == AVAILABLE
                and modes <= set(volume.spec.access_modes or ())
                and meet(volume.metadata.labels, means)
            )
        )
    ]
    found.sort(key=lambda each: (each[0], each[1], each[2].metadata.name))
    return [volume for free, _, volume in found if free == found[0][0]]


def size_of(claim: Claim) -> Fraction:
    """Return how much storage the claim requests, in bytes. Raises ManifestError."""
    return quantity((claim.spec.resources.requests or {}).get("storage", 0), "storage")


def affinity_of(volume: Volume) -> Terms:
    """Return the volume's required node affinity; empty if all nodes can access it.

    Raises ManifestError."""
    required = volume.spec.node_affinity.required if volume.spec.node_affinity else None
    at = "spec.nodeAffinity.required.nodeSelectorTerms"
    return tuple(
        node_needs.term(each, f"{at}[{i}]")
        for i, each in enumerate(required.node_selector_terms if required else ())
    )


def terms_of(volume: Volume) -> Terms:
    """Return the terms for nodes that can access a bound volume, from its node affinity and zone.

    A node without zone and region labels counts as being in every zone."""
    own = affinity_of(volume)
    there = tuple(
        NodeExpression(key=_TOPOLOGY[key], operator="In", values=tuple(sorted(value.split("__"))))
        for key, value in sorted(volume.metadata.labels.items())
        if key in _TOPOLOGY
    )
    unzoned = tuple(NodeExpression(key=key, operator="DoesNotExist") for key in sorted(_TOPOLOGY))
    zones = [there, unzoned] if there else [()]
    if not own:
        return tuple(zones) if there else ()
    return tuple((*left, *right) if left else () for left, right in product(own, zones))


def _possible(claim: Claim, class_: StorageClass, storage: Storage) -> Terms | None:
    if claim.selected_node:
        node = (claim.selected_node,)
        return ((NodeExpression(key="metadata.name", operator="In", values=node, of_field=True),),)
    options: list[Terms] = [
        affinity_of(volume) for volume in matching(claim, storage.volumes.values())
    ]
    if class_.provisions:
        options += _makers(claim, class_, storage)
    if not options:
        return None  # nowhere
    return () if not all(options) else merged(term for terms in options for term in terms)


def _makers(claim: Claim, class_: StorageClass, storage: Storage) -> list[Terms]:
    allowed = tuple(
        tuple(
            NodeExpression(key=label.key, operator="In", values=tuple(label.values))
            for label in term.match_label_expressions or ()
        )
        for term in class_.allowed_topologies or ()
    )
    size, driver = size_of(claim), storage.drivers.get(class_.provisioner)
    if not size or driver is None or not driver.spec.storage_capacity:
        return [allowed]
    rooms = [
        tuple(
            NodeExpression(key=label.key, operator=label.operator, values=label.values)
            for label in affinity.expressions(each.node_topology, "nodeTopology")
        )
        for each in storage.capacities.values()
        if each.storage_class_name == claim.storage_class
        and each.node_topology is not None
        and each.has_room(size)
    ]
    return [tuple((*left, *room) for left in allowed or ((),) if left or room) for room in rooms]


def merged(terms: Iterable[tuple[NodeExpression, ...]]) -> Terms:
    """Merge terms that differ only in the values of one key, so that they fit into an event.

    If there are still too many, return no terms, which means all nodes. Binding then fails on a
    node that cannot access the volume."""
    some = list(dict.fromkeys(terms))
    listing = dict.fromkeys(each for term in some for each in term if each.operator == "In")
    values = Counter(each.key for each in listing)
    lists: dict[tuple[Any, ...], dict[str, None]] = {}
    others: list[tuple[NodeExpression, ...]] = []
    for term in some:
        listed = [each for each in term if each.operator == "In"]
        if not listed:
            others.append(term)
            continue
        widest = max(listed, key=lambda each: (values[each.key], each.key))
        rest = tuple(each for each in term if each is not widest)
        known = lists.setdefault((rest, widest.key, widest.of_field), {})
        known.update(dict.fromkeys(widest.values))
    for (rest, key, of_field), known in sorted(lists.items(), key=lambda each: repr(each[0])):
        every = sorted(known)
        others += [
            (*rest, NodeExpression(key=key, operator="In", values=tuple(part), of_field=of_field))
            for part in (every[at : at + VALUES_MAX] for at in range(0, len(every), VALUES_MAX))
        ]
    return tuple(others) if len(others) <= TERMS_MAX else ()
