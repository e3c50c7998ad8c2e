"""Tests of rows of the compatibility table about policies, gangs, queues, causes of refusals, and
nodes that another device plugin manages."""

import pytest
from msgspec import structs

from apportion.core.explain.text import words
from apportion.core.workloads.kinds.drafts import submitted
from apportion_schemas import (
    Device,
    DeviceConstraints,
    NodeReported,
    NodeWeights,
    PodSubmitted,
    PolicyChanged,
    QueueObserved,
    RefusalCode,
)
from tests.support.fleet import T4, gpu, node, observed, rack
from tests.support.ledger_of import Ledger
from tests.support.manifests import draft
from tests.support.manifests import pod as manifest
from tests.support.pods import ask, cards, gang, member, pod, shape, share, wants
from tests.support.pods import placed as placement

CARD = [share("a-g0", 81920, 100)]


@pytest.mark.parametrize(
    ("policy", "weight", "where"),
    [("binpack", 10, "a"), ("binpack", 0, "b"), ("spread", 10, "b"), ("spread", 0, "a")],
)
def test_A5_policy_with_a_weight(policy: str, weight: int, where: str) -> None:
    """The policy's weights decide whether used devices or used CPU make a node fuller."""
    weights = NodeWeights(cpu=1, memory=1, devices=weight)
    change = PolicyChanged(by="ann", node_policy=policy, node_weights=weights)  # type: ignore[arg-type]
    ledger = Ledger(change, rack("a", 2), rack("b", 2))
    ledger.play(observed("a", cpu_milli=16_000), observed("b", cpu_milli=16_000))
    ledger.play(pod("x", cards()), placement("x", "a", CARD))
    ledger.play(pod("y", shape=wants(cpu_milli=12_000)), placement("y", "b"))
    ledger.submit(pod("p", shape=wants(ask(1000), cpu_milli=1000))).settle()
    assert ledger.where("p") == where


@pytest.mark.parametrize(("weights", "where"), [((1, 10), "a"), ((10, 1), "b")])
def test_C5_node_binpack_by_resource(weights: tuple[int, int], where: str) -> None:
    """A binpack weight of `nvidia.com/gpu: 10` prefers the node whose GPUs are in use over the node
    whose CPU is in use."""
    cpu, devices = weights
    change = PolicyChanged(
        by="ann", node_policy="binpack", node_weights=NodeWeights(cpu=cpu, devices=devices)
    )
    ledger = Ledger(change, rack("a", 2), rack("b", 2))
    ledger.play(observed("a", cpu_milli=16_000), observed("b", cpu_milli=16_000))
    ledger.play(pod("x", cards()), placement("x", "a", CARD))
    ledger.play(pod("y", shape=wants(cpu_milli=12_000)), placement("y", "b"))
    ledger.submit(pod("p", shape=wants(ask(1000), cpu_milli=1000))).settle()
    assert ledger.where("p") == where


@pytest.mark.parametrize(("policy", "device"), [("binpack", "n1-g1"), ("spread", "n1-g0")])
def test_C5_cards_of_a_node(policy: str, device: str) -> None:
    """The annotation `hami.io/gpu-scheduler-policy` decides whether a pod gets a device in use or
    an idle one."""
    notes = {"hami.io/gpu-scheduler-policy": policy}
    found = draft(manifest({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}, notes))
    ledger = Ledger(rack("n1", 2), pod("x", ask(1)), placement("x", "n1", [share("n1-g1")]))
    assert ledger.submit(pod("p", shape=found.shape)).settle().devices("p") == [device]


def exclusive(name: str, index: int = 0) -> Device:
    """Return a GPU that NVIDIA's own plugin allocates only as a whole."""
    return gpu(name, index=index, mode="exclusive", slots=1)


def beside() -> NodeReported:
    """Return a node whose two GPUs NVIDIA's own plugin allocates."""
    return node("theirs", exclusive("e0"), exclusive("e1", 1))


