"""A real gateway's answers about the past: past states, the timeline, and the log."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from apportion.gateway.api.past_client import LOOKS_EACH
from apportion.gateway.past.index import Index
from apportion.runtime.jetstream import stream
from apportion.runtime.ledger.reader import StateFold
from apportion_schemas import (
    DeviceHealthChanged,
    NodeCordoned,
    NodeHeard,
    NodeSilent,
    PodGone,
    PolicyChanged,
    QuotaObserved,
    RevisionSetAside,
    ShareBreached,
    SharesAllocated,
)
from tests.integration.gateway.test_gateway import Gateway
from tests.support.attesting import save_attested
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus, running_bus
from tests.support.pods import pod
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.processes import ServiceProcess
from tests.support.standalone import APPORTION

REFUSED = [
    ("/api/v1/pods?at=yesterday", 400, "14:20"),
    ("/api/v1/pods?at=2999-01-01", 400, "in the future"),
    ("/api/v1/pods?at=9", 404, "ends at 8"),
    ("/api/v1/moment", 400, "missing"),
    ("/api/v1/pods?at=3&colour=red", 400, "colour"),
    ("/api/v1/timeline?bins=0", 400, "bins"),
    ("/api/v1/log?type=Nothing", 400, "type"),
    ("/api/v1/log/99", 404, "99"),
    ("/api/v1/who", 400, "exactly one"),
    ("/api/v1/who?node=n1&device=n1-g0", 400, "exactly one"),
    ("/api/v1/who?node=n9", 404, "n9"),
    ("/api/v1/who?node=n1&at=3&since=4", 400, "earlier"),
    ("/api/v1/history/devices/nope", 404, "nope"),
    ("/api/v1/history/devices/n1-g", 404, "beginning of 2 device ids: n1-g0, n1-g1"),
    ("/api/v1/history/pods/default/nope", 404, "nope"),
    ("/api/v1/diff?from=5&to=4", 400, "swap"),
    ("/api/v1/diff?from=-0s&to=4", 400, "is -0s (revision 8), which is later than to: revision 4"),
    ("/api/v1/who?node=n1&at=3&since=now", 400, "is now (revision 8), which is later than at: "),
    ("/api/v1/diff?to=4", 400, "from"),
]


@pytest.fixture
async def facts(bus: Bus) -> Facts:
    """Provide a ledger in which a pod was submitted, was placed, lost its device, and ended."""
    opened = Facts(bus)
    await opened.open()
    await opened.write(rack("n1", 2))  # 1
    await opened.submit("a", "b")  # 2, 3
    await opened.place("a", "n1", "n1-g0")  # 4
    await opened.write(DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID"))
    await opened.write(PodGone(uid="a", reason="finished"))  # 6
    await opened.write(NodeCordoned(node="n1", by="ann", reason="fan"))  # 7
    await opened.write(PolicyChanged(by="ann", node_policy="spread"))  # 8
    return opened


@asynccontextmanager
async def serving(bus: Bus, *options: str) -> AsyncIterator[Gateway]:
    """Yield a gateway that was started with these options and is ready."""
    url = bus.server.url_for("gateway")
    async with ServiceProcess("gateway", url, "--listen", "127.0.0.1:0", *options) as process:
        await process.ready()
        line = await process.logged("answering")
        yield Gateway(process, str(line["url"]).removesuffix("/api/v1/"))


@pytest.fixture
async def gateway(bus: Bus, facts: Facts) -> AsyncIterator[Gateway]:
    """Provide a gateway with default options."""
    del facts  # is there first
    async with serving(bus) as running:
        yield running


async def test_what_is_set_aside_has_never_been(bus: Bus, facts: Facts, tmp_path: Path) -> None:
    """If an operator makes all readers skip an event, every view of the past leaves that event out,
    even a cached view."""

    async def is_open(of: Gateway, at: str = "?at=7") -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):  # while it restarts
            status, body = await of.get(f"/api/v1/nodes/n1{at}")
            return status == 200 and body["node"]["cordon"] == ""
        return False

    options = ("--listen", f"127.0.0.1:{free_port()}", "--past", str(tmp_path / "past"))
    async with serving(bus, *options) as gateway:
        assert not await is_open(gateway)
        await facts.write(RevisionSetAside(revision=7, by="ada", reason="the wrong node"))  # 9
        await until(partial(is_open, gateway, ""), "the node to be open now")
        await until(partial(is_open, gateway), "the node to be open as of then")
        row = (await gateway.ok("/api/v1/log/7"))["row"]
        for part in (" 9 ", "ada", "the wrong node"):
            assert part in row["sentence"]
        assert (await gateway.ok("/api/v1/summary?at=8"))["policy"]["node_policy"] == "spread"
    async with serving(bus, *options) as again:
        assert await is_open(again)


async def test_every_read_at_a_moment(gateway: Gateway) -> None:
    """A read with `at=REVISION` returns the state at that revision, the revision and its time."""
    pods = await gateway.ok("/api/v1/pods?at=4")
    assert [(pod["name"], pod["phase"]) for pod in pods["items"]] == [
        ("a", "placed"),
        ("b", "pending"),
    ]
    assert (pods["revision"], pods["time"][:2]) == (4, "20")
    assert (await gateway.ok("/api/v1/pods?at=6"))["items"][0]["name"] == "b"
    assert (await gateway.ok("/api/v1/pods?at=2"))["items"][0]["phase"] == "pending"
    why = await gateway.ok("/api/v1/pods/default/a/why?at=5")
    assert "has failed" in why["sentence"].split(". ")[0]
    node = await gateway.ok("/api/v1/nodes/n1?at=6")
    assert node["node"]["cordon"] == ""
    assert (await gateway.ok("/api/v1/nodes/n1?at=7"))["node"]["cordon"].startswith("fan (")
    assert (await gateway.ok("/api/v1/summary?at=8"))["policy"]["node_policy"] == "spread"
    assert (await gateway.ok("/api/v1/devices?at=4"))["items"][0]["holders"]
    for path in ("placements", "gangs", "revision", "configuration"):
        assert (await gateway.ok(f"/api/v1/{path}?at=3"))["revision"] == 3


async def test_moments(gateway: Gateway, facts: Facts) -> None:
    """A request for a time returns the newest event that was recorded by that time."""
    (_, first), *_ = facts.events
    assert (await gateway.ok("/api/v1/moment?at=3"))["revision"] == 3
    now = await gateway.ok("/api/v1/moment?at=-0s")
    assert now["revision"] == 8
    assert (await gateway.ok(f"/api/v1/moment?at={now['time']}"))["revision"] in (7, 8)
    status, body = await gateway.get(f"/api/v1/moment?at={first.time[:10]}T00:00")
    if status == 200:  # within a second of midnight
        pytest.skip("the ledger began with the day")
    assert (status, body["field"]) == (404, "at")
    assert "oldest known revision, 1 " in body["error"]
    assert body["fix"]


async def test_line_of_time(gateway: Gateway) -> None:
    """The timeline counts each event in exactly one bin. It marks failures, cordons and policy
    changes, and describes each in a sentence."""
    line = await gateway.ok("/api/v1/timeline?bins=5")
    counted = sum(sum(part["counts"].values()) for part in line["bins"])
    assert (len(line["bins"]), counted, line["first_revision"]) == (5, 8, 1)
    assert [(mark["revision"], mark["kind"]) for mark in line["marks"]] == [
        (5, "failure"),
        (7, "cordon"),
        (8, "policy"),
    ]
    for part in ("n1", "ann", "fan"):
        assert part in line["marks"][1]["sentence"]
    assert line["bins"][0]["from_time"] == line["first_time"]
    assert line["bins"][-1]["to_time"] == line["last_time"]
    part = await gateway.ok("/api/v1/timeline?bins=1&from=4&to=6")
    assert sum(part["bins"][0]["counts"].values()) == 3
    assert [mark["revision"] for mark in part["marks"]] == [5]


async def test_log(gateway: Gateway) -> None:
    """The log lists the newest events first, pages go backwards, and filters keep only matching
    events."""
    await gateway.ok("/api/v1/timeline?bins=1")  # once the index is there, which has the names
    page = await gateway.ok("/api/v1/log?limit=3")
    assert [row["revision"] for row in page["items"]] == [8, 7, 6]
    assert page["items"][2]["type"] == "PodGone"
    page = await gateway.ok(f"/api/v1/log?limit=10&before={page['continue']}")
    assert [row["revision"] for row in page["items"]] == [5, 4, 3, 2, 1]
    assert page["continue"] == ""
    one = await gateway.ok("/api/v1/log?type=PodSubmitted&limit=1")
    assert [row["revision"] for row in one["items"]] == [3]
    rest = await gateway.ok(f"/api/v1/log?type=PodSubmitted&before={one['continue']}")
    assert [row["revision"] for row in rest["items"]] == [2]
    found = await gateway.ok("/api/v1/log?subject=operator.>&text=FAN")
    assert [row["revision"] for row in found["items"]] == [7]
    entry = await gateway.ok("/api/v1/log/7")
    assert entry["event"]["data"]["by"] == "ann"
    assert entry["row"]["source"] == "test/operator"


async def test_what_happens_now_is_the_past_at_once(gateway: Gateway, facts: Facts) -> None:
    """If an event was appended before a request for the past, the answer includes that event."""
    await gateway.ok("/api/v1/timeline")
    await facts.submit("c")
    line = await gateway.ok("/api/v1/timeline?bins=1")
    assert line["bins"][0]["last_revision"] == line["revision"] == 9
    assert (await gateway.ok("/api/v1/pods/default/c?at=9"))["pod"]["phase"] == "pending"


async def trimmed(bus: Bus, facts: Facts, archives: Path) -> None:
    """Archive the ledger, snapshot it, and drop its first five events."""
    await asyncio.to_thread(archives.mkdir)
    verb = await asyncio.create_subprocess_exec(
        *APPORTION, "ledger", "archive", str(archives / "one.jsonl"),
        "--nats", bus.server.url_for("operator"),
    )  # fmt: skip
    assert await verb.wait() == 0
    scheduler = await bus.connect("scheduler")
    fold = StateFold()
    following = await scheduler.follow(fold.take)
    await following.caught_up()
    await following.stop()
    assert fold.state.revision == facts.revision
    await save_attested(bus, fold.state)
    await stream.drop((await bus.connect("bootstrap")).wire, last=5)


async def test_beyond_the_beginning_of_the_ledger(bus: Bus, facts: Facts, tmp_path: Path) -> None:
    """With archives the gateway answers about revisions that were trimmed from the ledger."""
    archives = tmp_path / "archives"
    await trimmed(bus, facts, archives)
    (archives / "broken.jsonl").write_bytes(b"{}")
    await facts.submit("c")  # 9
    async with serving(bus, "--archives", str(archives)) as gateway:
        pods = await gateway.ok("/api/v1/pods?at=4")
        assert [(pod["name"], pod["phase"]) for pod in pods["items"]] == [
            ("a", "placed"),
            ("b", "pending"),
        ]
        assert (await gateway.ok("/api/v1/pods?at=7"))["revision"] == 7
        story = await gateway.ok("/api/v1/history/pods/default/a")
        assert [row["revision"] for row in story["items"]] == [2, 4, 5, 6]
        assert (await gateway.ok("/api/v1/log/3"))["event"]["data"]["name"] == "b"
        page = await gateway.ok("/api/v1/log?limit=20")
        assert [row["revision"] for row in page["items"]] == list(range(9, 0, -1))
        line = await gateway.ok("/api/v1/timeline?bins=1")
        assert (line["first_revision"], line["bins"][0]["last_revision"]) == (1, 9)
        (_, second), (_, third) = facts.events[1:3]
        moment = await gateway.ok(f"/api/v1/moment?at={third.time}")
        assert moment["revision"] in ((3,) if third.time > second.time else (2, 3))
        [gone] = (await gateway.ok("/api/v1/diff?from=4&to=9"))["placements"]
        assert gone["revision"] == 6


async def test_before_what_is_known(bus: Bus, facts: Facts, tmp_path: Path) -> None:
    """Without archives, no state from before the oldest snapshot can be read. The error names the
    snapshot's revision."""
    await trimmed(bus, facts, tmp_path / "archives")
    await facts.submit("c")  # 9
    async with serving(bus) as gateway:
        status, body = await gateway.get("/api/v1/pods?at=4")
        assert (status, body["field"]) == (404, "at")
        assert "oldest known revision, 8" in body["error"]
        assert "--archives" in body["fix"]
        pods = await gateway.ok("/api/v1/pods?at=8")
        assert [pod["name"] for pod in pods["items"]] == ["b"]
        assert (await gateway.ok("/api/v1/pods/default/c/why?at=9"))["phase"] == "pending"


