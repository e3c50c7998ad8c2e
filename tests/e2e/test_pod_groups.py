"""Gangs that are declared by PodGroups of the coscheduling plugin or of Kubernetes itself."""

from typing import Any

import pytest

from apportion_schemas import PodBound, PodGroupObserved, PodSubmitted
from tests.e2e.test_life import system
from tests.support.control_plane import GANGS_SINCE
from tests.support.kube_objects import kube_pod, share
from tests.support.kube_world import KubeWorld

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


async def test_a_gang_of_kubernetes_itself(world: KubeWorld) -> None:
    """A gang of Kubernetes' own PodGroups starts when its minimum of pods exists.

    A PodGroup of the same name in another API group is a different gang."""
    if world.plane.version < GANGS_SINCE:
        pytest.skip("this API server has no PodGroups")
    await system(world)
    policy = {"gang": {"minCount": 3}}
    await world.plane.apply(
        pod_group("scheduling.x-k8s.io/v1alpha1", minMember=1),
        pod_group("scheduling.k8s.io/v1alpha2", schedulingPolicy=policy),
    )
    pods = [native(f"p{n}") for n in range(3)]
    await waits_and_starts(world, "default/scheduling.k8s.io/job", pods)
