"""Tests of reading every kind of workload document, such as Deployment or Volcano Job: its pods,
gang and owner."""

from typing import Any

import pytest

from apportion.core.workloads.kinds.drafts import PodDraft, submitted
from apportion.core.workloads.lint.typo_checks import ignored
from apportion_schemas import PodGroupObserved, PodSubmitted, Shape
from tests.support.manifests import container, draft, pod, read, refused, task, volcano_job


def replicated(kind: str, version: str, **spec: Any) -> dict[str, Any]:
    """Return a document of this kind, named `many`, whose pods request one GPU each."""
    template = {"spec": {"containers": [container(limits={"nvidia.com/gpu": 1})]}}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "many", "namespace": "lab"},
        "spec": {"template": template, **spec},
    }


def job(**spec: Any) -> dict[str, Any]:
    return replicated("Job", "batch/v1", **spec)


def deployment(**spec: Any) -> dict[str, Any]:
    return replicated("Deployment", "apps/v1", **spec)


def pod_group(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "gang", "namespace": "lab"},
        "spec": spec,
    }


@pytest.mark.parametrize(
    ("document", "count"),
    [
        (job(), 1),
        (job(parallelism=3), 3),
        (job(parallelism=3, completions=2), 2),
        (job(parallelism=2, completions=9), 2),
        (job(parallelism=5, suspend=True), 0),
        (deployment(), 1),
        (deployment(replicas=0), 0),
        (deployment(replicas=10_000), 10_000),
    ],
)
def test_how_many_pods(document: dict[str, Any], count: int) -> None:
    """A document yields as many pods as its controller would run at once, numbered from 0."""
    pods = read(document).pods
    assert [p.name for p in pods] == [f"many-{i}" for i in range(count)]
    assert {p.owner for p in pods} <= {f"{document['kind']}/many"}
    assert {(p.namespace, p.dialect, p.group) for p in pods} <= {("lab", "plain", "")}


@pytest.mark.parametrize(("gang", "least"), [({}, 3), ({"minCount": 2}, 2)])
def test_a_job_with_a_gang_policy(gang: dict[str, int], least: int) -> None:
    """The pods of a Job with a gang policy (Kubernetes 1.37) are a gang. Its minimum is the number
    of pods that run at once, unless the policy has another minimum."""
    policy = {"schedulingPolicy": {"gang": gang}}
    found = read(job(parallelism=3, scheduling=policy))
    name = "lab/scheduling.k8s.io/many"
    assert found.groups == (PodGroupObserved(group=name, min_available=least),)
    assert [each.group for each in found.pods] == [name] * 3


@pytest.mark.parametrize("scheduling", [{}, {"schedulingPolicy": {"basic": {}}}])
def test_a_job_without_a_gang_policy(scheduling: dict[str, Any]) -> None:
    """The pods of a Job with the basic policy, or with none, are not a gang."""
    found = read(job(parallelism=2, scheduling=scheduling))
    assert found.groups == ()
    assert {each.group for each in found.pods} == {""}


