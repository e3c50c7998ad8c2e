"""Tests of packed rows, the short form in which lists show a node.

A packed row must state the same facts as the full answer about the node."""

import msgspec

from apportion.core.answers.visibility import OTHERS
from apportion.core.explain.fleet_rows import (
    CardState,
    PackedNode,
    packed_node,
    packed_row,
    pool_of,
    whole_fleet,
)
from apportion.core.explain.tenant_redaction import redacted
from apportion.core.explain.views import device_answers
from apportion_schemas import DeviceCordoned, DeviceHealthChanged, Host, NodeCordoned, NodeReported
from tests.support.fleet import gpu, node, observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, gang, pod


def test_a_row_says_what_the_long_answer_says() -> None:
    """A node's row lists every share of every device, each with its pod and amounts."""
    ledger = Ledger(rack("n1", 3), pod("a", ask(4000, cores=20)), pod("b", ask(5000))).settle()
    row = packed_node(ledger.node("n1"))
    held = {
        (row.cards[3 * card], each.namespace, each.name, memory_mib, cores)
        for each in row.pods
        for card, memory_mib, cores in zip(*[iter(each.shares)] * 3, strict=True)
    }
    assert held == {
        (device.index, holder.namespace, holder.pod, holder.memory_mib, holder.cores)
        for device in device_answers(ledger.node("n1"))
        for holder in device.holders
    }
    assert len(held) == 2


def test_a_row_names_gangs_to_whoever_sees_their_pods() -> None:
    """A node's row shows the name of a gang only to users who may see the gang's namespace."""
    ledger = Ledger(
        rack("n1", 3),
        gang("ml/ring", 1),
        pod("a", ask(4000), namespace="ml", group="ml/ring"),
        pod("b", ask(4000), namespace="ml"),
    ).settle()
    answer = msgspec.json.decode(msgspec.json.encode(whole_fleet(ledger.state)))
    assert {(held[1], held[4]) for held in answer["nodes"][0][7]} == {("a", "ml/ring"), ("b", "")}
    hidden = redacted(packed_node(ledger.node("n1")), lambda namespace: namespace != "ml")
    assert "ring" not in str(hidden)
    assert {(held.namespace, held.name, held.gang) for held in hidden.pods} == {(OTHERS, "", "")}


def test_a_row_says_what_is_wrong() -> None:
    """A node's row shows failed and cordoned devices with the reason.

    It also shows whether the node is cordoned or not ready."""
    ledger = Ledger(
        rack("n1", 3),
        DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID 79"),
        DeviceCordoned(device="n1-g1", by="ann", reason="fan"),
        DeviceCordoned(device="n1-g0", by="bob", reason="swap"),
        NodeCordoned(node="n1", by="ann", reason="move"),
        observed("n1", ready=False),
    )
    row = packed_node(ledger.node("n1"))
    assert row.cards[2::3] == (
        CardState.FAILED | CardState.CORDONED, CardState.CORDONED, 0,
    )  # fmt: skip
    assert row.notes == {"0": "XID 79"}
    assert row.cordons == {
        "0": "swap (bob, 2026-01-01T00:00:00Z)",
        "1": "fan (ann, 2026-01-01T00:00:00Z)",
    }
    assert (row.cordon, row.ready) == ("move (ann, 2026-01-01T00:00:00Z)", 0)


def test_a_card_that_is_no_more_reported_stays_while_it_is_held() -> None:
    """A device that is no longer reported stays in the row, marked absent, while a pod uses the
    device."""
    ledger = Ledger(rack("n1", 1), pod("a", ask(4000))).settle().play(node("n1"))
    assert packed_node(ledger.node("n1")).cards[2::3] == (CardState.ABSENT,)


def test_a_pool_is_named_by_the_cluster_or_by_its_cards() -> None:
    """A node's pool is named after its node-pool label, such as Karpenter's. Without such a label,
    it is named after the node's devices."""

    def pool(report: NodeReported) -> tuple[str, dict[tuple[str, str], int]]:
        return pool_of(Ledger(report).node("n1"))

    cards = gpu("g0", model="NVIDIA H100"), gpu("g1", model="NVIDIA H100", mode="mig")
    counts = {("NVIDIA H100", ""): 1, ("NVIDIA H100", "mig"): 1}
    assert pool(node("n1", *cards)) == ("1 x NVIDIA H100 + 1 x NVIDIA H100 mig", counts)
    hardware = packed_node(Ledger(node("n1", *cards)).node("n1")).hardware
    assert hardware == ((1, 0, ""), (1, 0, "mig"))
    host = Host(cpu_milli=1, memory_mib=1, labels={"karpenter.sh/nodepool": "train"})
    assert pool(node("n1", *cards, host=host)) == ("train", {})
    assert pool(node("n1")) == ("no devices", {})


def test_a_row_of_the_wire_is_the_row() -> None:
    """An encoded row decodes to the same row, and needs few bytes per device."""
    state = Ledger(rack("n1", 8)).node("n1")
    raw = packed_row(state)
    assert msgspec.json.decode(raw, type=PackedNode) == packed_node(state)
    assert len(bytes(raw)) < 160
