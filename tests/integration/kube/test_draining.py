"""Draining a node at a real API server evicts pods within their disruption budgets, and names pods
that cannot be evicted."""

import asyncio
import json
import os
import sys
from typing import Any

import pytest

from apportion_schemas import PodGone
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld

pytestmark = pytest.mark.slow
GIVEN_S = 25
"""For a pod that may go, on a machine that may stand still for ten seconds and more."""
BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "careful"},
    "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "careful"}}},
}
MADE: dict[str, Any] = {
    "metadata": {
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "controller": True,
             "uid": "00000000-0000-0000-0000-000000000001"}
        ]
    }
}  # fmt: skip


def made(name: str, **fields: Any) -> dict[str, Any]:
    """Return a pod of a controller. When deleted, the pod ends at once."""
    pod = kube_pod(name, share(), terminationGracePeriodSeconds=0, **fields)
    pod["metadata"] |= MADE["metadata"]
    return pod


async def allow(world: KubeWorld, evictions: int) -> None:
    """Allow this number of evictions in the disruption budget's status, as its controller would."""
    status = {
        "observedGeneration": 1, "disruptionsAllowed": evictions, "currentHealthy": 1,
        "desiredHealthy": 1, "expectedPods": 1,
    }  # fmt: skip
    await world.plane.user(
        "patch", "pdb", "careful", "--subresource=status", "--type=merge",
        "-p", json.dumps({"status": status}),
    )  # fmt: skip


async def run_pod(world: KubeWorld, name: str) -> None:
    """Mark the pod as running, as a kubelet would. Disruption budgets protect only running pods."""
    ready = [{"type": "Ready", "status": "True"}]
    await world.plane.user(
        "patch", "pod", name, "--subresource=status", "--type=merge",
        "-p", json.dumps({"status": {"phase": "Running", "conditions": ready}}),
    )  # fmt: skip


async def drain(world: KubeWorld, gateway: str, *options: str) -> tuple[int, Any]:
    """Run drain as a user with a kubeconfig, and return the exit code and the report."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "apportion.cli.main", "drain", "n1", "--reason", "firmware", "--json",
        "--nats", world.bus.server.url_for("operator"), "--gateway", gateway,
        "--kubeconfig", str(world.plane.kubeconfig), *options,
        stdout=asyncio.subprocess.PIPE, env=os.environ,
    )  # fmt: skip
    out, _ = await process.communicate()
    return process.returncode or 0, json.loads(out)


async def test_pods_are_evicted_as_their_budgets_allow(world: KubeWorld) -> None:
    """A drain evicts pods as their disruption budgets allow. It does not evict pods that have no
    controller."""
    plane = world.plane
    await plane.apply(
        kube_node("n1"), BUDGET, made("free"), made("careful", labels={"app": "careful"}),
        kube_pod("bare", share(), terminationGracePeriodSeconds=0),
    )  # fmt: skip
    await allow(world, 0)
    await world.agents(("n1", "2xA100-80GB"))
    await world.start("watcher")
    await world.start("scheduler", "--name", "s")
    await world.start("binder")
    gateway = await world.start("gateway", "--listen", "127.0.0.1:0")
    url = str((await gateway.logged("answering"))["url"]).removesuffix("/api/v1/")
    uids = {}
    for name in ("free", "careful", "bare"):
        uids[name] = (await world.bound(name))["metadata"]["uid"]
        await run_pod(world, name)

    code, report = await drain(world, url, "--timeout", str(GIVEN_S))
    assert (code, list(report["moved"])) == (1, ["default/free"])
    assert "disruption budget" in report["left"]["default/careful"]
    assert "no controller" in report["left"]["default/bare"]
    assert report["stopped"] == f"after {GIVEN_S} s"
    assert [gone.uid for gone in await world.facts.count(PodGone, 1)] == [uids["free"]]

    going_on = asyncio.create_task(drain(world, url, "--force", "--timeout", "120"))
    await world.facts.count(PodGone, 2)
    assert {gone.uid for gone in world.facts.of(PodGone)} == {uids["free"], uids["bare"]}
    await allow(world, 1)
    code, report = await going_on
    assert (code, report["left"], report["stopped"]) == (0, {}, "")
    assert set(report["moved"]) == {"default/careful", "default/bare"}
