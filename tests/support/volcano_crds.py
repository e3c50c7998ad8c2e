"""Build Volcano's CRDs as its oldest supported release and its newest release install them.

In `FIELDS`, a row that starts with `+` is missing in 1.8, and `any` means arbitrary content."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

OLDEST: Final = "1.8"
NEWEST: Final = "1.15"
PHASES = "Pending|Running|Unknown|Inqueue|Completed"
JOB_PHASES = (
    "Pending|Aborting|Aborted|Running|Restarting|Completing|Completed|Terminating|Terminated|Failed"
)
FIELDS: Final = {
    "PodGroup": f"""
        spec.minMember count
        spec.minResources amounts
        spec.minTaskMember integers
        spec.priorityClassName name
        spec.queue queue
        +spec.networkTopology topology
        +spec.subGroupPolicy any-list
        status.phase {PHASES}
        status.running count
        status.succeeded count
        status.failed count
        status.conditions conditions
    """,
    "Queue": """
        spec.affinity any
        spec.capability amounts
        +spec.dequeueStrategy traverse|fifo
        +spec.deserved amounts
        spec.extendClusters any-list
        spec.guarantee.resource amounts
        +spec.parent name
        +spec.priority count
        spec.reclaimable boolean
        spec.type name
        spec.weight weight
        status.allocated amounts
        status.completed count
        status.inqueue count
        status.pending count
        status.reservation.nodes strings
        status.reservation.resource amounts
        status.running count
        status.state Open|Closed|Closing|Unknown
        status.unknown count
    """,
    "Job": f"""
        spec.maxRetry retries
        spec.minAvailable count
        spec.minSuccess integer
        +spec.networkTopology topology
        spec.plugins string-lists
        spec.policies any-list
        spec.priorityClassName name
        spec.queue queue
        spec.runningEstimate string
        spec.schedulerName string
        spec.tasks any-list
        spec.ttlSecondsAfterFinished count
        spec.volumes any-list
        status.conditions any-list
        status.controlledResources string-map
        status.failed count
        status.minAvailable count
        status.pending count
        status.retryCount count
        status.running count
        status.runningDuration string
        status.state.lastTransitionTime time
        status.state.message string
        status.state.phase {JOB_PHASES}
        status.state.reason string
        status.succeeded count
        status.taskStatusCount any
        status.terminating count
        status.unknown count
        status.version count
    """,
    "Command": """
        action string
        target any
        reason string
        message string
    """,
}
KAI_FIELDS: Final = """
    spec.displayName string
    spec.parentQueue string
    spec.preemptMinRuntime string
    spec.priority integer
    spec.reclaimMinRuntime string
    spec.resources.cpu.limit number
    spec.resources.cpu.overQuotaWeight number
    spec.resources.cpu.quota number
    spec.resources.gpu.limit number
    spec.resources.gpu.overQuotaWeight number
    spec.resources.gpu.quota number
    spec.resources.memory.limit number
    spec.resources.memory.overQuotaWeight number
    spec.resources.memory.quota number
    status.allocated amounts
    status.childQueues strings
    status.conditions conditions
