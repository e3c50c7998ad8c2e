"""The kubelet's second front door: a DRA plugin, to which claims are named by their uid.

Nothing is matched here: the ledger has what a claim holds under the claim's own name, and the rest
is what stands behind the device plugins as well. Invariant: a claim that is answered without an
error is in the book of prepared claims, and all that its containers need is there; whatever was
done before may be done again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
from prometheus_client import Histogram

from apportion.agent.kubelet import calls
from apportion.agent.kubelet import kubelet_pb2 as pb
from apportion.agent.kubelet.cdi import Specifications, device_name
from apportion.agent.kubelet.holders import Prepared, claim_slot
from apportion.agent.kubelet.plugin import SOCKET_BYTES_MAX
from apportion.agent.kubelet.port import Holder, NotPrepared, Preparing
from apportion.agent.reporting.view import Claim, NodeView
from apportion.agent.shares.preparing import PATIENCE_S
from apportion.core.dra.names import (
    DRIVER,
    SHARED,
    card,
    container_of,
    device_of,
    share_id,
)
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.config import ConfigError
from apportion_schemas import Device

LOOK_S: Final = 0.5
HEALTH_S: Final = 5.0
"""Between two reports of the devices' health."""
HEALTHY, UNHEALTHY = 1, 2

_log = logging.getLogger(__name__)


class Behind(NamedTuple):
    """What stands behind the door: the histogram is of the kubelet's calls."""

    preparing: Preparing
    specifications: Specifications
    prepared: Prepared
    seconds: Histogram
    clock: Clock


