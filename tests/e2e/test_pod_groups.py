"""Gangs that are declared by PodGroups of the coscheduling plugin or of Kubernetes itself."""

import asyncio
import json
from typing import Any

import pytest

from apportion.core.workloads.pods.gangs import KUBERNETES, KUBERNETES_VERSIONS
from apportion_schemas import PodBound, PodGroupObserved, PodSubmitted
from tests.e2e.test_life import system
from tests.support.control_plane import GANGS_SINCE
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld

MUTABLE_SINCE = (1, 37)
"""The first version in which a PodGroup's minCount can be changed."""
LABEL = "scheduling.x-k8s.io/pod-group"


def pod_group(api_version: str, **spec: Any) -> dict[str, Any]:
    """Return a PodGroup of this API version in the default namespace."""
    metadata = {"name": "job"}
    return {"apiVersion": api_version, "kind": "PodGroup", "metadata": metadata, "spec": spec}


def labelled(name: str) -> dict[str, Any]:
    """Return a pod that joins the PodGroup `job` by a label."""
    return kube_pod(name, share(3000), labels={LABEL: "job"})


def native(name: str) -> dict[str, Any]:
    """Return a pod that joins the PodGroup `job` by a field of the pod's `spec`."""
    return kube_pod(name, share(3000), schedulingGroup={"podGroupName": "job"})


async def waits_and_starts(world: KubeWorld, gang: str, pods: list[dict[str, Any]]) -> None:
    """Create the gang's pods, and check that none is bound before the last one exists."""
    *some, last = pods
    await world.plane.apply(*some)
    await world.facts.count(PodSubmitted, len(some))
    needs = f"its gang needs {len(pods)} pods to start"
    await world.described(some[0]["metadata"]["name"], "FailedScheduling", needs)
    assert world.facts.of(PodBound) == []
    await world.plane.apply(last)
    await world.facts.count(PodBound, len(pods))
    (told,) = world.facts.of(PodGroupObserved)  # no other PodGroup is needed
    assert (told.group, told.min_available) == (gang, len(pods))


async def test_a_gang_of_the_coscheduling_plugin(world: KubeWorld) -> None:
    """A gang of the coscheduling plugin starts once it has the pods that its PodGroup requires."""
    await system(world)
    await world.plane.apply(pod_group("scheduling.x-k8s.io/v1alpha1", minMember=3))
    pods = [labelled(f"p{n}") for n in range(3)]
    await waits_and_starts(world, "default/scheduling.x-k8s.io/job", pods)


def served(world: KubeWorld) -> list[str]:
    """Return the versions of Kubernetes' own PodGroups that the API server serves."""
    if world.plane.version < GANGS_SINCE:
        pytest.skip("this API server has no PodGroups")
    group = world.plane.api.request("GET", f"/apis/{KUBERNETES}")
    versions = [each["version"] for each in group["versions"]]
    found = [each for each in versions if each in KUBERNETES_VERSIONS]
    assert found, f"Apportion reads {KUBERNETES_VERSIONS}, and the API server serves {versions}"
    return found


async def test_a_gang_of_kubernetes_itself(world: KubeWorld) -> None:
    """A gang of Kubernetes' own PodGroups starts when its minimum of pods exists, in the newest
    version of the API.

    A PodGroup of the same name in another API group is a different gang."""
    newest = served(world)[0]  # the API server lists the newest version first
    await system(world)
    policy = {"gang": {"minCount": 3}}
    await world.plane.apply(
        pod_group("scheduling.x-k8s.io/v1alpha1", minMember=1),
        pod_group(f"{KUBERNETES}/{newest}", schedulingPolicy=policy),
    )
    pods = [native(f"p{n}") for n in range(3)]
    await waits_and_starts(world, "default/scheduling.k8s.io/job", pods)


async def test_a_gang_of_kubernetes_gets_a_smaller_minimum(world: KubeWorld) -> None:
    """If the minimum of a pending gang is lowered to the number of its pods, the gang starts.

    The PodGroup is created in the oldest served version and changed in the newest one."""
    if world.plane.version < MUTABLE_SINCE:
        pytest.skip("this API server does not permit a change of minCount")
    newest, *_, oldest = served(world)
    await system(world)
    wanted = {"gang": {"minCount": 3}}
    await world.plane.apply(
        pod_group(f"{KUBERNETES}/{oldest}", schedulingPolicy=wanted), native("p0"), native("p1")
    )
    await world.described("p0", "FailedScheduling", "its gang needs 3 pods to start")
    path = f"/apis/{KUBERNETES}/{newest}/namespaces/default/podgroups/job"
    lower = {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
    await asyncio.to_thread(world.plane.api.request, "PATCH", path, lower, merge=True)
    await world.facts.count(PodBound, 2)
    minima = [each.min_available for each in world.facts.of(PodGroupObserved)]
    assert minima == [3, 2]  # each change once, although several versions are served


async def test_a_gang_of_kubernetes_starts_in_one_topology_domain(world: KubeWorld) -> None:
    """The pods of a PodGroup with a topology constraint start once a domain has room for all."""
    newest = served(world)[0]
    group = pod_group(
        f"{KUBERNETES}/{newest}",
        schedulingPolicy={"gang": {"minCount": 2}},
        schedulingConstraints={"topology": [{"key": "example.com/rack"}]},
    )
    await system(world)
    await world.plane.apply(group, native("p0"), native("p1"))
    await world.described("p0", "FailedScheduling", "no node with this label has room")
    labels = {"metadata": {"labels": {"example.com/rack": "r1"}}}
    path = "/api/v1/nodes/n1"
    await asyncio.to_thread(world.plane.api.request, "PATCH", path, labels, merge=True)
    await world.facts.count(PodBound, 2)


async def test_I2_a_gang_of_kais_pod_grouper(world: KubeWorld) -> None:
    """Pods of KAI's scheduler wait until its pod-grouper names their PodGroup, and start together.

    The test writes what the pod-grouper writes: a PodGroup with subgroups, then an annotation and
    a label on each pod."""
    await world.plane.apply(kube_node("n1"))
    await world.agents(("n1", "1xT4"))
    await world.start("watcher", "--scheduler-name=kai-scheduler")
    for verb in ("scheduler", "binder"):
        await world.start(verb)
    group = pod_group(
        "scheduling.run.ai/v2alpha2",
        queue="team",
        subGroups=[{"name": "headgroup", "minMember": 1}, {"name": "workers", "minMember": 2}],
    )
    names = {"p0": "headgroup", "p1": "workers", "p2": "workers"}
    await world.plane.apply(
        *(kube_pod(name, share(3000), schedulerName="kai-scheduler") for name in names)
    )
    alone = {"kai.scheduler/skip-podgrouper": "true"}
    last = kube_pod("alone", share(3000), schedulerName="kai-scheduler", annotations=alone)
    await world.plane.apply(group, last)
    (submitted,) = await world.facts.count(PodSubmitted, 1)
    assert submitted.name == "alone"
    for name, part in names.items():
        metadata = {
            "annotations": {"pod-group-name": "job"},
            "labels": {"kai.scheduler/subgroup-name": part},
        }
        patch = json.dumps({"metadata": metadata})
        await world.plane.user("patch", "pod", name, "--type=merge", "-p", patch)
    await world.facts.count(PodBound, 4)
    (told,) = world.facts.of(PodGroupObserved)
    assert (told.group, told.min_available) == ("default/scheduling.run.ai/job", 3)
    members = [each for each in world.facts.of(PodSubmitted) if each.name != "alone"]
    assert {(each.name, each.group, each.task) for each in members} == {
        (name, told.group, part) for name, part in names.items()
    }