async def test_what_was_read_once_is_there_after_a_restart(
    bus: Bus, facts: Facts, tmp_path: Path
) -> None:
    """The gateway keeps its index of the past in the `--past` folder across restarts. If the folder
    has the index of another ledger, it is rebuilt."""
    kept = str(tmp_path / "kept")
    for number in range(3):
        async with serving(bus, "--past", kept) as gateway:
            story = await gateway.ok("/api/v1/history/pods/default/a")
            assert [row["revision"] for row in story["items"]] == [2, 4, 5, 6]
            line = await gateway.ok("/api/v1/timeline?bins=1")
            assert sum(line["bins"][0]["counts"].values()) == facts.revision
        await until(_of(lambda: past_processes(tmp_path / "kept") == []), "nobody to look back")
        index = Index(tmp_path / "kept" / "index.sqlite")
        assert index.revision == facts.revision
        if number == 1:  # as if the ledger had been put back, and had gone on otherwise
            index.keep("record", b"another one")
            index.commit(facts.revision)
        index.close()
        await facts.submit(f"later-{number}")
    async with running_bus(tmp_path / "other") as other:
        fresh = Facts(other)
        await fresh.open()
        await fresh.submit("z")
        async with serving(other, "--past", kept) as gateway:
            assert (await gateway.get("/api/v1/history/pods/default/a"))[0] == 404
            assert (await gateway.ok("/api/v1/history/pods/default/z"))["items"]


