"""A reader of a real ledger catches up, waits for a revision, refuses bad events, and halts at
events of a newer build."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import pytest

from apportion.core.ledger.fold import Change
from apportion.core.ledger.rules import Superseded
from apportion.core.ledger.state import State
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.port import Draft, Record
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import (
    Event,
    FormatEnabled,
    PodGone,
    PodSubmitted,
    RevisionSetAside,
    Shape,
    encode,
)
from apportion_schemas.catalogue import BY_PAYLOAD
from tests.support.facts import Facts
from tests.support.nats import Bus
from tests.support.polling import until

TIME = "2026-01-01T00:00:00.000000Z"


class Reading:
    """A reader that folds the whole ledger, with the metrics and changes that the tests check."""

    running: asyncio.Task[None]

    def __init__(self, bus: Bus, state: State | None = None) -> None:
        self._bus = bus
        self.cluster = StateFold(state)
        self.metrics = Metrics()
        self.changes: list[Change] = []
        self.reader: Reader[Change]

    async def open(self) -> None:
        """Connect to the ledger. A later call of `run` reads it."""
        ledger = await self._bus.connect("scheduler")
        self.reader = Reader(
            ledger, self.cluster, metrics=self.metrics, on_change=self.changes.append
        )

    def metric(self, line: str) -> bool:
        """Return True if /metrics would contain this line."""
        return line in self.metrics.render().decode().splitlines()


@contextlib.asynccontextmanager
async def reading(bus: Bus, state: State | None = None) -> AsyncIterator[Reading]:
    """Provide a reader that runs until the `with` block ends."""
    made = Reading(bus, state)
    await made.open()
    running = made.running = asyncio.create_task(made.reader.run())
    try:
        yield made
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, Superseded):
            await running


async def ruled(bus: Bus) -> State:
    """Return an empty state with the ledger's rules, such as enabled formats, for a new service."""
    return await Snapshots((await bus.connect("scheduler")).wire).restore()


async def append_raw(bus: Bus, subject: str, payload: bytes) -> int:
    """Append bytes that no service of Apportion would write, and return their revision."""
    rogue = await bus.connect("watcher")
    return (await rogue.append([Draft(f"apportion.v1.{subject}", f"raw-{len(payload)}", payload)]))[
        0
    ]


TELEPORTED = f"PodTeleported@{BY_PAYLOAD[PodSubmitted].version}"


def document(uid: str, **attributes: object) -> bytes:
    """Return a PodSubmitted event as JSON, with `attributes` replaced in its envelope."""
    data = PodSubmitted(uid=uid, namespace="d", name=uid, shape=Shape(), dialect="plain")
    event = json.loads(encode(Event(id=uid, source="test", time=TIME, data=data)))
    return json.dumps(event | attributes).encode()


async def test_it_is_ready_once_it_has_caught_up(bus: Bus, facts: Facts) -> None:
    """A reader is ready once it has folded all existing events in order."""
    await facts.submit("a", "b", "c")
    async with reading(bus) as made:
        assert [reason.split()[-1] for reason in made.reader.not_ready()] == ["0"]
        await made.reader.caught_up()
        assert made.reader.not_ready() == []
        assert list(made.cluster.state.pods) == ["a", "b", "c"]
        assert [change.data.uid for change in made.changes] == ["a", "b", "c"]
        assert made.metric("apportion_fold_revision 3.0")
        assert made.metric('apportion_events_folded_total{type="PodSubmitted"} 3.0')


