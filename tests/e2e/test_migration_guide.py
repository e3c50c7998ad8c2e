"""The migration guide leads a cluster with HAMi to Apportion, and back to HAMi."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.containers import alone, skip_unless_here
from tests.support.control_plane import find_binaries
from tests.support.polling import until
from tests.support.real_kubelet import missing
from tests.support.stand.shell import Shell
from tests.support.stand.stand import CPU_NODE, LIBRARY, Stand

skip_unless_here()
pytestmark = [
    pytest.mark.containers, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800),
]  # fmt: skip

NODE = "gpu-1"
MIGRATE, KEEP = "docs/tasks/migrate.md", "docs/tasks/keep-plugins.md"
TAKE_OVER = "docs/tasks/take-over-nodes.md"
INSTALL = "docs/get-started/kubernetes.md"
NAMES = {"REGISTRY/apportion": "localhost/apportion", "IMAGE_WITH_LIBVGPU": LIBRARY, "NODE": NODE}
"""What a person writes instead of the placeholders of the guide."""
OTHER = ("deployment chat", "statefulset nb")
"""The guide shows one workload; the namespace has two."""
CONNECTIONS = """
kill $(jobs -p) 2>/dev/null || true
kubectl -n apportion port-forward service/gateway 8470 &
kubectl -n apportion port-forward service/nats 4222 &
"""
"""As the guide says, they end when their pods are replaced."""


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    """Provide a cluster with HAMi and pods of two namespaces."""
    _, reason = find_binaries()
    if reason := reason or missing():
        pytest.skip(reason)
    with alone(), tempfile.TemporaryDirectory(prefix="stand", ignore_cleanup_errors=True) as name:
        async with Stand(Path(name)) as running:
            yield running


async def pods(stand: Stand, namespace: str) -> list[dict[str, Any]]:
    """Return the pods of a namespace that are not being deleted."""
    found = (await stand.plane.get("pods", namespace=namespace))["items"]
    return [each for each in found if "deletionTimestamp" not in each["metadata"]]


async def step(shell: Shell, code: str, *, back: bool = True) -> dict[str, Any]:
    """Wait until `migrate status` names this step. Return its answer."""
    answer: dict[str, Any] = {}

    async def named() -> bool:
        nonlocal answer
        answer = await shell.ask("apportion migrate status")
        return bool(answer["back" if back else "step"] == code)

    try:
        await until(named, f"step {code}", interval_s=1)
    except AssertionError as late:
        late.add_note(f"the last answer of `apportion migrate status`: {answer}")
        raise
    return answer


async def gone(stand: Stand, app: str, namespace: str) -> None:
    """Wait until the node has no pod of this DaemonSet."""

    async def none() -> bool:
        found = (await stand.plane.get("pods", namespace=namespace))["items"]
        return not [
            each
            for each in found
            if each["spec"].get("nodeName") == NODE and each["metadata"]["labels"].get("app") == app
        ]

    await until(none, f"the pod of {app} to be gone", interval_s=0.5)


async def configure(shell: Shell) -> None:
    """Follow steps 1 to 3 of the guide: check manifests, compare, and apply the configuration."""
    await shell.follow(MIGRATE, "## 1. Check the manifests, offline")
    await shell.follow(MIGRATE, "## 2. Run in shadow mode", at=slice(1))
    await shell.run("kubectl label node gpu-2 apportion=on")
    await shell.run("kubectl -n apportion rollout status daemonset/agent")
    await shell.follow(INSTALL, "## Install with Helm", at=slice(3, 4))
    await shell.follow(INSTALL, "## Connect for changes")
    await shell.follow(MIGRATE, "## 2. Run in shadow mode", at=slice(1, None))
    assert (await step(shell, "shadow", back=False))["stage"] == "shadow"
    await shell.follow(MIGRATE, "## 3. Apply the configuration")
    await step(shell, "label-node", back=False)


async def connect(shell: Shell) -> None:
    """Forward the ports of the gateway and the ledger again, and check that both answer."""
    await shell.run(CONNECTIONS)
    await shell.run("apportion get nodes\napportion ledger check")


async def ours(stand: Stand, shell: Shell) -> None:
    """Check that Apportion scheduled all pods of the namespace `research`, and placed them on its
    node.

    Also check that no pod of the namespace `web` is Apportion's."""
    answer = await step(shell, "return-namespace")
    counts = {row["namespace"]: row["ours"] for row in answer["namespaces"]}
    assert counts == {"research": 2, "web": 0}
    for each in await pods(stand, "research"):
        assert (each["spec"]["schedulerName"], each["spec"]["nodeName"]) == ("apportion", NODE)


