"""Our watcher, scheduler and binder work with other projects' controllers. Runs nightly.

`make controllers` builds JobSet, LeaderWorkerSet and KubeRay's operator, and sets
`APPORTION_JOBSET`, `APPORTION_LWS` and `APPORTION_KUBERAY` to their folders. Build the other two
controllers and set their paths:

- `APPORTION_VC_CONTROLLER_MANAGER`: the program that `go build ./cmd/controller-manager` builds
  from Volcano's sources (tested with 1.15.1).
- `APPORTION_KUEUE`: a folder with Kueue's `config` and, as `manager`, the program that
  `go build ./cmd/kueue` builds from Kueue's sources (tested with 0.19.2).

A test whose variable is not set is skipped with the reason."""

import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apportion.core.workloads.adoption.placement_annotations import SHARES
from apportion.runtime.kube.client import open_kube
from apportion.runtime.kube.examining import examine_kube
from apportion_schemas import DifferenceFound, PodBound, PodGone, PodGroupObserved, PodSubmitted
from tests.e2e.test_life import VERBS, system
from tests.e2e.test_volcano_jobs import job
from tests.integration.cli.test_verify import Verb
from tests.support.control_plane import ControlPlane
from tests.support.controllers import workload_controllers
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.managers import (
    become,
    needs,
    running,
    running_kubelets,
    running_manager,
    running_operator,
)
from tests.support.polling import until
from tests.support.ports import free_port

VC_CONTROLLER_MANAGER = "APPORTION_VC_CONTROLLER_MANAGER"
JOBSET, LWS, KUEUE = "APPORTION_JOBSET", "APPORTION_LWS", "APPORTION_KUEUE"
KUBERAY = "APPORTION_KUBERAY"
BUILT = "a folder that tests/support/controllers_build.sh made"
PODS = 4
HALF_MIB, CARD_MIB = 7_000, 15_360
"""Two pods fit on one T4."""
GANG = "scheduling.x-k8s.io/pod-group"
LATER = datetime(2126, 3, 1, tzinfo=UTC)


# -------------------------------------------------------------- what they run on


@pytest.fixture
def volcano(control_plane: ControlPlane, tmp_path: Path) -> Iterator[None]:
    """Run Volcano's controllers until the test ends."""
    command = [
        os.environ[VC_CONTROLLER_MANAGER],
        f"--kubeconfig={control_plane.kubeconfig}",
        "--leader-elect=false",
        "--controllers=job-controller,queue-controller,pg-controller,gc-controller",
        f"--listen-address=127.0.0.1:{free_port()}",
        "--scheduler-name=apportion",
        "-v=4",
    ]
    with running(command, tmp_path / "vc-controller-manager.log"):
        yield


@pytest.fixture
async def workloads(world: KubeWorld, tmp_path: Path) -> AsyncIterator[None]:
    """Run kubelets, and Kubernetes' own controllers of Jobs and StatefulSets."""
    with workload_controllers(world.plane, tmp_path):
        async with running_kubelets(world):
            yield


@pytest.fixture
async def jobsets(world: KubeWorld, workloads: None, tmp_path: Path) -> AsyncIterator[None]:
    """Run JobSet's controller, and delete its objects after the test."""
    api = "config.jobset.x-k8s.io/v1alpha1"
    with running_manager(world.plane, JOBSET, tmp_path, api):
        yield
        await remove(world, "jobsets.jobset.x-k8s.io")


@pytest.fixture
async def leader_worker_sets(
    request: pytest.FixtureRequest, world: KubeWorld, workloads: None, tmp_path: Path
) -> AsyncIterator[None]:
    """Run LeaderWorkerSet's controller, with the fixture's parameter as its configuration."""
    settings = getattr(request, "param", {})
    api = "config.lws.x-k8s.io/v1alpha1"
    with running_manager(world.plane, LWS, tmp_path, api, **settings):
        yield
        await remove(world, "leaderworkersets.leaderworkerset.x-k8s.io")


@pytest.fixture
async def kuberay(
    request: pytest.FixtureRequest, world: KubeWorld, workloads: None, tmp_path: Path
) -> AsyncIterator[str]:
    """Run KubeRay's operator. The fixture's parameter is its batch scheduler."""
    options = ["--metrics-addr=0", "--enable-leader-election=false"]
    options += [f"--batch-scheduler={request.param}"]
    with running_operator(world.plane, KUBERAY, tmp_path, "config/crd/bases", *options):
        yield request.param
        await remove(world, "rayclusters.ray.io")


