"""What a user can see of a Kubernetes cluster: facts for the doctor.

It reads, and asks the API server what the user may do (SelfSubjectAccessReview), which changes
nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

import msgspec

from apportion.core.doctor.facts import KubeFacts
from apportion.runtime.kube.client import VERSION, KubeApi, KubeRefused, KubeUnavailable

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
WEBHOOK: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/apportion"
NOT_FOUND: Final = 404
FORBIDDEN: Final = 403


class Right(NamedTuple):
    """One thing that a service does at the API server."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        behind = f"/{self.subresource}" if self.subresource else ""
        of_group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{behind}{of_group}"


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
"""What watcher and binder cannot do without (deploy/kubernetes/rbac)."""


async def examine_kube(api: KubeApi) -> KubeFacts:
    """The facts, as of now. An API server that does not answer is one of them."""
    try:
        version = msgspec.json.decode(await api.get(VERSION)).get("gitVersion", "")
        allowed = await asyncio.gather(*(_allowed(api, right) for right in RIGHTS))
        webhook = await _webhook(api)
    except (KubeUnavailable, KubeRefused, msgspec.DecodeError) as error:
        return KubeFacts(url=api.url, problem=f"{api.url} does not answer as it should: {error}")
    denied = (str(right) for right, may in zip(RIGHTS, allowed, strict=True) if not may)
    return KubeFacts(url=api.url, version=version, denied=tuple(denied), webhook=webhook)


async def _allowed(api: KubeApi, right: Right) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**right._asdict()}},
    }
    answer = await api.request("POST", REVIEWS, body=msgspec.json.encode(review))
    if not answer.ok:
        raise answer.refusal()
    said: dict[str, Any] = msgspec.json.decode(answer.body)
    return bool(said.get("status", {}).get("allowed"))


async def _webhook(api: KubeApi) -> str | None:
    """Empty where none is set up, `ready`, or what it lacks; None where this user may not look."""
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
        return "the API server has no certificate to trust it by (caBundle is empty)"
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
            return f"nobody answers behind its Service {space}/{name}"
    return "ready"
