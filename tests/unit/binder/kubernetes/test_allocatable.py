"""Tests of the GPU memory and cores that the binder writes to a node's allocatable resources.

The tests use an in-memory API server in virtual time."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from apportion.binder.binding import Bound, Outcome
from apportion.binder.kubernetes.allocatable import AGAIN_S, SEEN_S, Allocatable
from apportion.binder.kubernetes.target import KubernetesTarget, Pace
from apportion.runtime.kube.client import MERGE_PATCH, Answer, KubeUnavailable
from apportion_schemas import (
    Configuration,
    ConfigurationChanged,
    NodeReported,
    PodAdopted,
    PodChanged,
    PodGone,
    PodPlaced,
    ResizeAsked,
    Share,
)
from apportion_schemas.configuration import NvidiaConfiguration
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.deciding import decided
from tests.support.fleet import T4, gpu, node, observed
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.ledger_of import Ledger
from tests.support.memory_kube import MemoryKube, status_body
from tests.support.memory_kube_api import MemoryKubeApi, PerfectKubeLink
from tests.support.pods import ask, pod

NODE = "/api/v1/nodes/n1"
PODS = "/api/v1/namespaces/default/pods"
MEMORY, CORES = "nvidia.com/gpumem", "nvidia.com/gpucores"
VOLCANO = "volcano.sh/vgpu-memory"
CARD_MIB = 15_360


class Link(PerfectKubeLink):
    """A network to the API server. It counts PATCH requests, and a test can replace their
    answers."""

    def __init__(self) -> None:
        self.patch: Callable[[], Answer] | None = None
        self.patches = 0

    async def ask(self, method: str, act: Callable[[], Answer]) -> Answer:
        """Count PATCH requests. Answer them with `patch` if the test has set it."""
        if method == "PATCH":
            self.patches += 1
            if self.patch is not None:
                return self.patch()
        return await super().ask(method, act)


class World:
    """A node with one T4 GPU, its in-memory API server, and a binder that follows the ledger."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.link = Link()
        self.clock = SkewedClock(random.Random(7), skew_s=0.0)
        self.ask("POST", "/api/v1/nodes", kube_node("n1"))
        self.ledger = Ledger(node("n1", gpu("g0", model=T4)), observed("n1", version=1))
        api = MemoryKubeApi(self.kube, self.link)
        state = self.ledger.state
        self.allocatable = Allocatable(api, state, self.clock)
        self.target = KubernetesTarget(api, state, Pace(self.clock), self.clock, self.allocatable)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a user's request to the API server and return its answer."""
        raw = json.dumps(body or {}).encode()
        answer = self.kube.handle(method, path, query=None, body=raw, content_type=MERGE_PATCH)
        assert answer.ok, answer.refusal()
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def shows(self) -> dict[str, str]:
        """Return the extended resources in the node's allocatable. Assert that the node's capacity
        has the same values."""
        status = self.ask("GET", NODE)["status"]
        assert status["allocatable"] == status["capacity"]
        return {name: value for name, value in status["allocatable"].items() if "/" in name}

    def told(self, *payloads: Any) -> None:
        """Append the events to the ledger and show each resulting state change to the binder."""
        for data in payloads:
            change = self.ledger.take(data)
            assert not change.refused, change.refused
            self.allocatable.observe(change)

    def place(self, name: str, memory_mib: int, dialect: str = "hami") -> PodPlaced:
        """Create a pod on the API server and place it on the node."""
        made = self.ask("POST", PODS, kube_pod(name, share(memory_mib)))
        cap = dialect != "hami"
        asks = ask(memory_mib, cap_memory=cap)
        self.told(pod(made["metadata"]["uid"], asks, name=name, dialect=dialect))
        (placed,) = (each for each in self.decided() if isinstance(each, PodPlaced))
        return placed

    def decided(self) -> list[Any]:
        """Let the scheduler decide about pending pods, and return the events that it appended."""
        events = [*decided(self.ledger.engine).events]
        self.told(*events)
        return events

    async def bind(self, placed: PodPlaced) -> Outcome:
        return await self.target.bind(placed)

    def bound(self, name: str) -> bool:
        return bool(self.ask("GET", f"{PODS}/{name}")["spec"].get("nodeName"))

    @asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Run the loop that writes the node's allocatable for the duration of a `with` block."""
        loop = asyncio.create_task(self.allocatable.keep())
        await rest(1.0)
        yield
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


def test_a_node_shows_its_cards_and_what_becomes_of_them() -> None:
    """The binder updates a node's allocatable when its GPUs or the configured resource names
    change. Resources that no longer apply are removed."""
    world = World()

    async def work() -> None:
        async with world.keeping():
            assert world.shows()[MEMORY] == str(CARD_MIB)
            assert world.shows()[CORES] == "100"
            world.told(node("n1", gpu("g0", model=T4), gpu("g1", model=T4)))
            await rest(1.0)
            assert world.shows()[VOLCANO] == str(2 * CARD_MIB)
            section = NvidiaConfiguration(resource_memory_name="example.com/memory", dialect="hami")
            said = Configuration(nvidia=section)
            world.told(ConfigurationChanged(configuration=said, by="ann"))
            await rest(1.0)
            assert world.shows()["example.com/memory"] == str(2 * CARD_MIB)
            assert MEMORY not in world.shows()
            world.told(NodeReported(node="n1", devices=(), host=world.ledger.node().host))
            await rest(1.0)
            assert world.shows() == {}

    run_virtually(work())


