"""Tests of which events the watcher appends about volumes and their claims."""

from typing import Any

import msgspec
import pytest

from apportion.watcher.kubernetes.volumes import CLAIMS
from apportion_schemas import Disk, NodeObserved, VolumeClaimGone, VolumeClaimObserved
from tests.support.kube_objects import kube_node
from tests.unit.watcher.kubernetes.followed_cluster import Cluster


def volume_facts(cluster: Cluster, *uids: str) -> list[Any]:
    """Append the watcher's events about changed volume claims and about these pods' claims. Return
    the events."""
    facts = list(cluster.facts.volume_claims(cluster.view.take().others[CLAIMS], uids))
    cluster.write(facts)
    return [fact.data for fact in facts]


def kube_claim(**annotations: str) -> dict[str, Any]:
    """Return a volume claim that is bound to volume v."""
    meta = {"name": "data", "annotations": annotations}
    return {"metadata": meta, "spec": {"volumeName": "v", "storageClassName": "s"}}


COMPLETED = {"pv.kubernetes.io/bind-completed": "yes"}
WAITS = {"volumeBindingMode": "WaitForFirstConsumer", "provisioner": "x"}
GIB = {"requests": {"storage": "1Gi"}}
MOUNTED = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]


def test_a_claim_is_told_with_the_pod_that_mounts_it_and_forgotten_with_the_last() -> None:
    """The watcher reports a volume claim when the first pod that mounts it appears. It removes the
    claim when the last such pod is gone."""
    cluster = Cluster()
    cluster.see("persistentvolumeclaims", kube_claim())
    assert volume_facts(cluster) == []
    cluster.pod("p", volumes=MOUNTED)
    (told,) = volume_facts(cluster, "p")
    assert (told.claim, told.state) == ("data", "unbound")
    cluster.write(list(cluster.facts.arrivals(["p"])))
    cluster.see("persistentvolumes", {"metadata": {"name": "v"}, "spec": {}}, version=2)
    cluster.see("persistentvolumeclaims", kube_claim(**COMPLETED), version=3)
    (told,) = volume_facts(cluster)
    assert (told.state, told.version) == ("bound", 3)
    assert volume_facts(cluster) == []
    cluster.ledger.gone("p")
    assert volume_facts(cluster) == [VolumeClaimGone(namespace="default", claim="data")]
    assert cluster.ledger.state.volume_claims == {}


def test_a_volume_or_class_concerns_the_claims_of_its_class() -> None:
    """If a storage class changes, the watcher reports the volume claims of that class again."""
    cluster = Cluster()
    claim = {"metadata": {"name": "data"}, "spec": {"storageClassName": "s"}}
    cluster.see("persistentvolumeclaims", claim)
    cluster.pod("p", volumes=MOUNTED)
    (told,) = volume_facts(cluster, "p")
    assert told.state == "unbound"
    cluster.write(list(cluster.facts.arrivals(["p"])))
    cluster.see("storageclasses", {"metadata": {"name": "s"}, **WAITS}, version=2)
    (told,) = volume_facts(cluster)
    assert told.state == "first-consumer"


def test_a_volume_that_cannot_be_read_is_a_problem_by_name() -> None:
    """The watcher reports an unreadable volume as a problem. The volume's claim keeps the state
    that was last reported."""
    cluster = Cluster()
    cluster.pod("p", volumes=MOUNTED)
    (told,) = volume_facts(cluster, "p")
    assert told.state == "missing"
    cluster.write(list(cluster.facts.arrivals(["p"])))
    odd = {"matchExpressions": [{"key": "k", "operator": "Like"}]}
    affinity = {"required": {"nodeSelectorTerms": [odd]}}
    cluster.see(
        "persistentvolumes", {"metadata": {"name": "v"}, "spec": {"nodeAffinity": affinity}}
    )
    cluster.see("persistentvolumeclaims", kube_claim(**COMPLETED))
    assert volume_facts(cluster) == []
    ((name, problem),) = cluster.view.problems.items()
    assert (name.split()[-1], "Like" in problem) == ("default/data", True)
    cluster.see("persistentvolumes", {"metadata": {"name": "v"}, "spec": {}}, version=5)
    (told,) = volume_facts(cluster)
    assert (told.state, cluster.view.problems) == ("bound", {})