@pytest.fixture
async def kueue(world: KubeWorld, workloads: None, tmp_path: Path) -> AsyncIterator[None]:
    """Run Kueue's controller, and delete its objects after the test."""
    settings = {
        "integrations": {"frameworks": ["batch/job", "pod"]},
        "featureGates": {"VisibilityOnDemand": False},
    }
    api = "config.kueue.x-k8s.io/v1beta2"
    with running_manager(world.plane, KUEUE, tmp_path, api, **settings):
        yield
        await remove(world, "jobs.batch")
        free = '{"metadata":{"finalizers":null}}'  # Kueue holds a group of pods until all ended
        for pod in (await world.plane.get("pods"))["items"]:
            name = pod["metadata"]["name"]
            await world.plane.user("patch", "pod", name, "--type=merge", "-p", free, ok=None)
        await remove(world, "pods")
        for kind in ("workloads", "localqueues", "clusterqueues", "resourceflavors", "topologies"):
            await remove(world, f"{kind}.kueue.x-k8s.io")


async def remove(world: KubeWorld, kind: str) -> None:
    """Delete all objects of a kind, and the objects that they own, while the controllers still
    run."""
    await world.plane.user("delete", kind, "--all", "--cascade=foreground", "--timeout=55s")


async def fleet(world: KubeWorld) -> None:
    """Start two racks of two nodes with one GPU each, and every service."""
    racks = {"n1": "a", "n2": "a", "n3": "b", "n4": "b"}
    slots = {"nvidia.com/gpu": "10"}  # as the kubelet reports from our agent
    await world.plane.apply(
        *(
            kube_node(name, labels={"rack": rack, "pool": "gpu"}, allocatable=slots)
            for name, rack in racks.items()
        )
    )
    await world.agents(*((name, "1xT4") for name in racks))
    for verb in VERBS:
        await world.start(verb)


