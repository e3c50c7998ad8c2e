"""Claims of pods that are placed, over an API server in memory and in virtual time."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from apportion.binder.kubernetes_pace import Pace
from apportion.binder.kubernetes_resource_claims import FINALIZER, LOOK_EVERY_S, ClaimRelease
from apportion.binder.kubernetes_slices import Slices
from apportion.binder.kubernetes_target import KubernetesTarget
from apportion.binder.target import Bound, Failed, Outcome
from apportion.core.dra.names import container_of
from apportion.core.ledger.fold import Change
from apportion.runtime.kube.client import JSON
from apportion_schemas import DeviceHealthChanged, NodeGone, PlacementVoided, PodGone, PodPlaced
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.fleet import gpu, node, observed
from tests.support.kube_claims import claiming_pod, request, resource_claim
from tests.support.ledger_of import Ledger
from tests.support.memory_kube import MemoryKube
from tests.support.memory_kube_api import MemoryKubeApi
from tests.support.pods import ask, pod

GROUP = "/apis/resource.k8s.io/v1"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
SLICES = f"{GROUP}/resourceslices"
PODS = "/api/v1/namespaces/default/pods"


class CaughtUp:
    """A reader that has nothing more to read."""

    async def caught_up(self) -> None:
        """See Reader."""


class World:
    """A pod with a claim, placed on n1, and an API server."""

    def __init__(self, *, dra: bool = True) -> None:
        self.kube = MemoryKube()
        self.clock = SkewedClock(random.Random(7), skew_s=0.0)
        self.uid = self.ask("POST", PODS, claiming_pod("p", "mine"))["metadata"]["uid"]
        made = self.ask("POST", CLAIMS, resource_claim("mine", request(memory="1000Mi")))
        self.claim_uid = made["metadata"]["uid"]
        self.ledger = Ledger(
            node("n1", gpu("g0"), gpu("g1", mode="mig")),
            observed("n1", version=1),
            pod(self.uid, ask(1000, container=container_of(self.claim_uid)), name="p"),
        ).settle()
        api = MemoryKubeApi(self.kube)
        pace = Pace(self.clock)
        self.target = KubernetesTarget(api, self.ledger.state, pace, self.clock, dra=dra)
        self.release = ClaimRelease(api, self.ledger.state, self.clock)
        self.slices = Slices(api, self.ledger.state, self.clock)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the API server answers to a user."""
        raw = json.dumps(body or {}).encode()
        answer = self.kube.handle(method, path, query=None, body=raw, content_type=JSON)
        assert answer.ok, answer.refusal()
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def take(self, data: Any) -> Change:
        """The ledger says so, and the binder sees it."""
        change = self.ledger.take(data)
        self.release.observe(change)
        self.slices.observe(change)
        return change

    def claim(self) -> dict[str, Any]:
        """The claim as it is."""
        return self.ask("GET", f"{CLAIMS}/mine")

    def status(self, **status: Any) -> None:
        """Somebody else says this of the claim."""
        self.ask("PUT", f"{CLAIMS}/mine/status", self.claim() | {"status": status})

    def placed(self) -> PodPlaced:
        """The newest placement."""
        return [event for event in self.ledger.events if isinstance(event, PodPlaced)][-1]

    async def bind(self) -> Outcome:
        """One try."""
        return await self.target.bind(self.placed())

    def node_of_pod(self) -> str:
        """Where the API server has the pod."""
        return str(self.ask("GET", f"{PODS}/p")["spec"].get("nodeName", ""))