def test_the_claims_of_other_schedulers_pods_are_told_of() -> None:
    """The watcher's report of a node lists the volume claims of other schedulers' running pods. The
    watcher also reports each of these claims in an event of its own."""
    cluster = Cluster()
    theirs: dict[str, Any] = {
        "schedulerName": "default-scheduler",
        "limits": {},
        "volumes": MOUNTED,
    }
    cluster.see("nodes", kube_node("n1"))
    cluster.pod("o", on="n1", **theirs)
    (told,) = volume_facts(cluster)
    assert (told.claim, told.state) == ("data", "missing")
    (node,) = cluster.facts.nodes(["n1"])
    assert isinstance(node.data, NodeObserved)
    assert [each.volume_claims for each in node.data.others] == [("data",)]
    cluster.pod("o", 2, on="n1", labels={"a": "b"}, **theirs)
    assert volume_facts(cluster) == []
    cluster.pod("o", 3, on="n1", phase="Succeeded", **theirs)
    assert volume_facts(cluster) == [VolumeClaimGone(namespace="default", claim="data")]


def test_F16_the_disks_of_other_schedulers_pods_are_told_with_their_node() -> None:
    """The watcher's report of a node has the disks of other schedulers' pods. It omits unreadable
    disks."""
    cluster = Cluster()
    volumes: list[dict[str, Any]] = [
        {"name": "a", "gcePersistentDisk": {"pdName": "d"}},
        {"name": "b", "ephemeral": {"volumeClaimTemplate": {}}},
    ]
    theirs: dict[str, Any] = {"schedulerName": "default-scheduler", "limits": {}}
    cluster.see("nodes", kube_node("n1"))
    cluster.pod("o", on="n1", volumes=volumes, **theirs)
    cluster.pod("odd", on="n1", volumes=[{"name": "a", "iscsi": "none"}], **theirs)
    (fact,) = cluster.facts.nodes(["n1"])
    assert isinstance(fact.data, NodeObserved)
    found = [(each.disks, each.volume_claims) for each in fact.data.others]
    assert sorted(found) == [((), ()), ((Disk(name="gce/d"),), ("o-b",))]


def csi_node(count: int, **rest: Any) -> dict[str, Any]:
    """Return the CSINode of node n1 with this limit on volumes."""
    driver = {"name": "csi.example.com", "nodeID": "n1", "allocatable": {"count": count}}
    return {"metadata": {"name": "n1"}, "spec": {"drivers": [driver | rest]}}


