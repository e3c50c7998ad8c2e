"""List, then watch: keep a copy of one kind of Kubernetes object in sync.

A failed watch resumes at the last version it received. The watch lists again if the server has
forgotten that version (410), was unavailable, or sends nothing for too long. Invariants: an
`Audience` gets every object and deletion, in the server's order. Failures are retried without end,
with back-off. Until the first answer of `Discovery`, every kind counts as served."""

import asyncio
import logging
import math
import random
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import Final, Generic, Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct

from apportion.runtime.kube.client import (
    NOT_FOUND,
    KubeApi,
    KubeRefused,
    KubeSilent,
    KubeUnavailable,
)
from apportion.runtime.process.clock import BackOff, Clock
from apportion_schemas.decoding import Data, from_outside

LOOK_S = 10.0  # within this time a newly installed kind is noticed
FIRST_S = 1.0  # the same until the first answer
APIS = "/apis"
PAGE = 500
WATCH_S = 290
IDLE_S = 100.0  # longer than the minute between two bookmarks; a longer silence means a dead watch
BACK_OFF = BackOff(0.1, 10.0)
ABSENT_S = 10.0  # the shortest time between two lists of a kind that the server lacks
# the API server accepts 10,000 levels, as in parameters of a ResourceClaim
DEPTH_MAX: Final = 12_000
_GONE = 410
T = TypeVar("T")

_log = logging.getLogger(__name__)


class _Version(Struct, frozen=True, rename="camel"):
    group_version: str


class _Group(Struct, frozen=True):
    name: str
    versions: list[_Version] = []


class _Groups(Struct, frozen=True):
    groups: list[_Group] = []


class _Resource(Struct, frozen=True):
    name: str


class _Resources(Struct, frozen=True):
    resources: list[_Resource] | None = None


_decode_groups = from_outside(msgspec.json.Decoder(_Groups).decode)
_decode_resources = from_outside(msgspec.json.Decoder(_Resources).decode)


