"""Read the pods of kinds whose controllers create pods from templates, by one table of kinds.

A row names the templates of a kind, the numbers that multiply them, and the gangs that the
controller forms. Without its controller, a document yields the pods that the controller would
create, with similar names. Invariant: a document yields all of its pods or none, at most
`REPLICAS_MAX`."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, Final, NamedTuple

import msgspec

from apportion.core.workloads import kube
from apportion.core.workloads.dialects.amounts import AMOUNT_MAX, whole
from apportion.core.workloads.document import (
    ManifestError,
    below,
    below_path,
    dns_label,
    dns_subdomain,
    errors_below,
    joined_name,
    part,
    typed,
    within,
)
from apportion.core.workloads.kinds.drafts import Manifest, manifest_of
from apportion.core.workloads.kinds.topologies import levels_of_volcano
from apportion.core.workloads.pods.template import (
    QUEUE_LABEL,
    QUEUES,
    ManifestConfig,
    Template,
    priority_of,
    read_template,
)
from apportion_schemas import PodGroupObserved

Document = dict[str, Any]
Count = Callable[[Document, str], int]  # of an object and its path


class Role(NamedTuple):
    """The pods of one template: the path of the object that contains it, and the number of pods.

    In `at`, `[]` stands for each entry of a list, and `{}` for each value of a map."""

    at: str = "spec"
    template: str = "template"  # below `at`, like the numbers that `counts` read
    counts: tuple[Count, ...] = ()
    name: str = "{name}-{0}"  # of a pod, with one number for each entry of `counts`
    role: str = "name"  # the field of the object that has the role's name; not for a map
    alone: str = ""  # the name of a role whose only pod has no number


class Gang(NamedTuple):
    """How the pods of a document form gangs; `gang` is the name of a pod's PodGroup."""

    least: Callable[[Document, int], int]  # of the document and its number of pods
    gang: str = "{name}"
    policy: str = ""  # the path of an object with `queue` and `priorityClass`
    when: Callable[[Document], bool] = lambda _: True
    task: bool = False  # the role is also the pod's task


class Kind(NamedTuple):
    """One kind of the table: its versions, roles, gangs, and what only its controller knows."""

    versions: tuple[str, ...]
    roles: tuple[Role, ...]
    gang: Gang | None = None
    suspend: tuple[str, ...] = ("spec.suspend",)
    scales: bool = False  # its pods run until their number is lowered
    note: str = ""


def number(
    field: str,
    default: int = 1,
    *,
    less: int = 0,
    at_least: int = 0,
    at_most: int = kube.REPLICAS_MAX,
) -> Count:
    """Return a function that reads the number at this field and subtracts `less`.

    The function raises ManifestError if the number is out of range."""

    def read(found: Document, at: str) -> int:
        *path, name = field.split(".")
        value = part(found, *path).get(name, default)
        if type(value) is not int:
            fix = "write a whole number without quotes"
            raise ManifestError(below_path(at, field), value, "is not a whole number", fix)
        if not at_least <= value <= at_most:
            bound = f"at least {at_least}" if value < at_least else f"at most {at_most}"
            raise ManifestError(below_path(at, field), value, "is out of range", f"use {bound}")
        return max(value - less, 0)

    return read


def of_job(found: Document, at: str) -> int:
    """Return how many pods a Job in `template` runs at once."""
    most = number("template.spec.parallelism")(found, at)
    return min(most, number("template.spec.completions", most)(found, at))


UNBOUNDED: Final = (1 << 31) - 1  # the default of `maxReplicas` in KubeRay's CRD


def of_workers(found: Document, at: str) -> int:
    """Return the replicas of a KubeRay worker group, clamped to its minReplicas and maxReplicas."""
    if found.get("suspend") is True:
        return 0
    if found.get("maxReplicas") == UNBOUNDED:  # as the API server writes it
        found = {**found, "maxReplicas": kube.REPLICAS_MAX}
    least, most = number("minReplicas", 0), number("maxReplicas", kube.REPLICAS_MAX)
    return max(min(number("replicas", 0)(found, at), most(found, at)), least(found, at))


def _autoscaled(document: Document, pods: int) -> int:
    spec = part(document, "spec")
    if spec.get("enableInTreeAutoscaling") is not True:
        return pods
    groups = _objects(document, "spec.workerGroupSpecs[]")
    least = (number("minReplicas", 0), number("numOfHosts"))
    alive = (each for each in groups if each.found.get("suspend") is not True)
    return 1 + sum(prod(count(each.found, each.field) for count in least) for each in alive)


