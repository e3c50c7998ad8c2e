"""Reports of the gateway and of the verb `report` agree with the events of a real ledger."""

import asyncio
import csv
import io
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from apportion.core.reports.answers import LOST_CAUSES
from apportion.core.reports.focus import COLUMNS
from apportion.gateway.api import reports
from apportion.gateway.api.answering import guarded_routes
from apportion.gateway.api.measures import Measures
from apportion.gateway.api.reports import Reports
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.wire import STREAM, call_api
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.config import Address
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.service.http import HttpServer, listening
from apportion_schemas import (
    DeviceHealthChanged,
    NodeCordoned,
    PodGone,
    Share,
    ShareUsed,
    UsageRecorded,
)
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus
from tests.support.processes import ServiceProcess

PRICES = 'currency = "EUR"\n[models]\n"*" = 3600000\n'
MEMORY_MIB = 81_920
BETWEEN_S = 0.2
"""Time that passes between two events, so that there is some to measure."""
SLACK_H = 3e-6
"""Of the rounding of a few figures to six digits."""

NO_DATA = "no utilization data yet"


@pytest.fixture
async def facts(bus: Bus) -> Facts:
    """Provide a ledger in which a pod with usage starts and ends. While the pod runs, one GPU fails
    and then the node is cordoned."""
    facts = Facts(bus)
    await facts.open()
    await facts.write(rack("n1", 2))
    await facts.submit("a")
    half = Share(container="main", device="n1-g0", memory_mib=MEMORY_MIB // 2, cores=10)
    await facts.hold("a", "n1", half, bound=False)
    for later in (
        DeviceHealthChanged(node="n1", device="n1-g1", healthy=False),
        NodeCordoned(node="n1", by="ada", reason="fan"),
        PodGone(uid="a"),
        UsageRecorded(node="n1", seconds=1, shares=(used(),)),
        PodGone(uid="nobody"),
    ):
        began = time.monotonic()
        await facts.until(lambda: time.monotonic() >= began + BETWEEN_S, "time to pass")  # noqa: B023
        await facts.write(later)
    return facts


def used() -> ShareUsed:
    """Return a usage record of the pod for one second of work."""
    return ShareUsed(
        pod="a", namespace="default", name="a", container="main", device="n1-g0", seconds=1,
        memory_mib=MEMORY_MIB // 2, memory_mib_seconds=500, memory_mib_peak=500, cores=10,
        cores_seconds=5, cores_peak=5,
    )  # fmt: skip


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """Provide a price file in which a GPU costs 1,000 per second."""
    path = tmp_path / "prices.toml"
    path.write_text(PRICES)
    return path


async def get(url: str, path: str) -> tuple[int, str]:
    """Send a GET request, and return the status and the body of the response."""

    def asked() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url + path, timeout=40) as answer:  # noqa: S310 - our own
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()

    return await asyncio.to_thread(asked)


async def verb(bus: Bus, *arguments: str, code: int = 0, beside: bool = False) -> str:
    """Run a verb on this ledger with the operator's NATS login, and return its output."""
    url = bus.server.url_for("operator")
    return await said_by(*arguments, "--nats", url, code=code, beside=beside)


