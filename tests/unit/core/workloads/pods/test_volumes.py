"""Tests of what the watcher reports about a pod's volume claim, from the claim, its volumes and its
storage class."""

from typing import Any

import msgspec
import pytest

from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.pods.volumes import (
    Capacity,
    Claim,
    Storage,
    StorageClass,
    Volume,
    claim_fact,
    matching,
    merged,
    read_capacity,
    read_claim,
    read_class,
    read_driver,
    read_node_drivers,
    read_volume,
    terms_of,
)
from apportion_schemas import NodeExpression, VolumeClaimObserved

ZONE = "topology.kubernetes.io/zone"


def a_claim(**spec: Any) -> Claim:
    """Return a PersistentVolumeClaim for 2 GiB of storage class `fast`."""
    notes = spec.pop("annotations", {})
    status = {"phase": spec.pop("phase", "Pending")}
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if spec.pop("deleting", False) else {}
    wanted = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "2Gi"}},
        **spec,
    }
    meta = {"name": "data", "namespace": "d", "uid": "u", "annotations": notes, **gone}
    return read_claim(msgspec.json.encode({"metadata": meta, "spec": wanted, "status": status}))


def a_volume(name: str = "v", *nodes: str, **spec: Any) -> Volume:
    """Return a PersistentVolume of 10 GiB and storage class `fast`.

    Only these nodes can use the volume; without names, all nodes can."""
    labels = spec.pop("labels", {})
    offered = {
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        **spec,
    }
    if nodes:
        there = {"key": "host", "operator": "In", "values": list(nodes)}
        terms = [{"matchExpressions": [there]}]
        offered["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    meta = {"name": name, "labels": labels}
    status = {"phase": spec.pop("phase", "Available")}
    about = {"metadata": meta, "spec": offered, "status": status}
    return read_volume(msgspec.json.encode(about))


def a_class(provisioner: str = "example.com/disks", **fields: Any) -> StorageClass:
    """Return storage class `fast`, which binds a claim only when a pod needs it."""
    fields.setdefault("volumeBindingMode", "WaitForFirstConsumer")
    about = {"metadata": {"name": "fast"}, "provisioner": provisioner, **fields}
    return read_class(msgspec.json.encode(about))


def fact(
    claim: Claim | None, *volumes: Volume, class_: StorageClass | None = None
) -> VolumeClaimObserved:
    """Return what the watcher reports about the claim while these volumes and this class exist."""
    classes = {} if class_ is None else {"fast": class_}
    return claim_fact("d/data", claim, Storage({v.metadata.name: v for v in volumes}, classes), 7)


def within(key: str, *values: str) -> tuple[NodeExpression, ...]:
    return (NodeExpression(key=key, operator="In", values=values),)


BOUND = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}, "volumeName": "v"}


@pytest.mark.parametrize(
    ("claim", "state"),
    [
        (None, "missing"),
        (a_claim(deleting=True), "deleting"),
        (a_claim(**BOUND, phase="Lost"), "lost"),
        (a_claim(**BOUND), "lost"),  # its volume does not exist
        (a_claim(), "unbound"),  # its class is not known
        (a_claim(volumeName="v"), "unbound"),  # bound from one side only
    ],
)
def test_a_claim_for_which_a_pod_waits(claim: Claim | None, state: str) -> None:
    """A claim that pods must wait for is reported with the reason as its state, such as missing,
    lost or unbound."""
    found = fact(claim)
    assert (found.namespace, found.claim, found.state, found.version) == ("d", "data", state, 7)


def test_a_bound_claim_is_where_its_volume_is() -> None:
    """A bound claim is reported with the nodes that can use its volume, and whether only one pod
    may use it."""
    found = fact(a_claim(**BOUND), a_volume("v", "n1", "n2"))
    assert (found.state, found.nodes) == ("bound", (within("host", "n1", "n2"),))
    alone = fact(a_claim(**BOUND, accessModes=["ReadWriteOncePod"]), a_volume("v"))
    assert (alone.nodes, alone.single_pod) == ((), True)


def test_the_zone_of_a_volume_is_its_label() -> None:
    """A volume's zone labels restrict its nodes. A label may list several zones, separated by `__`.
    The older beta labels count too."""
    beta = "failure-domain.beta.kubernetes.io/zone"
    there, unzoned = terms_of(a_volume("v", labels={beta: "a__b"}))
    assert there == within(ZONE, "a", "b")
    assert {expression.operator for expression in unzoned} == {"DoesNotExist"}
    both = terms_of(a_volume("v", "n1", labels={ZONE: "a"}))
    assert both[0] == (*within("host", "n1"), *within(ZONE, "a"))
    assert len(both) == 2


