"""Real watchers record a cluster's pods in the ledger, including changes during their downtime."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from apportion.core.workloads.dialects.dialect import GPU_MILLI
from apportion.core.workloads.kinds.queues import KAI_QUEUE
from apportion_schemas import (
    NodeGone,
    NodeObserved,
    PodAdopted,
    PodGone,
    PodGroupObserved,
    PodRejected,
    PodSubmitted,
    QueueObserved,
)
from tests.support.control_plane import ControlPlane
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.polling import until
from tests.support.processes import ServiceProcess
from tests.support.topologies import exact, hyper_node, kai_topology
from tests.support.volcano_crds import kai_queue_crd, topology_crds

RAW = "/api/v1/namespaces/default/pods"


async def delete(world: KubeWorld, *names: str) -> None:
    """Run `kubectl delete` without waiting, because no kubelet is there."""
    await world.plane.user("delete", "pod", *names, "--grace-period=0", "--force")


async def bind(world: KubeWorld, name: str, node: str) -> None:
    """Bind a pod as another scheduler would."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    path = f"{RAW}/{name}/binding"
    await world.plane.user("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))


async def end(world: KubeWorld, name: str, phase: str, reason: str = "") -> None:
    """Set the pod's phase as a kubelet would."""
    pod = await world.pod(name)
    pod["status"] |= {"phase": phase, "reason": reason}
    path = f"{RAW}/{name}/status"
    await world.plane.user("replace", "--raw", path, "-f", "-", stdin=json.dumps(pod))


def live(world: KubeWorld) -> list[str]:
    """Return the names of the submitted pods for which the ledger has no end event."""
    gone = {event.uid for event in world.facts.of(PodGone)}
    return sorted(pod.name for pod in world.facts.of(PodSubmitted) if pod.uid not in gone)


def held(world: KubeWorld) -> list[str]:
    """Return the names of the pods that are live in the ledger. If a pod ended and was submitted
    again with the same uid, it counts as live."""
    pods: dict[str, str] = {}
    for _, event in world.facts.events:
        if isinstance(event.data, PodSubmitted):
            pods[event.data.uid] = event.data.name
        elif isinstance(event.data, PodGone):
            pods.pop(event.data.uid, None)
    return sorted(pods.values())


async def until_live(world: KubeWorld, *names: str) -> None:
    """Wait until exactly these pods are live in the ledger."""
    await world.facts.until(lambda: live(world) == sorted(names), f"pods {names}", 30)


async def measured(watcher: ServiceProcess, line: str) -> None:
    """Wait until the watcher's metrics contain this line. The watcher may lag behind the ledger."""

    async def there() -> bool:
        return line in (await watcher.get("/metrics"))[1]

    await until(there, line)


def newest(world: KubeWorld, node: str) -> Any:
    """Return the newest event in which the watcher recorded this node."""
    return [event for event in world.facts.of(NodeObserved) if event.node == node][-1]


async def test_pods_come_and_end_in_every_way_exactly_once(world: KubeWorld) -> None:
    """The watcher records each pod and each kind of end exactly once, and ignores other schedulers'
    pods."""
    names = ("deleted", "finished", "failed", "evicted", "stays")
    pods = [kube_pod(name, share()) for name in names]
    volcano = kube_pod("volcano", share(), schedulerName="volcano")
    foreign = kube_pod("foreign", share(), schedulerName="default-scheduler")
    await world.plane.apply(*pods, volcano, foreign)
    watcher = await world.start("watcher")
    await until_live(world, "volcano", *names)
    await delete(world, "deleted")
    await end(world, "finished", "Succeeded")
    await end(world, "failed", "Failed")
    await end(world, "evicted", "Failed", "Evicted")
    await until_live(world, "stays", "volcano")
    await delete(world, "finished", "failed", "evicted", "foreign", "stays")
    await until_live(world, "volcano")
    reasons = sorted(event.reason.split(" before")[0] for event in world.facts.of(PodGone))
    assert reasons == ["Failed", "Failed: Evicted", "Succeeded", "deleted", "deleted"]
    assert 'events_folded_total{type="refused"} 0.0' in (await watcher.get("/metrics"))[1]


async def test_a_pod_carries_what_kubectl_was_told(world: KubeWorld) -> None:
    """The event of a submitted pod has what the manifest says, such as owner, priority and gang."""
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "team"},
        "spec": {"minMember": 2, "queue": "training"},
    }
    queue = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "training"},
        "spec": {"weight": 3, "capability": {"cpu": "8", "memory": "1Gi"}},
    }
    note = {"scheduling.k8s.io/group-name": "team", "volcano.sh/task-spec": "worker"}
    pod = kube_pod("p", share(3000, 30), annotations=note)
    await world.plane.apply(queue, group, pod)
    await world.start("watcher")
    (submitted,) = await world.facts.count(PodSubmitted, 1)
    (ask,) = submitted.shape.asks
    assert (ask.memory_mib, ask.cores, ask.count) == (3000, 30, 1)
    assert (submitted.namespace, submitted.group, submitted.task) == (
        "default",
        "default/team",
        "worker",
    )
    (gang,) = world.facts.of(PodGroupObserved)
    assert (gang.group, gang.min_available, gang.queue) == ("default/team", 2, "training")
    (queue_seen,) = world.facts.of(QueueObserved)
    assert (queue_seen.weight, queue_seen.capability) == (3, {"cpu": 8000, "memory": 1024})


