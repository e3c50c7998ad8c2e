"""The agent on a node with a kubelet: the front door, and what stands behind it.

Invariant: a slot for every share that the node's cards can be cut into, whatever their health: who
gets which card is the scheduler's to say, and a kubelet that counted would only be in its way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import structs

from apportion.agent.hands.daemons import Daemons
from apportion.agent.hands.instances import Instances
from apportion.agent.hands.regions import Regions
from apportion.agent.kubelet.cdi import Specifications
from apportion.agent.kubelet.claims import Behind, ClaimDoor
from apportion.agent.kubelet.door import FrontDoor
from apportion.agent.kubelet.holders import Holders
from apportion.agent.kubelet.plugin import Plugin
from apportion.agent.kubelet.port import NotPrepared
from apportion.agent.kubelet.prepared import Prepared
from apportion.agent.needed import Needed, largest
from apportion.agent.places import Places
from apportion.agent.preparing import Hands, SharePreparing
from apportion.agent.reporting import Agent, Node
from apportion.agent.usage.sampling import Sampling
from apportion.core import grants
from apportion.core.configuration import manifest_config
from apportion.core.dialects.listing import count_names
from apportion.runtime.files.atomic import write_whole
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import Device

ADVISE_S: Final = 5.0
"""Between two rounds of who waits for whom; HAMi's monitor has the same."""
TIDY_S: Final = 10.0
_PRELOAD: Final = b"/usr/local/vgpu/libvgpu.so\n"

_log = logging.getLogger(__name__)


class KubeletNode:
    """One node with a kubelet."""

    def __init__(
        self, agent: Agent, node: Node, places: Places, metrics: Metrics, clock: Clock
    ) -> None:
        self._agent = agent
        self._node = node
        self._places = places
        self._clock = clock
        view = agent.view_of(node.name)
        prepared = Prepared(places.state, places.proc)
        self._holders = holders = Holders(places.plugins, places.pod_resources, prepared)
        self._hands = Hands(
            Regions(places.state / "shares"),
            Instances(node.backend),
            Daemons(places.mps, node.backend, places.mps_launcher),
            Needed(holders, view),
        )
        self._view = view
        self._preparing = preparing = SharePreparing(
            view, lambda: node.devices, agent.answer, self._hands, self._grants_node
        )
        specifications = Specifications(places.cdi)
        seconds = metrics.histogram(
            "apportion_agent_kubelet_seconds", "The kubelet's calls, answered.", ("call",)
        )
        self.sampling = Sampling(
            agent, node, self._hands.regions, holders.pods, clock=clock, places=places
        )
        self.sampling.expose(metrics, places.metrics_as)
        self.door = FrontDoor(
            places.plugins,
            lambda name: Plugin(name, holders, preparing, specifications, seconds),
        )
        self.claims = ClaimDoor(
            node.name,
            places.kubelet,
            view,
            devices=lambda: node.devices,
            behind=Behind(preparing, specifications, prepared, seconds),
        )

    def not_ready(self) -> list[str]:
        """What the kubelet has not been told of yet."""
        claims = self.claims.not_ready() if self._places.dra else []
        return self.door.not_ready() + claims

    async def serve(self) -> None:
        """Be there for the kubelet, until cancelled."""
        await asyncio.to_thread(self._make_places)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.door.serve())
            if self._places.dra:
                group.create_task(self.claims.serve())
            group.create_task(self._offer())
            group.create_task(self._advise())
            group.create_task(self._tidy())
            group.create_task(self._resize())

    async def _offer(self) -> None:
        """Tell the kubelet of every slot, and again whenever devices or names change."""
        reports = 0
        while True:
            reports = await self._agent.reported(reports + 1)
            await self.door.offer(
                slots_of(
                    self._node.devices.values(),
                    count_names(manifest_config(self._agent.configuration).dialects),
                )
            )

    async def _advise(self) -> None:
        while True:
            await asyncio.sleep(ADVISE_S)
            now_s = self._clock.now().timestamp()
            await asyncio.to_thread(self._hands.regions.advise, now_s, 2 * ADVISE_S)

    async def _resize(self) -> None:
        """Hold running containers to their size: all of them at first, then whoever got another."""
        await self._agent.reported(1)  # by then the ledger was read to its end
        view = self._view
        view.resized.update(view.held)
        while True:
            view.was_resized.clear()
            while view.resized:
                await self._preparing.resize(view.resized.pop())
            await view.was_resized.wait()

    async def _tidy(self) -> None:
        """Take away what pods had that the kubelet has forgotten; and find what has died."""
        await self._agent.reported(1)  # by then the ledger was read to its end
        while True:
            try:
                await self._tidied()
            except NotPrepared as problem:
                _log.warning("nothing is tidied up: %s", problem)
            await asyncio.sleep(TIDY_S)

    async def _tidied(self) -> None:
        """Raises NotPrepared."""
        hands = self._hands
        await asyncio.to_thread(hands.regions.keep, await self._holders.pods())
        needed = await hands.needed.shares()
        modes = {device.id: device.mode for device in self._node.devices.values()}
        await hands.instances.keep([card for card in modes if modes[card] == "mig"], needed)
        served = largest(share for share in needed if modes.get(share.device) == "mps")
        await hands.daemons.keep(served)

    def _grants_node(self) -> grants.Node:
        held = not self._agent.configuration.nvidia.disable_core_limit
        return structs.replace(self._places.of_grants(), core_limit=held)

    def _make_places(self) -> None:
        for folder in (self._places.state / "shares", self._places.state / "locks"):
            folder.mkdir(parents=True, exist_ok=True)
        (self._places.state / "locks").chmod(0o777)
        if self._places.library:
            write_whole(self._places.preload, _PRELOAD)


def slots_of(devices: Iterable[Device], names: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """How many slots each count name has: of all devices of its families."""
    by_family: dict[str, int] = {}
    for device in devices:
        by_family[device.family] = by_family.get(device.family, 0) + device.slots
    counts = {
        name: sum(by_family.get(family, 0) for family in families)
        for name, families in names.items()
    }
    return {name: count for name, count in counts.items() if count}