def test_a_job_whose_template_names_a_pod_group() -> None:
    """If the template names a PodGroup, the Job's gang policy has no effect, as in Kubernetes."""
    made = job(scheduling={"schedulingPolicy": {"gang": {}}})
    made["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "other"}
    found = read(made)
    assert found.groups == ()
    assert [each.group for each in found.pods] == ["lab/scheduling.k8s.io/other"]


def test_a_job_with_two_gangs_is_refused() -> None:
    """A Job with a gang policy is refused if its pods also have the annotation of a gang."""
    made = job(scheduling={"schedulingPolicy": {"gang": {}}})
    notes = {"scheduling.k8s.io/group-name": "other"}
    made["spec"]["template"]["metadata"] = {"annotations": notes}
    assert refused(made).field == "spec.scheduling.schedulingPolicy.gang"


def test_volcano_job() -> None:
    """Each pod of a Volcano Job belongs to the job's gang and to one of its tasks.

    If a task omits a field, the field's value in the job applies."""
    tasks = [
        task({"nvidia.com/gpu": 1}, name="master", minAvailable=1),
        task({"nvidia.com/gpu": 2}, replicas=3, minAvailable=2),
    ]
    tasks[1]["template"]["spec"]["schedulerName"] = "mine"
    found = read(
        volcano_job(
            *tasks,
            minAvailable=3,
            queue="training",
            priorityClassName="system-cluster-critical",
            schedulerName="volcano",
        )
    )
    (group,) = found.groups
    assert group == PodGroupObserved(
        group="default/job",
        min_available=3,
        min_tasks={"master": 1, "default1": 2},
        queue="training",
        priority=2_000_000_000,
    )
    assert [(p.name, p.task, p.scheduler_name) for p in found.pods] == [
        ("job-master-0", "master", "volcano"),
        ("job-default1-0", "default1", "mine"),
        ("job-default1-1", "default1", "mine"),
        ("job-default1-2", "default1", "mine"),
    ]
    assert {(p.group, p.owner, p.priority) for p in found.pods} == {
        ("default/job", "Job/job", 2_000_000_000)
    }


@pytest.mark.parametrize(
    ("tasks", "least"),
    [([task(replicas=2), task(replicas=3)], 5), ([task(replicas=4, minAvailable=1), task()], 2)],
)
def test_volcano_job_without_min_available(tasks: list[dict[str, Any]], least: int) -> None:
    """Without `minAvailable`, the gang's minimum is the sum of its tasks' minimums, as Volcano's
    admission sets it."""
    (group,) = read(volcano_job(*tasks)).groups
    assert group.min_available == least


def test_a_volcano_task_without_a_minimum_needs_its_replicas() -> None:
    """If another task has a minimum, this one needs all its pods, as in the PodGroup that Volcano's
    controller creates."""
    tasks = (task(name="ps", replicas=2), task(name="worker", replicas=3, minAvailable=1))
    (group,) = read(volcano_job(*tasks, minAvailable=3)).groups
    assert group.min_tasks == {"ps": 2, "worker": 1}


def gang_of(api_version: str, **spec: Any) -> Any:
    """Parse a PodGroup of this API version and spec, and return the gang."""
    metadata = {"name": "gang", "namespace": "team"}
    made = {"apiVersion": api_version, "kind": "PodGroup", "metadata": metadata, "spec": spec}
    (group,) = read(made).groups
    return group


@pytest.mark.parametrize("version", ["v1alpha2", "v1alpha3", "v1beta1"])
def test_pod_groups_of_other_apis(version: str) -> None:
    """If a PodGroup belongs to another API than Volcano's, the name of its gang contains that API.

    The gang of a Kubernetes PodGroup without a gang policy has a minimum of one pod."""
    theirs = gang_of("scheduling.x-k8s.io/v1alpha1", minMember=4, scheduleTimeoutSeconds=10)
    name = "team/scheduling.x-k8s.io/gang"
    assert theirs == PodGroupObserved(group=name, min_available=4)
    kubernetes = f"scheduling.k8s.io/{version}"
    policy = {"gang": {"minCount": 3}}
    found = gang_of(kubernetes, schedulingPolicy=policy, priority=7)
    name = "team/scheduling.k8s.io/gang"
    assert found == PodGroupObserved(group=name, min_available=3, priority=7)
    single = gang_of(kubernetes, schedulingPolicy={"basic": {}})
    assert single == PodGroupObserved(group=name, min_available=1)
    for mode, whole in (("PodGroup", True), ({"all": {}}, True), ({"single": {}}, False)):
        said = gang_of(kubernetes, schedulingPolicy=policy, disruptionMode=mode)
        assert said.whole is whole


@pytest.mark.parametrize(
    ("api_version", "spec", "field"),
    [
        (
            "scheduling.k8s.io/v1alpha2",
            {"schedulingConstraints": {"topology": [{"key": "rack"}, {"key": "zone"}]}},
            "spec.schedulingConstraints.topology",
        ),
        (
            "scheduling.k8s.io/v1beta1",
            {"parentCompositePodGroupName": "all"},
            "spec.parentCompositePodGroupName",
        ),
        ("scheduling.k8s.io/v1beta1", {"preemptionPolicy": "Never"}, "spec.preemptionPolicy"),
        (
            "scheduling.k8s.io/v1alpha2",
            {"resourceClaims": [{"name": "gpu"}]},
            "spec.resourceClaims",
        ),
    ],
)
def test_pod_groups_of_other_apis_are_refused_by_field(
    api_version: str, spec: dict[str, Any], field: str
) -> None:
    """A PodGroup is refused, with the field's path, if it would restrict the nodes of its pods."""
    metadata = {"name": "gang", "namespace": "team"}
    document = {"apiVersion": api_version, "kind": "PodGroup", "metadata": metadata, "spec": spec}
    assert refused(document).field == field


def test_the_minimum_of_a_gang_has_no_limit() -> None:
    """The gang of a Volcano Job may have more pods than one atomic batch can hold."""
    (found,) = read(volcano_job(task(replicas=2_000))).groups
    assert found is not None
    assert found.min_available == 2_000


def test_pod_group() -> None:
    """A PodGroup document yields only the gang, without pods."""
    found = read(pod_group(minMember=4, minTaskMember={"worker": 3}, queue="night"))
    (group,) = found.groups
    assert group == PodGroupObserved(
        group="lab/gang", min_available=4, min_tasks={"worker": 3}, queue="night"
    )
    assert found.pods == ()


def test_pod_as_an_api_server_has_it() -> None:
    """A pod from the API server gets its gang and task from its annotations, and its owner from its
    controller."""
    document = pod(
        {"nvidia.com/gpu": 1},
        {"scheduling.k8s.io/group-name": "gang", "volcano.sh/task-spec": "worker"},
    )
    document["metadata"]["namespace"] = "lab"
    document["metadata"]["ownerReferences"] = [
        {"kind": "Thing", "name": "other"},
        {"kind": "Job", "name": "gang", "controller": True},
    ]
    document["status"] = {"phase": "Pending"}
    found = draft(document)
    assert (found.group, found.task, found.owner) == ("lab/gang", "worker", "Job/gang")


@pytest.mark.parametrize(
    ("notes", "labels", "queue"),
    [
        ({}, {}, ""),
        ({"scheduling.volcano.sh/queue-name": "night"}, {}, "night"),
        ({"volcano.sh/queue-name": "day"}, {"kai.scheduler/queue": "dawn"}, "day"),
        ({"volcano.sh/queue-name": "a", "scheduling.volcano.sh/queue-name": "b"}, {}, "b"),
        ({}, {"kai.scheduler/queue": "dawn"}, "dawn"),
    ],
)
def test_the_queue_of_a_pod(notes: dict[str, object], labels: dict[str, str], queue: str) -> None:
    """A pod's queue is set by the author's annotation, or else by the one of Volcano's jobs, or
    else by KAI's label."""
    document = pod({"nvidia.com/gpu": 1}, notes)
    document["metadata"]["labels"] = labels
    assert submitted(draft(document), "u1").queue == queue


def test_a_pod_group_with_an_empty_queue_is_in_the_default_queue() -> None:
    """The PodGroups of older Volcano versions can have an empty queue, which is `default`."""
    document = {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "team"}, "spec": {"minMember": 2, "queue": ""},
    }  # fmt: skip
    (group,) = read(document).groups
    assert (group.group, group.queue) == ("team/g", "default")


