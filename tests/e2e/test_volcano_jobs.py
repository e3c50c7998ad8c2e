"""Volcano Jobs start and can be resumed with the CRDs of Volcano's oldest and newest release."""

from collections.abc import Iterator
from typing import Any

import pytest

from apportion_schemas import PodBound, PodGone
from tests.e2e.test_life import system
from tests.support.control_plane import ControlPlane
from tests.support.kube_objects import kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.volcano_controller import end_job, make_pods
from tests.support.volcano_crds import NEWEST, OLDEST, volcano_crds

SHAPES = {
    "oldest": volcano_crds(OLDEST),
    "newest": volcano_crds(NEWEST),
    "with a status subresource": volcano_crds(NEWEST, status=True),
}


@pytest.fixture(params=SHAPES)
def crds(request: pytest.FixtureRequest, control_plane: ControlPlane) -> Iterator[str]:
    """Install the CRDs of one Volcano release. Restore the newest ones after the test."""
    control_plane.install(SHAPES[request.param])
    yield request.param
    control_plane.install(volcano_crds())


def job(name: str, pods: int) -> dict[str, Any]:
    """Return a Volcano Job of `pods` pods that must start together."""
    template = {"spec": kube_pod("any", share(1000))["spec"]}
    task = {"name": "worker", "replicas": pods, "template": template}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"schedulerName": "apportion", "minAvailable": pods, "tasks": [task]},
    }


@pytest.mark.usefixtures("crds")
async def test_a_job_starts_and_starts_again_once_resumed(world: KubeWorld) -> None:
    """A Volcano Job's pods are bound, end when it is aborted, and are bound after a resume."""
    await system(world)
    await world.plane.apply(job("train", 2))
    for run in (1, 2):
        await make_pods(world, "default")
        await world.facts.count(PodBound, 2 * run)
        await end_job(world, "default", "train")
        await world.facts.count(PodGone, 2 * run)
