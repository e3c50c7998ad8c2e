"""Tests of the examples of network topologies in the documentation of Volcano and KAI."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from apportion.core.workloads.kinds.drafts import submitted
from apportion.core.workloads.kinds.topologies import (
    HyperNodes,
    Topology,
    read_hyper_node,
    read_topology,
    resolved,
)
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger
from tests.support.manifests import read, task, volcano_job
from tests.support.topologies import exact, hyper_node, kai_topology, tree_of_volcano

NODES = [f"node{n}" for n in range(8)]
# two HyperNodes of four nodes each, as in Volcano's guide to the deployment of workloads
HALVES = [
    hyper_node("s0", 1, *map(exact, NODES[:4])),
    hyper_node("s1", 1, *map(exact, NODES[4:])),
    hyper_node("s2", 2, exact("s0", "HyperNode"), exact("s1", "HyperNode")),
]


class Documented:
    """A ledger with up to eight nodes of one GPU each, in a tree of HyperNodes."""

    def __init__(self, hyper_nodes: list[dict[str, Any]], *full: str) -> None:
        found = map(read_hyper_node, hyper_nodes)
        self.tree = HyperNodes({each.name: each for each in found})
        self.ledger = Ledger()
        for node in NODES:
            if node not in full:
                labels = self.tree.labels(node, {})
                self.ledger.report(rack(node, 1), observed(node, labels=labels))

    def submit(self, *documents: dict[str, Any]) -> dict[str, list[str]]:
        """Submit the workloads. Return the uids of all placed pods by HyperNode of tier 1."""
        for document in documents:
            manifest = read(document)
            self.ledger.play(*(resolved(group, {}, self.tree) for group in manifest.groups))
            self.ledger.submit(*(submitted(draft, draft.name) for draft in manifest.pods))
        self.ledger.settle()
        found = defaultdict(list)
        for pod in self.ledger.state.pods.values():
            if pod.placement is not None:
                labels = self.ledger.state.nodes[pod.placement.node].host.labels
                found[labels["apportion.dev/hypernode-tier-1"]].append(pod.uid)
        return found


WHOLE = {"nvidia.com/gpu": 1}


def job(
    replicas: int, least: int, limits: dict[str, Any] = WHOLE, **network: Any
) -> dict[str, Any]:
    """Return a Volcano Job with this `networkTopology`, whose pods have these limits."""
    pods = task(limits, name="t0", replicas=replicas)
    return volcano_job(pods, minAvailable=least, networkTopology=network)


def test_C10_Volcano_documents_a_job_in_one_hyper_node() -> None:
    """Volcano's example of a hard topology: of a job's 8 pods, those 4 run that fit a HyperNode."""
    found = Documented(HALVES).submit(job(8, 4, mode="hard", highestTierAllowed=1))
    assert [len(pods) for pods in found.values()] == [4]


def test_C10_Volcano_documents_a_highest_tier() -> None:
    """Volcano's example of `highestTierAllowed: 2`: all pods of the job are within s4 or all within
    s5. The tier may also be given by name."""
    for network in ({"highestTierAllowed": 2}, {"highestTierName": "zone"}):
        found = Documented(tree_of_volcano()).submit(job(2, 2, mode="hard", **network))
        assert len(found) == 1  # the closest that fits
        found = Documented(tree_of_volcano()).submit(job(4, 4, mode="hard", **network))
        assert set(found) in ({"s0", "s1"}, {"s2", "s3"})
        # 3 nodes in s4, and 2 in s5
        few = Documented(tree_of_volcano(), "node0", "node5", "node6")
        assert not few.submit(job(4, 4, mode="hard", **network))


def test_C10_Volcano_documents_a_soft_topology() -> None:
    """Volcano's soft mode: pods are close together if possible, and otherwise on any nodes."""
    assert len(Documented(tree_of_volcano()).submit(job(2, 2, mode="soft"))) == 1
    found = Documented(tree_of_volcano(), "node0", "node5").submit(job(3, 3, mode="soft"))
    assert set(found) in ({"s0", "s1"}, {"s2", "s3"})
    assert sum(map(len, Documented(tree_of_volcano()).submit(job(8, 8, mode="soft")).values())) == 8


def test_C10_Volcano_documents_that_fuller_hyper_nodes_are_filled_first() -> None:
    """Volcano's example of bin packing: two jobs that each need one HyperNode share the one that is
    already in use. The other HyperNode stays idle."""
    half = {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}
    parts = [job(2, 2, half, mode="hard", highestTierAllowed=1) for _ in range(2)]
    for number, part in enumerate(parts):
        part["metadata"] = {"name": f"part{number}"}
    found = Documented(HALVES, "node0", "node1").submit(*parts)
    assert [len(pods) for pods in found.values()] == [4]


def partitioned(least: int = 4, replicas: int = 8, **policy: Any) -> dict[str, Any]:
    """Return Volcano's example of a job in two partitions, each in one HyperNode of tier 1."""
    found = job(replicas, least, mode="hard", highestTierAllowed=2)
    found["spec"]["tasks"][0]["partitionPolicy"] = {
        "totalPartitions": replicas // 4,
        "partitionSize": 4,
        "networkTopology": {"mode": "hard", "highestTierAllowed": 1},
        **policy,
    }
    return found