async def test_the_process_that_looks_back_ends_with_the_gateway_and_comes_again(
    bus: Bus, facts: Facts, tmp_path: Path
) -> None:
    """If the child process that answers about the past is killed, the gateway starts it again at
    the next such request. The process ends with the gateway."""
    kept = tmp_path / "kept"
    async with serving(bus, "--past", str(kept)) as gateway:
        await gateway.ok("/api/v1/moment?at=1")
        [first] = past_processes(kept)
        os.kill(first, signal.SIGKILL)
        await until(_of(lambda: past_processes(kept) == []), "the process to be gone")

        async def answered() -> bool:  # 503 until the gateway notices: retry
            status, body = await gateway.get("/api/v1/moment?at=1")
            return status == 200 and bool(body["revision"] == 1)

        await until(answered, "the past to answer again")
        [second] = past_processes(kept)
        assert second != first
    await until(_of(lambda: past_processes(kept) == []), "nobody to look back")
    assert facts.revision == 8


def past_processes(kept: Path) -> list[int]:
    """Return the ids of the processes that read past states from the folder `kept`."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal():
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if b"apportion.gateway.past_process" in words and str(kept).encode() in words:
                    found.append(int(folder.name))
    return found


def _of(check: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def seen() -> bool:
        return check()

    return seen


async def test_looks_at_once_are_limited(gateway: Gateway) -> None:
    """The gateway limits each client's concurrent requests for past states. If a request exceeds
    this limit, the error names a fix."""
    await gateway.ok("/api/v1/moment?at=1")
    count = LOOKS_EACH * 8

    async def look(session: aiohttp.ClientSession, revision: int) -> tuple[int, Any]:
        async with session.get(f"{gateway.url}/api/v1/pods?at={revision}") as answer:
            return answer.status, await answer.json()

    async with aiohttp.ClientSession() as session:
        asked = [asyncio.create_task(look(session, 1 + number % 8)) for number in range(count)]
        assert (await gateway.ok("/api/v1/revision"))["revision"] == 8
        answers = await asyncio.gather(*asked)
    statuses = [status for status, _ in answers]
    assert statuses.count(200) >= LOOKS_EACH
    assert set(statuses) == {200, 429}
    for number, (status, body) in enumerate(answers):
        if status == 200:
            assert body["revision"] == 1 + number % 8
        else:
            assert body["error"]
            assert body["fix"]


async def test_story_of_a_pod_a_node_and_a_device(gateway: Gateway) -> None:
    """A history has one row for each event, and is divided into pages. A pod's history includes
    failures of the pod's devices."""
    story = await gateway.ok("/api/v1/history/pods/default/a")
    assert [row["revision"] for row in story["items"]] == [2, 4, 5, 6]
    assert story["items"][2]["type"] == "DeviceHealthChanged"
    assert story["items"][3]["type"] == "PodGone"
    assert story["uids"] == ["a"]
    first = await gateway.ok("/api/v1/history/pods/default/a?limit=3")
    rest = await gateway.ok(f"/api/v1/history/pods/default/a?continue={first['continue']}")
    assert [row["revision"] for row in rest["items"]] == [6]
    node = await gateway.ok("/api/v1/history/nodes/n1")
    assert [row["revision"] for row in node["items"]] == [1, 4, 5, 6, 7]
    device = await gateway.ok("/api/v1/history/devices/n1-g0")
    assert [row["revision"] for row in device["items"]] == [1, 4, 5, 6]
    then = await gateway.ok("/api/v1/history/nodes/n1?at=4")
    assert [row["revision"] for row in then["items"]] == [1, 4]


