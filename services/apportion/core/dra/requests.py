"""Convert a ResourceClaim to asks, and the placement of those asks to the claim's allocation.

In CEL, only comparisons of our attributes are supported. Invariants: a field that would change a
decision is refused by name, never ignored. The same placement always gives the same allocation, so
a retry can detect that the allocation is already written."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct, structs

from apportion.core.dra.names import (
    CLASS,
    DRIVER,
    FAMILY,
    PUBLISHED,
    SHARED,
    container_of,
    device_of,
    share_id,
)
from apportion.core.workloads.dialects.amounts import quantity, whole
from apportion.core.workloads.document import ManifestError, within
from apportion.core.workloads.kube import Kube
from apportion_schemas import Ask, Device, DeviceConstraints, Share
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import COUNT_MAX, MEMORY_MIB_MAX, WHOLE

MIB: Final = 1 << 20
AMOUNTS: Final = ("memory", "cores")  # the capacities that a request may name
DEVICES_MAX: Final = 32  # per claim; Kubernetes allows no more results per allocation
_TERM = re.compile(
    rf'device\.attributes\[["\']{re.escape(DRIVER)}["\']\]\.(?P<name>\w+)'
    r'\s*==\s*["\'](?P<value>[\w .+/-]{1,64})["\']'
)
_OURS = re.compile(rf'device\.driver\s*==\s*["\']{re.escape(DRIVER)}["\']')
# attributes that CEL may compare, and the matching field of an ask or its constraints
_FIELDS: Final = {
    "profile": "profile",
    "uuid": "use_ids",
    "productName": "use_types",
    "mode": "modes",
}
_EXAMPLE: Final = f'device.attributes["{DRIVER}"].profile == "1g.10gb" && ...'
Json = dict[str, Any]


class _Cel(Kube, frozen=True):
    expression: str = ""


class _Selector(Kube, frozen=True):
    cel: _Cel = _Cel()


class _Capacity(Kube, frozen=True):
    requests: dict[str, Any] = {}


class _Exactly(Kube, frozen=True):
    device_class_name: str = ""
    selectors: list[_Selector] = []
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    capacity: _Capacity | None = None


class Request(Kube, frozen=True):
    """One request in a claim: the type of device, and how many of them."""

    name: str
    exactly: _Exactly | None = None
    first_available: list[Any] = []


class _Opaque(Kube, frozen=True):
    driver: str = ""


class _Config(Kube, frozen=True):
    opaque: _Opaque | None = None


class _Devices(Kube, frozen=True):
    requests: list[Request] = []
    constraints: list[Any] = []
    config: list[_Config] = []


class _Spec(Kube, frozen=True):
    devices: _Devices = _Devices()


class _Owner(Kube, frozen=True):
    kind: str = ""
    uid: str = ""
    controller: bool = False


class _Meta(Kube, frozen=True):
    name: str
    uid: str
    namespace: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    owner_references: list[_Owner] = []


class Consumer(Kube, frozen=True):
    """A pod or other object that may use the claim (an entry of `status.reservedFor[]`)."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class Result(Kube, frozen=True):
    """One device allocated to the claim, and the name of the request that it satisfies."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str = msgspec.field(name="shareID", default="")


class _Results(Kube, frozen=True):
    results: Annotated[list[Result], Meta(max_length=256)] = []


class _Allocation(Kube, frozen=True):
    devices: _Results = _Results()


class _Status(Kube, frozen=True):
    allocation: _Allocation | None = None
    reserved_for: list[Consumer] = []


class ResourceClaim(Kube, frozen=True):
    """The fields of a ResourceClaim that we use."""

    metadata: _Meta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def key(self) -> str:
        """Return the full name of the claim, as in `namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def requests(self) -> list[Request]:
        """Return the claim's requests, in the order of the spec."""
        return self.spec.devices.requests

    @property
    def results(self) -> list[Result]:
        """Return the devices allocated to the claim; empty without an allocation."""
        found = self.status.allocation
        return found.devices.results if found is not None else []

    @property
    def classes(self) -> set[str]:
        """Return the device classes that the claim's requests name."""
        return {each.exactly.device_class_name for each in self.requests if each.exactly}

    @property
    def pod(self) -> str:
        """Return the uid of the pod that owns the claim; empty for a claim created by a user."""
        owners = self.metadata.owner_references
        return next((each.uid for each in owners if each.controller and each.kind == "Pod"), "")

    def reserved_for(self, pod: str) -> bool:
        """Return True if the pod with this uid may use the claim."""
        return any(each.uid == pod for each in self.status.reserved_for)


read_resource_claim = from_outside(msgspec.json.Decoder(ResourceClaim).decode)


class Wanted(Struct, frozen=True):
    """What a claim requests: its asks, in the order of its requests, and its device constraints."""

    asks: tuple[Ask, ...]
    devices: DeviceConstraints = DeviceConstraints()


def wanted(claim: ResourceClaim) -> Wanted:
    """Return what the claim requests. Raises ManifestError for unsupported requests."""
    devices, at = claim.spec.devices, f"ResourceClaim {claim.key}: spec.devices"
    if devices.constraints:
        raise ManifestError(f"{at}.constraints", devices.constraints, *_later("remove them"))
    if any(each.opaque is not None and each.opaque.driver == DRIVER for each in devices.config):
        problem = "does not accept parameters"
        raise ManifestError(f"{at}.config", DRIVER, problem, "remove them")
    found = [
        _request(each, f"{at}.requests[{i}]", container_of(claim.metadata.uid))
        for i, each in enumerate(devices.requests)
    ]
    if len({each.devices for each in found}) > 1:
        fix = "use the same selectors in all requests"
        raise ManifestError(f"{at}.requests", None, "has different selectors", fix)
    asks = tuple(ask for each in found for ask in each.asks)
    if not asks or sum(ask.count for ask in asks) > DEVICES_MAX:
        fix = f"request 1 to {DEVICES_MAX}"
        raise ManifestError(f"{at}.requests", None, "requests no device, or too many", fix)
    return Wanted(asks, found[0].devices)


def requests_of(claim: ResourceClaim) -> list[str]:
    """Return the name of the request for each share of the claim, in order."""
    return [
        each.name
        for each in claim.requests
        if each.exactly is not None
        for _ in range(each.exactly.count)
    ]


def _later(fix: str) -> tuple[str, str]:
    return "is not supported", fix


def _request(request: Request, at: str, container: str) -> Wanted:
    exactly = request.exactly
    if exactly is None:
        problem = _later("request one kind of device, in the field `exactly`")
        raise ManifestError(f"{at}.firstAvailable", request.first_available, *problem)
    at = f"{at}.exactly"
    if exactly.device_class_name != CLASS:
        fix = f"write {CLASS}"
        raise ManifestError(
            f"{at}.deviceClassName", exactly.device_class_name, "is not supported", fix
        )
    if exactly.admin_access:
        raise ManifestError(f"{at}.adminAccess", value=True, problem=_later("")[0], fix="remove it")
    if exactly.allocation_mode != "ExactCount":
        problem = _later("write ExactCount and a count")
        raise ManifestError(f"{at}.allocationMode", exactly.allocation_mode, *problem)
    if not 1 <= exactly.count <= COUNT_MAX:
        raise ManifestError(
            f"{at}.count", exactly.count, "is out of range", f"write 1 to {COUNT_MAX}"
        )
    chosen = _chosen(exactly.selectors, f"{at}.selectors")
    asked = exactly.capacity.requests if exactly.capacity is not None else {}
    ask = _amounts(asked, f"{at}.capacity.requests", container)
    profile = chosen.pop("profile", "")
    if profile and asked:
        raise ManifestError(
            f"{at}.capacity.requests",
            None,
            f"is set together with the MIG profile {profile}",
            "keep the profile or the capacity",
        )
    constraints = structs.replace(
        DeviceConstraints(), **{name: (value,) for name, value in chosen.items()}
    )
    if profile:  # instances may share a device, but the devices of one ask are always distinct
        instance = Ask(container=container, family=FAMILY, profile=profile)
        return Wanted((instance,) * exactly.count, constraints)
    return Wanted((structs.replace(ask, count=exactly.count),), constraints)


def _amounts(asked: dict[str, Any], at: str, container: str) -> Ask:
    ask = Ask(container=container, family=FAMILY, cores=0 if asked else WHOLE)  # default: whole
    for key, value in asked.items():
        name, field = key.removeprefix(f"{DRIVER}/"), within(at, key)
        if name not in AMOUNTS:
            fix = f"request {' or '.join(AMOUNTS)}"
            raise ManifestError(field, value, "is not a known capacity", fix)
        if name == "cores":
            ask = structs.replace(ask, cores=whole(value, field, limit=WHOLE))
            continue
        memory_mib = math.ceil(quantity(value, field) / MIB)
        if not 1 <= memory_mib <= MEMORY_MIB_MAX:
            raise ManifestError(field, value, "is not a memory size", "write a size such as 4Gi")
        ask = structs.replace(ask, memory_mib=memory_mib)
    return ask


def _chosen(selectors: list[_Selector], at: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i, selector in enumerate(selectors):
        field = f"{at}[{i}].cel.expression"
        for term in selector.cel.expression.split("&&"):
            if _OURS.fullmatch(term.strip()):
                continue
            parts = _TERM.fullmatch(term.strip())
            key = _FIELDS.get(parts["name"], "") if parts else ""
            if parts is None or not key or found.get(key, parts["value"]) != parts["value"]:
                fix = f"compare {', '.join(_FIELDS)}, such as {_EXAMPLE}"
                raise ManifestError(field, term.strip(), "is not a supported comparison", fix)
            if key == "modes" and parts["value"] not in PUBLISHED:
                fix = f"write one of {', '.join(sorted(PUBLISHED))}"
                raise ManifestError(field, parts["value"], "is not a sharing mode", fix)
            found[key] = parts["value"]
    return found


class NotOfClaim(ValueError):
    """Raised if a pod's shares do not match its claim; the message names the difference."""


def allocation(
    claim: ResourceClaim,
    shares: Sequence[Share],
    devices: Mapping[str, Device],
    *,
    node: str,
    attempt: int,
) -> Json:
    """Return the claim's allocation on `node`; `devices` are that node's, by id.

    Raises NotOfClaim if shares and claim do not match, KeyError if the node lacks a device."""
    requests = requests_of(claim)
    if len(requests) != len(shares):
        raise NotOfClaim(
            f"claim {claim.key} requests {len(requests)} devices, but its pod was allocated "
            f"{len(shares)} for it"
        )
    results = []
    for position, (request, share) in enumerate(zip(requests, shares, strict=True)):
        device = devices[share.device]
        result: Json = {
            "request": request,
            "driver": DRIVER,
            "pool": node,
            "device": device_of(share, device),
        }
        if device.mode in SHARED:
            result["shareID"] = share_id(claim.metadata.uid, attempt, position)
            result["consumedCapacity"] = {
                "memory": f"{share.memory_mib}Mi",
                "cores": str(share.cores),
                "slots": "1",
            }
        results.append(result)
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
    }


def is_allocated(claim: ResourceClaim, wanted: Json) -> bool:
    """Return True if the claim's allocation in Kubernetes equals `wanted`."""
    return [(r.request, r.driver, r.pool, r.device, r.share_id) for r in claim.results] == [
        (each["request"], each["driver"], each["pool"], each["device"], each.get("shareID", ""))
        for each in wanted["devices"]["results"]
    ]


def of_ours(results: Sequence[Result]) -> bool:
    """Return True if our driver allocated all of these devices, so we may deallocate the claim."""
    return bool(results) and all(each.driver == DRIVER for each in results)
