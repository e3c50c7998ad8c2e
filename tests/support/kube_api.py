"""A client of a test's API server that reuses one connection, because running kubectl is slower.

Resources are named as in kubectl: `pods`, `pod`, `pvc`, `queues.scheduling.volcano.sh`. Invariant:
a refused request raises AssertionError, as in `ControlPlane.kubectl`."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from ssl import create_default_context
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.support.polling import wait_until

ANSWER_S = 60.0
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
AS_APPLIED = "fieldManager=kubectl-client-side-apply&fieldValidation=Strict"
BUSY = {
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
NOW = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}


class Resource(NamedTuple):
    """A kind of Kubernetes object and its API path."""

    root: str
    """`/api/v1`, or `/apis/GROUP/VERSION`."""
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """Return the `apiVersion` of this kind."""
        return self.root.removeprefix("/apis/").removeprefix("/api/")

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of one object, of all objects in a namespace, or of all objects of the
        kind."""
        place = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{self.root}{place}/{self.plural}" + (f"/{name}" if name else "")


class KubeApi:
    """A client of one API server with administrator rights."""

    def __init__(self, url: str, certificate: Path, token: str) -> None:
        self._address = urlsplit(url).netloc
        self._certificate = certificate
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._connection: http.client.HTTPSConnection | None = None
        self._lock = threading.Lock()
        self._resources: dict[str, Resource] = {}

    def request(self, method: str, path: str, body: Any = None, *, merge: bool = False) -> Any:
        """Send a request and return the decoded answer. `merge` marks the body as a merge patch."""
        kind = {"Content-Type": "application/merge-patch+json"} if merge else {}
        data = None if body is None else json.dumps(body).encode()
        status, answer = self._answered(method, path, data, self._headers | kind)
        assert status < HTTPStatus.BAD_REQUEST, f"{method} {path}: {status} {answer}"
        return json.loads(answer)

    def create(self, document: dict[str, Any], namespace: str) -> bool:
        """Create an object as `kubectl apply` does. Return False if an object with its name exists.

        The object is created in `namespace` unless its own metadata names a namespace."""
        about = document["metadata"]
        applied = json.dumps(
            document | {"metadata": {"annotations": {}, "namespace": namespace} | about},
            separators=(",", ":"), sort_keys=True,
        )  # fmt: skip
        annotations = about.get("annotations") or {}
        body = document | {
            "metadata": about | {"annotations": annotations | {LAST_APPLIED: f"{applied}\n"}}
        }
        path = self._of(document).path(about.get("namespace") or namespace)
        data = json.dumps(body).encode()
        status, answer = self._answered("POST", f"{path}?{AS_APPLIED}", data, self._headers)
        if status == HTTPStatus.CONFLICT:
            return False
        assert status < HTTPStatus.BAD_REQUEST, f"POST {path}: {status} {answer}"
        return True

    def get(self, kind: str, name: str = "", namespace: str = "") -> Any:
        """Return one object, or a list of all objects of a kind. Each list item has its `kind`."""
        resource = self.resource(kind)
        found = self.request("GET", resource.path(namespace, name))
        if not name:
            for item in found["items"]:
                item |= {"kind": resource.kind, "apiVersion": resource.api_version}
        return found

    def delete(self, path: str) -> None:
        """Delete the object at once, unless it is gone already."""
        status, answer = self._answered("DELETE", path, json.dumps(NOW).encode(), self._headers)
        well = status < HTTPStatus.BAD_REQUEST or status == HTTPStatus.NOT_FOUND
        assert well, f"DELETE {path}: {status} {answer}"

    def remove_all(self, *kinds: str) -> None:
        """Delete every object of these kinds in all namespaces, and wait until they are gone."""
        resources = [self.resource(kind) for kind in kinds]
        asked: set[str] = set()

        def gone() -> bool:
            left = [path for resource in resources for path in self._objects(resource)]
            for path in left:
                if path not in asked:
                    asked.add(path)
                    self.delete(path)
            return not left

        wait_until(gone, f"{', '.join(kinds)} to be gone", timeout_s=ANSWER_S)

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def resource(self, kind: str) -> Resource:
        """Return the resource for a name that kubectl accepts, such as `pods` or `pvc`."""
        if kind not in self._resources:
            self._resources = dict(self._discovered())
        assert kind in self._resources, f"the API server has no resource {kind!r}"
        return self._resources[kind]

    def _objects(self, resource: Resource) -> Iterator[str]:
        for item in self.request("GET", resource.path())["items"]:
            about = item["metadata"]
            yield resource.path(about.get("namespace", ""), about["name"])

    def _of(self, document: dict[str, Any]) -> Resource:
        kind, version = document["kind"], document["apiVersion"]
        group = version.partition("/")[0] if "/" in version else ""
        found = self.resource(f"{kind.lower()}.{group}")
        root = f"/apis/{version}" if group else f"/api/{version}"
        return found._replace(root=root)

    def _discovered(self) -> Iterator[tuple[str, Resource]]:
        """Yield every name of every resource, with the resource.

        If resources of two API groups share a name, the first group's wins."""
        roots = ["/api/v1"]
        for group in self.request("GET", "/apis")["groups"]:
            preferred = group["preferredVersion"]["groupVersion"]
            others = [each["groupVersion"] for each in group["versions"]]
            roots += [f"/apis/{each}" for each in dict.fromkeys([preferred, *others])]
        for root in reversed(roots):
            group = root.removeprefix("/apis/").partition("/")[0] if root != "/api/v1" else ""
            for found in self.request("GET", root)["resources"]:
                if "/" in found["name"]:
                    continue
                resource = Resource(root, found["name"], found["kind"], found["namespaced"])
                names = [found["name"], found["singularName"] or found["kind"].lower()]
                for name in [*names, *found.get("shortNames", ())]:
                    yield name, resource
                    yield f"{name}.{group}", resource

    def _answered(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, str]:
        """Return status and body of a request. Like any client, retry while the server is busy.

        A busy etcd may answer a write with 500 or 504 although the write has happened. So a POST is
        sent again only after 429."""
        busy = {HTTPStatus.TOO_MANY_REQUESTS} if method == "POST" else BUSY
        answer = (0, "")

        def answered() -> bool:
            nonlocal answer
            with self._lock:
                answer = self._exchange(method, path, data, headers)
            return answer[0] not in busy

        try:
            wait_until(answered, "an answer", interval_s=0.2)
        except AssertionError:
            raise AssertionError(f"{method} {path}: {answer}") from None
        return answer

    def _exchange(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, str]:
        """Return status and body of a request. Reconnect once if the server has closed the
        connection."""
        for again in (True, False):
            kept = self._connection is not None
            try:
                connection = self._connected()
                connection.request(method, path, data, headers)
                answer = connection.getresponse()
                return answer.status, answer.read().decode()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not (again and kept):
                    raise AssertionError(f"{method} {path}: {error!r}") from error
        raise AssertionError("unreachable")

    def _connected(self) -> http.client.HTTPSConnection:
        if self._connection is None:
            context = create_default_context(cafile=str(self._certificate))
            self._connection = http.client.HTTPSConnection(
                self._address, timeout=ANSWER_S, context=context
            )
        return self._connection
