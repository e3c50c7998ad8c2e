"""Which gang a pod is of, and what gangs are called: three kinds of PodGroup, in three APIs.

Volcano's is `namespace/name`, as it always was; of the others the API group stands between, as in
`team/scheduling.k8s.io/job`. Invariant: no two objects of a cluster have one name, because no name
of an object has a slash in it."""

from collections.abc import Collection, Mapping

from apportion.core.workloads import kube
from apportion.core.workloads.document import ManifestError, dns_subdomain, joined_name, within

GROUP = "scheduling.k8s.io/group-name"
"""The annotation of Volcano's pods."""
VOLCANO_GROUP = "scheduling.volcano.sh/group-name"
"""It makes no gang: Volcano's scheduler goes by `GROUP` alone."""
MIN_MEMBER = "scheduling.volcano.sh/group-min-member"
"""Volcano's controllers make a PodGroup of it for pods that name none."""
LABEL = "scheduling.x-k8s.io/pod-group"
"""The label of pods of the coscheduling plugin; HAMi minds it as well."""
VOLCANO = "scheduling.volcano.sh"
COSCHEDULING, KUBERNETES = "scheduling.x-k8s.io", "scheduling.k8s.io"
KUBERNETES_VERSIONS = ("v1alpha2", "v1alpha3", "v1beta1")
"""Of Kubernetes 1.36, and the two of 1.37, which has the first no more; they are read alike."""
VERSIONS = {VOLCANO: ("v1beta1",), COSCHEDULING: ("v1alpha1",), KUBERNETES: KUBERNETES_VERSIONS}
"""The API groups that have PodGroups, each with the versions that are read here."""


def gang_of(
    spec: kube.PodSpec, annotations: Mapping[str, str], labels: Mapping[str, str], *, at: str
) -> str:
    """The gang that the pod names, without its namespace; empty for none.

    The annotation goes before the label, as those who write both mean Volcano. `at` is where the
    pod's template stands.

    Raises ManifestError: it is no name, or the pod is of two gangs."""
    notes_field, labels_field, field = (
        f"{at}.{part}".lstrip(".")
        for part in ("metadata.annotations", "metadata.labels", "spec.schedulingGroup.podGroupName")
    )
    named = spec.scheduling_group.pod_group_name if spec.scheduling_group is not None else ""
    noted, label = annotations.get(GROUP, ""), labels.get(LABEL, "")
    if named and (noted or label):
        other = within(notes_field, GROUP) if noted else within(labels_field, LABEL)
        raise ManifestError(field, named, f"is a second gang beside {other}", "remove one of them")
    if noted:
        return dns_subdomain(noted, within(notes_field, GROUP))
    if named:
        return f"{KUBERNETES}/{dns_subdomain(named, field)}"
    return f"{COSCHEDULING}/{dns_subdomain(label, within(labels_field, LABEL))}" if label else ""


def name_of(namespace: str, name: str, api: str = "") -> str:
    """What the gang of a PodGroup is called; `api` is its API group, empty for Volcano's.

    Raises ManifestError: that is too long."""
    parts = (namespace, api, name) if api else (namespace, name)
    return joined_name(*parts, by="/", field="metadata.name")


def api_of(gang: str) -> str:
    """The API group of a gang of that name; empty for Volcano's."""
    parts = gang.split("/")
    return parts[1] if len(parts) > 2 else ""  # noqa: PLR2004 - namespace, API group, name


def unread(gang: str, served: Collection[str]) -> ManifestError | None:
    """Return why the PodGroup of a pod's gang is never read; None where it may be.

    `served` are the versions in which the cluster serves PodGroups of the gang's API group."""
    api = api_of(gang) or VOLCANO
    if not set(VERSIONS[api]).isdisjoint(served):
        return None
    field = {
        VOLCANO: within("metadata.annotations", GROUP),
        COSCHEDULING: within("metadata.labels", LABEL),
        KUBERNETES: "spec.schedulingGroup.podGroupName",
    }[api]
    name, reads = gang.rpartition("/")[2], " and ".join(VERSIONS[api])
    if not served:
        problem = f"names a PodGroup of {api}, which this cluster does not serve"
        return ManifestError(
            field, name, problem, f"install PodGroups of {api} {reads}, or remove it"
        )
    problem = f"names a PodGroup of {api}, which this cluster serves only as {', '.join(served)}"
    return ManifestError(
        field, name, problem, f"use an Apportion that reads it (this one reads {reads})"
    )
