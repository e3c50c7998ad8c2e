"""Tests of the topologies of Volcano and KAI: which levels they give to nodes and PodGroups."""

from typing import Any

import pytest

from apportion.core.workloads.document import ManifestError
from apportion.core.workloads.kinds.topologies import (
    PARTITION,
    TIER,
    HyperNode,
    HyperNodes,
    Topology,
    read_hyper_node,
    read_topology,
    resolved,
)
from apportion_schemas import GangPart, PodGroupObserved
from tests.support.manifests import read, refused, task, volcano_job
from tests.support.topologies import exact, hyper_node, kai_topology, tree_of_volcano


def hyper(name: str, tier: int, *members: dict[str, Any], **spec: Any) -> HyperNode:
    return read_hyper_node(hyper_node(name, tier, *members, **spec))


def tree(*found: HyperNode) -> HyperNodes:
    return HyperNodes({each.name: each for each in found})


def tiers(nodes: HyperNodes, node: str, **labels: str) -> dict[int, str]:
    """Return the name of the node's HyperNode for each tier."""
    found = nodes.labels(node, labels)
    return {int(key.removeprefix(TIER)): value for key, value in found.items() if TIER in key}


def volcano(**network: Any) -> PodGroupObserved:
    """Return the PodGroup of a Volcano Job with this `networkTopology`."""
    (group,) = read(volcano_job(task(), networkTopology=network)).groups
    return group


def levels(group: PodGroupObserved) -> tuple[str, str]:
    """Return the numbers of the tiers that the PodGroup requires and prefers."""
    return group.required_level.removeprefix(TIER), group.preferred_level.removeprefix(TIER)


VOLCANO = tree(*map(read_hyper_node, tree_of_volcano()))


def test_a_node_has_a_label_for_each_tier() -> None:
    """The tree of Volcano's documentation: a node is in one HyperNode of each tier, and keeps its
    own labels."""
    assert tiers(VOLCANO, "node0") == {1: "s0", 2: "s4", 3: "s6"}
    assert tiers(VOLCANO, "node7") == {1: "s3", 2: "s5", 3: "s6"}
    assert VOLCANO.labels("node8", {"a": "b"}) == {"a": "b"}
    assert VOLCANO.labels("node8", {f"{TIER}1": "forged"}) == {}
    assert VOLCANO.levels == (f"{TIER}3", f"{TIER}2", f"{TIER}1")


def test_a_tier_without_a_hyper_node_has_the_one_below() -> None:
    """If a node has no HyperNode in a tier, its HyperNode of the next lower tier counts there."""
    alone = tree(hyper("s0", 1, exact("a")), hyper("s9", 3, exact("b")), hyper("s5", 2, exact("c")))
    assert tiers(alone, "a") == {1: "s0", 2: "s0", 3: "s0"}
    assert tiers(alone, "c") == {2: "s5", 3: "s5"}
    assert tiers(alone, "b") == {3: "s9"}


def test_members_by_pattern_and_label() -> None:
    """A HyperNode selects nodes by pattern or labels; an empty label selector selects none."""
    by_label = {"labelMatch": {"matchLabels": {"rack": "r1"}}}
    by_term = {"matchExpressions": [{"key": "x", "operator": "Exists"}]}
    nodes = tree(
        hyper("a", 1, {"type": "Node", "selector": {"regexMatch": {"pattern": "^n-[0-4]$"}}}),
        hyper("b", 1, {"type": "Node", "selector": by_label}),
        hyper("c", 1, {"type": "Node", "selector": {"labelMatch": by_term}}),
        hyper("d", 1, {"type": "Node", "selector": {"labelMatch": {}}}),
    )
    assert tiers(nodes, "n-4") == {1: "a"}
    assert tiers(nodes, "n-5") == {}
    assert tiers(nodes, "n", rack="r1") == {1: "b"}
    assert tiers(nodes, "n", x="") == {1: "c"}


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ((hyper("s0", 1, exact("a")), hyper("s1", 1, exact("a"))), ("a", "s0", "s1")),
        ((hyper("s0", 2, exact("a")), hyper("s1", 2, exact("s0", "HyperNode"))), ("s0", "s1")),
        (
            (
                hyper("s0", 1, exact("a")),
                hyper("s1", 2, exact("s0", "HyperNode")),
                hyper("s2", 2, exact("s0", "HyperNode")),
            ),
            ("s0", "s1", "s2"),
        ),
        (tuple(hyper(f"s{n:02}", n, exact("a")) for n in range(17)), ("17", "16")),
    ],
)
def test_a_tree_that_is_none_is_a_problem(
    found: tuple[HyperNode, ...], named: tuple[str, ...]
) -> None:
    """If HyperNodes overlap or have wrong tiers, the first counts, and the problem names them."""
    nodes = tree(*found)
    assert tiers(nodes, "a")[nodes.tiers[0]] == found[0].name
    assert all(name in nodes.problem for name in named)


