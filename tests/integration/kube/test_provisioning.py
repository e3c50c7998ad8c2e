"""The binder's ProvisioningRequests on a real API server: it validates the requests and templates,
and checks the binder's permissions. The test plays Cluster Autoscaler."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from apportion.binder.kubernetes.provisioning import CLASS, CONSUMES
from tests.support.control_plane import ROOT
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.polling import until

RIGHTS = str(ROOT / "deploy" / "kubernetes" / "provisioning")
CRD = ROOT / "tests" / "support" / "provisioning_crd.yaml"
KIND = "provisioningrequests.autoscaling.x-k8s.io"
NAME = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
PODS = ("p0", "p1", "p2")
LINUX = {"kubernetes.io/os": "linux"}


@pytest.fixture
async def autoscaled(world: KubeWorld) -> AsyncIterator[KubeWorld]:
    """Provide a cluster that serves ProvisioningRequests, with a node of one GPU."""
    world.plane.install([yaml.safe_load(CRD.read_text())])
    await world.plane.apply(kube_node("n1", labels=LINUX))
    await world.agents(("n1", "1xT4"))
    yield world
    await world.plane.user("delete", "-k", RIGHTS, "--ignore-not-found")
    await world.plane.user("delete", "podtemplates", "--all")
    await world.plane.user("delete", "-f", str(CRD))


async def listed(world: KubeWorld, kind: str) -> list[dict[str, Any]]:
    """Return all objects of a kind."""
    return list(json.loads(await world.plane.user("get", kind, "-o", "json"))["items"])


async def submit(world: KubeWorld) -> None:
    """Create a gang of three pods, of which one fits on the node."""
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "job", "namespace": "default"},
        "spec": {"minMember": len(PODS), "queue": "default"},
    }
    notes = {"scheduling.k8s.io/group-name": "job"}
    # fields that only a real API server checks
    fields = {
        "hostNetwork": True,
        "nodeSelector": LINUX,
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "initContainers": [{"name": "first", "image": "app", "command": ["true"]}],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    pods = [kube_pod(name, share(12_001), annotations=notes, **fields) for name in PODS]
    await world.plane.apply(group, *pods)


async def test_a_gang_gets_its_nodes_and_the_request_is_deleted(autoscaled: KubeWorld) -> None:
    """The API server accepts the request and its template from the binder's account. Once the
    autoscaler has added the nodes, the gang is bound, and both are deleted."""
    world = autoscaled
    await world.plane.user("apply", "-k", RIGHTS)
    for verb in ("watcher", "scheduler"):
        await world.start(verb)
    await world.start("binder", "--provisioning-class", NAME)
    await submit(world)

    async def requested() -> list[dict[str, Any]]:
        return await listed(world, KIND)

    (request,) = await until(requested, "the request of the gang", interval_s=0.3)
    name = request["metadata"]["name"]
    (pod_set,) = request["spec"]["podSets"]
    assert pod_set == {"podTemplateRef": {"name": f"{name}-0"}, "count": 3}
    (template,) = await listed(world, "podtemplates")
    (container,) = template["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == share(12_001)
    (owner,) = request["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Pod", "p0")

    async def consumed() -> bool:
        notes = [(await world.pod(each))["metadata"]["annotations"] for each in PODS]
        return {(note.get(CONSUMES), note.get(CLASS)) for note in notes} == {(name, NAME)}

    await until(consumed, "the pods to name the request", interval_s=0.3)
    for node in ("n2", "n3"):
        await world.plane.apply(kube_node(node, labels=LINUX))
        await world.agents((node, "1xT4"))
    for each in PODS:
        await world.bound(each)

    async def deleted() -> bool:
        return not (await listed(world, KIND) or await listed(world, "podtemplates"))

    await until(deleted, "the request to be deleted", interval_s=0.5)


async def test_without_permission_the_pods_are_unschedulable_as_before(
    autoscaled: KubeWorld,
) -> None:
    """Without the permission, the binder logs the fix, and the pods have their condition."""
    world = autoscaled
    for verb in ("watcher", "scheduler"):
        await world.start(verb)
    binder = await world.start("binder", "--provisioning-class", NAME)
    await submit(world)
    said = await binder.logged("no ProvisioningRequest")
    assert "binder.provisioning.enabled" in said["event"]
    await world.described("p1", "FailedScheduling")

    async def condition() -> bool:
        pod = await world.pod("p1")
        found = pod["status"].get("conditions", ())
        assert CONSUMES not in pod["metadata"]["annotations"]
        return [each["reason"] for each in found if each["status"] == "False"] == ["Unschedulable"]

    await until(condition, "the condition of the pod", interval_s=0.3)