async def settled(
    world: KubeWorld, number: int, *, waiting: int = 0, labels: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """Wait until this many pods with these labels run, and `waiting` pods are pending.

    Return the running pods."""

    async def run() -> list[dict[str, Any]]:
        pods = [
            pod for pod in await living(world) if (labels or {}).items() <= labels_of(pod).items()
        ]
        found = [pod for pod in pods if pod["status"]["phase"] == "Running"]
        return found if (len(found), len(pods)) == (number, number + waiting) else []

    return await until(run, f"{number} running pods", interval_s=0.3)


async def living(world: KubeWorld) -> list[dict[str, Any]]:
    """Return the pods of the default namespace that have not ended and are not being deleted."""
    return [
        pod
        for pod in (await world.plane.get("pods"))["items"]
        if "deletionTimestamp" not in pod["metadata"]
        and pod["status"]["phase"] in {"Pending", "Running"}
    ]


def labels_of(pod: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = pod["metadata"].get("labels", {})
    return labels


async def sound(world: KubeWorld) -> None:
    """Check that no GPU is overcommitted, and that the ledger passes `apportion verify`."""
    used: Counter[str] = Counter()
    for pod in await living(world):
        for held in json.loads(pod["metadata"].get("annotations", {}).get(SHARES, "[]")):
            used[held["device"]] += held["memory_mib"]
    assert max(used.values(), default=0) <= CARD_MIB
    assert not world.facts.of(DifferenceFound)
    assert (await Verb(world.bus).verify(code=0))["ok"]


def uids(pods: list[dict[str, Any]]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


async def racks(world: KubeWorld, pods: list[dict[str, Any]], group: str) -> dict[str, set[str]]:
    """Return, for each value of the pods' label `group`, the racks on which these pods run."""
    nodes = {
        node["metadata"]["name"]: labels_of(node)["rack"]
        for node in (await world.plane.get("nodes"))["items"]
    }
    found: dict[str, set[str]] = {}
    for pod in pods:
        found.setdefault(labels_of(pod)[group], set()).add(nodes[pod["spec"]["nodeName"]])
    return found


# -------------------------------------------------------------- Volcano


def command(name: str, action: str, job: dict[str, Any]) -> dict[str, Any]:
    """Return the Command object with which `vcctl` acts on a Volcano Job."""
    target = {"apiVersion": job["apiVersion"], "kind": "Job", "name": job["metadata"]["name"]}
    target |= {"uid": job["metadata"]["uid"], "controller": True}
    return {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {"name": name, "ownerReferences": [target]},
        "action": action,
        "target": target,
    }


@needs(VC_CONTROLLER_MANAGER, "Volcano's vc-controller-manager")
@pytest.mark.usefixtures("volcano")
async def test_a_volcano_job_runs_is_aborted_and_resumes(world: KubeWorld) -> None:
    """A Volcano Job's pods are bound, end when the Job is aborted, and are bound after a resume."""
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


# -------------------------------------------------------------- JobSet

JOB_NAME = "batch.kubernetes.io/job-name"


def jobset(*jobs: tuple[str, int, int], labels: Any = None, **annotations: str) -> dict[str, Any]:
    """Return the JobSet `train`.

    Each of `jobs` is a name, a number of replicas, and the number of pods of a replica."""
    spec = kube_pod("any", share(HALF_MIB))["spec"] | {"restartPolicy": "Never"}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": "train",
            "annotations": {
                f"alpha.jobset.sigs.k8s.io/{key.replace('_', '-')}": value
                for key, value in annotations.items()
            },
        },
        "spec": {
            "failurePolicy": {"maxRestarts": 1},
            "replicatedJobs": [
                {
                    "name": name,
                    "replicas": replicas,
                    "template": {
                        "spec": {
                            "backoffLimit": 0,
                            "parallelism": pods,
                            "completions": pods,
                            "completionMode": "Indexed",
                            "template": {"metadata": {"labels": labels or {}}, "spec": spec},
                        }
                    },
                }
                for name, replicas, pods in jobs
            ],
        },
    }


@needs(JOBSET, BUILT)
@pytest.mark.usefixtures("jobsets")
async def test_a_jobset_restarts_after_a_failure_and_resumes(world: KubeWorld) -> None:
    """A JobSet's pods all run again after one of them fails, and after a suspension."""
    await fleet(world)
    await world.plane.apply(jobset(("driver", 1, 1), ("workers", 2, 2)))
    first = await settled(world, 5)
    (driver,) = (pod for pod in first if labels_of(pod)[JOB_NAME] == "train-driver-0")
    await become(world, driver, "Failed")
    await world.facts.count(PodGone, 5)
    second = await settled(world, 5)
    assert not uids(first) & uids(second)

    async def suspend(whether: bool) -> None:
        patch = json.dumps({"spec": {"suspend": whether}})
        await world.plane.user("patch", "jobset", "train", "--type=merge", "-p", patch)

    await suspend(True)
    await world.facts.count(PodGone, 10)
    assert await living(world) == []
    await suspend(False)
    third = await settled(world, 5)
    assert not uids(second) & uids(third)
    await sound(world)


@needs(JOBSET, BUILT)
@pytest.mark.usefixtures("jobsets")
async def test_jobs_of_a_jobset_have_racks_of_their_own(world: KubeWorld) -> None:
    """With an exclusive topology, each job of a JobSet gets a rack of its own.

    If there are two racks, a third job stays pending until another job completes."""
    await fleet(world)
    await world.plane.apply(jobset(("workers", 3, 2), exclusive_topology="rack"))
    # The first pod of each job is made at once, its others once that one is bound.
    pods = await settled(world, 4, waiting=1)
    alone = await racks(world, pods, JOB_NAME)
    assert sorted(map(sorted, alone.values())) == [["a"], ["b"]]
    (waiting,) = [pod for pod in await living(world) if not pod["spec"].get("nodeName")]
    await world.described(waiting["metadata"]["name"], "FailedScheduling")
    completed = next(iter(alone))
    for pod in pods:
        if labels_of(pod)[JOB_NAME] == completed:
            await become(world, pod, "Succeeded")
    third = await settled(world, 2, labels={JOB_NAME: labels_of(waiting)[JOB_NAME]})
    (rack,) = (await racks(world, third, JOB_NAME)).values()
    assert rack == alone[completed]
    await sound(world)


@needs(JOBSET, BUILT)
@pytest.mark.usefixtures("jobsets")
async def test_a_jobset_that_is_a_gang_starts_together(world: KubeWorld) -> None:
    """If a JobSet is a gang, none of its pods is bound while only some of them fit.

    All are bound once there is room."""
    await system(world)
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "train"},
        "spec": {"minMember": 5},
    }
    jobs = jobset(("driver", 1, 1), ("workers", 2, 2), labels={GANG: "train"})
    await world.plane.apply(group, jobs)
    await world.facts.count(PodSubmitted, 5)
    waiting = (await living(world))[0]["metadata"]["name"]
    await world.described(waiting, "FailedScheduling")
    assert not world.facts.of(PodBound)
    await world.plane.apply(kube_node("n2"), kube_node("n3"))
    await world.agents(("n2", "1xT4"), ("n3", "1xT4"))
    await settled(world, 5)
    await sound(world)


