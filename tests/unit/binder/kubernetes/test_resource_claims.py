"""Tests of how the binder allocates the ResourceClaims of placed pods. The tests use an in-memory
API server in virtual time."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from apportion.binder.binding import Bound, Failed, Outcome
from apportion.binder.kubernetes.claims import FINALIZER, LOOK_EVERY_S, ClaimBinding, ClaimRelease
from apportion.binder.kubernetes.slices import Slices
from apportion.binder.kubernetes.target import KubernetesTarget, Pace
from apportion.core.dra.names import DRIVER, container_of
from apportion.core.ledger.fold import Change
from apportion.runtime.kube.client import JSON, Answer
from apportion_schemas import DeviceHealthChanged, NodeGone, PlacementVoided, PodGone, PodPlaced
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.fleet import gpu, node, observed
from tests.support.kube_claims import claiming_pod, request, resource_claim
from tests.support.ledger_of import Ledger
from tests.support.memory_kube import MemoryKube, status_body
from tests.support.memory_kube_api import MemoryKubeApi
from tests.support.pods import ask, pod

GROUP = "/apis/resource.k8s.io/v1"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
SLICES = f"{GROUP}/resourceslices"
PODS = "/api/v1/namespaces/default/pods"


class CaughtUp:
    """A ledger reader that is always at the end of the ledger."""

    async def caught_up(self) -> None:
        """Return at once, since this reader never lags behind the ledger."""


class Admission(MemoryKube):
    """An API server whose admission control rejects every write that contains the text
    `refused`."""

    refused = b""

    def handle(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "",
    ) -> Answer:
        """Reject a write that contains the text `refused`. Handle other requests as usual."""
        if method != "GET" and self.refused and self.refused in (body or b""):
            return Answer(422, status_body(422, "Invalid", "not with us"))
        return super().handle(method, path, query=query, body=body, content_type=content_type)


class World:
    """An API server with a pod that is placed on node n1 and has a ResourceClaim."""

    def __init__(self, *, dra: bool = True) -> None:
        self.kube = Admission()
        self.clock = SkewedClock(random.Random(7), skew_s=0.0)
        self.uid = self.ask("POST", PODS, claiming_pod("p", "mine"))["metadata"]["uid"]
        made = self.ask("POST", CLAIMS, resource_claim("mine", request(memory="1000Mi")))
        self.claim_uid = made["metadata"]["uid"]
        self.ledger = Ledger(
            node("n1", gpu("g0"), gpu("g1", mode="mig")),
            observed("n1", version=1),
            pod(self.uid, ask(1000, container=container_of(self.claim_uid)), name="p"),
        ).settle()
        self.api = api = MemoryKubeApi(self.kube)
        pace = Pace(self.clock)
        self.target = KubernetesTarget(api, self.ledger.state, pace, self.clock, dra=dra)
        self.release = ClaimRelease(api, self.ledger.state, self.clock)
        self.slices = Slices(api, self.ledger.state, self.clock)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        raw = json.dumps(body or {}).encode()
        answer = self.kube.handle(method, path, query=None, body=raw, content_type=JSON)
        assert answer.ok, answer.refusal()
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def take(self, data: Any) -> Change:
        """Append the event to the ledger and show the resulting state change to the binder."""
        change = self.ledger.take(data)
        self.release.observe(change)
        self.slices.observe(change)
        return change

    def claim(self) -> dict[str, Any]:
        return self.ask("GET", f"{CLAIMS}/mine")

    def status(self, **status: Any) -> None:
        """Set the ResourceClaim's status, as another component might do."""
        self.ask("PUT", f"{CLAIMS}/mine/status", self.claim() | {"status": status})

    def placed(self) -> PodPlaced:
        """Return the newest placement of the pod."""
        return [event for event in self.ledger.events if isinstance(event, PodPlaced)][-1]

    async def bind(self) -> Outcome:
        return await self.target.bind(self.placed())

    def node_of_pod(self) -> str:
        """Return the node that the API server has bound the pod to, or an empty string."""
        return str(self.ask("GET", f"{PODS}/p")["spec"].get("nodeName", ""))


