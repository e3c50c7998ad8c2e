"""Attack 17: the owner of a scheduler's key writes false snapshots, or purges the existing ones.

Without the guard a restarted service starts from a false snapshot in which a pod has lost its GPU.
Another pod is then placed on that GPU."""

import asyncio
import json

import pytest

from apportion.core.ledger.fold import Change
from apportion.core.ledger.snapshot import Taking
from apportion.core.ledger.state import State
from apportion.intake.reads import Attesting
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.examining import examine
from apportion.runtime.jetstream.object_store import STORE_API
from apportion.runtime.jetstream.snapshots import BEGINNING, BUCKET, Snapshots, Stored
from apportion.runtime.jetstream.wire import STREAM, call_api
from apportion.runtime.ledger.port import LedgerError, NotPermitted
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.metrics import Metrics
from tests.security.weakened import guarded_but, without
from tests.support.attesting import attest_all
from tests.support.facts import Facts
from tests.support.nats import Bus
from tests.support.polling import until
from tests.support.processes import ServiceProcess

HASTE = """
from apportion.intake import reads
reads.LOOK_S = 0.2
"""
"""Code that makes an intake look for new snapshots every 0.2 s."""
GUARD = "attests what it has folded"


@pytest.fixture
async def facts(bus: Bus) -> Facts:
    """Provide a ledger with three pods."""
    opened = Facts(bus)
    await opened.open()
    await opened.submit("a", "victim", "c")
    return opened


async def folded(bus: Bus) -> State:
    """Return the state of the whole ledger."""
    cluster = StateFold()
    following = await (await bus.connect("scheduler")).follow(cluster.take)
    await following.caught_up()
    await following.stop()
    return cluster.state


async def snapshots_of(bus: Bus, role: str) -> Snapshots:
    """Return a `Snapshots` that reads and writes with this role's rights."""
    return Snapshots((await bus.connect(role)).wire)


async def forge(bus: Bus) -> None:
    """With a scheduler's key, write a snapshot that lacks the victim pod."""
    state = await folded(bus)
    del state.pods["victim"]
    await (await snapshots_of(bus, "scheduler")).save(Taking(state).finish())


async def attested(bus: Bus) -> list[Stored]:
    """Return the snapshots that an intake has attested. Services use only these."""
    return await (await snapshots_of(bus, "operator")).stored()


async def says(intake: ServiceProcess, metric: str) -> bool:
    """Return True if the intake exports this metric line."""
    return metric in (await intake.get("/metrics"))[1].splitlines()


@pytest.mark.parametrize("guard", ["", GUARD])
async def test_a_forged_snapshot_is_not_believed(bus: Bus, facts: Facts, guard: str) -> None:
    """The intake reports a forged snapshot and is not ready. Without the guard a restarted service
    starts from that snapshot, in which the victim pod is missing."""
    await forge(bus)
    url = bus.server.url_for("intake")
    async with ServiceProcess("intake", url, first=HASTE + without(guard)) as intake:
        if guard:
            await until(lambda: attested(bus), "the forged snapshot to be attested")
            assert "victim" not in (await (await snapshots_of(bus, "binder")).restore()).pods
            return
        await until(lambda: says(intake, "apportion_snapshots_forged 1.0"), "the alarm")
        status, page = await intake.get("/readyz")
        assert (status, "revision 3" in page) == (503, True)
        assert await attested(bus) == []
        assert (await (await snapshots_of(bus, "binder")).restore()).revision == 0


@pytest.mark.parametrize("guard", ["", "misses what was attested"])
async def test_snapshots_that_are_purged_are_missed(bus: Bus, facts: Facts, guard: str) -> None:
    """If attested snapshots are purged, the intake that attested them is no longer ready. Without
    the guard it stays ready."""
    intake = await bus.connect("intake")
    cluster, metrics, clock = StateFold(), Metrics(), SystemClock()
    reader: Reader[Change] = Reader(intake, cluster, metrics=metrics, writes="agent")
    with guarded_but(guard):
        own = Snapshots(intake.wire)
        attesting = Attesting(intake, own, reader, clock=clock, metrics=metrics)
        reading = asyncio.create_task(reader.run())
        try:
            await reader.caught_up()
            scheduler = await snapshots_of(bus, "scheduler")
            await scheduler.save(Taking(await folded(bus)).finish())
            await attesting.look()
            assert (len(await attested(bus)), attesting.not_ready()) == (1, [])
            wire = (await bus.connect("scheduler")).wire
            await call_api(wire, f"STREAM.PURGE.OBJ_{BUCKET}", api=STORE_API)
            await attesting.look()
            assert bool(attesting.not_ready()) is not bool(guard)
        finally:
            reading.cancel()


