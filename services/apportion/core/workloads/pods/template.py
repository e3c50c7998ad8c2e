"""Read a pod spec into a template: what all pods created from the spec have in common.

Invariant: the shape is valid for the event schema, so the pods can be submitted."""

from collections.abc import Iterable
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from apportion.core.workloads import kube
from apportion.core.workloads.dialects import Container, DialectConfig, ManifestError, read_pod
from apportion.core.workloads.dialects.amounts import Role
from apportion.core.workloads.dialects.dialect import FALSE, TRUE
from apportion.core.workloads.dialects.listing import claimed
from apportion.core.workloads.dialects.reading import DeviceRequest
from apportion.core.workloads.document import (
    dns_label,
    dns_subdomain,
    go_seconds,
    qualified_name,
    texts,
    within,
)
from apportion.core.workloads.pods import affinity, gangs, node_needs, unsupported
from apportion.core.workloads.pods.node_needs import node_amounts
from apportion.core.workloads.schedulers import SchedulerNames
from apportion_schemas import Ask, NodeConstraints, PodConstraints, Shape
from apportion_schemas.quantities import CONTAINERS_MAX, NOTICE_MAX_S, Priority
from apportion_schemas.workload import Control, Controls

SHAPE_BYTES_MAX = 1 << 18
CHECKPOINT_MAX_S = 365 * 24 * 3600
TASK = "volcano.sh/task-spec"
# annotations with a pod's queue: the author's overrides the one of Volcano's jobs
QUEUES = ("scheduling.volcano.sh/queue-name", "volcano.sh/queue-name")
QUEUE_LABEL = (
    "kai.scheduler/queue"  # KAI's label with a pod's queue, for pods without an annotation
)
# built into every cluster
PRIORITY_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class ManifestConfig(Struct, frozen=True, kw_only=True):
    """The settings for reading manifests: dialects, priority classes and schedulers."""

    dialects: DialectConfig = DialectConfig()
    priority_classes: dict[str, Priority] = msgspec.field(
        default_factory=lambda: dict(PRIORITY_CLASSES)
    )
    gangs: bool = True  # False: another scheduler handles gangs
    resource_claims: bool = False  # accept pods with ResourceClaims
    schedulers: SchedulerNames = SchedulerNames()  # only for reports
    # Also read the pods that suspended workloads and templates would create, to check them.
    potential: bool = False
    named: dict[str, Any] = {}  # documents that others name, by `named_key`, as in `with_named`


# Volcano's annotation, or else label: false if the pod may not be evicted for one of higher
# priority
PREEMPTABLE = "volcano.sh/preemptable"
# the annotation with the time between two checkpoints: an evicted pod loses no more work than that
CHECKPOINT = "apportion.dev/checkpoint-every"
# the annotation with the time between a pod's eviction and its deletion
NOTICE = "apportion.dev/eviction-notice"
DEFAULT_CONFIG = ManifestConfig()


class Template(Struct, frozen=True, kw_only=True):
    """What all pods created from one spec have in common.

    `group` is the gang without its namespace; `task` and `queue` are from annotations."""

    shape: Shape
    dialect: str
    labels: dict[str, str] = {}
    priority: int = 0
    scheduler_name: str = ""
    high_priority: tuple[str, ...] = ()
    controls: Controls = {}
    borrowing: tuple[Ask, ...] = ()
    init_containers: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    group: str = ""
    task: str = ""
    queue: str = ""
    gates: tuple[str, ...] = ()
    volume_claims: tuple[str, ...] = ()
    preempts: bool = True
    evictable: bool = True
    any_model: bool = False
    notice_s: int = 0
    checkpoint_s: int = 0
    deadline_s: int = 0


