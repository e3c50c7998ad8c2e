"""Read kinds of documents that contain or name other documents, which describe the pods.

A row says where the inner documents are and of which kind. Invariant: an error names the field of
the outer document, or the document that it names."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from apportion.core.workloads.document import (
    ManifestError,
    below_path,
    cleaned,
    dns_subdomain,
    entries,
    errors_below,
    part,
)
from apportion.core.workloads.kinds import workflows
from apportion.core.workloads.kinds.controllers import (
    GANG_OF_GROUP,
    GANG_OF_RAY,
    POLICY_OF_RUNTIME,
    RAY,
    number,
    stopped,
)
from apportion.core.workloads.pods import unsupported
from apportion.core.workloads.pods.template import ManifestConfig

Document = dict[str, Any]
JOB: Final = ("batch/v1", "Job")
VOLCANO: Final = "batch.volcano.sh/v1alpha1"
TRAINER: Final = "trainer.kubeflow.org/v1alpha1"
JOB_SET: Final = ("jobset.x-k8s.io/v1alpha2", "JobSet")
ARGO: Final = "argoproj.io/v1alpha1"
STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
# the values of this label
STEPS: Final = ("trainer", "dataset-initializer", "model-initializer")


class Inner(NamedTuple):
    """A document in another one. `field` maps a path in it to a path in the outer document."""

    document: Document
    field: Callable[[str], str]


# the kinds that other documents name
CLUSTER_WIDE: Final = ("ClusterTrainingRuntime", "ClusterWorkflowTemplate")
NAMED: Final = (*CLUSTER_WIDE, "TrainingRuntime", "WorkflowTemplate")
Parts = Callable[[Document, ManifestConfig], Iterator[Inner]]


class Nest(NamedTuple):
    """One kind of the table, with a function that yields its inner documents."""

    versions: tuple[str, ...]
    parts: Parts
    suspend: tuple[str, ...] = ("spec.suspend",)
    inert: bool = False  # its pods are created only if another document names it
    note: str = ""


def template(kind: tuple[str, str], at: str, *, suffix: str = "") -> Parts:
    """Return a function that reads `metadata` and `spec` at the path as a document."""

    def parts(document: Document, _config: ManifestConfig) -> Iterator[Inner]:
        found = _object(document, at)
        named = _named(document, suffix)
        about = part(found, "metadata") | named
        yield Inner(
            _made(kind, about, _object(found, "spec", at)),
            lambda field: field if field == "metadata.name" else below_path(at, field),
        )

    return parts


def specification(kind: tuple[str, str], at: str) -> Parts:
    """Return a function that reads the object at the path as the `spec` of a document."""

    def parts(document: Document, _config: ManifestConfig) -> Iterator[Inner]:
        yield _spec(kind, document, at, _object(document, at), "")

    return parts


def _spec(kind: tuple[str, str], document: Document, at: str, spec: Document, suffix: str) -> Inner:
    def field(path: str) -> str:
        return at + path.removeprefix("spec") if path.startswith("spec") else path

    about = part(document, "metadata") | _named(document, suffix)
    return Inner(_made(kind, about, spec), field)


def _ray_job(document: Document, config: ManifestConfig) -> Iterator[Inner]:
    spec = part(document, "spec")
    if "rayClusterSpec" in spec:  # not if it runs on an existing cluster
        yield from specification((RAY[0], "RayCluster"), "spec.rayClusterSpec")(document, config)
    if "submitterPodTemplate" in spec and spec.get("submissionMode", "K8sJobMode") == "K8sJobMode":
        pod = ("v1", "Pod")
        yield from template(pod, "spec.submitterPodTemplate", suffix="-submitter")(document, config)


def _roles(document: Document, _config: ManifestConfig) -> Iterator[Inner]:
    kind = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
    whole = part(document, "spec")
    unsupported.check(whole, "spec", unsupported.DISAGGREGATED_SET_SPEC)
    slices, names = SLICES(whole, "spec"), set[str]()
    for i, role in entries(whole, "roles"):
        spec = _object(role, "spec", f"spec.roles[{i}]")
        name = str(role.get("name", i))
        if name in names:
            field, fix = f"spec.roles[{i}].name", "rename one of them"
            raise ManifestError(field, name, "is used twice", fix)
        names.add(name)
        for each in range(slices):
            yield _spec(kind, document, f"spec.roles[{i}].spec", spec, f"-{each}-{name}")


def _components(document: Document, _config: ManifestConfig) -> Iterator[Inner]:
    for i, component in entries(part(document, "spec"), "components"):
        at = f"spec.components[{i}].template"
        found = _object(component, "template", f"spec.components[{i}]")
        owner = part(document, "metadata").get("namespace")
        about = {"namespace": owner} if owner else {}
        inner = found | {"metadata": about | part(found, "metadata")}
        yield Inner(inner, lambda field, at=at: below_path(at, field))  # type: ignore[misc]


def _training(document: Document, config: ManifestConfig) -> Iterator[Inner]:
    """Yield the JobSet that Kubeflow Trainer creates from a TrainJob and its runtime."""
    named = part(document, "spec", "runtimeRef")
    kind, name = str(named.get("kind", "ClusterTrainingRuntime")), named.get("name")
    spec = part(_find(document, config)(kind, name, "spec.runtimeRef.name"), "spec")
    jobs = [
        _job(document, spec, each)
        for _, each in entries(part(spec, "template", "spec"), "replicatedJobs")
    ]
    about = part(document, "metadata") | _named(document, "")
    policy = part(spec, POLICY_OF_RUNTIME)
    made = _made(
        JOB_SET, about, {"replicatedJobs": jobs} | ({POLICY_OF_RUNTIME: policy} if policy else {})
    )
    yield Inner(made, lambda field: f"{kind} {name}: {below_path('spec.template', field)}")


def _job(document: Document, runtime: Document, job: Document) -> Document:
    """Return a job of the runtime, with the changes that Kubeflow Trainer and the TrainJob make."""
    trainer, policy = part(document, "spec", "trainer"), part(runtime, "mlPolicy")
    step = part(job, "template", "metadata", "labels").get(STEP)
    job_spec = dict(part(job, "template", "spec"))
    pod = dict(part(job_spec, "template"))
    pod_spec = dict(part(pod, "spec"))
    # With MPI, the nodes are in the job of that name, and the launcher may be one of them.
    with_launcher = part(policy, "mpi").get("runLauncherAsNode") is True
    is_trainer, is_node = step == STEPS[0], job.get("name") == "node"
    nodes = trainer.get("numNodes")
    count = policy.get("numNodes", 1) if is_trainer else job_spec.get("parallelism", 1)
    if type(nodes) is int and (is_node if "mpi" in policy else is_trainer):
        count = max(nodes - 1, 1) if with_launcher else nodes
    job_spec |= {"parallelism": count, "completions": count}
    if is_trainer or (is_node and with_launcher):
        amounts = part(trainer, "resourcesPerNode")
        pod_spec["containers"] = containers = [
            dict(each) for _, each in entries(pod_spec, "containers")
        ]
        for each in containers:
            if each.get("name") == "node":
                each["resources"] = {
                    key: part(each, "resources", key) | part(amounts, key)
                    for key in ("limits", "requests")
                }
    for name, patch in _patches(document):
        if name != job.get("name"):
            continue
        for key in ("nodeSelector", "affinity"):
            if key in patch:
                pod_spec[key] = part(pod_spec, key) | part(patch, key)
        for key in ("tolerations", "schedulingGates", "volumes"):
            if key in patch:
                pod_spec[key] = [
                    each for whole in (pod_spec, patch) for _, each in entries(whole, key)
                ]
    pod["spec"] = pod_spec
    made = job | {"template": {"spec": job_spec | {"template": pod}}}
    return made | {"replicas": 1} if step in STEPS else made


def _patches(document: Document) -> Iterator[tuple[object, Document]]:
    spec = part(document, "spec")
    for _, each in entries(spec, "runtimePatches"):
        patched = part(each, "trainingRuntimeSpec", "template", "spec")
        for _, job in entries(patched, "replicatedJobs"):
            yield job.get("name"), part(job, "template", "spec", "template", "spec")
    for _, each in entries(spec, "podTemplateOverrides"):  # until Kubeflow Trainer 2.1
        for _, job in entries(each, "targetJobs"):
            yield job.get("name"), part(each, "spec")


def _workflow(at: str) -> Parts:
    def parts(document: Document, config: ManifestConfig) -> Iterator[Inner]:
        name = str(part(document, "metadata").get("name") or "")
        spec = part(document, *at.split("."))
        for pod in workflows.pods(spec, at, _find(document, config)):
            about = pod.metadata | _named(document, f"-{pod.name}", name)
            yield Inner(_made(("v1", "Pod"), about, pod.spec), pod.field)

    return parts


def _find(document: Document, config: ManifestConfig) -> workflows.Find:
    """Return a function that finds the documents that this document names."""
    namespace = namespace_of(document)

    def find(kind: str, name: object, field: str) -> Document:
        if not isinstance(name, str):
            raise ManifestError(field, name, "is missing or not text", f"name a {kind}")
        found = config.named.get(named_key(kind, namespace, name))
        if found is None:
            whose = "" if kind in CLUSTER_WIDE else f" of namespace {namespace}"
            where = f" -n {namespace}" if whose else ""
            problem = (
                f"names a {kind}{whose} that is not among these files, so its pods are unknown"
            )
            command = f"`kubectl get {kind.lower()} NAME{where} -o yaml`"
            fix = f"save it with {command}, and add the file with -f"
            raise ManifestError(field, name, problem, fix)
        with errors_below(f"{kind} {name}: "):
            return part(cleaned(found))

    return find


def named_key(kind: str, namespace: str, name: str) -> str:
    """Return the key in `ManifestConfig.named` of a document that other documents name."""
    return f"{kind}/{name}" if kind in CLUSTER_WIDE else f"{kind}/{namespace}/{name}"


def namespace_of(document: object) -> str:
    """Return the namespace of a document that is not cluster-wide."""
    return str(part(document, "metadata").get("namespace") or "default")


SLICES: Final = number("slices", at_least=1, at_most=100)  # the limits of its CRD
_RUN: Final = "one run is read"
_STEPS: Final = "one pod of each template is read; Argo decides at run time how many there are"
_OF_TRAIN_JOB: Final = "its pods are created by a TrainJob that names it"

TABLE: Final[Mapping[tuple[str, str], Nest]] = {
    (version, kind): nest
    for kind, nests in {
        "CronJob": (
            Nest(("batch/v1",), template(JOB, "spec.jobTemplate"), note=_RUN),
            Nest((VOLCANO,), template((VOLCANO, "Job"), "spec.jobTemplate"), note=_RUN),
        ),
        "JobTemplate": (
            Nest(
                ("flow.volcano.sh/v1alpha1",),
                template((VOLCANO, "Job"), ""),
                inert=True,
                note="its pods are created by a JobFlow that names it",
            ),
        ),
        "JobFlow": (
            Nest(
                ("flow.volcano.sh/v1alpha1",),
                lambda *_: iter(()),
                note="its pods are in its JobTemplates",
            ),
        ),
        "RayJob": (Nest(RAY, _ray_job, note=GANG_OF_RAY),),
        "RayCronJob": (
            Nest(RAY, specification((RAY[0], "RayJob"), "spec.jobTemplate"), note=_RUN),
        ),
        "RayService": (
            Nest(
                RAY,
                specification((RAY[0], "RayCluster"), "spec.rayClusterConfig"),
                note=GANG_OF_RAY,
            ),
        ),
        "DisaggregatedSet": (Nest(("disaggregatedset.x-k8s.io/v1",), _roles, note=GANG_OF_GROUP),),
        "AppWrapper": (Nest(("workload.codeflare.dev/v1beta2",), _components),),
        "TrainJob": (Nest((TRAINER,), _training),),
        "TrainingRuntime": (
            Nest((TRAINER,), template(JOB_SET, "spec.template"), inert=True, note=_OF_TRAIN_JOB),
        ),
        "ClusterTrainingRuntime": (
            Nest((TRAINER,), template(JOB_SET, "spec.template"), inert=True, note=_OF_TRAIN_JOB),
        ),
        "Workflow": (Nest((ARGO,), _workflow("spec"), note=_STEPS),),
        "CronWorkflow": (Nest((ARGO,), _workflow("spec.workflowSpec"), note=_STEPS),),
        "WorkflowTemplate": (Nest((ARGO,), _workflow("spec"), inert=True, note=_STEPS),),
        "ClusterWorkflowTemplate": (Nest((ARGO,), _workflow("spec"), inert=True, note=_STEPS),),
    }.items()
    for nest in nests
    for version in nest.versions
}


def inner_documents(document: Document, config: ManifestConfig) -> Iterator[Inner]:
    """Yield the documents in a document of a kind in the table; none if it starts no pods."""
    nest = TABLE[(document["apiVersion"], document["kind"])]
    if config.potential or not (nest.inert or stopped(document, nest.suspend)):
        yield from nest.parts(document, config)


def _object(whole: Document, at: str, outer: str = "") -> Document:
    found: Any = whole
    for key in filter(None, at.split(".")):
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        field = below_path(outer, at) if at else "spec"
        raise ManifestError(field, found, "is missing or not an object", "write an object")
    return found


def _named(document: Document, suffix: str, name: str = "") -> Document:
    owner = part(document, "metadata")
    about = {key: owner[key] for key in ("namespace",) if key in owner}
    whole = name or owner.get("name")
    return about | {"name": f"{dns_subdomain(str(whole or ''), 'metadata.name')}{suffix}"}


def _made(kind: tuple[str, str], metadata: Document, spec: Document) -> Document:
    return {"apiVersion": kind[0], "kind": kind[1], "metadata": metadata, "spec": spec}