# -------------------------------------------------------------- LeaderWorkerSet

GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
VOLCANO = {"gangSchedulingManagement": {"schedulerProvider": "volcano"}}


def leader_worker_set(replicas: int, **annotations: str) -> dict[str, Any]:
    """Return the LeaderWorkerSet `serve`, which has this many groups of four pods."""
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {
            "name": "serve",
            "annotations": {
                f"leaderworkerset.sigs.k8s.io/{key.replace('_', '-')}": value
                for key, value in annotations.items()
            },
        },
        "spec": {
            "replicas": replicas,
            "leaderWorkerTemplate": {
                "size": PODS,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "workerTemplate": {"spec": kube_pod("any", share(HALF_MIB))["spec"]},
            },
        },
    }


@needs(LWS, BUILT)
@pytest.mark.usefixtures("leader_worker_sets")
async def test_groups_of_a_leader_worker_set_have_racks_of_their_own(world: KubeWorld) -> None:
    """Each group of a LeaderWorkerSet has a rack of its own.

    A group that is recreated because a worker died gets the same rack again."""
    await fleet(world)
    await world.plane.apply(leader_worker_set(2, exclusive_topology="rack"))
    first = await settled(world, 2 * PODS)
    alone = await racks(world, first, GROUP_INDEX)
    assert sorted(map(sorted, alone.values())) == [["a"], ["b"]]
    await world.plane.user("delete", "pod", "serve-0-2", "--wait=false")
    await world.facts.count(PodGone, PODS)
    second = await settled(world, 2 * PODS)
    assert len(uids(first) & uids(second)) == PODS
    assert await racks(world, second, GROUP_INDEX) == alone
    await sound(world)


@needs(LWS, BUILT)
@pytest.mark.usefixtures("leader_worker_sets")
@pytest.mark.parametrize("leader_worker_sets", [VOLCANO], indirect=True, ids=["volcano"])
async def test_a_group_that_is_a_gang_starts_together_again(world: KubeWorld) -> None:
    """If a LeaderWorkerSet's group is a gang, none of its pods is bound until all of them fit.

    The same holds after the group was recreated."""
    await system(world)
    await world.plane.apply(leader_worker_set(1))
    await world.facts.count(PodSubmitted, PODS)
    await world.described("serve-0", "FailedScheduling")
    assert not world.facts.of(PodBound)
    await world.plane.apply(kube_node("n2"))
    await world.agents(("n2", "1xT4"))
    first = await settled(world, PODS)
    await world.plane.user("delete", "pod", "serve-0-3", "--wait=false")
    await world.facts.count(PodGone, PODS)
    second = await settled(world, PODS)
    assert not uids(first) & uids(second)
    await sound(world)


# -------------------------------------------------------------- KubeRay

NAMES = {
    "volcano": "volcano",
    "scheduler-plugins": "scheduler-plugins-scheduler",
    "kai-scheduler": "kai-scheduler",
}
"""The scheduler name that the operator writes on pods, by batch scheduler."""


def ray_cluster(workers: int, **spec: Any) -> dict[str, Any]:
    """Return the RayCluster `ray`, whose head and workers use half a GPU each."""
    template = {"spec": kube_pod("any", share(HALF_MIB))["spec"]}
    group = {"groupName": "gpus", "replicas": workers, "rayStartParams": {}, "template": template}
    limits = {"minReplicas": spec.pop("least", 0), "maxReplicas": workers}
    head = {"rayStartParams": {}, "template": template}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": "ray",
            "labels": {"ray.io/gang-scheduling-enabled": "true", "kai.scheduler/queue": "team"},
        },
        "spec": {
            "rayVersion": "2.52.0",
            "headGroupSpec": head,
            "workerGroupSpecs": [group | limits],
            **spec,
        },
    }