def test_B5_nodes_of_the_plain_plugin_give_whole_cards() -> None:
    """A pod with `nvidia.com/gpu: 2` gets two whole devices on a node of NVIDIA's own plugin, as
    without Apportion."""
    found = draft(manifest({"nvidia.com/gpu": 2}))
    ledger = Ledger(beside(), pod("p", shape=found.shape)).settle()
    assert ledger.devices("p") == ["e0", "e1"]


@pytest.mark.parametrize(
    "limits",
    [
        {"docker.com/vcuda-core": 20, "docker.com/vcuda-memory": 10},
        {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000},
    ],
)
def test_E5_no_share_goes_to_a_node_of_the_plain_plugin(limits: dict[str, object]) -> None:
    """A share is never placed on a node whose devices NVIDIA's plugin allocates."""
    found = draft(manifest(limits))
    ledger = Ledger(beside(), pod("p", shape=found.shape)).settle()
    assert ledger.reasons("p") == {RefusalCode.MODE_MISMATCH: 1}
    ledger.play(rack("ours", 1)).settle()
    assert ledger.where("p") == "ours"


def test_B7_a_node_without_an_agent_takes_no_part() -> None:
    """A node without an agent offers no devices."""
    ledger = Ledger(observed("bare"), pod("p", cards())).settle()
    assert ledger.reasons("p") == {RefusalCode.NO_SUCH_DEVICE: 1}


def test_B7_a_pod_may_choose_the_labelled_nodes() -> None:
    """The selector `nodeSelector: {nvidia-device-enable: enable}` from gpu-manager's documentation
    selects nodes."""
    label = {"nvidia-device-enable": "enable"}
    found = draft(manifest({"docker.com/vcuda-core": 100}, nodeSelector=label))
    ledger = Ledger(rack("a", 1), observed("a"), rack("b", 1), observed("b", labels=label))
    assert ledger.submit(pod("p", shape=found.shape)).settle().where("p") == "b"


def test_C6_priority_goes_first() -> None:
    """If two pods wait for one device, the scheduler places the pod with the higher priority, even
    if it came later."""
    ledger = Ledger(rack("n1", 1), pod("low", cards()), pod("high", cards(), priority=100))
    ledger.settle()
    assert (ledger.where("high"), ledger.where("low")) == ("n1", "")


def test_C6_a_gang_waits_for_all_of_its_pods() -> None:
    """A gang with `minAvailable: 3` reserves nothing while only two of its pods fit."""
    ledger = Ledger(rack("n1", 2), gang(min_available=3))
    ledger.submit(*(member(f"m{n}", cards()) for n in range(3)), pod("other", cards())).settle()
    assert [ledger.where(f"m{n}") for n in range(3)] == ["", "", ""]
    assert ledger.where("other") == "n1"
    ledger.play(rack("n2", 2)).settle()
    assert all(ledger.where(f"m{n}") for n in range(3))


QUEUED = {"scheduling.volcano.sh/queue-name": "ml"}


def queued(uid: str, limits: dict[str, object]) -> PodSubmitted:
    """Return a pod with these limits whose manifest names the queue `ml`."""
    return submitted(structs.replace(draft(manifest(limits, QUEUED)), name=uid), uid)


@pytest.mark.parametrize(
    ("resource", "limits"),
    [
        ("volcano.sh/vgpu-number", {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000}),
        ("volcano.sh/vgpu-number", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}),
        ("volcano.sh/vgpu-memory", {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1}),
        ("volcano.sh/gpu-memory", {"volcano.sh/gpu-memory": 1}),
        ("volcano.sh/gpu-number", {"volcano.sh/gpu-number": 1}),
        ("nvidia.com/gpu", {"nvidia.com/gpu": 1}),
        ("cpu", {"volcano.sh/vgpu-number": 1, "cpu": "1m"}),
    ],
)
def test_C6_a_queue_holds_no_more_than_its_capability(
    resource: str, limits: dict[str, object]
) -> None:
    """A queue's capability makes the third pod wait, even if that pod uses other resource names."""
    ledger = Ledger(rack("n1", 8), QueueObserved(queue="ml", capability={resource: 2}))
    ledger.submit(*(queued(f"p{n}", limits) for n in range(3)), pod("other", cards())).settle()
    assert [ledger.where(uid) for uid in ("p0", "p1", "p2", "other")] == ["n1", "n1", "", "n1"]
    assert f"short of {resource}: 0" in words.refusal(ledger.refusal("p2"))
    assert ledger.gone("p0").settle().where("p2") == "n1"


