"""What is told of claims of volumes, and when."""

from typing import Any

from apportion_schemas import VolumeClaimGone
from tests.unit.watcher.followed_cluster import Cluster


def volume_facts(cluster: Cluster, *uids: str) -> list[Any]:
    """What is to be told of claims, those of these pods among them, and is told."""
    facts = list(cluster.facts.volume_claims(cluster.view.take().volume_claims, uids))
    cluster.write(facts)
    return [fact.data for fact in facts]


def kube_claim(**annotations: str) -> dict[str, Any]:
    """A claim of the volume v."""
    meta = {"name": "data", "annotations": annotations}
    return {"metadata": meta, "spec": {"volumeName": "v", "storageClassName": "s"}}


COMPLETED = {"pv.kubernetes.io/bind-completed": "yes"}
MOUNTED = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]


def test_a_claim_is_told_with_the_pod_that_mounts_it_and_forgotten_with_the_last() -> None:
    """Nobody's claims are told of; one that is missing is, for the pod waits for it."""
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
    """They are compared again when it changes."""
    cluster = Cluster()
    claim = {"metadata": {"name": "data"}, "spec": {"storageClassName": "s"}}
    cluster.see("persistentvolumeclaims", claim)
    cluster.pod("p", volumes=MOUNTED)
    (told,) = volume_facts(cluster, "p")
    assert told.state == "unbound"
    cluster.write(list(cluster.facts.arrivals(["p"])))
    waits = {"volumeBindingMode": "WaitForFirstConsumer", "provisioner": "x"}
    cluster.see("storageclasses", {"metadata": {"name": "s"}, **waits}, version=2)
    (told,) = volume_facts(cluster)
    assert told.state == "first-consumer"


def test_a_volume_that_cannot_be_read_is_a_problem_by_name() -> None:
    """What was told of its claim stands."""
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
    assert "Like" in cluster.view.problems["PersistentVolumeClaim default/data"]
