"""Pods run as non-root with seccomp, read-only file systems and no capabilities. This module lists
the exceptions.

The API server itself checks the pods, by the strictest Pod Security standard."""

import json
from typing import Any

from tests.support.applied import objects, pods
from tests.support.kube_world import KubeWorld

SPACE = "restricted"
EXCEPTIONS = {
    "host namespaces": "hostPID=true",
    "hostPath volumes": "hostPath",
    "unrestricted capabilities": "SYS_PTRACE",
    "runAsNonRoot != true": "runAsNonRoot",
    "runAsUser=0": "runAsUser=0",
}
"""Rules of the standard that the agent violates, as the API server reports them."""


async def judged(world: KubeWorld, template: dict[str, Any], *, ok: bool) -> str:
    """Create a pod from this template where the API server enforces a pod security standard.

    Return the API server's reply."""
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": label}}
    await world.plane.apply(space)
    spec = {key: value for key, value in template["spec"].items() if key != "priorityClassName"}
    volumes = [{"name": "ledger", "emptyDir": {}}, *spec.get("volumes", ())]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    pod["spec"] = spec | {"volumes": volumes}
    told = ("create", "--dry-run=server", "-n", SPACE, "-f", "-")
    return await world.plane.user(*told, stdin=json.dumps(pod), ok=ok)


async def test_every_pod_but_the_agents_keeps_to_the_strictest_standard(world: KubeWorld) -> None:
    """Every pod but the agent's meets the restricted standard, with a read-only root file
    system."""
    for name, template in pods():
        if name == "agent":
            continue
        await judged(world, template, ok=True)
        for container in template["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"], name
            assert template["spec"]["securityContext"]["seccompProfile"], name


async def test_what_an_agent_does_not_keep_is_what_is_listed(world: KubeWorld) -> None:
    """The agent's pod violates only those rules of the restricted standard that this test lists,
    and it sets a seccomp profile."""
    (agent,) = [template for name, template in pods() if name == "agent"]
    said = await judged(world, agent, ok=False)
    assert not [mark for mark in EXCEPTIONS.values() if mark not in said], said
    assert said.partition("restricted:latest")[2].count("(") == len(EXCEPTIONS), said
    assert "seccompProfile" not in said


async def test_a_pod_that_is_root_is_found(world: KubeWorld) -> None:
    """The API server refuses the scheduler's pod without `runAsNonRoot`, and names that field."""
    (scheduler,) = [template for name, template in pods() if name == "scheduler"]
    weak = json.loads(json.dumps(scheduler))
    del weak["spec"]["securityContext"]["runAsNonRoot"]
    assert "runAsNonRoot != true" in await judged(world, weak, ok=False)


def test_every_service_says_what_it_needs_and_what_it_may_take() -> None:
    """Every service has resource requests and a memory limit, so that it starves no other service
    or node."""
    for name, template in pods():
        (container,) = template["spec"]["containers"]
        if name.startswith("ledger-"):
            continue  # a job that ends
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}, name
        assert container["resources"]["limits"].keys() == {"memory"}, name


def test_who_asks_no_api_server_has_no_token_of_it() -> None:
    """A pod mounts a token only if its account has rights at the API server."""
    mounted = {
        template["metadata"]["labels"]["app"]
        for _, template in pods()
        if template["spec"].get("automountServiceAccountToken") is not False
    }
    accounts = {
        each["metadata"]["name"]
        for each in objects("accounts.yaml")
        if each.get("automountServiceAccountToken") is not False
    }
    assert mounted & accounts == {"watcher", "binder", "gateway", "admission"}
