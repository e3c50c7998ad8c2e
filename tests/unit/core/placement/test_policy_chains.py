"""Tests of HAMi's policy annotations and Volcano's weights: how they order devices and nodes."""

import pytest

from apportion_schemas import DeviceWeights, NodeWeights, Policy, PolicyChanged, RefusalCode
from tests.support.fleet import gpu, node, observed
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, pod, shape, share, wants
from tests.support.pods import placed as placement

NUMA = node("n1", gpu("g0", numa=1), gpu("g1", numa=0), gpu("g2", numa=1), gpu("g3", numa=0))


def chosen(policy: str, count: int = 1, weights: DeviceWeights | None = None) -> list[str]:
    """Return the devices that a pod with this policy gets while g2 and g3 are partly used."""
    held = [share("g2", 1000, 10), share("g3", 9000, 50)]
    ledger = Ledger(NUMA, pod("x", ask(1)), placement("x", "n1", held))
    wanted = shape(ask(2000, count=count), device_policy=policy, device_weights=weights)
    return ledger.submit(pod("p", shape=wanted)).settle().devices("p")


@pytest.mark.parametrize(
    ("policy", "devices"),
    [
        ("binpack", ["g3", "g2"]),
        ("spread", ["g0", "g1"]),
        ("numa", ["g1", "g3"]),
        ("numa,binpack", ["g3", "g1"]),
        ("binpack,numa", ["g3", "g2"]),
        ("spread,numa", ["g1", "g0"]),
        ("mutex", ["g0", "g1"]),
        ("mutex,numa", ["g1", "g0"]),
        ("topology-aware", ["g0", "g1"]),
    ],
)
def test_keys_in_their_order(policy: str, devices: list[str]) -> None:
    """In a policy chain such as `numa,binpack`, the first key decides, and later keys break ties.

    Any remaining tie goes to the device with the lowest index."""
    assert chosen(policy, 2) == devices


def test_mutex_wants_idle_devices() -> None:
    """A pod with policy `mutex` gets only idle devices. If there are too few, its refusal says that
    devices are in use."""
    wanted = shape(ask(1000, count=3), device_policy="mutex")
    ledger = Ledger(NUMA, pod("x", ask(1)), placement("x", "n1", [share("g2"), share("g3")]))
    ledger.submit(pod("p", shape=wanted)).settle()
    assert ledger.reasons("p") == {RefusalCode.DEVICE_IN_USE: 1}
    assert ledger.refusal("p").nearest[0].device == "g2"
    ledger.gone("x").settle()
    assert len(ledger.devices("p")) == 3
    ledger.submit(pod("other", ask(1000))).settle()
    assert ledger.where("other") == "n1", "others may join later"


def test_scoring_weights_decide_what_full_is() -> None:
    """The scoring weights decide whether a device with two small shares or a device with much used
    memory counts as fuller."""
    report = node("n1", gpu("g0"), gpu("g1"))
    held = [share("g0", 100, 0), share("g0", 100, 0), share("g1", 60_000, 0)]
    for weights, device in (((9, 0, 0), "g0"), ((0, 0, 9), "g1"), ((1, 1, 3), "g1")):
        slots, cores, memory = weights
        own = DeviceWeights(slots=slots, cores=cores, memory=memory)
        wanted = shape(ask(1000), device_policy="binpack", device_weights=own)
        ledger = Ledger(report, pod("x", ask(1)), placement("x", "n1", held))
        assert ledger.submit(pod("p", shape=wanted)).settle().devices("p") == [device]


def weighed(policy: Policy, weights: NodeWeights | None) -> Ledger:
    """Return a ledger with two nodes: `a` has CPU in use, `b` has a GPU in use."""
    change = PolicyChanged(by="ann", node_policy=policy, node_weights=weights)
    ledger = Ledger(change, node("a", gpu("a0"), gpu("a1")), node("b", gpu("b0"), gpu("b1")))
    ledger.play(observed("a", cpu_milli=16_000), observed("b", cpu_milli=16_000))
    ledger.play(pod("x", shape=wants(cpu_milli=12_000)), placement("x", "a"))
    return ledger.play(pod("y", cards()), placement("y", "b", [share("b0", 81920, 100)]))


@pytest.mark.parametrize(
    ("policy", "weights", "where"),
    [
        ("binpack", NodeWeights(devices=10), "b"),
        ("binpack", NodeWeights(cpu=10), "a"),
        ("binpack", NodeWeights(cpu=10, devices=0), "a"),
        ("spread", NodeWeights(cpu=10), "b"),
        ("spread", NodeWeights(devices=10), "a"),
        ("binpack", None, "b"),
    ],
)
def test_node_weights(policy: Policy, weights: NodeWeights | None, where: str) -> None:
    """The weights of CPU and devices decide which of two nodes counts as fuller."""
    ledger = weighed(policy, weights)
    wanted = wants(ask(1000), cpu_milli=1000)
    score = ledger.submit(pod("p", shape=wanted)).settle().placement("p").score
    assert (score.node, set(score.parts)) == (where, {policy})
    assert 0 <= score.total <= 100


def test_a_resource_that_is_not_asked_for_does_not_count() -> None:
    """Only resources that the pod requests affect the scores of nodes."""
    ledger = weighed("binpack", NodeWeights(devices=1000))
    ledger.submit(pod("p", shape=wants(cpu_milli=1000))).settle()
    assert ledger.where("p") == "a"
