"""Volcano's own controllers over our watcher, scheduler and binder; nightly.

They are given by path, because no Go module proxy has them:
`APPORTION_VC_CONTROLLER_MANAGER=/path/to/vc-controller-manager`, which `go build
./cmd/controller-manager` makes of Volcano's sources (1.15.1 was tried). Without it these tests are
skipped and say so.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apportion_schemas import PodBound, PodGone
from tests.e2e.test_life import system
from tests.e2e.test_volcano_jobs import job
from tests.support.control_plane import ControlPlane
from tests.support.kube_world import KubeWorld
from tests.support.ports import free_port

VC_CONTROLLER_MANAGER = "APPORTION_VC_CONTROLLER_MANAGER"
PODS = 4


@pytest.fixture
def volcano(control_plane: ControlPlane, tmp_path: Path) -> Iterator[None]:
    """Volcano's controllers, until the test ends."""
    binary = os.environ.get(VC_CONTROLLER_MANAGER, "")
    if not binary:
        pytest.skip(f"{VC_CONTROLLER_MANAGER} does not name Volcano's vc-controller-manager")
    command = [
        binary,
        f"--kubeconfig={control_plane.kubeconfig}",
        "--leader-elect=false",
        "--controllers=job-controller,queue-controller,pg-controller,gc-controller",
        f"--listen-address=127.0.0.1:{free_port()}",
        "--scheduler-name=apportion",
        "-v=4",
    ]
    with (tmp_path / "vc-controller-manager.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    yield
    assert process.poll() is None, "vc-controller-manager ended by itself: see its log"
    process.terminate()
    process.wait()


def command(name: str, action: str, job: dict[str, Any]) -> dict[str, Any]:
    """A Command to the controllers about a Job, as `vcctl` makes it."""
    target = {"apiVersion": job["apiVersion"], "kind": "Job", "name": job["metadata"]["name"]}
    target |= {"uid": job["metadata"]["uid"], "controller": True}
    return {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {"name": name, "ownerReferences": [target]},
        "action": action,
        "target": target,
    }


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("volcano")
async def test_a_volcano_job_runs_is_aborted_and_resumes(world: KubeWorld) -> None:
    """Its controller makes the pods once the PodGroup is Inqueue, and again after ResumeJob."""
    await system(world)
    await world.plane.apply(job("train", PODS))
    await world.facts.count(PodBound, PODS)
    made = await world.plane.get("jobs.batch.volcano.sh", "train")
    await world.plane.apply(command("abort", "AbortJob", made))
    for pod in (await world.plane.get("pods"))["items"]:
        await world.delete(pod["metadata"]["name"])
    await world.facts.count(PodGone, PODS)
    await world.plane.apply(command("resume", "ResumeJob", made))
    await world.facts.count(PodBound, 2 * PODS)
