"""All plugins of a node, and the kubelet that comes and goes.

A kubelet that starts takes every socket out of its folder, asks nobody, and waits to be told of
plugins. So each plugin looks after its own socket, and registers whenever it had to make it anew.
Invariant: once the kubelet answers, every count name is registered with it within a second or two,
whichever of the two started first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import grpc

from apportion.agent.kubelet import kubelet_pb2 as pb
from apportion.agent.kubelet.calls import REGISTER, VERSION
from apportion.agent.kubelet.plugin import Plugin

FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
POD_RESOURCES: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
LOOK_S: Final = 0.5
_TIMEOUT_S = 2.0

_log = logging.getLogger(__name__)


class FrontDoor:
    """The plugins of one node."""

    def __init__(self, folder: Path, plugins: Iterable[Plugin]) -> None:
        self._folder = folder
        self._plugins = {plugin.resource: plugin for plugin in plugins}
        self._registered: set[str] = set()

    def not_ready(self) -> list[str]:
        """The count names that the kubelet does not know of."""
        return [
            f"the kubelet does not know of {resource} yet"
            for resource in self._plugins
            if resource not in self._registered
        ]

    async def offer(self, counts: dict[str, int]) -> None:
        """How many slots of each count name there are."""
        for resource, plugin in self._plugins.items():
            await plugin.offer(counts.get(resource, 0))

    async def serve(self) -> None:
        """Be there for the kubelet, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for plugin in self._plugins.values():
                    group.create_task(self._keep(plugin), name=plugin.resource)
        finally:
            for plugin in self._plugins.values():
                await plugin.close()

    async def _keep(self, plugin: Plugin) -> None:
        socket, kubelet = self._folder / plugin.endpoint, self._folder / "kubelet.sock"
        known = (0, 0)  # the inodes of the two sockets when it was registered
        while True:
            now = _inode(socket), _inode(kubelet)
            if now != known and now[1]:
                self._registered.discard(plugin.resource)
                await plugin.listen(self._folder)
                if await self._register(plugin, kubelet):
                    known = _inode(socket), now[1]
                    self._registered.add(plugin.resource)
            await asyncio.sleep(LOOK_S)

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