class Discovery:
    """Tracks which resources the server serves in some API groups; calls `changed` on a change."""

    def __init__(self, api: KubeApi, clock: Clock, groups: Collection[str]) -> None:
        self._api = api
        self._clock = clock
        self._groups = frozenset(groups)
        self._paths: frozenset[str] | None = None
        self._news = asyncio.Event()
        self.changed: Callable[[], None] = lambda: None

    def has(self, path: str) -> bool:
        """Return True if the server serves the resource at `path`, or if that is unknown."""
        other = path.split("/")[2] not in self._groups
        return other or self._paths is None or path in self._paths

    def versions(self, group: str, resource: str) -> tuple[str, ...] | None:
        """Return the sorted versions of a resource in an API group, or None if unknown."""
        if self._paths is None:
            return None
        parts = (path.split("/")[2:] for path in self._paths)
        found = (version for api, version, name in parts if (api, name) == (group, resource))
        return tuple(sorted(found))

    async def served(self, path: str) -> None:
        """Wait until the server may serve the resource at this path."""
        while not self.has(path):
            await self._news.wait()

    async def run(self) -> None:
        """Read the served resources at intervals, until cancelled."""
        while True:
            await self._clock.pause(FIRST_S if self._paths is None else LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Read the served resources once. Without an answer, keep the previous result."""
        try:
            groups = _decode_groups(await self._api.get(APIS)).groups
            paths = set[str]()
            for group in groups:
                for version in group.versions if group.name in self._groups else ():
                    at = f"{APIS}/{version.group_version}"
                    listed = _decode_resources(await self._api.get(at))
                    names = (each.name for each in listed.resources or ())
                    paths |= {f"{at}/{name}" for name in names if "/" not in name}
            found = frozenset(paths)
        except (KubeUnavailable, KubeRefused, msgspec.MsgspecError):
            return
        if found != self._paths:
            self._paths = found
            news, self._news = self._news, asyncio.Event()
            news.set()
            self.changed()


class _ListMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    next_page: str = msgspec.field(default="", name="continue")


class _List(Struct, frozen=True):
    metadata: _ListMeta
    items: list[Raw] | None = None


class _Event(Struct, frozen=True):
    type: str
    object: Raw


class _ObjectMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Object(Struct, frozen=True):
    metadata: _ObjectMeta = _ObjectMeta()
    code: int = 0
    message: str = ""


def skipping(decode: Callable[[Data], T]) -> Callable[[Data], T]:
    """Return a decoder like `decode` that also skips unknown fields nested too deeply for msgspec.

    Otherwise one such object would break the decoding of its list. Raises msgspec.DecodeError."""
    shallow = from_outside(decode)

    def decoded(data: Data) -> T:
        try:
            return shallow(data)
        except msgspec.DecodeError as error:
            if not isinstance(error.__context__, RecursionError):
                raise
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + DEPTH_MAX)
        try:
            return shallow(data)
        finally:
            sys.setrecursionlimit(limit)

    return decoded


_decode_list = skipping(msgspec.json.Decoder(_List).decode)
_decode_event = skipping(msgspec.json.Decoder(_Event).decode)
_decode_object = skipping(msgspec.json.Decoder(_Object).decode)


class Audience(Protocol):
    """Receives the changes to objects of one kind from a watch."""

    def listing(self) -> None:
        """Note that a list begins. Objects that it does not contain have been deleted."""

    def seen(self, raw: bytes) -> None:
        """Receive the current version of an object."""

    def gone(self, raw: bytes) -> None:
        """Receive the last version of a deleted object."""

    def listed(self, version: int) -> None:
        """Note that the list is complete as of `version`."""

    def reached(self, version: int) -> None:
        """Note that all changes up to `version` have been received."""


class Kind(Generic[T]):
    """The objects of one kind by key, kept up to date as the `Audience` of a `Watch`."""

    def __init__(
        self,
        entries: dict[str, T],
        read: Callable[[bytes], tuple[str, T | None, int]],
        changed: Callable[[str, T | None, T | None, int], None],
        *,
        expected: Callable[[], Iterable[str]],
        forgotten: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._entries = entries
        self._read = read
        self._changed = changed
        self._expected = expected
        self._forgotten = forgotten
        self._missing: set[str] = set()
        self.version = 0

    def listing(self) -> None:
        """Note that a list begins; see `Audience.listing`."""
        self._missing = {*self._entries, *self._expected()}

    def seen(self, raw: bytes) -> None:
        """Store the current version of an object; see `Audience.seen`."""
        key, entry, version = self._read(raw)
        self._missing.discard(key)
        before = self._entries.pop(key, None)
        if entry is not None:
            self._entries[key] = entry
        self._changed(key, before, entry, version)

    def gone(self, raw: bytes) -> None:
        """Remove a deleted object; see `Audience.gone`."""
        key, _, version = self._read(raw)
        self._remove(key, version)

    def listed(self, version: int) -> None:
        """Note that the list is complete as of `version`; see `Audience.listed`."""
        for key in sorted(self._missing):
            self._remove(key, version)
        self._missing.clear()
        self.reached(version)

    def reached(self, version: int) -> None:
        """Note that all changes up to `version` have been received; see `Audience`."""
        self.version = version

    def _remove(self, key: str, version: int) -> None:
        self._forgotten(key)
        self._changed(key, self._entries.pop(key, None), None, version)


class _Expired(Exception): ...


class _WentBack(Exception):
    """Error: the resourceVersion is lower than before, because an older copy was restored."""


async def newest_version(api: KubeApi, path: str) -> int:
    """Return the server's current revision number. Raises KubeUnavailable, KubeRefused."""
    page = _decode_list(await api.get(path, {"limit": "1"}))
    return number(page.metadata.resource_version)


async def pages(
    api: KubeApi, path: str, selector: str = ""
) -> AsyncIterator[tuple[list[Raw], str]]:
    """Yield the pages of a list, each with its resourceVersion.

    Raises KubeUnavailable, KubeRefused."""
    query = {"limit": str(PAGE)} | ({"fieldSelector": selector} if selector else {})
    while True:
        page = _decode_list(await api.get(path, query))
        yield page.items or [], page.metadata.resource_version
        if not page.metadata.next_page:
            return
        query["continue"] = page.metadata.next_page


class Watch:
    """Keeps an `Audience` in sync with the cluster's objects of one kind."""

    def __init__(
        self,
        api: KubeApi,
        path: str,
        audience: Audience,
        *,
        clock: Clock,
        discovery: Discovery | None = None,  # for a kind that a cluster may lack
        selector: str = "",  # field selector
        # Called after the first list from a server that was away or went back, with the monotonic
        # time since when watches are in doubt.
        returned: Callable[[float], None] = lambda _since_s: None,
    ) -> None:
        self._selector = selector
        self._api = api
        self._path = path
        self._audience = audience
        self._discovery = discovery
        self._clock = clock
        self._returned = returned
        self._version = ""
        self._highest = 0  # of lists and bookmarks
        self._failures = 0
        self._synced = asyncio.Event()
        self._following: asyncio.Timeout | None = None
        self._listed_s = self._doubted_s = self._failed_s = -math.inf
        self._away_since_s: float | None = None
        self.problem = ""
        self.lists = 0

    async def synced(self) -> None:
        """Wait until the first list is complete."""
        await self._synced.wait()

    @property
    def in_step(self) -> bool:
        """Return True if the audience's list is complete and the watch has no problem."""
        return self._synced.is_set() and not self.problem

    def doubt(self, since_s: float) -> None:
        """Treat every list that began before `since_s` as stale.

        If the current list is that old, list the objects again."""
        self._doubted_s = max(self._doubted_s, since_s)
        if self._version and self._listed_s < since_s:
            self._synced.clear()
            if self._following is not None and self._following.when() is None:
                self._following.reschedule(0)

    async def run(self) -> None:
        """List and watch the objects, and pass every change to the `Audience`, until cancelled."""
        while True:
            try:
                if not self._version or self._listed_s < self._doubted_s:
                    await self._list()
                try:
                    async with asyncio.timeout(None) as self._following:
                        await self._follow()
                finally:
                    self._following = None
            except TimeoutError:
                continue  # a list is due
            except _Expired:
                self._version = ""
            except _WentBack:
                self._lost(self._clock.monotonic())
            except KubeRefused as error:
                await self._refused(error)
            except (KubeUnavailable, msgspec.MsgspecError) as error:
                if self._failures:  # the first failure alone may be only a dropped connection
                    self._lost(self._failed_s)
                await self._rest(str(error))

    def _lost(self, since_s: float) -> None:
        self._version = ""
        if self._away_since_s is None:
            self._away_since_s = since_s

    async def _list(self) -> None:
        began_s = self._clock.monotonic()
        self._audience.listing()
        newest = ""
        async for items, version in pages(self._api, self._path, self._selector):
            newest = version
            for item in items:
                self._audience.seen(bytes(item))
        self.lists += 1
        if number(newest) < self._highest:
            _log.warning("%s: version went back from %d to %s", self._path, self._highest, newest)
            self._lost(began_s)
        self._listed_s, self._highest = began_s, number(newest)
        self._audience.listed(self._highest)
        self._version = newest
        since_s, self._away_since_s = self._away_since_s, None
        if since_s is not None:
            self._returned(since_s)
        self._in_step()

    async def _follow(self) -> None:
        query = {
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S - random.randrange(WATCH_S // 4)),  # noqa: S311 - jitter
        }
        if self._selector:
            query["fieldSelector"] = self._selector
        try:
            async for line in self._api.lines(self._path, query, idle_s=IDLE_S):
                if line:
                    self._take(_decode_event(line))
                self._in_step()
        except KubeSilent:
            self._version = ""  # not even a bookmark came, so only a list can sync again
            raise
        # The server normally ends a watch only after its timeout; do not spin if it ends sooner.
        await self._clock.pause(BACK_OFF.first_s)

    def _take(self, event: _Event) -> None:
        raw = bytes(event.object)
        about = _decode_object(raw)
        if event.type == "ERROR":
            if about.code == _GONE:
                raise _Expired
            raise KubeUnavailable(f"watch of {self._path}: {about.code} {about.message}")
        if event.type == "DELETED":
            self._audience.gone(raw)
        elif event.type == "BOOKMARK":
            reached = number(about.metadata.resource_version)
            if reached < self._highest:
                raise _WentBack
            self._highest = reached
            self._audience.reached(reached)
        else:
            self._audience.seen(raw)
        self._version = about.metadata.resource_version

    def _in_step(self) -> None:
        if self._listed_s >= self._doubted_s:
            self._synced.set()
        self.problem = ""
        self._failures = 0

    async def _refused(self, error: KubeRefused) -> None:
        if error.status == _GONE:
            self._version = ""
            await self._clock.pause(BACK_OFF.first_s)
            return
        if error.status == NOT_FOUND and self._discovery is not None:
            self._version = ""
            self._audience.listing()
            self._audience.listed(0)
            self._listed_s, self._away_since_s = self._clock.monotonic(), None
            self._in_step()
            await self._clock.pause(ABSENT_S)
            await self._discovery.served(self._path)
            return
        await self._rest(f"watch of {self._path}: {error}")

    async def _rest(self, problem: str) -> None:
        if not self.problem:
            _log.warning("%s; retrying", problem)
        if not self._failures:
            self._failed_s = self._clock.monotonic()
        self.problem = problem
        self._failures += 1
        await self._clock.pause(BACK_OFF.after(self._failures))


def number(version: str) -> int:
    """Return a resourceVersion as a number, as in etcd-backed servers, or 0 if not a number."""
    return int(version) if version.isdecimal() else 0


def any_problem(watches: dict[str, Watch]) -> list[str]:
    """Return the problems of all watches as a list."""
    return [f"{kind}: {watch.problem}" for kind, watch in watches.items() if watch.problem]
