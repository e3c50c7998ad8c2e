"""Tests of every filter by itself: which nodes and devices pass it, and which amounts its refusal
shows."""

from typing import Any

import pytest
from msgspec import structs

from apportion.core.devices.demand import Demand, demand
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.handlers.turns import AT_START, handing_out
from apportion.core.ledger.state import NodeState
from apportion.core.placement.feasibility.amounts import AMOUNTS
from apportion.core.placement.feasibility.causes import LIMIT_CODES
from apportion.core.placement.feasibility.devices import DEVICE_RULES
from apportion.core.placement.feasibility.evaluator import (
    FITS,
    ORDER,
    RANK,
    Verdict,
    facts_refusal,
    refused_amount,
    refused_kind,
    refused_node,
)
from apportion.core.placement.feasibility.nodes import FACTS, NODE_FILTERS, matches
from apportion_schemas import (
    Ask,
    Device,
    DeviceConstraints,
    Disk,
    HostPort,
    NodeCordoned,
    NodeExpression,
    NodeGone,
    NodeHeard,
    NodeSilent,
    RefusalCode,
    Shape,
    Share,
    Taint,
    Toleration,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import A100_40, ROOMY, T4, gpu, node, npu, observed, rack, registered
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, instance, pod, share, wants
from tests.support.pods import placed as placement

C = RefusalCode
NIC = {"example.com/nic": 2}
TAINT = Taint(key="team", value="red", effect="NoSchedule")


def node_of(*events: Payload) -> NodeState:
    return Ledger(*events).node()


def tolerating(**fields: Any) -> Shape:
    return wants(tolerations=(Toleration(**fields),))


def expression(key: str, operator: str, *values: str) -> Shape:
    """Return the shape of a pod that requires nodes with this label expression."""
    found = NodeExpression(key=key, operator=operator, values=values)  # type: ignore[arg-type]
    return wants(required=((found,),))


def named(name: str) -> Shape:
    """Return the shape of a pod that requires the node of this name, by `matchFields`."""
    found = NodeExpression(key="metadata.name", operator="In", values=(name,), of_field=True)
    return wants(required=((found,),))


def serving(port: HostPort) -> tuple[Payload, ...]:
    """Return a node with a pod on this host port."""
    return rack("n1", 1), pod("web", shape=wants(ports=(port,))), placement("web")


def having(disk: Disk) -> tuple[Payload, ...]:
    """Return a node with a pod that uses this disk."""
    return rack("n1", 1), pod("web", shape=wants(disks=(disk,))), placement("web")


UNREADY, UNREACHABLE = (
    Taint(key=f"node.kubernetes.io/{name}", effect="NoSchedule")
    for name in ("not-ready", "unreachable")
)
TOLERATED = Toleration(key=UNREADY.key, operator="Exists")
EVICTING = Taint(key=UNREADY.key, effect="NoExecute")
FOR_A_WHILE = Toleration(key=UNREADY.key, operator="Exists", effect="NoExecute")
"""As from kube-apiserver's DefaultTolerationSeconds, without the seconds."""
DISK, READ = Disk(name="gce/a"), Disk(name="gce/a", read_only=True)
HTTP, LOCAL = HostPort(port=80), HostPort(port=80, ip="127.0.0.1")
BUSY = (rack("n1", 1), pod("x", shape=wants(cpu_milli=255_000, memory_mib=1_999_000)))
THEIRS = registered("n1")
LABELLED = observed("n1", labels={"zone": "a", "cards": "8"})
NODES: list[tuple[str, tuple[Payload, ...], Shape, Verdict | None]] = [
    ("a roomy node", (rack("n1", 1),), wants(cpu_milli=1000), None),
    ("gone", (rack("n1", 1), NodeGone(node="n1")), wants(), Verdict(C.NODE_GONE, 1, 0)),
    (
        "named by nobody but a cordon",
        (NodeCordoned(node="n1", by="ann", reason="typo"),),
        wants(),
        Verdict(C.NODE_GONE, 1, 0),
    ),
    (
        "not ready, and a device wanted",
        (rack("n1", 1), observed("n1", ready=False)),
        wants(ask()),
        Verdict(C.NODE_NOT_READY, 1, 0),
    ),
    ("not ready, not tainted", (observed("n1", ready=False),), wants(), None),
    (
        "not ready and tainted",
        (observed("n1", ready=False, taints=(UNREADY,)),),
        wants(),
        Verdict(C.NODE_NOT_READY, 1, 0),
    ),
    (
        "one of two taints of a node that is not ready tolerated",
        (observed("n1", ready=False, taints=(UNREADY, UNREACHABLE)),),
        wants(tolerations=(TOLERATED,)),
        Verdict(C.NODE_NOT_READY, 2, 1),
    ),
    (
        "not ready, and the taint tolerated",
        (observed("n1", ready=False, taints=(UNREADY,)),),
        wants(tolerations=(TOLERATED,)),
        None,
    ),
    (
        "not ready, the taint tolerated, and a device wanted",
        (rack("n1", 1), observed("n1", ready=False, taints=(UNREADY,))),
        wants(ask(), tolerations=(TOLERATED,)),
        None,
    ),
    *(
        (
            f"not ready, evicting only, and tolerated for a while, as every pod does: {name}",
            (rack("n1", 1), observed("n1", ready=False, taints=(EVICTING,))),
            asked,
            None,
        )
        for name, asked in (
            ("no device wanted", wants(tolerations=(FOR_A_WHILE,))),
            ("a device wanted", wants(ask(), tolerations=(FOR_A_WHILE,))),
        )
    ),
    (
        "not ready, evicting only, and tolerated in another effect",
        (rack("n1", 1), observed("n1", ready=False, taints=(EVICTING,))),
        wants(tolerations=(structs.replace(FOR_A_WHILE, effect="NoSchedule"),)),
        Verdict(C.NODE_NOT_READY, 1, 0),
    ),
    (
        "not ready, the taint tolerated, a device wanted, and its agent silent",
        (
            rack("n1", 1),
            observed("n1", ready=False, taints=(UNREADY,)),
            NodeSilent(node="n1", grace_s=40),
        ),
        wants(ask(), tolerations=(TOLERATED,)),
        Verdict(C.AGENT_SILENT, 1, 0),
    ),
    (
        "its agent silent",
        (rack("n1", 1), NodeSilent(node="n1", grace_s=40)),
        wants(),
        Verdict(C.AGENT_SILENT, 1, 0),
    ),
    (
        "its agent silent, a kubelet there, and no device wanted",
        (observed("n1"), NodeSilent(node="n1", grace_s=40)),
        wants(),
        None,
    ),
    (
        "its agent silent, a kubelet there, and a device wanted",
        (rack("n1", 1), observed("n1"), NodeSilent(node="n1", grace_s=40)),
        wants(ask(1)),
        Verdict(C.AGENT_SILENT, 1, 0),
    ),
    (
        "its agent heard again",
        (rack("n1", 1), NodeSilent(node="n1", grace_s=40), NodeHeard(node="n1")),
        wants(),
        None,
    ),
    (
        "HAMi's plugin hands out, and a device wanted",
        (rack("n1", 1), THEIRS),
        wants(ask(1)),
        Verdict(C.DEVICE_PLUGIN_FOREIGN, 1, 0),
    ),
    ("HAMi's plugin hands out, and no device wanted", (rack("n1", 1), THEIRS), wants(), None),
    (
        "HAMi's plugin was there, and our agent hands out",
        (structs.replace(rack("n1", 1), host=handing_out(ROOMY, AT_START)), THEIRS),
        wants(ask(1)),
        None,
    ),
    (
        "HAMi's plugin registered simulated devices",
        (structs.replace(rack("n1", 1), simulated=True), THEIRS),
        wants(ask(1)),
        None,
    ),
    (
        "drained",
        (observed("n1", unschedulable=True),),
        wants(),
        Verdict(C.NODE_UNSCHEDULABLE, 1, 0),
    ),
    (
        "drained, and its taint tolerated",
        (observed("n1", unschedulable=True),),
        tolerating(key="node.kubernetes.io/unschedulable", operator="Exists"),
        None,
    ),
    (
        "drained, and its taint tolerated for another effect",
        (observed("n1", unschedulable=True),),
        tolerating(key="node.kubernetes.io/unschedulable", operator="Exists", effect="NoExecute"),
        Verdict(C.NODE_UNSCHEDULABLE, 1, 0),
    ),
    (
        "cordoned",
        (rack("n1", 1), NodeCordoned(node="n1", by="ann", reason="kernel")),
        wants(),
        Verdict(C.NODE_CORDONED, 1, 0),
    ),
    ("tainted", (observed("n1", taints=(TAINT,)),), wants(), Verdict(C.TAINT_NOT_TOLERATED, 1, 0)),
    (
        "one of two taints tolerated",
        (observed("n1", taints=(TAINT, Taint(key="b", effect="NoExecute"))),),
        tolerating(key="team", operator="Exists"),
        Verdict(C.TAINT_NOT_TOLERATED, 2, 1),
    ),
    (
        "preferably not",
        (observed("n1", taints=(Taint(key="a", effect="PreferNoSchedule"),)),),
        wants(),
        None,
    ),
    (
        "tolerated by key",
        (observed("n1", taints=(TAINT,)),),
        tolerating(key="team", operator="Exists"),
        None,
    ),
    (
        "tolerated by value",
        (observed("n1", taints=(TAINT,)),),
        tolerating(key="team", value="red"),
        None,
    ),
    (
        "everything tolerated",
        (observed("n1", taints=(TAINT,)),),
        tolerating(operator="Exists"),
        None,
    ),
    (
        "tolerated by another value",
        (observed("n1", taints=(TAINT,)),),
        tolerating(key="team", value="blue"),
        Verdict(C.TAINT_NOT_TOLERATED, 1, 0),
    ),
    (
        "another key tolerated",
        (observed("n1", taints=(TAINT,)),),
        tolerating(key="owner", value="red"),
        Verdict(C.TAINT_NOT_TOLERATED, 1, 0),
    ),
    (
        "tolerated for another effect",
        (observed("n1", taints=(TAINT,)),),
        tolerating(key="team", value="red", effect="NoExecute"),
        Verdict(C.TAINT_NOT_TOLERATED, 1, 0),
    ),
    ("selected", (LABELLED,), wants(selector={"zone": "a"}), None),
    (
        "selected otherwise",
        (LABELLED,),
        wants(selector={"zone": "b"}),
        Verdict(C.NODE_LABELS_MISMATCH, 1, 0),
    ),
    ("In", (LABELLED,), expression("zone", "In", "a", "b"), None),
    ("not In", (LABELLED,), expression("zone", "In", "b"), Verdict(C.NODE_LABELS_MISMATCH, 1, 0)),
    ("NotIn", (LABELLED,), expression("zone", "NotIn", "b"), None),
    ("NotIn without the label", (LABELLED,), expression("rack", "NotIn", "b"), None),
    ("Exists", (LABELLED,), expression("zone", "Exists"), None),
    (
        "DoesNotExist",
        (LABELLED,),
        expression("zone", "DoesNotExist"),
        Verdict(C.NODE_LABELS_MISMATCH, 1, 0),
    ),
    ("Gt", (LABELLED,), expression("cards", "Gt", "7"), None),
    (
        "Gt itself",
        (LABELLED,),
        expression("cards", "Gt", "8"),
        Verdict(C.NODE_LABELS_MISMATCH, 1, 0),
    ),
    ("Lt", (LABELLED,), expression("cards", "Lt", "9"), None),
    (
        "Lt a word",
        (LABELLED,),
        expression("zone", "Lt", "9"),
        Verdict(C.NODE_LABELS_MISMATCH, 1, 0),
    ),
    ("Gt nothing", (LABELLED,), expression("cards", "Gt"), Verdict(C.NODE_LABELS_MISMATCH, 1, 0)),
    (
        "CPU",
        (*BUSY, placement("x")),
        wants(cpu_milli=1001),
        Verdict(C.CPU_INSUFFICIENT, 1001, 1000),
    ),
    (
        "host memory",
        (*BUSY, placement("x")),
        wants(memory_mib=1001),
        Verdict(C.HOST_MEMORY_INSUFFICIENT, 1001, 1000),
    ),
    (
        "room for pods",
        (observed("n1", pods=1), pod("x"), placement("x")),
        wants(),
        Verdict(C.PODS_EXHAUSTED, 1, 0),
    ),
    ("extended", (observed("n1", extended=NIC),), wants(extended=NIC), None),
    (
        "extended, not offered",
        (rack("n1", 1),),
        wants(extended=NIC),
        Verdict(C.EXTENDED_RESOURCE_INSUFFICIENT, 2, 0),
    ),
    (
        "extended, taken",
        (
            observed("n1", extended={"example.com/nic": 3}),
            pod("x", shape=wants(extended=NIC)),
            placement("x"),
        ),
        wants(extended=NIC),
        Verdict(C.EXTENDED_RESOURCE_INSUFFICIENT, 2, 1),
    ),
    ("a host port, free", serving(HostPort(port=81)), wants(ports=(HTTP,)), None),
    ("a host port, taken", serving(HTTP), wants(ports=(HTTP,)), Verdict(C.HOST_PORT_TAKEN, 1, 0)),
    (
        "one of two host ports, taken",
        serving(HTTP),
        wants(ports=(HTTP, HostPort(port=443))),
        Verdict(C.HOST_PORT_TAKEN, 2, 1),
    ),
    ("another protocol", serving(HTTP), wants(ports=(HostPort(port=80, protocol="UDP"),)), None),
    ("another address", serving(LOCAL), wants(ports=(HostPort(port=80, ip="10.0.0.2"),)), None),
    (
        "one of all addresses",
        serving(HTTP),
        wants(ports=(LOCAL,)),
        Verdict(C.HOST_PORT_TAKEN, 1, 0),
    ),
    (
        "all addresses, one taken",
        serving(LOCAL),
        wants(ports=(HTTP,)),
        Verdict(C.HOST_PORT_TAKEN, 1, 0),
    ),
    ("a disk, free", having(Disk(name="gce/b")), wants(disks=(DISK,)), None),
    ("a disk, taken", having(DISK), wants(disks=(DISK,)), Verdict(C.DISK_IN_USE, 1, 0)),
    ("a disk that one writes", having(READ), wants(disks=(DISK,)), Verdict(C.DISK_IN_USE, 1, 0)),
    ("a disk that both read", having(READ), wants(disks=(READ,)), None),
    ("by name", (rack("n1", 1),), named("n1"), None),
    ("by another name", (rack("n1", 1),), named("n2"), Verdict(C.NODE_LABELS_MISMATCH, 1, 0)),
    (
        "a label that is called as the field",
        (observed("n1", labels={"metadata.name": "n2"}),),
        named("n2"),
        Verdict(C.NODE_LABELS_MISMATCH, 1, 0),
    ),
]


@pytest.mark.parametrize(
    ("events", "asked", "verdict"), [case[1:] for case in NODES], ids=[case[0] for case in NODES]
)
def test_node_filters(events: tuple[Payload, ...], asked: Shape, verdict: Verdict | None) -> None:
    """If a node fails several filters, its refusal shows the first of them, with needed and
    available amounts."""
    at = node_of(*events)
    assert refused_node(asked, at) == verdict
    stands = verdict is not None and RANK[verdict.code] < RANK[C.CPU_INSUFFICIENT]
    assert facts_refusal(asked, at) == (verdict.code if verdict and stands else None)


def test_terms_are_alternatives_and_expressions_are_not() -> None:
    """A node must match one of the `nodeSelectorTerms` with all of its `matchExpressions`; an empty
    term matches no node."""
    at = node_of(LABELLED)
    zone_a, zone_b = (NodeExpression(key="zone", operator="In", values=(v,)) for v in "ab")
    assert refused_node(wants(required=((zone_b,), (zone_a,))), at) is None
    assert refused_node(wants(required=((zone_b, zone_a),)), at) is not None
    assert matches((), at) is False


X = DeviceConstraints
KINDS: list[tuple[str, Ask, DeviceConstraints, Device, RefusalCode | None]] = [
    ("any GPU", ask(1), X(), gpu(), None),
    ("an NPU", ask(1), X(), npu(), C.NO_SUCH_DEVICE),
    ("the mode", ask(1), X(modes=("mig", "hami-core")), gpu(), None),
    ("another mode", ask(1), X(modes=("mig",)), gpu(), C.MODE_MISMATCH),
    ("one card may be cut", ask(1), X(), gpu(mode="mig"), None),
    ("several cards are not", ask(1, count=2), X(), gpu(mode="mig"), C.MODE_MISMATCH),
    ("unless it is asked for", ask(1, count=2), X(modes=("mig",)), gpu(mode="mig"), None),
    ("the type", ask(1), X(use_types=("V100", "a100")), gpu(), None),
    ("another type", ask(1), X(use_types=("V100", "A10")), gpu(), C.TYPE_MISMATCH),
    ("a type to avoid", ask(1), X(nouse_types=("T4",)), gpu(model=T4), C.TYPE_MISMATCH),
    (
        "avoided though wanted",
        ask(1),
        X(use_types=("T4",), nouse_types=("t4",)),
        gpu(model=T4),
        C.TYPE_MISMATCH,
    ),
    ("not the type to avoid", ask(1), X(nouse_types=("T4",)), gpu(), None),
    ("the uuid", ask(1), X(use_ids=("g0", "g1")), gpu(), None),
    ("another uuid", ask(1), X(use_ids=("g1",)), gpu(), C.UUID_MISMATCH),
    ("a uuid to avoid", ask(1), X(nouse_ids=("g0",)), gpu(), C.UUID_MISMATCH),
    ("the index", ask(1), X(indexes=(0, 2)), gpu("g2"), None),
    ("another index", ask(1), X(indexes=(0, 2)), gpu("g1"), C.INDEX_MISMATCH),
    ("the first of several", ask(1), X(modes=("mig",), indexes=(9,)), gpu(), C.MODE_MISMATCH),
]


@pytest.mark.parametrize(
    ("asked", "constraints", "device", "code"),
    [case[1:] for case in KINDS],
    ids=[case[0] for case in KINDS],
)
def test_device_rules(
    asked: Ask, constraints: DeviceConstraints, device: Device, code: RefusalCode | None
) -> None:
    """A device's fixed properties, such as family, type and mode, decide which filter refuses the
    device."""
    assert refused_kind(asked, constraints, device) is code


MIG = gpu(model=A100_40, mode="mig")
BIG = share(memory_mib=20480, cores=0, instance=instance("3g.20gb", 4, 4))
AMOUNT_CASES: list[tuple[str, Ask, Device, list[Share], dict[str, Any], Verdict | None]] = [
    ("an idle card", ask(1000), gpu(), [], {}, None),
    ("unhealthy", ask(1), gpu(healthy=False), [], {}, Verdict(C.DEVICE_UNHEALTHY, 1, 0)),
    ("absent", ask(1), gpu(), [], {"present": False}, Verdict(C.DEVICE_UNHEALTHY, 1, 0)),
    ("cordoned", ask(1), gpu(), [], {"cordon": "fan"}, Verdict(C.DEVICE_CORDONED, 1, 0)),
    ("alone on an idle card", cards(), gpu(), [], {}, None),
    ("alone beside another", cards(), gpu(), [share()], {}, Verdict(C.DEVICE_IN_USE, 10, 9)),
    ("slots", ask(1), gpu(slots=1), [share()], {}, Verdict(C.SLOTS_EXHAUSTED, 1, 0)),
    ("cores", ask(1, cores=91), gpu(), [share()], {}, Verdict(C.CORES_INSUFFICIENT, 91, 90)),
    ("the last cores", ask(1, cores=90), gpu(), [share()], {}, None),
    (
        "no cores asked of a full card",
        ask(1),
        gpu(),
        [share(cores=100)],
        {},
        Verdict(C.CORES_INSUFFICIENT, 1, 0),
    ),
    ("memory", ask(80921), gpu(), [share()], {}, Verdict(C.MEMORY_INSUFFICIENT, 80921, 80920)),
    ("the last memory", ask(80920), gpu(), [share()], {}, None),
    (
        "less than nothing",
        ask(1),
        gpu(),
        [],
        {"memory_free_mib": -5},
        Verdict(C.MEMORY_INSUFFICIENT, 1, 0),
    ),
    ("an instance beside another", ask(20000), MIG, [BIG], {}, None),
    (
        "no place for an instance",
        ask(20000),
        gpu(model=A100_40, mode="mig", memory_mib=99999),
        [BIG, share(memory_mib=5120, cores=0, instance=instance("1g.5gb", 3, 1))],
        {},
        Verdict(C.MIG_SLICES_OCCUPIED, 1, 0),
    ),
    (
        "AI CPUs",
        ask(3000, family="ascend310p"),
        npu("g0"),
        [],
        {"template_cpu_free": 0},
        Verdict(C.TEMPLATE_CPU_INSUFFICIENT, 1, 0),
    ),
]


@pytest.mark.parametrize(
    ("asked", "device", "held", "fields", "verdict"),
    [case[1:] for case in AMOUNT_CASES],
    ids=[case[0] for case in AMOUNT_CASES],
)
def test_amounts(
    asked: Ask, device: Device, held: list[Share], fields: dict[str, Any], verdict: Verdict | None
) -> None:
    """The filters check a device's free amounts in a fixed order."""
    ledger = Ledger(node("n1", device), pod("x"))
    ledger.play(placement("x", shares=held))
    state: DeviceState = ledger.device("g0")
    for name, value in fields.items():
        setattr(state, name, value)
    wanted = demand(asked, device)
    assert isinstance(wanted, Demand)
    assert refused_amount(wanted, state) == verdict


def test_every_filter_of_facts_names_the_nodes_that_it_closes() -> None:
    """Every filter on facts such as labels lists the nodes that it may refuse (`closes`).

    Otherwise the index would have to apply the filter to every node."""
    assert [each.code for each in FACTS if each.closes is None] == []


def test_every_code_of_a_filter_has_one_rank() -> None:
    """Every refusal code of a filter has exactly one rank, in the order in which filters are
    checked. A node that fits ranks above all."""
    filters = [code for table in (NODE_FILTERS, DEVICE_RULES, AMOUNTS) for code, _ in table]
    assert len(set(filters)) == len(filters)
    assert [RANK[code] for code in filters] == sorted(RANK[code] for code in filters)
    claims = {C.VOLUME_CLAIM_NOT_READY, C.VOLUME_CLAIM_IN_USE}
    whole = {C.GANG_INCOMPLETE, *LIMIT_CODES, *claims}
    assert set(ORDER) == set(RefusalCode) - whole
    assert max(RANK.values()) < FITS == len(ORDER)
