"""Tests of gangs with more pods than one atomic batch can hold. Such a gang is placed in several
batches, as a whole or not at all."""

from typing import Any

import pytest

from apportion.core.ledger import snapshot
from apportion.core.ledger.digest import digest
from apportion.core.ledger.handlers.gangs import is_held
from apportion.core.placement import engine as engine_module
from apportion.core.placement.engine import EVENTS_MAX, NOT_WHOLE, Engine
from apportion.core.placement.gang_turn import GangTurn
from apportion.core.placement.preemption import victims
from apportion_schemas import (
    LabelExpression,
    PlacementVoided,
    PodAdopted,
    PodBound,
    PodConstraints,
    PodPlaced,
    PodSelector,
    PodSubmitted,
    PodTerm,
    SharesAllocated,
)
from apportion_schemas.quantities import GANG_BATCH_MAX, Payload
from tests.support.deciding import decided
from tests.support.fleet import T4, V100, observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod, shape, share
from tests.support.pods import placed as placement

BATCH = 3
RACK = "example.com/rack"
RING = LabelExpression(key="app", operator="In", values=("ring",))


def workers(count: int, first: int = 0) -> list[PodSubmitted]:
    """Return members `m0`, `m1` and so on, each with one whole GPU."""
    return [member(f"m{n}", cards()) for n in range(first, first + count)]


def started(pods: int, *others: Payload, devices: int = 16) -> Ledger:
    """Return a ledger with a gang of `pods` pods, whose batches have at most `BATCH` pods."""
    ledger = Ledger(rack("n1", devices), *others, gang(min_available=pods), *workers(pods))
    ledger.engine.limit_batches(BATCH)
    return ledger


def held(ledger: Ledger) -> list[str]:
    return list(ledger.state.groups["team/job"].held)


def placed(events: list[Payload]) -> list[tuple[str, bool]]:
    return [(event.pod, event.held) for event in events if isinstance(event, PodPlaced)]


def test_a_gang_of_several_batches_is_held_until_the_last() -> None:
    """The pods of a large gang are held until its last pod is placed. Held pods are neither bound
    nor allocated."""
    ledger = started(7)
    assert placed(ledger.decide()) == [("m0", True), ("m1", True), ("m2", True)]
    bound = PodBound(pod="m0", node="n1", attempt=1)
    assert "waits for the rest of its gang" in ledger.contradict(bound)
    devices = tuple(share.device for share in ledger.shares("m0"))
    given = SharesAllocated(pod="m0", node="n1", attempt=1, devices=devices)
    assert "waits for the rest of its gang" in ledger.contradict(given)
    assert placed(ledger.decide()) == [("m3", True), ("m4", True), ("m5", True)]
    assert held(ledger) == [f"m{n}" for n in range(6)]
    assert placed(ledger.decide()) == [("m6", False)]
    assert held(ledger) == []
    ledger.bound("m0")


def test_a_gang_of_one_batch_is_not_held() -> None:
    """If one batch can hold a whole gang, the gang's pods are not held."""
    assert placed(started(3).decide()) == [(f"m{n}", False) for n in range(3)]


def test_a_gang_that_does_not_fit_whole_takes_nothing() -> None:
    """A large gang that does not fit as a whole is refused, and no batch of it is placed."""
    ledger = started(7, devices=6)
    assert placed(ledger.decide()) == []
    refused = ledger.refusal("m0")
    assert refused.gang is not None
    assert (refused.gang.needed, refused.gang.fitting) == (7, 6)


def test_no_other_pod_comes_between_the_batches() -> None:
    """Between two batches of a gang, the scheduler places no other pod, not even one of higher
    priority."""
    ledger = started(7, devices=7)
    ledger.decide()
    ledger.submit(pod("urgent", cards(), priority=9))
    ledger.decide()
    assert placed(ledger.decide()) == [("m6", False)]
    assert ledger.where("urgent") == ""