def test_C6_queues_share_by_their_weight() -> None:
    """Queues with weights 2 and 1 get eight and four of twelve devices, whatever the order of
    arrival."""
    queues = [QueueObserved(queue="ml", weight=2), QueueObserved(queue="web", weight=1)]
    ledger = Ledger(rack("n1", 8), rack("n2", 4), *queues)
    for name in ("web", "ml"):
        ledger.submit(*(pod(f"{name}{n}", cards(), queue=name) for n in range(12)))
    ledger.settle()
    has = {name: sum(bool(ledger.where(f"{name}{n}")) for n in range(12)) for name in ("ml", "web")}
    assert has == {"ml": 8, "web": 4}


def test_C6_a_gang_is_in_its_queue_whole_or_not_at_all() -> None:
    """The scheduler does not place a gang that exceeds its queue's capability, even if devices are
    free."""
    ledger = Ledger(rack("n1", 4), QueueObserved(queue="ml", capability={"nvidia.com/gpu": 2}))
    ledger.play(gang(min_available=3, queue="ml"))
    ledger.submit(*(member(f"m{n}", cards()) for n in range(3))).settle()
    assert [ledger.where(f"m{n}") for n in range(3)] == ["", "", ""]
    ledger.play(QueueObserved(queue="ml", capability={"nvidia.com/gpu": 3})).settle()
    assert all(ledger.where(f"m{n}") for n in range(3))


def test_E6_the_card_quota_of_a_queue() -> None:
    """The annotation `volcano.sh/card.quota: {"NVIDIA-A100-SXM4-80GB": 1}` allows one GPU of that
    model and no other model."""
    quota = QueueObserved(queue="ml", cards={"NVIDIA-A100-SXM4-80GB": 1})
    ledger = Ledger(rack("a", 4), rack("b", 4, model=T4), quota)
    ledger.submit(*(queued(f"p{n}", {"nvidia.com/gpu": 1}) for n in range(2))).settle()
    assert [ledger.where(uid) for uid in ("p0", "p1")] == ["a", ""]
    assert RefusalCode.QUEUE_CARDS_EXCEEDED in ledger.reasons("p1")
    assert ledger.gone("p0").settle().where("p1") == "a"


CAUSES = [
    ("plugin off", [observed("n1")], shape(cards()), "no device of the requested family"),
    (
        "exclusive mode",
        [rack("n1", 1, mode="exclusive")],
        shape(ask(1)),
        "in the requested sharing mode",
    ),
    (
        "in use",
        [rack("n1", 1), pod("x", ask(1)), placement("x", "n1", [share("n1-g0")])],
        shape(cards()),
        "too few empty devices",
    ),
    (
        "spread of cards off",
        [rack("n1", 1), pod("x", ask(1)), placement("x", "n1", [share("n1-g0")])],
        shape(ask(1), device_policy="mutex"),
        "too few empty devices",
    ),
    (
        "no matching type",
        [rack("n1", 1, model=T4)],
        shape(ask(1), devices=DeviceConstraints(use_types=("A100",))),
        "of a type that the pod accepts",
    ),
]


@pytest.mark.parametrize("cause", CAUSES, ids=[cause[0] for cause in CAUSES])
def test_C9_causes_are_told(cause: tuple[str, list[object], object, str]) -> None:
    """The sentence of a refusal states the cause, for each scheduling problem that Volcano
    lists."""
    _, events, wanted, says = cause
    ledger = Ledger(*events, pod("p", shape=wanted)).settle()  # type: ignore[arg-type]
    assert says in words.refusal(ledger.refusal("p"))
