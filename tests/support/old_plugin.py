"""A device plugin of another vendor that is registered with a kubelet, real or simulated."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from apportion.agent.kubelet import calls
from apportion.agent.kubelet import kubelet_pb2 as pb

GIVEN = {"CUDA_DEVICE_MEMORY_LIMIT_0": "500m"}
Allocate = Callable[[Any, Any], Awaitable[Any]]


async def _same(request: Any, context: Any) -> Any:
    return pb.AllocateResponse(containers=[pb.Allocated(env=GIVEN) for _ in request.containers])


class OldPlugin:
    """A device plugin without PreStartContainer, as Volcano's is.

    `allocate` answers the kubelet's `Allocate` calls, by default with the environment `GIVEN`."""

    def __init__(self, resource: str, count: int, allocate: Allocate = _same) -> None:
        self.resource = resource
        self._devices = [
            pb.Device(id=f"{resource.rpartition('-')[2]}-{number}", health="Healthy")
            for number in range(count)
        ]
        self._over = asyncio.Event()
        self._server = grpc.aio.server(options=calls.OPTIONS)
        answers = {
            calls.OPTIONS_OF: self._options,
            calls.LIST_AND_WATCH: self._list,
            calls.ALLOCATE: allocate,
        }
        calls.serve(self._server, answers)

    async def register(self, folder: Path) -> None:
        """Serve on a socket, and register with the kubelet."""
        endpoint = f"{self.resource.replace('/', '-')}.sock"
        (folder / endpoint).unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{folder / endpoint}")
        await self._server.start()
        request = pb.RegisterRequest(
            version=calls.VERSION, endpoint=endpoint, resource_name=self.resource
        )
        async with grpc.aio.insecure_channel(f"unix:{folder / 'kubelet.sock'}") as channel:
            await calls.REGISTER.on(channel)(request, timeout=10)

    async def stop(self) -> None:
        """Stop serving, as if the plugin's DaemonSet were deleted."""
        self._over.set()
        await self._server.stop(grace=None)

    async def _options(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - of gRPC
        return pb.Options()

    async def _list(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ARG002 - of gRPC
        yield pb.Devices(devices=self._devices)
        await self._over.wait()
