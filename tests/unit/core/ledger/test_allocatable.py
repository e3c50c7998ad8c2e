"""Tests of the GPU memory and cores that a node shows to Kubernetes as allocatable."""

import pytest
from msgspec import structs

from apportion.core.ledger.allocatable import beyond, cards, of_plugins, shown
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import PodAdopted, PodGone, ResizeAsked, Share
from tests.support.fleet import T4, gpu, node, npu
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod

PLAIN = DialectConfig()
NAMES = (
    "nvidia.com/gpumem",
    "nvidia.com/gpucores",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-cores",
)


def amounts(memory: int, cores: int) -> dict[str, int]:
    """Return these amounts of memory and cores under HAMi's and Volcano's resource names."""
    return dict(zip(NAMES, (memory, cores, memory, cores), strict=True))


def test_what_is_shown_is_what_the_cards_have() -> None:
    """A node shows the memory and cores of all its shareable GPUs, even unhealthy ones. NPUs and
    GPUs of NVIDIA's own plugin do not count."""
    ledger = Ledger(
        node(
            "n1", gpu("g0", model=T4), gpu("g1", model=T4, healthy=False), npu("npu2"),
            gpu("g3", mode="exclusive"),
        )
    )  # fmt: skip
    assert shown(ledger.node(), PLAIN) == amounts(2 * 15_360, 200)


def test_a_node_without_gpus_shows_nothing() -> None:
    """A node with NPUs only shows no GPU memory and cores."""
    assert shown(Ledger(node("n1", npu("npu0"))).node(), PLAIN) == {}


def test_units_and_names_are_the_configurations() -> None:
    """The configuration decides resource names and units. Each device's amount is converted
    separately and rounded down."""
    ledger = Ledger(node("n1", gpu("g0", memory_mib=1000), gpu("g1", memory_mib=1000)))
    config = DialectConfig(
        memory_factor=256, hami=structs.replace(PLAIN.hami, memory="example.com/memory")
    )
    found = cards(ledger.node(), config)
    assert found["example.com/memory"] == found["volcano.sh/vgpu-memory"] == 2 * 3
    assert "nvidia.com/gpumem" not in found


def test_several_cards_of_one_container_count_once() -> None:
    """A request for 3,000 MiB on each of two devices does not raise the node's allocatable memory.

    The kubelet counts the container's limit only once."""
    ledger = Ledger(node("n1", gpu("g0"), gpu("g1")), pod("p", ask(3000, count=2, cores=30)))
    ledger.settle()
    assert beyond(ledger.pod("p"), ledger.node(), PLAIN) == {}


def test_an_amount_above_the_card_is_shown_beside_it() -> None:
    """If a pod requests more memory than its device has, the node's allocatable memory grows.

    Volcano caps such a request, but the kubelet counts it whole."""
    ledger = Ledger(
        node("n1", gpu("g0", model=T4)),
        pod("p", ask(20_000, cap_memory=True), dialect="volcano-vgpu"),
    ).settle()
    assert shown(ledger.node(), PLAIN) == amounts(15_360, 100) | {"volcano.sh/vgpu-memory": 20_000}
    ledger.gone("p")
    assert shown(ledger.node(), PLAIN) == amounts(15_360, 100)


def test_a_pod_that_was_made_smaller_wrote_what_it_wrote() -> None:
    """If a pod is shrunk, the node's allocatable amounts grow by the difference, because the
    kubelet still counts the pod's original limits."""
    ledger = Ledger(node("n1", gpu("g0", model=T4)), pod("p", ask(10_000, cores=60))).settle()
    ledger.bound("p").allocated("p")
    ledger.play(ResizeAsked(pod="p", by="ann", memory_mib=2_000, cores=20)).settle()
    assert ledger.shares("p")[0].memory_mib == 2_000
    wrote = {"p": {"nvidia.com/gpumem": 10_000, "nvidia.com/gpucores": 60}}
    found = shown(ledger.node(), PLAIN, wrote)
    assert found["nvidia.com/gpumem"] == 15_360 + 8_000
    assert found["nvidia.com/gpucores"] == 100 + 40
    assert found["volcano.sh/vgpu-memory"] == 15_360


def test_a_card_that_is_gone_is_shown_as_far_as_pods_are_on_it() -> None:
    """If a device leaves its node, the allocatable amounts still include the pods' shares of it.

    The kubelet still counts these pods."""
    there = node("n1", gpu("g0", model=T4), gpu("g1", model=T4))
    ledger = Ledger(there, pod("p", ask(10_000)), pod("q", ask(10_000))).settle()
    gone = ledger.devices("p")[0]
    left = tuple(device for device in there.devices if device.id != gone)
    ledger.play(structs.replace(there, devices=left))
    assert shown(ledger.node(), PLAIN)["nvidia.com/gpumem"] == 15_360 + 10_000
    ledger.gone("p")
    assert shown(ledger.node(), PLAIN)["nvidia.com/gpumem"] == 15_360


@pytest.mark.parametrize("dialect", ["ascend", "docker.com/vcuda", "nvidia"])
def test_pods_of_other_names_wrote_nothing_of_these(dialect: str) -> None:
    """A pod with vcuda's or Ascend's resource names does not raise the allocatable GPU amounts."""
    ledger = Ledger(
        node("n1", gpu("g0", model=T4)), pod("p", ask(20_000, cap_memory=True), dialect=dialect)
    ).settle()
    assert beyond(ledger.pod("p"), ledger.node(), PLAIN) == {}


def test_what_others_bound_raises_nothing() -> None:
    """A pod that another scheduler bound to the node does not raise the node's allocatable amounts.

    If the node is full, the kubelet can therefore reject the pod."""
    ledger = Ledger(node("n1", gpu("g0", model=T4)))
    about = pod("sent", ask(20_000))
    held = Share(container=about.shape.asks[0].container, device="g0", memory_mib=1_000, cores=0)
    for attempt, more in ((0, {}), (1, {"nvidia.com/gpumem": 19_000})):
        adopted = PodAdopted(
            pod="sent", node="n1", submitted=about, shares=(held,), attempt=attempt, evidence="test"
        )
        ledger.play(adopted)
        assert beyond(ledger.pod("sent"), ledger.node(), PLAIN) == more
        ledger.play(PodGone(uid="sent"))


def test_the_names_that_other_plugins_leave_with_the_kubelet() -> None:
    """These include the names of gpu-manager under both prefixes, in its units, and of Volcano's
    older plugin. Without devices, all amounts are 0."""
    devices = [gpu("g0", model=T4), gpu("g1", model=T4), gpu("g2", mode="exclusive"), npu("npu3")]
    found = of_plugins(devices, PLAIN)
    assert found == amounts(2 * 15_360, 200) | {
        "volcano.sh/gpu-memory": 2 * 15_360,
        "tencent.com/vcuda-core": 200,
        "tencent.com/vcuda-memory": 120,
        "docker.com/vcuda-core": 200,
        "docker.com/vcuda-memory": 120,
    }
    assert dict.fromkeys(found, 0) == of_plugins([], PLAIN)