async def test_where_a_pod_of_a_name_was(gateway: Gateway) -> None:
    """Pods are found by name even after they ended. For an unknown name the list is empty."""
    names = await gateway.ok("/api/v1/history/pods/a")
    assert names["items"] == [{"namespace": "default", "name": "a"}]
    assert (await gateway.ok("/api/v1/history/pods/a?at=1"))["items"] == []
    assert (await gateway.ok("/api/v1/history/pods/nobody"))["items"] == []


async def test_who_held_what(gateway: Gateway) -> None:
    """`who` lists the pods that use a device now, at a time, or since a time. Each row shows the
    revision at which the pod was placed."""
    [then] = (await gateway.ok("/api/v1/who?device=n1-g0&at=5"))["items"]
    assert (then["pod"], then["decision_revision"], then["to_revision"]) == ("a", 4, 0)
    [since] = (await gateway.ok("/api/v1/who?node=n1&since=2"))["items"]
    assert (since["from_revision"], since["to_revision"], since["memory_mib"]) == (4, 6, 16)
    assert since["to_time"] > since["from_time"]
    [early] = (await gateway.ok("/api/v1/who?node=n1&since=2&at=5"))["items"]
    assert (early["from_revision"], early["to_revision"]) == (4, 0)
    assert (await gateway.ok("/api/v1/who?node=n1&since=-9d"))["since"] == 1
    for path in ("who?device=n1-g0", "who?device=n1-g0&at=3", "who?node=n1&since=7"):
        assert (await gateway.ok(f"/api/v1/{path}"))["items"] == []