@pytest.fixture
def topologies(control_plane: ControlPlane) -> Iterator[None]:
    """Install the CRDs of HyperNodes and Topologies, and remove them after the test."""
    crds = topology_crds()
    control_plane.install(crds)
    yield
    for crd in crds:
        control_plane.kubectl("delete", "crd", crd["metadata"]["name"])


@pytest.mark.usefixtures("topologies")
async def test_topologies_of_volcano_and_KAI_are_read(world: KubeWorld) -> None:
    """The watcher reads HyperNodes and Topologies with its own rights. Nodes get a label for each
    HyperNode tier, and a KAI PodGroup the node label of its topology level."""
    levels = {"topology": "network", "requiredTopologyLevel": "rack"}
    group = {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"minMember": 1, "topologyConstraint": levels},
    }
    pod = kube_pod("p", share())
    pod["metadata"]["annotations"] = {"pod-group-name": "g"}
    await world.plane.apply(
        kube_node("n1"),
        hyper_node("s0", 1, exact("n1")),
        kai_topology("network", ("example.com/rack", "rack")),
        group,
        pod,
    )
    await world.start("watcher")
    (node,) = await world.facts.count(NodeObserved, 1)
    assert node.labels["apportion.dev/hypernode-tier-1"] == "s0"
    (seen,) = await world.facts.count(PodGroupObserved, 1)
    assert (seen.required_level, seen.levels) == ("example.com/rack", ("example.com/rack",))
    await world.plane.user("delete", "hypernodes.topology.volcano.sh", "s0")
    await world.facts.count(NodeObserved, 2)
    assert "apportion.dev/hypernode-tier-1" not in world.facts.of(NodeObserved)[-1].labels


@pytest.fixture
def kai_queues(control_plane: ControlPlane) -> Iterator[str]:
    """Install the CRD of KAI's Queue, and remove it after the test."""
    crd = kai_queue_crd()
    control_plane.install([crd])
    yield f"{crd['spec']['names']['plural']}.{crd['spec']['group']}"
    control_plane.kubectl("delete", "crd", crd["metadata"]["name"])


async def test_queues_of_kai_are_read_as_they_are(kai_queues: str, world: KubeWorld) -> None:
    """The watcher reads KAI's Queues, and reads a pod's queue from KAI's label. If Volcano has a
    Queue of the same name, the watcher uses Volcano's Queue and reports a problem."""
    free = {"quota": 0, "limit": -1, "overQuotaWeight": 2}
    version, kind = KAI_QUEUE
    queue = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "ml"},
        "spec": {
            "parentQueue": "research",
            "reclaimMinRuntime": "10m0s",
            "resources": {"cpu": free, "memory": free, "gpu": {**free, "quota": 2.5}},
        },
    }
    pod = kube_pod("p", share())
    pod["metadata"]["labels"] = {"kai.scheduler/queue": "ml"}
    await world.plane.apply(queue, pod)
    watcher = await world.start("watcher")
    (submitted,) = await world.facts.count(PodSubmitted, 1)
    assert submitted.queue == "ml"
    (seen,) = await world.facts.count(QueueObserved, 1)
    assert seen == QueueObserved(
        queue="ml",
        parent="research",
        weight=2,
        priority=100,
        deserved={GPU_MILLI: 2500},
        safe_s=600,
    )
    of_volcano = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "ml"},
        "spec": {"deserved": {"nvidia.com/gpu": 4}, "parent": "root"},
    }
    await world.plane.apply(of_volcano)
    await world.facts.count(QueueObserved, 2)
    assert world.facts.of(QueueObserved)[-1] == QueueObserved(
        queue="ml", deserved={"nvidia.com/gpu": 4}
    )
    await measured(watcher, "apportion_watcher_problems 1.0")
    await world.plane.user("delete", kai_queues, "ml")
    await measured(watcher, "apportion_watcher_problems 0.0")