async def serving(world: KubeWorld, batch_scheduler: str) -> None:
    """Start a node with one GPU, and every service with this batch scheduler's name."""
    await world.plane.apply(kube_node("n1"))
    await world.agents(("n1", "1xT4"))
    await world.start("watcher", f"--scheduler-name={NAMES[batch_scheduler]}")
    for verb in ("scheduler", "binder"):
        await world.start(verb)


@needs(KUBERAY, BUILT)
@pytest.mark.parametrize("kuberay", ["volcano", "scheduler-plugins"], indirect=True)
async def test_a_ray_cluster_that_is_a_gang_starts_together(world: KubeWorld, kuberay: str) -> None:
    """If a RayCluster is a gang, its head and workers are bound only once all of them fit."""
    await serving(world, kuberay)
    await world.plane.apply(ray_cluster(PODS - 1))
    submitted = await world.facts.count(PodSubmitted, PODS)
    (gang,) = {each.group for each in submitted}
    (told,) = world.facts.of(PodGroupObserved)
    assert (told.group, told.min_available) == (gang, PODS)
    await world.described(submitted[0].name, "FailedScheduling")
    assert not world.facts.of(PodBound)
    await world.plane.apply(kube_node("n2"))
    await world.agents(("n2", "1xT4"))
    await settled(world, PODS)
    await sound(world)


@needs(KUBERAY, BUILT)
@pytest.mark.parametrize("kuberay", ["volcano"], indirect=True)
async def test_a_ray_cluster_with_autoscaling_starts_at_its_smallest_size(
    world: KubeWorld, kuberay: str
) -> None:
    """With autoscaling, a RayCluster starts with its smallest number of workers. Further workers
    are bound when there is room."""
    await serving(world, kuberay)
    await world.plane.apply(ray_cluster(PODS - 1, least=1, enableInTreeAutoscaling=True))
    await world.facts.count(PodSubmitted, PODS)
    assert {each.min_available for each in world.facts.of(PodGroupObserved)} == {2}
    await settled(world, 2, waiting=2)
    await world.plane.apply(kube_node("n2"))
    await world.agents(("n2", "1xT4"))
    await settled(world, PODS)
    await sound(world)


@needs(KUBERAY, BUILT)
@pytest.mark.parametrize("kuberay", ["kai-scheduler"], indirect=True)
async def test_pods_for_kai_are_noticed(world: KubeWorld, kuberay: str) -> None:
    """While no scheduler serves the name `kai-scheduler`, doctor reports the name and its pods.

    Once Apportion serves that name, the pods wait until they are in a PodGroup. They then form the
    PodGroup's gang."""
    await world.plane.apply(ray_cluster(1))
    pods = await until(lambda: pending(world, 2), "two pods")
    async with open_kube(world.plane.kubeconfig, None) as api:
        (unserved,) = (await examine_kube(api, LATER)).unserved or ()
    assert (unserved.name, unserved.pods) == ("kai-scheduler", 2)
    await serving(world, kuberay)
    group = {"minMember": 2, "queue": "team"}
    api_version = "scheduling.run.ai/v2alpha2"
    await world.plane.apply(
        {
            "apiVersion": api_version,
            "kind": "PodGroup",
            "metadata": {"name": "pg-ray"},
            "spec": group,
        }
    )
    for pod in pods:
        patch = json.dumps({"metadata": {"annotations": {"pod-group-name": "pg-ray"}}})
        name = pod["metadata"]["name"]
        await world.plane.user("patch", "pod", name, "--type=merge", "-p", patch)
    await settled(world, 2)
    submitted = world.facts.of(PodSubmitted)
    assert {each.queue for each in submitted} == {"team"}
    assert {each.group for each in submitted} == {"default/scheduling.run.ai/pg-ray"}


async def pending(world: KubeWorld, number: int) -> list[dict[str, Any]]:
    """Return the living pods if there are exactly `number`, and otherwise an empty list."""
    found = await living(world)
    return found if len(found) == number else []


# -------------------------------------------------------------- Kueue

QUEUE = "kueue.x-k8s.io/queue-name"


def kueue_object(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    """Return an object of Kueue's API."""
    api = "kueue.x-k8s.io/v1beta2"
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}


