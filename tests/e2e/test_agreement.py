"""The cluster and the ledger end up with the same placements.

This holds whichever scheduler bound a pod, and whichever events were lost. No device is given to
two pods, even if the ledger has no placement for one of them."""

import json
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from apportion.core.ledger.handlers.unattributed_devices import EVIDENCE
from apportion.core.workloads.adoption.placement_annotations import ATTEMPT, SHARES, shares_text
from apportion_schemas import (
    BindFailed,
    DifferenceFound,
    LedgerRebuilt,
    NodeObserved,
    NodeReported,
    PlacementVoided,
    PodAdopted,
    PodBound,
    PodGone,
    PodPlaced,
    PodSubmitted,
)
from tests.support.facts import Facts
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.nats import running_bus

VERBS = ("watcher", "scheduler", "binder")
WHOLE = share(15_000)
ASKS_ONE = {"nvidia.com/gpu": "1"}


@asynccontextmanager
async def another_ledger(world: KubeWorld, folder: Path) -> AsyncIterator[KubeWorld]:
    """Provide the same cluster with a new, empty ledger."""
    async with running_bus(folder / "nats-2") as bus, AsyncExitStack() as stack:
        facts = Facts(bus)
        await facts.open()
        yield KubeWorld(world.plane, bus, facts, stack)


