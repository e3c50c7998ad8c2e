"""The device plugin of one resource name, which hands out slots and fills them later.

Invariants: `Allocate` never fails, because a failure would fail the pod for good. A container
starts only after `prepare` has returned what the container gets."""

import asyncio
import hmac
import logging
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
from prometheus_client import Histogram

from apportion.agent.kubelet import calls
from apportion.agent.kubelet import kubelet_pb2 as pb
from apportion.agent.kubelet.cdi import Specifications, device_name
from apportion.agent.kubelet.handing import VISIBLE, Handing
from apportion.agent.kubelet.holders import Holders
from apportion.agent.kubelet.port import NotPrepared, Preparing
from apportion.runtime.files.atomic import write_whole

HEALTHY: Final = "Healthy"
# with a slot's name at most 63 characters, the limit for an annotation's name
_ANNOTATION: Final = "cdi.k8s.io/apportion_"
_PREFIX_MAX: Final = 20
_DIGITS: Final = 24
# Devices of an amount: a kubelet accepts messages of 4 MiB, and each device takes 17 bytes.
AMOUNT_MAX: Final = 200_000
_KEY_BYTES: Final = 32

_log = logging.getLogger(__name__)


def slot_names(resource: str, count: int, key: bytes) -> list[str]:
    """Return the names of a resource's slots, such as `gpu-1f8c…`, derived from `key`.

    The names cannot be guessed, so no container gets another pod's share by naming its slot."""
    prefix = resource.rpartition("/")[2][:_PREFIX_MAX]
    seeds = (f"{resource} {number}".encode() for number in range(count))
    return [f"{prefix}-{hmac.digest(key, seed, 'sha256').hex()[:_DIGITS]}" for seed in seeds]


def slot_key(path: Path) -> bytes:
    """Read the node's key for `slot_names` from this file, or create it. Raises OSError."""
    with suppress(FileNotFoundError):
        key = path.read_bytes()
        if len(key) == _KEY_BYTES:
            return key
    key = secrets.token_bytes(_KEY_BYTES)
    write_whole(path, key, mode=0o600)
    return key


def _remove_sockets(folder: Path, stem: str) -> None:
    # Those of earlier agents, too.
    old = re.compile(rf"{re.escape(stem)}\.[0-9a-f]{{4}}\.sock").fullmatch
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            if old(path.name):
                path.unlink(missing_ok=True)


@dataclass(slots=True, eq=False)
class Plugin:
    """The device plugin server of one resource name, on a socket in the kubelet's folder.

    `endpoint` is the name of the socket."""

    resource: str
    holders: Holders
    preparing: Preparing
    specifications: Specifications
    seconds: Histogram
    _: KW_ONLY
    key: bytes  # for the names of slots
    # Decides at `Allocate` what a container gets; without it, CDI does at its start.
    handing: Handing | None = None
    # Serves memory or cores that another plugin had registered as devices, which have no meaning.
    # The kubelet admits no pod that requests them unless a plugin offers them.
    is_amount: bool = False
    _slots: list[str] = field(default_factory=list, init=False)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition, init=False)
    _server: grpc.aio.Server | None = field(default=None, init=False)
    endpoint: str = field(default="", init=False)

    def options(self) -> Any:
        """Return options for the kubelet, such as to call `PreStartContainer` before each start."""
        return pb.Options(
            pre_start_required=not self.is_amount, get_preferred_allocation_available=False
        )

    async def offer(self, count: int) -> None:
        """Set the number of slots and notify the kubelet."""
        count = min(count, AMOUNT_MAX) if self.is_amount else count
        if count != len(self._slots):
            async with self._changed:
                self._slots = (
                    [f"{number:x}" for number in range(count)]
                    if self.is_amount
                    else slot_names(self.resource, count, self.key)
                )
                self._changed.notify_all()

    async def listen(self, folder: Path) -> None:
        """Serve on a new socket in `folder`, and close the previous one. Raises ConfigError."""
        await self.close()
        # Each time at another path: if the kubelet has not yet noticed that a socket was closed, it
        # refuses every later plugin at its path until it is restarted (1.36 and 1.37).
        stem, before = f"apportion-{self.resource.replace('/', '.')}", self.endpoint
        while self.endpoint == before:
            self.endpoint = f"{stem}.{secrets.token_hex(2)}.sock"
        _remove_sockets(folder, stem)
        self._server = await calls.listening(self, folder / self.endpoint)

    async def close(self) -> None:
        """Stop serving. The kubelet retries a call that was interrupted."""
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    @calls.OPTIONS_OF.handler
    async def _options_of(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - of gRPC
        return self.options()

    @calls.LIST_AND_WATCH.handler
    async def _list_and_watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ARG002
        # All slots stay healthy, because a slot belongs to no device: a failed device only reduces
        # their number, running pods keep theirs, and the ledger reports the device's health.
        while True:
            async with self._changed:
                slots = self._slots
            yield pb.Devices(devices=[pb.Device(id=slot, health=HEALTHY) for slot in slots])
            async with self._changed:
                while self._slots is slots:
                    await self._changed.wait()

    @calls.ALLOCATE.handler
    async def _allocate(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - of gRPC
        with self.seconds.labels("allocate").time():
            answer = pb.AllocateResponse()
            for container in request.containers:
                slots = sorted(container.slots)
                if self.is_amount:
                    answer.containers.add()
                elif self.handing is not None:
                    answer.containers.append(await self.handing.answer(self.resource, len(slots)))
                else:
                    # By name, in the three ways that runtimes support.
                    names = [device_name(slot) for slot in slots]
                    one = pb.Allocated()
                    one.env[VISIBLE] = ",".join(names)
                    one.annotations[_ANNOTATION + slots[0]] = ",".join(names)
                    one.cdi_devices.extend(pb.CdiDevice(name=name) for name in names)
                    answer.containers.append(one)
            return answer

    @calls.PRE_START.handler
    async def _pre_start(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        with self.seconds.labels("prestart").time():
            try:
                slots = frozenset(request.slots)
                if slots.isdisjoint(self._slots) and await self.holders.foreign(
                    self.resource, slots
                ):
                    _log.info("a container starts with another plugin's devices: nothing to do")
                    return pb.Empty()
                holder = await self.holders.find(self.resource, slots)
                edits = await self.preparing.prepare(holder)
                if self.handing is None:
                    await asyncio.to_thread(self.specifications.write, holder.slots, edits)
            except (NotPrepared, OSError) as error:
                _log.warning("container not started yet: %s", error)
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            return pb.Empty()