async def test_an_honest_snapshot_is_attested_and_missed_once_purged(
    bus: Bus, facts: Facts
) -> None:
    """An intake attests a correct snapshot. If a scheduler then purges that snapshot, the intake is
    no longer ready."""
    url = bus.server.url_for("intake")
    await (await snapshots_of(bus, "scheduler")).save(Taking(await folded(bus)).finish())
    async with ServiceProcess("intake", url, first=HASTE) as intake:
        await until(lambda: attested(bus), "the snapshot to be attested")
        assert (await (await snapshots_of(bus, "binder")).restore()).revision == 3
        await intake.ready()
        wire = (await bus.connect("scheduler")).wire
        await call_api(wire, f"STREAM.PURGE.OBJ_{BUCKET}", api=STORE_API)
        await until(lambda: says(intake, "apportion_snapshots_missing 1.0"), "the alarm")
        assert (await intake.get("/readyz"))[0] == 503


@pytest.mark.parametrize("revision", ["0", "9" * 20])
async def test_a_forged_revision_hides_no_snapshot(bus: Bus, facts: Facts, revision: str) -> None:
    """`apportion doctor` counts a snapshot entry with a forged revision as doubtful, and names the
    honest snapshot."""
    await (await snapshots_of(bus, "scheduler")).save(Taking(await folded(bus)).finish())
    await attest_all(bus)
    made = {"name": "x", "bucket": BUCKET, "nuid": "x", "size": 1, "chunks": 1, "digest": "x"}
    forged = json.dumps(made | {"metadata": {"revision": revision}}).encode()
    wire = (await bus.connect("scheduler")).wire
    await wire.request(f"$O.{BUCKET}.M.x", forged, timeout_s=5.0, headers={})
    operator = (await bus.connect("operator")).wire
    found = await examine(operator, clock=SystemClock(), server_says={})
    assert (found.snapshot_revision, found.snapshots_doubtful) == (3, 1)


async def test_an_entry_that_is_too_deep_stops_no_service(bus: Bus, facts: Facts) -> None:
    """A snapshot that is nested too deeply stops no service.

    A restarted service folds the ledger instead."""
    wire = (await bus.connect("scheduler")).wire
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    await wire.request(f"$O.{BUCKET}.M.deep", deep, timeout_s=5.0, headers={})
    binder = await snapshots_of(bus, "binder")
    assert (await binder.restore()).revision == 0
    await (await snapshots_of(bus, "scheduler")).save(Taking(await folded(bus)).finish())
    async with ServiceProcess("intake", bus.server.url_for("intake"), first=HASTE) as intake:
        await until(lambda: attested(bus), "the honest snapshot to be attested")
        await intake.ready()
    assert (await binder.restore()).revision == 3


async def test_no_service_attests_in_the_intakes_place(bus: Bus) -> None:
    """Only an intake can write an attestation, which confirms that a snapshot is correct."""
    for role in ("scheduler", "binder", "gateway", "agent", "operator", "bootstrap"):
        with pytest.raises(NotPermitted):
            await (await snapshots_of(bus, role)).attest([(1, "x")])
    wire = (await bus.connect("scheduler")).wire
    config = {"name": "scheduler-0", "ack_policy": "none", "deliver_policy": "all"}
    for target in (f"$O.{BUCKET}.C.attested.intake", f"$O.{BEGINNING}.C.x"):
        body = {"stream_name": STREAM, "config": {**config, "deliver_subject": target}}
        await call_api(wire, f"CONSUMER.CREATE.{STREAM}.scheduler-0", body)
        info = await call_api(wire, f"STREAM.INFO.OBJ_{BUCKET}", api=STORE_API)
        assert b'"messages":0' in info
        info = await call_api(wire, f"STREAM.INFO.OBJ_{BEGINNING}", api=STORE_API)
        assert b'"messages":0' in info
        await call_api(wire, f"CONSUMER.DELETE.{STREAM}.scheduler-0")


@pytest.mark.parametrize("guard", ["", "keeps the beginning apart"])
async def test_a_trimmed_ledger_begins_without_the_schedulers_bucket(
    bus: Bus, facts: Facts, guard: str
) -> None:
    """A trimmed ledger starts from a snapshot that schedulers can neither purge nor write.

    Without the guard, a scheduler can purge all snapshots, and then no service can start."""
    scheduler = await snapshots_of(bus, "scheduler")
    await scheduler.save(Taking(await folded(bus)).finish())
    await attest_all(bus)
    boot = (await bus.connect("bootstrap")).wire
    beginning = await (await snapshots_of(bus, "operator")).beginning_behind(2)
    assert beginning is not None
    with guarded_but(guard):
        await Snapshots(boot).begin_with(beginning)
    await stream.drop(boot, last=2)
    wire = (await bus.connect("scheduler")).wire
    await call_api(wire, f"STREAM.PURGE.OBJ_{BUCKET}", api=STORE_API)
    for role in ("scheduler", "intake", "binder", "gateway", "operator"):
        other = (await bus.connect(role)).wire
        with pytest.raises(NotPermitted):
            await call_api(other, f"STREAM.PURGE.OBJ_{BEGINNING}", api=STORE_API)
        with pytest.raises(LedgerError):
            await Snapshots(other).begin_with(beginning)
        if role != "intake":
            there = list((await Snapshots(other).restore()).pods)
            assert there == ([] if guard else ["a", "victim", "c"]), role
