"""Schedulers store snapshots in a real object store, and services restart from them. A bad snapshot
is found and ignored."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apportion.core.audit import Auditor, Violation
from apportion.core.ledger.digest import canonical
from apportion.core.ledger.fold import Change
from apportion.core.ledger.snapshot import FORMAT, MAGIC, Taken, Taking, restore
from apportion.core.ledger.state import State
from apportion.intake.reads import Attesting
from apportion.runtime.jetstream import snapshots as module
from apportion.runtime.jetstream.client import JetStreamLedger, connect, create_stream
from apportion.runtime.jetstream.object_store import CHUNK_BYTES, Bucket
from apportion.runtime.jetstream.server.embedded import ROLES
from apportion.runtime.jetstream.snapshots import BUCKET, KEPT, Snapshots
from apportion.runtime.jetstream.wire import LostReply, Message, Wire
from apportion.runtime.ledger.port import NotPermitted
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.metrics import Metrics
from apportion.scheduler.snapshotting import Snapshotting
from apportion_schemas import PodPlaced, SharesAllocated
from tests.support.attesting import attest_all, save_attested
from tests.support.facts import Facts
from tests.support.nats import Bus, PlainServer
from tests.support.pods import ask, pod
from tests.support.polling import until
from tests.support.processes import ServiceProcess


@contextlib.asynccontextmanager
async def reading(
    ledger: JetStreamLedger, state: State | None = None
) -> AsyncIterator[tuple[State, Reader[Change]]]:
    """Start a reader from `state`, and stop it when the `with` block ends."""
    cluster = StateFold(state)
    reader = Reader(ledger, cluster, metrics=Metrics(), after=cluster.state.revision)
    running = asyncio.create_task(reader.run())
    try:
        await asyncio.wait_for(reader.caught_up(), 20)
        yield cluster.state, reader
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def folded(bus: Bus, state: State | None = None) -> State:
    """Return the state of the whole ledger, or the given state with all later events folded."""
    async with reading(await bus.connect("scheduler"), state) as (found, _):
        return found


async def snapshots_of(bus: Bus, role: str = "scheduler") -> Snapshots:
    """Return a `Snapshots` that reads and writes with this role's rights."""
    return Snapshots((await bus.connect(role)).wire)


def taken(state: State) -> Taken:
    """Return a finished snapshot of this state."""
    return Taking(state).finish()


async def test_a_restart_folds_the_tail_alone_and_holds_the_same(bus: Bus, facts: Facts) -> None:
    """Any role restores the state from a scheduler's snapshot, and folds only the later events."""
    await facts.submit("a", "b")
    await save_attested(bus, await folded(bus))
    await facts.submit("c")
    whole = canonical(await folded(bus))
    for role in ("scheduler", "binder", "gateway", "watcher", "operator", "agent"):
        state = await (await snapshots_of(bus, role)).restore()
        assert (state.revision, list(state.pods)) == (2, ["a", "b"]), role
        assert canonical(await folded(bus, state)) == whole


@pytest.mark.parametrize(("young_max", "old"), [(0, True), (1_000_000, False)])
async def test_much_that_is_restored_is_old_to_the_garbage_collector(
    bus: Bus, facts: Facts, monkeypatch: pytest.MonkeyPatch, young_max: int, old: bool
) -> None:
    """Only a large restored state is moved to the garbage collector's oldest generation."""
    await facts.submit("a")
    snapshots = await snapshots_of(bus)
    await save_attested(bus, await folded(bus))
    monkeypatch.setattr(module, "YOUNG_MAX", young_max)
    gc.collect()
    state = await snapshots.restore()
    assert list(state.pods) == ["a"]
    assert any(found is state for found in gc.get_objects(2)) is old, gc.get_count()
    assert gc.isenabled()


async def test_a_large_one_goes_in_many_pieces(bus: Bus, facts: Facts) -> None:
    """If a snapshot is larger than one message, it is stored in pieces and restored as a whole."""
    await facts.submit("a")
    bucket = Bucket((await bus.connect("scheduler")).wire, BUCKET)
    parts = [bytes([n]) * 300_001 for n in range(10)]
    await bucket.put("x", "x-1", parts, {})
    (entry,) = await bucket.entries()
    assert (entry.size, entry.chunks) == (3_000_010, 4)
    assert await bucket.get(entry, size_max=1 << 30) == b"".join(parts)


