"""Attack 19: the key of one node's agent reads the whole ledger.

Without the guard the agent can create a consumer of every subject, read single records, and load
the snapshots. These contain the names, sizes and refusals of all namespaces, the quotas and the
other nodes."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from apportion.core.identity.configuration import configuration
from apportion.core.identity.identity import readers_of_node
from apportion.core.intake.answers import subject_of_node
from apportion.core.intake.sight import SUBJECT
from apportion.core.ledger.snapshot import Taking
from apportion.intake import reads
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.jetstream.wire import STREAM, ApiRefused, Wire, call_api
from apportion.runtime.ledger.port import LedgerUnavailable, NotPermitted, NotServed
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import PodBound, PodPlaced, SharesAllocated
from tests.security.attacked import AGENT, USERS, attacked
from tests.security.test_attack_17_forged_snapshot import folded
from tests.security.weakened import GUARDS, without
from tests.simulation.hostile import NODE
from tests.support.attesting import attest_all
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus, ignore
from tests.support.polling import until
from tests.support.processes import NO_AGENTS, ServiceProcess

PERMISSIONS = "one node reads its part"
INTAKE = "asks for its node alone"
OTHERS = "apportion.v1.workload.victim"
INFO = f"STREAM.INFO.{STREAM}"
GET = f"STREAM.MSG.GET.{STREAM}"
CREATE = f"CONSUMER.CREATE.{STREAM}"
(OWN, *_) = readers_of_node(NODE)


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[Bus]:
    """Provide a ledger with a node and a pod that the compromised agent must not read about."""
    async with attacked(folder / "nats") as bus:
        facts = Facts(bus)
        await facts.open()
        await facts.write(rack("n2", 1))
        await facts.submit("victim")
        await (await snapshots_of(bus, "scheduler")).save(Taking(await folded(bus)).finish())
        yield bus


async def snapshots_of(bus: Bus, name: str) -> Snapshots:
    """Return a `Snapshots` that reads with this user's rights."""
    return Snapshots((await bus.connect(name)).wire)


async def test_weak_a_key_of_one_node_reads_all(tmp_path: Path) -> None:
    """Without the guard, one node's key can read every record, subject and snapshot."""
    with GUARDS[PERMISSIONS]():
        async with world(tmp_path) as bus:
            agent = await bus.connect(AGENT.name)
            seen: list[str] = []
            reader = await agent.follow(lambda record: seen.append(record.subject))
            await reader.caught_up()
            assert OTHERS in seen
            record = await stream.read_record(agent.wire, 2)
            assert record is not None
            assert record.subject == OTHERS
            info = await stream.read_info(agent.wire, subject=">")
            assert OTHERS in info.state.subjects
            await attest_all(bus)
            assert "victim" in (await Snapshots(agent.wire).restore()).pods


async def test_guarded_the_server_answers_it_nothing(tmp_path: Path) -> None:
    """An agent cannot use the NATS API, and cannot subscribe to events or other users' messages."""
    async with world(tmp_path) as bus:
        agent = await bus.connect(AGENT.name)
        store = "$JS.STORE.API"
        for api, what in (
            ("$JS.API", INFO),
            ("$JS.API", GET),
            ("$JS.API", f"{CREATE}.{AGENT.name}-0"),
            ("$JS.API", f"{CREATE}.{AGENT.name}-0.apportion.v1.>"),
            ("$JS.API", f"{CREATE}.{OWN}"),
            ("$JS.API", f"CONSUMER.INFO.{STREAM}.scheduler-0"),
            ("$JS.API", f"CONSUMER.LIST.{STREAM}"),
            (store, "STREAM.INFO.OBJ_APPORTION_SNAPSHOTS"),
            (store, "DIRECT.GET.OBJ_APPORTION_SNAPSHOTS"),
            (store, "DIRECT.GET.OBJ_APPORTION_BEGINNING"),
        ):
            with pytest.raises(NotPermitted):
                await call_api(agent.wire, what, api=api)
        with pytest.raises(NotPermitted):
            await agent.follow(ignore)
        for subject in ("apportion.v1.>", "_DELIVER.scheduler.>", "apportion.reading.*"):
            with pytest.raises(NotPermitted):
                await agent.wire.subscribe(subject, _hear)
        with pytest.raises(NotPermitted):
            await agent.request("apportion.reading.n2", b"{}", 5)


async def _hear(_message: object) -> None:
    pass


async def asked(bus: Bus, api: str, body: object = None) -> dict[str, Any]:
    """Send the compromised agent's read request to the intake, and return the intake's answer."""
    agent = await bus.connect(AGENT.name)
    payload = json.dumps({"api": api, "body": body or {}}).encode()
    answer: dict[str, Any] = json.loads(
        await agent.request(subject_of_node(NODE, SUBJECT), payload, 10)
    )
    return answer


