"""Measure how soon a pending pod is bound once a GPU becomes available.

    python -m tests.benchmarks.room --json

Runs a real API server, a real ledger and all services on this machine. Each figure is the longest
of a few rounds, in milliseconds, and ends at the pod's PodBound event:

- `released_ms` starts just before kubectl deletes another pod, which uses the GPU.
- `new_node_ms` starts when the ledger has both events of a new node.
- `raised_quota_ms` starts just before kubectl raises the quota."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from apportion_schemas import (
    NodeObserved,
    NodeReported,
    PodBound,
    PodPlaced,
    PodSubmitted,
    QuotaObserved,
)
from apportion_schemas.quantities import Payload
from tests.benchmarks.telling import parser_of, tell
from tests.e2e.test_life import system
from tests.e2e.test_quotas import quota
from tests.support.control_plane import ControlPlane, binaries
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld, running_world

CARD = 15_000
LARGE = 70_000


async def released(world: KubeWorld, rounds: int) -> float:
    """Return the longest time in ms until a pending pod uses a released GPU.

    All pods request the cluster's only GPU as a whole."""
    await world.plane.apply(*(kube_pod(f"p{number}", share(CARD)) for number in range(rounds + 1)))
    await world.facts.count(PodSubmitted, rounds + 1)
    took = []
    for number in range(rounds):
        *_, last = await world.facts.count(PodBound, number + 1)
        holder = next(event for event in world.facts.of(PodPlaced) if event.pod == last.pod)
        began = datetime.now(UTC)
        await world.delete(holder.name)
        await world.facts.count(PodBound, number + 2)
        took.append(_ms(began, _told(world, PodBound)))
    return max(took)


async def new_node(world: KubeWorld, rounds: int) -> float:
    """Return the longest time in ms until a pending pod uses a new node.

    The pod fits on no other node."""
    took = []
    for number in range(rounds):
        pod, node = f"large-{number}", f"new-{number}"
        await world.plane.apply(kube_pod(pod, share(LARGE)))
        await world.described(pod, "FailedScheduling")
        await world.plane.apply(kube_node(node))
        await world.agents((node, "1xA100-80GB"))
        await world.facts.count(PodBound, number + 1)
        known = max(_told(world, kind) for kind in (NodeReported, NodeObserved))
        took.append(_ms(known, _told(world, PodBound)))
    return max(took)


async def raised_quota(world: KubeWorld, rounds: int) -> float:
    """Return the longest time in ms until a pending pod uses a raised quota.

    Each raise admits one more small pod."""
    await world.plane.apply(quota(memory="100"))
    await world.facts.count(QuotaObserved, 1)
    took = []
    for number in range(rounds):
        name = f"small-{number}"
        await world.plane.apply(kube_pod(name, share(1000)))
        await world.described(name, "quota gpus")
        began = datetime.now(UTC)
        await world.plane.apply(quota(memory=str(1000 * (number + 1))))
        await world.facts.count(PodBound, number + 1)
        took.append(_ms(began, _told(world, PodBound)))
    return max(took)


def _told(world: KubeWorld, kind: type[Payload]) -> datetime:
    """Return the recorded time of the latest event of this type."""
    times = (event.time for _, event in world.facts.events if isinstance(event.data, kind))
    return max(map(datetime.fromisoformat, times))


def _ms(began: datetime, ended: datetime) -> float:
    return round((ended - began).total_seconds() * 1000, 1)


@asynccontextmanager
async def _world(plane: ControlPlane) -> AsyncIterator[KubeWorld]:
    with tempfile.TemporaryDirectory() as folder:
        async with running_world(plane, Path(folder)) as world:
            await system(world)
            yield world


async def measure(rounds: int) -> dict[str, float]:
    """Run the benchmark once, and return its figures."""
    figures: dict[str, float] = {"rounds": rounds}
    with tempfile.TemporaryDirectory() as folder:
        plane = ControlPlane(binaries(), Path(folder))
        plane.start()
        try:
            for work in (released, new_node, raised_quota):
                async with _world(plane) as world:
                    figures[f"{work.__name__}_ms"] = await work(world, rounds)
        finally:
            plane.stop()
    return figures


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    tell(parser, lambda given: asyncio.run(measure(given.rounds)))


if __name__ == "__main__":
    main()