async def test_what_changed_and_who_did_it(gateway: Gateway) -> None:
    """A diff lists each difference between two states with the event that caused it."""
    diff = await gateway.ok("/api/v1/diff?from=4&to=8")
    [gone] = diff["placements"]
    assert (gone["name"], gone["after"], gone["revision"]) == ("default/a", "", 6)
    assert gone["before"].startswith("n1: n1-g0 16 MiB")
    [failed] = diff["devices"]
    assert (failed["what"], failed["before"], failed["after"]) == ("health", "ok", "failed: XID")
    [cordon] = diff["nodes"]
    assert (cordon["what"], cordon["after"], cordon["by"]) == ("cordon", "fan", "ann")
    [policy] = diff["policy"]
    assert ("spread" in policy["after"], policy["by"]) == (True, "ann")
    assert diff["configuration"] == []
    assert (diff["from"]["revision"], diff["to"]["revision"]) == (4, 8)
    whole = await gateway.ok("/api/v1/diff?from=1&to=8")
    early = await gateway.ok("/api/v1/diff?from=-9d&to=8")
    assert early == whole, "before the ledger began there was nothing"
    assert (await gateway.ok("/api/v1/diff?from=4&to=now"))["to"]["revision"] == diff["revision"]
    back = await gateway.ok("/api/v1/diff?from=1&to=4")
    assert [(row["name"], row["before"], row["revision"]) for row in back["placements"]] == [
        ("default/a", "", 4)
    ]