def read_template(
    parts: kube.PodTemplate,
    raw_spec: dict[str, Any],
    *,
    field: str,
    config: ManifestConfig,
    namespace: str,
    priority_class: str = "",
) -> Template:
    """Read a pod spec; `field` is the path of its template, or empty for a pod document.

    `priority_class` applies if the spec has none. Raises ManifestError if anything is unusable."""
    spec_field, meta_field = (f"{field}.{part}".lstrip(".") for part in ("spec", "metadata"))
    notes_field = f"{meta_field}.annotations"
    unsupported.check_pod_spec(raw_spec, spec_field, resource_claims=config.resource_claims)
    notes = texts(parts.metadata.annotations, notes_field)
    own = affinity.Own(namespace, affinity.labels_of(parts.metadata, f"{meta_field}.labels"))
    kai = parts.spec.scheduler_name == gangs.KAI_SCHEDULER or QUEUE_LABEL in own.labels
    unsupported.check_annotations(notes, notes_field, kai=kai)
    containers = containers_of(parts.spec, spec_field)
    request = read_pod(containers, notes, annotations_field=notes_field, config=config.dialects)
    spec = parts.spec
    node = _node(containers, spec, spec_field, config.dialects)
    shape = _shape(request, node, affinity.wishes(spec, spec_field, own), spec_field)
    priority = spec.priority
    if priority is None:
        named, at = spec.priority_class_name or priority_class, f"{spec_field}.priorityClassName"
        priority = priority_of(named, at, config)
    # The controller that set a gate removes it once the pod may be scheduled.
    gates = [
        qualified_name(gate.name, f"{spec_field}.schedulingGates[{i}].name")
        for i, gate in enumerate(spec.scheduling_gates)
    ]
    group = gangs.gang_of(spec, notes, own.labels, at=field) if config.gangs else ""
    template = Template(
        shape=shape,
        dialect=request.dialect,
        labels=own.labels,
        priority=priority,
        scheduler_name=spec.scheduler_name,
        high_priority=request.high_priority,
        borrowing=request.borrowing,
        group=group,
        task=notes.get(TASK) or own.labels.get(gangs.KAI_TASK, ""),
        queue=_queue(notes, own.labels, meta_field),
        gates=tuple(dict.fromkeys(gates)),
        volume_claims=node_needs.claims(spec.volumes),
        preempts=spec.preemption_policy != "Never",
        evictable=_evictable(notes, own.labels, notes_field),
        any_model=gangs.any_model(notes, notes_field) and bool(group),
        notice_s=_seconds(notes, NOTICE, notes_field, most=NOTICE_MAX_S),
        checkpoint_s=_seconds(notes, CHECKPOINT, notes_field, most=CHECKPOINT_MAX_S),
        deadline_s=spec.active_deadline_seconds or 0,
    )
    if not request.asks:
        return template
    # Device plugins that number containers need the names of all of them.
    return msgspec.structs.replace(
        template,
        controls=_controls(spec, (*request.asks, *request.borrowing)),
        init_containers=tuple(container.name for container in spec.init_containers),
        containers=tuple(container.name for container in spec.containers),
    )


def _queue(notes: dict[str, str], labels: dict[str, str], field: str) -> str:
    for kind, found, keys in (("annotations", notes, QUEUES), ("labels", labels, (QUEUE_LABEL,))):
        for key in keys:
            if found.get(key):
                return dns_subdomain(found[key], within(f"{field}.{kind}", key))
    return ""


def _evictable(notes: dict[str, str], labels: dict[str, str], field: str) -> bool:
    value = notes.get(PREEMPTABLE, labels.get(PREEMPTABLE, "true"))
    if not value.strip():
        return False  # as in Volcano, where it is not a boolean
    if value not in TRUE | FALSE:
        raise ManifestError(
            within(field, PREEMPTABLE), value, "is not true or false", "write false"
        )
    return value in TRUE


def _seconds(notes: dict[str, str], key: str, field: str, *, most: int) -> int:
    if key not in notes:
        return 0
    at, value = within(field, key), notes[key]
    seconds = go_seconds(value, at)
    if not 0 < seconds <= most:
        problem = "is too long" if seconds else "must be longer than 0"
        raise ManifestError(at, value, problem, f'write a duration from "1s" to "{most // 3600}h"')
    return seconds


def priority_of(name: str, field: str, config: ManifestConfig) -> int:
    """Return the value of the priority class. Raises ManifestError if the cluster lacks it."""
    if name and name not in config.priority_classes:
        known = ", ".join(sorted(config.priority_classes))
        fix = f"use one of {known}, or submit a PriorityClass of this name with the manifest"
        raise ManifestError(field, name, "is not a known priority class", fix)
    return config.priority_classes[name] if name else 0