def _least_of_group(document: Document, _pods: int) -> int:
    # Its workers are created once the leader is ready.
    spec = part(document, "spec")
    if spec.get("startupPolicy") == "LeaderReady":
        return 1
    return number("leaderWorkerTemplate.size")(spec, "spec")


def _training(specs: str, *versions: str) -> Kind:
    role = Role(
        f"spec.{specs}{{}}",
        counts=(number("replicas"),),
        name="{name}-{role}-{0}",
        alone="launcher",  # of an MPIJob
    )
    return Kind(
        versions or (KUBEFLOW,),
        (role,),
        Gang(
            lambda document, pods: number("minAvailable", pods)(
                part(document, *_POLICY.split(".")), _POLICY
            ),
            policy=_POLICY,
            task=True,
        ),
        suspend=("spec.runPolicy.suspend",),
        note="in Kubernetes, its pods are a gang if the operator has a gang scheduler",
    )


# Labels of a RayCluster that set its batch scheduler, or the queue there. The second one is for
# KubeRay before 1.3.
RAY_GANG: Final = (
    "ray.io/gang-scheduling-enabled",
    "ray.io/scheduler-name",
    "volcano.sh/queue-name",
    QUEUE_LABEL,
)
# labels of a RayCluster
TOPOLOGY: Final = "volcano.sh/network-topology-mode"
HIGHEST_TIER: Final = "volcano.sh/network-topology-highest-tier-allowed"
POLICY_OF_RUNTIME: Final = "podGroupPolicy"  # in a runtime of Kubeflow Trainer
_NETWORK: Final = f"spec.{POLICY_OF_RUNTIME}.volcano.networkTopology"
KUBEFLOW: Final = "kubeflow.org/v1"
RAY: Final = ("ray.io/v1", "ray.io/v1alpha1")
_POLICY: Final = "spec.runPolicy.schedulingPolicy"
_REPLICAS: Final = (number("replicas"),)
_ONE: Final = Role(counts=(lambda _found, _at: 1,))
_LEADER: Final = "leaderWorkerTemplate"
_GROUPS: Final = (number("replicas"), number(f"{_LEADER}.size", less=1))
GANG_OF_GROUP: Final = (
    "in Kubernetes, each group is a gang if LeaderWorkerSet has a scheduler provider"
)
GANG_OF_RAY: Final = "in Kubernetes, its pods are a gang if KubeRay has a batch scheduler"

TABLE: Final[Mapping[str, Kind]] = {
    "Deployment": Kind(("apps/v1",), (Role(counts=_REPLICAS),), scales=True),
    "ReplicaSet": Kind(("apps/v1",), (Role(counts=_REPLICAS),), scales=True),
    "ReplicationController": Kind(("v1",), (Role(counts=_REPLICAS),), scales=True),
    "StatefulSet": Kind(("apps/v1",), (Role(counts=_REPLICAS),), scales=True),
    "DaemonSet": Kind(
        ("apps/v1",), (_ONE,), note="one pod is read; in Kubernetes, each suitable node gets one"
    ),
    "PodTemplate": Kind(("v1",), (_ONE._replace(at=""),), note="one pod is read"),
    "Notebook": Kind(tuple(f"kubeflow.org/{each}" for each in ("v1", "v1beta1")), (_ONE,)),
    "Sandbox": Kind(
        ("agents.x-k8s.io/v1alpha1", "agents.x-k8s.io/v1beta1"),
        (_ONE._replace(template="podTemplate"),),
    ),
    "SandboxTemplate": Kind(
        ("extensions.agents.x-k8s.io/v1alpha1", "extensions.agents.x-k8s.io/v1beta1"),
        (_ONE._replace(template="podTemplate"),),
        note="one pod is read; in Kubernetes, a warm pool has more",
    ),
    "PyTorchJob": _training("pytorchReplicaSpecs"),
    "TFJob": _training("tfReplicaSpecs"),
    "MPIJob": _training("mpiReplicaSpecs", KUBEFLOW, "kubeflow.org/v2beta1"),
    "XGBoostJob": _training("xgbReplicaSpecs"),
    "PaddleJob": _training("paddleReplicaSpecs"),
    "JAXJob": _training("jaxReplicaSpecs"),
    "JobSet": Kind(
        ("jobset.x-k8s.io/v1alpha2",),
        (
            Role(
                "spec.replicatedJobs[]",
                "template.spec.template",
                (number("replicas"), of_job),
                "{name}-{role}-{0}-{1}",
            ),
        ),
        Gang(
            lambda _document, pods: pods,
            when=lambda document: POLICY_OF_RUNTIME in part(document, "spec"),
        ),
    ),
    "LeaderWorkerSet": Kind(
        ("leaderworkerset.x-k8s.io/v1",),
        (
            Role(template=f"{_LEADER}.leaderTemplate|{_LEADER}.workerTemplate", counts=_GROUPS[:1]),
            Role(template=f"{_LEADER}.workerTemplate", counts=_GROUPS, name="{name}-{0}-w{1}"),
        ),
        Gang(_least_of_group, "{name}-{0}"),
        suspend=(),
        scales=True,
        note=GANG_OF_GROUP,
    ),
    "RayCluster": Kind(
        RAY,
        (
            Role("spec.headGroupSpec", counts=_ONE.counts, name="{name}-head"),
            Role(
                "spec.workerGroupSpecs[]",
                counts=(of_workers, number("numOfHosts")),
                name="{name}-{role}-worker-{0}-{1}",
                role="groupName",
            ),
        ),
        Gang(
            _autoscaled,
            "ray-{name}-pg",
            when=lambda document: any(
                key in part(document, "metadata", "labels") for key in RAY_GANG
            ),
        ),
        scales=True,
        note=GANG_OF_RAY,
    ),
}


