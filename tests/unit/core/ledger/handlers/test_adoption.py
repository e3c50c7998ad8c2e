"""Tests of how the fold handles adopted pods and differences between ledger and cluster.

An adopted pod already runs, but the ledger has no placement of it."""

import pytest
from msgspec import structs

from apportion.core.ledger.digest import digest
from apportion.core.ledger.snapshot import restore, take
from apportion.core.ledger.state import Phase
from apportion_schemas import (
    DifferenceFound,
    LedgerRebuilt,
    PlacementVoided,
    PodAdopted,
    PodPlaced,
    Share,
)
from tests.support.fleet import gpu, node, npu, observed
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, instance, placed, pod, share, wants

CARD = node("n1", gpu("g0"), gpu("g1"))


def adopted(uid: str = "p1", *shares: Share, **fields: object) -> PodAdopted:
    """Return the event that adopts a pod, which already runs on n1 with these shares."""
    wanted = pod(uid, ask(1000), shape=fields.pop("shape", wants(ask(1000))))
    return PodAdopted(pod=uid, node="n1", submitted=wanted, shares=shares, **fields)  # type: ignore[arg-type]


def test_an_adopted_pod_holds_its_shares() -> None:
    """The shares, CPU and memory of an adopted pod count as in use, as if the pod had been placed
    and bound."""
    ledger = Ledger(CARD, adopted("p1", share("g0"), attempt=3, shape=wants(ask(1), cpu_milli=500)))
    held = ledger.pod("p1")
    assert (held.phase, held.attempt, held.bound_revision) == (Phase.BOUND, 3, 2)
    assert ledger.device("g0").memory_free_mib == 81920 - 1000
    assert (ledger.node().cpu_used_milli, list(ledger.node().pods)) == (500, ["p1"])


def test_attempts_after_an_adoption_are_those_of_no_earlier_life() -> None:
    """A placement after an adoption skips attempt numbers that a previous pod with the same uid may
    have used. NATS would drop an event with a used number as a duplicate."""
    void = PlacementVoided(pod="p1", node="n1", attempt=1, reason="no such card")
    ledger = Ledger(CARD, adopted("p1", share("g0"), attempt=1))
    assert ledger.pod("p1").adopted
    ledger.play(void)
    found = ledger.pod("p1")
    assert (found.attempt, found.submitted_revision, found.adopted) == (3, 2, False)
    ledger.play(placed("p1", "n1", [share("g0")], attempt=3), structs.replace(void, attempt=3))
    assert ledger.pod("p1").attempt == 4


def test_a_running_pod_has_been_allocated() -> None:
    """An adopted running pod counts as allocated, because the kubelet has already allocated the
    pod's shares."""
    ledger = Ledger(CARD, adopted("p1", share("g0"), running=True))
    assert ledger.pod("p1").phase is Phase.ALLOCATED


@pytest.mark.parametrize(
    ("held", "free"), [([share("g0")], (80920, 90, 9)), ([share("g0", 80_000, 100)], (1920, 0, 9))]
)
def test_a_report_that_comes_later_offers_what_is_left(
    held: list[Share], free: tuple[int, int, int]
) -> None:
    """While a ledger is rebuilt, pods are adopted before nodes report. A later report offers only
    what these pods leave free."""
    ledger = Ledger(adopted("p1", *held))
    assert not ledger.device("g0").present
    ledger.play(CARD)
    device = ledger.device("g0")
    assert (device.memory_free_mib, device.cores_free, device.slots_free) == free
    assert ledger.gone("p1").device("g0").idle


def test_pods_of_one_absent_card_add_up() -> None:
    """The state adds up the shares of adopted pods on a device that no node has reported yet. When
    a node reports the device, all of these shares count as in use on it."""
    ledger = Ledger(adopted("p1", share("g0")), adopted("p2", share("g0", 2000, 20)), CARD)
    assert ledger.device("g0").memory_free_mib == 81920 - 3000
    assert ledger.device("g0").slots_free == 8


def test_an_absent_card_that_nobody_holds_any_more_is_forgotten() -> None:
    """If no node has reported a device, the state forgets it when its last adopted pod ends."""
    ledger = Ledger(adopted("p1", share("gone")), adopted("p2", share("gone"))).gone("p1", "p2")
    ledger.play(CARD)
    assert "gone" not in ledger.node().by_id
    assert "gone" not in ledger.state.node_of_device