def containers_of(spec: kube.PodSpec, field: str) -> tuple[Container, ...]:
    """Return the containers of the spec at `field`, in the order in which they start.

    Raises ManifestError if a name is malformed or duplicate, or there are too many."""
    found: dict[str, Container] = {}
    groups = (("initContainers", spec.init_containers), ("containers", spec.containers))
    for kind, group in groups:
        for i, each in enumerate(group):
            at = f"{field}.{kind}[{i}]"
            name = dns_label(each.name, f"{at}.name")
            if name in found:
                raise ManifestError(f"{at}.name", name, "is used twice", "rename one of them")
            role: Role = "app"
            if kind == "initContainers":
                role = "sidecar" if each.restart_policy == "Always" else "init"
            found[name] = Container(name, at, each.resources.limits, each.resources.requests, role)
    if len(found) > CONTAINERS_MAX:
        problem = f"has {len(found)} containers including init containers"
        raise ManifestError(f"{field}.containers", None, problem, f"use at most {CONTAINERS_MAX}")
    return tuple(found.values())


def _node(
    containers: tuple[Container, ...], spec: kube.PodSpec, field: str, config: DialectConfig
) -> NodeConstraints:
    whole = spec.resources or kube.Resources()
    amounts = node_amounts(
        containers,
        spec.overhead,
        whole=Container("", field, whole.limits, whole.requests),
        field=field,
        claimed=claimed(config),
    )
    return msgspec.structs.replace(
        amounts,
        selector=node_needs.selector(spec, field),
        required=node_needs.required(spec, field),
        preferred=node_needs.preferred(spec, field),
        tolerations=node_needs.tolerations(spec, field),
        ports=node_needs.ports(spec, field),
        disks=node_needs.disks(spec.volumes, field),
    )


def _shape(
    request: DeviceRequest, node: NodeConstraints, pods: PodConstraints, field: str
) -> Shape:
    shape = Shape(
        asks=request.asks,
        devices=request.devices,
        node=node,
        pods=pods,
        node_policy=request.node_policy,
        device_policy=request.device_policy,
        device_weights=request.device_weights,
    )
    encoded = msgspec.json.encode(shape)
    if len(encoded) > SHAPE_BYTES_MAX:
        problem = f"has {len(encoded)} bytes of requests and constraints"
        raise ManifestError(field, None, problem, f"reduce them to at most {SHAPE_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(encoded, type=Shape)
    except msgspec.ValidationError as error:
        fix = "correct it"
        raise ManifestError(field, None, f"has an invalid request ({error})", fix) from None


CONTROL_NAMES: Final[frozenset[Control]] = frozenset(get_args(Control))
CONTROL_CHARS_MAX: Final = 64


# The agent adds to a container's environment and overrides it, so the ledger keeps the few
# variables that a container may set itself. It keeps nothing else, because there may be secrets in
# it.
def _controls(spec: kube.PodSpec, asks: Iterable[Ask]) -> Controls:
    asking = {ask.container for ask in asks}
    found: Controls = {}
    for container in (*spec.init_containers, *spec.containers):
        if container.name not in asking:
            continue
        said = {
            each.name: each.value
            for each in container.env
            if each.name in CONTROL_NAMES and 0 < len(each.value) <= CONTROL_CHARS_MAX
        }
        if said:
            found[container.name] = said
    return found


_SPEC_KEPT: Final = ("activeDeadlineSeconds", "overhead", "priority", "schedulerName")
_CONTAINER_KEPT: Final = ("name", "resources", "restartPolicy")
_GANG: Final = (gangs.GROUP, TASK, gangs.MIN_MEMBER)


def devices_only(document: dict[str, Any]) -> dict[str, Any]:
    """Return a pod's document with only what matters for its devices and amounts.

    It is for pods whose node a kube-scheduler chooses with our extender. That scheduler checks
    volumes, affinity, taints and priority classes, so we must not refuse a pod for errors in
    them."""
    metadata, spec = document.get("metadata"), document.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        return document
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict):
        kept = {key: value for key, value in annotations.items() if key not in _GANG}
        metadata = metadata | {"annotations": kept}
    lists = {
        kind: [
            _only(each, _CONTAINER_KEPT) if isinstance(each, dict) else each for each in spec[kind]
        ]
        for kind in ("containers", "initContainers")
        if isinstance(spec.get(kind), list)
    }
    return document | {"metadata": metadata, "spec": _only(spec, _SPEC_KEPT) | lists}


def _only(part: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: part[key] for key in keys if key in part}