async def test_waiting_for_a_revision(bus: Bus, facts: Facts) -> None:
    """Each waiter is woken at its own revision, or at once if that revision is already folded."""
    await facts.submit("a")
    async with reading(bus) as made:
        early, late = (asyncio.create_task(made.reader.reached(n)) for n in (2, 3))
        await made.reader.reached(1)
        assert not early.done()
        await facts.submit("b")
        await asyncio.wait_for(early, 30)
        assert not late.done()
        await facts.submit("c")
        await asyncio.wait_for(late, 30)
        await asyncio.wait_for(made.reader.reached(2), 1)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xff\x00", "not a CloudEvents"),
        (document("other"), "belongs on"),
        (document("x", data={"uid": "x"}), "missing required field"),
        (document("x", basis=-1), "basis"),
        (b'{"type":' + b"[" * 500, "nests deeper"),
    ],
    ids=["no event", "another's subject", "no payload", "negative", "deep"],
)
async def test_what_nobody_can_read_is_refused(
    bus: Bus, facts: Facts, payload: bytes, reason: str
) -> None:
    """If an event is unreadable, the reader records its revision and the cause, counts it, and
    continues with the next event."""
    await facts.submit("before")
    async with reading(bus) as made:
        revision = await append_raw(bus, "workload.x", payload)
        await made.reader.caught_up()
        await made.reader.reached(revision)
        (refused,) = made.cluster.state.refused_events
        assert (refused.revision, refused.subject) == (revision, "apportion.v1.workload.x")
        assert reason in refused.reason
        assert made.metric('apportion_events_folded_total{type="refused"} 1.0')
        assert made.reader.not_ready() == []


async def test_what_contradicts_the_state_is_said(
    bus: Bus, facts: Facts, caplog: pytest.LogCaptureFixture
) -> None:
    """A well-formed event that contradicts the state changes nothing, and is logged with its
    revision."""
    async with reading(bus) as made:
        revision = await facts.write(PodGone(uid="never-there"))
        await made.reader.reached(revision)
        assert f"revision {revision} on apportion.v1.workload.never-there" in caplog.text
        assert made.cluster.state.refused_count == 1


NEWER = pytest.mark.parametrize(
    ("attributes", "enabled", "named"),
    [
        ({"type": "apportion.dev/PodTeleported"}, TELEPORTED, "PodTeleported"),
        ({"schemaversion": 99}, "PodSubmitted@99", "schemaversion 99"),
    ],
)


@NEWER
async def test_what_no_operator_has_enabled_is_refused(
    bus: Bus, facts: Facts, attributes: dict[str, object], enabled: str, named: str
) -> None:
    """The reader refuses an event whose format is not enabled. An enabled but unknown format halts
    the reader."""
    del named
    revision = await append_raw(bus, "workload.x", document("x", **attributes))
    async with reading(bus) as made:
        await made.reader.caught_up()
        (refused,) = made.cluster.state.refused_events
        assert refused.revision == revision
        assert f"{enabled!r} is not enabled" in refused.reason
        assert made.metric('apportion_events_folded_total{type="not enabled"} 1.0')
        name, _, version = enabled.partition("@")
        await facts.write(FormatEnabled(format=name, version=int(version), by="ada"))
        revision = await append_raw(bus, "workload.xx", document("xx", **attributes))
        await halted(made)
        assert made.reader.revision == revision - 1
    async with reading(bus) as again:  # another life of it halts at the same revision
        await halted(again)
        assert again.reader.revision == revision - 1
        assert len(again.cluster.state.refused_events) == 1


@NEWER
async def test_what_a_newer_build_wrote_halts_the_fold(
    bus: Bus, facts: Facts, attributes: dict[str, object], enabled: str, named: str
) -> None:
    """The fold halts before an event of a newer build. The reason names the revision, the type and
    the fix."""
    name, _, version = enabled.partition("@")
    await facts.write(FormatEnabled(format=name, version=int(version), by="ada"))
    await append_raw(bus, "workload.a", document("a"))
    revision = await append_raw(bus, "workload.x", document("x", **attributes))
    await append_raw(bus, "workload.bbb", document("bbb"))
    async with reading(bus) as made:
        await halted(made)
        (reason,) = made.reader.not_ready()
        assert f"revision {revision}" in reason
        assert named in reason
        assert "upgrade Apportion here" in reason
        assert list(made.cluster.state.pods) == ["a"]
        assert made.reader.revision == revision - 1
        assert made.metric("apportion_fold_halted 1.0")


