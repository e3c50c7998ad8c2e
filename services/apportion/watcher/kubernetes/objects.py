"""Decodes Kubernetes objects from the API server into small records.

Invariant: any pod gets a record. If parts of it cannot be read, the record has the problem."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Raw, Struct

from apportion.core.configuration import manifest_config
from apportion.core.workloads import kube
from apportion.core.workloads.adoption.claims import ENDED, WRITERS, Claim, claim_of
from apportion.core.workloads.adoption.placement_annotations import ATTEMPT, SHARES
from apportion.core.workloads.dialects import Container, ManifestError
from apportion.core.workloads.dialects.amounts import Role, quantity
from apportion.core.workloads.dialects.inventory import NodeFacts
from apportion.core.workloads.dialects.listing import claimed
from apportion.core.workloads.dialects.node_annotations import (
    registration,
    unhealthy_indexes,
    unsupported,
)
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.kinds.limits import extended_limits
from apportion.core.workloads.kinds.queues import VOLCANO_QUEUE, read_queue
from apportion.core.workloads.lint.typo_checks import (
    Suspect,
    of_annotations,
    of_owner,
    of_pod_group,
    of_queue,
)
from apportion.core.workloads.pods import affinity, node_needs
from apportion.core.workloads.pods.gangs import api_of, awaits_group
from apportion.core.workloads.pods.node_needs import node_amounts
from apportion.core.workloads.pods.template import ManifestConfig, devices_only
from apportion.core.workloads.reading import read_document
from apportion.core.workloads.schedulers import Chooser, SchedulerNames, scheduler_names
from apportion.runtime.kube.watch import number
from apportion.watcher.kubernetes.ineffective import Subject
from apportion_schemas import (
    BudgetObserved,
    Configuration,
    DevicesRegistered,
    Disk,
    HostPort,
    NamespaceObserved,
    NodeConstraints,
    NodeObserved,
    PodGroupObserved,
    PodTerm,
    QueueObserved,
    QuotaObserved,
    Taint,
)
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import CPU_MILLI_MAX, HOST_MEMORY_MIB_MAX

MIB = 1 << 20
NOTHING = NodeConstraints()
_PLAIN = ("cpu", "memory", "pods")
_EFFECTS: dict[str, Any] = {each: each for each in ("NoSchedule", "PreferNoSchedule", "NoExecute")}
TEMPLATES_MAX = 2_000
_NO_RESOURCES = Raw(b"{}")
_NO_LIST = Raw(b"[]")
_NOT_GIVEN = (b"{}", b"{}")
# Resources of a running pod that can be resized, with the unit in which they are summed.
_RESIZED = {"cpu": (1000, "m"), "memory": (1, "")}
_MINDED_VOLUMES = tuple(
    f'"{kind}"'.encode()
    for kind in (
        "persistentVolumeClaim",
        "ephemeral",
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "iscsi",
        "rbd",
    )
)
_CLAIMS = b'"resourceClaims"'
_NOTES = "metadata.annotations"
NAME_LABEL = "kubernetes.io/metadata.name"  # on every namespace, so the ledger does not need it
_TOKEN_VOLUME = re.compile(rb"kube-api-access-[a-z0-9]{5}")


class _Kube(Struct, frozen=True, rename="camel"):
    """Base class for parts of Kubernetes objects; decodes only the declared fields."""


class _Meta(_Kube, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Named(_Kube, frozen=True):
    metadata: _Meta


class _Container(_Kube, frozen=True):
    name: str = ""
    resources: Raw = _NO_RESOURCES
    ports: Raw = _NO_LIST
    restart_policy: str = ""


class _Gate(_Kube, frozen=True):
    name: str


class _PodSpec(_Kube, frozen=True):
    node_name: str = ""
    scheduler_name: str = ""
    containers: list[_Container] = []
    init_containers: list[_Container] | None = None
    overhead: Raw = _NO_RESOURCES
    resources: Raw = _NO_RESOURCES
    affinity: Raw = _NO_RESOURCES
    host_network: bool = False
    scheduling_gates: list[_Gate] | None = None
    volumes: Raw = _NO_LIST


class _Given(_Kube, frozen=True):
    """The resources that a container or pod has now, and those that the kubelet has allocated."""

    name: str = ""
    resources: Raw = _NO_RESOURCES
    allocated_resources: Raw = _NO_RESOURCES

    @property
    def parts(self) -> tuple[bytes, bytes]:
        """Return the resources in effect and the allocated resources, both as undecoded JSON."""
        return bytes(self.resources), bytes(self.allocated_resources)


class _PodCondition(_Kube, frozen=True):
    type: str = ""
    reason: str = ""


class _PodStatus(_Given, frozen=True):
    phase: str = ""
    reason: str = ""
    container_statuses: list[_Given] | None = None
    init_container_statuses: list[_Given] | None = None
    conditions: list[_PodCondition] | None = None


class _Pod(_Named, frozen=True):
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


class _Taint(_Kube, frozen=True):
    key: str
    effect: str
    value: str = ""


class _NodeSpec(_Kube, frozen=True):
    unschedulable: bool = False
    taints: list[_Taint] | None = None


class _Condition(_Kube, frozen=True):
    type: str
    status: str


class _NodeStatus(_Kube, frozen=True):
    allocatable: dict[str, Any] | None = None
    capacity: dict[str, Any] | None = None
    conditions: list[_Condition] | None = None


class _Node(_Named, frozen=True):
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


class _BudgetSpec(_Kube, frozen=True):
    selector: kube.LabelSelector | None = None


class _BudgetStatus(_Kube, frozen=True):
    disruptions_allowed: int = 0


class _Budget(_Named, frozen=True):
    spec: _BudgetSpec = _BudgetSpec()
    status: _BudgetStatus = _BudgetStatus()


class _MetaParts(_Kube, frozen=True):
    annotations: Raw = Raw(b"")
    labels: Raw = Raw(b"")
    owner_references: Raw = Raw(b"")
    namespace: Raw = Raw(b"")


class _PodParts(_Kube, frozen=True):
    metadata: _MetaParts
    spec: Raw


class _Resources(_Kube, frozen=True):
    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None


_decode_pod = from_outside(msgspec.json.Decoder(_Pod).decode)
_decode_node = from_outside(msgspec.json.Decoder(_Node).decode)
_decode_resources = from_outside(msgspec.json.Decoder(_Resources | None).decode)
_decode_parts = from_outside(msgspec.json.Decoder(_PodParts).decode)
_decode_amounts = from_outside(msgspec.json.Decoder(dict[str, Any] | None).decode)
_decode_ports = from_outside(msgspec.json.Decoder(list[kube.Port] | None).decode)
_decode_affinity = from_outside(msgspec.json.Decoder(kube.Affinity | None).decode)
_decode_budget = from_outside(msgspec.json.Decoder(_Budget).decode)
_decode_named = from_outside(msgspec.json.Decoder(_Named).decode)
_decode_any = from_outside(msgspec.json.Decoder(dict[str, Any]).decode)


@dataclass(slots=True, eq=False)
class PodView:
    """A pod of the cluster, as the watcher compares it with the ledger."""

    uid: str
    namespace: str
    name: str
    version: int
    ours: bool
    extended: bool = False  # a kube-scheduler with our extender chooses its node
    node: str = ""
    ended: str = ""  # the phase in which it ended
    deleting: bool = False
    amounts: NodeConstraints = NOTHING  # CPU, memory and host ports on its node
    labels: dict[str, str] = field(default_factory=dict)
    gates: tuple[str, ...] = ()
    ports: tuple[HostPort, ...] = ()  # like the next three, set if it is on a node
    anti_affinity: tuple[PodTerm, ...] = ()
    disks: tuple[Disk, ...] = ()
    volume_claims: tuple[str, ...] = ()
    shares: str = ""
    attempt: str = ""
    draft: PodDraft | None = None  # or `problem`, while it needs a placement from us
    problem: ManifestError | None = None
    ungrouped: bool = False  # KAI's pod-grouper, where it runs, has not named its PodGroup yet
    claim: Claim | None = None  # the devices in its annotations, if bound and not in the ledger
    unread: bool = False  # the ledger had it, so `claim` was not read


class ObjectReader:
    """Reads Kubernetes objects for one watcher, by the ledger's configuration."""

    # Adds what its ResourceClaims request to a pod's draft, if these are read.
    claimed: Callable[[bytes, PodDraft], PodDraft | None] | None = None
    # Called with the fields of an object that have no effect here.
    ineffective: Callable[[Subject, Iterable[Suspect]], None] = staticmethod(lambda *_: None)

    def __init__(
        self,
        schedulers: frozenset[str],
        config: ManifestConfig,
        *,
        knows: Callable[[str], bool] = lambda _: False,
        writers: frozenset[str] = WRITERS,
    ) -> None:
        # Field managers whose annotations are trusted on pods that others bound.
        self._writers = writers
        self._given = schedulers
        self._names = SchedulerNames(schedulers)
        self._config = config
        self._knows = knows  # True if the ledger has the pod of a uid
        self._drafts: dict[tuple[bytes, ...], PodDraft] = {}

    def configure(self, configuration: Configuration) -> None:
        """Use this configuration from now on, including its scheduler names."""
        config = manifest_config(configuration)
        claims = self.claimed is not None
        self._config = msgspec.structs.replace(config, resource_claims=claims)
        self._drafts.clear()
        self._names = scheduler_names(configuration, self._given)

    def pod(self, raw: bytes, entries: Mapping[str, PodView]) -> tuple[str, PodView | None, int]:
        """Return a pod's uid, its PodView (if any) and its resourceVersion."""
        pod = _decode_pod(raw)
        meta = pod.metadata
        before = entries.get(meta.uid)
        return meta.uid, self._pod(pod, raw, before), number(meta.resource_version)

    def _pod(self, pod: _Pod, raw: bytes, before: PodView | None) -> PodView | None:
        meta, spec = pod.metadata, pod.spec
        notes = meta.annotations or {}
        chooser = self._names.chooser(spec.scheduler_name)
        extended = chooser is Chooser.EXTENDED and self._asks(spec)
        view = PodView(
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            version=number(meta.resource_version),
            ours=chooser is Chooser.US or extended,
            extended=extended,
            node=spec.node_name,
            deleting=meta.deletion_timestamp is not None,
            labels=meta.labels or {},
            gates=tuple(dict.fromkeys(gate.name for gate in spec.scheduling_gates or ())),
            shares=notes.get(SHARES, ""),
            attempt=notes.get(ATTEMPT, ""),
        )
        if pod.status.phase in ENDED:
            view.ended = f"{pod.status.phase}: {pod.status.reason}".rstrip(": ")
            return view if view.ours or self._knows(view.uid) else None
        view.amounts = self._amounts(spec, pod.status)
        if view.node:
            sidecars = (c for c in spec.init_containers or () if _init_role(c) == "sidecar")
            ports = (bytes(each.ports) for each in (*spec.containers, *sidecars))
            of_spec = (bytes(spec.affinity), *ports)
            view.ports, view.anti_affinity = _minded(
                of_spec, spec.host_network, meta.namespace, tuple(sorted(view.labels.items()))
            )
            volumes = bytes(spec.volumes)
            if any(kind in volumes for kind in _MINDED_VOLUMES):
                found = node_needs.mounted(msgspec.json.decode(volumes))
                view.disks = found.disks
                view.volume_claims = node_needs.whole_names(meta.name, found.claims)
            view.unread = self._knows(view.uid)
            if not view.unread and (view.ours or view.shares or self._asks(spec)):
                document = {"apiVersion": "v1", "kind": "Pod"} | _decode_any(raw)
                view.claim = claim_of(document, self._config, ours=view.ours, writers=self._writers)
            return view
        if not view.ours:
            return None
        if before is not None and before.draft is not None and self._knows(view.uid):
            view.draft = before.draft  # what may change is reported separately
        elif not view.deleting:
            view.ungrouped = awaits_group(spec.scheduler_name, notes)
            self._read(raw, view, chooser=spec.scheduler_name if extended else "")
            if notes and not extended:
                about = Subject("v1", "Pod", meta.namespace, meta.name, meta.uid)
                self.ineffective(about, of_annotations(notes, _NOTES))
        return view

    def _read(self, raw: bytes, view: PodView, *, chooser: str) -> None:
        pod = _decode_parts(raw)
        meta = pod.metadata
        parts = (meta.annotations, meta.labels, meta.owner_references, meta.namespace)
        # The API server names the token's volume `kube-api-access-` and five characters.
        template = (_TOKEN_VOLUME.sub(b"", bytes(pod.spec)), *map(bytes, parts))
        draft = self._drafts.get(template)
        if draft is None:
            document = {"apiVersion": "v1", "kind": "Pod"} | _decode_any(raw)
            try:
                if chooser:
                    # Another scheduler chooses the node: only devices and volumes matter.
                    config = msgspec.structs.replace(self._config, gangs=False)
                    (draft,) = read_document(devices_only(document), config).pods
                    found = node_needs.mounted(document["spec"].get("volumes"))
                    node = msgspec.structs.replace(draft.shape.node, disks=found.disks)
                    shape = msgspec.structs.replace(draft.shape, node=node)
                    draft = msgspec.structs.replace(draft, shape=shape, volume_claims=found.claims)
                else:
                    (draft,) = read_document(document, self._config).pods
            except ManifestError as error:
                view.problem = error
                return
            if len(self._drafts) >= TEMPLATES_MAX:
                self._drafts.clear()
            self._drafts[template] = draft
        view.draft = msgspec.structs.replace(draft, name=view.name, chooser=chooser)
        if self.claimed is not None and _CLAIMS in template[0] and not chooser:
            try:
                view.draft = self.claimed(raw, view.draft)
            except ManifestError as error:
                view.draft, view.problem = None, error

    def _amounts(self, spec: _PodSpec, status: _PodStatus) -> NodeConstraints:
        found = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        given = {each.name: each.parts for each in found}
        parts = [
            (bytes(c.resources), _init_role(c), given.get(c.name, _NOT_GIVEN))
            for c in spec.init_containers or ()
        ]
        parts += [
            (bytes(c.resources), "app", given.get(c.name, _NOT_GIVEN)) for c in spec.containers
        ]
        of_pod = (bytes(spec.overhead), bytes(spec.resources), status.parts)
        infeasible = any(
            each.type == "PodResizePending" and each.reason == "Infeasible"
            for each in status.conditions or ()
        )
        return _amounts(tuple(parts), of_pod, claimed(self._config.dialects), infeasible)

    def _asks(self, spec: _PodSpec) -> bool:
        parts = (*spec.containers, *(spec.init_containers or ()))
        ours = claimed(self._config.dialects)
        return any(_names_any(bytes(part.resources), ours) for part in parts)

    def registered(self, raw: bytes) -> DevicesRegistered:
        """Read the devices that another system's device plugin has registered on a node."""
        node = _decode_node(raw)
        about, status = node.metadata, node.status
        amounts, capacity = (
            {name: _whole(value) for name, value in (given or {}).items()}
            for given in (status.allocatable, status.capacity)
        )
        found = registration(
            NodeFacts(
                about.name, about.annotations or {}, about.labels or {}, amounts,
                self._config.dialects, capacity,
            )
        )  # fmt: skip
        return DevicesRegistered(
            node=node.metadata.name,
            plugin=found.plugin,
            devices=found.devices,
            problem=found.problem,
            version=number(node.metadata.resource_version),
        )

    def node(self, raw: bytes) -> NodeObserved:
        """Read a node, without what its pods use. An unreadable amount counts as zero."""
        node = _decode_node(raw)
        allocatable = node.status.allocatable or {}
        ours = claimed(self._config.dialects)
        extended = {
            name: _whole(amount)
            for name, amount in allocatable.items()
            if name not in _PLAIN and name not in ours
        }
        conditions = {c.type: c.status for c in node.status.conditions or ()}
        notes, labels = node.metadata.annotations or {}, node.metadata.labels or {}
        # Their plugin would wait for annotations that Apportion does not write.
        if words := tuple(f"{word}-" for word in unsupported(notes).values()):
            for name in tuple(extended):
                if f"{name}-".partition("/")[2].startswith(words):
                    del extended[name]
        return NodeObserved(
            node=node.metadata.name,
            version=number(node.metadata.resource_version),
            ready=conditions.get("Ready") == "True",
            unschedulable=node.spec.unschedulable,
            cpu_milli=min(_whole(allocatable.get("cpu", 0), 1000), CPU_MILLI_MAX),
            memory_mib=min(_whole(allocatable.get("memory", 0)) // MIB, HOST_MEMORY_MIB_MAX),
            pods=_whole(allocatable.get("pods", 0)),
            extended={name: amount for name, amount in sorted(extended.items()) if amount},
            labels=labels,
            taints=tuple(
                Taint(key=t.key, effect=_EFFECTS.get(t.effect, "NoSchedule"), value=t.value)
                for t in node.spec.taints or ()
            ),
            unhealthy_indexes=unhealthy_indexes(notes),
        )

    def group(self, raw: bytes, api_version: str) -> tuple[PodGroupObserved, bool]:
        """Return a PodGroup, and True if Volcano waits to admit it. Raises ManifestError."""
        document = _decode_any(raw) | {"apiVersion": api_version, "kind": "PodGroup"}
        meta = document["metadata"]
        notes = meta.get("annotations") or {}
        of_notes = (*of_annotations(notes, _NOTES), *of_owner(notes, _NOTES))
        found = (*of_pod_group(document.get("spec") or {}), *of_notes)
        self.ineffective(_subject(api_version, "PodGroup", meta), found)
        (group,) = read_document(document, self._config).groups
        phase = (document.get("status") or {}).get("phase", "")
        return group, not api_of(group.group) and phase in {"", "Pending"}

    def queue(self, raw: bytes, kind: tuple[str, str] = VOLCANO_QUEUE) -> QueueObserved:
        """Read a Queue of Volcano or KAI. Raises ManifestError."""
        document = _decode_any(raw) | dict(zip(("apiVersion", "kind"), kind, strict=True))
        self.ineffective(_subject(*kind, document["metadata"]), of_queue(document))
        return read_queue(document)

    def quota(self, raw: bytes) -> QuotaObserved | None:
        """Read a ResourceQuota, or None without extended resources. Raises ManifestError."""
        document = _decode_any(raw)
        meta, hard = document["metadata"], extended_limits(document)
        if not hard:
            return None
        return QuotaObserved(
            namespace=meta["namespace"],
            quota=meta["name"],
            hard=hard,
            version=number(meta["resourceVersion"]),
        )

    def budget(self, raw: bytes) -> BudgetObserved:
        """Read a PodDisruptionBudget. Raises ManifestError if the selector cannot be read."""
        found = _decode_budget(raw)
        meta, selector = found.metadata, found.spec.selector
        return BudgetObserved(
            namespace=meta.namespace,
            budget=meta.name,
            selector=affinity.expressions(selector, "spec.selector") if selector else (),
            allowed=max(found.status.disruptions_allowed, 0),
            version=number(meta.resource_version),
        )


def _subject(api_version: str, kind: str, meta: Mapping[str, Any]) -> Subject:
    uid, namespace = meta.get("uid", ""), meta.get("namespace", "")
    return Subject(api_version, kind, namespace, meta["name"], uid)


def _init_role(container: _Container) -> Role:
    return "sidecar" if container.restart_policy == "Always" else "init"


@lru_cache(maxsize=8192)
def _amounts(
    parts: tuple[tuple[bytes, Role, tuple[bytes, bytes]], ...],
    of_pod: tuple[bytes, bytes, tuple[bytes, bytes]],
    ours: frozenset[str],
    infeasible: bool,  # noqa: FBT001 - part of the cache key
) -> NodeConstraints:
    """Return the resources that a pod uses on its node; cached for pods of the same template.

    `infeasible` is True if the node can never do the resize that the spec requests."""
    overhead, resources, given_to_pod = of_pod
    containers = []
    try:
        extra = _decode_any(overhead)
        for i, (raw, role, given) in enumerate(parts):
            found = _resized(raw, given, infeasible=infeasible)
            at = f"spec.containers[{i}]"
            containers.append(Container(str(i), at, found.limits or {}, found.requests or {}, role))
        whole = _decode_resources(resources) or _Resources()
        if whole.requests:
            whole = _resized(resources, given_to_pod, infeasible=infeasible, without=extra)
        return node_amounts(
            containers,
            extra,
            whole=Container("", "spec", whole.limits or {}, whole.requests or {}),
            field="spec",
            claimed=ours,
        )
    except (ManifestError, msgspec.MsgspecError):
        return NOTHING  # the API server accepted what we cannot add up; the kubelet decides


def _resized(
    raw: bytes,
    given: tuple[bytes, bytes],
    *,
    infeasible: bool,
    without: Mapping[str, object] = MappingProxyType({}),
) -> _Resources:
    """Return the resources of a container or pod during a resize.

    For each resource, it is the larger of the spec's amount and the amount in the kubelet's status,
    or the status alone if the resize is infeasible. kube-scheduler 1.36 does the same. Version 1.37
    first adds up the containers, so it counts less while one container grows and another shrinks.
    `without` is the pod's overhead. It is subtracted from the status, which includes it."""
    spec = _decode_resources(raw) or _Resources()
    if given == _NOT_GIVEN:
        return spec
    actual = (_decode_resources(given[0]) or _Resources()).requests or {}
    allocated = _decode_amounts(given[1]) or {}
    limits, requests = dict(spec.limits or {}), dict(spec.requests or {})
    for name, (factor, unit) in _RESIZED.items():
        found = [
            quantity(each[name], name) - quantity(without.get(name, 0), name)
            for each in (actual, allocated)
            if name in each
        ]
        wanted = requests.get(name, limits.get(name))
        if found and wanted is not None and not infeasible:
            found.append(quantity(wanted, name))
        if found:
            requests[name] = f"{math.ceil(max(*found, Fraction()) * factor)}{unit}"
            limits.pop(name, None)  # the spec's limit may be lower
    return _Resources(limits, requests)


@lru_cache(maxsize=8192)
def _minded(
    of_spec: tuple[bytes, ...],
    host_network: bool,  # noqa: FBT001 - part of the cache key
    namespace: str,
    labels: tuple[tuple[str, str], ...],
) -> tuple[tuple[HostPort, ...], tuple[PodTerm, ...]]:
    """Return host ports and required anti-affinity of a pod that another scheduler placed.

    Cached, because pods of one template are equal. Unreadable values are ignored, because the API
    server and the other scheduler accepted them."""
    wanted, *ports = of_spec
    try:
        containers = [
            kube.ContainerSpec(name="c", ports=_decode_ports(each) or []) for each in ports
        ]
        spec = kube.PodSpec(
            containers=containers,
            affinity=_decode_affinity(wanted) or kube.Affinity(),
            host_network=host_network,
        )
        own = affinity.Own(namespace, dict(labels))
        of_others = affinity.wishes(spec, "spec", own)
        return node_needs.ports(spec, "spec"), of_others.anti_affinity
    except (ManifestError, msgspec.MsgspecError):
        return (), ()


@lru_cache(maxsize=8192)
def _names_any(resources: bytes, names: frozenset[str]) -> bool:
    found = _decode_resources(resources) or _Resources()
    return not names.isdisjoint((*(found.limits or ()), *(found.requests or ())))


def _whole(amount: object, factor: int = 1) -> int:
    try:
        return max(math.floor(quantity(amount, "amount") * factor), 0)
    except ManifestError:
        return 0


def read_namespace(raw: bytes) -> NamespaceObserved | None:
    """Read a namespace, or return None if no `namespaceSelector` could match its labels."""
    meta = _decode_named(raw).metadata
    labels = {key: value for key, value in (meta.labels or {}).items() if key != NAME_LABEL}
    version = number(meta.resource_version)
    return (
        NamespaceObserved(namespace=meta.name, labels=labels, version=version) if labels else None
    )
