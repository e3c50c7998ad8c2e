"""Read which ResourceClaims a pod references, and what the pod requests through them.

For a claim template, Kubernetes creates the claim after the pod and names it in the pod's status.
Invariant: either all claims of a pod are read, or none."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, structs

from apportion.core.dra.names import CLASS, DIALECT
from apportion.core.dra.requests import ResourceClaim, Wanted, wanted
from apportion.core.workloads.document import ManifestError
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.kube import Kube
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import CONTAINERS_MAX

CLAIMS_MAX = 64
_IN_PODS = "spec.resourceClaims"


class _Reference(Kube, frozen=True):
    name: str = ""
    resource_claim_name: str = ""


class _Used(Kube, frozen=True):
    name: str = ""
    request: str = ""


class _Resources(Kube, frozen=True):
    claims: Annotated[list[_Used], Meta(max_length=CLAIMS_MAX)] = []


class _Container(Kube, frozen=True):
    resources: _Resources = _Resources()
    restart_policy: str = ""


class _Spec(Kube, frozen=True):
    node_name: str = ""
    resource_claims: Annotated[list[_Reference], Meta(max_length=CLAIMS_MAX)] = []
    containers: Annotated[list[_Container], Meta(max_length=CONTAINERS_MAX)] = []
    init_containers: Annotated[list[_Container], Meta(max_length=CONTAINERS_MAX)] = []


class _Status(Kube, frozen=True):
    resource_claim_statuses: Annotated[list[_Reference], Meta(max_length=CLAIMS_MAX)] = []


class _Metadata(Kube, frozen=True):
    uid: str = ""
    namespace: str = ""


class _Pod(Kube, frozen=True):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()


_decode = from_outside(msgspec.json.Decoder(_Pod).decode)


class Named(NamedTuple):
    """A claim that a pod references; `name` is the pod's name for it."""

    name: str
    claim: str  # the claim's own name; empty until it exists
    made: bool  # by a template


class PodClaims:
    """The ResourceClaims that one pod references, read from its object in the API server."""

    def __init__(self, raw: bytes) -> None:
        """Decode the pod. Raises ManifestError if it has too many claims or containers."""
        try:
            pod = _decode(raw)
        except msgspec.MsgspecError as error:
            fix = f"use at most {CLAIMS_MAX} claims and {CONTAINERS_MAX} containers"
            raise ManifestError(_IN_PODS, None, f"is not valid ({error})", fix) from None
        self.pod = pod.metadata.uid
        self.namespace = pod.metadata.namespace
        self.node = pod.spec.node_name
        made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
        self.named = [
            Named(
                each.name,
                each.resource_claim_name or made.get(each.name, ""),
                made=not each.resource_claim_name,
            )
            for each in pod.spec.resource_claims
        ]
        self._containers = {
            f"spec.{kind}[{i}].resources": each.resources.claims
            for kind, them in (
                ("containers", pod.spec.containers),
                ("initContainers", pod.spec.init_containers),
            )
            for i, each in enumerate(them)
        }
        # An init container ends before the others start, unless it is a sidecar.
        beside = [*pod.spec.containers]
        beside += [each for each in pod.spec.init_containers if each.restart_policy == "Always"]
        self._beside = Counter(
            name
            for each in beside
            for name in dict.fromkeys(used.name for used in each.resources.claims)
        )

    @property
    def keys(self) -> list[str]:
        """Return the `namespace/name` of each claim that has been created."""
        return [f"{self.namespace}/{each.claim}" for each in self.named if each.claim]

    def drafted(
        self, draft: PodDraft, claims: Mapping[str, ResourceClaim], taken: Callable[[str], bool]
    ) -> PodDraft | None:
        """Return the draft plus the asks of the pod's claims; None until all claims exist.

        `claims` has the cluster's claims by `namespace/name`. `taken` returns True if another pod
        has the claim with this uid. Raises ManifestError if the pod cannot have a claim."""
        by_name: dict[str, ResourceClaim] = {}
        for i, named in enumerate(self.named):
            claim = claims.get(f"{self.namespace}/{named.claim}") if named.claim else None
            if claim is not None:
                by_name[named.name] = claim
            elif not named.made:
                problem, fix = "does not exist", "create it"
                raise ManifestError(f"{_IN_PODS}[{i}].resourceClaimName", named.claim, problem, fix)
        if len(by_name) < len(self.named):
            return None
        asked = [
            self._asked(claim, f"{_IN_PODS}[{i}]", taken)
            for i, claim in enumerate(by_name.values())
        ]
        self._check_use(by_name, draft)
        # Part of a device can be used by one container at a time: HAMi-core counts the processes of
        # one container only. A whole device or a MIG instance needs no such check.
        uses: Counter[str] = Counter()
        for named, each in zip(self.named, asked, strict=True):
            uses[each.asks[0].container] += self._beside[named.name]
        problem = "shares part of a GPU among several containers, which is not supported"
        for i, each in enumerate(asked):
            parts = any(not (ask.whole or ask.profile) for ask in each.asks)
            if parts and uses[each.asks[0].container] > 1:
                at, fix = f"{_IN_PODS}[{i}]", "use a claim for each container"
                raise ManifestError(at, self.named[i].name, problem, fix)
        if len({each.devices for each in asked}) > 1:
            fix = "use the same selectors in all claims"
            raise ManifestError(_IN_PODS, None, "has different selectors", fix)
        # Each claim once: the container of its asks is its uid.
        once = {each.asks[0].container: each for each in asked}
        asks = tuple(ask for each in once.values() for ask in each.asks)
        return structs.replace(
            draft,
            shape=structs.replace(draft.shape, asks=asks, devices=asked[0].devices),
            dialect=DIALECT,
        )

    def _asked(self, claim: ResourceClaim, field: str, taken: Callable[[str], bool]) -> Wanted:
        if others := claim.classes - {CLASS}:
            other = ", ".join(sorted(others))
            fix = f"use {CLASS} only"
            raise ManifestError(field, claim.key, f"uses the device class {other}", fix)
        if claim.metadata.deletion_timestamp is not None:
            raise ManifestError(field, claim.key, "is being deleted", "create it again")
        users = [each.name for each in claim.status.reserved_for if each.uid != self.pod]
        if taken(claim.metadata.uid) or users or claim.pod not in ("", self.pod):
            whose = f"pod {users[0]}" if users else "another pod"
            problem = f"is used by {whose}, and sharing a claim is not supported"
            fix = "use a resourceClaimTemplateName, or wait until that pod ends"
            raise ManifestError(field, claim.key, problem, fix)
        return wanted(claim)

    # A container that got two of our grants would get contradicting edits.
    def _check_use(self, claims: Mapping[str, ResourceClaim | None], draft: PodDraft) -> None:
        if draft.shape.asks:
            problem = "is set together with device amounts in resources.limits"
            raise ManifestError(_IN_PODS, None, problem, "use either")
        for field, used in self._containers.items():
            names = dict.fromkeys(each.name for each in used)
            if len(names) > 1:
                fix = "combine them into one claim"
                raise ManifestError(f"{field}.claims", list(names), "names several claims", fix)
            for i, each in enumerate(used):
                claim = claims.get(each.name)
                if each.request and claim is not None and len(claim.requests) > 1:
                    problem = "selects part of its claim, which is not supported"
                    fix = "name only the claim, or create a claim for this request"
                    raise ManifestError(f"{field}.claims[{i}].request", each.request, problem, fix)
