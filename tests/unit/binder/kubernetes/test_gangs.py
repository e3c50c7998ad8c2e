"""Tests of how the binder updates Volcano's PodGroups and creates its default Queue.

The tests use an in-memory API server in virtual time."""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from apportion.binder.kubernetes.gangs import LOOK_AGAIN_S, QUEUE_S, Gangs
from apportion.core.ledger.fold import Change
from apportion.runtime.kube.client import MERGE_PATCH, Answer, KubeUnavailable
from apportion.runtime.ledger.reader import Reader
from apportion_schemas import PodGroupObserved, QueueObserved
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.ledger_of import Ledger
from tests.support.memory_kube import MemoryKube, status_body
from tests.support.memory_kube_api import MemoryKubeApi, PerfectKubeLink

API = "/apis/scheduling.volcano.sh/v1beta1"
GROUPS = f"{API}/namespaces/default/podgroups"
GROUP = PodGroupObserved(group="default/g", min_available=2)


class WithStatus(MemoryKube):
    """An API server on which PodGroups have a status subresource. No Volcano release has one, but
    the binder supports it."""

    def handle(self, method: str, path: str, **given: Any) -> Answer:
        """Change the status of a PodGroup only if the request path ends in `/status`."""
        if method == "PATCH" and "/podgroups/" in path:
            body = json.loads(given["body"])
            if path.endswith("/status"):
                path = path.removesuffix("/status")
            else:
                body.pop("status")
            given["body"] = json.dumps(body).encode()
        return super().handle(method, path, **given)


class Noting(MemoryKube):
    """An API server that records the path of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def handle(self, method: str, path: str, **given: Any) -> Answer:
        """Record the path of the request, and handle it as usual."""
        self.asked.append(path)
        return super().handle(method, path, **given)


class Link(PerfectKubeLink):
    """A network to the API server. It refuses the next `refusals` PATCH requests and loses the next
    `silences` POST requests."""

    refusals = 0
    silences = 0

    async def ask(self, method: str, act: Callable[[], Answer]) -> Answer:
        """Refuse a PATCH or lose a POST while there are `refusals` or `silences` left. Pass other
        requests on."""
        if method == "PATCH" and self.refusals:
            self.refusals -= 1
            return Answer(403, status_body(403, "Forbidden", "not yours"))
        if method == "POST" and self.silences:
            self.silences -= 1
            raise KubeUnavailable("POST", "no answer")
        return await super().ask(method, act)


class CaughtUp(Reader[Change]):
    """A ledger reader that is always at the end of the ledger."""

    def __init__(self) -> None:
        pass

    async def caught_up(self) -> None:
        """Return at once, since this reader never lags behind the ledger."""


class World:
    """An API server, and the binder's loop that updates PodGroups."""

    def __init__(self, kube: MemoryKube) -> None:
        self.kube, self.link = kube, Link()
        self.ledger = Ledger()
        self.clock = SkewedClock(random.Random(7), skew_s=0.0)
        self.gangs = Gangs(MemoryKubeApi(kube, self.link), self.ledger.state, self.clock)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a user's request to the API server. Return the answer, or None on an error."""
        raw = json.dumps(body or {}).encode()
        answer = self.kube.handle(method, path, query=None, body=raw, content_type=MERGE_PATCH)
        return json.loads(answer.body) if answer.ok else None

    @property
    def phase(self) -> str:
        """Return the phase of PodGroup `g` on the API server."""
        return str(self.ask("GET", f"{GROUPS}/g")["status"]["phase"])

    def told(self, data: Any) -> None:
        """Append the event to the ledger and show the resulting state change to the binder."""
        self.gangs.observe(self.ledger.take(data))

    def make_group(self) -> None:
        """Create PodGroup `g` as Volcano's controllers do for a Job."""
        group = {"metadata": {"name": "g"}, "spec": {"minMember": 2}}
        self.ask("POST", GROUPS, group | {"status": {"phase": "Pending"}})


