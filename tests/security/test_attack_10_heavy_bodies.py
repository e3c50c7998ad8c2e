"""Attack 10: any client in the network posts bodies of 60 MB to the extender.

The extender needs 22 seconds for each body. Without the guard, kube-scheduler has to wait for as
long."""

import asyncio
import contextlib
import io
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.security.weakened import without
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus, running_bus
from tests.support.processes import ServiceProcess

BYTES = 60 << 20
POSTS = 4
FROZEN_S = 8.0
ANSWERED_S = 24.0
"""During the attack, a kube-scheduler request takes at least FROZEN_S without the guard, and at
most ANSWERED_S with it. Four such bodies take an idle machine 88 seconds."""


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a fresh server, with a node in its ledger."""
    async with running_bus(tmp_path / "nats") as running:
        facts = Facts(running)
        await facts.open()
        await facts.write(rack("n1", 2))
        yield running


def heavy() -> bytes:
    """Return a request about a pod with as many containers as fit into the body."""
    one = b'{"name":"c","image":"x","resources":{"limits":{"nvidia.com/gpu":"1"}}}'
    containers = b",".join([one] * (BYTES // (len(one) + 1)))
    return b'{"Pod":{"spec":{"containers":[' + containers + b']}},"NodeNames":["n1"]}'


def light() -> bytes:
    """Return a request as kube-scheduler sends it."""
    pod = {"metadata": {"name": "p", "namespace": "d"}, "spec": {"containers": []}}
    return json.dumps({"Pod": pod, "NodeNames": ["n1"]}).encode()


@pytest.mark.parametrize("guarded", [False, True], ids=["weak", "guarded"])
async def test_heavy_bodies_freeze_the_extender(bus: Bus, guarded: bool) -> None:
    """The extender refuses heavy bodies by their size and keeps answering kube-scheduler."""
    first = "" if guarded else without("limits of the extender")
    url = bus.server.url_for("extender")
    async with ServiceProcess("extender", url, "--listen", "127.0.0.1:0", first=first) as process:
        await process.ready()
        base = str((await process.logged("extending"))["url"])
        body = heavy()
        async with aiohttp.ClientSession() as session:

            async def post() -> int:
                sent = io.BytesIO(body)
                async with session.post(f"{base}/filter", data=sent) as answer:
                    return answer.status

            longest, limit_s = 0.0, ANSWERED_S if guarded else FROZEN_S
            attack = [asyncio.create_task(post()) for _ in range(POSTS)]
            while any(not each.done() for each in attack) and longest < limit_s:
                began = time.monotonic()
                with contextlib.suppress(TimeoutError):
                    async with (
                        asyncio.timeout(2 * limit_s),
                        session.post(f"{base}/filter", data=light()) as answer,
                    ):
                        assert answer.status == 200
                longest = max(longest, time.monotonic() - began)
            if guarded:
                assert await asyncio.gather(*attack) == [413] * POSTS
                assert longest < limit_s
            else:
                assert longest >= limit_s
                await process.kill()
                await asyncio.gather(*attack, return_exceptions=True)
