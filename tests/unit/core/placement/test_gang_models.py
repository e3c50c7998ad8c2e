"""Tests of the device models of gangs: a gang gets one model, unless its pods permit more."""

from typing import Any

import pytest

from apportion.core.explain.views import gang_models
from apportion.core.ledger.state import PodState
from apportion.core.placement.gang_models import GangModels
from apportion_schemas import DeviceConstraints, NodeConstraints, PodSubmitted, RefusalCode
from tests.support.fleet import A100_40, A100_80, T4, V100, gpu, node, npu, observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod, shape

C = RefusalCode


def workers(count: int, *asks: Any, first: int = 0, **fields: Any) -> list[PodSubmitted]:
    """Return members `m0`, `m1` and so on. Each requests one whole GPU by default."""
    return [
        member(f"m{n}", shape=shape(*(asks or (cards(),)), **fields))
        for n in range(first, first + count)
    ]


def used(ledger: Ledger) -> dict[str, int]:
    """Return how many pods of the gang use each model."""
    return gang_models(ledger.state, ledger.state.groups["team/job"])


@pytest.mark.parametrize("models", [(T4, V100), (V100, T4)])
def test_a_gang_takes_the_model_that_has_room_for_all(models: tuple[str, str]) -> None:
    """A gang is placed on the model that has enough devices, whichever model its first pod would
    get alone."""
    small, large = models
    ledger = Ledger(rack("n1", 3, model=small), rack("n2", 4, model=large))
    ledger.play(gang(min_available=4)).submit(*workers(4)).settle()
    assert used(ledger) == {large: 4}


def test_one_pod_of_a_gang_does_not_mix_models_either() -> None:
    """A gang's pod with several containers gets devices of one model, even if the node has devices
    of two models."""
    mixed = node("n1", gpu("g0", model=T4), gpu("g1", model=V100))
    asks = (ask(1000, container="a"), ask(1000, container="b"))
    ledger = Ledger(mixed, gang(min_available=2))
    ledger.submit(*workers(2, *asks, device_policy="spread")).settle()
    assert len(used(ledger)) == 1
    assert sum(used(ledger).values()) == 2


def test_a_gang_that_no_model_has_room_for_is_refused() -> None:
    """A gang that fits only on a mix of models is pending. The refusal counts the nodes with
    devices of another model, and how many pods fit on the best model."""
    ledger = Ledger(rack("n1", 2, model=T4), rack("n2", 3, model=V100))
    ledger.play(gang(min_available=4)).submit(*workers(4)).settle()
    refused = ledger.refusal("m0")
    assert refused.reasons == {C.GANG_MODEL_MISMATCH: 1}
    assert refused.gang is not None
    assert (refused.gang.needed, refused.gang.present, refused.gang.fitting) == (4, 4, 3)
    assert all(device.idle for name in ("n1", "n2") for device in ledger.node(name).devices)
    ledger.report(rack("n3", 1, model=V100)).settle()
    assert used(ledger) == {V100: 4}


def test_room_that_others_use_is_not_blamed_on_the_model() -> None:
    """If other pods use the devices of a node, a gang's refusal counts the node as in use, even if
    its devices are of another model than the gang's."""
    ledger = Ledger(rack("n1", 2, model=T4), pod("other", cards(2))).settle()
    ledger.report(rack("n2", 3, model=V100)).play(gang(min_available=4))
    ledger.submit(*workers(4)).settle()
    assert ledger.refusal("m0").reasons == {C.DEVICE_IN_USE: 1}
    ledger.gone("other").settle()
    assert ledger.refusal("m0").reasons == {C.GANG_MODEL_MISMATCH: 1}


def test_pods_that_permit_it_get_a_mix() -> None:
    """The pods of a gang with `any_model` get devices of several models."""
    ledger = Ledger(rack("n1", 2, model=T4), rack("n2", 2, model=V100), gang(min_available=4))
    ledger.submit(*(member(f"m{n}", cards(), any_model=True) for n in range(4))).settle()
    assert used(ledger) == {T4: 2, V100: 2}


def test_a_replacement_gets_the_model_of_its_gang() -> None:
    """The replacement of a lost member gets the model of the gang, and is pending while no device
    of this model is free."""
    ledger = Ledger(rack("n1", 2, model=T4), gang(), *workers(2)).settle()
    ledger.report(rack("n2", 2, model=V100)).gone("m0").submit(*workers(1, first=2)).settle()
    assert used(ledger) == {T4: 2}
    t4 = DeviceConstraints(use_types=("T4",))
    ledger.gone("m2").submit(pod("other", shape=shape(cards(), devices=t4))).settle()
    ledger.submit(*workers(1, first=3)).settle()
    assert ledger.refusal("m3").reasons == {C.DEVICE_IN_USE: 1, C.GANG_MODEL_MISMATCH: 1}
    assert ledger.refusal("m3").gang is None
    ledger.gone("other").settle()
    assert used(ledger) == {T4: 2}