def test_what_a_kubelet_forgot_is_shown_again() -> None:
    """If a kubelet resets a node's allocatable, the binder restores it: at once when the node
    becomes ready, otherwise periodically."""
    world = World()
    nothing = {"status": {"capacity": {MEMORY: "0"}, "allocatable": {MEMORY: "0"}}}

    async def work() -> None:
        async with world.keeping():
            world.ask("PATCH", f"{NODE}/status", nothing)
            world.told(observed("n1", ready=False, version=2), observed("n1", version=3))
            await rest(1.0)
            assert world.shows()[MEMORY] == str(CARD_MIB)
            world.ask("PATCH", f"{NODE}/status", nothing)
            await rest(AGAIN_S + 1.0)
            assert world.shows()[MEMORY] == str(CARD_MIB)
            patches = world.link.patches
            world.told(observed("n1", labels={"a": "b"}, version=4))
            await rest(1.0)
            assert world.link.patches == patches

    run_virtually(work())


def test_amounts_of_a_plugin_that_left_are_removed() -> None:
    """A kubelet keeps the amounts of a device plugin that left as 0, and would reject pods that
    request them. The binder removes them, but no amount that a plugin still offers."""
    world = World()
    left = {"tencent.com/vcuda-memory": "0", "volcano.sh/gpu-memory": "0",
            "tencent.com/vcuda-core": "100", "example.com/fpga": "0"}  # fmt: skip

    async def work() -> None:
        async with world.keeping():
            status = {"status": {"capacity": left, "allocatable": left}}
            world.ask("PATCH", f"{NODE}/status", status)
            await rest(AGAIN_S + 1.0)
            shown = world.shows()
            assert {name: shown.get(name) for name in left} == {
                "tencent.com/vcuda-memory": None, "volcano.sh/gpu-memory": None,
                "tencent.com/vcuda-core": "100", "example.com/fpga": "0",
            }  # fmt: skip
            assert shown[MEMORY] == str(CARD_MIB)

    run_virtually(work())


def test_a_node_shows_enough_before_a_pod_is_bound() -> None:
    """If a pod requests more memory than the node's allocatable, the binder raises the allocatable
    first. It binds the pod once the API server has accepted the change."""
    world = World()

    async def work() -> None:
        placed = world.place("p", 20_000, dialect="volcano-vgpu")

        def down() -> Answer:
            raise KubeUnavailable("no answer")

        world.link.patch = down
        binding = asyncio.create_task(world.bind(placed))
        await rest(3.0)
        assert not world.bound("p")
        world.link.patch = None
        assert await binding == Bound()
        assert world.shows()[VOLCANO] == "20000"
        async with world.keeping():
            world.told(PodGone(uid=placed.pod))
            await rest(1.0)
            assert world.shows()[VOLCANO] == str(CARD_MIB)

    run_virtually(work())


@pytest.mark.parametrize(("memory_mib", "waits"), [(1_000, False), (20_000, True)])
def test_a_kubelet_sees_more_room_before_the_pod_that_wants_it(
    memory_mib: int, *, waits: bool
) -> None:
    """If the binder raises allocatable for a pod, it binds the pod only when the kubelet has seen
    the new value. Other pods are bound at once."""
    world = World()

    async def work() -> None:
        async with world.keeping():
            placed = world.place("p", memory_mib, "volcano-vgpu")
            binding = asyncio.create_task(world.bind(placed))
            await rest(SEEN_S / 2)
            assert world.shows()[VOLCANO] == str(max(memory_mib, CARD_MIB))
            assert world.bound("p") != waits
            assert await binding == Bound()

    run_virtually(work())


def test_the_room_of_a_pod_that_was_made_smaller_is_for_others() -> None:
    """If a resize made a pod smaller, the kubelet still counts the pod's original request. The
    binder therefore raises allocatable by the amount that the resize has freed."""
    world = World()

    async def work() -> None:
        first = world.place("p", 10_000)
        assert await world.bind(first) == Bound()
        world.ledger.bound(first.pod).allocated(first.pod)
        world.told(ResizeAsked(pod=first.pod, by="ann", memory_mib=2_000))
        world.decided()
        second = world.place("q", 12_000)
        assert await world.bind(second) == Bound()
        assert world.shows()[MEMORY] == str(CARD_MIB + 8_000)

    run_virtually(work())


def test_what_a_pod_wrote_that_nobody_can_add_up_stops_nothing() -> None:
    """If a pod's request is too large to add up, the binder still publishes the node's allocatable
    memory."""
    world = World()

    async def work() -> None:
        body = kube_pod("p", share(10_000))
        body["spec"]["containers"][0]["resources"]["limits"][MEMORY] = "1E"
        uid = world.ask("POST", PODS, body)["metadata"]["uid"]
        asked = pod(uid, ask(10_000), name="p", dialect="hami")
        held = (Share("main", "g0", 2_000, 0),)
        world.told(PodAdopted(pod=uid, node="n1", submitted=asked, attempt=1, shares=held))
        world.told(PodChanged(uid=uid, labels={"a": "b"}))
        async with world.keeping():
            assert world.shows()[MEMORY] == str(CARD_MIB)

    run_virtually(work())


@pytest.mark.parametrize("status", [403, 404])
def test_a_pod_is_bound_where_nothing_can_be_shown(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """If the API server refuses to change allocatable, the binder still binds the pod. It logs a
    missing permission once."""
    world = World()
    world.link.patch = lambda: Answer(status, status_body(status, "No", "no"))

    async def work() -> None:
        async with world.keeping():
            for name in ("p", "q"):
                assert await world.bind(world.place(name, 1_000)) == Bound()
            await rest(AGAIN_S + 1.0)

    run_virtually(work())
    assert caplog.text.count("--no-allocatable") == (status == 403)