def test_mig_instances_of_an_absent_card_are_held() -> None:
    """MIG instances of adopted pods count as allocated, before and after a node reports their
    device."""
    held = share("g0", 10_000, 0, instance=instance("1g.10gb", 0, 1))
    ledger = Ledger(adopted("p1", held))
    assert "slices needed 1" in ledger.contradict(adopted("p2", held))
    assert ledger.play(node("n1", gpu("g0", mode="mig"))).device("g0").slices == 1


def test_no_decision_touches_what_an_adopted_pod_holds() -> None:
    """The engine does not allocate a device that an adopted pod uses."""
    ledger = Ledger(CARD, adopted("p1", share("g1", 81920, 100), shape=wants(cards())))
    ledger.submit(pod("p2", cards())).settle()
    assert ledger.placement("p2").shares[0].device == "g0"
    ledger.submit(pod("p3", cards())).settle()
    assert ledger.pod("p3").phase is Phase.PENDING


def test_room_is_found_when_an_adopted_pod_ends() -> None:
    """When an adopted pod ends, a pending pod is placed."""
    ledger = Ledger(node("n1", gpu("g0")), adopted("p1", share("g0", 81920, 100)))
    ledger.submit(pod("p2", cards())).settle()
    ledger.gone("p1").settle()
    assert ledger.pod("p2").phase is Phase.PLACED


@pytest.mark.parametrize(
    ("claim", "problem"),
    [
        (adopted("p1", share("g0", 90_000)), "memory_mib needed 90000, available 81920"),
        (adopted("p1", share("g0", 60_000), share("g0", 60_000)), "available 21920"),
        (adopted("p1", share("g0", container="other")), "asks for nothing, and holds a share"),
        (adopted("p1", share("x0")), "device x0 is of node n2"),
        (adopted("p1", share("npu0")), "device npu0 is ascend310p, not nvidia"),
        (adopted("p1", *(share("z", 1 << 24) for _ in range(2))), "than any device has"),
        (adopted("there", share("g0")), "pod there was submitted already"),
    ],
)
def test_what_cannot_be_accounted_for_is_refused_whole(claim: PodAdopted, problem: str) -> None:
    """If one share of an adopted pod contradicts the state, the fold refuses the whole adoption."""
    ledger = Ledger(node("n1", gpu("g0"), npu("npu0")), node("n2", gpu("x0")), pod("there", ask(1)))
    assert problem in ledger.contradict(claim)


def test_an_adopted_pod_is_not_placed_again() -> None:
    """The engine does not place an adopted pod, and the fold refuses a placement of such a pod."""
    ledger = Ledger(CARD, adopted("p1", share("g0")))
    assert not ledger.decide()
    assert "bound already" in ledger.contradict(
        PodPlaced(
            pod="p1", namespace="default", name="p1", attempt=1, node="n1", shares=(),
            score=ledger.placement("p1").score,
        )
    )  # fmt: skip


def test_devices_that_nobody_names_are_closed() -> None:
    """If a pod's devices are unknown, all devices of that family on its node take no new pods."""
    ledger = Ledger(
        node("n1", gpu("g0"), npu("npu0")), observed("n1", unnamed_families=("nvidia",))
    )
    assert not ledger.device("g0").open
    assert "nobody names which" in ledger.device("g0").health_reason
    assert ledger.device("npu0").open
    assert ledger.play(observed("n1")).device("g0").open


def test_differences_are_counted_and_kept_while_the_pod_lives() -> None:
    """The state keeps a difference between ledger and cluster until the pod ends. The count of
    differences never decreases."""
    found = DifferenceFound(kind="annotation", name="default/p1", pod="p1", ledger="a", cluster="b")
    ledger = Ledger(CARD, adopted("p1", share("g0")), found, found)
    assert ledger.state.differences == {"annotation": 2}
    assert ledger.state.differing == {"p1": found}
    ledger.gone("p1")
    assert (ledger.state.differences, ledger.state.differing) == ({"annotation": 2}, {})


def test_a_ledger_with_pods_is_not_rebuilt(golden: Golden) -> None:
    """The fold refuses the event that begins a rebuild if the ledger already has pods."""
    rebuilt = LedgerRebuilt(by="ada", reason="lost", cluster="here", pods=1)
    Ledger(rebuilt, adopted("p1"))
    golden({"one pod": Ledger(adopted("p1")).contradict(rebuilt)})


def test_a_snapshot_has_claims_on_absent_devices() -> None:
    """A snapshot keeps shares of adopted pods even if no node has reported their devices yet."""
    found = DifferenceFound(kind="gone", name="default/p9")
    ledger = Ledger(adopted("p1", share("g0")), found, adopted("p2", share("g1"), running=True))
    again = restore(take(ledger.state))
    assert digest(again) == digest(ledger.state)
