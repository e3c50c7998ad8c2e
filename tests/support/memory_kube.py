"""Simulate the Kubernetes API server in memory, as far as the watcher, the binder and the tests use
it.

Simulations use this server in place of kube-apiserver. One contract suite runs against both
servers. Invariants: a pod is bound at most once, and its annotations are set in the same write. A
failed precondition changes nothing. Every refusal is one that Kubernetes also returns."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from apportion.runtime.kube.client import MERGE_PATCH, Answer
from tests.support.kube_objects import managed_fields
from tests.support.memory_kube_store import KINDS, Feed, Forgotten, Store, typed

TIME = "2026-01-01T00:00:00Z"
GRACE_S = 30
ENDED = ("Succeeded", "Failed")
SYSTEM = ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "namespace", "name")
"""Metadata that only the server writes."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Refused(Exception):
    """Raised if the API server refuses a request; has the error status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.answer = Answer(status, status_body(status, reason, message))


class Where(NamedTuple):
    """A parsed API path: a kind, and optionally a namespace, an object and a subresource."""

    resource: str
    namespace: str
    name: str
    part: str

    @property
    def key(self) -> str:
        """Return the object's key in the store."""
        return f"{self.namespace}/{self.name}" if KINDS[self.resource].namespaced else self.name

    @property
    def prefix(self) -> str:
        """Return the prefix of the keys of all objects on this path."""
        return f"{self.namespace}/" if self.namespace else ""

    def missing(self) -> Refused:
        """Return the error for a request for an object that does not exist."""
        return Refused(404, "NotFound", f'{self.resource} "{self.name}" not found')

    def conflict(self, message: str) -> Refused:
        """Return the error for a request whose precondition the object does not meet."""
        what = f'Operation cannot be fulfilled on {self.resource} "{self.name}": {message}'
        return Refused(409, "Conflict", what)