def consumer(name: str = OWN, deliver: str = "", **changed: object) -> dict[str, object]:
    """Return the body of a request in which an agent asks for a consumer. Each keyword in `changed`
    replaces a setting."""
    config = {
        "name": name,
        "deliver_subject": deliver or f"_DELIVER.{AGENT.name}.x",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": 1,
        "ack_policy": "none",
        "max_deliver": 1,
        "flow_control": True,
        "idle_heartbeat": 1_000_000_000,
        "inactive_threshold": 30_000_000_000,
        "mem_storage": True,
        "num_replicas": 1,
        **changed,
    }
    return {"stream_name": STREAM, "config": config, "action": "create"}


MINE = f"apportion.v1.placement.{NODE}"
HOSTILE = {
    "a record of another": (GET, {"last_by_subj": OTHERS}),
    "the next of any": (GET, {"seq": 1, "next_by_subj": "apportion.v1.>"}),
    "a filter of others": (f"{CREATE}.{OWN}", consumer(filter_subjects=[MINE, OTHERS])),
    "a filter of all": (f"{CREATE}.{OWN}", consumer(filter_subject="apportion.v1.>")),
    "another node": (f"{CREATE}.{OWN}", consumer(filter_subject="apportion.v1.placement.n2")),
    "every node": (f"{CREATE}.{OWN}", consumer(filter_subject="apportion.v1.placement.*")),
}
"""Requests that an intake without its guard would forward to the server."""
NEVER = {
    "no filter": (f"{CREATE}.{OWN}", consumer()),
    "an empty filter": (f"{CREATE}.{OWN}", consumer(filter_subjects=[])),
    "another's consumer": (
        f"{CREATE}.scheduler-0", consumer("scheduler-0", filter_subject=MINE)
    ),
    "an order": (
        f"{CREATE}.{OWN}", consumer(deliver="$JS.API.STREAM.PURGE.APPORTION", filter_subject=MINE)
    ),
    "an unknown field": (f"{CREATE}.{OWN}", consumer(filter_subject=MINE, Filter_Subject=">")),
    "the queue": (f"CONSUMER.DELETE.{STREAM}.binder", None),
    "another's place": (f"CONSUMER.INFO.{STREAM}.scheduler-0", None),
    "all consumers": (f"CONSUMER.LIST.{STREAM}", None),
    "a purge": (f"STREAM.PURGE.{STREAM}", None),
    "no stream of ours": ("STREAM.INFO.OBJ_APPORTION_SNAPSHOTS", None),
}  # fmt: skip
"""Requests that no intake forwards for an agent."""


async def test_an_intake_asks_for_its_node_alone(tmp_path: Path) -> None:
    """An intake refuses an agent's request for data that its own node does not need."""
    async with (
        world(tmp_path) as bus,
        ServiceProcess("intake", bus.server.url_for("intake")) as intake,
    ):
        await intake.ready()
        for name, (api, body) in (HOSTILE | NEVER).items():
            assert (await asked(bus, api, body))["error"]["code"] == 403, name
        assert (await asked(bus, GET, {"seq": 2}))["error"]["err_code"] in stream.NO_MESSAGE
        info = await asked(bus, INFO, {"subjects_filter": ">"})
        assert "subjects" not in info["state"]
        assert info["state"]["last_seq"] == 2
        made = await asked(bus, f"{CREATE}.{OWN}", consumer(filter_subject=MINE))
        assert made["name"] == OWN


async def test_weak_an_intake_asks_for_whatever_an_agent_would_know(tmp_path: Path) -> None:
    """Without its check of requests, an intake reads other nodes' data for an agent."""
    async with world(tmp_path) as bus:
        url = bus.server.url_for("intake")
        async with ServiceProcess("intake", url, first=without(INTAKE)) as intake:
            await intake.ready()
            assert (await asked(bus, GET, {"seq": 2}))["message"]["subject"] == OTHERS
            for name, (api, body) in HOSTILE.items():
                answer = await asked(bus, api, body)
                assert answer.get("message") or answer.get("name") == OWN, name
                await asked(bus, f"CONSUMER.DELETE.{STREAM}.{OWN}")