def test_what_is_placed_is_taken_back_if_the_rest_does_not_fit_any_more() -> None:
    """If another scheduler takes the room that a gang's unplaced pods need, the placements of the
    gang's other pods are voided, and the gang is refused.

    The gang is placed when there is room again."""
    ledger = started(7, pod("other", cards(2)), devices=8)
    ledger.gone("other").decide()
    ledger.submit(pod("thief", cards(3)))
    free = [device.device.id for device in ledger.node().devices if device.idle][:3]
    whole = [share(name, memory_mib=81920, cores=100) for name in free]
    ledger.play(placement("thief", shares=whole))
    events = ledger.decide()
    voids = [event for event in events if isinstance(event, PlacementVoided)]
    assert [(event.pod, event.reason) for event in voids] == [
        (f"m{n}", NOT_WHOLE) for n in range(3)
    ]
    assert held(ledger) == []
    ledger.settle()
    assert not any(ledger.where(f"m{n}") for n in range(7))
    ledger.gone("thief").settle()
    assert all(ledger.where(f"m{n}") for n in range(7))
    assert held(ledger) == []


class CountedTurn(GangTurn):
    """Counts how often the engine plans a gang as a whole."""

    planned = 0

    def take(self, *given: Any) -> Any:
        """Count the call."""
        CountedTurn.planned += 1
        return super().take(*given)