def quota(flavor: dict[str, Any] | None = None, **most: int) -> list[dict[str, Any]]:
    """Return the objects of a Kueue queue `team`, which limits the NVIDIA resources in use.

    `most` is the limit for each resource; `flavor` is the spec of its ResourceFlavor."""
    resources = [
        {"name": f"nvidia.com/{name}", "nominalQuota": str(most[name])} for name in sorted(most)
    ]
    covered = [each["name"] for each in resources]
    flavors = [{"name": "any", "resources": resources}]
    groups = [{"coveredResources": covered, "flavors": flavors}]
    return [
        kueue_object("ResourceFlavor", "any", **(flavor or {})),
        kueue_object("ClusterQueue", "team", namespaceSelector={}, resourceGroups=groups),
        kueue_object("LocalQueue", "team", clusterQueue="team"),
    ]


def queued_job(name: str, memory_mib: int, **annotations: str) -> dict[str, Any]:
    """Return a Job of two pods in the queue `team`. Its pods get these annotations of Kueue."""
    spec = kube_pod("any", share(memory_mib))["spec"] | {"restartPolicy": "Never"}
    notes = {f"kueue.x-k8s.io/{key.replace('_', '-')}": annotations[key] for key in annotations}
    template = {"metadata": {"annotations": notes}, "spec": spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {QUEUE: "team"}},
        "spec": {"parallelism": 2, "completions": 2, "suspend": True, "template": template},
    }


@needs(KUEUE, "a folder with Kueue's manager and config")
@pytest.mark.usefixtures("kueue")
async def test_kueue_says_when_and_apportion_where(world: KubeWorld) -> None:
    """Kueue decides when a job or a group of pods may start, and Apportion decides on which nodes.

    A job that Kueue evicted starts again."""
    await fleet(world)
    await world.plane.apply(*quota(gpu=2, gpumem=2 * HALF_MIB))
    await world.plane.apply(queued_job("train", HALF_MIB))
    first = await settled(world, 2)

    async def stop(policy: str) -> None:
        patch = json.dumps({"spec": {"stopPolicy": policy}})
        await world.plane.user("patch", "clusterqueue", "team", "--type=merge", "-p", patch)

    await stop("HoldAndDrain")
    await world.facts.count(PodGone, 2)
    await stop("None")
    second = await settled(world, 2)
    assert not uids(first) & uids(second)
    group = {QUEUE: "team", "kueue.x-k8s.io/pod-group-name": "group"}
    total = {"kueue.x-k8s.io/pod-group-total-count": "2"}
    pods = [kube_pod(n, share(HALF_MIB), labels=group, annotations=total) for n in ("p0", "p1")]
    await world.plane.apply(*pods)
    await settled(world, 2, waiting=2)
    assert all(pod["spec"]["schedulingGates"] for pod in await living(world) if pod not in second)
    for pod in second:
        await become(world, pod, "Succeeded")
    await settled(world, 2, labels=group)
    await sound(world)


@needs(KUEUE, "a folder with Kueue's manager and config")
@pytest.mark.usefixtures("kueue")
async def test_pods_land_on_the_rack_that_kueue_chose(world: KubeWorld) -> None:
    """Each of Kueue's jobs runs on the rack that Kueue chose for it.

    The third job waits until the first one completes."""
    await fleet(world)
    flavor = {"nodeLabels": {"pool": "gpu"}, "topologyName": "racks"}
    levels = [{"nodeLabel": "rack"}]
    topology = kueue_object("Topology", "racks", levels=levels)
    await world.plane.apply(topology, *quota(flavor, gpu=100, gpumem=100 * CARD_MIB))
    names = ("a", "b", "c")
    jobs = [queued_job(name, CARD_MIB, podset_required_topology="rack") for name in names]
    await world.plane.apply(*jobs)
    pods = await settled(world, 2 * 2)
    alone = await racks(world, pods, JOB_NAME)
    assert sorted(map(sorted, alone.values())) == [["a"], ["b"]]
    first = min(alone)
    for pod in pods:
        if labels_of(pod)[JOB_NAME] == first:
            await become(world, pod, "Succeeded")
    (waited,) = {*names} - {*alone}
    last = await settled(world, 2, labels={JOB_NAME: waited})
    assert await racks(world, last, JOB_NAME) == {waited: alone[first]}
    await sound(world)
