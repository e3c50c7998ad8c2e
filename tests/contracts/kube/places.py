"""One interface to two API servers, in memory and real, so that the same tests run against both."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Protocol

import msgspec

from apportion.runtime.kube.client import Answer, KubeApi, open_kube
from tests.support.control_plane import ControlPlane
from tests.support.memory_kube import MemoryKube
from tests.support.memory_kube_api import MemoryKubeApi

PODS = "/api/v1/namespaces/default/pods"
LINES_S = 30.0
"""How late a watch may end: the machine may stall for a while."""


class Place(Protocol):
    """An empty cluster for one test. Its client `api` has all rights."""

    api: KubeApi
    checks_uid: bool  # the server refuses a binding whose uid is not the pod's
    keeps_lists: bool  # a list's next pages are still there after a compaction

    async def forget(self) -> None:
        """Discard the history of changes, as an API server's regular compaction does."""


class MemoryPlace:
    """A cluster on the simulation's in-memory API server."""

    def __init__(self) -> None:
        self.server = MemoryKube()
        self.api: KubeApi = MemoryKubeApi(self.server)
        self.checks_uid = True
        self.keeps_lists = False

    async def forget(self) -> None:
        self.server.store.forget()


class RealPlace:
    """A cluster on kube-apiserver with etcd.

    Before 1.21 the server ignores the uid of a binding. Since 1.34 it keeps snapshots of lists in
    memory."""

    def __init__(self, plane: ControlPlane, api: KubeApi) -> None:
        self._plane = plane
        self.api = api
        self.checks_uid = plane.version >= (1, 21)
        self.keeps_lists = plane.version >= (1, 34)

    async def forget(self) -> None:
        """Compact etcd at its current revision."""
        listed = await get(self.api, PODS)
        revision = int(listed["metadata"]["resourceVersion"])
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._plane._ports[0]}/v3/kv/compaction",
            data=json.dumps({"revision": revision, "physical": True}).encode(),
        )
        await asyncio.to_thread(_post, request)


def _post(request: urllib.request.Request) -> None:
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own address
        assert answer.status == 200


async def real_place(plane: ControlPlane) -> AsyncIterator[RealPlace]:
    """Yield a cluster for one test, and remove what it created."""
    async with open_kube(plane.kubeconfig, None) as api:
        yield RealPlace(plane, api)
    await plane.remove_everything()


# ---------------------------------------------------------------------- requests


async def ask(api: KubeApi, method: str, path: str, body: Any = None, **more: Any) -> Answer:
    encoded = None if body is None else msgspec.json.encode(body)
    return await api.request(method, path, body=encoded, **more)


async def get(api: KubeApi, path: str, **query: str) -> Any:
    """Return the object or list at this path, decoded."""
    return msgspec.json.decode(await api.get(path, query))


async def make(api: KubeApi, path: str, document: dict[str, Any]) -> Any:
    """Create an object and return it as stored."""
    answer = await ask(api, "POST", path, document)
    assert answer.status == 201, answer.refusal()
    return msgspec.json.decode(answer.body)


async def bind(
    api: KubeApi, name: str, node: str, uid: str = "", notes: dict[str, str] | None = None
) -> Answer:
    """Bind a pod to a node with a Binding, as schedulers do."""
    meta: dict[str, Any] = {"name": name, "annotations": notes or {}}
    if uid:
        meta["uid"] = uid
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
    return await ask(api, "POST", f"{PODS}/{name}/binding", body)


async def told(
    api: KubeApi, path: str, version: str, count: int, *, span_s: int = 30
) -> list[tuple[str, Any]]:
    """Watch `path` from resource version `version` on. Return the first `count` watch events, as
    pairs of type and object.

    Return fewer events if the watch ends earlier."""
    query = {
        "watch": "1",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(span_s),
    }
    found: list[tuple[str, Any]] = []
    lines = api.lines(path, query, idle_s=span_s + LINES_S)
    assert isinstance(lines, AsyncGenerator)
    async with asyncio.timeout(span_s + LINES_S):
        async for line in lines:
            if line:
                event = msgspec.json.decode(line)
                found.append((event["type"], event["object"]))
            if len(found) >= count:
                break
    await lines.aclose()
    return found


def status_of(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.refusal().reason
