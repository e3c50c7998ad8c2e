"""Apportion over time: freed devices are used at once, and a restart changes no running pod."""

import json
from typing import Any

from apportion.core.workloads.adoption.placement_annotations import (
    NEXT_PROCESS,
    RESIZED_CORES,
    SHARES,
)
from apportion_schemas import (
    DifferenceFound,
    PlacementVoided,
    PodBound,
    PodGone,
    PodPlaced,
    PodSubmitted,
    ResizeAsked,
)
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.polling import until

VERBS = ("watcher", "scheduler", "binder")
ROUNDS = 3


async def system(world: KubeWorld) -> None:
    """Start a node with one GPU, and every service."""
    await world.plane.apply(kube_node("n1"))
    await world.agents(("n1", "1xT4"))
    for verb in VERBS:
        await world.start(verb)


async def test_room_that_is_made_is_used(world: KubeWorld) -> None:
    """When a pod ends, a pending pod that needs the freed GPU is bound."""
    await system(world)
    whole = [kube_pod(f"p{number}", share(15_000)) for number in range(ROUNDS + 1)]
    await world.plane.apply(*whole)
    await world.facts.count(PodSubmitted, ROUNDS + 1)
    for number in range(ROUNDS):
        *_, last = await world.facts.count(PodBound, number + 1)
        holder = next(event for event in world.facts.of(PodPlaced) if event.pod == last.pod)
        await world.delete(holder.name)
    bound = await world.facts.count(PodBound, ROUNDS + 1)
    assert len({event.pod for event in bound}) == ROUNDS + 1


async def test_a_new_node_takes_the_pod_that_waited_for_it(world: KubeWorld) -> None:
    """A pod that fits on no node is bound as soon as a suitable node joins."""
    await system(world)
    await world.plane.apply(kube_pod("large", share(70_000)))
    await world.described("large", "FailedScheduling")
    await world.plane.apply(kube_node("n2"))
    await world.agents(("n2", "1xA100-80GB"))
    bound = await world.bound("large")
    assert bound["spec"]["nodeName"] == "n2"
    (binding,) = await world.facts.count(PodBound, 1)
    assert binding.pod == bound["metadata"]["uid"]


async def test_stopping_everything_touches_no_pod_and_starting_again_adopts_them(
    world: KubeWorld,
) -> None:
    """Stopping and restarting all services changes no running pod, and repeats no decision."""
    await system(world)
    await world.plane.apply(*(kube_pod(f"p{number}", share(2_000)) for number in range(3)))
    await world.facts.count(PodBound, 3)
    before = json.loads(await world.plane.user("get", "pods", "-o", "json"))["items"]
    await world.stop(*VERBS)
    after = json.loads(await world.plane.user("get", "pods", "-o", "json"))["items"]
    assert [pod["metadata"]["resourceVersion"] for pod in after] == [
        pod["metadata"]["resourceVersion"] for pod in before
    ]
    for verb in VERBS:
        await world.start(verb)
    await world.plane.apply(kube_pod("next", share(2_000)))
    await world.bound("next")
    assert len(await world.facts.count(PodPlaced, 4)) == len(world.facts.of(PodSubmitted)) == 4
    assert not world.facts.of(PodGone)
    assert not world.facts.of(PlacementVoided)


async def test_a_pod_that_is_resized_says_so(world: KubeWorld) -> None:
    """After a resize, the pod's annotations show the new share, and cluster and ledger agree."""
    await system(world)
    await world.plane.apply(kube_pod("p", share(2_000)))
    uid = (await world.bound("p"))["metadata"]["uid"]
    await world.facts.write(ResizeAsked(pod=uid, by="ann", memory_mib=3_000, cores=40))

    async def told() -> Any:
        notes = (await world.pod("p"))["metadata"]["annotations"]
        (held,) = json.loads(notes[SHARES])
        return notes if (held["memory_mib"], held["cores"]) == (3_000, 40) else None

    notes = await until(told, "the pod to say what it holds")
    assert ",3000,40:" in notes["hami.io/vgpu-devices-allocated"]
    assert notes[RESIZED_CORES] == NEXT_PROCESS
    await world.described("p", "Resized")
    await world.plane.apply(kube_pod("q", share(12_500)))
    await world.described("q", "FailedScheduling")
    await world.facts.write(ResizeAsked(pod=uid, by="ann", memory_mib=1_000))
    await world.bound("q")
    assert not world.facts.of(DifferenceFound)


async def test_an_annotation_that_somebody_changed_is_noticed(world: KubeWorld) -> None:
    """If a user changes a pod's shares annotation, the watcher logs and counts the difference.

    The ledger keeps the real shares."""
    await world.plane.apply(kube_node("n1"), kube_pod("p", share(2_000)))
    await world.agents(("n1", "1xT4"))
    watcher = await world.start("watcher", "--compare-every", "1")
    await world.start("scheduler")
    await world.start("binder")
    await world.bound("p")
    health = (await watcher.get("/metrics"))[1]
    assert 'apportion_watcher_repairs{kind="annotation"} 0.0' in health
    await world.plane.user("annotate", "--overwrite", "pod", "p", f"{SHARES}=[]")
    line = await watcher.logged("annotation differs from the ledger")
    assert "default/p" in line["event"]
    (found,) = await world.facts.count(DifferenceFound, 1)
    assert (found.kind, found.name, found.cluster) == ("annotation", "default/p", "[]")
    assert 'apportion_watcher_repairs{kind="annotation"} 0.0' not in str(
        (await watcher.get("/metrics"))[1]
    )
    assert len(world.facts.of(PodPlaced)) == 1
