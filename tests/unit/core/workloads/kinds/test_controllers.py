"""Tests of the pods and gangs that are read from documents whose controllers create pods, such as
Argo Workflows."""

import copy
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.kinds import controllers, nested
from apportion.core.workloads.kinds.drafts import Manifest
from apportion.core.workloads.pods.template import DEFAULT_CONFIG, ManifestConfig
from apportion.core.workloads.reading import is_other, note_of, read_document, with_named
from tests.support.controlled import (
    CONTROLLED,
    INERT,
    jobs,
    kind_of,
    leader_worker_set,
    ray_cluster,
    replicated,
    runtime,
    template,
    train_job,
    training,
    workflow,
)
from tests.support.golden import Golden
from tests.support.manifests import container

RUNTIMES = with_named(DEFAULT_CONFIG, [runtime()])
POTENTIAL = msgspec.structs.replace(RUNTIMES, potential=True)
ARGO, LWS = "argoproj.io/v1alpha1", "leaderworkerset.x-k8s.io/v1"


def read(document: object, config: ManifestConfig = RUNTIMES) -> Manifest:
    return read_document(copy.deepcopy(document), config)


def refusal(document: object, config: ManifestConfig = RUNTIMES) -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        read(document, config)
    return caught.value


def gangs(found: Manifest) -> dict[str, int]:
    return {group.group: group.min_available for group in found.groups}


@pytest.mark.parametrize(
    ("document", "names", "groups"), CONTROLLED, ids=lambda each: str(part_of(each))
)
def test_I1_pods_and_gangs(document: dict[str, Any], names: str, groups: str) -> None:
    """A document yields the pods and the gangs that its controller would create. Each pod has its
    devices."""
    found = read(document)
    assert [pod.name for pod in found.pods] == [f"train{name}" for name in names.split()]
    assert {pod.namespace for pod in found.pods} == {"lab"}
    assert all(pod.shape.asks for pod in found.pods)
    wanted = (each.split("=") for each in groups.split())
    assert gangs(found) == {f"lab/{name}": int(least) for name, least in wanted}
    assert {pod.group for pod in found.pods} - {""} == set(gangs(found))
    assert not is_other(document)


def part_of(value: object) -> object:
    return value.get("kind") if isinstance(value, dict) else "-"


@pytest.mark.parametrize(("document", "names"), INERT, ids=lambda each: str(part_of(each)))
def test_templates(document: dict[str, Any], names: str) -> None:
    """A template that other documents use yields no pods. Only `check` reads the pods that its
    users would create."""
    assert read(document).pods == ()
    found = read(document, POTENTIAL).pods
    assert [pod.name for pod in found] == [f"train{name}" for name in names.split()]
    assert note_of(document)


def test_every_kind_of_the_tables_is_tested() -> None:
    """These tests have a document of every kind whose controller creates pods."""
    tested = {
        (document["apiVersion"], document["kind"])
        for document in [*(row[0] for row in CONTROLLED), *(row[0] for row in INERT)]
    }
    kinds = {kind for _, kind in tested}
    assert kinds | {"JobFlow", "TrainingRuntime"} == {
        *controllers.TABLE,
        *(kind for _, kind in nested.TABLE),
    }


@pytest.mark.parametrize(
    "document",
    [
        kind_of("jobset.x-k8s.io/v1alpha2", "JobSet", suspend=True, replicatedJobs=[])
        | {"spec": {"suspend": True, **CONTROLLED[15][0]["spec"]}},
        training("PyTorchJob", "pytorchReplicaSpecs", runPolicy={"suspend": True}),
        kind_of("ray.io/v1", "RayCluster", **ray_cluster(suspend=True)),
        kind_of("ray.io/v1", "RayJob", rayClusterSpec=ray_cluster(), suspend=True),
        kind_of(ARGO, "Workflow", **workflow(suspend=True)),
        train_job(suspend=True),
    ],
    ids=lambda each: each["kind"],
)
def test_suspended_documents(document: dict[str, Any]) -> None:
    """A suspended workload yields no pods, as under Kueue. Only `check` reads the pods that its
    controller would create."""
    found = read(document)
    assert (found.pods, found.groups) == ((), ())
    assert read(document, POTENTIAL).pods