def test_the_first_hyper_node_by_name_counts() -> None:
    """If two HyperNodes of a tier select a node, the first by name counts, even if it uses a
    pattern and the other HyperNode lists the node's name."""
    pattern = {"type": "Node", "selector": {"regexMatch": {"pattern": "^a$"}}}
    assert tiers(tree(hyper("s0", 1, pattern), hyper("s1", 1, exact("a"))), "a") == {1: "s0"}


def test_too_many_selectors_are_a_problem() -> None:
    """If HyperNodes have more than 1,024 members by `regexMatch` or `labelMatch`, only members by
    `exactMatch` count."""
    many = {"type": "Node", "selector": {"regexMatch": {"pattern": "^a$"}}}
    nodes = tree(hyper("s0", 1, *[many] * 1025), hyper("s1", 1, exact("b")))
    assert (tiers(nodes, "a"), tiers(nodes, "b")) == ({}, {1: "s1"})
    assert "1024" in nodes.problem


def test_a_cycle_ends() -> None:
    """HyperNodes that are members of each other are read in finite time."""
    nodes = tree(
        hyper("s0", 1, exact("a"), exact("s1", "HyperNode")),
        hyper("s1", 2, exact("s0", "HyperNode")),
    )
    assert tiers(nodes, "a") == {1: "s0", 2: "s1"}
    assert "s1" in nodes.problem


@pytest.mark.parametrize(
    ("selector", "of_hyper_nodes", "field"),
    [
        ({"regexMatch": {"pattern": "("}}, False, "regexMatch.pattern"),
        ({"regexMatch": {"pattern": "(a+)+"}}, False, "regexMatch.pattern"),
        ({"regexMatch": {"pattern": "^.*.*.*.*"}}, False, "regexMatch.pattern"),
        ({"regexMatch": {"pattern": ".*.*.*!"}}, False, "regexMatch.pattern"),
        ({"regexMatch": {"pattern": "^a|.*.*.*!"}}, False, "regexMatch.pattern"),
        ({"regexMatch": {"pattern": "^.*.*.*a?a?a?!"}}, False, "regexMatch.pattern"),
        ({"regexMatch": {"pattern": "a?" * 9}}, False, "regexMatch.pattern"),
        ({"regexMatch": {"pattern": r"(a)\1"}}, False, "regexMatch.pattern"),
        ({"regexMatch": {"pattern": "(?=a)"}}, False, "regexMatch.pattern"),
        ({"regexMatch": {"pattern": "^n-[[:digit:]]+$"}}, False, "regexMatch.pattern"),
        ({"regexMatch": {"pattern": r"^n-[\]a[:digit:]]$"}}, False, "regexMatch.pattern"),
        ({"regexMatch": {"pattern": "a" * 257}}, False, "regexMatch.pattern"),
        ({"exactMatch": {"name": "A b"}}, False, "exactMatch.name"),
        ({"regexMatch": {"pattern": "a"}}, True, ""),
        ({"labelMatch": {"matchLabels": {"a": "b"}}}, True, ""),
        ({}, False, ""),
        ({"exactMatch": {"name": "a"}, "labelMatch": {}}, False, ""),
        (
            {"labelMatch": {"matchExpressions": [{"key": "a", "operator": "Near"}]}},
            False,
            "labelMatch.matchExpressions[0].operator",
        ),
    ],
)
def test_members_that_cannot_be_read(
    selector: dict[str, Any], *, of_hyper_nodes: bool, field: str
) -> None:
    """A HyperNode is refused with the field's path if a selector of its members is not valid. So is
    a pattern that may take long to match."""
    kind = "HyperNode" if of_hyper_nodes else "Node"
    with pytest.raises(ManifestError) as caught:
        hyper("s0", 1, {"type": kind, "selector": selector})
    assert caught.value.field == f"spec.members[0].selector.{field}".rstrip(".")


@pytest.mark.parametrize(
    "pattern",
    [
        "^n-[0-9]+$",
        "rack-(?:1|2)-.*",
        r"a\.b\d+[)*]{2}",
        "n1|n2",
        "[:a]",
        "^(a|b)-r[0-9]+-n[0-9]+-[0-9]+$",
    ],
)
def test_patterns_that_are_read(pattern: str) -> None:
    """Usual patterns for names of nodes are accepted in `regexMatch`."""
    selector = {"regexMatch": {"pattern": pattern}}
    assert hyper("s0", 1, {"type": "Node", "selector": selector}).patterns