def test_a_term_without_expressions_is_met_by_no_node() -> None:
    """An empty term of a volume's node affinity matches no node, as in Kubernetes, even if the
    volume has zone labels."""
    odd: dict[str, Any] = {"required": {"nodeSelectorTerms": [{}]}}
    assert set(terms_of(a_volume("v", nodeAffinity=odd, labels={ZONE: "a"}))) == {()}


def test_a_free_volume_is_where_its_affinity_says() -> None:
    """While a volume is unbound, only its node affinity counts. Its zone labels count once it is
    bound."""
    local = a_class("kubernetes.io/no-provisioner")
    found = fact(a_claim(), a_volume("v", "n1", labels={ZONE: "a"}), class_=local)
    assert found.nodes == (within("host", "n1"),)


def test_a_claim_that_waits_for_its_first_pod_could_be_in_several_places() -> None:
    """An unbound claim can be used on the nodes of every matching volume.

    It can also be used on the nodes where its StorageClass can provision a volume."""
    topology = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a"]}]}]
    class_ = a_class(allowedTopologies=topology)
    found = fact(a_claim(), a_volume("v", "n1"), a_volume("w", "n2"), class_=class_)
    assert found.state == "first-consumer"
    assert set(found.nodes) == {within("host", "n1", "n2"), within(ZONE, "a")}
    assert fact(a_claim(), class_=a_class()).nodes == ()  # anywhere


def test_a_claim_that_no_volume_matches_and_nobody_makes_one_for() -> None:
    """If no volume matches a claim and its class provisions none, the claim can be used on no
    node."""
    local = a_class("kubernetes.io/no-provisioner")
    assert fact(a_claim(), class_=local).state == "unavailable"
    assert fact(a_claim(), a_volume("v", "n1"), class_=local).state == "first-consumer"


def test_a_claim_of_another_class_is_bound_without_a_pod() -> None:
    """If the storage class binds volumes at once, a claim is unbound until its volume exists."""
    assert fact(a_claim(), class_=a_class(volumeBindingMode="Immediate")).state == "unbound"


def test_a_volume_is_being_made_for_one_node() -> None:
    """While a volume is being provisioned for a node, its claim can be used only on that node."""
    notes = {"volume.kubernetes.io/selected-node": "n3"}
    found = fact(a_claim(annotations=notes), class_=a_class())
    (((name,),)) = (found.nodes[0],)
    assert (name.of_field, name.values) == (True, ("n3",))


@pytest.mark.parametrize(
    "other",
    [
        {"storageClassName": "slow"},
        {"capacity": {"storage": "1Gi"}},
        {"accessModes": ["ReadOnlyMany"]},
        {"volumeMode": "Block"},
        {"volumeAttributesClassName": "gold"},
        {"phase": "Pending"},
        {"claimRef": {"namespace": "d", "name": "other"}},
        {"claimRef": {"namespace": "d", "name": "data", "uid": "of another life"}},
    ],
)
def test_a_volume_that_does_not_match(other: dict[str, Any]) -> None:
    """A volume does not match a claim if its class, size, access mode or reservation differs."""
    assert matching(a_claim(), [a_volume("v", **other)]) == []


def test_the_smallest_volume_that_matches_comes_first() -> None:
    """Of several matching volumes, the smallest comes first. If a volume is reserved for the claim,
    no other is considered."""
    small, large = a_volume("z", capacity={"storage": "2Gi"}), a_volume("a")
    kept = a_volume("k", claimRef={"namespace": "d", "name": "data", "uid": "u"})
    assert [v.metadata.name for v in matching(a_claim(), [large, small])] == ["z", "a"]
    assert matching(a_claim(), [large, small, kept]) == [kept]
    marked = a_volume("m", labels={"tier": "ssd"})
    chosen = a_claim(selector={"matchLabels": {"tier": "ssd"}})
    assert matching(chosen, [small, marked]) == [marked]


def test_many_nodes_are_few_terms() -> None:
    """If a thousand local volumes are on a thousand nodes, their node names are merged into a few
    lists."""
    found = merged(within("host", f"n{number:04}") for number in range(1_000))
    assert [len(term[0].values) for term in found] == [256, 256, 256, 232]


def test_an_affinity_that_cannot_be_read_is_not_taken_for_none() -> None:
    """If a volume's node affinity cannot be parsed, the watcher reports an error and leaves the
    claim's last reported state unchanged."""
    odd = {"key": "host", "operator": "Like", "values": ["n1"]}
    terms = [{"matchExpressions": [odd]}]
    bad = a_volume("v", nodeAffinity={"required": {"nodeSelectorTerms": terms}})
    with pytest.raises(ManifestError, match="Like"):
        fact(a_claim(**BOUND), bad)