async def said_by(*arguments: str, code: int = 0, beside: bool = False) -> str:
    """Run a verb that must exit with `code`, and return its stdout.

    If `code` is not 0 or `beside` is True, return stderr instead."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "apportion.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"COLUMNS": "200"},
    )
    assert done.returncode == code, done.stderr
    return done.stderr if code or beside else done.stdout


Hours = Callable[[int, int], float]


async def hours_of(bus: Bus) -> Hours:
    """Return a function that takes two revisions, and returns the hours between their NATS
    timestamps."""
    auditor = await bus.connect("auditor")
    at = {number: await stream.read_stored(auditor.wire, {"seq": number}) for number in range(1, 9)}

    def hours(first: int, last: int) -> float:
        began, ended = at[first], at[last]
        assert began is not None
        assert ended is not None
        return (ended.at - began.at).total_seconds() / 3600

    return hours


async def test_the_figures_are_those_of_the_events(bus: Bus, facts: Facts) -> None:
    """In a usage report, the allocated, free, unhealthy and cordoned hours match the events that
    began and ended each state."""
    said = await verb(bus, "report", "usage", "--by", "node", "--from", "1", "--to", "8", "--json")
    answer = json.loads(said)
    [row] = answer["rows"]
    hours = await hours_of(bus)
    granted = hours(3, 6)
    for name, wanted in (
        ("capacity_gpu_hours", 2 * hours(1, 8)),
        ("allocated_gpu_hours", granted / 2),
        ("allocated_gib_hours", granted * MEMORY_MIB / 2 / 1024),
        ("unhealthy_gpu_hours", hours(4, 8)),
        ("cordoned_gpu_hours", hours(5, 8) - hours(5, 6) / 2),
    ):
        assert row[name] == pytest.approx(wanted, abs=SLACK_H, rel=1e-4), name
        assert row[name] > 10 * SLACK_H, "there is something to measure"
    parts = ("allocated", "free", "cordoned", "unhealthy")
    come = sum(row[f"{each}_gpu_hours"] for each in parts)
    assert come == pytest.approx(row["capacity_gpu_hours"], abs=SLACK_H)


async def test_lost_hours_are_those_of_the_events(bus: Bus, facts: Facts, prices: Path) -> None:
    """The causes of lost hours match the events that began and ended each state, and add up to the
    capacity exactly. The gateway returns the same report, also as CSV."""
    span = ("--from", "3", "--to", "8")
    own = ("report", "lost", *span, "--by", "node", "--prices", str(prices), "--json")
    answer = json.loads(await verb(bus, *own))
    [row] = answer["rows"]
    hours = await hours_of(bus)
    for name, wanted in (
        ("capacity", 2 * hours(3, 8)),
        ("worked", 0),
        ("scheduler_delay", hours(3, 6) / 2),  # it was placed, but never bound
        ("unhealthy", hours(4, 8)),
        ("draining", hours(5, 6) / 2),
        ("cordoned", hours(6, 8)),
    ):
        found = row[f"{name}_gpu_hours"]
        assert found == pytest.approx(wanted, abs=SLACK_H, rel=1e-4), name
    names = ("worked", *LOST_CAUSES)
    micro = {name: round(row[f"{name}_gpu_hours"] * 10**6) for name in (*names, "capacity")}
    assert sum(micro[name] for name in names) == micro["capacity"]
    assert row["lost_cost"] == pytest.approx(row["lost_gpu_hours"] * 3_600_000, abs=4)
    url = bus.server.url_for("gateway")
    listen = ("--listen", "127.0.0.1:0", "--prices", str(prices))
    async with ServiceProcess("gateway", url, *listen) as process:
        await process.ready()
        at = str((await process.logged("answering"))["url"])
        status, body = await get(at, "report/lost?by=node&from=3&to=8")
        assert (status, json.loads(body)) == (200, answer)
        gateway = at.removesuffix("/api/v1/")
        said = await said_by("report", "lost", *span, "--gateway", gateway)
        assert "scheduler delay" in said
        _, body = await get(at, "report/lost?from=3&to=8&format=csv")
        rows = list(csv.DictReader(io.StringIO(body)))
        added = sum(float(each["lost_gpu_hours"]) for each in rows)
        assert added == pytest.approx(row["lost_gpu_hours"], abs=SLACK_H)
        status, body = await get(at, "report/lost?format=focus")
        assert (status, json.loads(body)["field"]) == (400, "format")
    assert "focus" in await verb(bus, "report", "lost", "--format", "focus", code=2)
    assert facts.revision == 8


async def columns_add_up(at: str) -> None:
    """Check that under each grouping, the columns of the cost report's CSV add up to its totals."""
    for by in ("namespace", "node", "label:team"):
        path = f"report/cost?by={by}&from=1&to=8"
        total = json.loads((await get(at, path))[1])["total"]
        _, body = await get(at, f"{path}&format=csv")
        rows = list(csv.DictReader(io.StringIO(body)))
        for column in (each for each in rows[0] if each.endswith(("hours", "cost"))):
            added = sum(float(each[column] or 0) for each in rows)
            assert added == pytest.approx(total[column], rel=1e-6, abs=1e-4), (by, column)
        assert total["capacity_gpu_hours"] > 0
        assert len({each["key"] for each in rows}) == len(rows), "no two rows have one name"


async def the_verb_needs_no_prices(at: str, query: str) -> None:
    """Check that `report cost --gateway` prints the gateway's CSV and FOCUS rows without a price
    file."""
    span = ("--from", "1", "--to", "8", "--gateway", at.removesuffix("/api/v1/"))
    for form in ("csv", "focus"):
        _, body = await get(at, f"report/cost?{query}&format={form}")
        said = await said_by("report", "cost", *span, "--format", form)
        assert list(csv.reader(said.splitlines())) == list(csv.reader(body.splitlines()))