# kinds whose pods run until their number is lowered
SCALED: Final = frozenset(name for name, kind in TABLE.items() if kind.scales)
# kinds whose documents only describe pods that other documents start
INERT: Final = frozenset({"PodTemplate", "SandboxTemplate"})


class _Object(NamedTuple):
    found: Any  # an object
    field: str
    key: str = ""  # of an entry of a map


class _Pods(NamedTuple):
    role: Role
    name: str
    template: Template
    numbers: tuple[int, ...]


def read_controlled(document: Document, config: ManifestConfig) -> Manifest:
    """Read a document of a kind in the table."""
    kind, title = TABLE[document["kind"]], document["kind"]
    owner = typed({"metadata": part(document, "metadata")}, kube.Named).metadata
    name = dns_subdomain(owner.name, "metadata.name")
    found = list(_pods(kind, document, config, owner.namespace))
    if not found:
        field = kind.roles[0].at.rstrip("[]{}")
        raise ManifestError(field, None, "has no pod template", "add one")
    total = sum(prod(each.numbers) for each in found)
    if total > kube.REPLICAS_MAX:
        raise ManifestError("spec", None, f"has {total} pods", f"use at most {kube.REPLICAS_MAX}")
    if not config.potential and (title in INERT or stopped(document, kind.suspend)):
        found = []
    gang = kind.gang if config.gangs and kind.gang and kind.gang.when(document) else None
    if any(each.template.group for each in found):
        gang = None  # the templates name a gang themselves
    named: list[tuple[str, Template]] = []
    groups: dict[str, PodGroupObserved] = {}
    for each in found:
        task = each.name if gang is not None and gang.task else each.template.task
        for at in itertools.product(*map(range, each.numbers)):
            pod = each.role.name.format(*at, name=name, role=each.name)
            if each.name and each.name == each.role.alone and each.numbers == (1,):
                pod = f"{name}-{each.name}"
            template = each.template
            if gang is not None:
                group = gang.gang.format(*at, name=name)
                template = msgspec.structs.replace(template, group=group, task=task)
                if group not in groups:
                    groups[group] = _group(gang, document, group, total, config)
            named.append((joined_name(pod, field="metadata.name"), template))
    return manifest_of(title, owner, named, f"{title}/{name}", tuple(groups.values()))


def stopped(document: Document, paths: tuple[str, ...]) -> bool:
    """Return True if a field at one of the paths is true, so that the pods are not created."""
    split = (path.rpartition(".") for path in paths)
    return any(part(document, *above.split(".")).get(key) is True for above, _, key in split)


