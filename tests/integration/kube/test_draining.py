"""At a real API server, `drain` and `defrag` evict pods within their disruption budgets, and name
pods that cannot be evicted."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from apportion.cli.exits import INTERRUPTED
from apportion.cli.verbs.act.defrag import BY_SIGNAL
from apportion_schemas import NodeCordoned, NodeCordonLifted, PodGone, PodPlaced, PodRefused
from tests.support.control_plane import ROOT
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.polling import until

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


def made(name: str, limits: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a pod of a controller. When deleted, the pod ends at once."""
    pod = kube_pod(name, limits or share(), terminationGracePeriodSeconds=0, **fields)
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


async def act(
    world: KubeWorld, gateway: str, *options: str, token: Path | None = None
) -> tuple[int, Any]:
    """Run a verb as `begin` does, and return the exit code and the report."""
    process = await begin(world, gateway, *options, token=token)
    out, _ = await process.communicate()
    return process.returncode or 0, json.loads(out)


async def begin(
    world: KubeWorld, gateway: str, *options: str, token: Path | None = None
) -> asyncio.subprocess.Process:
    """Start a verb.

    It runs as a user with a kubeconfig, or with the logins of the chart's job, whose `token` is for
    the gateway."""
    job = token is not None
    kubeconfig = world.plane.kubeconfig_of("defrag") if job else world.plane.kubeconfig
    options += ("--token", str(token)) if job else ()
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "apportion.cli.main", *options, "--reason", "firmware", "--json",
        "--nats", world.bus.server.url_for("defrag" if job else "operator"), "--gateway", gateway,
        "--kubeconfig", str(kubeconfig),
        stdout=asyncio.subprocess.PIPE, env=os.environ,
    )  # fmt: skip


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

    code, report = await act(world, url, "drain", "n1", "--timeout", str(GIVEN_S))
    assert (code, list(report["moved"])) == (1, ["default/free"])
    assert "disruption budget" in report["left"]["default/careful"]
    assert "no controller" in report["left"]["default/bare"]
    assert report["stopped"] == f"after {GIVEN_S} s"
    assert [gone.uid for gone in await world.facts.count(PodGone, 1)] == [uids["free"]]

    again = ("drain", "n1", "--force", "--timeout", "120")
    going_on = asyncio.create_task(act(world, url, *again))
    await world.facts.count(PodGone, 2)
    assert {gone.uid for gone in world.facts.of(PodGone)} == {uids["free"], uids["bare"]}
    await allow(world, 1)
    code, report = await going_on
    assert (code, report["left"], report["stopped"]) == (0, {}, "")
    assert set(report["moved"]) == {"default/careful", "default/bare"}


async def halves(world: KubeWorld, *login: str) -> str:
    """Start two nodes that each have one pod on one of two GPUs. Return the gateway's URL.

    The options `login` are for the gateway."""
    await world.plane.apply(kube_node("n1"), kube_node("n2"))
    await world.agents(("n1", "2xA100-80GB"), ("n2", "2xA100-80GB"))
    await world.start("watcher")
    await world.start("scheduler", "--name", "s")
    await world.start("binder")
    gateway = await world.start("gateway", "--listen", "127.0.0.1:0", *login)
    url = str((await gateway.logged("answering"))["url"]).removesuffix("/api/v1/")
    names = [f"small-{number}" for number in range(4)]
    await world.plane.apply(*(made(name, share(81_920, 100)) for name in names))
    on = {name: (await world.bound(name))["spec"]["nodeName"] for name in names}
    kept = {node: name for name, node in on.items()}
    assert kept.keys() == {"n1", "n2"}
    for name in on.keys() - set(kept.values()):
        await world.delete(name)
    await world.facts.count(PodGone, 2)
    return url


async def test_a_pod_moves_so_that_a_larger_one_fits(world: KubeWorld) -> None:
    """`defrag --apply` evicts one pod, and keeps its node cordoned until the recreated pod is
    placed elsewhere. Then the pending pod gets the node."""
    url = await halves(world)
    await world.plane.apply(made("large", share(81_920, 100) | {"nvidia.com/gpu": "2"}))
    await world.facts.until(
        lambda: any(each.name == "large" for each in world.facts.of(PodRefused)), "a refusal"
    )

    going_on = asyncio.create_task(act(world, url, "defrag", "--apply"))
    *_, gone = await world.facts.count(PodGone, 3)
    moved = next(each for each in world.facts.of(PodPlaced) if each.pod == gone.uid)
    await world.plane.apply(made("recreated", share(81_920, 100)))
    code, report = await going_on
    assert (code, report["stopped"], report["cordoned"]) == (0, "", [])
    assert report["moved"] == {f"default/{moved.name}": ""}
    assert report["placed"] == {"default/large": moved.node}
    assert (await world.bound("recreated"))["spec"]["nodeName"] != moved.node