class MemoryKube:
    """The API server of one cluster. Like Kubernetes 1.21, it refuses a binding of another uid."""

    def __init__(self) -> None:
        self.store = Store()
        self.more_kinds: set[tuple[str, str]] = set()  # (API version, resource), also listed.
        self.fewer_kinds: set[tuple[str, str]] = set()  # Not served.
        self._numbers = itertools.count(1)

    def handle(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "",
    ) -> Answer:
        """Handle a request as the API server, and return the answer."""
        if path == "/version":
            return Answer(200, b'{"major":"1","minor":"21"}')
        if method == "GET" and path.startswith("/apis") and path.count("/") in {1, 3}:
            return self._discovered(path)
        try:
            where = self._served(path)
            if method == "GET":
                return self._read(where, query or {})
            return self._write(method, where, _decode(body or b"{}"), content_type)
        except Refused as refused:
            return refused.answer

    def _discovered(self, path: str) -> Answer:
        """Return the API groups with their versions, or the resources of one version."""
        served = {*((kind.api, name) for name, kind in KINDS.items()), *self.more_kinds}
        served -= self.fewer_kinds
        versions = sorted({api for api, _ in served if "/" in api} - {"resource.k8s.io/v1"})
        if path == "/apis":
            groups = [
                {"name": api.partition("/")[0], "versions": [{"groupVersion": api}]}
                for api in versions
            ]
            return Answer(200, _encode({"kind": "APIGroupList", "groups": groups}))
        if path.removeprefix("/apis/") not in versions:
            return Answer(404, status_body(404, "NotFound", "the server could not find it"))
        resources = [{"name": name} for api, name in sorted(served) if f"/apis/{api}" == path]
        return Answer(200, _encode({"kind": "APIResourceList", "resources": resources}))

    def watch(self, path: str, version: str) -> Feed:
        """Open a watch of this path that starts after `version`, or raise Refused."""
        where = self._served(path)
        return self.store.feed(where.resource, where.prefix, int(version))

    def _served(self, path: str) -> Where:
        where = _where(path)
        if (KINDS[where.resource].api, where.resource) in self.fewer_kinds:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        return where

    # ------------------------------------------------------------------ reading

    def _read(self, where: Where, query: Mapping[str, str]) -> Answer:
        if where.name:
            return self._typed(200, where, self._known(where))
        rest = query.get("continue", "")
        try:
            page = self.store.page(
                where.resource, where.prefix, limit=int(query.get("limit", "0")), rest=rest
            )
        except Forgotten:
            message = "The provided continue parameter is too old"
            raise Refused(410, "Expired", message) from None
        kind = KINDS[where.resource]
        meta = _encode({"resourceVersion": str(page.version), "continue": page.rest})
        head = f'{{"kind":"{kind.name}List","apiVersion":"{kind.api}","metadata":'.encode()
        return Answer(200, b'%b%b,"items":[%b]}' % (head, meta, b",".join(page.items)))

    def _known(self, where: Where) -> dict[str, Any]:
        found = self.store.get(where.resource, where.key)
        if found is None:
            raise where.missing()
        return found

    def _typed(self, status: int, where: Where, about: dict[str, Any]) -> Answer:
        return Answer(status, typed(where.resource, _encode(about)))

    # ------------------------------------------------------------------ writing

    def _write(self, method: str, where: Where, body: dict[str, Any], content_type: str) -> Answer:
        match method, where.part:
            case "POST", "" if not where.name:
                return self._create(where, body)
            case "POST", "binding" if where.resource == "pods":
                return self._bind(where, body)
            case _, "status" if where.resource == "podgroups":
                raise Refused(404, "NotFound", "the server could not find the requested resource")
            case "PATCH", "" | "status":
                return self._patch(where, body, strategic=content_type == MERGE_PATCH)
            case "PUT", "" | "status":
                return self._update(where, self._known(where), body)
            case "DELETE", "":
                return self._delete(where, body)
        raise Refused(405, "MethodNotAllowed", f"{method} is not done to {where}")

    def _create(self, where: Where, body: dict[str, Any]) -> Answer:
        meta = body.get("metadata", {})
        where = where._replace(name=meta["name"])
        if self.store.get(where.resource, where.key) is not None:
            raise Refused(409, "AlreadyExists", f'{where.resource} "{where.name}" already exists')
        about = {name: value for name, value in body.items() if name not in ("kind", "apiVersion")}
        uid = f"00000000-0000-4000-8000-{next(self._numbers):012d}"
        about["metadata"] = {**meta, "uid": uid, "creationTimestamp": TIME}
        if KINDS[where.resource].namespaced:
            about["metadata"]["namespace"] = where.namespace
        if where.resource == "pods":
            about["spec"] = {"schedulerName": "default-scheduler", **body["spec"]}
            about["status"] = {"phase": "Pending"}
            about["metadata"]["managedFields"] = managed_fields(body)
        return self._typed(201, where, self.store.put(where.resource, where.key, about))

    def _bind(self, where: Where, body: dict[str, Any]) -> Answer:
        pod = self._known(where)
        meta, said = pod["metadata"], body.get("metadata", {})
        wanted = said.get("uid", "")
        if wanted and wanted != meta["uid"]:
            raise where.conflict(
                f"Precondition failed: UID in precondition: {wanted}, "
                f"UID in object meta: {meta['uid']}"
            )
        if meta.get("deletionTimestamp"):
            raise where.conflict(f"pod {where.name} is being deleted, cannot be assigned to a host")
        if pod["spec"].get("nodeName"):
            node = pod["spec"]["nodeName"]
            raise where.conflict(f'pod {where.name} is already assigned to node "{node}"')
        pod["spec"]["nodeName"] = body["target"]["name"]
        if said.get("annotations"):
            meta["annotations"] = meta.get("annotations", {}) | said["annotations"]
        _merge_condition(pod["status"], {"type": "PodScheduled", "status": "True"})
        self.store.put(where.resource, where.key, pod)
        return Answer(201, status_body(201, "", ""))

    def _patch(self, where: Where, body: dict[str, Any], *, strategic: bool) -> Answer:
        before = self._known(where)
        after = _merged(before, body, strategic=strategic)
        return self._update(where, before, after)

    def _update(self, where: Where, before: dict[str, Any], wanted: dict[str, Any]) -> Answer:
        """Replace the object, or only its status if the path names that subresource."""
        meta, said = before["metadata"], wanted.get("metadata", {})
        if said.get("uid", meta["uid"]) != meta["uid"]:
            raise Refused(422, "Invalid", f"metadata.uid: {said['uid']}: field is immutable")
        if said.get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
            raise where.conflict("the object has been modified")
        about = {
            name: value for name, value in wanted.items() if name not in ("kind", "apiVersion")
        }
        if where.part == "status":
            notes = {name: said[name] for name in ("annotations", "labels") if name in said}
            about = before | {"status": wanted.get("status", {}), "metadata": meta | notes}
        elif "status" in before and where.resource in ("pods", "nodes"):
            about["status"] = before["status"]
        kept = {name: meta[name] for name in SYSTEM if name in meta}
        about["metadata"] = {**about["metadata"], **kept}
        if about == before:
            return self._typed(200, where, before)
        if _may_leave(about):
            return self._typed(200, where, self.store.remove(where.resource, where.key, about))
        return self._typed(200, where, self.store.put(where.resource, where.key, about))

    def _delete(self, where: Where, options: dict[str, Any]) -> Answer:
        about = self._known(where)
        meta = about["metadata"]
        wanted = options.get("preconditions", {}).get("uid", meta["uid"])
        if wanted != meta["uid"]:
            raise where.conflict(
                f"Precondition failed: UID in precondition: {wanted}, "
                f"UID in object meta: {meta['uid']}"
            )
        grace_s = _grace_s(where, about, options)
        before = meta.get("deletionGracePeriodSeconds")
        if before is not None:
            grace_s = min(grace_s, before)
        meta["deletionTimestamp"] = meta.get("deletionTimestamp", TIME)
        meta["deletionGracePeriodSeconds"] = grace_s
        leaves = _may_leave(about)
        if grace_s != before and (where.resource == "pods" or not leaves):
            # a deleted pod is marked before it is removed
            self.store.put(where.resource, where.key, about)
        if leaves:
            self.store.remove(where.resource, where.key, about)
        return self._typed(200, where, about)


