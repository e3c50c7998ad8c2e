"""Placements to bindings at a real API server: one write, and every outcome an event."""

import json

from apportion.core.manifests.placed import ATTEMPT, SHARES, UID
from apportion_schemas import PodBound, PodGone, PodSubmitted
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld


async def test_a_pod_is_bound_with_its_shares_in_one_write(world: KubeWorld) -> None:
    """Created with kubectl, bound where the ledger placed it, and told."""
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