def test_null_fields_are_absent() -> None:
    """A field with the value null counts as absent."""
    document = pod(nodeSelector=None, initContainers=None, priority=None)
    document["spec"]["containers"][0]["resources"] = None
    assert draft(document).shape == Shape()


def test_submitted() -> None:
    """A pod that was read from a manifest becomes a submission with the same fields."""
    made = PodDraft(
        namespace="n", name="p", shape=Shape(), dialect="hami", priority=3, group="n/g",
        task="t", owner="Job/j", high_priority=("c",), scheduler_name="volcano",
    )  # fmt: skip
    assert submitted(made, "uid-1") == PodSubmitted(
        uid="uid-1", namespace="n", name="p", shape=Shape(), dialect="hami", priority=3,
        group="n/g", task="t", owner="Job/j", high_priority=("c",),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("document", "field", "says"),
    [
        (deployment(replicas=10_001), "spec.replicas", "at most 10000"),
        (deployment(replicas=-1), "spec.replicas", "at least 0"),
        (deployment(replicas="two"), "spec.replicas", "write a whole number without quotes"),
        (job(parallelism=10_001), "spec.parallelism", "at most 10000"),
        (
            job(scheduling={"schedulingPolicy": {"gang": {"minCount": 2}}}),
            "spec.scheduling.schedulingPolicy.gang.minCount",
            "the 1 pods that the Job runs at once",
        ),
        (
            job(scheduling={"schedulingConstraints": {"topology": [{"key": "rack"}]}}),
            "spec.scheduling.schedulingConstraints.topology",
            "is not supported without a gang",
        ),
        (
            job(scheduling={"schedulingConstraints": {"topology": [{"key": ""}]}}),
            "spec.scheduling.schedulingConstraints.topology[0].key",
            "at least 1",
        ),
        (volcano_job(), "spec.tasks", "length of at least 1"),
        (volcano_job(task(replicas=2), minAvailable=3), "spec.minAvailable", "than the 2 pods"),
        (
            volcano_job(task(replicas=2, minAvailable=3)),
            "spec.tasks[0].minAvailable",
            "than the 2 replicas",
        ),
        (volcano_job(task(name="a"), task(name="a")), "spec.tasks[1].name", "is used twice"),
        (volcano_job(task(replicas=9000), task(replicas=9000)), "spec.tasks", "has 18000 pods"),
        (volcano_job(task(name="A")), "spec.tasks[0].name", "is not a DNS label"),
        (volcano_job(task(), queue="Big"), "spec.queue", "is not a DNS name"),
        (
            volcano_job(task({"nvidia.com/gpu": "x"})),
            'spec.tasks[0].template.spec.containers[0].resources.limits["nvidia.com/gpu"]',
            "is not a quantity",
        ),
        (pod_group(minTaskMember={"worker": "x"}), 'spec.minTaskMember["worker"]', "quantity"),
        (pod_group(minTaskMember={"Worker": 1}), 'spec.minTaskMember["Worker"]', "DNS label"),
        (
            pod(None, {"scheduling.k8s.io/group-name": "A"}),
            'metadata.annotations["scheduling.k8s.io/group-name"]',
            "is not a DNS name",
        ),
        (
            pod(None, {"scheduling.volcano.sh/queue-name": "A"}),
            'metadata.annotations["scheduling.volcano.sh/queue-name"]',
            "is not a DNS name",
        ),
    ],
)
def test_refusals(document: dict[str, Any], field: str, says: str) -> None:
    """An invalid document is refused with the field's path and a fix."""
    error = refused(document)
    assert error.field == field
    assert says in str(error)


