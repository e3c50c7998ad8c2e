"""Tests of label columns, an index of node labels that reads each node only once.

The index must give the same result as the label filter."""

from typing import Any

import numpy as np
import pytest

from apportion.core.ledger.state import NodeState
from apportion.core.placement.feasibility import nodes as node_filters
from apportion.core.placement.index import labels as module
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.labels import LabelColumns, label
from apportion_schemas import NodeConstraints, NodeExpression
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import shape

ZONES = {"a": "x", "b": "y", "c": "x", "d": None}


class Read:
    """Label columns of four nodes, for tests.

    The class records the name of every node whose labels are read."""

    def __init__(self) -> None:
        self.ledger = Ledger(*(rack(name, 1) for name in ZONES))
        for name, zone in ZONES.items():
            self.observe(name, zone)
        self.columns = Columns(self.ledger.state)
        self.columns.sync()
        self.read: list[str] = []
        self.labels = LabelColumns(self.value_of)

    def value_of(self, node: NodeState, key: str) -> str | None:
        """Return the node's label, and record that the node was read."""
        self.read.append(node.name)
        return label(node, key)

    def observe(self, name: str, zone: str | None) -> NodeState:
        change = self.ledger.take(observed(name, labels={"zone": zone} if zone else {}))
        assert change.node is not None
        return change.node


def test_equal_values_share_a_number() -> None:
    """In a label column, equal values have equal numbers. Nodes without the label have a number of
    their own."""
    given = Read()
    found = given.labels.ids(given.columns, "zone").tolist()
    assert found[0] == found[2] != found[1]
    assert found[3] == module.NO_VALUE
    assert module.NO_VALUE not in found[:3]


def test_a_node_is_read_once_and_again_when_it_is_told_of_anew() -> None:
    """The label columns read a node's labels once, and again only after the node changed."""
    given = Read()
    given.labels.ids(given.columns, "zone")
    given.read.clear()
    given.labels.allowed(
        given.columns, NodeConstraints(selector={"zone": "x"}), given.columns.every
    )
    assert given.read == []
    given.columns.touch(given.observe("b", "x"))
    given.columns.sync()
    assert (
        given.labels.ids(given.columns, "zone").tolist()[1]
        == given.labels.ids(given.columns, "zone").tolist()[0]
    )
    assert given.read == ["b"]


def test_the_key_not_asked_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are too many label keys, the least recently used one is dropped. Its column is built
    again when needed."""
    monkeypatch.setattr(module, "KEYS_MAX", 2)
    given = Read()
    first = given.labels.ids(given.columns, "zone").tolist()
    given.labels.ids(given.columns, "rack")
    given.labels.ids(given.columns, "zone")
    given.labels.ids(given.columns, "row")
    given.read.clear()
    assert given.labels.ids(given.columns, "zone").tolist() == first
    assert given.read == []
    given.labels.ids(given.columns, "rack")
    assert given.read != []


def test_a_key_that_is_not_kept_costs_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query by a label key that the index has dropped reads only the queried nodes."""
    monkeypatch.setattr(module, "KEYS_MAX", 2)
    given = Read()
    keys = [f"team-{number}" for number in range(9)]
    for key in keys:
        given.labels.ids(given.columns, key)
    given.read.clear()
    for key in keys[:6]:
        needs = NodeConstraints(selector={key: "true"})
        found = given.labels.allowed(given.columns, needs, np.array([2]))
        assert found.tolist() == [False]
    assert given.read == ["c"] * 6


def test_values_that_no_node_has_any_more_are_forgotten() -> None:
    """A label column drops values that no node has any more, which bounds its memory."""
    given = Read()
    for number in range(10 * module.SLACK):
        given.columns.touch(given.observe("a", f"z{number}"))
        given.columns.sync()
        column = given.labels._column(given.columns, "zone")
        assert len(column.values) <= module.SLACK + 2 * len(column.ids) + 2


@pytest.mark.parametrize("operator", ["In", "NotIn", "Exists", "DoesNotExist"])
def test_expressions_hold_as_the_filter_says(operator: Any) -> None:
    """The label columns evaluate every label expression as the label filter does."""
    expression = NodeExpression(key="zone", operator=operator, values=("x",))
    needs = NodeConstraints(required=((expression,),))
    columns = Read().columns
    rows = np.array([0, 1, 2, 3])
    expected = [
        node_filters.labels(shape(node=needs), columns.nodes[row]) == node_filters.YES
        for row in rows
    ]
    assert columns.labels.allowed(columns, needs, rows).tolist() == expected
    assert len(set(expected)) == 2
