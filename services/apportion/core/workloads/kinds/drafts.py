"""Convert one document to its pods, with one function per kind.

Without Kubernetes, Apportion creates the pods that a controller would create in Kubernetes, with
the same names. Invariant: a document yields all of its pods or none."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct

from apportion.core.workloads import kube
from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.dialects.amounts import AMOUNT_MAX, whole
from apportion.core.workloads.document import dns_label, dns_subdomain, joined_name, typed, within
from apportion.core.workloads.kinds.topologies import (
    PARTITION,
    levels_of_volcano,
    parts_of_kai,
    parts_of_volcano,
)
from apportion.core.workloads.pods import gangs, node_needs, unsupported
from apportion.core.workloads.pods.template import (
    ManifestConfig,
    Template,
    priority_of,
    read_template,
)
from apportion_schemas import GangPart, PodGroupObserved, PodSubmitted
from apportion_schemas.quantities import GANG_BATCH_MAX

VOLCANO_DEFAULT_TASK = "default"  # plus its index, as in Volcano's admission


class PodDraft(Template, frozen=True, kw_only=True):
    """A pod that was read from a manifest but has no uid yet. Fields are as in `PodSubmitted`."""

    namespace: str
    name: str
    owner: str = ""
    chooser: str = ""


class Manifest(Struct, frozen=True, kw_only=True):
    """What one document describes: gangs, pods, or both."""

    kind: str
    namespace: str
    name: str
    groups: tuple[PodGroupObserved, ...] = ()
    pods: tuple[PodDraft, ...] = ()


def submitted(draft: PodDraft, uid: str) -> PodSubmitted:
    """Return the event that submits the pod under this uid."""
    fields = msgspec.structs.asdict(draft) | {"volume_claims": claims_of(draft)}
    del fields["scheduler_name"]
    return PodSubmitted(uid=uid, **fields)


def claims_of(draft: PodDraft) -> tuple[str, ...]:
    """Return the full names of the pod's PersistentVolumeClaims."""
    return node_needs.whole_names(draft.name, draft.volume_claims)


def read_pod_document(document: dict[str, Any], config: ManifestConfig) -> Manifest:
    """Read a document of kind Pod, which is one pod."""
    pod = typed(document, kube.Pod)
    template = read_template(
        kube.PodTemplate(spec=pod.spec, metadata=pod.metadata),
        document["spec"],
        field="",
        config=config,
        namespace=pod.metadata.namespace,
    )
    owners = (f"{o.kind}/{o.name}" for o in pod.metadata.owner_references if o.controller)
    return manifest_of("Pod", pod.metadata, [(pod.metadata.name, template)], next(owners, ""))


def read_job(document: dict[str, Any], config: ManifestConfig) -> Manifest:
    """Read a Job: as many pods as run at the same time; none if the Job is suspended.

    With a gang policy, the pods are a gang of a Kubernetes PodGroup with the Job's name."""
    job = typed(document, kube.Job)
    unsupported.check(document["spec"], "spec", unsupported.JOB_SPEC)
    spec, gang = job.spec, job.spec.scheduling.scheduling_policy.gang
    completions = spec.parallelism if spec.completions is None else spec.completions
    most = min(spec.parallelism, completions)
    group = None
    # As in Kubernetes, a PodGroup that the template names overrides the Job's gang policy.
    if gang is not None and spec.template.spec.scheduling_group is None:
        least = most if gang.min_count is None else gang.min_count
        if least > most:
            field = "spec.scheduling.schedulingPolicy.gang.minCount"
            problem = f"is more than the {most} pods that the Job runs at once"
            raise ManifestError(field, least, problem, "lower it, or raise spec.parallelism")
        group = PodGroupObserved(
            group=gangs.name_of(job.metadata, gangs.KUBERNETES),
            min_available=least,
            required_level=spec.scheduling.scheduling_constraints.level,
        )
    template = read_template(
        spec.template,
        document["spec"]["template"]["spec"],
        field="spec.template",
        config=config,
        namespace=job.metadata.namespace,
    )
    name = job.metadata.name
    level = spec.scheduling.scheduling_constraints.level
    if gang is None and level:
        field = "spec.scheduling.schedulingConstraints.topology"
        fix = "set spec.scheduling.schedulingPolicy.gang"
        raise ManifestError(field, level, "is not supported without a gang", fix)
    if group is not None:
        if template.group:
            field = "spec.scheduling.schedulingPolicy.gang"
            problem = "is named in spec.template, but the Job makes its own gang"
            raise ManifestError(
                field, template.group, problem, "remove this field, or the Job's gang"
            )
        template = msgspec.structs.replace(template, group=f"{gangs.KUBERNETES}/{name}")
    count = 0 if spec.suspend and not config.potential else most
    named = [(joined_name(name, i, field="metadata.name"), template) for i in range(count)]
    groups = (group,) if group is not None else ()
    return manifest_of("Job", job.metadata, named, f"Job/{name}", groups)