"""
_QUANTITY = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
_INT = {"type": "integer", "format": "int32"}
_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_STRING = {"type": "string"}
_STRINGS = {"type": "array", "items": _STRING}
_TIME = {"type": "string", "format": "date-time"}
_CONDITION = ("type", "status", "transitionID", "reason", "message")
_TYPES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "count": (_INT, {"minimum": 0}),
    "integer": (_INT, {}),
    "retries": (_INT, {"minimum": 0, "default": 3}),
    "weight": (_INT, {"minimum": 1, "maximum": 65535, "default": 1}),
    "string": (_STRING, {}),
    "name": (_STRING, {"maxLength": 253}),
    "queue": (_STRING, {"maxLength": 253, "default": "default"}),
    "boolean": ({"type": "boolean"}, {}),
    "number": ({"type": "number"}, {}),
    "time": (_TIME, {}),
    "any": (_ANY, {}),
    "any-list": ({"type": "array", "items": _ANY}, {}),
    "strings": (_STRINGS, {}),
    "string-map": ({"type": "object", "additionalProperties": _STRING}, {}),
    "string-lists": ({"type": "object", "additionalProperties": _STRINGS}, {}),
    "integers": ({"type": "object", "additionalProperties": _INT}, {}),
    "amounts": ({"type": "object", "additionalProperties": _QUANTITY}, {}),
    "topology": (
        {
            "type": "object",
            "properties": {
                "mode": {"type": "string", "enum": ["hard", "soft"], "default": "hard"},
                "highestTierAllowed": {"type": "integer", "minimum": 0},
                "highestTierName": _STRING,
            },
        },
        {},
    ),
    "conditions": (
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"lastTransitionTime": _TIME, **dict.fromkeys(_CONDITION, _STRING)},
            },
        },
        {},
    ),
}
"""The words of the table: the type in every release, and its limits in the newest."""

_COLUMNS: Final[list[dict[str, Any]]] = [
    {"name": "STATUS", "type": "string"},
    {"name": "minMember", "type": "integer", "jsonPath": ".spec.minMember"},
    {"name": "RUNNINGS", "type": "integer", "jsonPath": ".status.running"},
    {"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "QUEUE", "type": "string", "jsonPath": ".spec.queue", "priority": 1},
]


def volcano_crds(release: str = NEWEST, *, status: bool = False) -> list[dict[str, Any]]:
    """Return the CRDs of this release of Volcano. With `status`, the PodGroup has a status
    subresource."""
    newest = release == NEWEST
    group, job = "scheduling.volcano.sh", "batch.volcano.sh"
    pod_group = _crd(group, "PodGroup", ["pg", "podgroup-v1beta1"], newest=newest)
    queue = _crd(group, "Queue", ["q", "queue-v1beta1"], newest=newest, scope="Cluster")
    vcjob = _crd(job, "Job", ["vcjob", "vj"], newest=newest)
    command = _crd("bus.volcano.sh", "Command", [], newest=newest)
    _version(pod_group)["subresources"] = {"status": {}} if status else {}
    _version(pod_group)["additionalPrinterColumns"] = [
        {**_COLUMNS[0], "jsonPath": ".status.phase"}, *_COLUMNS[1:],
    ]  # fmt: skip
    for each in (queue, vcjob):
        _version(each)["subresources"] = {"status": {}}
    parent = {"name": "PARENT", "type": "string", "jsonPath": ".spec.parent"}
    _version(queue)["additionalPrinterColumns"] = [parent] if newest else []
    if not newest:
        _version(queue)["schema"]["openAPIV3Schema"]["properties"]["status"]["required"] = [
            "allocated"
        ]
    minimum = {"name": "minAvailable", "type": "integer", "jsonPath": ".status.minAvailable"}
    _version(vcjob)["additionalPrinterColumns"] = [
        {**_COLUMNS[0], "jsonPath": ".status.state.phase"}, minimum, *_COLUMNS[2:],
    ]  # fmt: skip
    return [pod_group, queue, vcjob, command, *_of_others()]


def topology_crds() -> list[dict[str, Any]]:
    """Return the CRDs of Volcano's HyperNode and of KAI's Topology."""
    found = []
    for group, kind, plural in (
        ("topology.volcano.sh", "HyperNode", "hypernodes"),
        ("kai.scheduler", "Topology", "topologies"),
    ):
        crd = _crd(group, kind, [], newest=True, scope="Cluster", plural=plural)
        anything = {"type": "object", "properties": {"spec": _ANY, "status": _ANY}}
        _version(crd).update(name="v1alpha1", schema={"openAPIV3Schema": anything})
        found.append(crd)
    return found


def kai_queue_crd() -> dict[str, Any]:
    """Return the CRD of KAI's Queue."""
    crd = _crd("scheduling.run.ai", "Queue", [], newest=True, scope="Cluster")
    schema = {"openAPIV3Schema": _schema(KAI_FIELDS, newest=True)}
    _version(crd).update(name="v2", schema=schema, subresources={"status": {}})
    return crd


def _version(crd: dict[str, Any]) -> dict[str, Any]:
    version: dict[str, Any] = crd["spec"]["versions"][0]
    return version


def _crd(
    group: str,
    kind: str,
    short: list[str],
    *,
    newest: bool,
    scope: str = "Namespaced",
    plural: str = "",
) -> dict[str, Any]:
    plural = plural or f"{kind.lower()}s"
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    version = {
        "name": "v1beta1" if group == "scheduling.volcano.sh" else "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _schema(FIELDS.get(kind, ""), newest=newest)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": names | ({"shortNames": short} if short else {}),
            "versions": [version],
        },
    }


def _schema(table: str, *, newest: bool) -> dict[str, Any]:
    """Return the OpenAPI schema for the fields that a table lists."""
    whole: dict[str, Any] = {"type": "object", "properties": {}}
    for row in filter(None, map(str.strip, table.splitlines())):
        path, word = row.lstrip("+").split()
        if row.startswith("+") and not newest:
            continue
        if "|" in word:
            every, limits = _STRING, {"enum": word.split("|")}
        else:
            every, limits = _TYPES[word]
        *parents, name = path.split(".")
        place = whole
        for parent in parents:
            place = place["properties"].setdefault(parent, {"type": "object", "properties": {}})
        place["properties"][name] = every | (limits if newest else {})
    return whole


def _of_others() -> Iterator[dict[str, Any]]:
    """Yield the PodGroup CRDs of the coscheduling plugin and of KAI's pod-grouper."""
    for group, name in (("scheduling.x-k8s.io", "v1alpha1"), ("scheduling.run.ai", "v2alpha2")):
        crd = _crd(group, "PodGroup", [], newest=True)
        crd["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved"}
        anything = {"type": "object", "properties": {"spec": _ANY, "status": _ANY}}
        _version(crd).update(
            name=name, subresources={"status": {}}, schema={"openAPIV3Schema": anything}
        )
        yield crd