@pytest.mark.parametrize(
    ("network", "found"),
    [
        ({"mode": "hard", "highestTierAllowed": 2}, ("2", "1")),
        ({"highestTierAllowed": 1}, ("1", "1")),
        ({"highestTierAllowed": 3}, ("3", "1")),
        ({"highestTierAllowed": 4}, ("", "1")),  # all nodes are allowed
        ({"highestTierAllowed": 0}, ("0", "1")),  # no node has this label: the job is pending
        ({"highestTierName": "zone"}, ("2", "1")),
        ({"highestTierName": "planet"}, ("name.planet", "1")),
        ({"mode": "soft"}, ("", "1")),
        ({"mode": "soft", "highestTierAllowed": 1}, ("", "1")),
    ],
)
def test_the_levels_of_a_network_topology(network: Any, found: tuple[str, str]) -> None:
    """A hard topology requires the highest tier that is allowed, and prefers the lowest one. A
    soft one only prefers the lowest tier."""
    group = resolved(volcano(**network), {}, VOLCANO)
    assert levels(group) == found
    assert group.levels == VOLCANO.levels


def test_a_network_topology_without_hyper_nodes_keeps_its_levels() -> None:
    """Without HyperNodes, a PodGroup keeps its tiers, because nodes may have labels of tiers."""
    group = volcano(mode="hard", highestTierAllowed=2)
    assert levels(group) == ("2", "0")
    assert resolved(group, {}, tree()) == group
    assert volcano(mode="hard").required_level == ""  # no tier: as in Volcano, no effect
    assert volcano(mode="hard").preferred_level == ""


@pytest.mark.parametrize(
    ("network", "field"),
    [
        ({"mode": "firm"}, "mode"),
        ({"highestTierAllowed": -1}, "highestTierAllowed"),
        ({"highestTierAllowed": 1, "highestTierName": "zone"}, "highestTierName"),
        ({"highestTierName": "x" * 254}, "highestTierName"),
    ],
)
def test_network_topologies_that_are_refused(network: Any, field: str) -> None:
    """A network topology with a wrong mode or tier is refused with the field's path."""
    assert refused(volcano_job(task(), networkTopology=network)).field == (
        f"spec.networkTopology.{field}"
    )
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "gang"},
        "spec": {"networkTopology": network},
    }
    assert refused(group).field == f"spec.networkTopology.{field}"


def partitioned(**policy: Any) -> dict[str, Any]:
    return volcano_job(task(name="t", replicas=8, partitionPolicy=policy))


def test_partitions_of_a_task_are_parts() -> None:
    """A task of a Volcano Job is divided into partitions of consecutive pods. Each partition may
    have a topology, and the job starts once it has its minimum number of partitions."""
    soft = {"totalPartitions": 2, "partitionSize": 4, "networkTopology": {"mode": "soft"}}
    manifest = read(partitioned(**soft, minPartitions=1))
    labels = [pod.labels[PARTITION] for pod in manifest.pods]
    assert labels == ["0"] * 4 + ["1"] * 4
    (group,) = manifest.groups
    assert (group.min_available, group.min_tasks) == (4, {"t": 4})
    (part,) = resolved(group, {}, VOLCANO).parts
    assert part == GangPart(tasks=("t",), preferred_level=f"{TIER}1", split_by=PARTITION, size=4)


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"totalPartitions": 3, "partitionSize": 4}, "totalPartitions"),
        ({"totalPartitions": 0, "partitionSize": 8}, "totalPartitions"),
        ({"totalPartitions": 8}, "partitionSize"),
        ({"totalPartitions": 2, "partitionSize": 4, "minPartitions": 3}, "minPartitions"),
        (
            {"totalPartitions": 2, "partitionSize": 4, "networkTopology": {"mode": "x"}},
            "networkTopology.mode",
        ),
    ],
)
def test_partitions_that_are_refused(policy: dict[str, Any], field: str) -> None:
    """A partition policy that does not match the task is refused with the field's path."""
    assert refused(partitioned(**policy)).field == f"spec.tasks[0].partitionPolicy.{field}"


def subgroups(*policies: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "gang"},
        "spec": {"subGroupPolicy": list(policies), **spec},
    }


OF_TASK = {"labelSelector": {"matchLabels": {"volcano.sh/task-spec": "t"}}}


