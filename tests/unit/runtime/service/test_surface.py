"""Tests of the HTTP server that every service has, for probes and metrics."""

import json
import re

import aiohttp
import pytest
from aiohttp import web

from apportion.runtime.process.config import Address, ConfigError
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.service.http import HttpServer

ANY_PORT = Address("127.0.0.1", 0)


async def _get(address: Address, path: str) -> tuple[int, str]:
    async with aiohttp.request("GET", f"http://{address}{path}") as page:
        return page.status, await page.text()


async def test_ready_gives_its_reasons_until_there_are_none() -> None:
    """The readiness probe lists the reasons why the service is not ready. If there are none, the
    service is ready."""
    reasons = ["folded up to 3 of 9", "not connected"]
    server = HttpServer(ANY_PORT, metrics=Metrics(), not_ready=lambda: reasons)
    address = await server.start()
    status, body = await _get(address, "/readyz")
    assert (status, json.loads(body)) == (503, {"ready": False, "reasons": reasons})
    reasons.clear()
    status, body = await _get(address, "/readyz")
    assert (status, json.loads(body)) == (200, {"ready": True, "reasons": []})
    assert (await _get(address, "/healthz"))[0] == 200
    await server.stop()


async def test_a_service_adds_its_own_routes() -> None:
    """A service can add its own routes to the HTTP server."""

    async def hello(_request: web.Request) -> web.Response:
        return web.Response(text="hello")

    server = HttpServer(
        ANY_PORT, metrics=Metrics(), not_ready=list, routes=[web.get("/hello", hello)]
    )
    address = await server.start()
    assert await _get(address, "/hello") == (200, "hello")
    assert (await _get(address, "/elsewhere"))[0] == 404
    await server.stop()


async def test_a_taken_port_is_a_setting_to_change() -> None:
    """If the port is in use, the error has the setting, its value and a fix."""
    first = HttpServer(ANY_PORT, metrics=Metrics(), not_ready=list)
    address = await first.start()
    second = HttpServer(address, metrics=Metrics(), not_ready=list)
    with pytest.raises(ConfigError, match=r"APPORTION_HEALTH .* choose a free port") as error:
        await second.start()
    assert error.value.found == str(address)
    await first.stop()


async def test_metrics_are_served_in_prometheus_form() -> None:
    """The server returns metrics in Prometheus' text format."""
    metrics = Metrics()
    metrics.appended("ok", 256, 0.004)
    metrics.appended("fence", 1, 0.001)
    metrics.fold_revision.set(42)
    metrics.events_folded.counts["PodPlaced"] += 7
    server = HttpServer(ANY_PORT, metrics=metrics, not_ready=list)
    _, text = await _get(await server.start(), "/metrics")
    for line in (
        'apportion_append_total{outcome="ok"} 1.0',
        'apportion_append_total{outcome="fence"} 1.0',
        "apportion_append_drafts_total 256.0",
        "apportion_append_conflicts_total 1.0",
        "apportion_append_seconds_count 2.0",
        "apportion_fold_revision 42.0",
        'apportion_events_folded_total{type="PodPlaced"} 7.0',
        "# TYPE apportion_fold_lag gauge",
    ):
        assert line in text
    await server.stop()


def test_two_processes_worth_of_metrics_do_not_meet() -> None:
    """If two services run in one process, each has its own metrics."""
    one, two = Metrics(), Metrics()
    one.counter("apportion_test_total", "x", ("code",)).labels("a").inc()
    two.counter("apportion_test_total", "x", ("code",))
    assert re.search(rb'apportion_test_total\{code="a"\} 1\.0', one.render())
    assert b'code="a"' not in two.render()