def virtually(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Run the test in virtual time, with a new World."""
    world = World()

    async def play() -> None:
        await test(world)

    run_virtually(play())


def test_a_claim_is_allocated_and_reserved_before_its_pod_is_bound() -> None:
    """Before the binder binds a pod, it allocates and reserves the pod's ResourceClaim and adds a
    finalizer to the claim. If the binding is repeated, nothing changes."""

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
        assert await world.bind() == Bound(earlier=True)
        assert world.claim() == claim

    virtually(test)


def test_what_an_attempt_before_left_is_taken_back_first() -> None:
    """If an earlier placement of the pod has allocated the claim, the binder removes that
    allocation before it writes the new one."""

    async def test(world: World) -> None:
        state = world.ledger.state
        assert await ClaimBinding(world.api).ready(world.placed(), state.nodes["n1"]) is None
        before = world.claim()["status"]["allocation"]
        world.take(PlacementVoided(pod=world.uid, attempt=1, node="n1", reason="a test"))
        world.ledger.settle()
        assert world.placed().attempt == 2
        written: list[Any] = []
        world.kube.store.listen(lambda write: written.append(write.object.get("status", {})))
        assert await world.bind() == Bound()
        assert written[0] == {"allocation": None, "reservedFor": []}
        now = world.claim()["status"]["allocation"]
        assert now != before
        assert len(now["devices"]["results"]) == 1

    virtually(test)


def test_the_claim_of_a_pod_that_is_bound_stays_as_it_is() -> None:
    """Once a pod is bound, a later placement of the pod does not change its ResourceClaim."""

    async def test(world: World) -> None:
        assert await world.bind() == Bound()
        before = world.claim()
        world.take(PlacementVoided(pod=world.uid, attempt=1, node="n1", reason="a test"))
        world.ledger.settle()
        assert world.placed().attempt == 2
        assert isinstance(await world.bind(), Failed)
        assert world.claim() == before

    virtually(test)


OTHERS: list[tuple[dict[str, Any], str]] = [
    (
        {
            "allocation": {"devices": {"results": [{"driver": "gpu.apportion.dev"}]}},
            "reservedFor": [{"resource": "pods", "name": "q", "uid": "q"}],
        },
        "is reserved for q",
    ),
    ({"allocation": {"devices": {"results": [{"driver": "other.example.com"}]}}}, "another driver"),
]


@pytest.mark.parametrize(("status", "problem"), OTHERS)
def test_a_claim_of_somebody_else_is_left_alone(status: dict[str, Any], problem: str) -> None:
    """If another driver or pod uses the claim, the binder does not change it. The binding fails for
    good, with the reason."""

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
    """The binding fails if the pod's claim is missing, or if another claim with the same name has
    replaced it."""

    async def test(world: World) -> None:
        world.ask("DELETE", f"{CLAIMS}/mine")
        outcome = await world.bind()
        assert isinstance(outcome, Failed)
        assert "mine" in outcome.message
        world.ask("POST", CLAIMS, resource_claim("mine", request(memory="1Gi")))
        outcome = await world.bind()
        assert isinstance(outcome, Failed)
        assert "was recreated" in outcome.message

    virtually(test)


def test_a_binder_without_the_setting_says_so() -> None:
    """A binder without `--dra` does not bind a pod with ResourceClaims. Its error names the
    option."""
    world = World(dra=False)

    async def play() -> None:
        outcome = await world.bind()
        assert isinstance(outcome, Failed)
        assert not outcome.final
        assert "--dra" in outcome.message

    run_virtually(play())


async def beside(loop: Coroutine[Any, Any, None], what: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine `loop` in the background until `what` has finished."""
    task = asyncio.create_task(loop)
    try:
        await what
    finally:
        task.cancel()


def free(claim: dict[str, Any]) -> bool:
    """Return True if the ResourceClaim has no allocation, reservation or finalizer."""
    status = claim["status"]
    return not (
        status.get("allocation") or status.get("reservedFor") or claim["metadata"]["finalizers"]
    )


def test_a_claim_is_free_once_its_pod_has_gone() -> None:
    """The binder releases a ResourceClaim when its pod is gone, and not before."""

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
    """If a pod has left the ledger but still exists on the API server, the binder keeps the pod's
    ResourceClaim."""

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
    """When a binder starts, it releases the claims of pods that ended while no binder was
    running."""

    async def test(world: World) -> None:
        await world.bind()
        world.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})
        world.ledger.take(PodGone(uid=world.uid, reason="deleted"))  # no binder sees this

        async def go() -> None:
            await rest(2.0)
            assert free(world.claim())

        reader: Any = CaughtUp()
        await beside(world.release.run(reader), go())

    virtually(test)