async def test_the_guide_leads_to_scheduler_alone_and_back(stand: Stand) -> None:
    """Every command of the guide works in its order, and `migrate status` names each next step.

    Pods of another namespace keep running, also on the node that Apportion uses. In the end, the
    nodes are as before the migration."""
    async with Shell(stand, NAMES) as shell:
        await configure(shell)
        setup = "## Set it up"
        await shell.follow(KEEP, setup, at=slice(3))
        await connect(shell)
        kept = [each["metadata"]["uid"] for each in await pods(stand, "web")]
        await shell.follow(KEEP, setup, at=slice(3, 4))  # restarts HAMi's plugin
        for node in stand.nodes.keys() - {CPU_NODE}:
            await stand.nodes[node].offered("nvidia.com/gpu", 20)
        await shell.follow(KEEP, setup, at=slice(4, 6))
        await step(shell, "move-namespace", back=False)
        await shell.follow(KEEP, setup, at=slice(6, 8))
        await shell.follow(KEEP, setup, at=slice(7, 8), change=OTHER)
        await shell.follow(KEEP, setup, at=slice(8, 9))  # the rest moves the whole cluster
        await ours(stand, shell)
        # a server of the ledger, too, can be created again under the chart's policies
        await shell.run("kubectl -n apportion delete pod nats-0")
        await shell.run("kubectl -n apportion rollout status statefulset/nats")
        await connect(shell)

        back = "## Back to the old scheduler"
        await shell.follow(KEEP, back, at=slice(1))
        move = slice(6, 7)  # HAMi's scheduler runs, and has another node
        await shell.follow(KEEP, back, at=move)
        await shell.follow(KEEP, back, at=move, change=OTHER)
        await step(shell, "return-node")
        await shell.follow(KEEP, back, at=slice(4, 5))
        await step(shell, "untaint-node")
        await shell.follow(KEEP, back, at=slice(5, 6))
        await step(shell, "uninstall")
        await shell.follow(KEEP, back, at=slice(7, None))
        await shell.follow(MIGRATE, "### Remove Apportion")
    await stand.nodes[NODE].offered("nvidia.com/gpu", 20)
    await stand.running("research", "web")
    for each in await pods(stand, "research"):
        assert each["spec"]["schedulerName"] == "hami-scheduler"
    assert [each["metadata"]["uid"] for each in await pods(stand, "web")] == kept
    for node in (await stand.plane.get("nodes"))["items"]:
        assert not node["spec"].get("taints")
        notes = {**node["metadata"]["labels"], **node["metadata"]["annotations"]}
        assert not [key for key in notes if "apportion" in key or "lock" in key]


async def test_the_guide_leads_to_an_agent_and_back(stand: Stand) -> None:
    """The guide's commands also move a node to Apportion's agent, and back to its device plugin."""
    back = "## Back to HAMi or Volcano"
    async with Shell(stand, NAMES) as shell:
        await configure(shell)
        await shell.run("kubectl label node gpu-2 apportion-")
        move = "## 4. Move one node"
        await shell.follow(MIGRATE, move, at=slice(2))
        await gone(stand, "hami-device-plugin", "kube-system")
        await shell.follow(MIGRATE, move, at=slice(2, None))
        namespace = "## 5. Move the namespace"
        await shell.follow(MIGRATE, namespace, at=slice(1))
        await connect(shell)
        await shell.follow(MIGRATE, namespace, at=slice(1, 2))
        await step(shell, "move-namespace", back=False)
        await shell.follow(MIGRATE, namespace, at=slice(2, 3))
        await shell.follow(MIGRATE, namespace, at=slice(2, 3), change=OTHER)
        await shell.follow(MIGRATE, namespace, at=slice(3, None))
        await ours(stand, shell)

        for workload in (OTHER[0], OTHER[1]):
            template = '{"spec":{"template":{"spec":{"schedulerName":"hami-scheduler"}}}}'
            await shell.run(f"kubectl -n research patch {workload} -p '{template}'")
            await shell.run(f"kubectl -n research rollout status {workload}")
        await step(shell, "return-agent")
        await shell.follow(TAKE_OVER, back, at=slice(2))
        await gone(stand, "agent", "apportion")
        await shell.follow(TAKE_OVER, back, at=slice(2, None))
        await connect(shell)
        await step(shell, "uninstall")
        await shell.follow(MIGRATE, "### Return to shadow mode")
        await shell.run("kubectl -n apportion rollout status deployment/watcher")
    await stand.running("research", "web")
    await stand.nodes[NODE].offered("nvidia.com/gpu", 20)
    for each in await pods(stand, "research"):
        assert each["spec"]["schedulerName"] == "hami-scheduler"