def test_H13_the_limits_of_a_node_are_told_with_it() -> None:
    """The watcher's report of a node has the node's volume limits. The watcher ignores other
    changes of the CSINode."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("n1"))
    cluster.see("csinodes", csi_node(3))
    (fact,) = cluster.facts.nodes(cluster.view.take().nodes)
    assert isinstance(fact.data, NodeObserved)
    assert fact.data.volume_limits == {"csi.example.com": 3}
    cluster.write([fact])
    cluster.see("csinodes", csi_node(3, topologyKeys=["zone"]), version=2)
    assert not cluster.view.take()
    cluster.see("csinodes", csi_node(4), version=3)
    (fact,) = cluster.facts.nodes(cluster.view.take().nodes)
    assert isinstance(fact.data, NodeObserved)
    assert (fact.data.volume_limits, fact.data.version) == ({"csi.example.com": 4}, 3)


def test_room_for_a_volume_concerns_the_claims_of_its_class() -> None:
    """The watcher reports volume claims again if the capacity of their storage class changes, or if
    the driver begins to report capacity."""
    cluster = Cluster()
    cluster.see("storageclasses", {"metadata": {"name": "s"}, **WAITS})
    claim = {"metadata": {"name": "data"}, "spec": {"storageClassName": "s", "resources": GIB}}
    cluster.see("persistentvolumeclaims", claim)
    cluster.pod("p", volumes=MOUNTED)
    (told,) = volume_facts(cluster, "p")
    assert told.state == "first-consumer"
    cluster.write(list(cluster.facts.arrivals(["p"])))
    driver = {"metadata": {"name": "x"}, "spec": {"storageCapacity": True}}
    cluster.see("csidrivers", driver, version=2)
    (told,) = volume_facts(cluster)
    assert told.state == "unavailable"
    cluster.see("csidrivers", driver, version=3)
    assert not cluster.view.take()
    room = {"storageClassName": "s", "nodeTopology": {}, "capacity": "1Gi"}
    cluster.see("csistoragecapacities", {"metadata": {"name": "c"}, **room}, version=4)
    (told,) = volume_facts(cluster)
    assert told.state == "first-consumer"


MANY = [{"key": f"k{at}", "operator": "Exists"} for at in range(70)]
LONG = [{"key": "k", "operator": "In", "values": [str(at) for at in range(300)]}]
HOSTS = {"required": {"nodeSelectorTerms": [{"matchExpressions": LONG}]}}


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        ("persistentvolumeclaims", {"spec": {"selector": {"matchExpressions": MANY}}}),
        ("persistentvolumes", {"spec": {"nodeAffinity": HOSTS}}),
        ("storageclasses", {"allowedTopologies": "none"}),
        ("csidrivers", {"spec": {"storageCapacity": "yes"}}),
        ("csinodes", {"spec": {"drivers": "none"}}),
        ("csistoragecapacities", {"nodeTopology": {"matchExpressions": LONG}}),
    ],
)
def test_an_object_that_cannot_be_read_stops_no_watch(kind: str, document: dict[str, Any]) -> None:
    """If an object is unreadable, the watcher continues to watch. It reports the object as a
    problem until the object is fixed or deleted."""
    cluster = Cluster()
    document = {"metadata": {"name": "odd"}, **document}
    cluster.see(kind, document)
    assert len(cluster.view.problems) == 1
    cluster.view.audiences[kind].gone(msgspec.json.encode(document))
    assert cluster.view.problems == {}


def test_H13_a_node_without_drivers_has_no_limits() -> None:
    """If the drivers in a node's CSINode are null, the watcher reports no volume limits for the
    node."""
    cluster = Cluster()
    cluster.see("csinodes", {"metadata": {"name": "n1"}, "spec": {"drivers": None}})
    assert (cluster.view.volume_limits("n1"), cluster.view.problems) == ({}, {})


def test_H13_a_driver_that_a_node_lacks_has_the_limit_0() -> None:
    """A CSI driver may require that pods avoid nodes without it (Kubernetes 1.37). The watcher then
    reports the limit 0 for these nodes. It reports them again when the driver's setting changes."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("n1"))
    cluster.see("nodes", kube_node("n2"))
    there = {"name": "csi.example.com", "nodeID": "n1"}
    cluster.see("csinodes", {"metadata": {"name": "n1"}, "spec": {"drivers": [there]}})
    cluster.write([*cluster.facts.nodes(cluster.view.take().nodes)])
    opted = {"preventPodSchedulingIfMissing": True}
    for version, (spec, limits) in enumerate(((opted, {"csi.example.com": 0}), ({}, {})), 2):
        driver: dict[str, Any] = {"metadata": {"name": "csi.example.com"}, "spec": spec}
        cluster.see("csidrivers", driver, version=version)
        (fact,) = cluster.facts.nodes(cluster.view.take().nodes)
        assert isinstance(fact.data, NodeObserved)
        assert (fact.data.node, fact.data.volume_limits) == ("n2", limits)
        assert fact.data.version == version
        cluster.write([fact])


def test_what_no_event_can_hold_of_a_pod_is_left_out() -> None:
    """The watcher's event about a pod omits claims whose names are too long, and claims beyond the
    maximum number."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("n1"))
    theirs: dict[str, Any] = {"schedulerName": "default-scheduler", "limits": {}}
    own = {"name": "scratch-of-the-pod", "ephemeral": {"volumeClaimTemplate": {}}}
    many = [
        {"name": f"v{at}", "persistentVolumeClaim": {"claimName": f"c{at}"}} for at in range(300)
    ]
    cluster.pod("p" * 240, on="n1", volumes=[own], **theirs)
    cluster.pod("q", on="n1", volumes=many, **theirs)
    (fact,) = cluster.facts.nodes(["n1"])
    read = msgspec.json.decode(msgspec.json.encode(fact.data), type=NodeObserved)
    assert sorted(len(each.volume_claims) for each in read.others) == [0, 256]


def test_a_claim_that_was_deleted_behind_the_watchers_back() -> None:
    """If a claim was deleted while the watcher was down, it is reported as missing after the first
    list."""
    cluster = Cluster()
    told = VolumeClaimObserved(namespace="default", claim="data", state="bound")
    cluster.pod("p", volumes=MOUNTED)
    cluster.write(list(cluster.facts.arrivals(["p"])))
    cluster.ledger.play(told)
    cluster.view.take()
    cluster.view.audiences["persistentvolumeclaims"].listing()
    cluster.view.audiences["persistentvolumeclaims"].listed(9)
    (missing,) = volume_facts(cluster)
    assert missing.state == "missing"
