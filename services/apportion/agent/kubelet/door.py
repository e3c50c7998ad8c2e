"""All plugins of a node, and the kubelet that comes and goes.

A kubelet that starts takes every socket out of its folder, asks nobody, and waits to be told of
plugins. So each plugin looks after its own socket, and registers whenever it had to make it anew.
Invariant: once the kubelet answers, every count name is registered with it within a second or two,
whichever of the two started first.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import grpc

from apportion.agent.kubelet import kubelet_pb2 as pb
from apportion.agent.kubelet.calls import REGISTER, VERSION
from apportion.agent.kubelet.plugin import Plugin

LOOK_S: Final = 0.5
_TIMEOUT_S = 2.0
_KUBELET: Final = "kubelet.sock"

_log = logging.getLogger(__name__)


class _Inodes(NamedTuple):
    """Which two files a registration was between: a new one means a new registration."""

    plugin: int
    kubelet: int


class FrontDoor:
    """The plugins of one node."""

    def __init__(self, folder: Path, plugin: Callable[[str], Plugin]) -> None:
        """`plugin` makes that of a count name."""
        self._folder = folder
        self._plugin = plugin
        self._plugins: dict[str, Plugin] = {}
        self._registered: set[str] = set()

    def not_ready(self) -> list[str]:
        """The count names that the kubelet does not know of."""
        if not self._plugins:
            return ["nothing is offered to the kubelet yet"]
        return [
            f"the kubelet does not know of {resource} yet"
            for resource in self._plugins
            if resource not in self._registered
        ]

    async def offer(self, counts: Mapping[str, int]) -> None:
        """How many slots of each count name there are; one that is no longer told has none."""
        for resource in (*self._plugins, *counts):
            if resource not in self._plugins:
                self._plugins[resource] = self._plugin(resource)
            await self._plugins[resource].offer(counts.get(resource, 0))

    async def serve(self) -> None:
        """Be there for the kubelet, until cancelled."""
        known: dict[str, _Inodes] = {}
        try:
            while True:
                found = _inodes(self._folder)
                for resource, plugin in list(self._plugins.items()):
                    now = _Inodes(found.get(plugin.endpoint, 0), found.get(_KUBELET, 0))
                    if now.kubelet and now != known.get(resource):
                        known[resource] = await self._introduce(plugin)
                await asyncio.sleep(LOOK_S)
        finally:
            for plugin in self._plugins.values():
                await plugin.close()

    async def _introduce(self, plugin: Plugin) -> _Inodes:
        """Serve the plugin's socket anew and register it; what it was registered with."""
        self._registered.discard(plugin.resource)
        before = _inodes(self._folder).get(_KUBELET, 0)
        await plugin.listen(self._folder)
        if not await self._register(plugin):
            return _Inodes(0, 0)
        self._registered.add(plugin.resource)
        return _Inodes(_inodes(self._folder).get(plugin.endpoint, 0), before)

    async def _register(self, plugin: Plugin) -> bool:
        request = pb.RegisterRequest(
            version=VERSION,
            endpoint=plugin.endpoint,
            resource_name=plugin.resource,
            options=plugin.options(),
        )
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._folder / _KUBELET}") as channel:
                await REGISTER.on(channel)(request, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            _log.info("the kubelet does not take %s yet: %s", plugin.resource, error.details())
            return False
        _log.info("%s is registered with the kubelet", plugin.resource)
        return True


def _inodes(folder: Path) -> dict[str, int]:
    """Which file is behind each name of a folder; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return {each.name: each.inode() for each in entries}
    except OSError:
        return {}