async def test_a_difference_has_the_event_that_made_it(gateway: Gateway, facts: Facts) -> None:
    """A diff names the event that made each change, not the newest event about the object."""
    await facts.write(rack("n2", 1))  # 9
    silent = [NodeSilent(node=name, grace_s=40) for name in ("n1", "n2")]
    await facts.write(*silent, NodeHeard(node="n2"))  # 10 to 12
    await facts.place("b", "n2", "n2-g0")  # 13
    await facts.submit("bare")  # 14
    await facts.place("bare", "n2")  # 15
    await facts.write(PolicyChanged(by="bob", node_policy="spread"))  # 16: which it was
    await facts.write(QuotaObserved(namespace="web", quota="q", hard={"nvidia.com/gpu": 4}))  # 17
    diff = await gateway.ok("/api/v1/diff?from=7")
    found = {
        (row["name"], row["what"]): (row["before"], row["after"], row["revision"])
        for name in ("nodes", "devices", "placements", "limits", "waiting")
        for row in diff[name]
    }
    assert found == {
        ("n1", "state"): ("ready", "silent", 10),
        ("n2", "state"): ("", "joined, 1 device", 9),
        ("default/b", "placement"): ("", "n2: n2-g0 16 MiB", 13),
        ("default/bare", "placement"): ("", "n2: no device", 15),
        ("quota web/q", "limit"): ("", "nvidia.com/gpu 4", 17),
    }, "a node joined when it came, not when it was heard again"
    assert [row["revision"] for row in diff["policy"]] == [8]
    diff = await gateway.ok(f"/api/v1/diff?from=1&to={facts.revision}")
    assert all(row["revision"] for name in ("nodes", "devices", "placements") for row in diff[name])


async def test_a_lost_node_is_in_the_story_of_its_pods(gateway: Gateway, facts: Facts) -> None:
    """The loss of a node appears in `history` and `why` of the pods that were on the node at that
    time."""
    await facts.place("b", "n1", "n1-g1")  # 9
    await facts.write(SharesAllocated(pod="b", node="n1", attempt=1, devices=("n1-g1",)))  # 10
    await facts.write(NodeSilent(node="n1", grace_s=40))  # 11
    story = await gateway.ok("/api/v1/history/pods/default/b")
    assert [row["revision"] for row in story["items"]] == [3, 9, 10, 11]
    before = await gateway.ok("/api/v1/history/pods/default/a")
    assert [row["revision"] for row in before["items"]] == [2, 4, 5, 6]
    why = await gateway.ok(f"/api/v1/pods/default/b/why?at_least={facts.revision}")
    assert why["unready"] in why["sentence"]
    assert "n1" in why["unready"]


async def test_a_pod_that_moved_is_one_row(gateway: Gateway, facts: Facts) -> None:
    """A diff shows a drained pod and the pod that replaced it in one row. Two unrelated pods with
    the same name have two rows."""
    await facts.place("b", "n1", "n1-g1")  # 9
    await facts.write(PodGone(uid="b", reason=(why := "drained from n1 by ann: fan")))  # 10
    await facts.write(*(pod(uid, name="b") for uid in ("b2", "b3")))  # 11, 12
    await facts.write(rack("n2", 2))  # 13
    await facts.place("b2", "n2", "n2-g0", name="b")  # 14
    [moved] = (await gateway.ok("/api/v1/diff?from=9&to=14"))["placements"]
    assert (moved["before"], moved["after"]) == ("n1: n1-g1 16 MiB", "n2: n2-g0 16 MiB")
    assert (moved["name"], moved["revision"], moved["cause"]) == ("default/b", 14, why)
    for span, name in (("from=9&to=11", "placements"), ("from=8&to=10", "waiting")):
        [gone] = (await gateway.ok(f"/api/v1/diff?{span}"))[name]
        assert (gone["after"], gone["revision"], gone["cause"]) == ("", 10, why)
    [waits] = (await gateway.ok("/api/v1/diff?from=9&to=11"))["waiting"]
    assert (waits["name"], waits["after"], waits["revision"]) == ("default/b", "pending", 11)
    await facts.place("b3", "n2", "n2-g1", name="b")  # 15
    rows = (await gateway.ok("/api/v1/diff?from=9"))["placements"]
    assert [(row["before"], row["after"], row["revision"]) for row in rows] == [
        ("n1: n1-g1 16 MiB", "n2: n2-g0 16 MiB", 14),
        ("", "n2: n2-g1 16 MiB", 15),
    ]