def test_a_gang_is_taken_back_without_more_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a gang's unplaced pods no longer fit, its placements are voided in as many decisions as
    needed. The gang is planned only in the first of these decisions.

    It is then planned once more, and waits until it may fit."""
    ledger = started(7, pod("other", cards()), devices=8)
    ledger.decide()
    ledger.decide()
    free = [device.device.id for device in ledger.node().devices if device.idle][:1]
    ledger.submit(pod("thief", cards()))
    whole = [share(name, memory_mib=81920, cores=100) for name in free]
    ledger.play(placement("thief", shares=whole))
    monkeypatch.setattr(engine_module, "GangTurn", CountedTurn)
    engine = Engine(ledger.state)
    planned = []
    for _ in range(9):
        CountedTurn.planned = 0
        for event in decided(engine, events_max=1).events:
            engine.observe(ledger.take(event))
        planned.append(CountedTurn.planned)
    assert not any(ledger.where(f"m{n}") for n in range(7))
    assert planned == [1, 0, 0, 0, 0, 0, 1, 0, 0]


def test_a_gang_that_was_taken_back_may_fit_elsewhere() -> None:
    """When the placements of a gang have been voided, the gang is placed at once in another rack
    that has room for all of its pods. No further event is needed."""
    ledger = Ledger()
    for name, where in (("n1", "a"), ("n2", "b")):
        ledger.play(rack(name, 7), observed(name, labels={RACK: where}))
    together = PodConstraints(
        affinity=(PodTerm(pods=PodSelector(expressions=(RING,)), topology_key=RACK),)
    )
    made = shape(cards(), pods=together)
    ledger.play(gang(min_available=7))
    ledger.submit(
        *(member(f"m{n}", shape=made, labels={"app": "ring"}, namespace="team") for n in range(7))
    )
    ledger.engine.limit_batches(BATCH)
    ledger.decide()
    first = ledger.where("m0")
    ledger.submit(pod("thief", cards()))
    free = next(device.device.id for device in ledger.node(first).devices if device.idle)
    whole = [share(free, memory_mib=81920, cores=100)]
    ledger.play(placement("thief", first, shares=whole))
    ledger.settle()
    assert {ledger.where(f"m{n}") for n in range(7)} == {"n1", "n2"} - {first}
    assert held(ledger) == []


def test_the_batches_of_a_gang_shrink_with_the_decision() -> None:
    """After the ledger has refused a decision, the next one may have fewer events. The batches of a
    gang shrink in the same way."""
    ledger = started(16)
    ledger.engine.limit_batches(16)
    shrunk = [EVENTS_MAX >> refusals for refusals in (1, 2, 3, 9)]
    assert [len(placed(ledger.decide(events_max=most))) for most in shrunk] == [8, 4, 2, 1]
    ledger.settle()
    assert held(ledger) == []


def test_a_gang_whose_other_pods_are_gone_is_taken_back() -> None:
    """If the pending pods of a gang are deleted between two batches, its held pods are taken
    back."""
    ledger = started(7)
    ledger.decide()
    ledger.gone(*(f"m{n}" for n in range(3, 7))).settle()
    assert held(ledger) == []
    assert [ledger.where(f"m{n}") for n in range(3)] == ["", "", ""]


def test_a_held_pod_that_ends_is_replaced_before_the_gang_starts() -> None:
    """If a held pod ends, the gang starts only once another pod has taken its place."""
    ledger = started(7)
    ledger.decide()
    ledger.gone("m1").submit(*workers(1, first=7)).settle()
    assert held(ledger) == []
    assert all(ledger.where(f"m{n}") for n in (0, 2, 3, 4, 5, 6, 7))


def test_another_scheduler_continues() -> None:
    """If a scheduler has placed only a part of a gang, another scheduler that starts from a
    snapshot places the next batch."""
    ledger = started(7)
    ledger.decide()
    restored = snapshot.restore(snapshot.take(ledger.state))
    assert digest(restored) == digest(ledger.state)
    assert is_held(restored, restored.pods["m0"])
    engine = Engine(restored)
    engine.limit_batches(BATCH)
    assert placed([*decided(engine).events]) == [("m3", True), ("m4", True), ("m5", True)]


def test_a_smaller_minimum_releases_the_held_pods() -> None:
    """If the PodGroup's minimum is lowered to the number of placed pods, the held pods are
    released."""
    ledger = started(7)
    ledger.decide()
    ledger.play(gang(min_available=3))
    assert held(ledger) == []
    ledger.bound("m0").settle()
    assert all(ledger.where(f"m{n}") for n in range(7))


def test_an_adopted_member_that_completes_the_gang_releases_it() -> None:
    """If the missing members of a held gang run already and are adopted, the gang's held pods are
    released. They stay held while any member is missing."""
    ledger = started(5)
    ledger.decide()
    ledger.gone("m3", "m4")
    for n, left in ((3, ["m0", "m1", "m2"]), (4, [])):
        name = next(device.device.id for device in ledger.node().devices if device.idle)
        whole = (share(name, memory_mib=81920, cores=100),)
        member_ = workers(1, first=n)[0]
        ledger.play(PodAdopted(pod=f"m{n}", submitted=member_, node="n1", attempt=1, shares=whole))
        assert held(ledger) == left
    ledger.bound("m0").settle()
    assert [ledger.where(f"m{n}") for n in range(3)] == ["n1"] * 3


def test_a_gang_whose_evictions_need_several_batches_is_not_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scheduler does not evict a gang whose evictions are too many for one batch, because a
    part of the gang would then be evicted alone."""
    monkeypatch.setattr(victims, "GANG_BATCH_MAX", BATCH)
    ledger = started(4, devices=4).settle()
    ledger.submit(pod("urgent", cards(), priority=9)).settle()
    assert ledger.state.evictions == {}
    ledger.gone("m0").settle()
    ledger.submit(pod("more", cards(), priority=9)).settle()
    assert sorted(ledger.state.evictions) == ["m1", "m2", "m3"]


def test_a_large_gang_gets_one_model() -> None:
    """All batches of a gang get devices of the same model."""
    ledger = Ledger(rack("n1", 6, model=T4), rack("n2", 7, model=V100))
    ledger.play(gang(min_available=7)).submit(*workers(7))
    ledger.engine.limit_batches(BATCH)
    ledger.settle()
    assert {ledger.where(f"m{n}") for n in range(7)} == {"n2"}


def test_more_pods_than_a_server_takes_in_one_batch() -> None:
    """If a gang has more pods than one atomic batch can hold, the first decision places as many
    pods as the batch can hold."""
    count = GANG_BATCH_MAX + 100
    ledger = Ledger(*(rack(f"n{n}", 1, slots=250) for n in range(5)))
    ledger.play(gang(min_available=count), *(member(f"m{n}", ask(1)) for n in range(count)))
    sizes = [len(placed([*decided(ledger.engine).events]))]
    assert sizes == [GANG_BATCH_MAX]
