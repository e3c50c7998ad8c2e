"""Attack 8: a tenant assigns a pod to a node directly, so that its GPUs count as used.

The pod never runs, because no agent gives it a device. Without the guard in the watcher, the GPUs
are nevertheless unavailable to all other pods."""

from typing import Any

import pytest

from apportion.core.ledger.handlers.unattributed_devices import EVIDENCE
from apportion_schemas import NodeObserved, NodeReported, PodAdopted
from tests.security.weakened import without
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld

ONE = {"nvidia.com/gpu": "1"}
WHOLE = share(15_000)


async def attacked(world: KubeWorld, guard: str, notes: Any) -> Any:
    """Create a pod with forged annotations on a node of four GPUs. Start the services.

    Return the watcher, which runs with the named guard removed."""
    await world.plane.apply(kube_node("n1"))
    await world.agents(("n1", "4xT4"))
    (report,) = await world.facts.count(NodeReported, 1)
    forged = {
        key: value.format(*(each.id for each in report.devices)) for key, value in notes.items()
    }
    by_hand = {"nodeName": "n1", "schedulerName": "hami-scheduler"}
    await world.plane.apply(kube_pod("forged", ONE, annotations=forged, **by_hand))
    watcher = await world.start("watcher", first=without(guard))
    for verb in ("scheduler", "binder"):
        await world.start(verb)
    return watcher


FOUR = {
    "hami.io/vgpu-devices-allocated": "".join(f"{{{at}}},NVIDIA,15360,100:" for at in range(4))
    + ";"
}


@pytest.mark.parametrize("guard", ["doubts annotations", ""], ids=["weak", "guarded"])
async def test_an_annotation_charges_whole_cards_to_a_pod_that_never_runs(
    world: KubeWorld, guard: str
) -> None:
    """A pod that requests one GPU and claims four in its annotation counts as using only one."""
    watcher = await attacked(world, guard, FOUR)
    (adopted,) = await world.facts.count(PodAdopted, 1)
    await world.plane.apply(kube_pod("works", WHOLE))
    if guard:
        assert len(adopted.shares) == 4
        await world.described("works", "FailedScheduling")
        return
    assert len(adopted.shares) == 1
    assert adopted.evidence.startswith(f"{EVIDENCE}: {next(iter(FOUR))} ")
    await watcher.logged("pod default/forged counts as using")
    await world.bound("works")


@pytest.mark.parametrize("guard", ["holds what was asked", ""], ids=["weak", "guarded"])
async def test_a_pod_without_an_annotation_closes_the_node(world: KubeWorld, guard: str) -> None:
    """A pod that was assigned to a node by hand, without a device annotation, uses up one GPU.
    The node's other GPUs stay available."""
    watcher = await attacked(world, guard, {})
    await world.plane.apply(kube_pod("works", WHOLE))
    if guard:
        await world.described("works", "FailedScheduling", "device is unhealthy")
        assert world.facts.of(NodeObserved)[-1].unnamed_families == ("nvidia",)
        return
    await world.bound("works")
    await watcher.logged("pod default/forged counts as using")
    (adopted,) = await world.facts.count(PodAdopted, 1)
    assert len(adopted.shares) == 1