async def test_a_gang_is_declared_again_for_pods_that_come_after_its_last_one(
    world: KubeWorld,
) -> None:
    """If a pod of a gang arrives after all other pods of the gang ended, the watcher declares the
    gang again, because readers drop a gang without pods."""
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "team"},
        "spec": {"minMember": 1},
    }
    note = {"scheduling.k8s.io/group-name": "team"}
    await world.plane.apply(group, kube_pod("one", share(), annotations=note))
    await world.start("watcher")
    await until_live(world, "one")
    await delete(world, "one")
    await until_live(world)
    await world.plane.apply(kube_pod("two", share(), annotations=note))
    await until_live(world, "two")
    assert len(world.facts.of(PodGroupObserved)) == 2


async def test_a_node_is_what_it_can_hold_less_what_others_placed(world: KubeWorld) -> None:
    """The watcher records each node's state, and its resources minus those of other schedulers'
    pods."""
    taint = {"key": "volcano.sh/vgpu", "effect": "NoSchedule"}
    amounts = {"cpu": "10", "memory": "10Gi", "pods": "5", "example.com/fpga": "4"}
    node = kube_node("n1", allocatable=amounts, labels={"zone": "a"}, taints=[taint])
    await world.plane.apply(node)
    await world.start("watcher")
    (seen,) = await world.facts.count(NodeObserved, 1)
    assert (seen.cpu_milli, seen.memory_mib, seen.pods) == (10_000, 10_240, 5)
    assert (seen.labels["zone"], seen.taints[0].key, seen.ready) == ("a", "volcano.sh/vgpu", True)
    foreign = kube_pod("foreign", {"cpu": "2", "memory": "1Gi", "example.com/fpga": "1"})
    foreign["spec"]["schedulerName"] = "default-scheduler"
    await world.plane.apply(foreign)
    await bind(world, "foreign", "n1")
    await world.facts.until(lambda: newest(world, "n1").pods == 4, "the foreign pod to count")
    less = newest(world, "n1")
    assert (less.cpu_milli, less.memory_mib) == (8000, 9216)
    assert less.extended["example.com/fpga"] == 3
    await end(world, "foreign", "Succeeded")
    await world.facts.until(lambda: newest(world, "n1").pods == 5, "the foreign pod to end")
    await world.plane.user("cordon", "n1")
    await world.facts.until(lambda: newest(world, "n1").unschedulable, "the cordon")
    await world.plane.user("delete", "node", "n1")
    await world.facts.count(NodeGone, 1)
    versions = [event.version for event in world.facts.of(NodeObserved)]
    assert versions == sorted(versions)


async def test_what_was_missed_is_found_on_return(world: KubeWorld) -> None:
    """A restarted watcher records the changes that it missed, and does not record unchanged objects
    again."""
    await world.plane.apply(
        kube_node("n1"), kube_node("n2"), *(kube_pod(name, share()) for name in ("stays", "goes"))
    )
    watcher = await world.start("watcher")
    await until_live(world, "stays", "goes")
    await watcher.kill()
    await delete(world, "goes")
    await world.plane.user("delete", "node", "n2")
    await world.plane.apply(kube_pod("comes", share()))
    await watcher.start()
    await watcher.ready()
    await until_live(world, "stays", "comes")
    assert len(world.facts.of(PodSubmitted)) == 3
    assert [event.node for event in await world.facts.count(NodeGone, 1)] == ["n2"]
    assert sorted(event.node for event in world.facts.of(NodeObserved)) == ["n1", "n2"]


async def test_two_watchers_say_everything_once(world: KubeWorld) -> None:
    """Two watchers together record everything once, even if one of them is killed and restarted
    under load."""
    one, two = await asyncio.gather(world.start("watcher"), world.start("watcher"))
    names = [f"p{number}" for number in range(40)]
    await world.plane.apply(kube_node("n1"), *(kube_pod(name, share()) for name in names[:20]))
    await one.kill()
    await world.plane.apply(*(kube_pod(name, share()) for name in names[20:]))
    await delete(world, *names[:10])
    await one.start()
    await until_live(world, *names[10:])
    await asyncio.gather(one.ready(), two.ready())
    assert len(world.facts.of(PodSubmitted)) == 40
    assert len(world.facts.of(PodGone)) == 10
    assert len(await world.facts.count(NodeObserved, 1)) == 1
    assert not world.facts.refused


