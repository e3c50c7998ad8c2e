"""Build a small manifest of every kind whose controller creates pods, as users write it."""

from typing import Any

from tests.support.manifests import container, volcano_job
from tests.support.manifests import task as volcano_task

TRAINER = "trainer.kubeflow.org/v1alpha1"


def template(**spec: Any) -> dict[str, Any]:
    """Return a pod template whose only container requests one GPU."""
    return {"spec": {"containers": [container(limits={"nvidia.com/gpu": 1})], **spec}}


def kind_of(version: str, kind: str, **spec: Any) -> dict[str, Any]:
    """Return a document named `train` of this kind."""
    metadata = {"name": "train", "namespace": "lab"}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def replicated(version: str, kind: str, **spec: Any) -> dict[str, Any]:
    return kind_of(version, kind, template=template(), **spec)


def training(
    kind: str, specs: str, version: str = "kubeflow.org/v1", **spec: Any
) -> dict[str, Any]:
    """Return a training operator's job: a leader without a replica count, and two workers."""
    leader = "Launcher" if kind == "MPIJob" else "Master"
    roles = {leader: {"template": template()}, "Worker": {"replicas": 2, "template": template()}}
    return kind_of(version, kind, **{specs: roles}, **spec)


def ray_cluster(**spec: Any) -> dict[str, Any]:
    """Return the `spec` of a RayCluster: a head, two workers of two hosts, and a stopped group."""
    workers = [
        {"groupName": "gpus", "replicas": 2, "numOfHosts": 2, "template": template()},
        {"groupName": "off", "replicas": 2, "suspend": True, "template": template()},
    ]
    return {"headGroupSpec": {"template": template()}, "workerGroupSpecs": workers, **spec}


def jobs(*, parallelism: int = 2, label: str = "") -> list[dict[str, Any]]:
    """Return `replicatedJobs` of a JobSet."""
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": label} if label else {}
    spec = {"parallelism": parallelism, "completions": parallelism, "template": template()}
    if label:
        spec["template"] = {"spec": {"containers": [container("node")]}}
    made = {"metadata": {"labels": labels}, "spec": spec}
    return [{"name": "node", "template": made, **({} if label else {"replicas": 2})}]


def runtime(**spec: Any) -> dict[str, Any]:
    """Return the ClusterTrainingRuntime `train`, whose container has no devices."""
    made = {"spec": {"replicatedJobs": jobs(parallelism=1, label="trainer")}}
    return kind_of(
        TRAINER, "ClusterTrainingRuntime", mlPolicy={"numNodes": 1}, template=made, **spec
    )


def train_job(**spec: Any) -> dict[str, Any]:
    """Return a TrainJob of two nodes with one GPU each, which names the runtime `train`."""
    amounts = {"limits": {"nvidia.com/gpu": 1}}
    trainer = {"numNodes": 2, "resourcesPerNode": amounts}
    spec = {"runtimeRef": {"name": "train"}, "trainer": trainer} | spec
    return kind_of(TRAINER, "TrainJob", **spec)


def workflow(**spec: Any) -> dict[str, Any]:
    """Return the `spec` of an Argo Workflow with a pod of its own and one in a step."""

    def main(**fields: str) -> dict[str, Any]:
        made = container(limits={"nvidia.com/gpu": 1}) | fields
        return {key: made[key] for key in made if key != "name"}

    inline = {"inline": {"script": main(source="true")}, "name": "last"}
    templates = [{"name": "Fit_1", "container": main()}, {"name": "all", "steps": [[inline]]}]
    return {"entrypoint": "all", "templates": templates, **spec}


def leader_worker_set(**spec: Any) -> dict[str, Any]:
    """Return the `spec` of a LeaderWorkerSet: two groups of a leader and a worker."""
    return {
        "replicas": 2,
        "leaderWorkerTemplate": {"size": 2, "workerTemplate": template()},
        **spec,
    }