@pytest.mark.parametrize(
    ("group", "count"),
    [
        ({"replicas": 3}, 3),
        ({"replicas": 3, "minReplicas": 4}, 4),
        ({"replicas": 3, "maxReplicas": 2}, 2),
        ({"replicas": 3, "maxReplicas": 2_147_483_647}, 3),  # KubeRay's default
        ({"minReplicas": 1}, 1),
        ({}, 0),
        ({"replicas": 2, "numOfHosts": 4}, 8),
        ({"replicas": 2, "suspend": True}, 0),
    ],
)
def test_worker_groups(group: dict[str, Any], count: int) -> None:
    """The number of pods of a KubeRay worker group is its replicas times the hosts per replica. The
    group's minimum and maximum bound the replicas."""
    workers = [{"groupName": "w", "template": template(), **group}]
    found = read(kind_of("ray.io/v1", "RayCluster", **ray_cluster(workerGroupSpecs=workers)))
    assert len(found.pods) == 1 + count


@pytest.mark.parametrize(("autoscaling", "least"), [(False, 7), (True, 3)])
@pytest.mark.parametrize("label", controllers.RAY_GANG)
def test_the_gang_of_a_ray_cluster(label: str, autoscaling: bool, least: int) -> None:
    """If a RayCluster has the label of a batch scheduler, its head and all of its workers are a
    gang.

    With autoscaling, only the minimum number of workers of each group counts for the gang's
    minimum."""
    workers = [
        {"groupName": "w", "replicas": 3, "minReplicas": 1, "numOfHosts": 2, "template": template()}
    ]
    spec = ray_cluster(workerGroupSpecs=workers, enableInTreeAutoscaling=autoscaling)
    document = kind_of("ray.io/v1", "RayCluster", **spec)
    document["metadata"]["labels"] = {label: "team"}
    found = read(document)
    assert gangs(found) == {"lab/ray-train-pg": least}
    queued = label in ("volcano.sh/queue-name", "kai.scheduler/queue")
    assert found.groups[0].queue == ("team" if queued else "default")


def test_pods_that_name_a_gang_keep_it() -> None:
    """If the pod templates of a document name a gang themselves, the document declares no gang."""
    document = training("PyTorchJob", "pytorchReplicaSpecs")
    for role in document["spec"]["pytorchReplicaSpecs"].values():
        role["template"]["metadata"] = {"annotations": {"scheduling.k8s.io/group-name": "mine"}}
    found = read(document)
    assert found.groups == ()
    assert {pod.group for pod in found.pods} == {"lab/mine"}


@pytest.mark.parametrize("policy", ["volcano", "coscheduling"])
def test_the_gang_of_a_train_job(policy: str) -> None:
    """The pods of a TrainJob are a gang if its runtime has a policy for PodGroups."""
    config = with_named(DEFAULT_CONFIG, [runtime(podGroupPolicy={policy: {}})])
    assert gangs(read(train_job(), config)) == ({"lab/train": 2} if policy else {})


@pytest.mark.parametrize(
    ("launches", "nodes", "names"),
    [
        (True, 3, "launcher-0-0 node-0-0 node-0-1"),
        (True, 1, "launcher-0-0 node-0-0"),
        (True, None, "launcher-0-0 node-0-0"),
        (False, 3, "launcher-0-0 node-0-0 node-0-1 node-0-2"),
        (False, None, "launcher-0-0 node-0-0"),
    ],
)
def test_the_nodes_of_an_mpi_train_job(*, launches: bool, nodes: int | None, names: str) -> None:
    """With MPI, the `numNodes` of a TrainJob sets the number of pods of the job `node`, as in
    Kubeflow Trainer.

    The launcher is one pod. It counts as one of the nodes if the runtime sets
    `runLauncherAsNode`."""
    [launcher] = jobs(label="trainer")
    [node] = jobs()
    node["template"]["spec"] = {"template": launcher["template"]["spec"]["template"]}
    policy = {"numNodes": 1, "mpi": {"runLauncherAsNode": launches}}
    made = runtime()
    made["spec"]["mlPolicy"] = policy
    made["spec"]["template"]["spec"]["replicatedJobs"] = [
        launcher | {"name": "launcher", "replicas": 2},
        node | {"replicas": 1},
    ]
    amounts = {"limits": {"nvidia.com/gpu": 1}}
    trainer = {"resourcesPerNode": amounts} | ({"numNodes": nodes} if nodes else {})
    found = read(train_job(trainer=trainer), with_named(DEFAULT_CONFIG, [made])).pods
    assert [pod.name for pod in found] == [f"train-{name}" for name in names.split()]
    requests = [bool(pod.shape.asks) for pod in found]
    assert requests == [True, *([launches] * (len(found) - 1))]