async def test_pieces_that_two_wrote_in_turns_are_told_apart(bus: Bus, facts: Facts) -> None:
    """If schedulers store snapshots at the same time, each snapshot is read back unchanged."""
    await facts.submit("a")
    writers = [Bucket((await bus.connect("scheduler")).wire, BUCKET) for _ in range(3)]
    wholes = [bytes([n]) * (20 * CHUNK_BYTES + n) for n in range(len(writers))]
    await asyncio.gather(
        *(
            writer.put(f"x{n}", f"x-{n}", [whole], {})
            for n, (writer, whole) in enumerate(zip(writers, wholes, strict=True))
        )
    )
    entries = sorted(await writers[0].entries(), key=lambda entry: entry.name)
    assert [await writers[0].get(entry, size_max=1 << 30) for entry in entries] == wholes


async def test_only_the_newest_are_kept_and_what_a_dead_writer_left_is_freed(
    bus: Bus, facts: Facts
) -> None:
    """Only the newest snapshots are kept. The pieces of an unfinished snapshot, whose writer died,
    are removed once all kept snapshots are newer."""
    snapshots = await snapshots_of(bus)
    bucket = Bucket((await bus.connect("scheduler")).wire, BUCKET)
    await bucket._publish(f"$O.{BUCKET}.C.{'0' * 20}-dead", b"half", {})
    for number in range(KEPT + 2):
        await facts.submit(f"p{number}")
        await save_attested(bus, await folded(bus))
    assert [each.revision for each in await snapshots.stored()] == [5, 4, 3]
    kept = {f"{n:020}" for n in (3, 4, 5)}
    assert {nuid[:20] for nuid in await bucket.pieces()} == kept | {"intake"}


class Deaf:
    """A connection that gets no reply to any read of the snapshots' bucket."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    async def request(self, subject: str, payload: bytes, **options: Any) -> Message:
        """Send the request, or raise LostReply if it reads the bucket."""
        if ".DIRECT.GET." in subject:
            raise LostReply("no answer")
        return await self._wire.request(subject, payload, **options)


async def three(bus: Bus, facts: Facts) -> Snapshots:
    """Append three events, and store snapshots after the first and the second. Return access to the
    snapshots."""
    snapshots = await snapshots_of(bus)
    for uid in ("a", "b"):
        await facts.submit(uid)
        await save_attested(bus, await folded(bus))
    await facts.submit("c")
    return snapshots


async def overwrite(bus: Bus, revision: int, data: bytes, *, at: int | None = None) -> None:
    """Replace the data of the snapshot at `revision`, and store a digest that matches. If `at` is
    given, the snapshot claims to be of that revision."""
    bucket = Bucket((await bus.connect("scheduler")).wire, BUCKET)
    (old,) = [e for e in await bucket.entries() if int(e.metadata["revision"]) == revision]
    metadata = old.metadata | ({"revision": str(at)} if at is not None else {})
    await bucket.put(old.name, old.nuid + "x", [data], metadata)
    await attest_all(bus)


async def bytes_of(bus: Bus, revision: int) -> bytes:
    """Return the bytes of the snapshot at this revision."""
    bucket = Bucket((await bus.connect("scheduler")).wire, BUCKET)
    (old,) = [e for e in await bucket.entries() if int(e.metadata["revision"]) == revision]
    return bytes(await bucket.get(old, size_max=1 << 30))


async def test_a_corrupt_one_is_set_aside_for_an_older_one(
    bus: Bus, facts: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    """A corrupt or truncated snapshot is logged and ignored, and the previous snapshot is used."""
    snapshots = await three(bus, facts)
    good = await bytes_of(bus, 2)
    for at in (0, len(MAGIC) + 1, len(good) // 2, len(good) - 1):
        bad = bytearray(good)
        bad[at] ^= 1
        await overwrite(bus, 2, bytes(bad))
        assert (await snapshots.restore()).revision == 1, at
        assert "snapshot ignored" in capsys.readouterr().out
    await overwrite(bus, 2, good[: len(good) // 2])
    state = await snapshots.restore()
    assert state.revision == 1
    assert canonical(await folded(bus, state)) == canonical(await folded(bus))


async def test_a_newer_builds_one_is_set_aside(
    bus: Bus, facts: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    """A snapshot in a newer build's format is logged and ignored, and an older snapshot is used."""
    snapshots = await three(bus, facts)
    newer = MAGIC + (FORMAT + 1).to_bytes(2) + b"whatever it will be" * 9
    await overwrite(bus, 2, newer)
    assert (await snapshots.restore()).revision == 1
    assert f"has format {FORMAT + 1}" in capsys.readouterr().out


