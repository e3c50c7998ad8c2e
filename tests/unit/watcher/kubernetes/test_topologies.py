"""Tests of how the watcher turns HyperNodes and Topologies into labels of nodes and PodGroups."""

from typing import Any

import msgspec

from apportion.core.workloads.kinds.topologies import TIER
from apportion.watcher.kubernetes.topologies import TOPOLOGY_PATHS
from apportion_schemas import NodeObserved, PodGroupObserved
from tests.support.kube_objects import kube_node
from tests.support.topologies import exact, hyper_node, kai_topology
from tests.unit.watcher.kubernetes.followed_cluster import Cluster

HYPER_NODES, TOPOLOGIES = TOPOLOGY_PATHS
GROUPS = "podgroups"


def seen(cluster: Cluster) -> list[Any]:
    """Append the watcher's events about nodes and gangs to the ledger, and return them."""
    marked = cluster.view.take()
    facts = [*cluster.facts.nodes(marked.nodes), *cluster.facts.groups(marked.others[GROUPS])]
    cluster.write(facts)
    return [fact.data for fact in facts]


def volcano_group(tier: int) -> dict[str, Any]:
    network = {"mode": "hard", "highestTierAllowed": tier}
    return {"metadata": {"name": "g"}, "spec": {"minMember": 2, "networkTopology": network}}


def test_nodes_get_the_tiers_of_hyper_nodes_as_labels() -> None:
    """If a node's HyperNodes change, the watcher reports the node with a label for each tier."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("a", labels={"x": "y"}))
    (node,) = seen(cluster)
    assert node.labels == {"x": "y"}
    cluster.see(HYPER_NODES, hyper_node("s0", 1, exact("a")), version=5)
    (node,) = seen(cluster)
    assert isinstance(node, NodeObserved)
    assert (node.labels, node.version) == ({"x": "y", f"{TIER}1": "s0"}, 5)
    cluster.see("nodes", kube_node("b"), version=6)
    assert seen(cluster) != []
    cluster.see(HYPER_NODES, hyper_node("s0", 1, exact("a")), version=7)  # as before
    assert seen(cluster) == []
    gone = hyper_node("s0", 1, exact("a"))
    gone["metadata"]["resourceVersion"] = "8"
    cluster.view.audiences[HYPER_NODES].gone(msgspec.json.encode(gone))
    (node,) = seen(cluster)
    assert node.labels == {"x": "y"}


def test_pod_groups_follow_the_tiers() -> None:
    """If the tiers of HyperNodes change, the watcher reports the PodGroups' new levels."""
    cluster = Cluster()
    cluster.see(GROUPS, volcano_group(2))
    (group,) = seen(cluster)
    assert isinstance(group, PodGroupObserved)
    assert (group.required_level, group.levels) == (f"{TIER}2", ())
    cluster.see(HYPER_NODES, hyper_node("s0", 1, exact("a")), version=5)
    (group,) = seen(cluster)
    assert (group.required_level, group.levels) == ("", (f"{TIER}1",))
    cluster.see(HYPER_NODES, hyper_node("s1", 2, exact("s0", "HyperNode")), version=6)
    (group,) = seen(cluster)
    assert (group.required_level, group.preferred_level) == (f"{TIER}2", f"{TIER}1")
    assert list(cluster.view.pod_groups.differences(cluster.view.pod_groups.everything())) == []


def test_pod_groups_follow_the_tiers_of_their_parts() -> None:
    """If the tiers of HyperNodes change, the watcher reports the new levels of PodGroups' parts."""
    cluster = Cluster()
    policy = {
        "subGroupSize": 2,
        "labelSelector": {"matchLabels": {"volcano.sh/task-spec": "t"}},
        "networkTopology": {"mode": "hard", "highestTierAllowed": 1},
    }
    group = {"metadata": {"name": "g"}, "spec": {"minMember": 2, "subGroupPolicy": [policy]}}
    cluster.see(GROUPS, group)
    assert [each.parts[0].preferred_level for each in seen(cluster)] == [f"{TIER}0"]
    cluster.see(HYPER_NODES, hyper_node("s0", 1, exact("a")), version=5)
    assert [each.parts[0].preferred_level for each in seen(cluster)] == [f"{TIER}1"]


def test_pod_groups_follow_a_topology_of_KAI() -> None:
    """If a KAI PodGroup names a level by an alias, the watcher reports the level's node label."""
    cluster = Cluster()
    constraint = {"topology": "network", "requiredTopologyLevel": "rack"}
    group = {"metadata": {"name": "g"}, "spec": {"minMember": 2, "topologyConstraint": constraint}}
    cluster.see("podgroups.scheduling.run.ai", group)
    assert [each.required_level for each in seen(cluster)] == ["rack"]
    topology = kai_topology("network", ("example.com/rack", "rack"))
    cluster.see(TOPOLOGIES, topology, version=5)
    assert [each.required_level for each in seen(cluster)] == ["example.com/rack"]


def test_hyper_nodes_that_cannot_be_read_are_a_problem() -> None:
    """If a HyperNode becomes unreadable, its last readable version counts. The watcher reports that
    as a problem, and also a node in two HyperNodes."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("a"))
    cluster.see(HYPER_NODES, hyper_node("s0", 1, exact("a")), version=2)
    cluster.see(HYPER_NODES, hyper_node("s0", 1, exact("A b")), version=3)
    assert [each.labels for each in seen(cluster)] == [{f"{TIER}1": "s0"}]
    assert "spec.members[0]" in cluster.view.problems["HyperNode s0"]
    cluster.see(HYPER_NODES, hyper_node("s1", 1, exact("a")), version=4)
    assert seen(cluster) == []
    assert "s1" in cluster.view.problems["HyperNodes"]
    cluster.see(HYPER_NODES, hyper_node("s1", 1, exact("b")), version=5)
    assert seen(cluster) == []
    assert "HyperNodes" not in cluster.view.problems