async def test_who_waits_for_what_will_not_be_folded_is_told(bus: Bus, facts: Facts) -> None:
    """If the reader halts before a revision, a wait for that revision returns False, whether the
    wait begins before or after the halt."""
    async with reading(bus) as made:
        await facts.submit("a")
        await facts.write(FormatEnabled(format="PodSubmitted", version=99, by="ada"))
        assert await made.reader.folds(1)
        waiting = asyncio.ensure_future(made.reader.folds(4))
        never = asyncio.ensure_future(made.reader.reached(4))
        revision = await append_raw(bus, "workload.x", document("x", schemaversion=99))
        assert not await asyncio.wait_for(waiting, 20)
        assert not await made.reader.folds(revision)
        assert await made.reader.folds(1)
        assert not never.done()
        never.cancel()


async def test_a_fault_of_the_fold_halts_it(
    bus: Bus, facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If folding an event raises an error, the reader halts, and its process stays alive."""
    async with reading(bus) as made:
        monkeypatch.setattr(made.cluster, "apply", _faulty(made.cluster.apply, "b"))
        await facts.submit("a", "b", "c")
        await halted(made)
        (reason,) = made.reader.not_ready()
        assert "revision 2" in reason
        assert list(made.cluster.state.pods) == ["a"]


async def test_what_is_set_aside_is_passed_over(bus: Bus, facts: Facts) -> None:
    """If an operator sets a revision aside, readers that start later ignore that revision's event.

    A running reader ends if it has applied the event, or has halted before the event."""
    await facts.write(FormatEnabled(format="PodSubmitted", version=99, by="ada"))
    halting = await append_raw(bus, "workload.x", document("x", schemaversion=99))
    await facts.submit("a")
    applied = facts.revision
    async with reading(bus) as made:
        await halted(made)
        await facts.write(RevisionSetAside(revision=halting, by="ada", reason="bug 99"))
        with pytest.raises(Superseded, match=f"revision {halting} was set aside .* by ada: bug 99"):
            await made.running
    async with reading(bus, await ruled(bus)) as made:
        await made.reader.caught_up()
        assert list(made.cluster.state.pods) == ["a"]
        assert made.metric('apportion_events_folded_total{type="set aside"} 1.0')
        await facts.write(RevisionSetAside(revision=applied, by="ada", reason="a mistake"))
        with pytest.raises(Superseded, match=f"revision {applied} was set aside"):
            await made.running
    async with reading(bus, await ruled(bus)) as made:
        await made.reader.caught_up()
        assert made.cluster.state.pods == {}
        reasons = [each.reason for each in made.cluster.state.refused_events]
        assert [reason.partition(" by ")[2] for reason in reasons] == [
            "ada: bug 99",
            "ada: a mistake",
        ]
        assert [str(at) in reason for at, reason in zip((4, 5), reasons, strict=True)] == [True] * 2


async def test_it_reads_on_after_the_server_crashed(bus: Bus, facts: Facts) -> None:
    """After a crash of the server the reader loses no event and folds none twice."""
    async with reading(bus) as made:
        await facts.submit("a")
        await made.reader.reached(1)
        await bus.crash()
        await bus.restart()
        await facts.submit("b")
        await asyncio.wait_for(made.reader.reached(2), 45)
        assert [change.data.uid for change in made.changes] == ["a", "b"]


async def halted(made: Reading) -> None:
    async def reason() -> str:
        return made.reader.halted

    await until(reason, "the reader to halt")


def _faulty(
    apply: Callable[[Record, Event], Change], uid: str
) -> Callable[[Record, Event], Change]:
    def wrapped(record: Record, event: Event) -> Change:
        if event.data.uid == uid:
            raise ZeroDivisionError
        return apply(record, event)

    return wrapped