def _pods(
    kind: Kind, document: Document, config: ManifestConfig, namespace: str
) -> Iterator[_Pods]:
    for role in kind.roles:
        names: set[str] = set()
        for each in _objects(document, role.at):
            raw, field = _template(each, role.template)
            with errors_below(f"{field}."):
                parts = typed(raw, kube.PodTemplate)
            template = read_template(
                parts, raw["spec"], field=field, config=config, namespace=namespace
            )
            numbers = tuple(count(each.found, each.field) for count in role.counts)
            name, at = _name(role, each)
            if name in names:
                raise ManifestError(at, name, "is used twice", "rename one of them")
            names.add(name)
            yield _Pods(role, name, template, numbers)


def _name(role: Role, each: _Object) -> tuple[str, str]:
    # The role's name, as it is in the names of pods, and its path.
    if "{role}" not in role.name:
        return "", each.field
    name, field = each.key or each.found.get(role.role), each.field
    if not each.key:
        field = below_path(field, role.role)
    if not isinstance(name, str):
        raise ManifestError(field, name, "is missing or not text", "name it")
    return dns_label(name.lower(), field), field


def _template(each: _Object, paths: str) -> tuple[Document, str]:
    raw, path = None, paths
    for path in paths.split("|"):
        raw = each.found
        for key in path.split("."):
            raw = raw.get(key) if isinstance(raw, dict) else None
        if raw is not None:
            break
    field = below_path(each.field, path)
    if not isinstance(raw, dict):
        raise ManifestError(field, raw, "is missing or not an object", "add a pod template")
    return raw, field


def _objects(document: Document, at: str) -> Iterator[_Object]:
    """Yield the objects at the path. Raises ManifestError for a value of another type."""
    path, mark = (at[:-2], at[-2:]) if at.endswith(("[]", "{}")) else (at, "")
    found: Any = document
    for key in filter(None, path.split(".")):
        found = found.get(key) if isinstance(found, dict) else None
    if mark == "[]":
        if found is not None and not isinstance(found, list):
            raise ManifestError(path, found, "is not a list", "write a list")
        each = [_Object(value, f"{path}[{i}]") for i, value in enumerate(found or ())]
    else:
        each = [_Object(found, path)]
        if mark and (found is None or isinstance(found, dict)):
            entries = (found or {}).items()
            each = [_Object(value, below(path, key), key) for key, value in entries]
    for one in each:
        if not isinstance(one.found, dict):
            problem = "is missing or not an object"
            raise ManifestError(one.field, one.found, problem, "write an object")
        yield one


def _group(
    gang: Gang, document: Document, name: str, pods: int, config: ManifestConfig
) -> PodGroupObserved:
    owner = part(document, "metadata")
    policy = part(document, *gang.policy.split(".")) if gang.policy else {}
    labels = part(owner, "labels")
    queue = policy.get("queue") or next(
        (
            value
            for key in (*QUEUES, QUEUE_LABEL)
            if (value := part(owner, "annotations").get(key, labels.get(key)))
        ),
        "default",
    )
    field = f"{gang.policy or 'spec'}.priorityClass"
    priority = str(policy.get("priorityClass") or labels.get("ray.io/priority-class-name") or "")
    least = gang.least(document, pods)
    if least > pods:
        problem = f"is more than the {pods} pods of the gang"
        raise ManifestError(f"{gang.policy}.minAvailable", least, problem, "lower it")
    return PodGroupObserved(
        group=joined_name(
            str(owner.get("namespace") or "default"), name, by="/", field="metadata.name"
        ),
        min_available=least,
        queue=dns_subdomain(str(queue), f"{gang.policy or 'metadata'}.queue"),
        priority=priority_of(priority, field, config),
        **_levels(document, labels),
    )


def _levels(document: Document, labels: Document) -> dict[str, Any]:
    # The topology of a TrainJob's runtime, or of the labels of a RayCluster.
    at, found = _NETWORK, part(document, *_NETWORK.split(".")[:-1]).get("networkTopology")
    if found is None and TOPOLOGY in labels:
        at, mode, tier = "metadata.labels", labels[TOPOLOGY], labels.get(HIGHEST_TIER)
        if mode not in ("hard", "soft"):
            fix = "write hard or soft"
            raise ManifestError(within(at, TOPOLOGY), mode, "is not a topology mode", fix)
        found = {"mode": mode}
        if tier is not None:
            found["highestTierAllowed"] = whole(tier, within(at, HIGHEST_TIER), limit=AMOUNT_MAX)
    if found is None:
        return {}
    with errors_below(f"{at}."):
        network = typed(found, kube.NetworkTopology)
    return levels_of_volcano(network, at)
