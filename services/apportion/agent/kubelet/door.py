"""All plugins of a node, and the kubelet that comes and goes.

A kubelet that starts takes every socket out of its folder, asks nobody, and waits to be told of
plugins. So each plugin looks after its own socket, and registers whenever it had to make it anew.
Invariant: once the kubelet answers, every count name is registered with it within a second or two,
whichever of the two started first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import grpc

from apportion.agent.kubelet import kubelet_pb2 as pb
from apportion.agent.kubelet.calls import REGISTER, VERSION
from apportion.agent.kubelet.plugin import Plugin

LOOK_S: Final = 0.5
_TIMEOUT_S = 2.0

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
                kubelet = self._folder / "kubelet.sock"
                for resource, plugin in list(self._plugins.items()):
                    now = _Inodes(_inode(self._folder / plugin.endpoint), _inode(kubelet))
                    if now.kubelet and now != known.get(resource):
                        known[resource] = await self._introduce(plugin, kubelet)
                await asyncio.sleep(LOOK_S)
        finally:
            for plugin in self._plugins.values():
                await plugin.close()

    async def _introduce(self, plugin: Plugin, kubelet: Path) -> _Inodes:
        """Serve the plugin's socket anew and register it; what it was registered with."""
        self._registered.discard(plugin.resource)
        before = _inode(kubelet)
        await plugin.listen(self._folder)
        if not await self._register(plugin, kubelet):
            return _Inodes(0, 0)
        self._registered.add(plugin.resource)
        return _Inodes(_inode(self._folder / plugin.endpoint), before)

    async def _register(self, plugin: Plugin, kubelet: Path) -> bool:
        request = pb.RegisterRequest(
            version=VERSION,
            endpoint=plugin.endpoint,
            resource_name=plugin.resource,
            options=plugin.options(),
        )
        try:
            async with grpc.aio.insecure_channel(f"unix:{kubelet}") as channel:
                await REGISTER.on(channel)(request, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            _log.info("the kubelet does not take %s yet: %s", plugin.resource, error.details())
            return False
        _log.info("%s is registered with the kubelet", plugin.resource)
        return True


def _inode(path: Path) -> int:
    """Which file it is, 0 where there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0
