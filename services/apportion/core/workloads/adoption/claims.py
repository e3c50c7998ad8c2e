"""What a bound pod holds that the ledger does not have: its own word, turned into an event.

A pod that we bound says it in our annotation; one that another scheduler bound, in that one's. A
pod that asks for devices and says of none which it got has a claim without a holding: then nobody
knows, and so many are held that it may have (`core.ledger.unattributed_devices`). An annotation
counts only as the word of who bound the pod (its managed fields): our annotation on a pod that is
not ours is its author's, and so is any on a pod that its author put onto a node.

A pod of ours without devices has a claim as well, to its CPU and memory: so it may be evicted for
one of higher priority, whichever scheduler bound it. Invariant: any other claim is of a pod that
asks for devices."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from msgspec import structs

from apportion.core.devices.demand import Known
from apportion.core.workloads.adoption.placement_annotations import ATTEMPT, SHARES, read_shares
from apportion.core.workloads.adoption.recovery import recover, shares_of
from apportion.core.workloads.dialects import Container, ManifestError, nvidia
from apportion.core.workloads.dialects.amounts import Role
from apportion.core.workloads.dialects.dialect import BoundPod, Held
from apportion.core.workloads.dialects.listing import RECOVERS, claimed, count_names, families_of
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
ENDED = ("Succeeded", "Failed")
"""Phases of a pod that holds nothing any more."""
_ROLES: tuple[tuple[str, Role], ...] = (("initContainers", "init"), ("containers", "app"))

WRITERS: Final = frozenset(
    (
        "scheduler", "hami-scheduler", "vc-scheduler", "volcano-scheduler", "kube-scheduler",
        "gpu-admission", "gpu-manager", "nvidia-device-plugin", "device-plugin",
        "ascend-device-plugin", "volcano-vgpu-device-plugin", "volcano-device-plugin",
    )
)  # fmt: skip
"""Field managers of the schedulers and device plugins of HAMi, Volcano and gpu-manager: the names
of their programs."""
OURS: Final = frozenset[str]()
"""We write with the binding alone."""


class Wanted(NamedTuple):
    """How many devices of a family a container asks for."""

    container: str
    family: str
    devices: int


class Claim(NamedTuple):
    """A bound pod as it would be submitted, and what it holds: `shares`, or `held` while devices
    are named by number. Neither: nobody knows. `families` are those of the devices asked for, and
    `wanted` how many. `doubted` are annotations that say otherwise, and are nobody's word who may.
    `unclear`: the scheduler that bound the pod wrote what it holds, and that cannot be read."""

    submitted: PodSubmitted
    families: tuple[str, ...]
    wanted: tuple[Wanted, ...] = ()
    evidence: str = ""
    shares: tuple[Share, ...] | None = None
    held: tuple[Held, ...] = ()
    attempt: int = 0
    running: bool = False
    doubted: tuple[str, ...] = ()
    unclear: bool = False

    def on(self, node: str, devices: Mapping[str, Device], known: Known = ()) -> PodAdopted | None:
        """The event, with the node's devices by id; None while nobody knows what the pod holds.

        `known` are the ways in which cards may be cut (`knownMigGeometries`)."""
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
    """The claim of any pod; None where it is on no node, has ended, or is as `claim_of` says."""
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
    """The claim of a bound pod; None where it asks for no device, unless it is ours and readable.

    Whatever ResourceClaims it has are allocated by now, and no reason not to read it. `writers` are
    the field managers whose annotations are believed."""
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
    # The pod as it would be read without its node; None where it cannot be.
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
    found = recover(BoundPod(notes, init, containers, about.shape.asks, config.dialects))
    if found is None:
        return claim._replace(unclear=any(notes.get(key) for key in RECOVERS))
    return claim._replace(evidence=found.evidence, held=found.held)


def _doubted(document: dict[str, Any], writers: frozenset[str]) -> tuple[str, ...]:
    """The annotations that say what the pod holds, and are not the word of who bound it."""
    metadata, notes = document["metadata"], part(document, "metadata", "annotations")
    telling = [key for key in (SHARES, ATTEMPT, *RECOVERS) if key in notes]
    if not telling:
        return ()
    # A pod that a scheduler bound was made without its node, and got it by a binding.
    specs = [part(each, "fieldsV1", "f:spec") for _, each in entries(metadata, "managedFields")]
    if not any(specs) or any("f:nodeName" in spec for spec in specs):
        return tuple(telling)
    trusted = {SHARES: OURS, ATTEMPT: OURS}
    return tuple(
        key for key in telling if not _written_by(metadata, key, trusted.get(key, writers))
    )


def _wanted(
    document: dict[str, Any],
    about: PodSubmitted,
    families: tuple[str, ...],
    dialects: DialectConfig,
) -> tuple[Wanted, ...]:
    """How many devices each container asks for; of a pod that cannot be read, by the resources that
    count some, and one where none does."""
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
    """What our binder wrote, or nothing at all."""
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
    """The pod; of one that cannot be read, what it takes of its node."""
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
        node = NodeConstraints()  # the kubelet took what we cannot add up
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


def _own_of(shares: tuple[Share, ...], borrowers: Collection[str]) -> tuple[Share, ...]:
    """The shares without those of init containers on a device that another container has too, whose
    share there is as much more as all hold less than the init container does."""
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


def _asking(
    about: PodSubmitted,
    shares: tuple[Share, ...],
    held: tuple[Held, ...],
    devices: Mapping[str, Device],
) -> PodSubmitted:
    """The pod with an ask for every container that holds a share; some cannot be read as asks."""
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


# Whose word an annotation of a bound pod is: what the API server noted of who wrote which field.
#
# A pod's author may write any annotation on it, so one that says what the pod holds counts only
# where a scheduler bound the pod and wrote it. A binding leaves no mark in
# `metadata.managedFields`; a pod that was made with its node, or whose annotations came with it,
# does. Invariant: nothing is believed of a pod that was not bound by a binding, or of which the API
# server does not say who made it.
#
# That is as good as the API server's notes, which every account that may change a pod may change as
# well: the policies of `deploy/kubernetes/policies` are the wall, and this is what there is where
# they are not.


def _written_by(metadata: Mapping[str, Any], key: str, writers: frozenset[str]) -> bool:
    """Whether one of these wrote the annotation, or it came with the binding."""
    for _, entry in entries(metadata, "managedFields"):
        if f"f:{key}" in part(entry, "fieldsV1", "f:metadata", "f:annotations"):
            # The maker of the pod, by any name.
            made = "f:containers" in part(entry, "fieldsV1", "f:spec")
            if made or str(entry.get("manager", "")) not in writers:
                return False
    return True
