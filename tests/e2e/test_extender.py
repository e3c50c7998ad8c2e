"""Apportion as an extender: a real kube-scheduler chooses the nodes, Apportion the devices."""

import asyncio
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from apportion.extender.extender import UNTOLD
from apportion_schemas import (
    Configuration,
    ConfigurationChanged,
    PodBound,
    PodPlaced,
    PodRefused,
    PodSubmitted,
)
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_scheduler import binary, kube_scheduler, policy_scheduler
from tests.support.kube_world import KubeWorld

NODES = ("n1", "n2", "n3")
CHOOSER = "default-scheduler"
MEMORY_MIB = 15_360  # of a T4
VERBS = ("watcher", "scheduler", "binder")


@pytest.fixture(autouse=True)
def _there_is_a_kube_scheduler(control_plane: object) -> None:
    binary()


def pod(name: str, memory_mib: int = 7000, **fields: Any) -> dict[str, Any]:
    """Return a pod for kube-scheduler, which then asks Apportion's extender where the pod fits."""
    return kube_pod(name, share(memory_mib), schedulerName=CHOOSER, **fields)


async def system(world: KubeWorld, *nodes: dict[str, Any], verbs: tuple[str, ...] = VERBS) -> str:
    """Start three nodes with one T4 each, the services named by `verbs`, and the extender.

    Return the extender's URL."""
    extended = Configuration(extended_scheduler_names=(CHOOSER,))
    await world.facts.write(ConfigurationChanged(by="test", configuration=extended))
    await world.plane.apply(*(nodes or [kube_node(name) for name in NODES]))
    await world.agents(*((name, "1xT4") for name in NODES))
    for verb in verbs:
        await world.start(verb)
    extender = await world.start("extender", "--listen", "127.0.0.1:0")
    return str((await extender.logged("extending"))["url"])


async def ask(url: str, verb: str, body: dict[str, Any]) -> Any:
    """Send one request to the extender as kube-scheduler does."""

    def post() -> Any:
        request = urllib.request.Request(  # noqa: S310 - our own address
            f"{url}/scheduler/{verb}", data=json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=40) as answer:  # noqa: S310 - our own
            return json.loads(answer.read())

    return await asyncio.to_thread(post)


async def test_kube_scheduler_binds_through_us_and_no_card_is_oversold(
    world: KubeWorld, tmp_path: Path
) -> None:
    """kube-scheduler binds six pods through the extender, and no GPU is overcommitted.

    A seventh pod, which does not fit, stays pending with the reason."""
    url = await system(world)
    with kube_scheduler(world.plane, tmp_path, url):
        await world.plane.apply(*(pod(f"p{number}") for number in range(7)))
        await world.facts.count(PodBound, 6)
        said = await world.described(
            next(iter(await unbound(world))), "FailedScheduling", "0/3 nodes are available"
        )
        assert "3 not enough free memory on the device" in said
    held: dict[str, int] = {}
    for placed in world.facts.of(PodPlaced):
        for each in placed.shares:
            held[each.device] = held.get(each.device, 0) + each.memory_mib
    assert len(held) == 3
    assert all(amount <= MEMORY_MIB for amount in held.values())
    for placed in world.facts.of(PodPlaced):
        found = await world.pod(placed.name)
        assert found["spec"]["nodeName"] == placed.node
        assert json.loads(found["metadata"]["annotations"]["apportion.dev/shares"])
        assert found["metadata"]["annotations"]["hami.io/vgpu-node"] == placed.node
    assert {each.chooser for each in world.facts.of(PodSubmitted)} == {CHOOSER}