def names(*numbers: int) -> list[str]:
    return [f"job-t0-{number}" for number in numbers]


def test_C10_Volcano_documents_two_partitions() -> None:
    """Volcano's example of a partition policy: each half of the job is in one HyperNode."""
    found = Documented(HALVES).submit(partitioned())
    assert sorted(map(sorted, found.values())) == [names(0, 1, 2, 3), names(4, 5, 6, 7)]


def test_C10_a_partition_starts_as_a_whole() -> None:
    """If a partition does not fit as a whole, none of its pods is placed, and another partition
    starts. Once the gang runs, further partitions also start as a whole."""
    documented = Documented(HALVES, "node7")
    found = documented.submit(partitioned())
    assert [sorted(pods) for pods in found.values()] == [names(0, 1, 2, 3)]
    labels = documented.tree.labels("node7", {})
    documented.ledger.report(rack("node7", 1), observed("node7", labels=labels))
    found = documented.submit()
    assert sorted(map(sorted, found.values())) == [names(0, 1, 2, 3), names(4, 5, 6, 7)]
    # with a minimum of two partitions, none starts alone
    assert not Documented(HALVES, "node7").submit(partitioned(8, minPartitions=2))
    # 4 nodes are free, but in two HyperNodes
    few = Documented(HALVES, "node0", "node1", "node4", "node5")
    assert not few.submit(partitioned())
    refused = few.ledger.refusal("job-t0-0")
    assert refused.gang is not None
    assert (refused.gang.needed, refused.gang.fitting) == (4, 2)
    assert refused.gang.level == "apportion.dev/hypernode-tier-1"


def test_C10_no_fewer_partitions_start_than_the_minimum() -> None:
    """A job starts with `minPartitions` partitions, even if `minAvailable` is smaller."""
    few = Documented(HALVES, "node5", "node6", "node7")
    assert not few.submit(partitioned(1, minPartitions=2))
    found = Documented(HALVES).submit(partitioned(1, minPartitions=2))
    assert sorted(map(len, found.values())) == [4, 4]


def test_C10_a_partition_without_a_minimum_does_not_keep_its_job_from_starting() -> None:
    """The scheduler places the tasks that must start before an optional partition. If the partition
    does not fit, the job starts without it."""
    for least in (4, 0):
        for full in (("node6", "node7"), ()):
            policy = {"totalPartitions": 1, "partitionSize": 8}
            found = Documented(HALVES, *full).submit(
                volcano_job(
                    task(WHOLE, name="v", replicas=4, minAvailable=least),
                    task(WHOLE, name="w", replicas=8, minAvailable=0, partitionPolicy=policy),
                    minAvailable=4,
                )
            )
            started = {uid for pods in found.values() for uid in pods}
            assert started >= {f"job-v-{n}" for n in range(4)} or (not full and not least)


def test_C10_a_lost_pod_returns_to_its_partition() -> None:
    """A pod that replaces a lost pod of a partition is placed in the partition's HyperNode."""
    documented = Documented(HALVES)
    documented.submit(partitioned())
    ledger = documented.ledger
    node = ledger.where("job-t0-5")
    (lost,) = (pod.submitted for pod in ledger.state.pods.values() if pod.uid == "job-t0-5")
    ledger.gone("job-t0-5")
    ledger.submit(structs.replace(lost, uid="again")).settle()
    assert ledger.where("again") == node


SPINE = ("zone", "spine", "rack")


CLUSTER = {
    "cluster-topology": read_topology(
        kai_topology("cluster-topology", *((f"topology/{key}", "") for key in SPINE))
    )
}


def kai_pods(
    ledger: Ledger,
    spec: dict[str, Any],
    topologies: Mapping[str, Topology] = CLUSTER,
    **counts: int,
) -> dict[str, list[str]]:
    """Submit a KAI PodGroup with this many pods per subgroup. Return the racks by subgroup."""
    group = {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "sample"},
        "spec": spec,
    }
    ledger.play(*(resolved(each, topologies, HyperNodes({})) for each in read(group).groups))
    for subgroup, count in counts.items():
        for number in range(count):
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{subgroup}{number}",
                    "annotations": {"pod-group-name": "sample"},
                    "labels": {"kai.scheduler/subgroup-name": f"subgroup-{subgroup}"},
                },
                "spec": task(WHOLE)["template"]["spec"],
            }
            ledger.submit(*(submitted(draft, draft.name) for draft in read(pod).pods))
    ledger.settle()
    return {
        subgroup: sorted({ledger.where(f"{subgroup}{n}")[:-1] for n in range(count)})
        for subgroup, count in counts.items()
    }


def racks(**free: int) -> Ledger:
    """Return a ledger with this many one-GPU nodes per rack. `z1s1a` is rack a of spine s1."""
    ledger = Ledger()
    for name, nodes in free.items():
        levels = (name[:2], name[2:4], name[4:])
        labels = dict(zip((f"topology/{key}" for key in SPINE), levels, strict=True))
        for number in range(nodes):
            ledger.report(rack(f"{name}{number}", 1), observed(f"{name}{number}", labels=labels))
    return ledger