@pytest.mark.parametrize("name", ["", "Pod", "a_b", "-a", "a-", "a..b", "a" * 254, "a/b", "a\n"])
def test_names(name: str) -> None:
    """A missing name, or a name that the API server would refuse, is refused."""
    document = pod()
    document["metadata"]["name"] = name
    assert refused(document).field == "metadata.name"


def test_names_that_grow_too_long() -> None:
    """A document is refused if the names of its pods, which have a suffix, would be too long."""
    document = job()
    document["metadata"]["name"] = "a" * 252
    assert "254" in refused(document).problem
    document = volcano_job(task())
    document["metadata"].update(name="a" * 230, namespace="n" * 63)
    assert "294" in refused(document).problem


def test_G18_an_unknown_priority_class_of_a_volcano_pod_group_has_no_effect() -> None:
    """A Volcano PodGroup can name a priority class that the configuration lacks, because the
    priority of a gang is that of its pods. `check` warns about the field."""
    version, fields = "scheduling.volcano.sh/v1beta1", {"minMember": 2, "priorityClassName": "high"}
    expected = PodGroupObserved(group="team/gang", min_available=2)
    assert gang_of(version, **fields) == expected
    document = {"apiVersion": version, "kind": "PodGroup", "spec": fields}
    assert [each.field for each in ignored(document)] == ["spec.priorityClassName"]