def virtually(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Play it in a world of its own."""
    world = World()

    async def play() -> None:
        await test(world)

    run_virtually(play())


def test_a_claim_is_allocated_and_reserved_before_its_pod_is_bound() -> None:
    """With the finalizer that keeps it; a second try finds it done and changes nothing."""

    async def test(world: World) -> None:
        assert await world.bind() == Bound()
        assert world.node_of_pod() == "n1"
        claim = world.claim()
        assert claim["metadata"]["finalizers"] == [FINALIZER]
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        assert result["consumedCapacity"]["memory"] == "1000Mi"
        assert claim["status"]["reservedFor"] == [
            {"resource": "pods", "name": "p", "uid": world.uid}
        ]
        assert await world.bind() == Bound()
        assert world.claim() == claim

    virtually(test)


def test_what_an_attempt_before_left_is_taken_back_first() -> None:
    """An allocation may not be changed, only taken away."""

    async def test(world: World) -> None:
        await world.bind()
        before = world.claim()["status"]["allocation"]
        world.take(PlacementVoided(pod=world.uid, attempt=1, node="n1", reason="a test"))
        world.ledger.settle()
        assert world.placed().attempt == 2
        written: list[Any] = []
        world.kube.store.listen(lambda write: written.append(write.object.get("status", {})))
        outcome = await world.bind()
        assert written[0] == {"allocation": None, "reservedFor": []}
        assert isinstance(outcome, Failed)  # the pod itself was bound by the first attempt
        now = world.claim()["status"]["allocation"]
        assert now != before
        assert len(now["devices"]["results"]) == 1

    virtually(test)


OTHERS: list[tuple[dict[str, Any], str]] = [
    (
        {
            "allocation": {"devices": {"results": [{"driver": "gpu.apportion.dev"}]}},
            "reservedFor": [{"resource": "pods", "name": "q", "uid": "q"}],
        },
        "is reserved for q",
    ),
    (
        {"allocation": {"devices": {"results": [{"driver": "other.example.com"}]}}},
        "another driver",
    ),
]


@pytest.mark.parametrize(("status", "problem"), OTHERS)
def test_a_claim_of_somebody_else_is_left_alone(status: dict[str, Any], problem: str) -> None:
    """The pod is not bound, and the reason says whose it is."""

    async def test(world: World) -> None:
        world.status(**status)
        before = world.claim()
        outcome = await world.bind()
        assert isinstance(outcome, Failed)
        assert outcome.final
        assert problem in outcome.message
        assert world.claim() == before
        assert world.node_of_pod() == ""

    virtually(test)


def test_a_claim_that_was_made_anew_is_not_that_of_the_pod() -> None:
    """Nor is one that is gone."""

    async def test(world: World) -> None:
        world.ask("DELETE", f"{CLAIMS}/mine")
        outcome = await world.bind()
        assert isinstance(outcome, Failed)
        assert "is not there any more" in outcome.message
        world.ask("POST", CLAIMS, resource_claim("mine", request(memory="1Gi")))
        outcome = await world.bind()
        assert isinstance(outcome, Failed)
        assert "made anew" in outcome.message

    virtually(test)


def test_a_binder_without_the_setting_says_so() -> None:
    """And binds no pod whose claims nobody allocates."""
    world = World(dra=False)

    async def play() -> None:
        outcome = await world.bind()
        assert isinstance(outcome, Failed)
        assert not outcome.final
        assert "--dra" in outcome.message

    run_virtually(play())


async def beside(loop: Coroutine[Any, Any, None], what: Coroutine[Any, Any, None]) -> None:
    """Run the loop while the rest goes on."""
    task = asyncio.create_task(loop)
    try:
        await what
    finally:
        task.cancel()


def free(claim: dict[str, Any]) -> bool:
    """Whether nobody has it."""
    status = claim["status"]
    return not (
        status.get("allocation") or status.get("reservedFor") or claim["metadata"]["finalizers"]
    )


def test_a_claim_is_free_once_its_pod_has_gone() -> None:
    """Not before, and of nobody else."""

    async def test(world: World) -> None:
        await world.bind()

        async def go() -> None:
            await rest(2.0)
            assert not free(world.claim())
            world.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})
            world.take(PodGone(uid=world.uid, reason="deleted"))
            await rest(2.0)
            assert free(world.claim())

        reader: Any = CaughtUp()
        await beside(world.release.run(reader), go())

    virtually(test)


def test_a_pod_that_the_ledger_let_go_of_and_that_runs_keeps_its_claim() -> None:
    """The API server knows who is there."""

    async def test(world: World) -> None:
        await world.bind()
        world.take(PodGone(uid=world.uid, reason="bound outside of the ledger"))

        async def go() -> None:
            await rest(2 * LOOK_EVERY_S)
            assert not free(world.claim())

        reader: Any = CaughtUp()
        await beside(world.release.run(reader), go())

    virtually(test)


def test_what_was_left_over_while_nobody_was_here_is_found_at_the_start() -> None:
    """A binder that was killed between the two, and one that was away."""

    async def test(world: World) -> None:
        await world.bind()
        world.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})
        world.ledger.take(PodGone(uid=world.uid, reason="deleted"))  # nobody saw it

        async def go() -> None:
            await rest(2.0)
            assert free(world.claim())

        reader: Any = CaughtUp()
        await beside(world.release.run(reader), go())

    virtually(test)


def generations(world: World) -> list[int]:
    """Those of the slices that are published."""
    return [each["spec"]["pool"]["generation"] for each in world.ask("GET", SLICES)["items"]]


def test_devices_are_published_and_every_change_is_a_new_generation() -> None:
    """Of all slices of the pool; what a kubelet deleted comes back, and goes with the node."""

    async def test(world: World) -> None:
        async def go() -> None:
            await rest(1.0)
            assert generations(world) == [1, 1]
            await rest(60.0)
            assert generations(world) == [1, 1]
            world.take(DeviceHealthChanged(node="n1", device="g0", healthy=False, reason="XID"))
            await rest(1.0)
            assert generations(world) == [2, 2]
            first = world.ask("GET", SLICES)["items"][0]["metadata"]["name"]
            world.ask("DELETE", f"{SLICES}/{first}")
            await rest(1.0)
            assert generations(world) == [3, 3]
            world.take(NodeGone(node="n1"))
            await rest(1.0)
            assert generations(world) == []

        reader: Any = CaughtUp()
        await beside(world.slices.run(reader), go())

    virtually(test)
