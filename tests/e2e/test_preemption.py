"""Preemption with kubectl: the evicted pod and its preemptor get Events, and the GPU is reused."""

import json
from datetime import UTC, datetime
from typing import Any

from apportion_schemas import BudgetObserved, PodBound, PodEvicted, PodRefused
from tests.e2e.test_life import system
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.polling import until


def priority_class(name: str, value: int, **fields: Any) -> dict[str, Any]:
    """Return a PriorityClass. The API server copies its value into pods that name it."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        **fields,
    }


CLASSES = (
    priority_class("serving", 1_000),
    priority_class("patient", 1_000, preemptionPolicy="Never"),
)
WHOLE = share(15_000)
"""All that a T4 has."""


async def holding(world: KubeWorld, name: str, **fields: Any) -> None:
    """Create a pod without priority that uses a whole GPU, and wait until it is bound."""
    await world.plane.apply(kube_pod(name, WHOLE, **fields))
    await world.bound(name)


async def test_H8_a_pod_goes_for_one_of_higher_priority_and_both_are_told(world: KubeWorld) -> None:
    """A pod of higher priority evicts another pod and is nominated for that pod's node.

    The evicted pod keeps its grace period, and both pods get Events. Once the evicted pod has
    ended, the preemptor is bound."""
    await world.plane.apply(*CLASSES)
    await system(world)
    await holding(world, "low", terminationGracePeriodSeconds=77)
    await world.plane.apply(kube_pod("high", WHOLE, priorityClassName="serving"))
    (evicted,) = await world.facts.count(PodEvicted, 1)
    assert (evicted.name, evicted.beneficiary_name) == ("low", "default/high")

    async def leaving() -> Any:
        pod = await world.pod("low")
        return pod if "deletionTimestamp" in pod["metadata"] else None

    low = await until(leaving, "low to be told to go")
    assert low["metadata"]["deletionGracePeriodSeconds"] == 77
    target = next(c for c in low["status"]["conditions"] if c["type"] == "DisruptionTarget")
    assert (target["status"], target["reason"]) == ("True", "PreemptionByScheduler")
    await world.described("low", "Preempted", "is evicted from n1 for default/high")
    await world.described("high", "Preempting", "FailedScheduling")

    async def nominated() -> bool:
        return bool((await world.pod("high"))["status"].get("nominatedNodeName") == "n1")

    await until(nominated, "high to be nominated")
    await world.plane.apply(kube_pod("late", share(1_000)))
    await world.facts.count(PodRefused, 2)
    await world.delete("low")
    assert (await world.bound("high"))["spec"]["nodeName"] == "n1"
    assert len(await world.facts.count(PodBound, 2)) == 2


async def test_a_pod_with_notice_learns_when_it_will_be_deleted(world: KubeWorld) -> None:
    """If a pod asks for notice of its eviction, an annotation first names the time at which it will
    be deleted. The pod is deleted then."""
    await world.plane.apply(*CLASSES)
    await system(world)
    await holding(world, "low", annotations={"apportion.dev/eviction-notice": "4s"})
    await world.plane.apply(kube_pod("high", WHOLE, priorityClassName="serving"))

    async def announced() -> Any:
        pod = await world.pod("low")
        return pod if "apportion.dev/deleted-at" in pod["metadata"]["annotations"] else None

    low = await until(announced, "low to learn of its eviction")
    assert "deletionTimestamp" not in low["metadata"]
    assert any(each["type"] == "DisruptionTarget" for each in low["status"]["conditions"])
    due = datetime.fromisoformat(low["metadata"]["annotations"]["apportion.dev/deleted-at"])

    async def leaving() -> Any:
        return (await world.pod("low"))["metadata"].get("deletionTimestamp")

    await until(leaving, "low to be deleted")
    assert datetime.now(UTC) >= due
    await world.delete("low")
    await world.bound("high")


async def test_a_pod_without_devices_that_was_put_onto_its_node_goes(world: KubeWorld) -> None:
    """Preemption can evict a pod without devices whose author set `spec.nodeName`.

    No scheduler placed that pod. kube-scheduler evicts such pods too."""
    await world.plane.apply(*CLASSES)
    await system(world)
    await world.plane.apply(kube_pod("low", {"cpu": "60"}, nodeName="n1"))
    await world.plane.apply(kube_pod("high", {"cpu": "60"}, priorityClassName="serving"))
    (evicted,) = await world.facts.count(PodEvicted, 1)
    assert (evicted.name, evicted.beneficiary_name) == ("low", "default/high")
    await world.delete("low")
    assert (await world.bound("high"))["spec"]["nodeName"] == "n1"


async def test_who_never_preempts_waits(world: KubeWorld) -> None:
    """A pod with `preemptionPolicy: Never` stays pending and evicts no pod."""
    await world.plane.apply(*CLASSES)
    await system(world)
    await holding(world, "low")
    await world.plane.apply(kube_pod("patient", WHOLE, priorityClassName="patient"))
    await world.facts.count(PodRefused, 1)
    await world.plane.apply(kube_pod("high", WHOLE, priorityClassName="serving"))
    (evicted,) = await world.facts.count(PodEvicted, 1)
    assert evicted.beneficiary_name == "default/high"
    await world.delete("low")
    await world.bound("high")
    await world.delete("high")
    await world.bound("patient")


async def test_a_disruption_budget_spares_a_pod_while_another_will_do(world: KubeWorld) -> None:
    """While another pod can be evicted, preemption spares a pod that a disruption budget
    protects."""
    await world.plane.apply(*CLASSES, kube_node("n2"))
    await system(world)
    await world.agents(("n2", "1xT4"))
    await holding(world, "guarded", labels={"app": "guarded"})
    await holding(world, "other", labels={"app": "other"})
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    }
    await world.plane.apply(budget)
    (told,) = await world.facts.count(BudgetObserved, 1)
    assert (told.budget, told.allowed) == ("b", 0)
    await world.plane.apply(kube_pod("high", WHOLE, priorityClassName="serving"))
    (evicted,) = await world.facts.count(PodEvicted, 1)
    assert (evicted.name, evicted.budgets) == ("other", ())
    status = {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
    seen = await world.plane.get("poddisruptionbudget", "b")
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/b/status"
    document = json.dumps(seen | {"status": status})
    await world.plane.user("replace", "--raw", path, "-f", "-", stdin=document)
    assert (await world.facts.count(BudgetObserved, 2))[1].allowed == 1
    await world.plane.user("delete", "poddisruptionbudget", "b")


async def test_a_binder_that_was_away_evicts_when_it_is_back(world: KubeWorld) -> None:
    """An eviction that is decided while the binder is down is carried out once the binder
    restarts."""
    await world.plane.apply(*CLASSES)
    await system(world)
    await holding(world, "low")
    await world.stop("binder")
    await world.plane.apply(kube_pod("high", WHOLE, priorityClassName="serving"))
    await world.facts.count(PodEvicted, 1)
    assert "deletionTimestamp" not in (await world.pod("low"))["metadata"]
    await world.start("binder")

    async def leaving() -> bool:
        return "deletionTimestamp" in (await world.pod("low"))["metadata"]

    await until(leaving, "low to be told to go")
    await world.delete("low")
    await world.bound("high")
