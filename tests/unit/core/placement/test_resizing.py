"""Tests of resize requests for running pods: the new shares, and why a request is refused."""

from typing import Any

import pytest

from apportion.core.explain.text.words import resize_refused
from apportion.core.explain.why import why
from apportion.core.ledger import snapshot
from apportion.core.ledger.digest import digest
from apportion_schemas import PodResized, QuotaObserved, ResizeAsked, ResizeRefused, Share
from tests.support.fleet import A100_40, gpu, node, npu, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod, shape


def running(*asks: Any, memory_mib: int = 10_000) -> Ledger:
    """Return a ledger with one device of this memory, on which pod `a` runs with these requests."""
    ledger = Ledger(rack("n1", 1, memory_mib=memory_mib), pod("a", *asks)).settle()
    return ledger.bound("a").allocated("a")


def wish(uid: str = "a", **fields: Any) -> ResizeAsked:
    return ResizeAsked(pod=uid, by="ann", **fields)


def answer(ledger: Ledger, asked: ResizeAsked) -> PodResized | ResizeRefused:
    """Fold a user's resize request and the scheduler's answer to it. Return that answer."""
    ledger.play(asked)
    (event,) = ledger.decide()
    assert isinstance(event, PodResized | ResizeRefused)
    assert event.asked == ledger.state.revision - 1
    assert not ledger.state.resizes
    return event


def test_a_pod_that_runs_gets_more_and_less_where_it_is() -> None:
    """A running pod grows and shrinks on its device.

    The device's free amounts, the pod's request and the answer of `why` change accordingly."""
    ledger = running(ask(4000, cores=30))
    answer(ledger, wish(memory_mib=9000, cores=60))
    (share,) = ledger.pod("a").placement.shares  # type: ignore[union-attr]
    assert (share.memory_mib, share.cores) == (9000, 60)
    card = ledger.device("n1-g0")
    assert (card.memory_free_mib, card.cores_free) == (1000, 40)
    (held,) = why(ledger.state, ledger.pod("a")).placed.shares  # type: ignore[union-attr]
    assert held.share == share
    (asks,) = ledger.pod("a").submitted.shape.asks
    assert (asks.memory_mib, asks.cores) == (9000, 60)
    answer(ledger, wish(memory_mib=2000))
    assert (card.memory_free_mib, card.cores_free) == (8000, 40)
    ledger.gone("a")
    assert (card.memory_free_mib, card.cores_free, card.slots_free) == (10_000, 100, 10)


def test_who_waits_for_the_room_that_is_given_back_gets_it() -> None:
    """If a running pod shrinks, the scheduler places a pending pod that fits into the freed
    room."""
    ledger = running(ask(9000)).submit(pod("b", ask(4000))).settle()
    assert ledger.where("b") == ""
    answer(ledger, wish(memory_mib=6000))
    ledger.settle()
    assert ledger.where("b") == "n1"


def test_one_of_several_containers_is_resized_by_name() -> None:
    """If a pod has several containers with devices, a resize request must name one of them."""
    ledger = running(ask(1000, container="one"), ask(2000, container="two"))
    refused = answer(ledger, wish(memory_mib=3000))
    assert isinstance(refused, ResizeRefused)
    assert resize_refused(refused).endswith(" one, two")
    refused = answer(ledger, wish(memory_mib=3000, container="log"))
    assert isinstance(refused, ResizeRefused)
    assert "one, two" in resize_refused(refused)
    resized = answer(ledger, wish(memory_mib=3000, container="two"))
    assert isinstance(resized, PodResized)
    assert {share.container: share.memory_mib for share in resized.shares} == {
        "one": 1000,
        "two": 3000,
    }


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"memory_mib": 20_000}, "n1-g0 has 10,000 MiB in total, but 20,000 MiB are requested"),
        ({"memory_mib": 8_000}, "n1-g0 has 3,000 MiB free, but 4,000 MiB more are needed"),
        ({"cores": 90}, "n1-g0 has 20 % of its cores free, but 60 % more are needed"),
    ],
)
def test_never_more_than_the_card_has(fields: dict[str, Any], said: str) -> None:
    """If a device has too little left for a resize, the scheduler refuses the request with the
    amounts and changes nothing."""
    ledger = running(ask(4000, cores=30)).submit(pod("b", ask(3000, cores=50))).settle()
    before = ledger.shares("a")
    refused = answer(ledger, wish(**fields))
    assert isinstance(refused, ResizeRefused)
    assert resize_refused(refused) == said
    assert ledger.pod("a").placement.shares == before  # type: ignore[union-attr]


