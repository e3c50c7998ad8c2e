"""The objects of the in-memory Kubernetes API server, with their versions and all past writes.

Invariants: every write has a higher version than all earlier ones. All pages of a list show the
same version. A watch receives every later write in order, or an error once a compaction has removed
some of them."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

FIRST_VERSION = 100
BOOKMARK_S = 60.0
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Kind(NamedTuple):
    """A kind of object: its API version, its name, and whether it is namespaced."""

    api: str
    name: str
    namespaced: bool = True


VOLCANO = "scheduling.volcano.sh/v1beta1"
KINDS = {
    "pods": Kind("v1", "Pod"),
    "nodes": Kind("v1", "Node", namespaced=False),
    "events": Kind("v1", "Event"),
    "resourcequotas": Kind("v1", "ResourceQuota"),
    "poddisruptionbudgets": Kind("policy/v1", "PodDisruptionBudget"),
    "namespaces": Kind("v1", "Namespace", namespaced=False),
    "persistentvolumeclaims": Kind("v1", "PersistentVolumeClaim"),
    "persistentvolumes": Kind("v1", "PersistentVolume", namespaced=False),
    "storageclasses": Kind("storage.k8s.io/v1", "StorageClass", namespaced=False),
    "csinodes": Kind("storage.k8s.io/v1", "CSINode", namespaced=False),
    "csidrivers": Kind("storage.k8s.io/v1", "CSIDriver", namespaced=False),
    "csistoragecapacities": Kind("storage.k8s.io/v1", "CSIStorageCapacity"),
    "resourceclaims": Kind("resource.k8s.io/v1", "ResourceClaim"),
    "resourceslices": Kind("resource.k8s.io/v1", "ResourceSlice", namespaced=False),
    "podtemplates": Kind("v1", "PodTemplate"),
    "provisioningrequests": Kind("autoscaling.x-k8s.io/v1", "ProvisioningRequest"),
    "podgroups": Kind(VOLCANO, "PodGroup"),
    "queues": Kind(VOLCANO, "Queue", namespaced=False),
}


class Forgotten(Exception):
    """Raised if a compaction has removed the requested writes or the rest of a list."""


class Write(NamedTuple):
    """One write of an object."""

    resource: str  # The object's kind, as in API paths.
    type: str
    key: str
    object: dict[str, Any]  # Its state after the write.
    version: int


class Page(NamedTuple):
    """One page of a list, and the token of the next page, or "" on the last one."""

    items: list[bytes]
    version: int
    rest: str


class Feed:
    """A watch on the store, which receives all writes after a given version."""

    def __init__(self, store: Store, resource: str, prefix: str, version: int) -> None:
        self._store = store
        self._resource = resource
        self._prefix = prefix
        self._version = version
        self.news = asyncio.Event()  # Set when there are new writes.
        self.broken = False  # If True, `take` returns nothing more.

    def take(self) -> list[bytes]:
        """Return the watch's lines for all writes since the last call. Raises Forgotten if a
        compaction has removed some."""
        self.news.clear()
        found = self._store.since(self._resource, self._version)
        if found:
            self._version = found[-1].version
        return [each.line for each in found if each.key.startswith(self._prefix)]

    def bookmark(self) -> list[bytes]:
        """Return a bookmark line for the current version. Call `take` before this method.

        Return nothing if the watch's version is newer than the store's."""
        if self._version > self._store.version:
            return []
        self._version = self._store.version
        kind = KINDS[self._resource]
        version = f'{{"resourceVersion":"{self._version}"}}'
        about = f'{{"kind":"{kind.name}","apiVersion":"{kind.api}","metadata":{version}}}'
        return [f'{{"type":"BOOKMARK","object":{about}}}'.encode()]

    def close(self) -> None:
        """Remove this watch from the store."""
        self._store.leave(self._resource, self)


class _Past(NamedTuple):
    version: int
    key: str
    line: bytes


class Store:
    """All objects of one cluster, keyed by kind and then by `namespace/name` or name."""

    def __init__(self) -> None:
        self.version = FIRST_VERSION
        self._objects: dict[str, dict[str, bytes]] = {kind: {} for kind in KINDS}
        self._past: dict[str, list[_Past]] = {kind: [] for kind in KINDS}
        self._forgotten = FIRST_VERSION
        self._rests: dict[str, tuple[int, list[bytes]]] = {}
        self._feeds: dict[str, dict[Feed, None]] = {kind: {} for kind in KINDS}
        self._listeners: list[Callable[[Write], None]] = []

    def listen(self, call: Callable[[Write], None]) -> None:
        """Call `call` with every later write, as soon as it is made."""
        self._listeners.append(call)

    def backup(self) -> tuple[int, dict[str, dict[str, bytes]]]:
        """Return a copy of all objects, like a snapshot of etcd."""
        return self.version, {kind: dict(found) for kind, found in self._objects.items()}

    def restore(self, copy: tuple[int, dict[str, dict[str, bytes]]]) -> None:
        """Replace all objects by those of a copy, without an event for any watch."""
        self.version, objects = copy
        self._objects = {kind: dict(found) for kind, found in objects.items()}
        self._rests.clear()
        for past in self._past.values():
            past.clear()
        self._forgotten = self.version

    # ------------------------------------------------------------------ reading

    def get(self, resource: str, key: str) -> dict[str, Any] | None:
        """Return a copy of the object, or None if it does not exist."""
        raw = self._objects[resource].get(key)
        return None if raw is None else _decode(raw)

    def all(self, resource: str) -> list[dict[str, Any]]:
        """Return every object of a kind, in the order of their keys."""
        return [_decode(raw) for _, raw in sorted(self._objects[resource].items())]

    def page(self, resource: str, prefix: str, *, limit: int, rest: str) -> Page:
        """Return the first page of a kind, or the page after the token `rest`.

        Raises Forgotten if the token has expired."""
        version = self.version
        if rest:
            if rest not in self._rests:
                raise Forgotten
            version, items = self._rests[rest]
        else:
            found = sorted(self._objects[resource].items())
            items = [raw for key, raw in found if key.startswith(prefix)]
        if not limit or len(items) <= limit:
            return Page(items, version, "")
        token = f"{version}-{resource}-{len(items) - limit}"
        self._rests[token] = (version, items[limit:])
        return Page(items[:limit], version, token)

    # ------------------------------------------------------------------ writing

    def put(self, resource: str, key: str, about: dict[str, Any]) -> dict[str, Any]:
        """Store the object under the next version."""
        known = key in self._objects[resource]
        raw = self._versioned(about)
        self._objects[resource][key] = raw
        return self._wrote(resource, "MODIFIED" if known else "ADDED", key, about, raw)

    def remove(self, resource: str, key: str, about: dict[str, Any]) -> dict[str, Any]:
        """Remove the object; watches receive `about` as its last state."""
        del self._objects[resource][key]
        return self._wrote(resource, "DELETED", key, about, self._versioned(about))

    def _versioned(self, about: dict[str, Any]) -> bytes:
        self.version += 1
        about["metadata"]["resourceVersion"] = str(self.version)
        return _encode(about)

    def _wrote(
        self, resource: str, what: str, key: str, about: dict[str, Any], raw: bytes
    ) -> dict[str, Any]:
        line = b'{"type":"%b","object":%b}' % (what.encode(), typed(resource, raw))
        self._past[resource].append(_Past(self.version, key, line))
        for feed in self._feeds[resource]:
            feed.news.set()
        for call in self._listeners:
            call(Write(resource, what, key, about, self.version))
        return about

    # ------------------------------------------------------------------ watching

    def feed(self, resource: str, prefix: str, version: int) -> Feed:
        """Return a watch that sends the writes after this version."""
        feed = Feed(self, resource, prefix, version)
        self._feeds[resource][feed] = None
        return feed

    def leave(self, resource: str, feed: Feed) -> None:
        """End the watch."""
        self._feeds[resource].pop(feed, None)

    def since(self, resource: str, version: int) -> list[_Past]:
        """Return the writes after this version. Raises Forgotten if a compaction removed some."""
        if version < self._forgotten:
            raise Forgotten
        past = self._past[resource]
        return past[bisect_right(past, version, key=lambda each: each.version) :]

    def hang_up(self) -> None:
        """Break every watch."""
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.broken = True
                feed.news.set()

    def forget(self) -> None:
        """Forget all past writes, as a compaction does. The objects are kept."""
        self._forgotten = self.version
        self._rests.clear()
        for past in self._past.values():
            past.clear()
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.news.set()


def typed(resource: str, raw: bytes) -> bytes:
    """Return the object with its kind and API version, which list items lack."""
    kind = KINDS[resource]
    return b'{"kind":"%b","apiVersion":"%b",%b' % (kind.name.encode(), kind.api.encode(), raw[1:])
