"""A slow reference implementation of the engine's choice of a node: it applies every filter to
every node.

It uses no index, and supports the policies `binpack` and `spread`."""

from collections import Counter
from collections.abc import Iterator
from copy import copy
from itertools import combinations
from typing import NamedTuple

from apportion.core.devices.demand import Demand, demand
from apportion.core.devices.shares import DeviceState, occupy
from apportion.core.ledger.state import NodeState, State
from apportion.core.placement.feasibility.evaluator import (
    FITS,
    ORDER,
    RANK,
    refused_amount,
    refused_kind,
    refused_node,
)
from apportion.core.placement.feasibility.nodes import discouraged, matches
from apportion.core.placement.index.packed import POINTS
from apportion_schemas import Ask, MigInstance, RefusalCode, Shape, Share

WHAT_IT_IS = (RefusalCode.NO_SUCH_DEVICE, RefusalCode.MODE_MISMATCH, RefusalCode.TYPE_MISMATCH)


class Choice(NamedTuple):
    """The node that a full scan chooses for a pod, and the reasons against the other nodes."""

    node: str  # "" if no node is chosen
    shares: tuple[Share, ...]
    points: int
    refused: dict[RefusalCode, int]
    taking: int  # nodes that could run the pod
    fitting: int  # nodes that pass every filter


def choose(state: State, shape: Shape) -> Choice:
    """Return the best node for a pod of this shape, and the pod's shares on it.

    Among equally good nodes, choose the first by name."""
    refused: Counter[RefusalCode] = Counter()
    best: tuple[int, str, tuple[Share, ...]] | None = None
    fitting = 0
    shunned = any(discouraged(shape, node) for node in state.nodes.values())
    for name, node in sorted(state.nodes.items()):
        code = refusal(shape, node)
        if code is not None:
            refused[code] += 1
            continue
        fitting += 1
        shares = assigned(shape, node)
        if shares is None:
            refused[_collision(shape)] += 1
            continue
        points = score(shape, node, shunned=shunned)
        if best is None or points > best[0]:
            best = (points, name, shares)
    if best is None:
        return Choice("", (), 0, dict(refused), 0, fitting)
    taking = len(state.nodes) - refused.total()
    return Choice(best[1], best[2], best[0], dict(refused), taking, fitting)


def _collision(shape: Shape) -> RefusalCode:
    """Return the refusal code for requests that each fit on the node, but not all together."""
    if shape.devices.numa_bind:
        return RefusalCode.NUMA_MISMATCH
    paired = len(shape.asks) == 1 and _in_pairs(shape.asks[0])
    return RefusalCode.MODULES_IN_USE if paired else RefusalCode.CONTAINERS_COLLIDE


def _in_pairs(ask: Ask) -> bool:
    """Return True if the request is for several dies of a 910C NPU.

    These dies are allocated only in pairs, as whole modules."""
    return ask.family == "ascend910c" and ask.count > 1


def refusal(shape: Shape, node: NodeState) -> RefusalCode | None:
    """Return the reason why the pod does not fit on the node, or None if it fits.

    Each device request is checked as if it were the only one, so the requests may still not all fit
    together."""
    verdict = refused_node(shape, node)
    if verdict is not None:
        return verdict.code
    for ask in shape.asks:
        ranks = sorted((reached(shape, ask, device) for device in node.devices), reverse=True)
        last = ranks[ask.count - 1] if ask.count <= len(ranks) else 0
        if last < FITS:
            nothing = RANK[RefusalCode.NO_SUCH_DEVICE]
            some = any(rank > nothing for rank in ranks)
            if last <= nothing:
                return RefusalCode.DEVICES_TOO_FEW if some else RefusalCode.NO_SUCH_DEVICE
            return ORDER[last]
    return None


def reached(shape: Shape, ask: Ask, state: DeviceState) -> int:
    """Return the rank of the first filter that refuses this device for the request, or `FITS`."""
    wanted = demand(ask, state.device)
    failed = [refused_kind(ask, shape.devices, state.device)]
    if failed[0] in WHAT_IT_IS:
        return RANK[failed[0]]
    if isinstance(wanted, RefusalCode):
        failed.append(wanted)
    else:
        verdict = refused_amount(wanted, state)
        failed.append(verdict.code if verdict else None)
    return min((RANK[code] for code in failed if code is not None), default=FITS)


def assigned(shape: Shape, node: NodeState) -> tuple[Share, ...] | None:
    """Return the pod's shares on the node in the order of its requests, or None if they do not all
    fit."""
    ranked = sorted(range(len(shape.asks)), key=lambda at: _ease(shape.asks[at], node, at))
    for group in _groups(shape, node):
        shares = _searched(shape, ranked, group)
        if shares is not None:
            return tuple(share for at in sorted(shares) for share in shares[at])
    return None