async def test_a_burst_fills_every_card_to_the_last_slot(world: KubeWorld, tmp_path: Path) -> None:
    """30 pods at once, with two schedulers and two binders, fill all slots of the GPUs exactly.

    If two pods compete for a slot, the loser is refused at first and then tried again."""
    url = await system(world, verbs=(*VERBS, "scheduler", "binder"))
    with kube_scheduler(world.plane, tmp_path, url):
        began_s = time.monotonic()
        await world.plane.apply(*(pod(f"p{number}", 1500) for number in range(30)))
        await world.facts.count(PodBound, 30)
        took_s = time.monotonic() - began_s
    placed = world.facts.of(PodPlaced)
    assert len(placed) == len({each.pod for each in placed}) == 30
    refused = len(world.facts.of(PodRefused))  # on an idle machine 0 to 2
    print(f"30 pods through kube-scheduler in {took_s:.1f} s, {refused} refused at first")  # noqa: T201


async def unbound(world: KubeWorld) -> list[str]:
    """Return the names of the pods without a node."""
    pods = json.loads(await world.plane.user("get", "pods", "-o", "json"))["items"]
    return [p["metadata"]["name"] for p in pods if not p["spec"].get("nodeName")]


async def test_kube_scheduler_has_the_last_word_on_nodes(world: KubeWorld, tmp_path: Path) -> None:
    """kube-scheduler applies its own preferences, taints, selectors and CPU limits.

    It chooses among the nodes that the extender finds possible."""
    nodes = (
        kube_node("n1", labels={"zone": "a"}),
        kube_node("n2", labels={"zone": "b"}),
        kube_node(
            "n3", labels={"far": "yes"}, taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]
        ),
    )
    url = await system(world, *nodes)
    preferred = {
        "weight": 100,
        "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
    }
    liking = {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}
    tolerant = [{"key": "k", "operator": "Exists"}]
    hungry = pod("hungry", 1000, nodeSelector={"zone": "a"})
    hungry["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "65"
    with kube_scheduler(world.plane, tmp_path, url, weight=5):
        for number in range(3):
            name = f"likes-b-{number}"
            await world.plane.apply(pod(name, 1000, affinity={"nodeAffinity": liking}))
            assert (await world.bound(name))["spec"]["nodeName"] == "n2"
            # With the score of n2 at its highest, a pod that must be elsewhere is elsewhere.
            await world.plane.apply(pod(f"in-a-{number}", 1000, nodeSelector={"zone": "a"}))
            assert (await world.bound(f"in-a-{number}"))["spec"]["nodeName"] == "n1"
        await world.plane.apply(pod("far", 9000, tolerations=tolerant, nodeSelector={"far": "yes"}))
        assert (await world.bound("far"))["spec"]["nodeName"] == "n3"
        await world.plane.apply(hungry)
        await world.described("hungry", "Insufficient cpu")


async def test_B2_a_policy_file_with_predicates_schedules_vcuda_pods(
    world: KubeWorld, tmp_path: Path
) -> None:
    """kube-scheduler works with a policy file that was written for gpu-manager (vCUDA).

    It calls `/scheduler/predicates`, and pods get vCUDA's annotations."""
    url = await system(world)
    with policy_scheduler(world.plane, tmp_path, url):
        limits = {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "20"}
        names = [f"p{number}" for number in range(6)]
        await world.plane.apply(*(kube_pod(n, limits, schedulerName=CHOOSER) for n in names))
        await world.facts.count(PodBound, 6)
        for name in names:
            notes = (await world.bound(name))["metadata"]["annotations"]
            assert notes["tencent.com/predicate-gpu-idx-0"] == "0"
            assert notes["tencent.com/gpu-assigned"] == "false"
        assert {p.shares[0].memory_mib for p in world.facts.of(PodPlaced)} == {20 * 256}


def pod_events(world: KubeWorld) -> list[Any]:
    """Return the ledger's events except node reports, which may arrive at any time."""
    kinds = PodSubmitted | PodPlaced | PodRefused | PodBound
    return [event for _, event in world.facts.events if isinstance(event.data, kinds)]


async def test_a_filter_and_a_score_have_no_effect(world: KubeWorld) -> None:
    """Filter and score requests append nothing to the ledger.

    This holds whether a request has node names or whole Node objects."""
    url = await system(world)
    await world.plane.apply(pod("p", 15_000))
    await world.facts.count(PodSubmitted, 1)
    asked, nodes = await world.pod("p"), await world.plane.get("nodes")
    before = len(pod_events(world))
    for _ in range(3):
        by_name = {"Pod": asked, "NodeNames": [*NODES, "unheard-of"]}
        answer = await ask(url, "filter", by_name)
        assert (answer["NodeNames"], answer["Error"]) == ([*NODES], "")
        assert answer["FailedNodes"] == {"unheard-of": UNTOLD}
        whole = await ask(url, "predicates", {"pod": asked, "nodes": nodes})
        assert whole["Nodes"]["items"] == nodes["items"]
        scores = await ask(url, "prioritize", by_name)
        assert {row["Host"]: row["Score"] for row in scores} == {
            "n1": 10, "n2": 10, "n3": 10, "unheard-of": 0,
        }  # fmt: skip
    assert len(pod_events(world)) == before == 1


async def test_a_bind_places_once_and_only_where_it_fits(world: KubeWorld) -> None:
    """A repeated bind request changes nothing.

    A bind to another node, or to a node without enough free memory, is refused with the reason."""
    url = await system(world)
    await world.plane.apply(pod("large", 15_000), pod("small", 7000))
    await world.facts.count(PodSubmitted, 2)
    large, small = await world.pod("large"), await world.pod("small")

    async def bind(of: Any, node: str) -> str:
        about = of["metadata"]
        body = {
            "PodName": about["name"], "PodNamespace": about["namespace"],
            "PodUID": about["uid"], "Node": node,
        }  # fmt: skip
        return str((await ask(url, "bind", body))["Error"])

    assert await bind(large, "n2") == ""
    assert (await world.pod("large"))["spec"]["nodeName"] == "n2"
    assert await bind(large, "n2") == ""
    assert "n2" in await bind(large, "n1")
    refused = await bind(small, "n2")
    assert "not enough free memory on the device (1 node); n2 GPU-" in refused
    assert "is 6,640 MiB short" in refused
    assert len(await world.facts.count(PodRefused, 1)) == 1
    answer = await ask(url, "filter", {"Pod": small, "NodeNames": [*NODES]})
    assert answer["NodeNames"] == ["n1", "n3"]
    assert await bind(small, "n3") == ""
    assert len(await world.facts.count(PodPlaced, 2)) == 2


async def test_a_scheduler_that_is_away_delays_a_pod_and_loses_nothing(
    world: KubeWorld, tmp_path: Path
) -> None:
    """While no Apportion scheduler runs, binding through the extender fails with the reason.

    kube-scheduler retries, and the pod is bound once a scheduler runs."""
    url = await system(world, verbs=("watcher", "binder"))
    with kube_scheduler(world.plane, tmp_path, url):
        await world.plane.apply(pod("p"))
        await world.described("p", "FailedScheduling", "no Apportion scheduler accepted the choice")
        await world.start("scheduler")
        # kube-scheduler tries again when something changes, and after a minute without.
        await world.plane.user("label", "node", "n1", "changed=yes")
        await world.bound("p")
    assert len(await world.facts.count(PodBound, 1)) == len(world.facts.of(PodPlaced)) == 1


async def test_a_scheduler_that_is_killed_among_bindings_loses_none(
    world: KubeWorld, tmp_path: Path
) -> None:
    """If the Apportion scheduler is killed while pods are being bound, no pod is lost.

    The next scheduler takes over the open requests."""
    url = await system(world, verbs=("watcher", "binder"))
    first = await world.start("scheduler")
    with kube_scheduler(world.plane, tmp_path, url):
        await world.plane.apply(*(pod(f"p{number}", 1500) for number in range(30)))
        await world.facts.count(PodBound, 5)
        await first.kill()
        await world.start("scheduler")
        await world.facts.count(PodBound, 30)
    assert len(world.facts.of(PodPlaced)) == len({p.pod for p in world.facts.of(PodPlaced)}) == 30
