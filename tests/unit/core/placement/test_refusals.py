"""Tests that every refusal code occurs in a decision, with the needed and the available amount."""

import pytest

from apportion.core.placement.feasibility.causes import LIMIT_CODES
from apportion_schemas import (
    Ask,
    Device,
    DeviceConstraints,
    DeviceCordoned,
    Disk,
    HostPort,
    LabelExpression,
    NearMiss,
    NodeCordoned,
    NodeGone,
    NodeSilent,
    PodConstraints,
    PodRefused,
    PodSelector,
    PodTerm,
    RefusalCode,
    Shape,
    SpreadConstraint,
    Taint,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import A100_40, T4, gpu, node, npu, observed, rack, registered
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, instance, member, pod, shape, share, wants
from tests.support.pods import placed as placement

C = RefusalCode
X = DeviceConstraints
MIG = node("n1", gpu("m0", model=A100_40, mode="mig"))
B2 = node("n1", npu("u0", family="ascend910b2", model="Ascend910B2", memory_mib=65536, cores=24))
P = PodConstraints
APP = PodSelector(expressions=(LabelExpression(key="app", operator="Exists"),))
NEAR_APP = PodTerm(pods=APP, topology_key="kubernetes.io/hostname")
LINKED = node(
    "n1",
    gpu("g0", nvlink_lanes={"g1": 12}),
    gpu("g1", nvlink_lanes={"g0": 12}),
    gpu("g2"),
    gpu("g3"),
)
NEAR = node("n1", gpu("g0", numa=0), gpu("g1", numa=1))


def held(*shares: object, report: Payload = MIG) -> tuple[Payload, ...]:
    """Return the events of a node and of a pod that has these shares on it."""
    return report, pod("x"), placement("x", "n1", shares)  # type: ignore[arg-type]


def small(start: int) -> object:
    return share("m0", 5120, 0, instance=instance("1g.5gb", start, 1))


def die(index: int) -> Device:
    """Return one die of an Ascend 910C module. Each die is a separate NPU."""
    return npu(f"d{index}", family="ascend910c", model="Ascend910C", memory_mib=65536, cores=20)


XPU = gpu("x0", family="kunlun-vxpu", model="XPU", memory_mib=98304, mode="vnpu")
TEMPLATES = [share("u0", 32768, 12, template="vir12_3c_32g")] + [
    share("u0", 8192, 3, template="vir03_1c_8g")
] * 3
TAINTED = observed("n1", taints=(Taint(key="k", effect="NoSchedule"),))
CORDON = NodeCordoned(node="n1", by="ann", reason="kernel")
THEIRS = registered("n1")
FAN = DeviceCordoned(device="n1-g0", by="ann", reason="fan")
NPU = ask(8000, family="ascend910b2")
DIES = cards(2, family="ascend910c")
BOTH = shape(cards(2), devices=X(numa_bind=True))
ONE = (rack("n1", 1),)
PORT = HostPort(port=80)
PORT_TAKEN = (pod("web", shape=wants(ports=(PORT,))), placement("web"))
DISK = Disk(name="gce/a")
DISK_TAKEN = (pod("web", shape=wants(disks=(DISK,))), placement("web"))
Reached = tuple[tuple[Payload, ...], Shape, int, int, str]
REACHED: dict[RefusalCode, Reached] = {
    C.NODE_GONE: ((*ONE, NodeGone(node="n1")), shape(ask(1)), 1, 0, ""),
    C.NODE_NOT_READY: ((*ONE, observed("n1", ready=False)), shape(ask(1)), 1, 0, ""),
    C.AGENT_SILENT: ((*ONE, NodeSilent(node="n1", grace_s=40)), shape(ask(1)), 1, 0, ""),
    C.DEVICE_PLUGIN_FOREIGN: ((*ONE, THEIRS), shape(ask(1)), 1, 0, ""),
    C.NODE_CORDONED: ((*ONE, CORDON), shape(ask(1)), 1, 0, ""),
    C.NODE_UNSCHEDULABLE: ((*ONE, observed("n1", unschedulable=True)), shape(ask(1)), 1, 0, ""),
    C.TAINT_NOT_TOLERATED: ((*ONE, TAINTED), shape(ask(1)), 1, 0, ""),
    C.NODE_LABELS_MISMATCH: (ONE, wants(ask(1), selector={"zone": "a"}), 1, 0, ""),
    C.CPU_INSUFFICIENT: (ONE, wants(ask(1), cpu_milli=300_000), 300_000, 256_000, ""),
    C.HOST_MEMORY_INSUFFICIENT: (ONE, wants(memory_mib=2_000_001), 2_000_001, 2_000_000, ""),
    C.PODS_EXHAUSTED: ((*ONE, observed("n1", pods=0)), shape(ask(1)), 1, 0, ""),
    C.EXTENDED_RESOURCE_INSUFFICIENT: (ONE, wants(extended={"example.com/nic": 2}), 2, 0, ""),
    C.HOST_PORT_TAKEN: ((*ONE, *PORT_TAKEN), wants(ports=(PORT,)), 1, 0, ""),
    C.DISK_IN_USE: ((*ONE, *DISK_TAKEN), wants(disks=(DISK,)), 1, 0, ""),
    C.NO_SUCH_DEVICE: (ONE, shape(NPU), 1, 0, ""),
    C.MODE_MISMATCH: (ONE, shape(ask(1), devices=X(modes=("mps",))), 1, 0, ""),
    C.TYPE_MISMATCH: (ONE, shape(ask(1), devices=X(use_types=("T4",))), 1, 0, ""),
    C.UUID_MISMATCH: (ONE, shape(ask(1), devices=X(use_ids=("GPU-x",))), 1, 0, ""),
    C.INDEX_MISMATCH: (ONE, shape(ask(1), devices=X(indexes=(3,))), 1, 0, ""),
    C.DEVICES_TOO_FEW: (ONE, shape(cards(2)), 2, 1, ""),
    C.MIG_NO_PROFILE: ((MIG,), shape(ask(50_000)), 50_000, 40_448, "m0"),
    C.TEMPLATE_NONE_FITS: ((B2,), shape(ask(70_000, family="ascend910b2")), 70_000, 65_536, "u0"),
    C.DEVICE_UNHEALTHY: ((rack("n1", 1, healthy=False),), shape(ask(1)), 1, 0, "n1-g0"),
    C.DEVICE_CORDONED: ((*ONE, FAN), shape(ask(1)), 1, 0, "n1-g0"),
    C.DEVICE_IN_USE: (held(share("n1-g0"), report=ONE[0]), shape(cards()), 10, 9, "n1-g0"),
    C.SLOTS_EXHAUSTED: (
        held(share("n1-g0"), report=rack("n1", 1, slots=1)),
        shape(ask(1)),
        1,
        0,
        "n1-g0",
    ),
    C.CORES_INSUFFICIENT: (
        held(share("n1-g0", cores=80), report=ONE[0]),
        shape(ask(1, cores=30)),
        30,
        20,
        "n1-g0",
    ),
    C.MEMORY_INSUFFICIENT: (
        held(share("n1-g0", 80_000), report=ONE[0]),
        shape(ask(2000)),
        2000,
        1920,
        "n1-g0",
    ),
    C.MIG_SLICES_OCCUPIED: (held(small(6), small(3)), shape(ask(20_000)), 1, 0, "m0"),
    C.SIZES_DIFFER: (
        held(share("x0", 24576, 25, template="24g"), report=node("n1", XPU)),
        shape(ask(49152, family="kunlun-vxpu")),
        1,
        0,
        "x0",
    ),
    C.TEMPLATE_CPU_INSUFFICIENT: (held(*TEMPLATES, report=B2), shape(NPU), 1, 0, "u0"),
    C.NUMA_MISMATCH: ((NEAR,), BOTH, 2, 1, ""),
    C.POD_AFFINITY_MISMATCH: (ONE, shape(pods=P(affinity=(NEAR_APP,))), 1, 0, ""),
    C.POD_ANTI_AFFINITY: (
        (*ONE, pod("x", labels={"app": "a"}), placement("x", "n1")),
        shape(pods=P(anti_affinity=(NEAR_APP,))),
        1,
        0,
        "",
    ),
    C.TOPOLOGY_SPREAD_EXCEEDED: (
        ONE,
        shape(pods=P(spread=(SpreadConstraint(pods=APP, topology_key="zone"),))),
        1,
        0,
        "",
    ),
    C.MODULES_IN_USE: ((node("n1", die(0), die(2)),), shape(DIES), 2, 1, ""),
    C.CONTAINERS_COLLIDE: (ONE, shape(ask(50_000), ask(50_000, container="b")), 1, 0, ""),
}


@pytest.mark.parametrize("code", REACHED)
def test_every_code_is_reached(code: RefusalCode) -> None:
    """Every refusal code occurs in some cluster of one node, with the right amounts."""
    events, asked, needed, available, device = REACHED[code]
    ledger = Ledger(*events, pod("p", shape=asked))
    (refused,) = ledger.decide()
    assert isinstance(refused, PodRefused)
    assert (refused.reasons, refused.nodes) == ({code: 1}, 1)
    assert refused.nearest == (
        NearMiss(node="n1", code=code, needed=needed, available=available, device=device),
    )


def test_no_code_is_left_out() -> None:
    """The cases of this module cover every refusal code, except those of gangs, limits, volumes,
    and nodes kept for other pods.

    The excepted codes do not come from filters, and have their own tests."""
    volumes = {C.VOLUME_CLAIM_NOT_READY, C.VOLUME_CLAIM_IN_USE}
    volumes |= {C.VOLUME_NODE_MISMATCH, C.VOLUMES_EXHAUSTED}
    gangs = {C.GANG_INCOMPLETE, C.GANG_MODEL_MISMATCH, C.GANG_DOMAIN_TOO_SMALL}
    others = {*gangs, C.NODE_NOMINATED, C.NODE_RESERVED, *LIMIT_CODES, *volumes}
    missing = ", ".join(sorted(set(C) - set(REACHED) - others))
    advice = "add a row to REACHED: a cluster, a pod that it refuses, and the amounts; missing"
    assert not missing, f"{advice}: {missing}"


def test_incomplete_gang() -> None:
    """If a gang lacks pods, its refusal counts no nodes, because the scheduler compared none."""
    ledger = Ledger(*ONE, gang(min_available=3), member("a", ask(1)), member("b", ask(1)))
    ledger.decide()
    refused = ledger.refusal("a")
    assert refused.reasons == {C.GANG_INCOMPLETE: 0}
    assert refused.gang is not None
    assert (refused.gang.needed, refused.gang.present, refused.gang.fitting) == (3, 2, 0)


def test_nodes_are_counted_by_the_filter_that_stopped_them() -> None:
    """A refusal counts each node once, by the first filter that the node fails."""
    ledger = Ledger(
        rack("a", 1, model=T4),
        rack("b", 1, model=T4),
        node("c", npu("u0")),
        rack("d", 2),
        pod("p", cards(3)),
    )
    ledger.decide()
    assert ledger.reasons("p") == {C.DEVICES_TOO_FEW: 3, C.NO_SUCH_DEVICE: 1}
    assert ledger.refusal("p").nodes == 4


def test_a_node_is_stopped_by_the_last_device_that_it_would_have_needed() -> None:
    """If a pod requests two devices and only one fits, the refusal shows the next best device and
    what it lacks."""
    devices = (gpu("g0"), gpu("g1", memory_mib=900), gpu("g2", healthy=False))
    ledger = Ledger(node("n1", *devices), pod("p", ask(1000, count=2)))
    ledger.decide()
    assert ledger.reasons("p") == {C.MEMORY_INSUFFICIENT: 1}
    (miss,) = ledger.refusal("p").nearest
    assert (miss.device, miss.needed, miss.available) == ("g1", 1000, 900)


@pytest.mark.parametrize(
    ("constraints", "code"),
    [
        (X(use_ids=("elsewhere",), indexes=(0,)), C.UUID_MISMATCH),
        (X(use_ids=("n1-g0",), indexes=(7,)), C.INDEX_MISMATCH),
        (X(use_ids=("elsewhere",), use_types=("T4",)), C.TYPE_MISMATCH),
    ],
)
def test_the_first_rule_that_fails_is_named(
    constraints: DeviceConstraints, code: RefusalCode
) -> None:
    """If a device fails several filters, the refusal shows the first of them, in the fixed order of
    filters."""
    ledger = Ledger(*ONE, pod("p", shape=shape(ask(99_999), devices=constraints)))
    ledger.decide()
    assert ledger.reasons("p") == {code: 1}


def test_alone_on_a_device_of_one_slot_is_in_use_not_full() -> None:
    """If a pod requests a whole device and the only one is in use, the refusal code is
    DEVICE_IN_USE."""
    ledger = Ledger(*held(share("n1-g0"), report=rack("n1", 1, slots=1)), pod("p", cards()))
    ledger.decide()
    assert ledger.reasons("p") == {C.DEVICE_IN_USE: 1}


def test_nearest_misses_are_the_three_that_lack_least() -> None:
    """A refusal names the three nearest nodes. A node is nearer if it passes more filters, or if it
    passes equally many and lacks less."""
    sizes = {"a": 500, "b": 990, "c": 100, "d": 900, "e": 700}
    ledger = Ledger(
        *(rack(name, 1, memory_mib=mib) for name, mib in sizes.items()),
        rack("full", 1, cores=10, memory_mib=999),
        node("bare"),
        pod("p", ask(1000, cores=20)),
    )
    ledger.decide()
    refused = ledger.refusal("p")
    assert [(miss.node, miss.available) for miss in refused.nearest] == [
        ("b", 990),
        ("d", 900),
        ("e", 700),
    ]
    assert refused.reasons == {
        C.MEMORY_INSUFFICIENT: 5,
        C.CORES_INSUFFICIENT: 1,
        C.NO_SUCH_DEVICE: 1,
    }


@pytest.mark.parametrize("events", [(), (observed("n1"),), (node("n1"),)])
def test_where_there_is_no_device_at_all(events: tuple[Payload, ...]) -> None:
    """If the cluster has no node, or if its node has no device, the refusal says so."""
    ledger = Ledger(*events, pod("p", ask(1)))
    ledger.decide()
    assert ledger.reasons("p") == ({C.NO_SUCH_DEVICE: 1} if events else {})
    assert ledger.refusal("p").nodes == len(events)


def test_the_first_ask_that_fails_names_the_reason() -> None:
    """If a pod has several device requests, the refusal shows the first one that does not fit."""
    asks: list[Ask] = [ask(1000, container="fits"), ask(99_999, container="does not")]
    ledger = Ledger(*ONE, pod("p", *asks))
    ledger.decide()
    (miss,) = ledger.refusal("p").nearest
    assert (miss.code, miss.needed, miss.available) == (C.MEMORY_INSUFFICIENT, 99_999, 81_920)
