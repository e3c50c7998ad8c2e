"""kube-scheduler and Apportion find the same possible nodes for hundreds of generated pods.

kube-scheduler and Apportion read the same API server. An extender records which nodes pass
kube-scheduler's filters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from apportion.core.ledger.state import PodState
from apportion.core.placement.index.board_loops import REFUSED
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.watcher.kubernetes.facts import Facts, Revisions
from apportion.watcher.kubernetes.objects import ObjectReader
from apportion.watcher.kubernetes.view import ClusterView
from apportion.watcher.kubernetes.volumes import CLAIMS
from apportion_schemas import NodeObserved, PodRejected
from tests.support.asked_extender import SETTINGS, asked_extender
from tests.support.control_plane import ControlPlane
from tests.support.kube_scheduler import kube_scheduler
from tests.support.kube_world import KubeWorld
from tests.support.ledger_of import Ledger
from tests.support.polling import until
from tests.support.random_cluster import NAMESPACES, TEAM, RandomCluster

SEED = 14
SINCE = (1, 37)
"""Older servers drop fields that are drawn here."""
BLIND: dict[str, Any] = {"taints": (), "others": (), "volume_limits": {}}
"""What may be left out of nodes on purpose."""
KINDS = (
    "namespaces",
    "storageclasses",
    "csidrivers",
    "csistoragecapacities",
    "persistentvolumes",
    "persistentvolumeclaims",
    "csinodes",
    "nodes",
    "pods",
)


async def stands(plane: ControlPlane, cluster: RandomCluster) -> None:
    """Create all generated objects in the API server."""
    await plane.user("create", "namespace", NAMESPACES[1], ok=None)
    await plane.user("label", "--overwrite", "namespace", NAMESPACES[1], TEAM)
    await _create(plane, cluster.nodes)
    await _create(plane, cluster.storage.objects)
    free = json.dumps({"status": {"phase": "Available"}})
    await plane.user("patch", "pv", *cluster.storage.free, "--subresource=status", "-p", free)
    for namespace in NAMESPACES:
        pods = [
            pod
            for pod in (*cluster.there, *cluster.waiting)
            if pod["metadata"]["namespace"] == namespace
        ]
        await _create(plane, pods, "-n", namespace)
        leaving = [
            pod["metadata"]["name"]
            for pod in cluster.leaving
            if pod["metadata"]["namespace"] == namespace
        ]
        await plane.user(
            "delete", "pod", *leaving, "-n", namespace, "--grace-period=3600", "--wait=false"
        )


async def _create(plane: ControlPlane, documents: list[dict[str, Any]], *where: str) -> None:
    """Create the documents in one request. `kubectl apply` would need two requests for each
    document."""
    listed = {"apiVersion": "v1", "kind": "List", "items": documents}
    await plane.user("create", *where, "-f", "-", stdin=json.dumps(listed))


async def cleared(plane: ControlPlane) -> None:
    """Delete all objects, with one request for each kind. Single deletions would take a minute."""
    for namespace in NAMESPACES:
        for path in (
            f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0",
            f"/api/v1/namespaces/{namespace}/persistentvolumeclaims",
            f"/apis/storage.k8s.io/v1/namespaces/{namespace}/csistoragecapacities",
        ):
            await plane.user("delete", "--raw", path)


async def asked(plane: ControlPlane, folder: Path, waiting: int) -> dict[str, set[str]]:
    """Let kube-scheduler try each pending pod. Return the nodes that pass its filters, by pod."""

    async def answered() -> bool:
        listed = json.loads(await plane.user("get", "pods", "-A", "-o", "json"))["items"]
        told = [pod for pod in listed if (pod["status"].get("conditions") or []) and _waits(pod)]
        return len(told) == waiting

    with (
        asked_extender() as (url, fits),
        kube_scheduler(plane, folder, url, urlPrefix=url, **SETTINGS),
    ):
        await until(answered, "kube-scheduler to have tried every pod", timeout_s=240)
    return fits


def _waits(pod: Any) -> bool:
    name: str = pod["metadata"]["name"]
    return name.startswith("waits-")


async def read(plane: ControlPlane, *, without: str = "") -> tuple[Ledger, list[PodRejected]]:
    """Return a ledger made from the cluster's objects, and the pods that Apportion refuses.

    `without` names a field of the nodes to leave out."""
    ledger = Ledger()
    reader = ObjectReader(frozenset(("default-scheduler",)), ManifestConfig())
    view = ClusterView(reader, ledger.state)
    facts = Facts(view, ledger.state, Revisions(ledger.state))
    for kind in KINDS:
        for document in json.loads(await plane.user("get", kind, "-A", "-o", "json"))["items"]:
            view.audiences[kind].seen(msgspec.json.encode(document))
    marked = view.take()
    ledger.play(*(fact.data for fact in facts.mirrored(marked)))
    claims = facts.volume_claims(marked.others[CLAIMS], marked.pods)
    ledger.play(*(fact.data for fact in claims))
    for fact in facts.nodes(marked.nodes):
        assert isinstance(fact.data, NodeObserved)
        left_out: dict[str, Any] = {without: BLIND[without]} if without else {}
        ledger.play(structs.replace(fact.data, **left_out))
    rejected = []
    for fact in facts.arrivals(marked.pods):
        ledger.play(fact.data)
        rejected += [fact.data] if isinstance(fact.data, PodRejected) else []
    return ledger, rejected


def fitting(ledger: Ledger, pod: PodState) -> set[str]:
    """Return the nodes that pass all of Apportion's filters for the pod."""
    finder = ledger.engine._finder
    points = finder.class_of(pod).board.points
    return {name for at, name in enumerate(finder.columns.names) if name and points[at] != REFUSED}


def differences(ledger: Ledger, theirs: dict[str, set[str]]) -> list[str]:
    """Describe the pods for which kube-scheduler and Apportion find different nodes."""
    found = []
    for pod in ledger.state.pods.values():
        ours, his = fitting(ledger, pod), theirs.get(pod.submitted.name, set())
        if ours != his:
            only = f"only here {sorted(ours - his)}, only there {sorted(his - ours)}"
            found.append(f"{pod.full_name}: {only}")
    return found


@pytest.mark.timeout(600)
async def test_H10_both_find_the_same_nodes(world: KubeWorld, tmp_path: Path) -> None:
    """kube-scheduler and Apportion agree on the possible nodes of every pod.

    If a field of the nodes is hidden from Apportion, the comparison reports differences."""
    plane = world.plane
    if plane.version < SINCE:
        pytest.skip("an API server before {}.{} drops fields that are drawn".format(*SINCE))
    cluster = RandomCluster(SEED)
    await stands(plane, cluster)
    theirs = await asked(plane, tmp_path, len(cluster.waiting))
    ledger, rejected = await read(plane)
    blind = {field: (await read(plane, without=field))[0] for field in BLIND}
    await cleared(plane)
    assert rejected == []
    assert len(ledger.state.pods) == len(cluster.waiting)
    assert differences(ledger, theirs) == []
    some = [len(nodes) for nodes in theirs.values() if nodes]
    assert len(some) > len(cluster.waiting) // 2
    assert max(some) > min(some)
    for field, less in blind.items():
        assert differences(less, theirs), field
