"""Gives out devices in `Allocate`, for a container runtime that does not support CDI.

The kubelet names no pod in `Allocate`, so the pod is inferred from the ledger: only one pod of the
node can be next (`core.ledger.handlers.turns`). The answer names the intended container, and
`PreStartContainer` checks that name. The kubelet's checkpoint keeps the answer, so this module
saves nothing. Invariant: `Allocate` never fails and takes at most `PATIENCE_S`. In doubt, the
answer has no devices."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from apportion.agent.kubelet import kubelet_pb2 as pb
from apportion.agent.kubelet.holders import Holders
from apportion.agent.kubelet.port import HANDED_TO, NotPrepared
from apportion.agent.reporting.view import Claim, NodeView
from apportion.core.grants import Edits, GrantRefused
from apportion.core.workloads.dialects.dialect import SLOT
from apportion_schemas import Device, Share

PATIENCE_S: Final = 2.0  # the kubelet admits no other pod in the meantime
# How long a binding may lag behind the kubelet while another pod is still to be bound. The known
# claim may belong to a pod that is gone, which no event reports to an agent. A container with the
# devices of such a pod never starts, so this allows for a binder on a busy machine.
SETTLE_S: Final = 1.0
VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
NOTHING: Final = "void"  # as the value of `VISIBLE`: NVIDIA's runtime gives the container nothing

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Handing:
    """Answers a kubelet's `Allocate` calls with devices, for a container runtime without CDI."""

    holders: Holders
    view: NodeView
    plan: Callable[[Claim, str], Edits]  # `SharePreparing.plan`
    _: KW_ONLY
    devices: Callable[[], Mapping[str, Device]]
    families: Callable[[str], Collection[str]]  # the device families that a resource name counts

    async def answer(self, resource: str, slots: int) -> Any:
        """Answer the kubelet's `Allocate` for a container that gets `slots` slots of `resource`."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                claim, container = await self._meant(resource, slots)
            edits = self.plan(claim, container)
        except TimeoutError:
            problem = f"no pod in the ledger waits for {slots} of {resource}"
        except (NotPrepared, GrantRefused) as error:
            problem = str(error)
        else:
            return answered(edits, claim.of(container))
        _log.warning("Allocate: container gets no devices: %s", problem)
        return answered(Edits({VISIBLE: NOTHING}), "")

    async def _meant(self, resource: str, slots: int) -> tuple[Claim, str]:
        settled = False
        while True:
            found = self._newest(resource, slots, await self.holders.allocated(resource))
            if found is not None and (settled or not self.view.unbound()):
                return found
            try:
                async with asyncio.timeout(None if found is None else SETTLE_S):
                    await self.view.another()
            except TimeoutError:
                settled = True

    def _newest(
        self, resource: str, slots: int, allocated: Mapping[str, Collection[str]]
    ) -> tuple[Claim, str] | None:
        families, devices = self.families(resource), self.devices()
        waiting = [claim for pod, claim in self.view.held.items() if pod not in self.view.answers]
        for claim in sorted(waiting, key=lambda claim: claim.bound_revision, reverse=True):
            done = allocated.get(claim.pod, ())
            by_container: dict[str, list[Share]] = {}
            for share in (*claim.placed.borrowed, *claim.placed.shares):
                by_container.setdefault(share.container, []).append(share)
            sizes = {
                name: 1 if resource == SLOT else len(shares)
                for name, shares in by_container.items()
                if all(each.device in devices for each in shares)
                and all(devices[each.device].family in families for each in shares)
            }
            left = [name for name, size in sizes.items() if name not in done and size == slots]
            if left:
                own = [share.container for share in claim.placed.shares]
                if left[0] in own:
                    return claim, left[0]
                # A borrower has the shares of the later container with the same slots.
                lenders = (name for name in own if sizes.get(name) == slots)
                return claim, next(lenders, left[0])
        return None


def answered(edits: Edits, to: str) -> Any:
    """Return an `Allocate` answer that applies the edits to the container `to`."""
    one = pb.Allocated(annotations={HANDED_TO: to})
    one.env.update(edits.env)
    for mount in edits.mounts:
        one.mounts.add(
            container_path=mount.container_path,
            host_path=mount.host_path,
            read_only=mount.read_only,
        )
    return one
