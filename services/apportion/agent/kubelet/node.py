"""Runs the agent's device plugins and its DRA plugin on a node with a kubelet.

The device plugins offer a slot for every possible share of the devices, healthy or not. So a
placement of the scheduler never fails because the kubelet has run out of slots. Invariant: once a
claim is answered without an error, the claim is recorded as prepared, and its containers have
everything that they need. Every step can be repeated."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec
from prometheus_client import Histogram

from apportion.agent.boot_book import BootBook
from apportion.agent.kubelet import calls
from apportion.agent.kubelet import kubelet_pb2 as pb
from apportion.agent.kubelet.calls import REGISTER, VERSION
from apportion.agent.kubelet.cdi import Specifications, device_name
from apportion.agent.kubelet.handing import Handing
from apportion.agent.kubelet.holders import CLAIMS, Holders, claim_slot
from apportion.agent.kubelet.plugin import Plugin, slot_key
from apportion.agent.kubelet.port import Holder, NotPrepared, Preparing
from apportion.agent.places import Places
from apportion.agent.reporting.agent import Agent, Node
from apportion.agent.reporting.view import Claim, NodeView
from apportion.agent.shares.preparing import PATIENCE_S
from apportion.agent.shares.regions import Breach
from apportion.agent.shares.share_lifecycle import ShareLifecycle
from apportion.core.configuration import manifest_config
from apportion.core.dra.names import DRIVER, SHARED, card, container_of, device_of, share_id
from apportion.core.ledger.allocatable import of_plugins
from apportion.core.workloads.dialects.listing import count_names
from apportion.runtime.files.atomic import write_whole
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import Device

LOOK_AT_BOOKS_S: Final = 0.5
HEALTH_S: Final = 5.0  # between two reports of the devices' health
HEALTHY, UNHEALTHY = 1, 2
LOOK_S: Final = 5.0
SOCKET_LOOK_S: Final = 0.5
# Longer than the kubelet tries to connect to a plugin (10 s). Otherwise the agent would give up a
# registration that the kubelet still works on.
_TIMEOUT_S: Final = 12.0
_KUBELET: Final = "kubelet.sock"
# Factor by which amounts are offered: pods may request more than they get; the ledger decides.
ROOM: Final = 2

_log = logging.getLogger(__name__)


class ClaimDoor:
    """The DRA plugin of one node, which prepares ResourceClaims for the kubelet."""

    def __init__(
        self,
        node: str,
        kubelet: Path,
        view: NodeView,
        *,
        devices: Callable[[], dict[str, Device]],
        preparing: Preparing,
        specifications: Specifications,
        prepared: BootBook[str],
        seconds: Histogram,
        clock: Clock,
    ) -> None:
        """Create the plugin for the kubelet in folder `kubelet`. See `Holders` for `prepared`."""
        self._node = node
        self._socket = kubelet / "plugins" / DRIVER / "dra.sock"
        self._registration = kubelet / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._view = view
        self._devices = devices
        self._preparing = preparing
        self._specifications = specifications
        self._prepared = prepared
        self._took = seconds
        self._clock = clock
        self._server: grpc.aio.Server | None = None
        self._problem = "the DRA plugin is not registered with the kubelet yet"

    def not_ready(self) -> list[str]:
        """Return why the kubelet cannot send claims to this plugin; empty if it can."""
        return [self._problem] if self._problem else []

    async def serve(self) -> None:
        """Serve the kubelet's calls about ResourceClaims until cancelled. Raises ConfigError."""
        try:
            while True:
                there = self._socket.is_socket() and self._registration.is_socket()
                if self._server is None or not there:
                    await self._close()
                    # The kubelet connects once it sees the second socket.
                    sockets = self._socket, self._registration
                    self._server = await calls.listening(self, *sockets)
                await asyncio.sleep(LOOK_AT_BOOKS_S)
        finally:
            await self._close()

    async def _close(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    @calls.PLUGIN_INFO.handler
    async def _info(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - of gRPC
        return pb.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self._socket),
            supported_versions=calls.DRA_VERSIONS,
        )

    @calls.PLUGIN_REGISTERED.handler
    async def _registered(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - of gRPC
        self._problem = ""
        if not request.registered:
            self._problem = f"the kubelet rejects the DRA plugin: {request.error}"
            _log.error("%s", self._problem)
        return pb.Empty()

    @calls.WATCH_HEALTH.handler
    async def _health(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ARG002
        while True:
            now_s, known = int(self._clock.now().timestamp()), self._devices()
            names = {card(device): device for device in known.values() if device.mode != "mig"}
            for claim in self._view.held.values():
                shares = (each for each in claim.placed.shares if each.device in known)
                names |= {
                    device_of(each, known[each.device]): known[each.device] for each in shares
                }
            yield pb.DevicesHealth(
                devices=[
                    pb.DeviceHealth(
                        device=pb.DeviceNamed(pool_name=self._node, device_name=name),
                        health=HEALTHY if device.healthy else UNHEALTHY,
                        last_updated_time=now_s,
                        health_check_timeout_seconds=6 * int(HEALTH_S),
                        message=device.health_reason,
                    )
                    for name, device in names.items()
                ]
            )
            # The kubelet forgets devices whose health is not sent again.
            await asyncio.sleep(HEALTH_S)

    @calls.PREPARE_CLAIMS.handler
    async def _prepare(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - of gRPC
        answer = pb.PreparedClaims()
        # One claim after the other, because the claims of a pod may be on one device.
        with self._took.labels("prepare").time():
            for claim in request.claims:
                try:
                    answer.claims[claim.uid].devices.extend(await self._prepared_one(claim))
                except (NotPrepared, OSError) as error:
                    _log.warning("claim %s/%s: %s", claim.namespace, claim.name, error)
                    answer.claims[claim.uid].error = str(error) or type(error).__name__
        return answer

    async def _prepared_one(self, claim: Any) -> list[Any]:
        container = container_of(claim.uid)
        held = await self._held(claim, container)
        await asyncio.to_thread(self._prepared.note, claim.uid, held.pod)
        placed, slot = held.placed, claim_slot(claim.uid)
        holder = Holder(
            held.pod, placed.namespace, placed.name, (container,), DRIVER, (slot,), starting=False
        )
        edits = await self._preparing.prepare(holder)
        await asyncio.to_thread(self._specifications.write, [slot], edits)
        # One CDI device has the edits of all devices of the allocation.
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
                f"the ledger has no placement on this node for claim {claim.namespace}/"
                f"{claim.name} ({claim.uid}); another scheduler allocated it, or the agent "
                "is behind the ledger"
            ) from None
        if held.placed.namespace != claim.namespace:
            raise NotPrepared(
                f"claim {claim.uid} has namespace {held.placed.namespace} in the ledger, but "
                f"{claim.namespace} in the kubelet's request"
            )
        return held

    @calls.UNPREPARE_CLAIMS.handler
    async def _unprepare(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - of gRPC
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


class KubeletNode:
    """Runs all plugins of a node with a kubelet. `places` has the node's paths and settings."""

    def __init__(
        self,
        agent: Agent,
        node: Node,
        places: Places,
        *,
        kubelet: Path,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._agent = agent
        self._node = node
        self._view = agent.view_of(node.name)
        self._dra = places.dra
        plugins = kubelet / "device-plugins"
        prepared = BootBook(places.state / CLAIMS, places.proc, str)
        self._holders = holders = Holders(
            plugins, kubelet / "pod-resources" / "kubelet.sock", prepared, places.proc
        )
        self.lifecycle = lifecycle = ShareLifecycle(
            agent, node, places, holders, metrics=metrics, clock=clock
        )
        self._amounts: set[str] = set()
        self._answered: set[str] = set()
        self._amounts_before = places.state / "amounts.json"
        self._offered = None if places.no_cdi else places.state / "offered.json"
        self._specifications = specifications = Specifications(
            places.cdi, (places.static_cdi,), places.proc
        )
        places.state.mkdir(parents=True, exist_ok=True)
        key = slot_key(places.state / "slots.key")
        seconds = metrics.histogram(
            "apportion_agent_kubelet_seconds", "Time to answer a call of the kubelet.", ("call",)
        )
        handing = self._handing() if places.no_cdi else None
        self.door = FrontDoor(
            plugins,
            lambda name: Plugin(
                name,
                holders,
                lifecycle.preparing,
                specifications,
                seconds,
                key=key,
                handing=handing,
                is_amount=name in self._amounts,
            ),
        )
        self.claims = ClaimDoor(
            node.name,
            kubelet,
            self._view,
            devices=lambda: node.devices,
            preparing=lifecycle.preparing,
            specifications=specifications,
            prepared=prepared,
            seconds=seconds,
            clock=clock,
        )

    def _handing(self) -> Handing:
        return Handing(
            self._holders,
            self._view,
            self.lifecycle.preparing.plan,
            devices=lambda: self._node.devices,
            families=lambda resource: self._count_names().get(resource, ()),
        )

    def _count_names(self) -> Mapping[str, tuple[str, ...]]:
        return count_names(manifest_config(self._agent.configuration).dialects)

    def not_ready(self) -> list[str]:
        """Return the plugins that the kubelet has not registered yet."""
        claims = self.claims.not_ready() if self._dra else []
        return self.door.not_ready() + claims

    async def serve(self) -> None:
        """Run the node's plugins and the loops of its shares until cancelled."""
        await asyncio.to_thread(self.lifecycle.make_places)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.door.serve())
            if self._dra:
                group.create_task(self.claims.serve())
            group.create_task(self._offer())
            group.create_task(self._look())
            for loop in self.lifecycle.loops():
                group.create_task(loop())

    async def _look(self) -> None:
        while True:
            try:
                await self._holders.look()
                if self._node.devices:  # else the ledger is not read yet
                    # Report the pods that another plugin served earlier as allocated. Otherwise the
                    # agent would expect the kubelet to request the devices of these pods next.
                    others = await self._holders.of_others(self._count_names())
                    for pod in others - self._answered:
                        if (claim := self._view.held.get(pod)) is not None:
                            self._answered.add(pod)
                            await self._agent.answer(claim, "")
                self.lifecycle.breaches.note_again("kubelet", self._bare())
                # Offer amounts as well once another plugin has registered them.
                if self._node.devices and self._holders.amounts:
                    registered = await asyncio.to_thread(self._holders.registered)
                    if registered & self._holders.amounts - self._amounts:
                        await self._offer_all({})
                await asyncio.to_thread(self._specifications.sweep, self._holders.slots)
            except (NotPrepared, OSError) as problem:
                _log.debug("cannot find out which pods ended: %s", problem)
            await asyncio.sleep(LOOK_S)

    def _bare(self) -> Iterator[Breach]:
        for claim in self._view.held.values():
            if self._view.answers.get(claim.pod) != "":
                continue
            placed = claim.placed
            for share in placed.shares:
                whose = (claim.pod, placed.namespace, placed.name, share.container)
                if self._holders.bare(*whose):
                    yield Breach(claim.pod, share.container, share.device, "unheld")

    async def _offer(self) -> None:
        # The slots are offered before the ledger is read. A pod that is admitted
        # while the kubelet does not know us fails for good; one that starts too early is retried.
        before = _saved(self._offered)
        amounts = _saved(self._amounts_before)
        with suppress(NotPrepared):
            self._amounts = amounts.keys() & await asyncio.to_thread(self._holders.registered)
        amounts = {name: amounts[name] for name in self._amounts}
        await self.door.offer(before | amounts)
        reports = 0
        while True:
            reports = await self._agent.reported(reports + 1)
            before = await self._offer_all(before)

    async def _offer_all(self, before: dict[str, int]) -> dict[str, int]:
        devices = self._node.devices.values()
        by_family: Counter[str] = Counter()
        for device in devices:
            by_family[device.family] += device.slots
        counts = {
            name: sum(by_family[family] for family in families)
            for name, families in self._count_names().items()
        }
        slots = {name: count for name, count in counts.items() if count}
        # Amounts that another plugin has registered as devices: unless a plugin offers them, the
        # kubelet rejects every pod that requests them.
        config = manifest_config(self._agent.configuration).dialects
        registrable = of_plugins(devices, config)
        self._holders.amounts = frozenset(registrable)
        try:
            registered = await asyncio.to_thread(self._holders.registered)
        except NotPrepared:
            registered = self._amounts
        amounts = {
            name: ROOM * amount
            for name, amount in registrable.items()
            if amount and name in registered
        }
        if amounts.keys() - self._amounts:
            _log.info("extended resources offered to the kubelet: %s", ", ".join(sorted(amounts)))
            self._amounts.update(amounts)
            await asyncio.to_thread(_save, self._amounts_before, amounts)
        await self.door.offer(slots | amounts)
        if slots != before:
            await asyncio.to_thread(_save, self._offered, slots)
        return slots


def _saved(path: Path | None) -> dict[str, int]:
    if path is None:
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.MsgspecError):
        return {}


def _save(path: Path | None, counts: Mapping[str, int]) -> None:
    if path is not None:
        with suppress(OSError):
            write_whole(path, msgspec.json.encode(counts), mode=0o600)


class FrontDoor:
    """The device plugins of one node, which register again after the kubelet restarts.

    A kubelet that starts removes every socket and waits for plugins to register. So a plugin whose
    socket is missing registers again, within a second or two."""

    def __init__(self, folder: Path, plugin: Callable[[str], Plugin]) -> None:
        """Use `plugin` to create the device plugin of each resource name."""
        self._folder = folder
        self._plugin = plugin
        self._plugins: dict[str, Plugin] = {}
        self._registered: set[str] = set()

    def not_ready(self) -> list[str]:
        """Return why plugins are not ready, such as names that the kubelet has not registered."""
        if not self._plugins:
            return ["no device is offered to the kubelet yet"]
        return [
            f"{resource} is not registered with the kubelet yet"
            for resource in self._plugins
            if resource not in self._registered
        ]

    async def offer(self, counts: Mapping[str, int]) -> None:
        """Offer `counts[name]` slots of each resource name, and no slots of any other name."""
        for resource in (*self._plugins, *counts):
            if resource not in self._plugins:
                self._plugins[resource] = self._plugin(resource)
            await self._plugins[resource].offer(counts.get(resource, 0))

    async def serve(self) -> None:
        """Register and serve the device plugins until cancelled."""
        known: dict[str, tuple[int, int]] = {}  # inodes of both sockets
        try:
            while True:
                found = _inodes(self._folder)
                for resource, plugin in list(self._plugins.items()):
                    now = (found.get(plugin.endpoint, 0), found.get(_KUBELET, 0))
                    # A kubelet that starts while we register may remove our socket and answer
                    # nevertheless. Its own new socket may have the inode of the old one.
                    missing = not now[0]
                    if now[1] and (missing or now != known.get(resource)):
                        known[resource] = await self._introduce(plugin)
                await asyncio.sleep(SOCKET_LOOK_S)
        finally:
            for plugin in self._plugins.values():
                await plugin.close()

    async def _introduce(self, plugin: Plugin) -> tuple[int, int]:
        self._registered.discard(plugin.resource)
        before = _inodes(self._folder).get(_KUBELET, 0)
        await plugin.listen(self._folder)
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
            _log.info(
                "cannot register %s with the kubelet yet: %s", plugin.resource, error.details()
            )
            return 0, 0
        _log.info("registered %s with the kubelet", plugin.resource)
        self._registered.add(plugin.resource)
        return _inodes(self._folder).get(plugin.endpoint, 0), before


def _inodes(folder: Path) -> dict[str, int]:
    try:
        with os.scandir(folder) as entries:
            return {each.name: each.inode() for each in entries}
    except OSError:
        return {}