def test_subgroups_of_a_pod_group_are_parts() -> None:
    """The subgroups that Volcano's controller writes for partitions become parts of the gang."""
    policy = OF_TASK | {
        "name": "t",
        "subGroupSize": 4,
        "minSubGroups": 2,
        "matchLabelKeys": [PARTITION],
    }
    (group,) = read(subgroups(policy, minMember=1)).groups
    assert (group.min_available, group.min_tasks) == (8, {"t": 8})
    members = {"minMember": 4, "minTaskMember": {"t": 4, "b": 6}}  # too many to have an effect
    (group,) = read(subgroups(policy, **members)).groups
    assert (group.min_available, group.min_tasks) == (8, {"t": 8})
    members = {"minMember": 10, "minTaskMember": {"t": 4, "b": 6}}
    (group,) = read(subgroups(policy, **members)).groups
    assert (group.min_available, group.min_tasks) == (14, {"t": 8, "b": 6})
    assert group.parts == (GangPart(tasks=("t",), split_by=PARTITION, size=4),)


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({}, "labelSelector"),
        ({"labelSelector": {"matchLabels": {"app": "x"}}}, "labelSelector"),
        (
            {
                "labelSelector": {
                    **OF_TASK["labelSelector"],
                    "matchExpressions": [{"key": "a", "operator": "Exists"}],
                }
            },
            "labelSelector",
        ),
        (OF_TASK | {"matchLabelKeys": ["a", "b"]}, "matchLabelKeys"),
        (OF_TASK | {"subGroupSize": -1}, "subGroupSize"),
        (OF_TASK | {"networkTopology": {"mode": "x"}}, "networkTopology.mode"),
    ],
)
def test_G8_subgroups_that_are_refused(policy: dict[str, Any], field: str) -> None:
    """A subgroup is refused if it selects pods by other criteria than the task and one label."""
    assert refused(subgroups(policy)).field == f"spec.subGroupPolicy[0].{field}"


def test_the_levels_of_subgroups_of_KAI() -> None:
    """KAI's subgroups become parts of the gang, outer ones first. An alias may name their level."""
    rack = {"topology": "network", "requiredTopologyLevel": "rack"}
    document: dict[str, Any] = {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "gang"},
        "spec": {
            "subGroups": [
                {"name": "a", "minMember": 1, "parent": "ab", "topologyConstraint": rack},
                {"name": "b", "minMember": 1, "parent": "ab"},
                {"name": "ab", "topologyConstraint": {"preferredTopologyLevel": "zone"}},
            ]
        },
    }
    (group,) = read(document).groups
    network = read_topology(kai_topology("network", ("example.com/zone", "zone"), (RACK, "rack")))
    assert resolved(group, {"network": network}, VOLCANO).parts == (
        GangPart(tasks=("a", "b"), preferred_level="zone"),  # of no Topology
        GangPart(tasks=("a",), required_level=RACK, topology="network", levels=network.levels),
    )
    document["spec"]["topologyConstraint"] = {"topology": "network"}
    (group,) = read(document).groups
    found = resolved(group, {"network": network}, VOLCANO)
    assert found.levels == network.levels
    assert found.parts == (
        GangPart(tasks=("a", "b"), preferred_level="example.com/zone"),
        GangPart(tasks=("a",), required_level=RACK),
    )
    nested = [{"name": "s0", "topologyConstraint": rack}] + [
        {"name": f"s{n}", "parent": f"s{n - 1}", "topologyConstraint": rack} for n in range(1, 40)
    ]
    leaves = [{"name": f"leaf{n}", "parent": "s39"} for n in range(40)]
    document["spec"] = {"subGroups": [*nested, *leaves]}
    assert refused(document).field == "spec.subGroups[8].parent"
    leaves = [{"name": f"leaf{n}", "parent": "s6"} for n in range(150)]
    document["spec"] = {"subGroups": [*nested[:7], *leaves]}
    assert refused(document).field == "spec.subGroups"


RACK, HOST = "accelerator.nvidia.com/rack", "kubernetes.io/hostname"


def test_KAI_documents_names_of_levels() -> None:
    """KAI's example of aliases: a level is named by its label or its alias."""
    network = read_topology(kai_topology("network", (RACK, "rack"), (HOST, "node")))
    assert network == Topology("network", (RACK, HOST), {"rack": RACK, "node": HOST})
    for level in ("rack", RACK):
        group = PodGroupObserved(
            group="g", min_available=3, topology="network", required_level=level,
            preferred_level="node",
        )  # fmt: skip
        found = resolved(group, {"network": network}, VOLCANO)
        assert (found.required_level, found.preferred_level) == (RACK, HOST)
        assert found.levels == (RACK, HOST)
        assert resolved(group, {}, VOLCANO) == group


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ([], "levels"),
        ([("a", "")] * 17, "levels"),
        ([("a b", "")], "levels[0].nodeLabel"),
        ([("a", ""), ("a", "")], "levels[1].nodeLabel"),
        ([("a", "x"), ("b", "x")], "levels[1].alias"),
        ([("a", "b"), ("b", "")], "levels[0].alias"),
    ],
)
def test_topologies_that_cannot_be_read(wrong: list[tuple[str, str]], field: str) -> None:
    """A Topology with too many levels, or two of one name, is refused with the field's path."""
    with pytest.raises(ManifestError) as caught:
        read_topology(kai_topology("t", *wrong))
    assert caught.value.field == f"spec.{field}"