async def test_the_gateway_says_the_same(bus: Bus, facts: Facts, prices: Path) -> None:
    """The gateway and `apportion report` return the same report. The gateway also returns it as CSV
    and FOCUS."""
    query = "by=namespace&from=1&to=8"
    url = bus.server.url_for("gateway")
    listen = ("--listen", "127.0.0.1:0", "--prices", str(prices))
    async with ServiceProcess("gateway", url, *listen) as process:
        await process.ready()
        at = str((await process.logged("answering"))["url"])
        status, body = await get(at, f"report/cost?{query}")
        assert status == 200, body
        said = await verb(
            bus, "report", "cost", "--from", "1", "--to", "8", "--prices", str(prices), "--json"
        )
        assert json.loads(body) == json.loads(said)
        gateway = at.removesuffix("/api/v1/")
        asked = ("--from", "1", "--to", "8", "--json", "--gateway", gateway)
        assert json.loads(await said_by("report", "cost", *asked)) == json.loads(said)
        wrong = await said_by("report", "usage", "--from", "soon", "--gateway", gateway, code=2)
        assert "from" in wrong
        [row] = json.loads(body)["rows"]
        assert row["key"] == "default"
        assert row["cost"] == pytest.approx(row["allocated_gpu_hours"] * 3_600_000, abs=4)
        status, body = await get(at, f"report/usage?{query}&format=csv&step=1h")
        assert status == 200
        rows = list(csv.DictReader(io.StringIO(body)))
        assert {each["key"] for each in rows} == {"default", ""}
        await columns_add_up(at)
        status, body = await get(at, f"report/cost?{query}&format=focus")
        [record] = csv.DictReader(io.StringIO(body))
        assert tuple(record) == COLUMNS
        await the_verb_needs_no_prices(at, query)
        assert float(record["BilledCost"]) == pytest.approx(row["cost"], abs=0.001)
        for path, code, field in (
            ("report/usage?by=colour", 400, "by"), ("report/usage?from=soon", 400, "from"),
            ("report/usage?step=7x", 400, "step"), ("report/usage?colour=1", 400, "colour"),
            ("report/usage?from=8&to=1", 400, "from"), ("report/usage?format=xls", 400, "format"),
            ("report/usage?from=-9d&step=1s", 400, "step"), ("report/nothing", 404, ""),
        ):  # fmt: skip
            status, body = await get(at, path)
            assert (status, json.loads(body)["field"]) == (code, field), (path, body)
            assert json.loads(body)["fix"], path


async def test_what_was_used_and_what_did_nothing(bus: Bus, facts: Facts) -> None:
    """Reports on usage and on idle devices are based on the usage records of the node. If there are
    no records, the report says so."""
    now = ("--from", "-1h")
    [row] = json.loads(await verb(bus, "report", "usage", *now, "--json"))["rows"]
    assert row["used_gib_hours"] == pytest.approx(500 / 1024 / 3600, abs=SLACK_H)
    idle = json.loads(await verb(bus, "report", "idle", *now, "--by", "user", "--json"))
    assert (idle["found"], idle["shares"], idle["reported"]) == (0, [], True)
    assert " idle 0 times " in " ".join((await verb(bus, "report", "idle", *now)).split())
    before = await verb(bus, "report", "idle", "--from", "-3h", "--to", "-2h")
    assert NO_DATA in " ".join(before.split())
    assert "times" not in before
    table = ("report", "idle", "--from", "-3h", "--to", "-2h", "--format", "csv")
    assert NO_DATA in await verb(bus, *table, beside=True)
    wrong = await verb(bus, "report", "usage", "--from", "-1h", "--to", "-2h", code=2)
    assert "from: '-1h' is not before '-2h'" in wrong
    said = await verb(bus, "report", "usage", *now)
    assert "capacity" in said
    assert "default" in said
    assert "(the first event)" in " ".join(said.split())
    assert facts.revision == 8


async def test_a_trimmed_ledger_is_reported_with_its_archive(
    bus: Bus, facts: Facts, tmp_path: Path
) -> None:
    """A report on a trimmed ledger needs its archive. Without the archive the verb names the first
    remaining revision."""
    whole = await verb(bus, "report", "usage", "--from", "2", "--to", "8", "--json")
    file = tmp_path / "ledger.jsonl"
    await verb(bus, "ledger", "archive", str(file))
    bootstrap = await bus.connect("bootstrap")
    await call_api(bootstrap.wire, f"STREAM.PURGE.{STREAM}", {"seq": 6})
    said = await verb(bus, "report", "usage", "--from", "-1h", code=1)
    assert "begins at revision 6" in said
    [moment] = [event.time for revision, event in facts.events if revision == 2]
    archived = await verb(
        bus, "report", "usage", "--from", moment, "--to", "8", "--archive", str(file), "--json"
    )
    before, after = json.loads(whole)["total"], json.loads(archived)["total"]
    for name in ("allocated_gpu_hours", "capacity_gpu_hours"):  # by the writers' clocks
        assert after[name] == pytest.approx(before[name], abs=1 / 3600)


