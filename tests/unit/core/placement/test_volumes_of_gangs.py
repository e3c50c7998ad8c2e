"""Tests of gangs and of identical pods whose volume claims differ.

Whether a pod is placed or retried depends on its own claims, not on those of its peers."""

from typing import Any

from apportion_schemas import PodGroupObserved, PodSubmitted, VolumeShortage
from tests.support.ledger_of import Ledger
from tests.support.pods import cards, pod, shape
from tests.unit.core.placement.test_volumes import claim, mounting, zone, zones

GANG = "default/g"


def of_gang(uid: str, *claims: str, **fields: Any) -> PodSubmitted:
    return mounting(uid, *claims, group=GANG, **fields)


def together(least: int) -> PodGroupObserved:
    return PodGroupObserved(group=GANG, min_available=least)


def full(*names: str) -> Ledger:
    """Return a ledger with one node in each zone, whose only GPU is used by a pod of priority zero.

    In zone `a`, for example, that is pod `low-a`."""
    ledger = zones(*names)
    for name in names:
        ledger.play(claim(f"in-{name}", "bound", zone(name)))
        ledger.submit(mounting(f"low-{name}", f"in-{name}", shape=shape(cards()))).settle()
    return ledger


def test_the_room_that_helps_any_of_a_gang_wakes_it() -> None:
    """The scheduler retries a gang if room becomes free that any of its pods can use."""
    ledger = full("a", "b").play(together(1))
    ledger.submit(of_gang("p", "in-a"), of_gang("q", "in-b")).settle()
    assert (ledger.where("p"), ledger.where("q")) == ("", "")
    ledger.gone("low-a").settle()
    assert ledger.where("p") == "n-a"


def test_the_claim_of_any_of_a_gang_wakes_it() -> None:
    """The scheduler retries a gang if the claim of any of its pods changes, even one that the
    refusal does not mention."""
    ledger = zones("a").play(claim("x", "unbound"), claim("y", "unbound"), together(1))
    ledger.submit(of_gang("p", "x"), of_gang("q", "y"), of_gang("r", "x")).settle()
    ledger.play(claim("y")).settle()
    assert [ledger.where(uid) for uid in "pqr"] == ["", "n-a", ""]


def test_a_gang_makes_room_where_the_volume_of_each_is() -> None:
    """If the pods of a gang have volumes in different zones, preemption frees a node in each of
    these zones."""
    ledger = full("a", "b").play(together(2))
    of = {"priority": 9, "shape": shape(cards())}
    ledger.submit(of_gang("p", "in-a", **of), of_gang("q", "in-b", **of)).settle()
    assert sorted(ledger.state.evictions) == ["low-a", "low-b"]


def test_a_gang_looks_again_once_a_claim_of_it_is_elsewhere() -> None:
    """If a gang's claim moves to another zone, the scheduler retries the gang and may evict pods
    there."""
    ledger = full("a", "b").play(claim("x", "first-consumer", zone("a")), together(1))
    ledger.gone("low-a").submit(pod("top", cards(), priority=100)).settle()
    ledger.submit(of_gang("p", "x", priority=9, shape=shape(cards()))).settle()
    assert not ledger.state.evictions
    ledger.play(claim("x", "first-consumer", zone("b"))).settle()
    assert list(ledger.state.evictions) == ["low-b"]


def test_of_a_gang_whose_pods_run_alone_only_one_goes() -> None:
    """If a gang's minimum is one, the scheduler may evict a single one of its pods, as Kubernetes
    does."""
    ledger = zones("a", "b").play(together(1))
    ledger.submit(*(pod(uid, cards(), group=GANG) for uid in ("one", "two"))).settle()
    ledger.submit(pod("h", cards(), priority=9)).settle()
    assert len(ledger.state.evictions) == 1


def test_each_pod_is_told_of_its_own_claim() -> None:
    """If a decision refuses several equal pods because of their claims, each refusal names the
    pod's own claim."""
    ledger = zones("a").play(claim("x", "unbound"), claim("y", "lost"))
    ledger.submit(mounting("p", "x"), mounting("q", "y")).settle()
    assert ledger.refusal("p").volume == VolumeShortage(claim="x", state="unbound")
    assert ledger.refusal("q").volume == VolumeShortage(claim="y", state="lost")


def test_a_pod_whose_node_another_scheduler_chooses_only_has_its_claims() -> None:
    """If another scheduler chooses a pod's node, that scheduler checks the pod's volume claims.

    The engine does not check them."""
    ledger = zones("a").play(claim("x", "unbound", single_pod=True))
    chosen = mounting("p", "x", chooser="default-scheduler")
    ledger.submit(chosen)
    assert ledger.engine._finder.volumes.shortage(ledger.state.pods["p"]) is None
