"""Resize the shares of running pods: check if there is room, and compute the new shares.

Invariant: a resize stays on the pod's devices, within their free amounts and all limits."""

from collections import Counter
from typing import Any

from msgspec import structs

from apportion.core.ledger.state import NodeState, State
from apportion.core.placement.limits.limits import Limits
from apportion.core.placement.queueing.waiting import Waiting
from apportion_schemas import PodResized, ResizeAsked, ResizeRefused, Share
from apportion_schemas.placement import ResizeCode

LIVE = "hami-core"  # the sharing mode whose limits can be changed for a running process
_FAMILY = "nvidia"


class CannotResize(Exception):
    """Raised if a resize is impossible; `why` has the fields of the refusal."""

    def __init__(self, code: ResizeCode, **why: Any) -> None:
        super().__init__(code)
        self.why: dict[str, Any] = {"code": code, **why}


class Resizing:
    """Answers requests to resize running pods, one per decision."""

    def __init__(self, state: State, limits: Limits, waiting: Waiting) -> None:
        self._state = state
        self._limits = limits
        self._waiting = waiting

    def decide(self) -> PodResized | ResizeRefused | None:
        """Return the answer to the oldest resize request of a pod in our shard, or None."""
        state = self._state
        for uid, wish in sorted(state.resizes.items(), key=lambda item: item[1].revision):
            pod, placed = state.pods[uid], state.pods[uid].placement
            if placed is None or not self._waiting.owns(pod):
                continue
            about: dict[str, Any] = {
                "pod": pod.uid,
                "namespace": pod.submitted.namespace,
                "name": pod.submitted.name,
                "asked": wish.revision,
            }
            node = state.nodes[placed.node]
            try:
                shares = wanted_shares(node, placed.shares, wish.asked)
                _check_room(node, placed.shares, shares)
                if self._limits.active and (
                    exceeded := self._limits.exceeded_with(pod, placed, shares)
                ):
                    raise CannotResize("limit", queue=exceeded.queue, quota=exceeded.quota)
            except CannotResize as problem:
                return ResizeRefused(**about, **problem.why)
            return PodResized(**about, attempt=placed.attempt, node=placed.node, shares=shares)
        return None


def wanted_shares(
    node: NodeState, held: tuple[Share, ...], asked: ResizeAsked
) -> tuple[Share, ...]:
    """Return the shares that the pod would have after the resize; raise `CannotResize`."""
    names = tuple(dict.fromkeys(share.container for share in held))
    if not names:
        raise CannotResize("no-device")
    if asked.container and asked.container not in names:
        raise CannotResize("container-unknown", containers=names)
    if not asked.container and len(names) > 1:
        raise CannotResize("container-ambiguous", containers=names)
    if node.foreign_plugin:
        raise CannotResize("plugin")
    container = asked.container or names[0]
    shares = []
    for share in held:
        memory_mib = share.memory_mib if asked.memory_mib is None else asked.memory_mib
        cores = share.cores if asked.cores is None else asked.cores
        if share.container == container:
            device = node.by_id[share.device].device
            if device.mode != LIVE or device.family != _FAMILY:
                raise CannotResize("mode", device=device.id, mode=f"{device.family} {device.mode}")
            left = device.memory_mib
            if memory_mib > left:
                raise CannotResize(
                    "memory-beyond-device", device=device.id, needed=memory_mib, available=left
                )
            shares.append(structs.replace(share, memory_mib=memory_mib, cores=cores))
        else:
            shares.append(share)
    return tuple(shares)


def _check_room(node: NodeState, held: tuple[Share, ...], wanted: tuple[Share, ...]) -> None:
    memory, cores = Counter[str](), Counter[str]()
    for sign, shares in ((-1, held), (1, wanted)):
        for share in shares:
            memory[share.device] += sign * share.memory_mib
            cores[share.device] += sign * share.cores
    for name, more in memory.items():
        state = node.by_id[name]
        if not state.present:
            raise CannotResize("device-gone", device=name)
        _check_amount("memory", name, more, state.memory_free_mib)
        _check_amount("cores", name, cores[name], state.cores_free)


def _check_amount(code: ResizeCode, device: str, more: int, free: int) -> None:
    if more > max(free, 0):
        raise CannotResize(code, device=device, needed=more, available=max(free, 0))