async def test_lost_pieces_are_noticed(bus: Bus, facts: Facts) -> None:
    """A snapshot with missing bytes is ignored."""
    snapshots = await three(bus, facts)
    newest = (await snapshots.stored())[0]
    await Bucket((await bus.connect("scheduler")).wire, BUCKET).forget_pieces(newest.entry.nuid)
    assert (await snapshots.restore()).revision == 1


async def test_one_that_says_another_revision_than_it_holds_is_set_aside(
    bus: Bus, facts: Facts
) -> None:
    """A snapshot is ignored if it names another revision than its state has. Otherwise an event
    would be folded twice or never."""
    snapshots = await three(bus, facts)
    await overwrite(bus, 2, await bytes_of(bus, 1))
    assert (await snapshots.restore()).revision == 1


async def test_one_from_the_future_or_of_another_ledger_is_set_aside(
    bus: Bus, facts: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    """A snapshot from beyond the ledger's end, or of another ledger, is ignored."""
    snapshots = await three(bus, facts)
    await overwrite(bus, 2, await bytes_of(bus, 2), at=99)
    await overwrite(bus, 1, await bytes_of(bus, 1), at=3)
    state = await snapshots.restore()
    assert state.revision == 0
    said = capsys.readouterr().out
    assert "the ledger ends before revision" in said
    assert "another record at 3" in said


async def test_at_most(bus: Bus, facts: Facts) -> None:
    """`restore` uses no snapshot later than the revision `at_most`."""
    snapshots = await three(bus, facts)
    assert (await snapshots.restore(at_most=1)).revision == 1
    assert (await snapshots.restore(at_most=0)).revision == 0


async def test_only_schedulers_write(bus: Bus) -> None:
    """Only schedulers may store, replace or delete snapshots."""
    for role in set(ROLES) - {"scheduler"}:
        bucket = Bucket((await bus.connect(role)).wire, BUCKET)
        with pytest.raises(NotPermitted):
            await bucket.put("x", "x", [b"x"], {})
        with pytest.raises(NotPermitted):
            await bucket.forget_pieces("x")


async def test_without_a_bucket_the_whole_ledger_is_folded(tmp_path: Path) -> None:
    """If the server has no bucket for snapshots, a service folds the whole ledger."""
    plain = PlainServer(tmp_path)
    await plain.start()
    try:
        async with await connect(plain.url, name="test") as ledger:
            await create_stream(ledger)
            assert (await Snapshots(ledger.wire).restore()).revision == 0
    finally:
        await plain.stop()


async def test_a_bucket_that_does_not_answer_stops_nobody(
    bus: Bus, facts: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the server does not deliver the snapshots, a service folds the whole ledger."""
    await three(bus, facts)
    deaf: Any = Deaf((await bus.connect("scheduler")).wire)
    assert (await Snapshots(deaf).restore()).revision == 0
    assert "snapshots" in capsys.readouterr().out


async def test_a_scheduler_writes_while_events_come_and_another_leaves_it_at_that(
    bus: Bus, facts: Facts
) -> None:
    """A snapshot that is written in steps while events arrive is the exact state at its revision.

    Another scheduler does not write that snapshot again."""
    ledger = await bus.connect("scheduler")
    await facts.submit(*(f"p{n}" for n in range(700)))
    async with reading(ledger) as (state, reader):
        metrics = Metrics()
        snapshotting = Snapshotting(
            state, await snapshots_of(bus), clock=SystemClock(), metrics=metrics, every_events=500
        )
        snapshotting._last = 0
        reader._on_change = snapshotting.observe
        writing = asyncio.create_task(snapshotting.write())
        for n in range(700, 720):
            await facts.submit(f"p{n}")
        await writing
        (stored,) = await (await snapshots_of(bus)).written()
        again = Snapshotting(
            state, await snapshots_of(bus), clock=SystemClock(), metrics=Metrics(), every_events=500
        )
        again._last = 0
        await again.write()
        assert len(await (await snapshots_of(bus)).written()) == 1
        await reader.reached(facts.revision)
        whole = canonical(state)
    restored = restore(await bytes_of(bus, stored.revision))
    assert restored.revision == stored.revision >= 700
    assert canonical(await folded(bus, restored)) == whole
    assert 'apportion_snapshots_total{outcome="written"} 1.0' in metrics.render().decode()


async def test_an_intake_remembers_only_the_snapshots_that_it_judges(
    bus: Bus, facts: Facts
) -> None:
    """The intake service forgets its check of a snapshot once the snapshot is removed."""
    writer = await snapshots_of(bus)
    ledger = await bus.connect("intake")
    async with reading(ledger) as (state, reader):
        attesting = Attesting(
            ledger, Snapshots(ledger.wire), reader, clock=SystemClock(), metrics=Metrics()
        )
        for number in range(6 * KEPT):
            await facts.submit(f"p{number}")
            assert await reader.folds(facts.revision)
            whole = taken(state)
            await writer.save(whole if number % 2 else whole._replace(parts=[b"unreadable"]))
            await attesting.look()
        assert 0 < len(attesting._verdicts) <= 2 * KEPT
        assert 0 < len(attesting._tries) <= 2 * KEPT


async def folded_events(service: ServiceProcess) -> int:
    """Return the number of events that this process has folded itself."""
    _, page = await service.get("/metrics")
    counts = [
        line.rpartition(" ")[2]
        for line in page.splitlines()
        if line.startswith("apportion_events_folded_total{")
    ]
    return int(sum(map(float, counts)))


@pytest.mark.slow
async def test_real_services_begin_with_the_snapshot(bus: Bus, facts: Facts) -> None:
    """After a kill, services start from a snapshot, know the pods in it, and place new ones."""
    url = bus.server.url_for
    ledger = await bus.connect("scheduler")
    bucket = Bucket(ledger.wire, BUCKET)
    async with ServiceProcess(
        "agent", url("agent"), "--simulate", "4xT4", "--nodes", "2", "--node", "node-{}"
    ):
        async with ServiceProcess("scheduler", url("scheduler"), "--snapshot-every", "30"):
            await facts.write(*(pod(f"old-{n}", ask(500)) for n in range(30)))
            await facts.count(PodPlaced, 30)
            await until(bucket.entries, "a snapshot")
        async with ServiceProcess("intake", url("intake")):
            believed = await until(
                Snapshots(ledger.wire).stored, "an intake to attest the snapshot"
            )
        revision = believed[0].revision
        before = facts.revision
        assert revision > 30
        async with (
            ServiceProcess("scheduler", url("scheduler")) as scheduler,
            ServiceProcess("binder", url("binder")) as binder,
            ServiceProcess("gateway", url("gateway"), "--listen", "127.0.0.1:0") as gateway,
        ):
            for service in (scheduler, binder, gateway):
                await service.ready()
                folded_itself = await folded_events(service)
                last = await ledger.last_revision()  # the facts come out of a copy, a little later
                assert folded_itself <= last - revision, service.verb
            await facts.write(*(pod(f"new-{n}", ask(500)) for n in range(3)))
            placed = await facts.count(PodPlaced, 33)
            assert {p.pod for p in placed[30:]} == {"new-0", "new-1", "new-2"}
            await facts.count(SharesAllocated, 33)
            assert facts.revision > before
    auditor = Auditor()
    seen: list[Violation] = []
    following = await (await bus.connect("auditor")).follow(
        lambda record: seen.extend(auditor.take(record.revision, record.subject, record.payload))
    )
    await following.caught_up()
    await following.stop()
    assert {each.check for each in seen + auditor.finish()} <= {"owner"}  # the pen signs as a test