class ClaimDoor:
    """The DRA plugin of one node."""

    def __init__(
        self,
        node: str,
        kubelet: Path,
        view: NodeView,
        *,
        devices: Callable[[], dict[str, Device]],
        behind: Behind,
    ) -> None:
        """`kubelet` is the kubelet's folder, at the same path for us as for the kubelet."""
        self._node = node
        self._socket = kubelet / "plugins" / DRIVER / "dra.sock"
        self._registration = kubelet / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._view = view
        self._devices = devices
        self._preparing, self._specifications, self._prepared, self._took, self._clock = behind
        self._server: grpc.aio.Server | None = None
        self._problem = "the kubelet does not know of the DRA plugin yet"

    def not_ready(self) -> list[str]:
        """Why the kubelet asks us for no claims."""
        return [self._problem] if self._problem else []

    async def serve(self) -> None:
        """Be there for the kubelet, which finds us by our socket, until cancelled.

        Raises:
            ConfigError: the path of a socket is longer than the system lets one be.
        """
        try:
            while True:
                there = self._socket.is_socket() and self._registration.is_socket()
                if self._server is None or not there:
                    await self._listen()
                await asyncio.sleep(LOOK_S)
        finally:
            await self._close()

    async def _listen(self) -> None:
        await self._close()
        self._server = grpc.aio.server(options=calls.OPTIONS)
        calls.serve(
            self._server,
            {
                calls.PLUGIN_INFO: self._info,
                calls.PLUGIN_REGISTERED: self._registered,
                calls.PREPARE_CLAIMS: self._prepare,
                calls.UNPREPARE_CLAIMS: self._unprepare,
                calls.WATCH_HEALTH: self._health,
            },
        )
        for path in (self._socket, self._registration):  # the second one has the kubelet come
            if len(str(path).encode()) > SOCKET_BYTES_MAX:
                fix = f"a socket's name has at most {SOCKET_BYTES_MAX} bytes; give a shorter folder"
                raise ConfigError("--kubelet", str(path), fix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()

    async def _close(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    # -------------------------------------------------------------- registration

    async def _info(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - of gRPC
        return pb.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self._socket),
            supported_versions=calls.DRA_VERSIONS,
        )

    async def _registered(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - of gRPC
        self._problem = ""
        if not request.registered:
            self._problem = f"the kubelet does not take the DRA plugin: {request.error}"
            _log.error("%s", self._problem)
        return pb.Empty()

    # -------------------------------------------------------------- health

    async def _health(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ARG002
        """How all devices are, again and again: the kubelet forgets what it does not hear of."""
        while True:
            yield pb.DevicesHealth(devices=list(self._healths()))
            await asyncio.sleep(HEALTH_S)

    def _healths(self) -> Iterator[Any]:
        """Of cards, and of the instances that pods have."""
        now_s, known = int(self._clock.now().timestamp()), self._devices()
        names = {card(device): device for device in known.values() if device.mode != "mig"}
        for claim in self._view.held.values():
            shares = (share for share in claim.placed.shares if share.device in known)
            names |= {device_of(each, known[each.device]): known[each.device] for each in shares}
        for name, device in names.items():
            yield pb.DeviceHealth(
                device=pb.DeviceNamed(pool_name=self._node, device_name=name),
                health=HEALTHY if device.healthy else UNHEALTHY,
                last_updated_time=now_s,
                health_check_timeout_seconds=6 * int(HEALTH_S),
                message=device.health_reason,
            )

    # -------------------------------------------------------------- claims

    async def _prepare(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - of gRPC
        """Those of one pod, one after the other: they may be of one card."""
        answer = pb.PreparedClaims()
        with self._took.labels("prepare").time():
            for claim in request.claims:
                try:
                    answer.claims[claim.uid].devices.extend(await self._prepared_one(claim))
                except (NotPrepared, OSError) as error:
                    _log.warning("claim %s/%s: %s", claim.namespace, claim.name, error)
                    answer.claims[claim.uid].error = str(error) or type(error).__name__
        return answer

    async def _prepared_one(self, claim: Any) -> list[Any]:
        """Raises NotPrepared, OSError."""
        container = container_of(claim.uid)
        held = await self._held(claim, container)
        await asyncio.to_thread(self._prepared.note, claim.uid, held.pod)
        placed, slot = held.placed, claim_slot(claim.uid)
        holder = Holder(
            held.pod, placed.namespace, placed.name, (container,), DRIVER, (slot,), starting=False
        )
        edits = await self._preparing.prepare(holder)
        await asyncio.to_thread(self._specifications.write, [slot], edits)
        # One CDI device has all that the devices of the allocation come to.
        own = [each for each in held.placed.shares if each.container == container_of(claim.uid)]
        known, devices = self._devices(), []
        for position, share in enumerate(own):
            device = known[share.device]
            one = pb.ClaimDevice(pool_name=self._node, device_name=device_of(share, device))
            if device.mode in SHARED:
                one.share_id = share_id(claim.uid, held.attempt, position)
            if not position:
                one.cdi_device_ids.append(device_name(slot))
            devices.append(one)
        return devices

    async def _held(self, claim: Any, container: str) -> Claim:
        try:
            async with asyncio.timeout(PATIENCE_S):
                held = await self._view.holding(container)
        except TimeoutError:
            raise NotPrepared(
                f"the ledger has no placement on this node that holds claim {claim.namespace}/"
                f"{claim.name} ({claim.uid}); another scheduler allocated it, or the "
                "ledger is behind"
            ) from None
        if held.placed.namespace != claim.namespace:
            raise NotPrepared(
                f"claim {claim.uid} is of namespace {held.placed.namespace} in the ledger, and of "
                f"{claim.namespace} for the kubelet"
            )
        return held

    async def _unprepare(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - of gRPC
        """Take back what a claim means; what was made for it goes once nothing uses it."""
        answer = pb.UnpreparedClaims()
        with self._took.labels("unprepare").time():
            for claim in request.claims:
                try:
                    await asyncio.to_thread(self._specifications.remove, claim_slot(claim.uid))
                    await asyncio.to_thread(self._prepared.strike, claim.uid)
                    answer.claims[claim.uid].SetInParent()
                except OSError as error:
                    answer.claims[claim.uid].error = str(error)
        return answer