def test_elastic_members_get_the_model_of_their_gang() -> None:
    """Pods beyond the gang's minimum are placed on the gang's model only."""
    ledger = Ledger(rack("n1", 3, model=T4), rack("n2", 8, model=V100), gang(), *workers(2))
    ledger.settle()
    (model,) = used(ledger)
    ledger.submit(*workers(8, first=2)).settle()
    assert list(used(ledger)) == [model]


def test_pods_that_need_not_start_together_are_not_restricted() -> None:
    """The pods of a PodGroup with a `minMember` of 1 get devices of any model."""
    ledger = Ledger(rack("n1", 1, model=T4), rack("n2", 1, model=V100), gang(min_available=1))
    ledger.submit(*workers(2)).settle()
    assert used(ledger) == {T4: 1, V100: 1}


def test_members_that_select_different_devices_or_nodes_are_independent() -> None:
    """Members that name different types, or nodes with different labels, get different models."""
    ledger = Ledger(rack("n1", 2, model=T4), rack("n2", 2, model=V100), gang(min_available=4))
    ledger.submit(*workers(2, devices=DeviceConstraints(use_types=("T4",))))
    ledger.submit(*workers(2, first=2, devices=DeviceConstraints(use_types=("V100",)))).settle()
    assert used(ledger) == {T4: 2, V100: 2}
    there = [rack(f"n{n}", 2, model=model) for n, model in ((1, T4), (2, V100))]
    ledger = Ledger(*there, *(observed(f"n{n}", labels={"gpu": f"{n}"}) for n in (1, 2)))
    ledger.play(gang(min_available=4))
    for n in (1, 2):
        on = NodeConstraints(selector={"gpu": f"{n}"})
        ledger.submit(*workers(2, first=2 * n, node=on))
    assert used(ledger.settle()) == {T4: 2, V100: 2}


def test_a_type_that_means_several_models_still_gives_one() -> None:
    """If all members name a type that matches several models, they get one of these models."""
    a100 = DeviceConstraints(use_types=("A100",))
    ledger = Ledger(rack("n1", 3, model=A100_40), rack("n2", 3, model=A100_80))
    ledger.play(gang(min_available=4)).submit(*workers(4, devices=a100)).settle()
    assert ledger.refusal("m0").reasons == {C.GANG_MODEL_MISMATCH: 1}
    ledger.gone("m3").play(gang(min_available=3)).settle()
    assert list(used(ledger).values()) == [3]


def test_one_model_under_two_names_is_one() -> None:
    """A GPU model counts as one model, whether or not a device plugin registers it with the prefix
    `NVIDIA-`."""
    ledger = Ledger(rack("n1", 2, model=A100_80), rack("n2", 2, model=f"NVIDIA-{A100_80}"))
    ledger.play(gang(min_available=4)).submit(*workers(4)).settle()
    assert sum(used(ledger).values()) == 4


def test_each_family_has_its_own_model() -> None:
    """A gang with GPUs and NPUs gets one model of GPU and one model of NPU."""
    cards_of = [gpu("g0", model=T4), gpu("g1", model=V100), gpu("g2", model=V100)]
    ledger = Ledger(node("n1", *cards_of, npu("npu0")), node("n2", npu("npu1")))
    ledger.play(gang(min_available=4)).submit(*workers(2))
    npus = [member(f"a{n}", ask(family="ascend310p")) for n in range(2)]
    ledger.submit(*npus).settle()
    assert used(ledger) == {"Ascend310P3": 2, V100: 2}


def test_a_gang_evicts_pods_from_one_model_only() -> None:
    """To make room for a gang, the scheduler evicts pods from devices of one model only. It chooses
    the model that needs the fewest evictions."""
    ledger = Ledger(rack("n1", 2, model=T4), rack("n2", 2, model=V100))
    for model, count in (("T4", 2), ("V100", 1)):
        of = shape(cards(), devices=DeviceConstraints(use_types=(model,)))
        ledger.submit(*(pod(f"{model}-{n}", shape=of) for n in range(count)))
    ledger.settle().play(gang())
    ledger.submit(*(member(f"m{n}", cards(), priority=9) for n in range(2))).settle()
    assert list(ledger.state.evictions) == ["V100-0"]
    ledger.gone("V100-0").settle()
    assert used(ledger) == {V100: 2}


def test_the_model_of_a_gang_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a gang is placed, the scheduler looks for the gang's model in each pod only a few
    times, even if the gang's first pods have no devices."""
    looks = 0
    original = GangModels._selection

    def counted(self: GangModels, pod: PodState) -> bytes:
        nonlocal looks
        looks += 1
        return original(self, pod)

    monkeypatch.setattr(GangModels, "_selection", counted)
    ledger = Ledger(rack("n1", 40, model=T4), rack("n2", 8, model=V100), gang(min_available=80))
    ledger.submit(*(member(f"a{n}", priority=9) for n in range(40)), *workers(40)).settle()
    assert used(ledger) == {T4: 40}
    assert looks < 10 * 80