async def test_the_agent_of_one_node_works_restarts_and_begins_on_a_trimmed_ledger(
    tmp_path: Path,
) -> None:
    """An agent reads through an intake, even if the intake starts late, is killed, or the ledger is
    trimmed."""
    async with attacked(tmp_path / "nats") as bus:
        facts = Facts(bus)
        await facts.open()
        url = bus.server.url_for
        intake = ServiceProcess("intake", url("intake"))
        await intake.start()
        await intake.kill()
        agent = ServiceProcess("agent", url(AGENT.name), "--node", NODE, "--simulate", "2xT4")
        scheduler = ServiceProcess("scheduler", url("scheduler"), *NO_AGENTS)
        async with scheduler, ServiceProcess("binder", url("binder")):
            async with agent:
                await until(lambda: waits(agent), "the agent to wait for an intake")
                await intake.start()
                await agent.ready()
                await facts.submit("first")
                await facts.count(SharesAllocated, 1)
                await intake.kill()
                await facts.submit("second")
                await facts.count(PodPlaced, 2)
                await intake.start()
                await facts.count(SharesAllocated, 2)
            await facts.submit("third")
            await facts.count(PodBound, 3)
            await trim(bus)
            async with ServiceProcess(
                "agent", url(AGENT.name), "--node", NODE, "--simulate", "2xT4"
            ) as again:
                await again.ready()
                allocated = await facts.count(SharesAllocated, 3)
        assert [each.pod for each in allocated] == ["first", "second", "third"]
        await intake.kill()


async def test_an_intake_and_an_agent_live_through_the_upgrade_of_the_rules(tmp_path: Path) -> None:
    """An intake and an agent work before and after an upgrade of the NATS permissions."""
    with GUARDS[PERMISSIONS]():
        earlier = attacked(tmp_path / "nats", of_earlier_build)
        bus = await earlier.__aenter__()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_exit(earlier)
        facts = Facts(bus)
        await facts.open()
        url = bus.server.url_for
        intake = ServiceProcess("intake", url("intake"))
        agent = ServiceProcess("agent", url(AGENT.name), "--node", NODE, "--simulate", "2xT4")
        scheduler = ServiceProcess("scheduler", url("scheduler"), *NO_AGENTS)
        for service in (intake, agent, scheduler, ServiceProcess("binder", url("binder"))):
            await stack.enter_async_context(service)
        await intake.ready()
        await agent.ready()
        await facts.submit("first")
        await facts.count(SharesAllocated, 1)
        (tmp_path / "nats" / "nats.conf").write_text(configuration(USERS))
        os.kill(bus.server.pid, signal.SIGHUP)
        wire = (await bus.connect("intake")).wire
        await until(lambda: has_consumer(wire), "the agent to read through the intake")
        await facts.submit("second")
        await facts.count(SharesAllocated, 2)
        await agent.ready()


def of_earlier_build(text: str) -> str:
    """Return a NATS configuration in which agents may not send read requests to an intake."""
    return "\n".join(line for line in text.splitlines() if "apportion.reading" not in line)


async def test_an_intake_that_may_not_listen_to_agents_connects_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An intake without the right to listen to agents reconnects, to get new rights."""
    monkeypatch.setattr(reads, "LISTEN_AGAIN_S", 0.01)
    async with attacked(tmp_path / "nats", of_earlier_build) as bus:
        ledger, metrics, cluster = await bus.connect("intake"), Metrics(), StateFold()
        reader = Reader(ledger, cluster, metrics=metrics, writes="agent")
        shows = reads.Showing(
            lambda: cluster.state, reader, ledger, ledger.wire, clock=SystemClock(), metrics=metrics
        )
        reading = asyncio.create_task(reader.run())
        with pytest.raises(ExceptionGroup) as ended:
            await shows.run()
        assert [type(each) for each in ended.value.exceptions] == [LedgerUnavailable]
        reading.cancel()


async def has_consumer(wire: Wire) -> bool:
    """Return True if an intake has created the agent's consumer and the agent listens to it."""
    with contextlib.suppress(ApiRefused, NotServed):  # a server that reloads serves no API
        info = await call_api(wire, f"CONSUMER.INFO.{STREAM}.{OWN}")
        return bool(json.loads(info)["push_bound"])
    return False


async def waits(agent: ServiceProcess) -> bool:
    """Return True if the agent has logged that it waits for the ledger."""
    return any(line.get("event") == "waiting for the ledger" for line in agent.log)


async def trim(bus: Bus) -> None:
    """Drop all records of the ledger except the newest, with a snapshot to start from."""
    await (await snapshots_of(bus, "scheduler")).save(Taking(await folded(bus)).finish())
    await attest_all(bus)
    boot = (await bus.connect("bootstrap")).wire
    last = await (await bus.connect("operator")).last_revision()
    beginning = await (await snapshots_of(bus, "operator")).beginning_behind(last - 1)
    assert beginning is not None
    await Snapshots(boot).begin_with(beginning)
    await stream.drop(boot, last=last - 1)
