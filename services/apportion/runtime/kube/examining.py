"""Checks a cluster's features and a user's rights: DRA at start, and facts for `doctor`.

This module only reads, dry-runs, and reviews the user's rights (SelfSubjectAccessReview).
Invariant: a service does not start without the DRA version and feature gates that it needs."""

import asyncio
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from apportion.core.doctor.facts import KubeFacts, Unserved
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.runtime.kube.client import NOT_FOUND, VERSION, KubeApi, KubeRefused, KubeUnavailable
from apportion.runtime.process.clock import BackOff, Clock
from apportion.runtime.process.config import ConfigError

API: Final = "/apis/resource.k8s.io/v1"
CLAIMS: Final = f"{API}/resourceclaims"
SLICES: Final = f"{API}/resourceslices"
_BACK_OFF: Final = BackOff(0.5, 10.0)
_INVALID: Final = 422
_OFF: Final = "leave --dra off (dra.enabled in the chart)"
REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
WEBHOOK: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/apportion"
FORBIDDEN: Final = 403
SCHEDULED: Final = "PodScheduled"  # the condition of a pod that a scheduler has looked at
UNSEEN_S: Final = 60  # a younger pod may not have been looked at yet
PENDING_MAX: Final = 1_000


class _Version(Struct, frozen=True, rename="camel"):
    git_version: str = ""
    major: str = ""
    minor: str = ""


async def require_dra(api: KubeApi, clock: Clock) -> None:
    """Wait for the API server. Raises ConfigError if the server lacks resource.k8s.io/v1."""
    failures = 0
    while True:
        try:
            found = await api.find(API)
        except KubeUnavailable:
            failures += 1
            await clock.pause(_BACK_OFF.after(failures))
            continue
        if found is not None:
            return
        raise ConfigError(
            "--dra",
            found=True,
            fix=f"Kubernetes {await _version(api)} has no resource.k8s.io/v1, which came with "
            f"1.34; upgrade Kubernetes, or {_OFF}",
        )


async def require_gates(api: KubeApi, sample: dict[str, Any], gates: dict[str, str]) -> None:
    """Check with a dry run that the API server keeps the fields that need feature gates.

    `gates` maps fields of `sample` to gates. Raises ConfigError, KubeUnavailable, KubeRefused."""
    try:
        made = msgspec.json.decode(
            await api.change("POST", SLICES, sample, query={"dryRun": "All"})
        )
    except KubeRefused as error:
        if error.status != _INVALID:
            raise
        raise ConfigError(
            "--dra",
            found=True,
            fix=f"Kubernetes {await _version(api)} rejects our ResourceSlices ({error.message}); "
            f"upgrade Kubernetes, or {_OFF}",
        ) from None
    off = [gate for path, gate in gates.items() if not _has(made, path.split("."))]
    if off:
        raise ConfigError(
            "--dra",
            found=True,
            fix=f"Kubernetes {await _version(api)} has the feature gate {' and '.join(off)} off; "
            f"enable it in kube-apiserver and the kubelets (the default since 1.36), or {_OFF}",
        )


async def _version(api: KubeApi) -> str:
    said = msgspec.json.decode(await api.get("/version"), type=_Version)
    return said.git_version.removeprefix("v") or f"{said.major}.{said.minor}"


def _has(found: Any, path: list[str]) -> bool:
    """Return True if a value exists at the path, in any element of the lists on the path."""
    if isinstance(found, list):
        return any(_has(each, path) for each in found)
    if not path:
        return found is not None
    return isinstance(found, dict) and path[0] in found and _has(found[path[0]], path[1:])


