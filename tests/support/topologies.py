"""HyperNodes of Volcano and Topologies of KAI, as in their documentation."""

from typing import Any


def exact(name: str, kind: str = "Node") -> dict[str, Any]:
    """Return a member of a HyperNode that is selected by name."""
    return {"type": kind, "selector": {"exactMatch": {"name": name}}}


def hyper_node(name: str, tier: int, *members: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a HyperNode with these members."""
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": name},
        "spec": {"tier": tier, "members": list(members), **spec},
    }


def tree_of_volcano() -> list[dict[str, Any]]:
    """Return the HyperNodes of Volcano's guide: s6 contains s4 and s5, which contain s0 to s3.

    Each of s0 to s3 contains two nodes."""
    leaves = [
        hyper_node(f"s{n}", 1, exact(f"node{2 * n}"), exact(f"node{2 * n + 1}"), tierName="rack")
        for n in range(4)
    ]
    return [
        *leaves,
        hyper_node("s4", 2, exact("s0", "HyperNode"), exact("s1", "HyperNode"), tierName="zone"),
        hyper_node("s5", 2, exact("s2", "HyperNode"), exact("s3", "HyperNode"), tierName="zone"),
        hyper_node("s6", 3, exact("s4", "HyperNode"), exact("s5", "HyperNode")),
    ]


def kai_topology(name: str, *levels: tuple[str, str]) -> dict[str, Any]:
    """Return a Topology of KAI with these labels and aliases."""
    found = [{"nodeLabel": label} | ({"alias": alias} if alias else {}) for label, alias in levels]
    return {
        "apiVersion": "kai.scheduler/v1alpha1",
        "kind": "Topology",
        "metadata": {"name": name},
        "spec": {"levels": found},
    }
