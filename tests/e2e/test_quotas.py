"""ResourceQuotas with kubectl: a pod that exceeds a quota stays pending with the reason."""

import json
from typing import Any

from apportion_schemas import PodBound, QuotaObserved
from tests.e2e.test_life import system
from tests.support.kube_objects import kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.polling import until

MEMORY = "limits.nvidia.com/gpumem"
COUNT = "requests.nvidia.com/gpu"


def quota(**hard: str) -> dict[str, Any]:
    """Return a ResourceQuota for GPU memory and GPUs in the default namespace."""
    names = {"memory": MEMORY, "count": COUNT}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus"},
        "spec": {"hard": {names[key]: most for key, most in hard.items()}},
    }


async def test_a_quota_of_device_memory_holds_pods_back_until_it_is_raised(
    world: KubeWorld,
) -> None:
    """A pod that exceeds a quota of device memory stays pending until the quota is raised.

    The API server does not enforce such a quota; Apportion does. It counts real amounts: half of a
    T4 is 7,680 MiB, although the manifest has only a percentage."""
    await system(world)
    await world.plane.apply(quota(memory="10000"))
    await world.facts.count(QuotaObserved, 1)
    half = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}
    await world.plane.apply(kube_pod("half", half))
    await world.bound("half")
    await world.plane.apply(kube_pod("more", share(3000)))
    said = f"its ResourceQuota gpus is short of {MEMORY}: 7,680 of 10,000 used, 3,000 more needed"
    await world.described("more", "FailedScheduling", "PodScheduled", "ResourceQuota gpus")
    (condition,) = (await world.pod("more"))["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "QuotaExceeded")
    assert said in condition["message"]
    await world.plane.apply(quota(memory="12000"))
    await world.bound("more")


async def test_a_pod_of_the_namespace_that_ends_makes_room_in_its_quota(world: KubeWorld) -> None:
    """When a pod ends, a pending pod of the same namespace may use the quota that was freed.

    Pods of other namespaces are not limited by that quota."""
    await system(world)
    await world.plane.apply(quota(memory="4000"))
    await world.facts.count(QuotaObserved, 1)
    await world.plane.apply(*(kube_pod(name, share(3000)) for name in ("a", "b", "c")))
    (first,) = await world.facts.count(PodBound, 1)
    names = {(await world.pod(name))["metadata"]["uid"]: name for name in ("a", "b", "c")}
    waiting = [name for uid, name in names.items() if uid != first.pod]
    for name in waiting:
        await world.described(name, "FailedScheduling", "its ResourceQuota gpus is short of")
    await world.delete(names[first.pod])
    (*_, second) = await world.facts.count(PodBound, 2)
    assert names[second.pod] in waiting
    await world.plane.user("delete", "resourcequota", "gpus")
    await world.facts.count(PodBound, 3)


async def test_pods_beyond_what_the_api_server_counts_are_refused_at_their_creation(
    world: KubeWorld,
) -> None:
    """The API server itself rejects pods that exceed a quota on `requests.` resources. Apportion
    never sees these pods."""
    await system(world)
    limited = quota(count="1")
    await world.plane.apply(limited)
    used = {"hard": limited["spec"]["hard"], "used": {COUNT: "0"}}  # as its controller begins
    seen = await world.plane.get("resourcequota", "gpus")
    path = "/api/v1/namespaces/default/resourcequotas/gpus/status"
    document = json.dumps(seen | {"status": used})
    await world.plane.user("replace", "--raw", path, "-f", "-", stdin=document)

    async def refused() -> str:
        """Create a pod. Return the refusal, or an empty string while the API server has not seen
        the quota."""
        pod = kube_pod(f"p{next(numbers)}", share(1000))
        try:
            await world.plane.apply(pod)
        except AssertionError as error:
            return str(error)
        return ""

    numbers = iter(range(100))
    said = await until(refused, "a pod to be refused")
    assert f"quota: gpus, requested: {COUNT}=1" in said
    # Once, though the API server has written its status.
    (told,) = await world.facts.count(QuotaObserved, 1)
    assert told.hard == {COUNT: 1}
