"""Tests of the gangs that controllers make for a batch scheduler.

Each row has the fields that a controller writes according to its source code: the scheduler name,
annotations, labels and PodGroup of one pod. Controllers that a test can build run in
tests/e2e/test_real_controllers.py."""

from typing import Any, NamedTuple

import pytest

from apportion.core.workloads.lint.typo_checks import of_annotations
from apportion.core.workloads.schedulers import Chooser, SchedulerNames
from tests.support.manifests import container, draft, pod, read

VOLCANO = "scheduling.volcano.sh/v1beta1"
PLUGINS = "scheduling.x-k8s.io/v1alpha1"
KAI = "scheduling.run.ai/v2alpha2"
NATIVE = "scheduling.k8s.io/v1alpha2"


class Made(NamedTuple):
    """The fields that a controller writes, and the gang and task that Apportion must read from
    them."""

    controller: str
    scheduler: str  # the name in the pod
    gang: str  # below the namespace
    api: str
    spec: dict[str, Any]  # of the PodGroup
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    pod: dict[str, Any] = {}  # other fields of the pod's spec
    task: str = ""
    least: int = 3


def volcano(controller: str, name: str, task: str = "", **spec: Any) -> Made:
    notes = {"scheduling.k8s.io/group-name": name}
    notes |= {"volcano.sh/task-spec": task} if task else {}
    minimum = {"minMember": 3, "minResources": {"cpu": "3"}}
    return Made(controller, "volcano", name, VOLCANO, minimum | spec, notes, task=task)


def plugins(controller: str, scheduler: str, name: str, **spec: Any) -> Made:
    labels = {"scheduling.x-k8s.io/pod-group": name}
    gang = f"scheduling.x-k8s.io/{name}"
    return Made(controller, scheduler, gang, PLUGINS, {"minMember": 3} | spec, labels=labels)


SECOND = "scheduler-plugins-scheduler"
MADE = [
    volcano("training operator", "train", "worker", queue="team"),
    plugins("training operator", SECOND, "train", scheduleTimeoutSeconds=10),
    volcano("MPI operator", "train", queue="team", priorityClassName="system-node-critical"),
    plugins("MPI operator", SECOND, "train", scheduleTimeoutSeconds=0),
    volcano("Kubeflow Trainer", "train"),
    plugins("Kubeflow Trainer", SECOND, "train", scheduleTimeoutSeconds=60),
    volcano("LeaderWorkerSet", "serve-0-5f8d"),
    volcano("KubeRay", "ray-train-pg", "gpu-group"),
    plugins("KubeRay", SECOND, "train"),
    Made(
        "KubeRay and KAI's pod-grouper",
        "kai-scheduler",
        "scheduling.run.ai/pg-train-1234",
        KAI,
        {
            "queue": "team",
            "priorityClassName": "train",
            "topologyConstraint": {},
            "subGroups": [
                {"name": "headgroup", "minMember": 1, "topologyConstraint": {}},
                {"name": "gpu-group", "minMember": 2},
            ],
        },
        {"pod-group-name": "pg-train-1234"},
        {"kai.scheduler/queue": "team", "kai.scheduler/subgroup-name": "gpu-group"},
        task="gpu-group",
    ),
    Made(
        "KubeRay and Kubernetes",
        "default-scheduler",
        "scheduling.k8s.io/train",
        NATIVE,
        {"schedulingPolicy": {"gang": {"minCount": 3}}},
        pod={"schedulingGroup": {"podGroupName": "train"}},
    ),
]


@pytest.mark.parametrize("made", MADE, ids=lambda made: f"{made.controller}, {made.scheduler}")
def test_gangs_of_controllers(made: Made) -> None:
    """A pod is in the gang of the PodGroup that the pod's controller creates. The pod has its task,
    and the gang has the PodGroup's queue."""
    document = pod(
        {"nvidia.com/gpu": 1}, made.annotations, schedulerName=made.scheduler, **made.pod
    )
    document["metadata"]["labels"] = made.labels
    found = draft(document)
    name = made.gang.rpartition("/")[2]
    group = {"apiVersion": made.api, "kind": "PodGroup", "metadata": {"name": name}}
    (gang,) = read(group | {"spec": made.spec}).groups
    assert (
        (found.group, found.task) == (gang.group, made.task) == (f"default/{made.gang}", made.task)
    )
    assert gang.min_available == made.least
    assert gang.queue == made.spec.get("queue", "default")
    assert not list(of_annotations(made.annotations, "metadata.annotations"))


@pytest.mark.parametrize("name", [SECOND, "kai-scheduler", "yunikorn"])
def test_names_of_other_schedulers_are_served_on_request(name: str) -> None:
    """Apportion schedules the pods of another batch scheduler only if its configuration has the
    name of that scheduler."""
    assert SchedulerNames().chooser(name) is Chooser.OTHERS
    assert SchedulerNames(frozenset({"apportion", name})).chooser(name) is Chooser.US


def test_pods_of_yunikorn_are_no_gang() -> None:
    """YuniKorn has no PodGroups. Its annotation that declares a gang is reported as without
    effect."""
    notes = {"yunikorn.apache.org/task-group-name": "head", "yunikorn.apache.org/task-groups": "[]"}
    assert draft(pod(None, notes, schedulerName="yunikorn")).group == ""
    (said,) = of_annotations(notes, "metadata.annotations")
    assert not said.doubtful


def test_pods_that_kueue_holds_back() -> None:
    """A pod that Kueue holds back has scheduling gates. After Kueue has removed these, the pod has
    node selectors for its topology domain."""
    gates = ["kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"]
    labels = {"cloud.provider.com/topology-rack": "r1", "kubernetes.io/hostname": "n1"}
    spec: dict[str, Any] = {"nodeSelector": labels}
    spec["containers"] = [container(limits={"nvidia.com/gpu": 1})]
    held = draft(pod(**spec, schedulingGates=[{"name": gate} for gate in gates]))
    assert held.gates == tuple(gates)
    assert draft(pod(**spec)).shape.node.selector == labels
