"""Tests of pods with volume claims: on which nodes they may be placed, and why they are refused."""

from typing import Any

import pytest

from apportion.core.explain.text import words
from apportion_schemas import (
    Neighbour,
    NodeConstraints,
    NodeExpression,
    PodPlaced,
    PodSubmitted,
    RefusalCode,
    VolumeClaimGone,
    VolumeClaimObserved,
    VolumeShortage,
)
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, pod, shape

C = RefusalCode
DRIVER = "csi.example.com"


def zone(*names: str) -> tuple[NodeExpression, ...]:
    return (NodeExpression(key="zone", operator="In", values=names),)


def claim(
    name: str = "data", state: Any = "bound", *terms: tuple[NodeExpression, ...], **fields: Any
) -> VolumeClaimObserved:
    return VolumeClaimObserved(namespace="default", claim=name, state=state, nodes=terms, **fields)


def mounting(uid: str = "p", *claims: str, **fields: Any) -> PodSubmitted:
    """Return a pod that mounts these claims, or the claim `data` by default."""
    fields.setdefault("shape", shape(ask(1_000)))
    return pod(uid, volume_claims=claims or ("data",), **fields)


def zones(*names: str) -> Ledger:
    """Return a ledger with one node in each of these zones: node `n-a` in zone `a`, and so on."""
    ledger = Ledger()
    for name in names:
        ledger.report(rack(f"n-{name}", 1))
        ledger.play(observed(f"n-{name}", labels={"zone": name}, version=1))
    return ledger


def test_H11_a_pod_goes_where_its_volume_is() -> None:
    """A pod is placed on a node that can use its volume. A pod of the same shape without a claim
    may be on any node."""
    ledger = zones("a", "b", "c")
    ledger.play(claim("data", "bound", zone("c")), claim("other", "bound", zone("b")))
    ledger.submit(mounting("p"), mounting("q", "other"), mounting("r", "data")).settle()
    assert [ledger.where(uid) for uid in "pqr"] == ["n-c", "n-b", "n-c"]


def test_all_claims_and_the_affinity_of_the_pod_count_together() -> None:
    """If a pod has several claims and node affinity, its node must satisfy all of them."""
    ledger = zones("a", "b", "c")
    ledger.play(
        claim("x", "bound", zone("a", "b")), claim("y", "first-consumer", zone("b"), zone("c"))
    )
    own = NodeConstraints(required=(zone("b", "c"),))
    ledger.submit(mounting("p", "x", "y", shape=shape(ask(1_000), node=own))).settle()
    assert ledger.where("p") == "n-b"


def test_a_volume_that_is_anywhere_ties_nothing() -> None:
    """A volume without node affinity terms does not restrict the pod's nodes."""
    ledger = zones("a").play(claim())
    ledger.submit(mounting()).settle()
    assert ledger.where("p") == "n-a"


def test_a_volume_on_no_node_is_told_apart_from_labels() -> None:
    """If no node can use a pod's volume, the refusal has a code of its own, not the code for node
    labels."""
    ledger = zones("a", "b").play(claim("data", "bound", zone("x")))
    ledger.submit(mounting()).settle()
    refused = ledger.refusal("p")
    assert refused.reasons == {C.VOLUME_NODE_MISMATCH: 2}
    assert {miss.code for miss in refused.nearest} == {C.VOLUME_NODE_MISMATCH}
    own = NodeConstraints(required=(zone("a"),))
    ledger.submit(mounting("q", shape=shape(ask(1_000), node=own))).settle()
    assert ledger.refusal("q").reasons == {C.VOLUME_NODE_MISMATCH: 1, C.NODE_LABELS_MISMATCH: 1}


def test_a_term_that_matches_nothing_matches_nothing() -> None:
    """A volume whose only node affinity term is empty matches no node."""
    ledger = zones("a").play(claim("data", "bound", ()))
    ledger.submit(mounting()).settle()
    assert ledger.refusal("p").reasons == {C.VOLUME_NODE_MISMATCH: 1}


