"""Refuse fields that would change a decision but are not implemented; one table lists them all.

If such a field were ignored, its pod might be placed where its author forbade it. Invariant: an
absent or empty field never refuses a pod."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from apportion.core.workloads.document import ManifestError, within
from apportion.core.workloads.pods.gangs import GROUP, MIN_MEMBER

_LATER = "is not supported"
_NO_EFFECT: tuple[object, ...] = (None, False, "", "none", [], {})


class Unsupported(NamedTuple):
    """A field to refuse, with the problem and the fix. With `values`, only these are refused."""

    path: str  # `[]`: every entry of a list
    problem: str = _LATER
    fix: str = "remove it"
    values: tuple[str, ...] = ()


_NUMA_FIX = "remove it; nvidia.com/numa-bind keeps the pod's devices on one NUMA node"
# values for which Volcano keeps a pod off nodes; with the others it prefers none, or some
NUMA_REQUIRED = ("restricted", "single-numa-node")
_GROUP_FIX = f"create a PodGroup and name it in the annotation {GROUP}"

RESOURCE_CLAIMS = "resourceClaims"

POD_SPEC = (
    Unsupported("nodeName", "already assigns the pod", "remove it to let Apportion choose a node"),
    Unsupported("workloadRef", fix=_GROUP_FIX),
    Unsupported(
        RESOURCE_CLAIMS,
        "needs a Kubernetes cluster with DRA enabled",
        "request devices in resources.limits, or start the watcher and the binder with --dra",
    ),
)
VOLCANO_JOB_SPEC = (
    Unsupported("tasks[].dependsOn", fix="submit the later task once the earlier one has started"),
    Unsupported("tasks[].topologyPolicy", fix=_NUMA_FIX, values=NUMA_REQUIRED),
)
JOB_SPEC = (Unsupported("scheduling.resourceClaims", fix="request devices in resources.limits"),)
DISAGGREGATED_SET_SPEC = (
    Unsupported(
        "placementPolicy.type",
        fix="write the affinity into the pod templates",
        values=("ExclusiveSlice", "ExclusiveTopology"),
    ),
)
KAI_POD_GROUP_SPEC = (Unsupported("subGroups[].minSubGroup", fix="set minMember instead"),)
KUBERNETES_POD_GROUP_SPEC = (
    Unsupported("parentCompositePodGroupName"),
    Unsupported("preemptionPolicy", fix="set it in the pods", values=("Never",)),
    Unsupported("resourceClaims", fix="request devices in resources.limits"),
)
# KAI's annotations for a part of a GPU; the pod's resources name no GPU then
KAI_FRACTION, KAI_MEMORY = "gpu-fraction", "gpu-memory"
_KAI_SHARE: Final = (
    "is read only by KAI's scheduler",
    "remove it, and limit the container to nvidia.com/gpu: 1 and nvidia.com/gpumem-percentage: 50",
)
NUMA_POLICY = "volcano.sh/numa-topology-policy"


def check_pod_spec(spec: dict[str, Any], field: str, *, resource_claims: bool = False) -> None:
    """Raise ManifestError for an unsupported field. `resource_claims` permits ResourceClaims."""
    passed = (RESOURCE_CLAIMS,) if resource_claims else ()
    check(spec, field, tuple(row for row in POD_SPEC if row.path not in passed))


def check(part: dict[str, Any], field: str, table: tuple[Unsupported, ...]) -> None:
    """Raise ManifestError if this part of a document sets a field in the table."""
    for row in table:
        for found, value in places(part, field, row.path.split(".")):
            if row.values and value not in row.values:
                continue
            raise ManifestError(found, value, row.problem, row.fix)


def check_annotations(annotations: Mapping[str, str], field: str, *, kai: bool = False) -> None:
    """Raise ManifestError for annotations that are refused, such as those of a NUMA policy.

    `kai` is True for a pod of KAI's scheduler or queues."""
    for key in (KAI_FRACTION, *((KAI_MEMORY,) if kai else ())):
        if key in annotations:
            raise ManifestError(within(field, key), annotations[key], *_KAI_SHARE)
    if MIN_MEMBER in annotations and not annotations.get(GROUP):
        found = within(field, MIN_MEMBER)
        raise ManifestError(found, annotations[MIN_MEMBER], _LATER, _GROUP_FIX)
    if annotations.get(NUMA_POLICY) in NUMA_REQUIRED:
        found = within(field, NUMA_POLICY)
        raise ManifestError(found, annotations[NUMA_POLICY], _LATER, _NUMA_FIX)


def places(value: object, field: str, path: list[str]) -> Iterator[tuple[str, object]]:
    """Yield path and value of each field that `path` matches, if the value has an effect."""
    if not path:
        if value not in _NO_EFFECT:
            yield field, value
        return
    key = path[0].removesuffix("[]")
    if not isinstance(value, dict) or key not in value:
        return
    below, at = value[key], f"{field}.{key}" if field else key
    if key == path[0]:
        yield from places(below, at, path[1:])
    elif isinstance(below, list):
        for i, entry in enumerate(below):
            yield from places(entry, f"{at}[{i}]", path[1:])
