"""Find which gang a pod belongs to, and name the gangs of the four PodGroup APIs.

Volcano's gangs are named `namespace/name`; the names of other gangs include the API group, as in
`team/scheduling.k8s.io/job`. Invariant: no two PodGroups of a cluster get the same gang name."""

from collections.abc import Collection, Mapping

from apportion.core.workloads import kube
from apportion.core.workloads.document import ManifestError, dns_subdomain, joined_name, within

GROUP = "scheduling.k8s.io/group-name"  # the annotation of Volcano's pods
# has no effect: Volcano's scheduler only reads `GROUP`
VOLCANO_GROUP = "scheduling.volcano.sh/group-name"
# Volcano's controllers create a PodGroup from it for pods that name none
MIN_MEMBER = "scheduling.volcano.sh/group-min-member"
# the label of the coscheduling plugin's pods; HAMi reads it as well
LABEL = "scheduling.x-k8s.io/pod-group"
# the annotation of pods that may get another device model than the other pods of their gang
MODELS = "apportion.dev/gang-models"
ANY, ONE = "any", "one"
VOLCANO = "scheduling.volcano.sh"
COSCHEDULING, KUBERNETES = "scheduling.x-k8s.io", "scheduling.k8s.io"
# KAI's pod-grouper writes the annotation and the label on the pods of KAI's scheduler name.
KAI, KAI_SCHEDULER = "scheduling.run.ai", "kai-scheduler"
KAI_GROUP, KAI_TASK = "pod-group-name", "kai.scheduler/subgroup-name"
KAI_SKIPS = "kai.scheduler/skip-podgrouper"  # annotation: "true" if it leaves the pod alone
# Kubernetes 1.36 serves v1alpha2, and 1.37 the other two. Their fields read here are the same.
KUBERNETES_VERSIONS = ("v1alpha2", "v1alpha3", "v1beta1")
# the API groups that have PodGroups, each with the versions that are read here
VERSIONS = {
    VOLCANO: ("v1beta1",),
    COSCHEDULING: ("v1alpha1",),
    KUBERNETES: KUBERNETES_VERSIONS,
    KAI: ("v2alpha2",),
}


def gang_of(
    spec: kube.PodSpec, annotations: Mapping[str, str], labels: Mapping[str, str], *, at: str
) -> str:
    """Return the gang that the pod names, without its namespace; empty for none.

    Volcano's annotation overrides the label of the coscheduling plugin, and both override KAI's
    annotation. Raises ManifestError for an invalid name, or two gangs."""
    notes_field, labels_field, field = (
        f"{at}.{part}".lstrip(".")
        for part in ("metadata.annotations", "metadata.labels", "spec.schedulingGroup.podGroupName")
    )
    named = spec.scheduling_group.pod_group_name if spec.scheduling_group is not None else ""
    noted, label = annotations.get(GROUP, ""), labels.get(LABEL, "")
    if named and (noted or label):
        other = within(notes_field, GROUP) if noted else within(labels_field, LABEL)
        raise ManifestError(field, named, f"is set together with {other}", "remove one of the two")
    if noted:
        return dns_subdomain(noted, within(notes_field, GROUP))
    if named:
        return f"{KUBERNETES}/{dns_subdomain(named, field)}"
    if label:
        return f"{COSCHEDULING}/{dns_subdomain(label, within(labels_field, LABEL))}"
    grouped = annotations.get(KAI_GROUP, "")
    return f"{KAI}/{dns_subdomain(grouped, within(notes_field, KAI_GROUP))}" if grouped else ""


def awaits_group(scheduler: str, annotations: Mapping[str, str]) -> bool:
    """Return True if KAI's pod-grouper, if it runs, will name the PodGroup of this pod."""
    return (
        scheduler == KAI_SCHEDULER
        and not annotations.get(KAI_GROUP)
        and annotations.get(KAI_SKIPS) != "true"
    )


def any_model(annotations: Mapping[str, str], field: str) -> bool:
    """Return True if the pod's gang may use several device models. Raises ManifestError."""
    value = annotations.get(MODELS, ONE)
    if value not in {ANY, ONE}:
        raise ManifestError(
            within(field, MODELS), value, "is neither any nor one", f"write {ANY} or {ONE}"
        )
    return value == ANY


def name_of(group: kube.Metadata, api: str = "") -> str:
    """Return the gang's name for a PodGroup; `api` is its API group. Raises ManifestError."""
    parts = (group.namespace, api, group.name) if api else (group.namespace, group.name)
    return joined_name(*parts, by="/", field="metadata.name")


def api_of(gang: str) -> str:
    """Return the API group of the PodGroup that defines this gang; empty for Volcano's PodGroup."""
    parts = gang.split("/")
    return parts[1] if len(parts) > 2 else ""  # noqa: PLR2004 - namespace, API group, name


def unread(gang: str, served: Collection[str]) -> ManifestError | None:
    """Return an error if Apportion cannot read the PodGroup that this gang names, or None.

    `served` are the versions of the PodGroup API in the cluster."""
    api = api_of(gang) or VOLCANO
    if not set(VERSIONS[api]).isdisjoint(served):
        return None
    field = {
        VOLCANO: within("metadata.annotations", GROUP),
        COSCHEDULING: within("metadata.labels", LABEL),
        KUBERNETES: "spec.schedulingGroup.podGroupName",
        KAI: within("metadata.annotations", KAI_GROUP),
    }[api]
    name, reads = gang.rpartition("/")[2], " and ".join(VERSIONS[api])
    if not served:
        problem = f"names a PodGroup of {api}, which this cluster does not serve"
        fix = f"install the PodGroup CRD of {api} {reads}, or remove the name"
        return ManifestError(field, name, problem, fix)
    problem = f"names a PodGroup of {api}, which this cluster serves only as {', '.join(served)}"
    fix = f"use a version of Apportion that reads it (this one reads {reads})"
    return ManifestError(field, name, problem, fix)
