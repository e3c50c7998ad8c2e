"""Placements, refusals and rejections appear in `kubectl describe pod` and `kubectl get events`."""

import json
from typing import Any

from apportion_schemas import PodPlaced, PodRefused, PodSubmitted, RefusalCode
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.polling import until


async def system(world: KubeWorld, devices: str = "1xT4") -> None:
    """Create one node with these devices in the cluster, and start every service."""
    await world.plane.apply(kube_node("n1"))
    await world.agents(("n1", devices))
    for verb in ("watcher", "scheduler", "binder"):
        await world.start(verb)


async def events(world: KubeWorld, name: str) -> list[dict[str, Any]]:
    """Return the Events of a pod."""
    uid = (await world.pod(name))["metadata"]["uid"]
    where = f"involvedObject.uid={uid}"
    text = await world.plane.user("get", "events", "--field-selector", where, "-o", "json")
    return list(json.loads(text)["items"])


async def scheduled(world: KubeWorld, name: str, status: str) -> dict[str, Any]:
    """Wait until the pod's PodScheduled condition has this status, and return the condition."""

    async def told() -> dict[str, Any]:
        conditions = (await world.pod(name))["status"].get("conditions", ())
        so = (c for c in conditions if (c["type"], c["status"]) == ("PodScheduled", status))
        return next(so, {})

    return await until(told, f"pod {name} to be PodScheduled={status}", interval_s=0.2)


async def test_a_refused_pod_says_why_and_is_bound_once_there_is_room(world: KubeWorld) -> None:
    """A pod that fits nowhere gets one Event and a condition, and is bound once there is room."""
    await system(world)
    await world.plane.apply(kube_pod("large", share(999_000)), kube_pod("first", share(15_000)))
    await world.bound("first")
    shown = await world.described(
        "large", "FailedScheduling", "not enough free memory on the device"
    )
    assert "n1" in shown
    condition = await scheduled(world, "large", "False")
    assert condition["reason"] == "Unschedulable"
    assert "memory" in condition["message"]
    await world.plane.apply(kube_pod("second", share(15_000)))
    await world.described("second", "FailedScheduling")
    await world.plane.user("delete", "pod", "first", "--grace-period=0", "--force")
    await world.bound("second")
    shown = await world.described("second", "Scheduled", "bound to n1")
    await scheduled(world, "second", "True")
    (told,) = await events(world, "large")
    assert (told["type"], told["count"], told["source"]["component"]) == ("Warning", 1, "apportion")
    assert len([event for event in world.facts.of(PodRefused) if event.name == "large"]) == 1


async def test_what_is_so_again_counts_up_the_event_that_there_is(world: KubeWorld) -> None:
    """A repeated refusal increments the count of the existing Event, whichever binder reports the
    refusal."""
    await world.plane.apply(kube_node("n1"))
    await world.agents(("n1", "1xT4"))
    for verb in ("watcher", "binder", "binder"):
        await world.start(verb)
    await world.plane.apply(kube_pod("p", share(999_000)))
    (submitted,) = await world.facts.count(PodSubmitted, 1)
    for times in range(1, 4):
        refused = PodRefused(
            pod=submitted.uid, namespace="default", name="p", nodes=1,
            reasons={RefusalCode.MEMORY_INSUFFICIENT: 1},
        )  # fmt: skip
        await world.facts.write(refused, role="scheduler")

        async def told(times: int = times) -> bool:
            return [event["count"] for event in await events(world, "p")] == [times]

        await until(told, f"one event, {times} times", interval_s=0.2)


async def test_a_rejected_pod_says_what_to_mend(world: KubeWorld) -> None:
    """The Event of a rejected pod names the field, the value and the fix. Once the pod is
    corrected, it gets no more such Events."""
    await system(world)
    note = {"volcano.sh/vgpu-mode": "teleport"}
    await world.plane.apply(kube_pod("p", share(), annotations=note))
    await world.described("p", "Rejected", "volcano.sh/vgpu-mode", '"teleport"')
    assert (await scheduled(world, "p", "False"))["reason"] == "Rejected"
    await world.plane.user("annotate", "pod", "p", "volcano.sh/vgpu-mode-")
    await world.bound("p")
    await scheduled(world, "p", "True")


async def test_two_binders_and_a_new_one_tell_a_thing_once(world: KubeWorld) -> None:
    """Several binders, even restarted ones, write each Event once, because all of them derive the
    same name for the Event."""
    await system(world)
    other = await world.start("binder")
    await world.plane.apply(kube_pod("large", share(999_000)), kube_pod("small", share()))
    await world.described("large", "FailedScheduling")
    await world.described("small", "Scheduled")
    await other.kill()
    await other.start()
    await other.ready()
    await world.plane.apply(kube_pod("late", share()))
    await world.described("late", "Scheduled")
    assert len(await events(world, "large")) == 1
    assert len(await events(world, "small")) == 1
    assert len(await world.facts.count(PodPlaced, 2)) == 2