def test_what_a_train_job_changes() -> None:
    """The patches of a TrainJob change the pods of its runtime. The field of older versions,
    `podTemplateOverrides`, has the same effect."""
    spec = {"nodeSelector": {"gpu": "on"}, "tolerations": [{"operator": "Exists"}]}
    job = {"name": "node", "template": {"spec": {"template": {"spec": spec}}}}
    patch = {"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}
    old = {"targetJobs": [{"name": "node"}], "spec": spec}
    for fields in ({"runtimePatches": [patch]}, {"podTemplateOverrides": [old]}):
        nodes = [pod.shape.node for pod in read(train_job(**fields)).pods]
        assert [node.selector for node in nodes] == [{"gpu": "on"}] * 2
        assert [len(node.tolerations) for node in nodes] == [1, 1]


def test_the_leader_has_its_own_template() -> None:
    """If a LeaderWorkerSet has a template for leaders, the leader of each group is made from this
    template."""
    spec = leader_worker_set()
    spec["leaderWorkerTemplate"]["leaderTemplate"] = template(nodeSelector={"leader": "yes"})
    found = read(kind_of(LWS, "LeaderWorkerSet", **spec))
    selected = [pod.name for pod in found.pods if pod.shape.node.selector]
    assert selected == ["train-0", "train-1"]


ROLES = [
    {"name": name, "spec": leader_worker_set()} for name in ("decode", "prefill")
]  # fmt: skip
SET = "disaggregatedset.x-k8s.io/v1"


@pytest.mark.parametrize("slices", [0, -1, 101, "2", 1.5, True])
def test_slices_out_of_range(slices: object) -> None:
    """A DisaggregatedSet has 1 to 100 slices; any other value is refused."""
    two = read(kind_of(SET, "DisaggregatedSet", roles=ROLES, slices=2))
    assert len(two.pods) == 2 * len(read(kind_of(SET, "DisaggregatedSet", roles=ROLES)).pods)
    error = refusal(kind_of(SET, "DisaggregatedSet", roles=ROLES, slices=slices))
    assert (error.field, error.value) == ("spec.slices", slices)


def test_what_a_workflow_gives_its_templates() -> None:
    """A template's pod gets the workflow's settings, unless the template overrides them."""
    spec = workflow(
        nodeSelector={"a": "1"},
        schedulerName="apportion",
        podPriorityClassName="system-node-critical",
        podMetadata={"annotations": {"nvidia.com/use-gputype": "A100"}},
    )
    spec["templates"][0] |= {
        "nodeSelector": {"b": "2"},
        "priorityClassName": "system-cluster-critical",
        "sidecars": [container("side", {"cpu": 1})],
    }
    first, last = read(kind_of(ARGO, "Workflow", **spec)).pods
    assert first.shape.node.selector == {"b": "2"}
    assert last.shape.node.selector == {"a": "1"}
    assert (first.priority, last.priority) == (2_000_000_000, 2_000_001_000)
    assert first.containers == ("main", "side")
    assert {pod.scheduler_name for pod in (first, last)} == {"apportion"}
    assert {pod.shape.devices.use_types for pod in (first, last)} == {("A100",)}


def test_what_steps_give_the_templates_that_they_call() -> None:
    """If a template has no node selector, its pod gets the selector of the steps that call the
    template, rather than the workflow's."""
    spec = workflow(nodeSelector={"a": "1"})
    spec["templates"][1] |= {"nodeSelector": {"b": "2"}}
    spec["templates"][1]["steps"].append([{"name": "s", "template": "Fit_1"}])
    document = kind_of(ARGO, "Workflow", **spec)
    assert [pod.shape.node.selector for pod in read(document).pods] == [{"b": "2"}] * 2
    spec["templates"][1] |= {"nodeSelector": {"b": "{{x}}"}}
    assert refusal(document).field == "spec.templates[1].nodeSelector.b"


def test_the_defaults_of_templates() -> None:
    """`templateDefaults` are merged into the templates with a container. They do not make pods of
    other templates."""
    defaults = {
        "container": {"resources": {"limits": {"nvidia.com/gpucores": 50}}},
        "sidecars": [container("side", {"cpu": 1})],
    }
    found = read(kind_of(ARGO, "Workflow", **workflow(templateDefaults=defaults))).pods
    assert [(pod.name, pod.containers) for pod in found] == [
        ("train-fit-1", ("main", "side")),
        ("train-last", ("main", "side")),
    ]
    assert [pod.shape.asks[0].cores for pod in found] == [50, 100]


def shared(kind: str = "WorkflowTemplate", **spec: Any) -> dict[str, Any]:
    """Return a document named `shared` whose templates have other names than those of
    `workflow`."""
    made = workflow(**spec)
    names = ("gpus", "other", "calls")
    made["templates"] = [made["templates"][0] | {"name": name} for name in names[:2]]
    made["templates"].append({"name": names[2], "steps": [[{"name": "s", "template": "other"}]]})
    return kind_of(ARGO, kind, **made) | {"metadata": {"name": "shared", "namespace": "lab"}}


def calling(**call: Any) -> dict[str, Any]:
    """Return a Workflow with one step, and without a pod of its own."""
    step = {"name": "step", **call}
    templates = [{"name": "all", "steps": [[step, step]]}]
    return kind_of(ARGO, "Workflow", entrypoint="all", templates=templates)


WFT, CLUSTER = "WorkflowTemplate", "ClusterWorkflowTemplate"


@pytest.mark.parametrize("kind", [WFT, CLUSTER])
def test_a_workflow_of_a_template(kind: str) -> None:
    """A Workflow that refers to a WorkflowTemplate has the pods of that template. If both set a
    field, the values are merged, and the Workflow takes precedence."""
    made = shared(kind, nodeSelector={"a": "1", "b": "1"}, schedulerName="volcano")
    ref = {"name": "shared", "clusterScope": kind == CLUSTER}
    spec = {"workflowTemplateRef": ref, "nodeSelector": {"b": "2"}}
    config = with_named(DEFAULT_CONFIG, [made])
    for document in (
        kind_of(ARGO, "Workflow", **spec),
        kind_of(ARGO, "CronWorkflow", workflowSpec=spec),
    ):
        found = read(document, config).pods
        assert [pod.name for pod in found] == ["train-gpus", "train-other"]
        assert [pod.shape.node.selector for pod in found] == [{"a": "1", "b": "2"}] * 2
        assert {pod.scheduler_name for pod in found} == {"volcano"}
        assert all(pod.shape.asks for pod in found)


@pytest.mark.parametrize("kind", [WFT, CLUSTER])
def test_templates_of_other_documents(kind: str) -> None:
    """The steps, tasks and hooks of a Workflow may call templates of other documents, which may
    call further templates. The Workflow has the pods of all these templates.

    Each template is read once."""
    ref = {"name": "shared", "clusterScope": kind == CLUSTER}
    config = with_named(DEFAULT_CONFIG, [shared(kind)])
    call = {"templateRef": ref | {"template": "calls"}}
    hook = {"hooks": {"exit": {"templateRef": ref | {"template": "gpus"}}}}
    names = {
        "train-other": calling(**call),
        "train-other train-gpus": calling(**call, **hook),
        "train-fit-1 train-last train-gpus": kind_of(ARGO, "Workflow", **workflow(**hook)),
    }
    for wanted, document in names.items():
        assert " ".join(pod.name for pod in read(document, config).pods) == wanted
    task = {"name": "t", **call}
    document = calling()
    document["spec"]["templates"] = [{"name": "all", "dag": {"tasks": [task]}}]
    assert [pod.name for pod in read(document, config).pods] == ["train-other"]


def test_the_metadata_of_templates_of_other_documents() -> None:
    """The pod of a template in another document gets the pod annotations of that document, rather
    than the workflow's."""
    notes = [{"annotations": {"nvidia.com/use-gputype": each}} for each in ("A100", "H100")]
    document = calling(templateRef={"name": "shared", "template": "gpus"})
    document["spec"]["podMetadata"] = notes[0]
    [pod] = read(document, with_named(DEFAULT_CONFIG, [shared(podMetadata=notes[1])])).pods
    assert pod.shape.devices.use_types == ("H100",)


def test_templates_that_call_each_other() -> None:
    """Templates of two documents that call each other are each read once."""
    ref = {"name": "shared", "template": "again"}
    made = shared()
    made["spec"]["templates"].append({"name": "again", "steps": [[{"templateRef": ref}]]})
    document = calling(templateRef=ref)
    assert read(document, with_named(DEFAULT_CONFIG, [made])).pods == ()


@pytest.mark.parametrize(
    ("document", "field", "value"),
    [
        (calling(templateRef={"name": "gone", "template": "x"}), "templateRef.name", "gone"),
        (calling(templateRef={"template": "x"}), "templateRef.name", None),
        (calling(templateRef={"name": "{{x}}", "template": "x"}), "templateRef.name", "{{x}}"),
        (
            calling(templateRef={"name": "shared", "template": "gone"}),
            "templateRef.template",
            "gone",
        ),
        (
            calling(templateRef={"name": "shared", "template": "gpus", "clusterScope": True}),
            "templateRef.name",
            "shared",
        ),
        (
            kind_of(ARGO, "Workflow", workflowTemplateRef={"name": "gone"}),
            "spec.workflowTemplateRef.name",
            "gone",
        ),
        (
            kind_of(ARGO, "Workflow", **workflow(workflowTemplateRef={"name": "shared"})),
            "spec.templates",
            None,
        ),
        (kind_of(ARGO, "Workflow", entrypoint="x"), "spec.templates", None),
        (kind_of(ARGO, "Workflow", **workflow(podSpecPatch="{}")), "spec.podSpecPatch", "{}"),
    ],
)
def test_I4_references_of_workflows(document: dict[str, Any], field: str, value: object) -> None:
    """A Workflow is refused if it refers to a template that is not in the same files. It is also
    refused if Argo would change its pods later."""
    error = refusal(document, with_named(DEFAULT_CONFIG, [shared()]))
    at = "" if field.startswith("spec") else "spec.templates[0].steps[0][0]."
    assert (error.field, error.value) == (at + field, value)


def test_errors_in_a_template_of_another_document() -> None:
    """An error in a template of another document names that document."""
    made = shared()
    made["spec"]["templates"][1]["container"]["resources"] = {"limits": {"nvidia.com/gpu": "x"}}
    error = refusal(
        calling(templateRef={"name": "shared", "template": "other"}),
        with_named(DEFAULT_CONFIG, [made]),
    )
    assert error.field == (
        'WorkflowTemplate shared: spec.templates[1].container.resources.limits["nvidia.com/gpu"]'
    )


def test_named_documents_of_another_namespace() -> None:
    """A TrainingRuntime and a WorkflowTemplate are used only in their own namespace."""
    for namespace, is_used in (("lab", True), ("other", False)):
        made = [runtime() | {"kind": "TrainingRuntime"}, shared()]
        for each in made:
            each["metadata"] = each["metadata"] | {"namespace": namespace}
        config = with_named(DEFAULT_CONFIG, made)
        for document in (
            train_job(runtimeRef={"kind": "TrainingRuntime", "name": "train"}),
            kind_of(ARGO, "Workflow", workflowTemplateRef={"name": "shared"}),
        ):
            if is_used:
                assert read(document, config).pods
            else:
                assert "of namespace lab" in refusal(document, config).problem


BAD_LIMIT = {"spec": {"containers": [container(limits={"nvidia.com/gpu": "x"})]}}
BAD_WORKFLOW = workflow()
BAD_WORKFLOW["templates"][1]["steps"][0][0]["inline"]["script"]["resources"]["limits"] = {
    "nvidia.com/gpu": "{{inputs.parameters.gpus}}"
}
LIMIT = '.containers[0].resources.limits["nvidia.com/gpu"]'
RUNTIME_WITH_TOPOLOGY = {"volcano": {"networkTopology": {"highestTierAllowed": 1}}}
RAY_GANG = {"ray.io/gang-scheduling-enabled": "true"}
WRONG: list[tuple[dict[str, Any], str]] = [
    (replicated("apps/v1", "StatefulSet", replicas=-1), "spec.replicas"),
    (replicated("apps/v1", "StatefulSet", replicas=True), "spec.replicas"),
    (kind_of("apps/v1", "DaemonSet"), "spec.template"),
    (kind_of("kubeflow.org/v1", "TFJob"), "spec.tfReplicaSpecs"),
    (kind_of("kubeflow.org/v1", "TFJob", tfReplicaSpecs=[]), "spec.tfReplicaSpecs"),
    (
        kind_of("kubeflow.org/v1", "TFJob", tfReplicaSpecs={"Worker": {"template": BAD_LIMIT}}),
        f"spec.tfReplicaSpecs.Worker.template.spec{LIMIT}",
    ),
    (
        kind_of("kubeflow.org/v1", "TFJob", tfReplicaSpecs={"Worker": {"template": {}}}),
        "spec.tfReplicaSpecs.Worker.template.spec",
    ),
    (
        training(
            "TFJob", "tfReplicaSpecs", runPolicy={"schedulingPolicy": {"minAvailable": 4}}
        ),
        "spec.runPolicy.schedulingPolicy.minAvailable",
    ),
    (
        training("TFJob", "tfReplicaSpecs", runPolicy={"schedulingPolicy": {"queue": "A b"}}),
        "spec.runPolicy.schedulingPolicy.queue",
    ),
    (
        kind_of(LWS, "LeaderWorkerSet", **leader_worker_set(replicas=6000)),
        "spec",
    ),
    (kind_of(SET, "DisaggregatedSet", roles=[*ROLES, ROLES[0]]), "spec.roles[2].name"),
    (
        kind_of(
            SET, "DisaggregatedSet", roles=ROLES, placementPolicy={"type": "ExclusiveSlice"}
        ),
        "spec.placementPolicy.type",
    ),
    (
        kind_of(
            "ray.io/v1",
            "RayCluster",
            **ray_cluster(
                workerGroupSpecs=[
                    {"groupName": name, "replicas": 1, "template": template()}
                    for name in ("a", "A")
                ]
            ),
        ),
        "spec.workerGroupSpecs[1].groupName",
    ),
    (
        kind_of(
            "kubeflow.org/v1",
            "PyTorchJob",
            pytorchReplicaSpecs={
                name: {"template": template()} for name in ("Worker", "worker")
            },
        ),
        "spec.pytorchReplicaSpecs.worker",
    ),
    (kind_of("ray.io/v1", "RayJob", rayClusterSpec={}), "spec.rayClusterSpec.headGroupSpec"),
    (
        kind_of("ray.io/v1", "RayJob", rayClusterSpec={"headGroupSpec": {"template": BAD_LIMIT}}),
        f"spec.rayClusterSpec.headGroupSpec.template.spec{LIMIT}",
    ),
    (
        kind_of("ray.io/v1", "RayCluster", **ray_cluster())
        | {"metadata": {"name": "a", "labels": RAY_GANG | {controllers.TOPOLOGY: "firm"}}},
        'metadata.labels["volcano.sh/network-topology-mode"]',
    ),
    (kind_of("batch/v1", "CronJob"), "spec.jobTemplate"),
    (
        kind_of("batch/v1", "CronJob", jobTemplate={"spec": {"template": BAD_LIMIT}}),
        f"spec.jobTemplate.spec.template.spec{LIMIT}",
    ),
    (
        kind_of(ARGO, "Workflow", **BAD_WORKFLOW),
        'spec.templates[1].steps[0][0].inline.script.resources.limits["nvidia.com/gpu"]',
    ),
    (
        kind_of(ARGO, "Workflow", **workflow(nodeSelector={"a": "{{x}}"})),
        "spec.nodeSelector.a",
    ),
    (kind_of(ARGO, "Workflow", **workflow(priority=1, tolerations=[{"effect": "No"}])),
     "spec.tolerations[0].effect"),
    (train_job(runtimeRef={"name": "other"}), "spec.runtimeRef.name"),
    (train_job(runtimeRef={}), "spec.runtimeRef.name"),
    (
        kind_of(
            "workload.codeflare.dev/v1beta2",
            "AppWrapper",
            components=[{"template": replicated("example.com/v1", "Training")}],
        ),
        "spec.components[0].template.kind",
    ),
    (kind_of("sparkoperator.k8s.io/v1beta2", "SparkApplication"), "kind"),
    (kind_of("kubeflow.org/v1beta2", "TFJob"), "kind"),
]  # fmt: skip


def test_I4_refusals(golden: Golden) -> None:
    """An invalid document is refused with the path of the field in the outer document, and a
    fix."""
    errors = [refusal(document) for document, _ in WRONG]
    assert [error.field for error in errors] == [field for _, field in WRONG]
    golden({"each names its field": "\n".join(map(str, errors))})


@pytest.mark.parametrize(
    "wrong", ["x", 5, True, ["x"], {"a": "b"}], ids=["text", "number", "truth", "list", "object"]
)
def test_values_of_a_wrong_type_are_refused(wrong: Any) -> None:
    """If a field has a value of a wrong type, the document is refused, or read without the field.
    No other error is raised."""
    inner = {"name": "t", "container": {"image": "x"}, "initContainers": wrong}
    for document in (
        kind_of(ARGO, "Workflow", entrypoint="t", templates=[inner]),
        train_job(runtimeRef={"kind": wrong, "name": "x"}),
    ):
        with suppress(ManifestError):
            read(document)


def test_a_runtime_may_have_a_topology() -> None:
    """The gang of a TrainJob has the network topology of its runtime."""
    config = with_named(DEFAULT_CONFIG, [runtime(podGroupPolicy=RUNTIME_WITH_TOPOLOGY)])
    (group,) = read_document(train_job(), config).groups
    assert group.required_level == "apportion.dev/hypernode-tier-1"
    wrong = {"volcano": {"networkTopology": {"mode": "firm"}}}
    error = refusal(train_job(), with_named(DEFAULT_CONFIG, [runtime(podGroupPolicy=wrong)]))
    assert error.field.endswith("spec.podGroupPolicy.volcano.networkTopology.mode")


def test_a_ray_cluster_may_have_a_topology() -> None:
    """The gang of a RayCluster has the network topology of the cluster's labels."""
    labels = {controllers.TOPOLOGY: "hard", controllers.HIGHEST_TIER: "2"}
    cluster = kind_of("ray.io/v1", "RayCluster", **ray_cluster())
    (group,) = read(cluster | {"metadata": {"name": "a", "labels": labels | RAY_GANG}}).groups
    assert group.required_level == "apportion.dev/hypernode-tier-2"


def test_templates_in_templates_have_a_limit() -> None:
    """Inline templates of Argo that are nested too deeply are refused."""
    inner: dict[str, Any] = {"container": {"image": "x"}}
    for _ in range(25):
        inner = {"steps": [[{"name": "s", "inline": inner}]]}
    document = kind_of(ARGO, "Workflow", templates=[inner | {"name": "t"}])
    assert "at most" in refusal(document).fix


@pytest.mark.parametrize(("scheduler", "refuses"), [("kai-scheduler", True), ("apportion", False)])
def test_I3_shares_of_kai(scheduler: str, refuses: bool) -> None:
    """A pod that requests a share of a GPU by KAI's annotations is refused, because it would get no
    GPU.

    `gpu-memory` counts as such an annotation only on pods that name KAI's scheduler."""
    for key, value, alone in (("gpu-fraction", "0.5", True), ("gpu-memory", "4000", refuses)):
        document = replicated("apps/v1", "StatefulSet")
        document["spec"]["template"] |= {"metadata": {"annotations": {key: value}}}
        document["spec"]["template"]["spec"]["schedulerName"] = scheduler
        if alone:
            assert refusal(document).field == f'spec.template.metadata.annotations["{key}"]'
        else:
            assert read(document).pods


def test_other_documents_in_a_wrapper() -> None:
    """Documents without pods in an AppWrapper, such as a Service, are skipped."""
    parts = [kind_of("v1", "Service"), replicated("apps/v1", "StatefulSet")]
    spec = {"components": [{"template": each} for each in parts]}
    found = read(kind_of("workload.codeflare.dev/v1beta2", "AppWrapper", **spec))
    assert [pod.owner for pod in found.pods] == ["StatefulSet/train"]


def test_generated_names() -> None:
    """A document with `generateName` gets a name like those that Kubernetes would generate."""
    document = replicated("apps/v1", "StatefulSet")
    document["metadata"] = {"generateName": "train-"}
    assert [pod.name for pod in read(document).pods] == ["train-0"]