@pytest.mark.parametrize("state", ["unbound", "unavailable", "lost", "missing", "deleting"])
def test_a_claim_that_is_not_ready_holds_the_pod_back(state: Any) -> None:
    """A pod is refused with a reason while its claim is not ready, and is placed once the claim is
    bound."""
    ledger = zones("a").play(claim("data", state))
    ledger.submit(mounting()).settle()
    refused = ledger.refusal("p")
    assert (refused.reasons, refused.nodes) == ({C.VOLUME_CLAIM_NOT_READY: 0}, 0)
    assert refused.volume == VolumeShortage(claim="data", state=state)
    assert words.refusal(refused).startswith("its PersistentVolumeClaim data ")
    ledger.play(claim()).settle()
    assert ledger.where("p") == "n-a"


def test_a_claim_of_which_nothing_is_told_is_missing() -> None:
    """A claim that the watcher has not reported counts as missing. If the claim's state changes,
    the pod gets another refusal."""
    ledger = zones("a")
    ledger.submit(mounting()).settle()
    assert ledger.refusal("p").volume == VolumeShortage(claim="data", state="missing")
    ledger.play(claim("data", "unbound")).settle()
    assert ledger.refusal("p").volume == VolumeShortage(claim="data", state="unbound")
    ledger.play(VolumeClaimGone(namespace="default", claim="data")).settle()
    assert ledger.refusal("p").volume == VolumeShortage(claim="data", state="missing")


def test_without_kubernetes_claims_mean_nothing() -> None:
    """Without Kubernetes, the scheduler ignores claims."""
    ledger = Ledger(rack("n1", 1)).submit(mounting()).settle()
    assert ledger.where("p") == "n1"


def test_only_one_pod_has_a_claim_of_a_single_pod() -> None:
    """Only one pod at a time may use a ReadWriteOncePod claim, even within one decision. The next
    pod is placed when that pod has ended."""
    ledger = zones("a", "b").play(claim("data", "bound", single_pod=True))
    ledger.submit(mounting("p"), mounting("q"))
    placed = [event.pod for event in ledger.decide() if isinstance(event, PodPlaced)]
    assert placed == ["p"]
    ledger.settle()
    refused = ledger.refusal("q")
    assert refused.reasons == {C.VOLUME_CLAIM_IN_USE: 0}
    assert refused.volume == VolumeShortage(claim="data", state="in-use")
    ledger.gone("p").settle()
    assert ledger.where("q") in ("n-a", "n-b")


def test_pods_of_one_shape_wait_for_their_own_claims() -> None:
    """If two pods of one shape have different claims, each waits only for its own claim."""
    ledger = zones("a").play(claim("x", "unbound"), claim("y"))
    ledger.submit(mounting("p", "x"), mounting("q", "y")).settle()
    assert (ledger.where("p"), ledger.where("q")) == ("", "n-a")


def test_nobody_is_evicted_where_the_volume_is_not() -> None:
    """Preemption considers only nodes that the pod's volume allows."""
    ledger = zones("a", "b").play(claim("data", "bound", zone("b")))
    for name in ("a", "b"):
        ledger.submit(pod(f"low-{name}", cards())).settle()
    ledger.submit(mounting("h", shape=shape(cards()), priority=9)).settle()
    (gone,) = ledger.state.evictions
    assert ledger.where(gone) == "n-b"


def limited(*names: str, limit: int = 1, **fields: Any) -> Ledger:
    """Return a ledger with these nodes, each of which can attach `limit` volumes of one CSI
    driver."""
    ledger = Ledger()
    for name in names:
        ledger.report(rack(name, 1))
        ledger.play(observed(name, volume_limits={DRIVER: limit}, version=1, **fields))
    return ledger