KAI = "scheduling.run.ai/v2alpha2"


def test_I2_pod_groups_of_kai() -> None:
    """A PodGroup of KAI's pod-grouper declares a gang. The tasks of the gang are the subgroups
    without children."""
    subgroups = [
        {"name": "head", "minMember": 1},
        {"name": "workers"},
        {"name": "fast", "minMember": 2, "parent": "workers"},
    ]
    fields = {"queue": "team", "priorityClassName": "train", "topologyConstraint": {}}
    assert gang_of(KAI, subGroups=subgroups, **fields) == PodGroupObserved(
        group="team/scheduling.run.ai/gang",
        min_available=3,
        min_tasks={"head": 1, "fast": 2},
        queue="team",
    )
    assert gang_of(KAI, minMember=2, priorityClassName="system-node-critical") == PodGroupObserved(
        group="team/scheduling.run.ai/gang", min_available=2, priority=2_000_001_000
    )
    assert gang_of(KAI).min_available == 1


def test_the_topology_levels_of_a_pod_group() -> None:
    """A PodGroup of Kubernetes may require a topology level. A PodGroup of KAI may also prefer a
    level."""
    levels = {"requiredTopologyLevel": "block", "preferredTopologyLevel": "rack", "topology": "t"}
    kais = gang_of(KAI, minMember=2, topologyConstraint=levels)
    assert (kais.required_level, kais.preferred_level, kais.topology) == ("block", "rack", "t")
    for version in ("v1alpha2", "v1beta1"):
        said = {"schedulingConstraints": {"topology": [{"key": "rack"}]}}
        assert gang_of(f"scheduling.k8s.io/{version}", **said).required_level == "rack"
    (group,) = read(
        job(
            parallelism=2, completions=2,
            scheduling={
                "schedulingPolicy": {"gang": {}},
                "schedulingConstraints": {"topology": [{"key": "rack"}]},
            },
        )
    ).groups  # fmt: skip
    assert group.required_level == "rack"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"minSubGroup": 1}, "spec.minSubGroup"),
        ({"subGroups": [{"name": "a", "parent": "b"}]}, "spec.subGroups[0].parent"),
        (
            {"subGroups": [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]},
            "spec.subGroups[0].parent",
        ),
    ],
)
def test_I2_what_a_pod_group_of_kai_may_not_say(spec: dict[str, Any], field: str) -> None:
    """A PodGroup of KAI is refused if it has optional subgroups, or lacks a subgroup's parent."""
    metadata = {"name": "gang", "namespace": "team"}
    made = {"apiVersion": KAI, "kind": "PodGroup", "metadata": metadata, "spec": spec}
    assert refused(made).field == field


def test_I2_the_gang_that_the_pod_grouper_names() -> None:
    """A pod belongs to the gang, the task and the queue that KAI's pod-grouper writes on the pod.
    If the pod names a gang by Volcano's annotation, that gang takes precedence."""
    notes = {"pod-group-name": "pg-train-1"}
    made = pod(None, notes)
    made["metadata"]["labels"] = {
        "kai.scheduler/subgroup-name": "head",
        "kai.scheduler/queue": "team",
    }
    found = draft(made)
    assert (found.group, found.task, found.queue) == (
        "default/scheduling.run.ai/pg-train-1",
        "head",
        "team",
    )
    both = pod(None, notes | {"scheduling.k8s.io/group-name": "mine"})
    assert draft(both).group == "default/mine"
