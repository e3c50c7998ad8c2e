"""Tests of which events the watcher appends for pods with ResourceClaims."""

from typing import Any

from apportion.core.dra.names import container_of
from apportion.core.workloads.adoption.placement_annotations import ATTEMPT, SHARES, shares_text
from apportion_schemas import PodGone, PodRejected, PodSubmitted, Share
from tests.support.fleet import gpu, node, observed
from tests.support.kube_claims import claiming_pod, request, resource_claim
from tests.support.kube_objects import managed_fields
from tests.unit.watcher.kubernetes.followed_cluster import Cluster


class Claiming(Cluster):
    """A fake cluster whose watcher supports DRA."""

    def __init__(self) -> None:
        super().__init__()
        self.reader.claimed = self.view.claims.drafted
        self.reader.configure(self.ledger.state.configuration)

    def claim(self, name: str = "mine", version: int = 1, **status: Any) -> None:
        """Let the watcher see a ResourceClaim from the API server."""
        document = resource_claim(name, request(memory="1Gi"))
        self.see("resourceclaims", document | {"status": status}, version, f"uid-{name}")

    def claiming(self, uid: str, claim: str = "mine", version: int = 1, **fields: Any) -> None:
        """Report to the watcher a pod that uses this ResourceClaim."""
        document = claiming_pod(uid, claim, template=fields.pop("template", False))
        self.see("pods", document | {"status": {"phase": "Pending"} | fields}, version, uid)

    def told(self) -> list[Any]:
        """Append the facts to the ledger, and return them."""
        facts = self.pod_facts()
        for fact in facts:
            self.ledger.take(fact.data)
        return [fact.data for fact in facts]


def test_a_pod_comes_with_what_its_claim_asks_for() -> None:
    """The watcher submits a pod once, with the devices that the pod's ResourceClaim requests."""
    cluster = Claiming()
    cluster.claim()
    cluster.claiming("p")
    (said,) = cluster.told()
    assert isinstance(said, PodSubmitted)
    assert [ask.container for ask in said.shape.asks] == [container_of("uid-mine")]
    assert cluster.told() == []


def test_a_pod_is_read_again_when_its_claim_comes() -> None:
    """If a pod's ResourceClaim is missing, the watcher rejects the pod. It submits the pod once the
    claim exists."""
    cluster = Claiming()
    cluster.claiming("p")
    (said,) = cluster.told()
    assert isinstance(said, PodRejected)
    assert (said.field, said.value) == ("spec.resourceClaims[0].resourceClaimName", '"mine"')
    cluster.claim()
    (said,) = cluster.told()
    assert isinstance(said, PodSubmitted)


def test_a_pod_whose_claim_is_made_of_a_template_waits_in_silence() -> None:
    """If a pod's ResourceClaim comes from a template, the watcher reports the pod only once the
    claim exists."""
    cluster = Claiming()
    cluster.claiming("p", template=True)
    assert cluster.told() == []
    made = [{"name": "card", "resourceClaimName": "p-card-1"}]
    cluster.claiming("p", version=2, template=True, resourceClaimStatuses=made)
    assert cluster.told() == []
    cluster.claim("p-card-1", 3)
    (said,) = cluster.told()
    assert isinstance(said, PodSubmitted)


def test_of_two_pods_the_second_waits_until_the_first_has_gone() -> None:
    """If two pods use the same ResourceClaim, the watcher rejects the second pod. It submits that
    pod when the first one is gone and the claim's reservation is released."""
    cluster = Claiming()
    cluster.claim()
    cluster.claiming("p")
    cluster.claiming("q")
    first, second = cluster.told()
    assert isinstance(first, PodSubmitted)
    assert isinstance(second, PodRejected)
    assert (second.uid, second.field.startswith("spec.resourceClaims")) == ("q", True)
    cluster.claim(version=2, reservedFor=[{"resource": "pods", "name": "p", "uid": "p"}])
    assert not any(isinstance(each, PodSubmitted) for each in cluster.told())
    cluster.view.note_gone("p", "deleted")
    cluster.view.pods.pop("p")
    assert [type(each) for each in cluster.told()] == [PodGone]
    assert not any(isinstance(each, PodSubmitted) for each in cluster.told())  # still reserved
    cluster.claim(version=3)
    (said,) = cluster.told()
    assert isinstance(said, PodSubmitted)
    assert said.uid == "q"


def test_what_changes_of_a_claim_does_not_bring_back_an_old_pod() -> None:
    """When a ResourceClaim changes, the watcher keeps the newest version of the claim's pod and
    does not fall back to an older one."""
    cluster = Claiming()
    cluster.claim()
    cluster.claiming("p")
    cluster.told()
    bound = claiming_pod("p", "mine")
    bound["spec"]["nodeName"] = "n1"
    cluster.see("pods", bound | {"status": {"phase": "Running"}}, 5, "p")
    cluster.claim(version=6)
    cluster.view.take()
    assert cluster.view.pods["p"].node == "n1"


def test_without_the_setting_claims_are_refused() -> None:
    """If DRA is disabled, the watcher rejects a pod with ResourceClaims. The reason names the field
    and the option that enables DRA."""
    cluster = Cluster()
    document = claiming_pod("p", "mine")
    cluster.see("pods", document | {"status": {"phase": "Pending"}}, 1, "p")
    (fact,) = cluster.pod_facts()
    assert isinstance(fact.data, PodRejected)
    assert fact.data.field == "spec.resourceClaims"
    assert "--dra" in fact.data.fix


def test_a_pod_that_is_bound_holds_what_its_claims_were_given() -> None:
    """If a bound pod has ResourceClaims, the watcher adopts the pod with the shares in its
    annotations, even if DRA is disabled."""
    cluster = Cluster()
    cluster.ledger.play(node("n1", gpu("g0")), observed("n1"))
    held = Share(container=container_of("uid-mine"), device="g0", memory_mib=1024, cores=0)
    document = claiming_pod("p", "mine")
    document["metadata"]["labels"] = {"app": "trainer"}
    document["metadata"]["managedFields"] = managed_fields(document)
    document["metadata"]["annotations"] = {SHARES: shares_text((held,)), ATTEMPT: "3"}
    document["spec"]["nodeName"] = "n1"
    cluster.see("pods", document | {"status": {"phase": "Running"}}, 5, "p")
    (adoption,) = cluster.adoptions()
    assert adoption.problem == ""
    assert adoption.data.shares == (held,)
    assert adoption.data.submitted.labels == {"app": "trainer"}
    assert [ask.container for ask in adoption.data.submitted.shape.asks] == [held.container]