async def test_a_pod_that_cannot_be_read_is_rejected_until_it_is_mended(world: KubeWorld) -> None:
    """The watcher rejects an invalid pod, names the field and value, and submits the pod once it is
    corrected."""
    bad = {"volcano.sh/vgpu-mode": "teleport"}
    await world.plane.apply(
        kube_pod("mended", share(), annotations=bad), kube_pod("dropped", share(), annotations=bad)
    )
    watcher = await world.start("watcher")
    rejected = await world.facts.count(PodRejected, 2)
    assert {event.name for event in rejected} == {"mended", "dropped"}
    assert rejected[0].field == 'metadata.annotations["volcano.sh/vgpu-mode"]'
    assert rejected[0].value == '"teleport"'
    await measured(watcher, "apportion_watcher_problems 2.0")
    await world.plane.user("annotate", "pod", "mended", "volcano.sh/vgpu-mode-")
    await until_live(world, "mended")
    await delete(world, "dropped")
    (gone,) = await world.facts.count(PodGone, 1)
    assert gone.uid in {event.uid for event in rejected}
    await measured(watcher, "apportion_watcher_problems 0.0")


async def test_the_api_server_dies_and_comes_back(world: KubeWorld) -> None:
    """The watcher survives a restart of the API server, and records nothing twice."""
    await world.plane.apply(kube_pod("before", share()))
    watcher = await world.start("watcher")
    await until_live(world, "before")
    world.plane.kill_server()
    await watcher.logged("retrying")
    assert (await watcher.get("/readyz"))[0] == 503
    await asyncio.to_thread(world.plane.start_server)
    await world.plane.apply(kube_pod("after", share()))
    await until_live(world, "before", "after")
    await watcher.ready()
    assert len(world.facts.of(PodSubmitted)) == 2


async def test_an_api_server_that_was_restored_is_compared_at_once(world: KubeWorld) -> None:
    """After the API server is restored from a backup, the watcher ends the pods that the backup
    lacks.

    The watcher becomes ready only afterwards."""
    before = [f"before-{number}" for number in range(6)]
    await world.plane.apply(*(kube_pod(name, share()) for name in before))
    watcher = await world.start("watcher")
    await until_live(world, *before)
    copy = await asyncio.to_thread(world.plane.back_up)
    after = [f"after-{number}" for number in range(20)]
    await world.plane.apply(*(kube_pod(name, share()) for name in after))
    await delete(world, *before[:3])
    await until_live(world, *before[3:], *after)
    assert (await watcher.get("/readyz"))[0] == 200
    await asyncio.to_thread(world.plane.restore, copy)
    await watcher.logged("the API server was unreachable")
    await watcher.ready()
    assert held(world) == before[3:]


async def test_pods_deleted_while_they_are_submitted_leave_nothing_behind(world: KubeWorld) -> None:
    """If pods of one name are created and deleted repeatedly, none of them stays live in the
    ledger."""
    watcher = await world.start("watcher")
    for number in range(30):
        await world.plane.apply(kube_pod("same", share()))
        for _ in range(number % 4):  # another step of its submission
            await watcher.get("/readyz")
        await delete(world, "same")
    await world.plane.apply(kube_pod("last", share()))
    await world.facts.until(lambda: held(world) == ["last"], "one pod", 30)
    await measured(watcher, 'apportion_watcher_repairs{kind="pod"} 0.0')


async def test_a_pod_that_another_scheduler_bound_is_held_where_it_is(world: KubeWorld) -> None:
    """If another scheduler binds a submitted pod, the watcher records the pod as gone and then as
    adopted on that node. The pod's CPU is counted once."""
    await world.plane.apply(kube_node("n1"), kube_pod("p", {"cpu": "1"}))
    await world.start("watcher")
    await until_live(world, "p")
    await bind(world, "p", "n1")
    (gone,) = await world.facts.count(PodGone, 1)
    assert "n1" in gone.reason
    (adopted,) = await world.facts.count(PodAdopted, 1)
    assert (adopted.pod, adopted.node) == (gone.uid, "n1")
    assert adopted.submitted.shape.node.cpu_milli == 1000
    await world.facts.until(
        lambda: newest(world, "n1").cpu_milli == 64_000, "the pod to count once"
    )
    told = [each.cpu_milli for each in world.facts.of(NodeObserved) if each.node == "n1"]
    assert told == [64_000, 63_000, 64_000]


async def test_what_only_a_comparison_of_the_whole_finds(world: KubeWorld) -> None:
    """A comparison with the whole cluster ends pods in the ledger whose deletion no watch will ever
    report."""
    await world.plane.apply(kube_node("n1"), kube_pod("p", share()))
    watcher = await world.start("watcher", "--compare-every", "1")
    await until_live(world, "p")
    assert 'repairs{kind="pod"} 0.0' in (await watcher.get("/metrics"))[1]
    await world.facts.submit("ghost")
    (gone,) = await world.facts.count(PodGone, 1)
    assert (gone.uid, gone.reason) == ("ghost", "deleted")
    assert 'repairs{kind="pod"} 1.0' in (await watcher.get("/metrics"))[1]
    assert live(world) == ["p"]