def score(shape: Shape, node: NodeState, *, shunned: bool) -> int:
    """Return the node's score: the mean of its load score and its preference scores.

    `shunned` is True if some node has a PreferNoSchedule taint that the pod does not tolerate."""
    if shape.asks:
        pairs = [
            [(d.device.memory_mib, d.memory_free_mib) for d in node.devices],
            [(d.device.cores, d.cores_free) for d in node.devices],
        ]
    else:
        host = node.host
        pairs = [
            [(host.memory_mib, host.memory_mib - node.memory_used_mib)],
            [(host.cpu_milli, host.cpu_milli - node.cpu_used_milli)],
        ]
    points = _load([(sum(t for t, _ in pair), sum(f for _, f in pair)) for pair in pairs])
    if shape.node_policy == "spread":
        points = POINTS - points
    terms = shape.node.preferred
    parts: list[tuple[int, int]] = []
    if terms:
        gained = sum(term.weight for term in terms if matches(term.term, node))
        parts.append((2, gained * POINTS // sum(term.weight for term in terms)))
    if shunned:
        parts.append((3, 0 if discouraged(shape, node) else POINTS))
    if parts:
        others = sum(weight * each for weight, each in parts) // sum(weight for weight, _ in parts)
        points = (points + others) // 2
    return points


def _load(pairs: list[tuple[int, int]]) -> int:
    """Return how full a node is, in score points: the mean fraction in use over several resources.

    Each pair is (total, free) of one resource. If any total is 0, return 0."""
    if any(total == 0 for total, _ in pairs):
        return 0
    used = [(total - free) * POINTS // total for total, free in pairs]
    return min(max(sum(used) // len(used), 0), POINTS)


def _groups(shape: Shape, node: NodeState) -> Iterator[list[DeviceState]]:
    if not shape.devices.numa_bind:
        yield node.devices
        return
    known = {state.device.numa for state in node.devices} - {None}
    for numa in sorted(number for number in known if number is not None):
        yield [state for state in node.devices if state.device.numa == numa]


def _ease(ask: Ask, node: NodeState, at: int) -> tuple[bool, int, int, int]:
    """Return a sort key that puts a pod's most demanding device requests first.

    Exclusive requests come first, then requests for more memory, then requests for more devices.
    `at` is the request's position in the pod, which breaks ties."""
    wanted = [demand(ask, s.device) for s in node.devices if s.device.family == ask.family]
    sizes = [found for found in wanted if isinstance(found, Demand)]
    alone = any(found.alone for found in sizes)
    return not alone, -max((found.memory_mib for found in sizes), default=0), -ask.count, at


def _searched(
    shape: Shape, ranked: list[int], devices: list[DeviceState]
) -> dict[int, list[Share]] | None:
    """Return the shares of the first combination of devices that satisfies all requests."""
    if not ranked:
        return {}
    at, *later = ranked
    ask = shape.asks[at]
    fitting = [n for n, state in enumerate(devices) if reached(shape, ask, state) == FITS]
    fitting.sort(key=lambda n: _before(shape, devices[n]))
    for some in combinations(fitting, ask.count):
        halves = Counter(devices[n].device.index // 2 for n in some)
        if _in_pairs(ask) and set(halves.values()) != {2}:
            continue
        left, shares = [copy(state) for state in devices], []
        for state in [left[n] for n in some]:
            wanted = demand(ask, state.device)
            assert isinstance(wanted, Demand)
            shares.append(_share(ask, wanted, state))
            occupy(state, shares[-1])
        found = _searched(shape, later, left)
        if found is not None:
            return {**found, at: shares}
    return None


def _before(shape: Shape, state: DeviceState) -> tuple[int, ...]:
    """Return a sort key that puts the device that this shape prefers first."""
    device = state.device
    load = _load([(device.memory_mib, state.memory_free_mib), (device.cores, state.cores_free)])
    if shape.device_policy == "spread":
        return device.slots - state.slots_free, load, device.index
    return -load, device.index


def _share(ask: Ask, wanted: Demand, state: DeviceState) -> Share:
    instance = None
    if wanted.profile is not None:
        free = [start for start, mask in wanted.places if not mask & state.taken]
        profile = wanted.profile
        instance = MigInstance(profile=profile.name, start=free[0], size=profile.size)
    return Share(
        container=ask.container,
        device=state.device.id,
        memory_mib=wanted.memory_mib,
        cores=wanted.cores,
        instance=instance,
        template=wanted.template,
    )