async def test_why_of_a_pod_that_has_ended(gateway: Gateway, facts: Facts) -> None:
    """`why` of an ended pod shows its last placement and the failures of its devices, including
    failures after the pod's end."""
    why = await gateway.ok("/api/v1/pods/default/a/why")
    assert (why["phase"], why["placed"]["node"]) == ("ended", "n1")
    assert [(each["device"], each["revision"]) for each in why["failed_devices"]] == [("n1-g0", 5)]
    status, body = await gateway.get("/api/v1/pods/default/nobody/why")
    assert (status, "or before" in body["error"]) == (404, True)
    await facts.place("b", "n1", "n1-g1")
    await facts.write(PodGone(uid="b", reason="finished"))
    await facts.write(DeviceHealthChanged(node="n1", device="n1-g1", healthy=False, reason="late"))
    why = await gateway.ok(f"/api/v1/pods/default/b/why?at_least={facts.revision}")
    failed = [(each["device"], each["revision"]) for each in why["failed_devices"]]
    assert failed == [("n1-g1", facts.revision)]


async def test_since_when_a_device_is_broken(gateway: Gateway, facts: Facts) -> None:
    """`why` of a live pod names its failed devices and the revision of each failure."""
    await facts.place("b", "n1", "n1-g1")
    await facts.write(DeviceHealthChanged(node="n1", device="n1-g1", healthy=False, reason="XID"))
    why = await gateway.ok(f"/api/v1/pods/default/b/why?at_least={facts.revision}")
    assert why["phase"] == "placed"
    failed = [(each["device"], each["revision"]) for each in why["failed_devices"]]
    assert failed == [("n1-g1", facts.revision)]


async def test_why_names_the_breaches_of_a_pods_shares(gateway: Gateway, facts: Facts) -> None:
    """`why` lists each kind of share breach once, with count and last time. In a view of the past
    it counts the breaches up to that time."""
    await facts.place("b", "n1", "n1-g1")
    base = ShareBreached(
        pod="b", node="n1", attempt=1, container="main", device="n1-g1", code="raised",
        memory_mib=16, memory_found_mib=900, cores=0, cores_found=0,
    )  # fmt: skip
    await facts.write(base)
    first = facts.revision
    await facts.write(msgspec.structs.replace(base, code="zeroed"))
    await facts.write(msgspec.structs.replace(base, memory_found_mib=901))
    last = facts.revision
    path = "/api/v1/pods/default/b/why"

    def told(why: dict[str, Any]) -> list[tuple[str, int, int]]:
        return [(each["code"], each["revision"], each["times"]) for each in why["breaches"]]

    why = await gateway.ok(f"{path}?at_least={last}&at={last}")
    assert told(why) == [("raised", last, 2), ("zeroed", last - 1, 1)]
    assert (why["breaches"][0]["container"], why["breaches"][0]["device"]) == ("main", "n1-g1")
    assert "901" in why["breaches"][0]["sentence"]
    assert told(await gateway.ok(f"{path}?at={first}")) == [("raised", first, 1)]
    assert told(await gateway.ok(f"{path}?at={first - 1}")) == []

    said = await asked(gateway, "why", "b")
    lines = [line for line in said.splitlines() if line.startswith("share breached: ")]
    assert [
        f"revision {revision} " in line
        for line, revision in zip(lines, (last, last - 1), strict=True)
    ]
    assert ["2 times" in line for line in lines] == [True, False]

    await facts.write(PodGone(uid="b", reason="finished"))
    why = await gateway.ok(f"{path}?at_least={facts.revision}")
    assert told(why) == [("raised", last, 2), ("zeroed", last - 1, 1)]


async def test_refusals(gateway: Gateway) -> None:
    """Every refusal of a request for the past names the field and the fix."""
    for path, status, word in REFUSED:
        found, body = await gateway.get(path)
        assert found == status, (path, body)
        assert word in body["error"] + body["fix"], body
        assert body["fix"], path
        assert body["field"], path