def read_volcano_job(document: dict[str, Any], config: ManifestConfig) -> Manifest:
    """Read a Volcano Job: a gang, and for each task its pods, named `<job>-<task>-<i>`."""
    job = typed(document, kube.VolcanoJob)
    unsupported.check(document["spec"], "spec", unsupported.VOLCANO_JOB_SPEC)
    name = dns_subdomain(job.metadata.name, "metadata.name")
    group = _volcano_group(job, config)
    # Volcano's controller mounts these in all pods. A `volumeClaim` makes one of a random name.
    claims = {each.volume_claim_name for each in job.spec.volumes} - {""}
    named: list[tuple[str, Template]] = []
    for i, task in enumerate(job.spec.tasks):
        field = f"spec.tasks[{i}]"
        template = read_template(
            task.template,
            document["spec"]["tasks"][i]["template"]["spec"],
            field=f"{field}.template",
            config=config,
            namespace=job.metadata.namespace,
            priority_class=job.spec.priority_class_name,
        )
        template = msgspec.structs.replace(
            template,
            scheduler_name=template.scheduler_name or job.spec.scheduler_name,
            group=name,
            task=_task_name(task, i),
            volume_claims=tuple(sorted(claims.union(template.volume_claims))),
        )
        policy = task.partition_policy
        for n in range(task.replicas):
            labels = {PARTITION: str(n // policy.partition_size)} if policy is not None else {}
            labelled = msgspec.structs.replace(template, labels=template.labels | labels)
            named.append((joined_name(name, template.task, n, field=f"{field}.name"), labelled))
    return manifest_of("Job", job.metadata, named, f"Job/{name}", (group,))


def read_pod_group(document: dict[str, Any], config: ManifestConfig) -> Manifest:
    """Read a Volcano PodGroup as a gang. Its pods are in other documents.

    A priority class that the configuration lacks has no effect, because the pods have their own."""
    group = typed(document, kube.PodGroup)
    spec, field = group.spec, "spec.minTaskMember"
    parts = parts_of_volcano(spec.sub_group_policy)
    least = Counter[str]()
    for part, policy in zip(parts, spec.sub_group_policy, strict=True):
        least[part.tasks[0]] += policy.sub_group_size * policy.min_sub_groups
    min_tasks = {
        dns_label(task, within(field, task)): whole(count, within(field, task), limit=AMOUNT_MAX)
        for task, count in spec.min_task_member.items()
    }
    observed = PodGroupObserved(
        group=gangs.name_of(group.metadata),
        parts=parts,
        **_minimums(spec.min_member, min_tasks, least, parts),
        queue=dns_subdomain(spec.queue or "default", "spec.queue"),
        priority=config.priority_classes.get(spec.priority_class_name, 0),
        **levels_of_volcano(spec.network_topology, "spec.networkTopology"),
    )
    return manifest_of("PodGroup", group.metadata, [], "", (observed,))


def read_coscheduling_group(document: dict[str, Any], _config: ManifestConfig) -> Manifest:
    """Read a PodGroup of the coscheduling plugin as the gang of the pods with its label."""
    group = typed(document, kube.CoschedulingPodGroup)
    observed = PodGroupObserved(
        group=gangs.name_of(group.metadata, gangs.COSCHEDULING), min_available=group.spec.min_member
    )
    return manifest_of("PodGroup", group.metadata, [], "", (observed,))


def read_kubernetes_group(document: dict[str, Any], config: ManifestConfig) -> Manifest:
    """Read a Kubernetes PodGroup. Without a gang policy, each of its pods is placed on its own."""
    group = typed(document, kube.KubernetesPodGroup)
    unsupported.check(document["spec"], "spec", unsupported.KUBERNETES_POD_GROUP_SPEC)
    spec, gang = group.spec, group.spec.scheduling_policy.gang
    priority = spec.priority
    if priority is None:
        priority = priority_of(spec.priority_class_name, "spec.priorityClassName", config)
    observed = PodGroupObserved(
        group=gangs.name_of(group.metadata, gangs.KUBERNETES),
        min_available=gang.min_count if gang is not None else 1,
        priority=priority,
        required_level=spec.scheduling_constraints.level,
        whole=spec.whole,
    )
    return manifest_of("PodGroup", group.metadata, [], "", (observed,))


def read_kai_group(document: dict[str, Any], config: ManifestConfig) -> Manifest:
    """Read a PodGroup of KAI's pod-grouper. Its subgroups are tasks.

    A priority class that the configuration lacks has no effect, because the pods have their own."""
    group = typed(document, kube.KaiPodGroup)
    unsupported.check(document["spec"], "spec", unsupported.KAI_POD_GROUP_SPEC)
    spec = group.spec
    parents = {each.parent for each in spec.sub_groups}
    parts = parts_of_kai(spec)
    tasks = {
        dns_label(each.name, f"spec.subGroups[{i}].name"): each.min_member
        for i, each in enumerate(spec.sub_groups)
        if each.min_member and each.name not in parents
    }
    least = spec.min_member or sum(tasks.values()) or 1
    observed = PodGroupObserved(
        group=gangs.name_of(group.metadata, gangs.KAI),
        min_available=least,
        min_tasks=tasks,
        queue=dns_subdomain(spec.queue or "default", "spec.queue"),
        priority=config.priority_classes.get(spec.priority_class_name, 0),
        required_level=spec.topology_constraint.required_topology_level,
        preferred_level=spec.topology_constraint.preferred_topology_level,
        topology=spec.topology_constraint.topology,
        parts=parts,
    )
    return manifest_of("PodGroup", group.metadata, [], "", (observed,))


KINDS: dict[tuple[str, str], Callable[[dict[str, Any], ManifestConfig], Manifest]] = {
    ("v1", "Pod"): read_pod_document,
    ("batch/v1", "Job"): read_job,
    ("batch.volcano.sh/v1alpha1", "Job"): read_volcano_job,
    ("scheduling.volcano.sh/v1beta1", "PodGroup"): read_pod_group,
    ("scheduling.x-k8s.io/v1alpha1", "PodGroup"): read_coscheduling_group,
    (f"{gangs.KAI}/v2alpha2", "PodGroup"): read_kai_group,
    **{
        (f"{gangs.KUBERNETES}/{version}", "PodGroup"): read_kubernetes_group
        for version in gangs.KUBERNETES_VERSIONS
    },
}


def manifest_of(
    kind: str,
    metadata: kube.Metadata,
    named: list[tuple[str, Template]],
    owner: str,
    groups: tuple[PodGroupObserved, ...] = (),
) -> Manifest:
    """Return a manifest with one pod for each (pod name, template) of `named`.

    Raises ManifestError for an invalid name or namespace."""
    name = dns_subdomain(metadata.name, "metadata.name")
    namespace = dns_label(metadata.namespace, "metadata.namespace")
    pods = []
    for pod_name, template in named:
        gang = template.group and joined_name(
            namespace, template.group, by="/", field="metadata.namespace"
        )
        fields = msgspec.structs.asdict(template) | {"group": gang}
        pods.append(PodDraft(namespace=namespace, name=pod_name, owner=owner, **fields))
    return Manifest(kind=kind, namespace=namespace, name=name, groups=groups, pods=tuple(pods))


def _task_name(task: kube.VolcanoTask, index: int) -> str:
    return dns_label(task.name or f"{VOLCANO_DEFAULT_TASK}{index}", f"spec.tasks[{index}].name")


# With the defaults and checks of Volcano's admission.
def _volcano_group(job: kube.VolcanoJob, config: ManifestConfig) -> PodGroupObserved:
    replicas: dict[str, int] = {}
    min_tasks: dict[str, int] = {}
    parts: list[GangPart] = []
    of_parts = Counter[str]()
    for i, task in enumerate(job.spec.tasks):
        name = _task_name(task, i)
        if name in replicas:
            fix = "rename one of them"
            raise ManifestError(f"spec.tasks[{i}].name", name, "is used twice", fix)
        replicas[name] = task.replicas
        if task.min_available is not None:
            min_tasks[name] = task.min_available
            if task.min_available > task.replicas:
                problem = f"is more than the {task.replicas} replicas of the task"
                fix = "lower it, or raise replicas"
                raise ManifestError(
                    f"spec.tasks[{i}].minAvailable", task.min_available, problem, fix
                )
        if (policy := task.partition_policy) is not None:
            parts.append(_partitions(task, policy, name, f"spec.tasks[{i}].partitionPolicy"))
            if policy.min_partitions:
                of_parts[name] = policy.min_partitions * policy.partition_size
    total = sum(replicas.values())
    if total > kube.REPLICAS_MAX:
        fix = f"use at most {kube.REPLICAS_MAX}"
        raise ManifestError("spec.tasks", None, f"has {total} pods", fix)
    if job.spec.min_available > total:
        problem, fix = f"is more than the {total} pods of the job", "lower it, or raise replicas"
        raise ManifestError("spec.minAvailable", job.spec.min_available, problem, fix)
    minimums = {**replicas, **of_parts, **min_tasks}
    return PodGroupObserved(
        group=gangs.name_of(job.metadata),
        parts=tuple(parts),
        **_minimums(
            job.spec.min_available or sum(minimums.values()),
            minimums if min_tasks else {},
            of_parts,
            parts,
        ),
        queue=dns_subdomain(job.spec.queue or "default", "spec.queue"),
        priority=priority_of(job.spec.priority_class_name, "spec.priorityClassName", config),
        **levels_of_volcano(job.spec.network_topology, "spec.networkTopology"),
    )


def _minimums(
    min_available: int, min_tasks: dict[str, int], of_parts: Counter[str], parts: Iterable[GangPart]
) -> dict[str, Any]:
    # The minimums of a gang and its tasks, with those that `of_parts` gives for whole parts. As in
    # Volcano, the minimums of tasks have no effect if the gang may start with fewer pods, but those
    # of parts always have. A part that is larger than one batch must not start in several.
    if any(of_parts.values()):
        if sum(min_tasks.values()) > min_available:
            min_tasks = {}
        min_tasks = dict(Counter(min_tasks) | of_parts)
        min_available = max(min_available, sum(min_tasks.values()))
    large = (part.size for part in parts if part.size > GANG_BATCH_MAX)
    return {"min_available": max([min_available, *large]), "min_tasks": min_tasks}


def _partitions(
    task: kube.VolcanoTask, policy: kube.PartitionPolicy, name: str, field: str
) -> GangPart:
    if policy.total_partitions * policy.partition_size != task.replicas:
        problem = f"times partitionSize must be {task.replicas}, the replicas of the task"
        fix = "change one of the three"
        raise ManifestError(f"{field}.totalPartitions", policy.total_partitions, problem, fix)
    if policy.min_partitions > policy.total_partitions:
        fix = f"write at most {policy.total_partitions}"
        problem = "is more than totalPartitions"
        raise ManifestError(f"{field}.minPartitions", policy.min_partitions, problem, fix)
    return GangPart(
        tasks=(name,),
        split_by=PARTITION,
        size=policy.partition_size,
        **levels_of_volcano(policy.network_topology, f"{field}.networkTopology"),
    )


OF_FOLDER: Final = "manifest-"  # prefix of the uids of a manifest folder's pods


def of_folder(uid: str) -> bool:
    """Return True if the uid is of a pod from a watched folder of manifests."""
    return uid.startswith(OF_FOLDER)