def test_a_quota_counts_what_a_pod_has_been_resized_to() -> None:
    """A quota counts the resized amount of a pod. A resize that would exceed the quota is refused
    with the quota's name."""
    quota = QuotaObserved(quota="gpus", namespace="default", hard={"nvidia.com/gpumem": 6000})
    ledger = Ledger(rack("n1", 1), quota, pod("a", ask(4000))).settle().bound("a")
    assert isinstance(answer(ledger, wish(memory_mib=5000)), PodResized)
    refused = answer(ledger, wish(memory_mib=7000))
    assert isinstance(refused, ResizeRefused)
    said = resize_refused(refused)
    assert (" gpus " in said, "6,000" in said) == (True, True)
    ledger.submit(pod("b", ask(2000))).settle()
    assert ledger.where("b") == ""
    answer(ledger, wish(memory_mib=4000))
    ledger.settle()
    assert ledger.where("b") == "n1"


@pytest.mark.parametrize(
    ("device", "mode"),
    [
        (gpu("g0", model=A100_40, mode="mig", slots=7), "nvidia mig"),
        (gpu("g0", mode="mps"), "nvidia mps"),
        (npu("g0"), "ascend310p vnpu"),
    ],
)
def test_shares_of_one_size_are_refused_by_the_name_of_their_mode(device: Any, mode: str) -> None:
    """MIG instances, MPS shares and vNPUs cannot be resized. The scheduler refuses the request and
    names the mode."""
    family = {"family": device.family} if device.family != "nvidia" else {}
    ledger = Ledger(node("n1", device), pod("a", ask(3000, **family))).settle().bound("a")
    refused = answer(ledger, wish(memory_mib=4000))
    assert isinstance(refused, ResizeRefused)
    assert refused.mode == mode


def test_wishes_and_answers_that_contradict_the_ledger_change_nothing() -> None:
    """The fold refuses a resize request for a pod that is not running.

    It also refuses an answer without an open request, or with shares that do not fit."""
    ledger = running(ask(4000)).submit(pod("b", ask(900_000))).settle()
    assert "not bound" in ledger.contradict(wish("b", memory_mib=1))
    assert "not live" in ledger.contradict(wish("z", memory_mib=1))
    resized = answer(ledger, wish(memory_mib=5000))
    assert "nobody waits" in ledger.contradict(resized)
    ledger.play(wish(memory_mib=6000))
    asked = ledger.state.revision
    fields: dict[str, Any] = {
        "pod": "a",
        "namespace": "default",
        "name": "a",
        "attempt": 1,
        "node": "n1",
    }
    other = Share(container="main", device="n1-g9", memory_mib=1, cores=0)
    assert "other devices" in ledger.contradict(PodResized(**fields, asked=asked, shares=(other,)))
    (share,) = ledger.pod("a").placement.shares  # type: ignore[union-attr]
    huge = Share(container=share.container, device=share.device, memory_mib=99_999, cores=0)
    assert "needed 99999" in ledger.contradict(PodResized(**fields, asked=asked, shares=(huge,)))


def test_a_wish_ends_with_its_pod_and_outlives_a_snapshot() -> None:
    """An open resize request is kept in snapshots, and is dropped when its pod ends."""
    ledger = running(ask(4000)).play(wish(memory_mib=5000))
    restored = snapshot.restore(snapshot.take(ledger.state))
    assert digest(restored) == digest(ledger.state)
    assert restored.resizes == ledger.state.resizes
    ledger.gone("a")
    assert not ledger.state.resizes


def test_a_pod_that_is_placed_anew_keeps_its_size() -> None:
    """If a resized pod's placement is voided, the scheduler places the pod again with its new
    size."""
    ledger = Ledger(rack("n1", 1), pod("a", shape=shape(ask(4000)))).settle().bound("a")
    answer(ledger, wish(memory_mib=5000))
    ledger.voided("a").settle()
    assert ledger.shares("a")[0].memory_mib == 5000
