"""What the Kubernetes API server in memory keeps: objects, their versions, and what happened.

It is what etcd and the watch cache are to the real one. Invariants: every write has a version of
its own, higher than all before it; a list is as of one version, over all of its pages; a watch is
told of every write after its version, in their order, or that the past is forgotten."""

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
    """One kind of object: its API, and whether it is in namespaces."""

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
    "podgroups": Kind(VOLCANO, "PodGroup"),
    "queues": Kind(VOLCANO, "Queue", namespaced=False),
}


class Forgotten(Exception):
    """The past since that version, or the rest of that list, is not known any more."""


class Write(NamedTuple):
    """One write: the `resource` is the kind as paths name it, `object` is as it was left."""

    resource: str
    type: str
    key: str
    object: dict[str, Any]
    version: int


class Page(NamedTuple):
    """A part of a list, as of a version, and the token of the rest; empty where there is none."""

    items: list[bytes]
    version: int
    rest: str


class Feed:
    """One watch: what happened since its version. `news` is set when there is more.

    One that is `broken` tells nothing more."""

    def __init__(self, store: Store, resource: str, prefix: str, version: int) -> None:
        self._store = store
        self._resource = resource
        self._prefix = prefix
        self._version = version
        self.news = asyncio.Event()
        self.broken = False

    def take(self) -> list[bytes]:
        """The lines that have come; raises Forgotten."""
        self.news.clear()
        found = self._store.since(self._resource, self._version)
        if found:
            self._version = found[-1].version
        return [each.line for each in found if each.key.startswith(self._prefix)]

    def bookmark(self) -> list[bytes]:
        """That nothing has happened up to now; only once all was taken.

        Nothing from a store that is at a lower version: a real server waits for the watch's own."""
        if self._version > self._store.version:
            return []
        self._version = self._store.version
        kind = KINDS[self._resource]
        version = f'{{"resourceVersion":"{self._version}"}}'
        about = f'{{"kind":"{kind.name}","apiVersion":"{kind.api}","metadata":{version}}}'
        return [f'{{"type":"BOOKMARK","object":{about}}}'.encode()]

    def close(self) -> None:
        """Nobody listens any more."""
        self._store.leave(self._resource, self)


class _Past(NamedTuple):
    version: int
    key: str
    line: bytes


class Store:
    """All objects of one cluster; keys are `namespace/name`, or the name."""

    def __init__(self) -> None:
        self.version = FIRST_VERSION
        self._objects: dict[str, dict[str, bytes]] = {kind: {} for kind in KINDS}
        self._past: dict[str, list[_Past]] = {kind: [] for kind in KINDS}
        self._forgotten = FIRST_VERSION
        self._rests: dict[str, tuple[int, list[bytes]]] = {}
        self._feeds: dict[str, dict[Feed, None]] = {kind: {} for kind in KINDS}
        self._listeners: list[Callable[[Write], None]] = []

    def listen(self, call: Callable[[Write], None]) -> None:
        """Call with every write, at the moment at which it is made."""
        self._listeners.append(call)

    def backup(self) -> tuple[int, dict[str, dict[str, bytes]]]:
        """A copy of all objects, as etcd's snapshot is."""
        return self.version, {kind: dict(found) for kind, found in self._objects.items()}

    def restore(self, copy: tuple[int, dict[str, dict[str, bytes]]]) -> None:
        """Go on from a copy; open watches hear nothing."""
        self.version, objects = copy
        self._objects = {kind: dict(found) for kind, found in objects.items()}
        self._rests.clear()
        for past in self._past.values():
            past.clear()
        self._forgotten = self.version

    # ------------------------------------------------------------------ reading

    def get(self, resource: str, key: str) -> dict[str, Any] | None:
        """The object, for the caller to do with as it likes; None where there is none."""
        raw = self._objects[resource].get(key)
        return None if raw is None else _decode(raw)

    def all(self, resource: str) -> list[dict[str, Any]]:
        """Every object of a kind, in the order of their keys."""
        return [_decode(raw) for _, raw in sorted(self._objects[resource].items())]

    def page(self, resource: str, prefix: str, *, limit: int, rest: str) -> Page:
        """The first objects of a kind, or those after the page that gave the token `rest`.

        Raises Forgotten: nobody knows that token any more."""
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
        """Store the object as it is now, under the next version."""
        known = key in self._objects[resource]
        raw = self._versioned(about)
        self._objects[resource][key] = raw
        return self._wrote(resource, "MODIFIED" if known else "ADDED", key, about, raw)

    def remove(self, resource: str, key: str, about: dict[str, Any]) -> dict[str, Any]:
        """Forget the object; watches are told of it as `about` it was last."""
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
        """A watch from this version on."""
        feed = Feed(self, resource, prefix, version)
        self._feeds[resource][feed] = None
        return feed

    def leave(self, resource: str, feed: Feed) -> None:
        """The watch is over."""
        self._feeds[resource].pop(feed, None)

    def since(self, resource: str, version: int) -> list[_Past]:
        """What happened after the version; raises Forgotten."""
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
        """Forget the past up to now, as compaction does; objects stay."""
        self._forgotten = self.version
        self._rests.clear()
        for past in self._past.values():
            past.clear()
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.news.set()


def typed(resource: str, raw: bytes) -> bytes:
    """The object with its kind, as everywhere but in lists."""
    kind = KINDS[resource]
    return b'{"kind":"%b","apiVersion":"%b",%b' % (kind.name.encode(), kind.api.encode(), raw[1:])
