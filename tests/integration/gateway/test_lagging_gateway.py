"""CLI commands that write to the ledger do not act on stale data of a gateway that lags behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from apportion.cli.exits import UNREACHABLE
from apportion_schemas import NodeCordoned, NodeUncordoned, PodGone, PolicyChanged
from apportion_schemas.quantities import Payload
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Proxy, running_bus
from tests.support.pods import pod
from tests.support.processes import ServiceProcess
from tests.support.standalone import APPORTION

pytestmark = pytest.mark.slow
ANN = ("--by", "ann")


class Lagging(NamedTuple):
    """A ledger, and a gateway that lags behind it because the proxy between them passes on no more
    events."""

    facts: Facts
    proxy: Proxy
    options: tuple[str, ...]

    async def begin(self, *verb: str) -> asyncio.subprocess.Process:
        """Start a verb with the addresses of the ledger and the gateway."""
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *APPORTION, *verb, *self.options, stdout=pipe, stderr=pipe
        )


@asynccontextmanager
async def lagging(folder: Path, known: Payload, *behind: Payload) -> AsyncIterator[Lagging]:
    """Yield a gateway that has read one node and the event `known`, but none of the events in
    `behind`."""
    async with running_bus(folder) as bus:
        facts, proxy = Facts(bus), Proxy(bus.server.port)
        await facts.open()
        await facts.write(rack("n1", 1))
        await facts.write(known)
        await proxy.start()
        url = bus.server.url_for("gateway").replace(f":{bus.server.port}", f":{proxy.port}")
        try:
            async with ServiceProcess("gateway", url, "--listen", "127.0.0.1:0") as process:
                await process.ready()
                gateway = str((await process.logged("answering"))["url"]).removesuffix("/api/v1/")
                proxy.mute()
                for data in behind:
                    await facts.write(data)
                options = ("--gateway", gateway, "--nats", bus.server.url_for("operator"))
                yield Lagging(facts, proxy, options)
        finally:
            await proxy.stop()


@pytest.mark.parametrize(("verb", "said"), [("cordon", ""), ("drain", "drain: ")])
async def test_a_cordon_that_was_lifted_is_said_once_more(
    verb: str, said: str, tmp_path: Path
) -> None:
    """If a cordon was lifted but the lagging gateway still shows it, `cordon` and `drain` append a
    new cordon."""
    before = NodeCordoned(node="n1", by="ann", reason=f"{said}fan")
    lifted = NodeUncordoned(node="n1", by="ann", reason="")
    async with lagging(tmp_path, before, lifted) as there:
        process = await there.begin(verb, "n1", "--reason", "fan", *ANN)
        await there.facts.count(NodeCordoned, 2)
        await there.proxy.cut()
        out, words = await process.communicate()
        assert (process.returncode, b"revision 4" in out) == (0, True), (out, words)
        assert there.facts.revision == 4


BOB, ANN_S = (NodeCordoned(node="n1", by=by, reason="fan") for by in ("bob", "ann"))
SPREAD = PolicyChanged(by="ann", node_policy="spread")


@pytest.mark.parametrize(
    ("verb", "known", "behind"),
    [
        (("uncordon", "n1", *ANN), BOB, (ANN_S,)),
        (("policy", "set", "--devices", "binpack"), SPREAD, (PolicyChanged(by="bob"),)),
        (("delete", "p1"), pod("p1"), (PodGone(uid="p1"), pod("p2", name="p1"))),
    ],
    ids=["uncordon", "policy", "delete"],
)
async def test_nothing_is_written_upon_what_is_not_so_any_more(
    verb: tuple[str, ...], known: Payload, behind: tuple[Payload, ...], tmp_path: Path
) -> None:
    """A verb that would act on the gateway's stale data exits with an error and appends nothing."""
    async with lagging(tmp_path, known, *behind) as there:
        newest = there.facts.revision
        process = await there.begin(*verb)
        _, words = await process.communicate()
        assert process.returncode == UNREACHABLE, words
        assert f"revision {newest} not reached".encode() in words
        assert there.facts.revision == newest