async def test_the_scheduled_job_may_do_what_its_moves_need(
    world: KubeWorld, tmp_path: Path
) -> None:
    """The chart's job empties a node with its own logins at the API server, the ledger and the
    gateway. If there is no move, it changes nothing and succeeds."""
    plane = world.plane
    plane.kubectl("apply", "-k", str(ROOT / "deploy" / "kubernetes" / "defrag"))
    said = plane.kubectl("get", "cronjob", "defrag", "-n", "apportion", "-o", "json")
    pod = json.loads(said)["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    words = pod["containers"][0]["args"]
    words += ["--free-nodes=1"]
    token = tmp_path / "token"
    made_for = ("--audience", "apportion", "-n", "apportion")
    token.write_text(plane.kubectl("create", "token", "defrag", *made_for))
    url = await halves(world, "--kubeconfig", str(plane.kubeconfig_of("gateway")))
    going_on = asyncio.create_task(act(world, url, *words, token=token))
    await world.facts.count(PodGone, 3)
    await plane.apply(made("recreated", share(81_920, 100)))
    code, report = await going_on
    assert (code, report["stopped"], report["cordoned"]) == (0, "", [])
    assert (len(report["moved"]), len(report["freed"])) == (1, 1)
    authors = {each.by.rpartition(" ")[0] for each in world.facts.of(NodeCordoned)}
    assert authors == {"cronjob/defrag (defrag"}
    code, report = await act(world, url, *words, token=token)
    assert (code, report["plan"].get("steps", []), report["moved"]) == (0, [], {})


async def test_without_a_recreated_pod_no_node_counts_as_freed(world: KubeWorld) -> None:
    """If no controller recreates an evicted pod in time, the pod is reported as pending, its node
    is not reported as empty, and the exit code is 5."""
    url = await halves(world)
    options = ("--free-nodes", "1", "--timeout", "20")
    code, report = await act(world, url, "defrag", *options, "--apply")
    assert (code, report["freed"], report["cordoned"]) == (5, [], [])
    assert (report["moved"], len(report["waiting"])) == ({}, 1)
    assert report["waiting"].keys() == report["was"].keys()


async def test_a_signal_during_an_eviction_leaves_no_cordon(world: KubeWorld) -> None:
    """SIGTERM while an evicted pod is ending stops `defrag`, and its cordons are removed."""
    url = await halves(world)

    async def pods() -> list[Any]:
        found: list[Any] = (await world.plane.get("pods"))["items"]
        return found

    async def keep(finalizers: list[str]) -> None:
        patch = json.dumps({"metadata": {"finalizers": finalizers}})
        for pod in await pods():
            name = pod["metadata"]["name"]
            await world.plane.user("patch", "pod", name, "--type=merge", "-p", patch)

    async def leaving() -> bool:
        return any("deletionTimestamp" in pod["metadata"] for pod in await pods())

    await keep(["example.com/slow"])
    try:
        moving = await begin(world, url, "defrag", "--free-nodes", "1", "--apply")
        await until(leaving, "a pod to be evicted")
        moving.send_signal(signal.SIGTERM)
        out, _ = await moving.communicate()
    finally:
        await keep([])
    report = json.loads(out)
    assert (moving.returncode, report["stopped"]) == (INTERRUPTED, BY_SIGNAL)
    assert (report["cordoned"], report["freed"], len(report["left"])) == ([], [], 1)
    [cordoned], [lifted] = world.facts.of(NodeCordoned), world.facts.of(NodeCordonLifted)
    assert cordoned.node == lifted.node


async def test_defrag_changes_nothing_if_an_eviction_is_refused(world: KubeWorld) -> None:
    """All evictions of a step are tried in a dry run before its nodes are cordoned. If one is
    refused, no pod is evicted, and the report has the reason."""
    url = await halves(world)
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "no-evictions"},
        "spec": {
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                 "resources": ["pods/eviction"]}
            ]},
            "validations": [{"expression": "false", "message": "evictions are closed"}],
        },
    }  # fmt: skip
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "no-evictions"},
        "spec": {"policyName": "no-evictions", "validationActions": ["Deny"]},
    }  # fmt: skip
    about = (await world.plane.get("pods"))["items"][0]["metadata"]
    eviction = {
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": about["name"], "namespace": "default"},
        "deleteOptions": {"dryRun": ["All"]},
    }  # fmt: skip
    ask = ("create", "--raw", f"/api/v1/namespaces/default/pods/{about['name']}/eviction")

    async def refused() -> bool:
        said = await world.plane.user(*ask, "-f", "-", stdin=json.dumps(eviction), ok=None)
        return not said  # an error is not on standard output

    assert not await refused()
    await world.plane.apply(policy, binding)
    try:
        await until(refused, "the API server to apply the policy")
        code, report = await act(world, url, "defrag", "--free-nodes", "1", "--apply")
        assert (code, report["moved"], report["freed"]) == (1, {}, [])
        assert ["evictions are closed" in why for why in report["left"].values()] == [True]
        assert world.facts.of(NodeCordoned) == []
    finally:
        await world.plane.user("delete", "validatingadmissionpolicybinding", "no-evictions")