def test_H13_a_node_has_so_many_volumes_of_a_driver() -> None:
    """A node takes no more volumes of a CSI driver than that driver's limit, even within one
    decision.

    A refused pod is placed when another pod has ended."""
    ledger = limited("n1", "n2")
    ledger.play(*(claim(name, driver=DRIVER) for name in "xyz"))
    ledger.submit(*(mounting(uid, uid) for uid in "xyz"))
    assert len([event for event in ledger.decide() if isinstance(event, PodPlaced)]) == 2
    ledger.settle()
    assert {ledger.where("x"), ledger.where("y"), ledger.where("z")} == {"n1", "n2", ""}
    refused = ledger.refusal("z")
    assert refused.reasons == {C.VOLUMES_EXHAUSTED: 2}
    assert (refused.nearest[0].needed, refused.nearest[0].available) == (1, 0)
    ledger.gone("x").settle()
    assert ledger.where("z")


def test_a_volume_of_several_pods_counts_once_on_a_node() -> None:
    """A volume counts once per node. On a node that is at its limit, a pod therefore still fits if
    the node already has its volume."""
    ledger = limited("n1", "n2").play(claim("x", driver=DRIVER), claim("y", driver=DRIVER))
    ledger.submit(mounting("p", "x")).settle()
    ledger.submit(mounting("r", "y")).settle()
    ledger.submit(mounting("q", "x")).settle()
    assert ledger.where("q") == ledger.where("p") != ledger.where("r")


def test_H13_a_node_without_a_driver_that_its_volumes_need() -> None:
    """A limit of 0 means that the node lacks the driver. It then takes no pod with such a volume,
    even if another pod there mounts the volume."""
    ledger = limited("n1", "n2").play(claim("x", driver=DRIVER))
    ledger.submit(mounting("p", "x")).settle()
    for name in ("n1", "n2"):
        ledger.play(observed(name, volume_limits={DRIVER: 0}, version=2))
    ledger.submit(mounting("q", "x")).settle()
    assert ledger.refusal("q").reasons == {C.VOLUMES_EXHAUSTED: 2}
    other = "n1" if ledger.where("p") == "n2" else "n2"
    ledger.play(observed(other, version=3)).settle()
    assert ledger.where("q") == other


def test_other_drivers_and_nodes_without_a_limit_have_room() -> None:
    """A node's volume limit applies to one driver only. A limit of zero allows no volume."""
    ledger = limited("n1", limit=0).play(claim("x", driver=DRIVER), claim("y", driver="other"))
    ledger.submit(mounting("p", "y"), mounting("q", "x")).settle()
    assert (ledger.where("p"), ledger.where("q")) == ("n1", "")
    ledger.report(rack("n2", 1)).play(observed("n2", version=2)).settle()
    assert ledger.where("q") == "n2"


def test_volumes_of_other_schedulers_pods_count() -> None:
    """Volumes of other schedulers' pods count towards a node's limit, even if their driver is
    reported later."""
    theirs = Neighbour(namespace="default", volume_claims=("t",))
    ledger = limited("n1", limit=2, others=(theirs,))
    ledger.play(*(claim(name, driver=DRIVER) for name in "xy"))
    ledger.submit(mounting("p", "x", "y", shape=shape(ask(50_000)))).settle()
    assert ledger.where("p") == "n1"  # the driver of claim t is not known yet
    ledger.gone("p").play(claim("t", driver=DRIVER))
    ledger.submit(mounting("q", "x", "y", shape=shape(ask(50_000)))).settle()
    assert ledger.refusal("q").reasons == {C.VOLUMES_EXHAUSTED: 1}
    ledger.play(observed("n1", volume_limits={DRIVER: 2}, version=2)).settle()
    assert ledger.where("q") == "n1"


def test_a_claim_of_a_single_pod_that_another_schedulers_pod_has() -> None:
    """A ReadWriteOncePod claim is in use while a pod of another scheduler mounts it."""
    theirs = Neighbour(namespace="default", volume_claims=("data",), count=2)
    ledger = Ledger(rack("n1", 1)).play(observed("n1", others=(theirs,), version=1))
    ledger.play(claim("data", "bound", single_pod=True)).submit(mounting()).settle()
    assert ledger.refusal("p").volume == VolumeShortage(claim="data", state="in-use")
    ledger.play(observed("n1", version=2)).settle()
    assert ledger.where("p") == "n1"