class Right(NamedTuple):
    """One permission that a service needs on the API server: a verb on a resource."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        behind = f"/{self.subresource}" if self.subresource else ""
        of_group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{behind}{of_group}"


# What watcher and binder need (deploy/kubernetes/rbac).
RIGHTS: Final = (
    Right("list", "pods"),
    Right("watch", "pods"),
    Right("list", "nodes"),
    Right("watch", "nodes"),
    Right("list", "namespaces"),
    Right("list", "resourcequotas"),
    Right("create", "pods", subresource="binding"),
    Right("patch", "pods", subresource="status"),
    Right("delete", "pods"),
    Right("create", "events"),
)


async def examine_kube(api: KubeApi, now: datetime) -> KubeFacts:
    """Return the cluster's facts for `doctor`, even if the API server does not answer."""

    async def allowed(right: Right) -> bool:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**right._asdict()}},
        }
        said: dict[str, Any] = msgspec.json.decode(await api.change("POST", REVIEWS, review))
        return bool(said.get("status", {}).get("allowed"))

    try:
        version = msgspec.json.decode(await api.get(VERSION)).get("gitVersion", "")
        rights = await asyncio.gather(*map(allowed, RIGHTS))
        webhook, unserved = await _webhook(api), await _unserved(api, now)
    except (KubeUnavailable, KubeRefused, msgspec.DecodeError) as error:
        return KubeFacts(url=api.url, problem=f"unexpected answer from {api.url}: {error}")
    denied = (str(right) for right, may in zip(RIGHTS, rights, strict=True) if not may)
    return KubeFacts(
        url=api.url, version=version, denied=tuple(denied), webhook=webhook, unserved=unserved
    )


class _Meta(Struct, frozen=True, rename="camel"):
    name: str
    namespace: str
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None


class _Spec(Struct, frozen=True, rename="camel"):
    scheduler_name: str = ""


class _Condition(Struct, frozen=True):
    type: str


class _Status(Struct, frozen=True):
    conditions: list[_Condition] | None = None


class _Pod(Struct, frozen=True):
    metadata: _Meta
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Pods(Struct, frozen=True):
    items: list[_Pod]


async def _unserved(api: KubeApi, now: datetime) -> tuple[Unserved, ...] | None:
    """Return, by scheduler name, the pending pods that no scheduler has looked at.

    The scheduler name with the most pods comes first. Return None if pods may not be listed. Each
    scheduler sets the condition PodScheduled on a pod that it cannot place. For a pod with
    scheduling gates, the API server sets it."""
    query = {"fieldSelector": "spec.nodeName=,status.phase=Pending", "limit": str(PENDING_MAX)}
    answer = await api.request("GET", "/api/v1/pods", query=query)
    if answer.status == FORBIDDEN:
        return None
    if not answer.ok:
        raise answer.refusal()
    limit = (now.timestamp() - UNSEEN_S) * SECOND
    found: dict[str, list[str]] = {}
    for pod in msgspec.json.decode(answer.body, type=_Pods).items:
        about, seen = pod.metadata, {each.type for each in pod.status.conditions or ()}
        created = micros_of(about.creation_timestamp) or 0
        if SCHEDULED not in seen and not about.deletion_timestamp and created < limit:
            found.setdefault(pod.spec.scheduler_name, []).append(f"{about.namespace}/{about.name}")
    most = sorted(found.items(), key=lambda each: (-len(each[1]), each[0]))
    return tuple(Unserved(name, len(pods), min(pods)) for name, pods in most)


async def _webhook(api: KubeApi) -> str | None:
    """Return the webhook's state: "ready" or what is missing; "" if absent, None if forbidden."""
    answer = await api.request("GET", WEBHOOK)
    if answer.status == NOT_FOUND:
        return ""
    if answer.status == FORBIDDEN:
        return None
    if not answer.ok:
        raise answer.refusal()
    configs: list[dict[str, Any]] = [
        hook.get("clientConfig", {}) for hook in msgspec.json.decode(answer.body)["webhooks"]
    ]
    if not all(config.get("caBundle") for config in configs):
        return "its caBundle is empty, so the API server cannot trust the webhook"
    services = {
        (service.get("namespace", ""), service.get("name", ""))
        for config in configs
        if (service := config.get("service")) is not None
    }
    for space, name in sorted(services):
        found = await api.request("GET", f"/api/v1/namespaces/{space}/endpoints/{name}")
        if found.status == FORBIDDEN:
            return None
        if found.status != NOT_FOUND and not found.ok:
            raise found.refusal()
        subsets = msgspec.json.decode(found.body).get("subsets") if found.ok else None
        if not any(each.get("addresses") for each in subsets or ()):
            return f"its Service {space}/{name} has no ready endpoint"
    return "ready"