async def rebuild(world: KubeWorld, *options: str) -> tuple[int, str]:
    """Run `apportion rebuild`, and return the exit code and output."""
    process = await create_subprocess_exec(
        sys.executable, "-m", "apportion.cli.main", "rebuild",
        "--nats", world.bus.server.url_for("operator"),
        "--kubeconfig", str(world.plane.kubeconfig), "--reason", "the disk is gone", *options,
        stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, (out + err).decode()


async def devices_of(world: KubeWorld) -> dict[str, str]:
    """Return the device of each bound pod, by pod name, read from the pod's annotation."""
    pods = (await world.plane.get("pods"))["items"]
    bound = [pod for pod in pods if SHARES in pod["metadata"].get("annotations", {})]
    return {
        pod["metadata"]["name"]: json.loads(pod["metadata"]["annotations"][SHARES])[0]["device"]
        for pod in bound
    }


async def start(world: KubeWorld, *verbs: str, devices: str = "4xT4") -> None:
    """Start the agent of node n1, and the services named by `verbs`."""
    await world.agents(("n1", devices))
    for verb in verbs:
        await world.start(verb)


@pytest.mark.parametrize("rebuilt", [True, False], ids=["rebuilt", "left to the watcher"])
async def test_a_lost_ledger_is_written_anew_and_no_card_is_given_away_twice(
    world: KubeWorld, tmp_path: Path, *, rebuilt: bool
) -> None:
    """After the ledger is lost, running pods keep their GPUs in a new ledger.

    Pending pods get only the other GPUs. This holds with and without `apportion rebuild`."""
    await world.plane.apply(kube_node("n1"))
    await start(world, *VERBS)
    await world.plane.apply(*(kube_pod(f"p{number}", WHOLE) for number in range(3)))
    await world.facts.count(PodBound, 3)
    await world.facts.until(lambda: len(world.facts.of(PodBound)) == 3, "three bindings")
    before = await devices_of(world)
    await world.stop(*VERBS, "agent")
    async with another_ledger(world, tmp_path) as anew:
        if rebuilt:
            code, said = await rebuild(anew, "--dry-run")
            assert (code, "3 of 3 bound pods" in said, anew.facts.events) == (0, True, []), said
            code, said = await rebuild(anew, "--json")
            assert (code, json.loads(said)["adopted"]) == (0, 3), said
            await anew.facts.count(PodAdopted, 3)
            assert isinstance(anew.facts.events[0][1].data, LedgerRebuilt)
        await start(anew, *VERBS)
        await anew.plane.apply(kube_pod("next", WHOLE))
        await anew.bound("next")
        await anew.plane.apply(kube_pod("last", WHOLE))
        await anew.described("last", "FailedScheduling")
        assert {pod.submitted.name for pod in anew.facts.of(PodAdopted)} == {"p0", "p1", "p2"}
        after = await devices_of(anew)
        assert {name: after[name] for name in before} == before
        assert len(set(after.values())) == len(after) == 4
        await anew.delete("p1")
        await anew.bound("last")
        assert (await devices_of(anew))["last"] == before["p1"]
        assert len(anew.facts.of(PodSubmitted)) == 2
        assert len(anew.facts.of(PodGone)) == 1
        code, said = await rebuild(anew)
        assert (code, "not lost" in said) == (1, True), said


async def test_a_pod_that_hami_bound_holds_its_card(world: KubeWorld) -> None:
    """A GPU of a pod that HAMi bound goes to no other pod until that pod ends."""
    await world.plane.apply(kube_node("n1"))
    await start(world, "watcher", "scheduler", "binder", devices="2xT4")
    (report,) = await world.facts.count(NodeReported, 1)
    card = report.devices[0].id
    theirs = {"hami.io/vgpu-devices-allocated": f"{card},NVIDIA,15000,0:;"}
    await world.plane.apply(kube_pod("theirs", WHOLE, schedulerName="another"))
    await world.bind("theirs", "n1", theirs)
    (adopted,) = await world.facts.count(PodAdopted, 1)
    assert [held.device for held in adopted.shares] == [card]
    await world.plane.apply(kube_pod("first", WHOLE), kube_pod("second", WHOLE))
    await world.facts.count(PodBound, 1)
    await world.facts.until(lambda: world.facts.of(PodPlaced), "a placement")
    assert set((await devices_of(world)).values()) == {report.devices[1].id}
    await world.delete("theirs")
    await world.facts.count(PodBound, 2)
    assert set((await devices_of(world)).values()) == {each.id for each in report.devices}


async def test_cards_of_which_nobody_says_who_has_them_are_not_offered(world: KubeWorld) -> None:
    """If a pod of another scheduler has no annotation that names its GPU, one GPU of the node is
    kept free.

    A pending pod gets that GPU only when the other scheduler's pod ends."""
    await world.plane.apply(kube_node("n1"), kube_pod("p", ASKS_ONE, schedulerName="another"))
    await world.bind("p", "n1", {})
    await start(world, "watcher", "scheduler", "binder", devices="2xT4")
    await world.plane.apply(kube_pod("first", WHOLE), kube_pod("second", WHOLE))
    await world.facts.count(PodBound, 1)
    (adopted,) = await world.facts.count(PodAdopted, 1)
    assert (adopted.submitted.name, adopted.evidence, len(adopted.shares)) == ("p", EVIDENCE, 1)
    (waiting,) = {"first", "second"} - (await devices_of(world)).keys()
    await world.described(waiting, "FailedScheduling", "not enough free memory on the device")
    observed: list[NodeObserved] = world.facts.of(NodeObserved)
    assert observed[-1].unnamed_families == ()
    await world.delete("p")
    await world.bound(waiting)


async def test_a_binding_that_had_been_given_up_is_found_and_held(world: KubeWorld) -> None:
    """If a binding succeeds after its placement was withdrawn, the watcher finds the binding.

    The pod keeps the devices of that binding."""
    await world.plane.apply(kube_node("n1"))
    await start(world, "watcher", "scheduler", devices="4xT4")
    await world.plane.apply(kube_pod("p", WHOLE))
    (first,) = await world.facts.count(PodPlaced, 1)
    await world.facts.write(
        BindFailed(pod=first.pod, node="n1", attempt=1, message="no answer", final=True)
    )
    await world.facts.count(PlacementVoided, 1)
    _, second = await world.facts.count(PodPlaced, 2)
    (report,) = world.facts.of(NodeReported)
    card = next(each.id for each in report.devices if each.id != second.shares[0].device)
    shares = (structs.replace(first.shares[0], device=card),)
    said = shares_text(shares)
    await world.bind("p", "n1", {SHARES: said, ATTEMPT: "1"})
    (adopted,) = await world.facts.count(PodAdopted, 1)
    assert (adopted.pod, adopted.attempt, adopted.shares) == (first.pod, 1, shares)
    await world.plane.apply(*(kube_pod(f"q{number}", WHOLE) for number in range(3)))
    await world.facts.count(PodPlaced, 5)
    cards = [event.shares[0].device for event in world.facts.of(PodPlaced)[2:]]
    assert len({*cards, card}) == 4


async def test_a_pod_made_again_under_its_name_has_what_was_bound_to_it(world: KubeWorld) -> None:
    """A recreated pod has exactly the devices that its binding names.

    This holds even if the scheduler chose these devices for a deleted pod of the same name."""
    await world.plane.apply(kube_node("n1"))
    await world.agents(("n1", "2xT4"))
    watcher = await world.start("watcher")
    await world.start("scheduler")
    await world.plane.apply(kube_pod("p", WHOLE))
    (first,) = await world.facts.count(PodPlaced, 1)
    await watcher.kill()
    await world.delete("p")
    await world.plane.apply(kube_pod("p", WHOLE))
    await world.start("binder")
    await world.facts.until(
        lambda: world.facts.of(PodBound) or world.facts.of(BindFailed), "an outcome"
    )
    await watcher.start()
    pod = await world.bound("p")
    uid, said = pod["metadata"]["uid"], pod["metadata"]["annotations"][SHARES]

    def held() -> list[Any]:
        held: list[Any] = [*world.facts.of(PodAdopted), *world.facts.of(PodPlaced)]
        return [each for each in held if each.pod == uid]

    await world.facts.until(held, "the second pod to be held")
    assert shares_text(held()[-1].shares) == said
    assert first.pod in {event.uid for event in world.facts.of(PodGone)}


async def test_what_the_ledger_cannot_account_for_is_told_and_counted(world: KubeWorld) -> None:
    """If two schedulers give one GPU to different pods, the watcher reports and counts the
    conflict.

    The node takes no more pods until the conflict is over."""
    await world.plane.apply(kube_node("n1"))
    await start(world, "scheduler", "binder", devices="1xT4")
    watcher = await world.start("watcher")
    await world.plane.apply(kube_pod("ours", WHOLE))
    pod = await world.bound("ours")
    (card,) = [each["device"] for each in json.loads(pod["metadata"]["annotations"][SHARES])]
    theirs = {"hami.io/vgpu-devices-allocated": f"{card},NVIDIA,9000,0:;"}
    await world.plane.apply(kube_pod("theirs", share(9000), schedulerName="another"))
    await world.bind("theirs", "n1", theirs)
    (found,) = await world.facts.count(DifferenceFound, 1)
    assert (found.kind, found.name) == ("conflict", "default/theirs")
    assert "memory_mib needed 9000" in found.ledger
    assert 'apportion_watcher_repairs{kind="conflict"} 1.0' in (await watcher.get("/metrics"))[1]
    await world.delete("ours")
    await world.facts.count(PodGone, 1)