@pytest.mark.parametrize(
    ("source", "driver"),
    [
        ({"csi": {"driver": "csi.example.com", "volumeHandle": "v"}}, "csi.example.com"),
        ({"awsElasticBlockStore": {"volumeID": "v"}}, "ebs.csi.aws.com"),
        ({"cinder": {"volumeID": "v"}}, "cinder.csi.openstack.org"),
        ({"hostPath": {"path": "/disk"}}, ""),
    ],
)
def test_H13_the_driver_of_a_volume(source: dict[str, Any], driver: str) -> None:
    """The driver of a volume is its CSI driver, or the one that replaced its in-tree type."""
    assert fact(a_claim(**BOUND), a_volume("v", **source)).driver == driver


@pytest.mark.parametrize(
    ("provisioner", "driver"),
    [
        ("csi.example.com", "csi.example.com"),
        ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
        ("kubernetes.io/no-provisioner", ""),
    ],
)
def test_the_driver_of_a_volume_that_is_to_be_made(provisioner: str, driver: str) -> None:
    """The driver of a volume that is not provisioned yet is the provisioner of its class."""
    assert fact(a_claim(), a_volume("v", "n1"), class_=a_class(provisioner)).driver == driver


def test_H13_how_many_volumes_a_node_can_have() -> None:
    """A node has a volume limit only for the drivers that report one."""
    drivers = [
        {"name": "a", "nodeID": "n", "allocatable": {"count": 25}},
        {"name": "b", "nodeID": "n", "allocatable": {}},
        {"name": "c", "nodeID": "n"},
    ]
    about = {"metadata": {"name": "n1"}, "spec": {"drivers": drivers}}
    assert read_node_drivers(msgspec.json.encode(about)).counts == {"a": 25, "b": None, "c": None}


def capacity(node: str | None, **fields: Any) -> Capacity:
    """Return the CSI storage capacity of class `fast` on a node; `None` matches no node."""
    topology = {} if node is None else {"nodeTopology": {"matchLabels": {"host": node}}}
    about = {"metadata": {"name": str(node)}, "storageClassName": "fast", **topology, **fields}
    return read_capacity(msgspec.json.encode(about))


def room(*capacities: Capacity, minded: bool = True, **class_: Any) -> VolumeClaimObserved:
    """Return what the watcher reports about a 2 GiB claim while the driver has these capacities
    left."""
    spec = {"storageCapacity": minded}
    about = {"metadata": {"name": "example.com/disks"}, "spec": spec}
    storage = Storage(
        {},
        {"fast": a_class(**class_)},
        {"example.com/disks": read_driver(msgspec.json.encode(about))},
        {str(at): each for at, each in enumerate(capacities)},
    )
    return claim_fact("d/data", a_claim(), storage, 7)


def test_a_volume_is_made_where_there_is_room() -> None:
    """A volume can be provisioned only where the driver reports enough capacity for it."""
    enough, little = capacity("n1", capacity="2Gi"), capacity("n2", capacity="1Gi")
    parts = capacity("n3", capacity="9Gi", maximumVolumeSize="1Gi")
    unknown, nowhere = capacity("n4"), capacity(None, capacity="9Gi")
    found = room(enough, little, parts, unknown, nowhere)
    assert (found.state, found.nodes) == ("first-consumer", (within("host", "n1"),))
    assert room(little).state == "unavailable"
    other = capacity("n5", capacity="9Gi", storageClassName="slow")
    assert room(other).state == "unavailable"


def test_capacities_are_minded_where_the_driver_says_so() -> None:
    """Storage capacities count only if the CSI driver declares that it reports them.

    A node must then have enough capacity and match the storage class's topology."""
    little = capacity("n2", capacity="1Gi")
    assert room(little, minded=False).nodes == ()
    topology = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a"]}]}]
    found = room(capacity("n1", capacity="5Gi"), allowedTopologies=topology)
    assert [set(term) for term in found.nodes] == [{*within(ZONE, "a"), *within("host", "n1")}]
    everywhere = capacity("n1", capacity="5Gi", nodeTopology={})
    assert room(everywhere).nodes == ()


def test_the_old_annotation_of_a_class_goes_before_the_field() -> None:
    """If a claim has the old beta annotation for its storage class, that overrides the field, as in
    Kubernetes."""
    old = {"volume.beta.kubernetes.io/storage-class": "fast"}
    assert matching(a_claim(storageClassName=None, annotations=old), [a_volume()]) == [a_volume()]


def test_terms_that_differ_in_one_list_are_one() -> None:
    """Node terms that differ only in one list of values are merged.

    If more terms remain than an event can hold, no terms are kept, and the claim counts as usable
    on any node."""
    found = merged(
        (*within(ZONE, zone), *within("host", f"{zone}{number}"))
        for zone in "ab"
        for number in range(100)
    )
    assert [sorted(len(each.values) for each in term) for term in found] == [[1, 100], [1, 100]]
    apart = ((*within(f"k{at}", "v"), *within(f"l{at}", "v")) for at in range(1_025))
    assert merged(apart) == ()