def with_loop(world: World, work: Callable[[], Any]) -> None:
    """Run `work` in virtual time while the loop that updates PodGroups is running."""

    async def both() -> None:
        loop = asyncio.create_task(world.gangs.run(CaughtUp()))
        await rest(1.0)
        await work()
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)

    run_virtually(both())


@pytest.mark.parametrize("kube", [MemoryKube, WithStatus])
def test_a_gang_is_let_in_with_and_without_a_status_subresource(kube: type[MemoryKube]) -> None:
    """The binder sets a PodGroup to Inqueue whether or not PodGroups have a status subresource."""
    world = World(kube())
    world.make_group()

    async def work() -> None:
        world.told(GROUP)
        await rest(2.0)
        assert world.phase == "Inqueue"

    with_loop(world, work)


def test_a_gang_that_was_refused_is_tried_again() -> None:
    """If the API server refuses the binder's update of a PodGroup, the binder tries the update
    again."""
    world = World(MemoryKube())
    world.make_group()
    world.link.refusals = 1

    async def work() -> None:
        world.told(GROUP)
        await rest(2.0)
        assert world.phase == "Pending"
        await rest(2 * LOOK_AGAIN_S)
        assert world.phase == "Inqueue"

    with_loop(world, work)


def test_a_group_that_an_equal_one_replaced_is_let_in() -> None:
    """If a PodGroup is deleted and recreated without an event in the ledger, the binder sets the
    new one to Inqueue, too."""
    world = World(MemoryKube())
    world.make_group()

    async def work() -> None:
        world.told(GROUP)
        await rest(2.0)
        world.ask("DELETE", f"{GROUPS}/g")
        world.make_group()
        assert world.phase == "Pending"
        await rest(2 * LOOK_AGAIN_S)
        assert world.phase == "Inqueue"

    with_loop(world, work)


def test_a_gang_that_runs_is_left_alone() -> None:
    """The binder does not change a PodGroup whose phase is already Running."""
    world = World(MemoryKube())
    world.make_group()
    world.ask("PATCH", f"{GROUPS}/g", {"status": {"phase": "Running"}})

    async def work() -> None:
        world.told(GROUP)
        await rest(2.0)
        assert world.phase == "Running"

    with_loop(world, work)


@pytest.mark.parametrize("known", [False, True])
def test_the_default_queue_is_made_once(known: bool) -> None:
    """The binder creates Volcano's default Queue if it is missing, and does not change an existing
    Queue."""
    world = World(MemoryKube())
    if known:
        queue = {"metadata": {"name": "default"}, "spec": {"weight": 7}}
        world.ask("POST", f"{API}/queues", queue)
        world.told(QueueObserved(queue="default", weight=7))

    async def work() -> None:
        await rest(2.0)
        found = world.ask("GET", f"{API}/queues/default")
        assert found["spec"]["weight"] == (7 if known else 1)

    with_loop(world, work)


def test_no_queue_is_asked_for_where_volcano_is_absent() -> None:
    """While Volcano is not installed, the binder requests only the list of API groups. Once
    Volcano's API appears, the binder creates the default Queue."""
    kube = Noting()
    absent = {(API.removeprefix("/apis/"), kind) for kind in ("queues", "podgroups")}
    kube.fewer_kinds |= absent
    world = World(kube)

    async def work() -> None:
        await rest(3 * QUEUE_S)
        assert set(kube.asked) == {"/apis"}
        kube.fewer_kinds -= absent
        await rest(2 * QUEUE_S)
        assert world.ask("GET", f"{API}/queues/default") is not None

    with_loop(world, work)


def test_the_default_queue_is_made_once_the_api_server_answers() -> None:
    """If the API server does not answer, the binder retries the creation of Volcano's default
    Queue."""
    world = World(MemoryKube())
    world.link.silences = 1

    async def work() -> None:
        await rest(QUEUE_S + 2.0)
        assert world.ask("GET", f"{API}/queues/default") is not None

    with_loop(world, work)
