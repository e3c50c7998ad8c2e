"""Attack 13, second half: a tenant asks the gateway what other tenants run.

Without the guard, the gateway shows every client the pods, owners and history of all namespaces."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from apportion.core.answers.visibility import OTHERS
from tests.security.weakened import without
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus, running_bus
from tests.support.pods import ask, pod
from tests.support.processes import ServiceProcess
from tests.support.tokens import TENANT, rows

PATHS = (
    "pods", "lines", "log", "namespaces", "pods?at=3", "pods/bank/merger-model",
    "pods/bank/merger-model/why", "history/pods/bank/merger-model", "log/3",
)  # fmt: skip
SECRET = "merger-model"


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a ledger with one pod of the tenant and one of another namespace."""
    async with running_bus(tmp_path / "nats") as running:
        facts = Facts(running)
        await facts.open()
        await facts.write(rack("n1", 2))
        await facts.write(pod("u1", ask(), namespace="ml", name="mine"))
        await facts.write(pod("u2", ask(), namespace="bank", name=SECRET))
        yield running


@pytest.mark.parametrize("guarded", [False, True], ids=["weak", "guarded"])
async def test_a_tenant_reads_of_others(bus: Bus, tmp_path: Path, guarded: bool) -> None:
    """A tenant reads everything about its own pods, and nothing that identifies other tenants'
    pods."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(rows(mallory=TENANT))
    options = ("--listen", "127.0.0.1:0", "--tokens", str(tokens))
    first = "" if guarded else without("shows what is seen")
    url = bus.server.url_for("gateway")
    async with ServiceProcess("gateway", url, *options, first=first) as process:
        await process.ready()
        base = str((await process.logged("answering"))["url"])
        headers = {"Authorization": "Bearer mallory"}
        async with aiohttp.ClientSession(headers=headers) as session:
            leaked = []
            for path in PATHS:
                async with session.get(base + path) as answer:
                    text = await answer.text()
                    leaked += [path] if SECRET in text.replace("bank/merger-model is", "") else []
            async with session.get(f"{base}pods") as answer:
                names = [(it["namespace"], it["name"]) for it in (await answer.json())["items"]]
    assert names[0] == ("ml", "mine")
    if guarded:
        assert not leaked
        assert names[1] == (OTHERS, "-")
    else:
        assert len(leaked) >= len(PATHS) - 1