def status_body(status: int, reason: str, message: str) -> bytes:
    """Return an encoded `v1` Status; an empty reason means success."""
    about = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "code": status}
    if reason:
        about |= {"status": "Failure", "reason": reason, "message": message}
    else:
        about |= {"status": "Success"}
    return _encode(about)


def _where(path: str) -> Where:
    parts = path.split("/")[1:]
    api, rest = parts[1:2], parts[2:]
    if parts[0] == "apis":
        api, rest = parts[1:3], parts[3:]
    namespace = ""
    rest = rest or [""]
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource, name, part = (*rest, "", "")[:3]
    if resource not in KINDS or KINDS[resource].api != "/".join(api):
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    return Where(resource, namespace, name, part)


def _grace_s(where: Where, about: dict[str, Any], options: dict[str, Any]) -> int:
    """Return the grace period of a deletion in seconds.

    It is 0 for pods that have no node or have ended."""
    if where.resource != "pods" or not about["spec"].get("nodeName"):
        return 0
    if about["status"]["phase"] in ENDED:
        return 0
    default = about["spec"].get("terminationGracePeriodSeconds", GRACE_S)
    return int(options.get("gracePeriodSeconds", default))


def _may_leave(about: dict[str, Any]) -> bool:
    """Return True if a deleted object has no finalizers and no grace period left."""
    meta = about["metadata"]
    deleted = bool(meta.get("deletionTimestamp")) and not meta.get("deletionGracePeriodSeconds")
    return deleted and not meta.get("finalizers")


def _merged(before: Any, patch: Any, *, strategic: bool) -> Any:
    """Return `before` after a JSON merge patch or a strategic merge patch."""
    if not isinstance(patch, dict):
        return patch
    after = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            after.pop(name, None)
        elif strategic and name == "conditions":
            after[name] = [dict(each) for each in after.get(name, [])]
            for condition in value:
                _merge_condition(after, condition)
        else:
            after[name] = _merged(after.get(name), value, strategic=strategic)
    return after


def _merge_condition(status: dict[str, Any], condition: dict[str, Any]) -> None:
    conditions = status.setdefault("conditions", [])
    for each in conditions:
        if each["type"] == condition["type"]:
            each.update(condition)
            return
    conditions.append(dict(condition))
