"""Tests of the console's list of pods: its filters, its order, and its tree of workloads, gangs,
pods and shares."""

from typing import Any

import pytest

from apportion.core.devices.catalogue import FAMILIES, PERCENT
from apportion.core.explain.text.event_text import cores_words
from tests.support.node_modules import NodeModules

LIST = "pages/pod_list.js"


def pod(name: str, **fields: Any) -> dict[str, Any]:
    """Return a pod as the API sends it, with these fields changed."""
    return {
        "namespace": "red", "name": name, "uid": name, "phase": "allocated", "node": "",
        "owner": "", "group": "", "asks": [], "shares": [], "placed_time": "", "submitted_time": "",
        **fields,
    }  # fmt: skip


def share(device: str) -> dict[str, Any]:
    return {"device": device, "memory_mib": 10, "cores": 0}


PODS = [
    pod("c", node="n-10", shares=[share("g1"), share("g2")], placed_time="2026-11-28T12:00:03Z"),
    pod("a-10", phase="refused", asks=[{"count": 4}], submitted_time="2026-11-28T12:00:02Z"),
    pod("a-2", namespace="blue", node="n-1", shares=[share("g3")],
        placed_time="2026-11-28T12:00:01Z"),
]  # fmt: skip


@pytest.mark.parametrize(("sort", "names"), [
    ("", ["c", "a-10", "a-2"]), ("name", ["a-2", "a-10", "c"]), ("-name", ["c", "a-10", "a-2"]),
    ("gpus", ["a-2", "c", "a-10"]), ("node", ["a-2", "c", "a-10"]),
    ("age", ["c", "a-10", "a-2"]), ("-age", ["a-2", "a-10", "c"]), ("phase", ["a-10", "c", "a-2"]),
])  # fmt: skip
def test_pods_are_sorted_by_each_column(node: NodeModules, sort: str, names: list[str]) -> None:
    """The list of pods sorts numbers within names by value. Pods without a node come last."""
    code = "return m.ordered(given[0], m.sortOf(given[1])).map(pod => pod.name);"
    assert node.run(LIST, code, PODS, sort) == names


def test_a_column_sorts_up_then_down_then_not(node: NodeModules) -> None:
    """Repeated clicks on a column sort it ascending, then descending, then not at all. An unknown
    column in the URL is ignored."""
    code = (
        "return [m.nextSort('', 'node'), m.nextSort('node', 'node'), m.nextSort('-node', 'node')];"
    )
    assert node.run(LIST, code) == ["node", "-node", ""]
    assert node.run(LIST, "return m.sortOf('toString');") == ""


@pytest.mark.parametrize(("filters", "names"), [
    ({}, ["c", "a-10", "a-2"]), ({"phase": "pending"}, ["a-10"]), ({"namespace": "blue"}, ["a-2"]),
    ({"node": "n-1"}, ["a-2"]), ({"node": "n-"}, ["c", "a-2"]), ({"text": "A-"}, ["a-10", "a-2"]),
])  # fmt: skip
def test_pods_are_filtered(node: NodeModules, filters: dict[str, str], names: list[str]) -> None:
    """If a filter is the complete name of a node, it matches only that node. Otherwise it matches
    every name that contains the filter's text."""
    wanted = {"text": "", "phase": "", "namespace": "", "node": "", **filters}
    code = "return m.matching(given[0], given[1], pod => pod.name).map(pod => pod.name);"
    assert node.run(LIST, code, PODS, wanted) == names


def rows(node: NodeModules, pods: list[dict[str, Any]], *opened: str) -> list[str]:
    """Return the rows of the tree as texts of the form `level kind name`. The entries in `opened`
    are expanded."""
    code = """return m.treeRows(given[0], new Set(given[1])).map(
        each => `${each.level} ${each.kind} ${each.name ?? each.key}`);"""
    found = node.run(LIST, code, pods, opened)
    return [str(each) for each in found]


def test_pods_are_grouped_by_workload_and_gang(node: NodeModules) -> None:
    """The tree has workloads at the top, then gangs, pods and shares. It shows the content of an
    entry only if the entry is open."""
    pods = [
        pod("alone"),
        pod("w-0", owner="Job/w", group="red/w", shares=[share("g1"), share("g2")]),
        pod("w-1", owner="Job/w", group="red/w"),
        pod("g-0", group="red/g"),
    ]
    assert rows(node, pods) == ["0 workload Job/w", "0 gang red/g", "0 pod alone"]
    workload, gang = "red/Job/w", "red/Job/w:red/w"
    assert rows(node, pods, workload)[:2] == ["0 workload Job/w", "1 gang red/w"]
    assert rows(node, pods, workload, gang, "w-0") == [
        "0 workload Job/w", "1 gang red/w", "2 pod w-0", "3 share w-0:0", "3 share w-0:1",
        "2 pod w-1", "0 gang red/g", "0 pod alone",
    ]  # fmt: skip
    assert "1 pod g-0" in rows(node, pods, "red/g")


def test_a_workload_counts_its_pods_by_phase(node: NodeModules) -> None:
    """A workload shows its number of pods per phase, in the order of the phases. Pending and
    refused pods are counted together."""
    pods = [*PODS, pod("x", phase="pending")]
    assert node.run(LIST, "return m.phaseCounts(given[0]);", pods) == [
        ["pending", 2], ["allocated", 2]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("nvidia", "50 % cores"),
        ("amd", "50 compute units"),
        ("mthreads", "50 cores"),
        ("ascend310p", "50 AI cores"),
        ("hygon", "50 % cores"),
    ],
)
def test_cores_have_the_unit_of_their_family(node: NodeModules, family: str, words: str) -> None:
    """The console shows the cores of a share in the unit of its family, like the CLI."""
    known = FAMILIES[family]
    shown = words.removesuffix(" cores") if known.unit == PERCENT else words
    assert cores_words(50, family) == shown
    shares = [{"container": "main", "device": "a", "memory_mib": 3000, "cores": 50}]
    asks = [{"container": "main", "family": family}]
    assert node.run("words.js", "return m.holds(...given);", shares, asks).endswith(f", {words}")
    assert node.run("words.js", "return m.coresHeld(50, given[0]);", family) == shown