async def asked(gateway: Gateway, *words: str, code: int = 0) -> str:
    """Run a verb against the gateway, check its exit code, and return all its output."""
    verb = await asyncio.create_subprocess_exec(
        *APPORTION, *words, "--gateway", gateway.url, env={**os.environ, "COLUMNS": "200"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await verb.communicate()
    assert verb.returncode == code, output
    return output.decode()


async def test_verbs(gateway: Gateway) -> None:
    """Every verb that reads state accepts --at."""
    said = partial(asked, gateway)
    pods = await said("get", "pods", "--at", "4")
    assert "as of revision 4, 20" in pods
    assert re.search(r"default +a +placed +n1 ", pods)
    assert not re.search(r"default +a ", await said("get", "pods", "--at", "6"))
    for words in (("get", "nodes"), ("get", "devices"), ("get", "gangs"), ("get", "placements"),
                  ("top",), ("top", "--once"), ("policy", "get"), ("config", "show")):  # fmt: skip
        assert "as of revision 3" in await said(*words, "--at", "3")
    assert re.search(r"healthy +a\n", await said("top", "--at", "4", "--node", "n1"))
    assert "ended at revision 6" in await said("why", "a")
    assert "placed on n1" in await said("why", "a", "--at", "4")
    who = await said("who", "n1-g0", "--since", "1")
    [row] = [line.split() for line in who.splitlines() if "default/a" in line]
    assert (row[:6], row[-1]) == (["n1", "0", "n1-g0", "default/a", "16", "MiB"], "4")
    for target in ("n1", "n1-g0"):
        assert "fan (ann, 20" in await said("who", target)
        assert "fan (ann" not in await said("who", target, "--at", "6")


async def test_verbs_about_what_was(gateway: Gateway, facts: Facts) -> None:
    """`history` and `diff` show past events and changes, and fail for names that never existed."""
    said = partial(asked, gateway)
    story = await said("history", "a")
    assert re.findall(r"^[\d:.]{12} .{8} +(\d+) ", story, re.MULTILINE) == ["2", "4", "5", "6"]
    assert "ann: fan" in await said("history", "n1")
    assert "PodPlaced" in await said("history", "n1-g0")
    assert "has ever existed" in await said("history", "nothing", code=1)
    diff = await said("diff", "--from", "4", "--to", "8")
    rows = [line.split() for line in diff.splitlines()]
    assert ["default/a", "n1", "-", "n1-g0", "16", "MiB", "6"] in [row[:7] for row in rows]
    assert ["n1", "cordon", "-", "fan", "7"] in [row[:5] for row in rows]
    assert diff.index("NODES") < diff.index("PLACEMENTS"), "the few come before the many"
    assert "no changes" in await said("diff", "--from", "3", "--to", "3")
    for words in (("diff", "--from", "-9d", "--to", "now"), ("who", "n1", "--since", "-9d")):
        assert "Z, before the first event: " in await said(*words)
    assert re.search(r"^default +b ", await said("get", "pods", "--at", "now"), re.MULTILINE)
    assert "14:20" in await said("get", "pods", "--at", "soon", code=2)
    assert re.search(r"^default +b .* 0s ", await said("get", "pods", "--at", "3"), re.MULTILINE), (
        "its age is that of then"
    )
    first, *_ = (await said("who", "n1", "--at", "-0s")).splitlines()
    assert re.search(r"revision 8, written at [-\dT:]+Z$", first)
    early = await said("who", "n1", "--at", "-1d", code=1)
    assert re.search(r"'-1d' \(\d{4}-\d\d-\d\dT[\d:]{8}Z\)", early)
    for target in ("n1", "n1-g0"):
        assert f"`apportion who {target}`" in await said("why", target, code=1)
    await facts.submit("c")
    listed = json.loads((await said("get", "pods", "--at", "-0s", "--json")).partition("\n")[2])
    assert [item["name"] for item in listed["items"]] == ["b", "c"]


async def test_what_has_bounds_of_its_own_refuses_a_moment(gateway: Gateway) -> None:
    """An endpoint that takes a start and an end time refuses the parameter `at` instead of ignoring
    it."""
    for path in ("log?at=3", "log/2?at=3", "timeline?at=3", "diff?from=1&at=3"):
        status, body = await gateway.get(f"/api/v1/{path}")
        assert (status, body["field"]) == (400, "at"), path
