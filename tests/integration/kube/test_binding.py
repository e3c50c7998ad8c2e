"""Placements become bindings at a real API server, each in a single write. Every outcome is
recorded as an event in the ledger."""

import json

from apportion.core.devices.simulating import simulated_devices
from apportion.core.workloads.adoption.placement_annotations import ATTEMPT, SHARES, UID
from apportion_schemas import (
    BindFailed,
    Host,
    NodeGone,
    NodeObserved,
    NodeReported,
    PodBound,
    PodGone,
    PodSubmitted,
    Shape,
)
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld

(DEVICE,) = simulated_devices("n1", "1xT4")
HOST = Host(cpu_milli=64_000, memory_mib=65_536, pods=110)


async def test_a_pod_is_bound_with_its_shares_in_one_write(world: KubeWorld) -> None:
    """A pod created with kubectl is bound to its placement's node, with its shares and an Event."""
    await world.plane.apply(kube_node("n1"), kube_pod("p", share(3000, 30)))
    await world.agents(("n1", "2xA100-80GB"))
    await world.start("watcher")
    await world.start("scheduler", "--name", "s")
    await world.start("binder")
    pod = await world.bound("p")
    notes = pod["metadata"]["annotations"]
    (held,) = json.loads(notes[SHARES])
    assert (pod["spec"]["nodeName"], held["memory_mib"], held["cores"]) == ("n1", 3000, 30)
    assert (notes[ATTEMPT], notes[UID]) == ("1", pod["metadata"]["uid"])
    (bound,) = await world.facts.count(PodBound, 1)
    assert bound.pod == pod["metadata"]["uid"]
    await world.described("p", "Scheduled", "bound to n1", "3,000 MiB 30 %")
    await world.plane.user("delete", "pod", "p", "--grace-period=0", "--force")
    await world.facts.count(PodGone, 1)
    assert len(world.facts.of(PodSubmitted)) == 1


async def placed(world: KubeWorld, *names: str) -> list[str]:
    """Record these cluster pods in the ledger as submitted, and place them on node n1. Return their
    uids."""
    await world.plane.apply(kube_node("n1"), *(kube_pod(name, {}) for name in names))
    await world.facts.write(NodeReported(node="n1", devices=(DEVICE,), host=HOST))
    uids = []
    for name in names:
        uid = (await world.pod(name))["metadata"]["uid"]
        await world.facts.write(
            PodSubmitted(uid=uid, namespace="default", name=name, shape=Shape(), dialect="none")
        )
        uids.append(uid)
    return uids


async def place(world: KubeWorld, uid: str, name: str, node: str = "n1") -> None:
    """Append a placement to the ledger."""
    await world.facts.place(uid, node, DEVICE.id, name=name)


async def test_what_a_lost_answer_left_is_recognised(world: KubeWorld) -> None:
    """If the reply to a binding was lost, the binder finds the pod already bound, and records the
    binding once."""
    (uid,) = await placed(world, "p")
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "annotations": {ATTEMPT: "1"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    path = "/api/v1/namespaces/default/pods/p/binding"
    await world.plane.user("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
    await place(world, uid, "p")
    await world.start("binder")
    (bound,) = await world.facts.count(PodBound, 1)
    assert (bound.pod, bound.node) == (uid, "n1")
    assert not world.facts.of(BindFailed)


async def test_every_way_to_fail_is_an_event(world: KubeWorld) -> None:
    """A binding that fails is recorded as an event with its cause: the pod is bound to another
    node, the node is missing, or the pod is gone."""
    elsewhere, gone, other = await placed(world, "elsewhere", "gone", "other")
    await world.plane.apply(kube_node("n2"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "elsewhere"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n2"},
    }
    path = "/api/v1/namespaces/default/pods/elsewhere/binding"
    await world.plane.user("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
    await world.plane.user("delete", "pod", "gone", "--grace-period=0", "--force")
    await place(world, elsewhere, "elsewhere")
    await place(world, gone, "gone")
    await world.facts.write(NodeObserved(node="n3", ready=True, cpu_milli=1, memory_mib=1, pods=9))
    await world.facts.place(other, "n3", name="other")
    await world.facts.write(NodeGone(node="n3"))
    await world.start("binder")

    def told() -> dict[str, BindFailed]:
        return {event.pod: event for event in world.facts.of(BindFailed)}

    await world.facts.until(lambda: len(told()) == 3, "every binding failed")  # some do again
    failed = told()
    assert failed[elsewhere].final
    assert "n2" in failed[elsewhere].message
    assert not failed[other].final
    assert "n3" in failed[other].message
    assert not failed[gone].final
    assert "not found" in failed[gone].message
