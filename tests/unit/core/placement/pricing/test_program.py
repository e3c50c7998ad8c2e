"""Tests that equal nodes form one node type. Prices are learnt from node types."""

import pytest

from apportion.core.placement.pricing import program
from apportion.core.placement.pricing.program import node_types
from apportion_schemas import Host, NodeGone
from tests.support.fleet import A30, gpu, node, observed, rack
from tests.support.ledger_of import Ledger


def test_equal_nodes_are_one_type() -> None:
    """Nodes with equal devices and hosts form one node type."""
    ledger = Ledger(*(rack(f"n{number}", 4, model=A30) for number in range(3)), rack("m", 8))
    large, small = node_types(ledger.state)
    assert (large.devices, large.nodes) == (4, 3)
    assert (small.devices, small.nodes) == (8, 1)
    assert large.device is not None
    assert large.device.model == A30


def test_a_little_more_cpu_is_the_same_type() -> None:
    """Nodes with slightly different CPU form one type, with the mean of their CPU."""
    hosts = [Host(cpu_milli=cpu, memory_mib=100_000) for cpu in (64_000, 63_000, 62_000, 16_000)]
    ledger = Ledger(*(node(f"n{at}", gpu(f"g{at}"), host=h) for at, h in enumerate(hosts)))
    found = sorted((each.cpu_milli, each.nodes) for each in node_types(ledger.state))
    assert sum(nodes for _, nodes in found) == 4
    assert found[0] == (16_000, 1)
    assert (63_000 in [cpu for cpu, _ in found]) or (62_500, 2) in found


def test_nodes_that_take_no_pods_are_left_out() -> None:
    """Removed nodes and nodes that are not ready count for no node type."""
    ledger = Ledger(rack("gone"), rack("away"), rack("there"))
    ledger.play(NodeGone(node="gone"), observed("away", ready=False))
    assert [each.nodes for each in node_types(ledger.state)] == [1]


def test_a_node_without_devices_is_a_type_too() -> None:
    """Nodes without devices form a node type, because pods without devices use them."""
    (found,) = node_types(Ledger(node("n1")).state)
    assert (found.device, found.devices) == (None, 0)


def test_only_the_largest_types_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are very many node types, only those with the most devices are kept, so that
    learning stays fast."""
    monkeypatch.setattr(program, "TYPES_MAX", 2)
    ledger = Ledger(rack("one", 1), rack("three", 3), rack("two", 2))
    assert [each.devices for each in node_types(ledger.state)] == [3, 2]
