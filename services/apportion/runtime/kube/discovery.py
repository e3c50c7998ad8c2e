"""Which kinds of some API groups the API server serves: asked in one place, for all watches.

A group version says little by itself: `scheduling.k8s.io/v1` is everywhere, and only its list of
resources shows whether it has PodGroups. Invariant: what was known holds until the server answers
otherwise; before its first answer nothing is known, and every kind counts as served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import msgspec
from msgspec import Struct

from apportion.runtime.kube.client import KubeApi, KubeRefused, KubeUnavailable
from apportion.runtime.process.clock import Clock
from apportion_schemas.decoding import from_outside

LOOK_S = 10.0
"""Between two looks; a kind that is installed is noticed within that time."""
FIRST_S = 1.0
"""The same until the server has answered once."""
APIS = "/apis"


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
    """What the server serves of these API groups; `changed` is called when that changes."""

    def __init__(self, api: KubeApi, clock: Clock, groups: Collection[str]) -> None:
        self._api = api
        self._clock = clock
        self._groups = frozenset(groups)
        self._paths: frozenset[str] | None = None
        self._news = asyncio.Event()
        self.changed: Callable[[], None] = lambda: None

    def has(self, path: str) -> bool:
        """Whether the collection at this path is served, as in `/apis/apps/v1/deployments`.

        True where that is unknown: before the first answer, and for other API groups.
        """
        other = path.split("/")[2] not in self._groups
        return other or self._paths is None or path in self._paths

    def versions(self, group: str, resource: str) -> tuple[str, ...] | None:
        """The versions in which a group has this resource, in order; None where that is unknown."""
        if self._paths is None:
            return None
        parts = (path.split("/")[2:] for path in self._paths)
        found = (version for api, version, name in parts if (api, name) == (group, resource))
        return tuple(sorted(found))

    async def served(self, path: str) -> None:
        """Return once the collection at this path may be served."""
        while not self.has(path):
            await self._news.wait()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._clock.pause(FIRST_S if self._paths is None else LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Ask the server once; where it does not answer, what was known holds."""
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