def test_a_claim_that_may_not_be_written_keeps_no_other_one() -> None:
    """If the API server rejects the update of one claim, the binder still updates the other claims.
    It retries the rejected update later."""

    async def test(world: World) -> None:
        await world.bind()
        other = world.ask("POST", CLAIMS, resource_claim("a", request()))
        allocated = {"devices": {"results": [{"driver": DRIVER}]}}
        world.ask("PUT", f"{CLAIMS}/a/status", other | {"status": {"allocation": allocated}})
        world.kube.refused = other["metadata"]["uid"].encode()
        world.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})
        world.take(PodGone(uid=world.uid, reason="deleted"))

        async def go() -> None:
            await rest(2.0)
            assert free(world.claim())
            world.kube.refused = b""
            await rest(2 * LOOK_EVERY_S)
            assert not world.ask("GET", f"{CLAIMS}/a")["status"].get("allocation")

        reader: Any = CaughtUp()
        await beside(world.release.run(reader), go())

    virtually(test)


def test_a_node_whose_devices_are_refused_keeps_no_other_node() -> None:
    """If the API server rejects one node's ResourceSlice, the binder still publishes the slices of
    the other nodes. It retries the rejected slice later."""

    async def test(world: World) -> None:
        world.take(node("n2", gpu("g2")))
        world.take(observed("n2", version=2))
        world.kube.refused = b'"nodeName":"n2"'

        async def go() -> None:
            await rest(10.0)
            assert {each["spec"]["nodeName"] for each in slices(world)} == {"n1"}
            world.kube.refused = b""
            await rest(10.0)
            assert {each["spec"]["nodeName"] for each in slices(world)} == {"n1", "n2"}

        reader: Any = CaughtUp()
        await beside(world.slices.run(reader), go())

    virtually(test)


def slices(world: World) -> list[dict[str, Any]]:
    """Return the ResourceSlices that the binder has published."""
    found: list[dict[str, Any]] = world.ask("GET", SLICES)["items"]
    return found


def generations(world: World) -> list[int]:
    """Return the pool generation of each published ResourceSlice."""
    return [each["spec"]["pool"]["generation"] for each in slices(world)]


def test_devices_are_published_and_every_change_is_a_new_generation() -> None:
    """The binder publishes a node's ResourceSlices as a new generation after each change of the
    node's devices. It also does so if a slice was deleted."""

    async def test(world: World) -> None:
        async def go() -> None:
            await rest(1.0)
            assert generations(world) == [1, 1]
            await rest(60.0)
            assert generations(world) == [1, 1]
            world.take(DeviceHealthChanged(node="n1", device="g0", healthy=False, reason="XID"))
            await rest(1.0)
            assert generations(world) == [2, 2]
            first = slices(world)[0]["metadata"]["name"]
            world.ask("DELETE", f"{SLICES}/{first}")
            await rest(1.0)
            assert generations(world) == [3, 3]
            world.take(NodeGone(node="n1"))
            await rest(1.0)
            assert generations(world) == []

        reader: Any = CaughtUp()
        await beside(world.slices.run(reader), go())

    virtually(test)
