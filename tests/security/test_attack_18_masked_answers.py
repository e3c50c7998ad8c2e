"""Attack 18: a tenant requests the largest answers in parallel, and every other client waits."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.security.weakened import without
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus, running_bus
from tests.support.pods import ask, pod
from tests.support.processes import ServiceProcess
from tests.support.tokens import TENANT, rows

NODES, PARALLEL = 125, 40


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a ledger with 1,000 devices: as many as one answer may list."""
    async with running_bus(tmp_path / "nats") as running:
        facts = Facts(running)
        await facts.open()
        for number in range(NODES):
            await facts.write(rack(f"n{number}", 8))
        await facts.write(pod("u1", ask(), namespace="ml", name="mine"))
        yield running


async def ask_for(session: aiohttp.ClientSession, url: str) -> None:
    """Send a request, and read the whole answer."""
    async with session.get(url) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()


@pytest.mark.parametrize("guarded", [False, True], ids=["weak", "guarded"])
async def test_a_tenant_asks_for_much_at_once(bus: Bus, tmp_path: Path, guarded: bool) -> None:
    """One tenant's large requests do not delay other clients."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(rows(mallory=TENANT, alice=TENANT))
    options = ("--listen", "127.0.0.1:0", "--tokens", str(tokens))
    first = "" if guarded else without("masks by turns")
    url = bus.server.url_for("gateway")
    async with ServiceProcess("gateway", url, *options, first=first) as process:
        await process.ready()
        base = str((await process.logged("answering"))["url"])
        async with (
            aiohttp.ClientSession(
                headers={"Authorization": "Bearer mallory"}, connector=aiohttp.TCPConnector(limit=0)
            ) as mallory,
            aiohttp.ClientSession(headers={"Authorization": "Bearer alice"}) as alice,
        ):
            flood = asyncio.gather(
                *(ask_for(mallory, f"{base}devices?limit=1000") for _ in range(PARALLEL))
            )
            answered = healthy = 0

            async def look() -> None:
                """Check the gateway's health again and again, with the kubelet's timeout of one
                second."""
                nonlocal healthy
                while not flood.done():
                    assert (await process.get("/healthz"))[0] == 200
                    healthy += 1

            # Without the guard a second client's request would be served between the first one's.
            looks = [asyncio.create_task(look())] if guarded else []
            while not flood.done():
                await ask_for(alice, f"{base}revision")
                answered += 1
            await flood
            await asyncio.gather(*looks)
    if guarded:
        assert min(answered, healthy) >= PARALLEL // 2
    else:
        assert answered < PARALLEL // 2
