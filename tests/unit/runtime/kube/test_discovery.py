"""Tests of how the client discovers which kinds of objects the API server serves, since some may be
installed later."""

import asyncio
import random
from typing import Any

from apportion.runtime.kube.client import Answer
from apportion.runtime.kube.watch import ABSENT_S, LOOK_S, Discovery, Watch
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.memory_kube import MemoryKube, status_body
from tests.support.memory_kube_api import MemoryKubeApi

API = "scheduling.volcano.sh/v1beta1"
QUEUES = f"/apis/{API}/queues"


class Noting(MemoryKube):
    """An API server that records the path of each request. If `refuses` is set, it refuses
    discovery."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.refuses = False

    def handle(self, method: str, path: str, **given: Any) -> Answer:
        self.asked.append(path)
        if self.refuses and path == "/apis":
            return Answer(403, status_body(403, "Forbidden", "not yours"))
        return super().handle(method, path, **given)


class Heard:
    """A receiver of watch results that counts the completed lists."""

    lists = 0

    def listing(self) -> None:
        """Do nothing."""

    def seen(self, raw: bytes) -> None:
        """Do nothing."""

    def gone(self, raw: bytes) -> None:
        """Do nothing."""

    def listed(self, version: int) -> None:
        self.lists += version > 0

    def reached(self, version: int) -> None:
        """Do nothing."""


def test_a_kind_that_is_absent_is_listed_once_and_again_when_it_is_served() -> None:
    """If the API server does not serve a kind, the watch tries to list its objects once. It tries
    again only after discovery reports the kind as served."""

    async def main() -> None:
        server, heard = Noting(), Heard()
        server.fewer_kinds.add((API, "queues"))
        api, clock = MemoryKubeApi(server), SkewedClock(random.Random(7), skew_s=0.0)
        discovery = Discovery(api, clock, ("scheduling.volcano.sh",))
        await discovery.look()
        watch = Watch(api, QUEUES, heard, clock=clock, discovery=discovery)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(each.run()) for each in (discovery, watch)]
            await rest(10 * ABSENT_S)
            assert watch.in_step
            assert (server.asked.count(QUEUES), heard.lists) == (1, 0)
            server.fewer_kinds.clear()
            await rest(2 * LOOK_S)
            assert watch.in_step
            assert heard.lists == 1
            for task in running:
                task.cancel()

    run_virtually(main())


def test_what_is_not_told_counts_as_served() -> None:
    """While discovery fails, the client assumes that a kind is served, unless an earlier discovery
    said otherwise."""

    async def main() -> None:
        server = Noting()
        discovery = Discovery(
            MemoryKubeApi(server), SkewedClock(random.Random(7), skew_s=0.0), ("policy",)
        )
        server.refuses = True
        await discovery.look()
        assert discovery.has("/apis/policy/v9/none")
        assert discovery.versions("policy", "poddisruptionbudgets") is None
        server.refuses = False
        await discovery.look()
        assert discovery.versions("policy", "poddisruptionbudgets") == ("v1",)
        assert not discovery.has("/apis/policy/v9/none")
        assert discovery.has(QUEUES)
        server.refuses = True
        await discovery.look()
        assert not discovery.has("/apis/policy/v9/none")

    run_virtually(main())
