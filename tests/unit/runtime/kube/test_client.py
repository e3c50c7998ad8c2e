"""Tests of the Kubernetes client: changes of its kubeconfig, and an unreachable API server."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from apportion.runtime.kube.client import (
    EVERY_S,
    VERSION,
    Answer,
    KubeRefused,
    KubeUnavailable,
    Reach,
    open_kube,
)
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.memory_kube import MemoryKube
from tests.support.memory_kube_api import MemoryKubeApi, PerfectKubeLink


class Server:
    """A fake API server that accepts only requests with its token."""

    def __init__(self) -> None:
        self.token, self.url = "first", ""

    async def answer(self, request: web.Request) -> web.Response:
        """Answer 200 to a request with the right token, and 401 to any other."""
        known = request.headers.get("Authorization") == f"Bearer {self.token}"
        return web.json_response({"major": "1"}, status=200 if known else 401)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    serving = Server()
    app = web.Application()
    app.router.add_get(VERSION, serving.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    serving.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield serving
    await runner.cleanup()


def written(path: Path, server: Server, token: str) -> Path:
    """Write a kubeconfig with this token in one step, as other tools do, and return its path."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    whole = path.with_suffix(".new")
    whole.write_text(yaml.safe_dump(document))
    return whole.rename(path)


async def test_H6_a_rewritten_kubeconfig_is_read_anew(server: Server, tmp_path: Path) -> None:
    """If another tool renews the token in the kubeconfig, the client uses the new one without a
    restart."""
    path = written(tmp_path / "config", server, "first")
    async with open_kube(path, None) as api:
        assert b"major" in await api.get(VERSION)
        for token in ("second", "third"):
            server.token = token
            with pytest.raises(KubeRefused):
                await api.get(VERSION)
            written(path, server, token)
            assert b"major" in await api.get(VERSION)


async def test_a_kubeconfig_that_cannot_be_used_changes_nothing(
    server: Server, tmp_path: Path
) -> None:
    """While the kubeconfig is broken or missing, the client continues with the last valid
    kubeconfig."""
    path = written(tmp_path / "config", server, "first")
    async with open_kube(path, None) as api:
        for broken in ("clusters: [", "{}", ""):
            path.write_text(broken)
            assert b"major" in await api.get(VERSION)
        path.unlink()
        assert b"major" in await api.get(VERSION)
        server.token = "second"
        written(path, server, "second")
        assert b"major" in await api.get(VERSION)


class Away(PerfectKubeLink):
    """A network to the API server that a test can cut."""

    def __init__(self) -> None:
        self.cut = False

    async def ask(self, method: str, act: Callable[[], Answer]) -> Answer:
        """Pass the request on, or fail while the network is cut."""
        if self.cut:
            raise KubeUnavailable("cut")
        return await super().ask(method, act)


def test_H6_a_service_is_ready_in_reach_of_the_server_only() -> None:
    """While the API server is unreachable, a service is not ready and its readiness probe gives
    that as the reason."""

    async def main() -> None:
        link = Away()
        clock = SkewedClock(random.Random(7), skew_s=0.0)
        reach = Reach(MemoryKubeApi(MemoryKube(), link), clock)
        [before] = reach.not_ready()
        running = asyncio.create_task(reach.run())
        for cut in (False, True, False):
            link.cut = cut
            await rest(2 * EVERY_S)
            reasons = reach.not_ready()
            assert [reason.endswith(": cut") for reason in reasons] == [True] * cut
            assert before not in reasons
        running.cancel()

    run_virtually(main())