ARGO = "argoproj.io/v1alpha1"
VOLCANO = "batch.volcano.sh/v1alpha1"
_VOLCANO_SPEC = volcano_job(volcano_task({"nvidia.com/gpu": 1}, name="t", replicas=2))["spec"]
_JOB = {"spec": {"parallelism": 2, "template": template()}}
# each document, with the names of its pods below `train` and of its gangs
CONTROLLED: list[tuple[dict[str, Any], str, str]] = [
    (replicated("apps/v1", "Deployment", replicas=2), "-0 -1", ""),
    (replicated("apps/v1", "ReplicaSet", replicas=2), "-0 -1", ""),
    (replicated("v1", "ReplicationController", replicas=2), "-0 -1", ""),
    (replicated("apps/v1", "StatefulSet"), "-0", ""),
    (replicated("apps/v1", "DaemonSet"), "-0", ""),
    (kind_of("batch/v1", "CronJob", jobTemplate=_JOB), "-0 -1", ""),
    (replicated("kubeflow.org/v1", "Notebook"), "-0", ""),
    (kind_of("agents.x-k8s.io/v1alpha1", "Sandbox", podTemplate=template()), "-0", ""),
    (training("PyTorchJob", "pytorchReplicaSpecs"), "-master-0 -worker-0 -worker-1", "train=3"),
    (training("TFJob", "tfReplicaSpecs"), "-master-0 -worker-0 -worker-1", "train=3"),
    (training("XGBoostJob", "xgbReplicaSpecs"), "-master-0 -worker-0 -worker-1", "train=3"),
    (training("PaddleJob", "paddleReplicaSpecs"), "-master-0 -worker-0 -worker-1", "train=3"),
    (training("JAXJob", "jaxReplicaSpecs"), "-master-0 -worker-0 -worker-1", "train=3"),
    (training("MPIJob", "mpiReplicaSpecs"), "-launcher -worker-0 -worker-1", "train=3"),
    (
        training(
            "MPIJob",
            "mpiReplicaSpecs",
            "kubeflow.org/v2beta1",
            runPolicy={"schedulingPolicy": {"minAvailable": 2, "queue": "team"}},
        ),
        "-launcher -worker-0 -worker-1",
        "train=2",
    ),
    (
        kind_of("jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=jobs()),
        "-node-0-0 -node-0-1 -node-1-0 -node-1-1",
        "",
    ),
    (
        kind_of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", **leader_worker_set()),
        "-0 -1 -0-w0 -1-w0",
        "train-0=2 train-1=2",
    ),
    (
        kind_of(
            "disaggregatedset.x-k8s.io/v1",
            "DisaggregatedSet",
            roles=[{"name": "decode", "spec": leader_worker_set(startupPolicy="LeaderReady")}],
        ),
        "-0-decode-0 -0-decode-1 -0-decode-0-w0 -0-decode-1-w0",
        "train-0-decode-0=1 train-0-decode-1=1",
    ),
    (
        kind_of("ray.io/v1", "RayCluster", **ray_cluster()),
        "-head -gpus-worker-0-0 -gpus-worker-0-1 -gpus-worker-1-0 -gpus-worker-1-1",
        "",
    ),
    (
        kind_of("ray.io/v1", "RayService", rayClusterConfig=ray_cluster(workerGroupSpecs=[])),
        "-head",
        "",
    ),
    (
        kind_of(
            "ray.io/v1",
            "RayJob",
            rayClusterSpec=ray_cluster(workerGroupSpecs=[]),
            submitterPodTemplate=template(),
        ),
        "-head -submitter",
        "",
    ),
    (
        kind_of(
            "ray.io/v1",
            "RayCronJob",
            jobTemplate={"rayClusterSpec": ray_cluster(workerGroupSpecs=[])},
        ),
        "-head",
        "",
    ),
    (kind_of(ARGO, "Workflow", **workflow()), "-fit-1 -last", ""),
    (kind_of(ARGO, "CronWorkflow", workflowSpec=workflow()), "-fit-1 -last", ""),
    (kind_of(VOLCANO, "CronJob", jobTemplate={"spec": _VOLCANO_SPEC}), "-t-0 -t-1", "train=2"),
    (
        kind_of(
            "workload.codeflare.dev/v1beta2",
            "AppWrapper",
            components=[{"template": replicated("batch/v1", "Job") | {"apiVersion": "batch/v1"}}],
        ),
        "-0",
        "",
    ),
    (train_job(), "-node-0-0 -node-0-1", ""),
]
# documents that only describe pods that others create, with the pods that `check` reads
INERT: list[tuple[dict[str, Any], str]] = [
    ({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "train"}}
     | {"template": template()}, "-0"),
    (runtime(), "-node-0-0"),
    (kind_of(ARGO, "WorkflowTemplate", **workflow()), "-fit-1 -last"),
    (kind_of(ARGO, "ClusterWorkflowTemplate", **workflow()), "-fit-1 -last"),
    (kind_of("flow.volcano.sh/v1alpha1", "JobTemplate", **_VOLCANO_SPEC), "-t-0 -t-1"),
    (
        kind_of(
            "extensions.agents.x-k8s.io/v1beta1", "SandboxTemplate", podTemplate=template()
        ),
        "-0",
    ),
]  # fmt: skip