def constraint(level: str) -> dict[str, Any]:
    return {
        "topologyConstraint": {
            "topology": "cluster-topology",
            "requiredTopologyLevel": f"topology/{level}",
        }
    }


INDEPENDENT = {
    "subGroups": [
        {"name": "subgroup-a", "minMember": 2, **constraint("rack")},
        {"name": "subgroup-b", "minMember": 3, **constraint("rack")},
    ]
}


def test_I2_KAI_documents_independent_subgroups() -> None:
    """KAI's first example of subgroups: each subgroup is in one rack, and the racks may differ."""
    found = kai_pods(racks(z1s1a=2, z2s2b=3), INDEPENDENT, a=2, b=3)
    assert found == {"a": ["z1s1a"], "b": ["z2s2b"]}
    ledger = racks(z1s1a=2, z2s2b=2, z2s2c=2)
    assert kai_pods(ledger, INDEPENDENT, a=2, b=3) == {"a": [""], "b": [""]}
    refused = ledger.refusal("a0")
    assert refused.gang is not None
    assert (refused.gang.needed, refused.gang.fitting) == (3, 2)


def test_I2_KAI_documents_nested_subgroups() -> None:
    """KAI's second example of subgroups: the job is in one zone, two subgroups share a spine, and
    each subgroup is in one rack."""
    nested = {
        **constraint("zone"),
        "subGroups": [
            {"name": "subgroup-ab", **constraint("spine")},
            {"name": "subgroup-a", "minMember": 1, "parent": "subgroup-ab", **constraint("rack")},
            {"name": "subgroup-b", "minMember": 2, "parent": "subgroup-ab", **constraint("rack")},
            {"name": "subgroup-c", "minMember": 3, **constraint("rack")},
        ],
    }
    # Zone z1 has room for 6 pods, but no spine for a and b next to a rack for c.
    found = kai_pods(
        racks(z1s1a=3, z1s2b=1, z1s3c=2, z2s4d=1, z2s4e=2, z2s5f=4), nested, a=1, b=2, c=3
    )
    assert found == {"a": ["z2s4d"], "b": ["z2s4e"], "c": ["z2s5f"]}
    assert not any(
        each != [""]
        for each in kai_pods(racks(z1s1a=3, z1s2b=1, z1s3c=2), nested, a=1, b=2, c=3).values()
    )


def test_I2_KAI_documents_two_topologies() -> None:
    """KAI's example of a PodGroup with two Topologies: one subgroup is in a rack, and the other in
    a zone. All subgroups must start."""
    keys = {
        "rack-topology": "topology.test/rack-domain",
        "zone-topology": "topology.test/zone-domain",
    }
    topologies = {name: read_topology(kai_topology(name, (key, ""))) for name, key in keys.items()}
    ledger = Ledger()
    for number, (rack_of, zone) in enumerate(
        (("a", "x"), ("a", "x"), ("b", "x"), *[("c", "y")] * 3)
    ):
        labels = dict(zip(keys.values(), (rack_of, zone), strict=True))
        ledger.report(rack(f"n{number}", 1), observed(f"n{number}", labels=labels))
    subgroups = [
        {
            "name": f"subgroup-{name[0]}",
            "minMember": 3,
            "topologyConstraint": {"topology": name, "requiredTopologyLevel": key},
        }
        for name, key in keys.items()
    ]
    spec = {"minSubGroup": 2, "subGroups": subgroups}
    found = kai_pods(ledger, spec, topologies, r=3, z=3)
    assert all(ledger.where(f"r{n}") in ("n3", "n4", "n5") for n in range(3))
    assert all(ledger.where(f"z{n}") in ("n0", "n1", "n2") for n in range(3))
    assert found == {"r": ["n"], "z": ["n"]}


def test_I2_KAI_documents_a_job_by_alias() -> None:
    """KAI's example of aliases: three pods of a PodGroup are in one rack, named by its alias."""
    label = "accelerator.nvidia.com/rack"
    network = read_topology(
        kai_topology("network", (label, "rack"), ("kubernetes.io/hostname", "node"))
    )
    group = {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "aliased-topology-job"},
        "spec": {
            "minMember": 3,
            "topologyConstraint": {"topology": "network", "requiredTopologyLevel": "rack"},
        },
    }
    ledger = Ledger()
    for node, of in zip(NODES, "aabbbbcc", strict=True):
        ledger.report(rack(node, 1), observed(node, labels={label: of}))
    ledger.play(
        *(resolved(each, {"network": network}, HyperNodes({})) for each in read(group).groups)
    )
    for number in range(3):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"p{number}",
                "annotations": {"pod-group-name": "aliased-topology-job"},
            },
            "spec": task({"nvidia.com/gpu": 1})["template"]["spec"],
        }
        ledger.submit(*(submitted(draft, draft.name) for draft in read(pod).pods))
    ledger.settle()
    assert {ledger.where(f"p{number}") for number in range(3)} <= set(NODES[2:6])
    assert all(ledger.where(f"p{number}") for number in range(3))
