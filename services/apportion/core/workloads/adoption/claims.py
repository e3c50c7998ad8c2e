"""Build the event that adds a bound pod to the ledger, from the pod's annotations.

The pod's author can write any annotation. So an annotation counts only if its managed fields show
that a scheduler or device plugin wrote it. If no trusted annotation names the devices of a pod, the
pod is charged as many devices as it requests (`handlers.unattributed_devices`). Invariant: an event
is built only for a pod that requests devices, or names our scheduler."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from msgspec import structs

from apportion.core.devices.demand import Geometries
from apportion.core.workloads.adoption.placement_annotations import ATTEMPT, SHARES, read_shares
from apportion.core.workloads.adoption.recovery import recover, shares_of
from apportion.core.workloads.dialects import Container, ManifestError, nvidia
from apportion.core.workloads.dialects.amounts import Role
from apportion.core.workloads.dialects.dialect import BoundPod, Held
from apportion.core.workloads.dialects.listing import (
    CONSULTED,
    RECOVERS,
    claimed,
    count_names,
    families_of,
)
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.dialects.reading import NO_DIALECT
from apportion.core.workloads.document import entries, part
from apportion.core.workloads.kinds.drafts import PodDraft, submitted
from apportion.core.workloads.pods import node_needs
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.core.workloads.reading import read_document
from apportion_schemas import Ask, Device, NodeConstraints, PodAdopted, PodSubmitted, Shape, Share
from apportion_schemas.quantities import COUNT_MAX, NAME_MAX

ATTEMPT_DIGITS_MAX = 9
ENDED = ("Succeeded", "Failed")  # phases of a pod that uses nothing any more
_ROLES: tuple[tuple[str, Role], ...] = (("initContainers", "init"), ("containers", "app"))

# field managers (program names) of the schedulers and device plugins of HAMi, Volcano and
# gpu-manager
WRITERS: Final = frozenset(
    (
        "scheduler", "hami-scheduler", "vc-scheduler", "volcano-scheduler", "kube-scheduler",
        "gpu-admission", "gpu-manager", "nvidia-device-plugin", "device-plugin",
        "ascend-device-plugin", "volcano-vgpu-device-plugin", "volcano-device-plugin",
    )
)  # fmt: skip
OURS: Final = frozenset[str]()  # we write only with the binding, which leaves no field manager


class Wanted(NamedTuple):
    """How many devices of one family a container requests."""

    container: str
    family: str
    devices: int


class Claim(NamedTuple):
    """A bound pod that the ledger lacks: its submission, and the devices that it uses.

    The devices are in `shares`, or in `held` while some are known only by index. If both are empty,
    the devices are unknown. If `unclear`, a trusted annotation names the devices, but cannot be
    read."""

    submitted: PodSubmitted
    families: tuple[str, ...]
    wanted: tuple[Wanted, ...] = ()
    evidence: str = ""
    shares: tuple[Share, ...] | None = None
    held: tuple[Held, ...] = ()
    attempt: int = 0
    running: bool = False
    doubted: tuple[str, ...] = ()  # annotations that are not trusted
    unclear: bool = False

    def on(
        self, node: str, devices: Mapping[str, Device], known: Geometries = ()
    ) -> PodAdopted | None:
        """Return the event that adopts the pod on this node; None while its devices are unknown."""
        shares = self.shares
        if shares is None and self.held:
            shares = shares_of(self.held, self.submitted.shape.asks, devices, known)
        if shares is None:
            return None
        asking = {ask.container for ask in self.submitted.shape.asks}
        borrowing = {ask.container for ask in self.submitted.borrowing} - asking
        shares = _own_of(shares, borrowing)
        about = _asking(self.submitted, shares, self.held, devices)
        return PodAdopted(
            pod=about.uid, node=node, submitted=about,
            attempt=self.attempt, shares=shares, evidence=self.evidence, running=self.running,
        )  # fmt: skip


def bound_claim(
    pod: dict[str, Any],
    config: ManifestConfig,
    *,
    schedulers: Collection[str],
    writers: frozenset[str] = WRITERS,
) -> Claim | None:
    """Return the `Claim` of a pod, as `claim_of` does; None if the pod has no node or has ended."""
    spec, status = pod["spec"], pod.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ENDED:
        return None
    document = {"apiVersion": "v1", "kind": "Pod"} | pod
    ours = spec.get("schedulerName", "") in schedulers
    return claim_of(document, config, ours=ours, writers=writers)


def claim_of(
    document: dict[str, Any],
    config: ManifestConfig,
    *,
    ours: bool,
    writers: frozenset[str] = WRITERS,
) -> Claim | None:
    """Return the `Claim` of a bound pod; None if another scheduler's pod requests no device.

    None also if a pod of ours cannot be read. Only annotations of the field managers `writers` are
    trusted."""
    config = structs.replace(config, resource_claims=True)
    names = {
        name
        for _, container in _containers(document)
        for amounts in _resources(container)
        for name, amount in amounts.items()
        if str(amount) != "0"
    } & claimed(config.dialects)
    doubted = _doubted(document, writers)
    notes = {
        key: text
        for key, text in part(document, "metadata", "annotations").items()
        if key not in doubted
    }
    if not names and not ours:
        return None
    # Read the pod as if it had no node yet; None if it cannot be read.
    unbound = {name: value for name, value in document["spec"].items() if name != "nodeName"}
    how = config if ours else structs.replace(config, gangs=False)
    try:
        (draft,) = read_document(document | {"spec": unbound}, how).pods
    except ManifestError:
        draft = None
    unknown = draft is None or bool(document["spec"].get("resourceClaims"))
    if not names and unknown and not notes.get(SHARES):
        return None
    about = _submitted(document, draft, config, ours=ours)
    families = tuple(sorted({ask.family for ask in about.shape.asks}))
    families = families or families_of(names, config.dialects)
    claim = Claim(
        about,
        families,
        _wanted(document, about, families, config.dialects),
        running=not ours or (document.get("status") or {}).get("phase") == "Running",
        doubted=doubted,
    )
    if ours and (notes.get(SHARES) or not names):
        return _own(claim, notes)
    init, containers = (
        [container["name"] for kind, container in _containers(document) if kind == role]
        for role in ("init", "app")
    )
    asks = about.shape.asks
    limits = {
        each["name"]: tuple(_resources(each)[0])
        for role, each in _containers(document)
        if role == "app"
    }
    bound = BoundPod(notes, init, containers, asks, config.dialects, about.borrowing, limits)
    if (found := recover(bound)) is None:
        return claim._replace(unclear=any(notes.get(key) for key in RECOVERS))
    return claim._replace(evidence=found.evidence, held=found.held)


def _doubted(document: dict[str, Any], writers: frozenset[str]) -> tuple[str, ...]:
    metadata, notes = document["metadata"], part(document, "metadata", "annotations")
    telling = [key for key in (SHARES, ATTEMPT, *RECOVERS, *CONSULTED) if key in notes]
    if not telling:
        return ()
    # A pod bound by a scheduler was created without a node, and got it by a binding.
    specs = [part(each, "fieldsV1", "f:spec") for _, each in entries(metadata, "managedFields")]
    if not any(specs) or any("f:nodeName" in spec for spec in specs):
        return tuple(telling)
    # Another annotation counts if only trusted managers wrote it, or it came with the binding,
    # which leaves no mark in `metadata.managedFields`. Every account that may change a pod may
    # change these fields too: the policies of `deploy/kubernetes/policies` prevent that, and this
    # check is for clusters without them.
    doubted = set()
    for _, entry in entries(metadata, "managedFields"):
        created = "f:containers" in part(entry, "fieldsV1", "f:spec")  # by any manager
        written = part(entry, "fieldsV1", "f:metadata", "f:annotations")
        for key in telling:
            trusted = OURS if key in (SHARES, ATTEMPT) else writers
            if f"f:{key}" in written and (created or str(entry.get("manager", "")) not in trusted):
                doubted.add(key)
    return tuple(key for key in telling if key in doubted)


def _wanted(
    document: dict[str, Any],
    about: PodSubmitted,
    families: tuple[str, ...],
    dialects: DialectConfig,
) -> tuple[Wanted, ...]:
    # A pod that cannot be read requests what its counting resources say, or else one device.
    if about.shape.asks:
        return tuple(Wanted(ask.container, ask.family, ask.count) for ask in about.shape.asks)
    counting, names = count_names(dialects), claimed(dialects)
    found = []
    for _, container in _containers(document) if families else ():
        limits, requests = _resources(container)
        amounts = {name: str(amount) for name, amount in (requests | limits).items()}
        if names & amounts.keys():
            counts = [int(t) for n, t in amounts.items() if n in counting and t.isdecimal()]
            count = min(max(counts, default=1), COUNT_MAX)
            found.append(Wanted(container["name"], families[0], count))
    return tuple(each for each in found if each.devices)


def _own(claim: Claim, notes: Mapping[str, str]) -> Claim:
    try:
        shares = read_shares(notes)
    except ManifestError:
        return claim
    text = notes.get(ATTEMPT, "")
    known = text.isascii() and text.isdecimal() and len(text) <= ATTEMPT_DIGITS_MAX
    evidence = SHARES if notes.get(SHARES) else ""
    running = claim.running or not shares
    attempt = int(text) if known else 0
    return claim._replace(evidence=evidence, shares=shares, attempt=attempt, running=running)


def _submitted(
    document: dict[str, Any], draft: PodDraft | None, config: ManifestConfig, *, ours: bool
) -> PodSubmitted:
    meta = document["metadata"]
    if draft is not None:
        about = submitted(draft, meta["uid"])
        return about if ours else structs.replace(about, task="")
    containers = [
        Container(each["name"], "spec", *_resources(each), role)
        for role, each in _containers(document)
    ]
    overhead, devices = document["spec"].get("overhead") or {}, claimed(config.dialects)
    try:
        node = node_needs.node_amounts(containers, overhead, field="spec", claimed=devices)
    except ManifestError:
        node = NodeConstraints()  # the kubelet accepted amounts that we cannot add up
    mounted = node_needs.mounted(document["spec"].get("volumes"))
    name = meta["name"][:NAME_MAX]
    return PodSubmitted(
        uid=meta["uid"],
        namespace=meta.get("namespace", "default"),
        name=name,
        shape=Shape(node=structs.replace(node, disks=mounted.disks)),
        dialect=NO_DIALECT,
        volume_claims=node_needs.whole_names(name, mounted.claims),
    )


def _containers(document: dict[str, Any]) -> Iterator[tuple[Role, dict[str, Any]]]:
    for field, role in _ROLES:
        for container in document["spec"].get(field) or ():
            yield role, container


def _resources(container: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    resources = container.get("resources")
    return part(resources, "limits"), part(resources, "requests")


# Merge the shares of init containers into the share that another container has on the same device:
# it grows by what the init container has more than all others there together.
def _own_of(shares: tuple[Share, ...], borrowers: Collection[str]) -> tuple[Share, ...]:
    own = [share for share in shares if share.container not in borrowers]
    held = {share.device: at for at, share in reversed([*enumerate(own)])}
    for share in shares:
        at = held.get(share.device)
        if share.container not in borrowers or at is None or share.instance or share.template:
            continue
        first, every = own[at], [each for each in own if each.device == share.device]
        memory_mib = max(share.memory_mib - sum(each.memory_mib for each in every), 0)
        cores = max(share.cores - sum(each.cores for each in every), 0)
        more = {"memory_mib": first.memory_mib + memory_mib, "cores": first.cores + cores}
        own[at] = structs.replace(first, **more)
    return (*own, *(s for s in shares if s.container in borrowers and s.device not in held))


# Add an ask for every container that has a share: some pods cannot be read as asks.
def _asking(
    about: PodSubmitted,
    shares: tuple[Share, ...],
    held: tuple[Held, ...],
    devices: Mapping[str, Device],
) -> PodSubmitted:
    asking = {ask.container for ask in about.shape.asks}
    missing = [share for share in shares if share.container not in asking]
    if not missing:
        return about
    families = {each.container: each.family for each in held}
    counts = Counter(share.container for share in missing)
    asks = list(about.shape.asks)
    for name, share in {each.container: each for each in missing}.items():
        known = devices.get(share.device)
        family = families.get(name) or (known.family if known else nvidia.FAMILY)
        count = min(counts[name], COUNT_MAX)
        asks.append(Ask(container=name, family=family, count=count, memory_mib=share.memory_mib))
    return structs.replace(about, shape=structs.replace(about.shape, asks=tuple(asks)))