async def test_reports_and_plans_are_made_by_turns(bus: Bus) -> None:
    """The gateway limits concurrent reports and plans. A request that waits too long gets 503."""
    first = (
        "from apportion.runtime.service.limits import Turns\n"
        "Turns.__init__.__kwdefaults__.update(each=0, wait_s=0.1)"
    )
    url, listen = bus.server.url_for("gateway"), "127.0.0.1:0"
    async with ServiceProcess("gateway", url, "--listen", listen, first=first) as process:
        await process.ready()
        url = str((await process.logged("answering"))["url"])
        for name in ("usage", "idle"):
            status, text = await get(url, f"report/{name}")
            assert status == 503, text
            assert "0.1 s in the queue behind other reports" in text
        async with aiohttp.request("POST", f"{url}plan?at=1", json={}) as answer:
            assert answer.status == 503
            assert "queue behind other plans" in await answer.text()


async def test_a_report_that_takes_too_long_is_given_up(
    bus: Bus, facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a report takes too long, the gateway aborts the report and answers 503."""
    del facts  # there is something to read
    monkeypatch.setattr(reports, "SECONDS", 0.0)
    metrics = Metrics()
    made = Reports(await bus.connect("gateway"), clock=SystemClock(), prices=None)
    routes = guarded_routes(Measures(metrics), made.handlers())
    server = HttpServer(Address("127.0.0.1", 0), metrics=metrics, not_ready=list, routes=routes)
    async with listening(server) as address:
        status, text = await get(f"http://{address}/api/v1/", "report/usage")
    assert (status, "0 s" in json.loads(text)["error"]) == (503, True)


async def test_a_gateway_without_prices_says_how_to_give_them(bus: Bus) -> None:
    """Without prices, a cost report's error names the setting for them, as does `up --help`."""
    url = bus.server.url_for("gateway")
    async with ServiceProcess("gateway", url, "--listen", "127.0.0.1:0") as process:
        await process.ready()
        status, body = await get(str((await process.logged("answering"))["url"]), "report/cost")
    assert status == 404
    assert "--prices FILE" in body
    assert "APPORTION_PRICES=FILE" in body
    command = [sys.executable, "-m", "apportion.cli.main", "up", "--help"]
    said = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=30, check=True
    )
    assert "APPORTION_PRICES=FILE" in said.stdout


async def test_prices_that_lack_a_model_stop_no_report_but_that_of_the_cost(
    bus: Bus, facts: Facts, tmp_path: Path
) -> None:
    """A missing price disables only cost reports. The log and doctor name the model. Correcting the
    price file fixes cost reports without a restart."""
    file, model = tmp_path / "prices.toml", rack("n1", 1).devices[0].model
    file.write_text('currency = "EUR"\n[models]\n"Other" = 1\n')
    url, listen = bus.server.url_for("gateway"), "127.0.0.1:0"
    async with ServiceProcess("gateway", url, "--listen", listen, "--prices", str(file)) as process:
        await process.ready()
        at = str((await process.logged("answering"))["url"])
        warned = await process.logged("cost reports unavailable")
        assert (warned["prices"], model in str(warned["error"])) == (str(file), True)
        [check] = [each for each in await checks(at) if each["id"] == "prices"]
        assert (check["state"], model in check["words"]) == ("broken", True)
        status, body = await get(at, "report/usage?from=1")
        assert (status, json.loads(body)["unpriced"]) == (200, [model]), body
        assert (await get(at, "report/idle?from=1"))[0] == 200
        status, body = await get(at, "report/cost?from=1")
        assert (status, model in body, str(file) in body) == (404, True, True), body
        file.unlink()
        assert (await get(at, "report/usage?from=1"))[0] == 200
        assert str(file) in (await get(at, "report/cost?from=1"))[1]
        file.write_text(PRICES)
        assert (await get(at, "report/cost?from=1"))[0] == 200
    assert facts.revision == 8


async def checks(at: str) -> list[dict[str, Any]]:
    """Return the checks that the gateway's doctor reports."""
    found: list[dict[str, Any]] = json.loads((await get(at, "doctor"))[1])["checks"]
    return found


async def test_wrong_options_are_named(bus: Bus, facts: Facts, tmp_path: Path) -> None:
    """The CLI names invalid report options and suggests what to write instead."""
    odd = tmp_path / "odd.toml"
    odd.write_text('currency = "EUR"\n[models]\n"Other" = 1\n')
    cost = ("report", "cost", "--from", "1", "--prices", str(odd))
    assert "'NVIDIA A100" in await verb(bus, *cost, code=1)
    assert "--prices" in await verb(bus, "report", "cost", code=2)
    assert "--by" in await verb(bus, "report", "usage", "--by", "label:", code=2)
    assert "--from" in await verb(bus, "report", "usage", "--from", "soon", code=2)
    assert facts.revision == 8


def test_help_has_an_example() -> None:
    """The help of every report has an example."""
    for report in ("usage", "cost", "idle", "lost"):
        command = [sys.executable, "-m", "apportion.cli.main", "report", report, "--help"]
        said: Any = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        assert "Example:" in said.stdout
