"""The state at any revision equals a fold of everything up to that revision, on a real ledger."""

import asyncio
import gc
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from apportion.core.ledger.digest import digest
from apportion.core.ledger.state import State
from apportion.gateway.past.chronicle import Chronicle
from apportion.gateway.past.states import AT_ONCE, KEPT, Checkpoints, PastStates
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.port import Draft, Record
from apportion.runtime.ledger.reader import StateFold
from apportion_schemas import PodPlaced, UnknownEvent, encode
from apportion_schemas.catalogue import BY_PAYLOAD, subject_of
from apportion_schemas.quantities import Payload
from tests.support.happenings import happenings
from tests.support.ledger_of import event_of
from tests.support.nats import Bus

CHECKPOINT_EVERY = 40


class World:
    """A growing ledger, with the expected digest of its state at each revision."""

    def __init__(self, bus: Bus, folder: Path, gateway: JetStreamLedger) -> None:
        self._bus = bus
        self._pens: dict[str, JetStreamLedger] = {}
        self.fold = StateFold(quiet=True)
        self.digests = {0: digest(self.fold.state)}
        self.checkpoints = Checkpoints(folder)
        self.states = PastStates(Chronicle(gateway), self.checkpoints, Snapshots(gateway.wire))

    async def append(self, events: list[Payload]) -> None:
        """Append and fold each event, and store the digest that the state then has."""
        for drawn in events:
            data = drawn
            if isinstance(data, PodPlaced) and data.node in self.fold.state.nodes:
                previous = self.fold.state.nodes[data.node].chain
                data = structs.replace(data, previous=previous)
            role = BY_PAYLOAD[type(data)].appender
            if role not in self._pens:
                self._pens[role] = await self._bus.connect(role)
            revision = self.fold.state.revision + 1
            payload = encode(event_of(data))
            draft = Draft(subject_of(data), f"test-{revision}", payload)
            assert await self._pens[role].append([draft]) == [revision]
            self.fold.take(Record(revision, draft.subject, payload))
            self.digests[revision] = digest(self.fold.state)
            if revision % CHECKPOINT_EVERY == 0:
                self.checkpoints.add(self.fold.state)

    async def look(self, revision: int) -> str:
        """Return the digest of the state at a revision. Check that the number of cached states is
        within its limit."""
        found = digest(await self.states.at(revision))
        assert len(self.states.kept) <= KEPT
        return found


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """Provide one event loop for all examples that Hypothesis generates."""
    with asyncio.Runner() as running:
        yield running


@pytest.fixture(scope="module")
def world(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Provide one growing ledger for all examples that Hypothesis generates."""
    bus = Bus(tmp_path_factory.mktemp("nats"))
    runner.run(bus.start())
    try:
        gateway = runner.run(bus.connect("gateway"))
        yield World(bus, tmp_path_factory.mktemp("kept"), gateway)
    finally:
        runner.run(bus.stop())


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(events=happenings(), looks=st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_any_revision_is_what_folding_up_to_it_gives(
    runner: asyncio.Runner, world: World, events: list[Payload], looks: list[float]
) -> None:
    """The state read at any revision equals the fold of all events up to that revision. This holds
    in any order of reads and with any cached states."""
    runner.run(world.append(events))
    last = world.fold.state.revision
    for revision in (round(part * last) for part in looks):
        assert runner.run(world.look(revision)) == world.digests[revision]


def test_a_record_that_cannot_be_read_ends_the_look(runner: asyncio.Runner, world: World) -> None:
    """If the receiver of the records fails on a record, the read fails with that error.

    Otherwise the gateway would answer with a state that lacks later events."""
    seen: list[int] = []

    def deliver(record: Record) -> None:
        if record.revision > 3:
            raise UnknownEvent("apportion.dev/FromTheFuture")
        seen.append(record.revision)

    last = world.fold.state.revision
    assert last > 4
    with pytest.raises(UnknownEvent):
        runner.run(world.states._chronicle.read(deliver, after=0, upto=last))
    assert seen == [1, 2, 3]


def test_looks_at_once_do_not_disturb_one_another(runner: asyncio.Runner, world: World) -> None:
    """Concurrent requests for the states at different revisions all return the right state."""
    last = world.fold.state.revision

    async def look(revision: int) -> bool:
        return await world.look(revision) == world.digests[revision]

    async def all_of(revisions: list[int]) -> list[bool]:
        return list(await asyncio.gather(*map(look, revisions)))

    asked = [1 + number * 7 % max(last, 1) for number in range(24)] * 2
    assert len(asked) > AT_ONCE
    assert all(runner.run(all_of(asked)))


def test_large_states_are_kept_one_at_a_time(runner: asyncio.Runner, world: World) -> None:
    """The cache limits the total size of the states that it keeps, so it keeps only one large state
    at a time."""
    small = PastStates(
        world.states._chronicle, world.checkpoints, world.states._snapshots, kept=9, kept_items=0
    )
    last = world.fold.state.revision
    for revision in (last, last // 2, last // 3):
        assert digest(runner.run(small.at(revision))) == world.digests[revision]
        assert small.kept == (revision,)


def test_a_look_leaves_no_state_behind(runner: asyncio.Runner, world: World) -> None:
    """Reading past states leaves at most one cached state in memory, even if the garbage collector
    is off."""
    with tempfile.TemporaryDirectory() as folder:
        alone = Checkpoints(Path(folder))
        fresh = PastStates(world.states._chronicle, alone, world.states._snapshots, kept=1)
        last = world.fold.state.revision
        gc.collect()
        gc.disable()
        try:
            before = states_held()
            for revision in range(last, 0, -max(1, last // 12)):  # each from the first event on
                runner.run(fresh.at(revision))
            assert states_held() <= before + 2
        finally:
            gc.enable()


def states_held() -> int:
    """Return the number of states in this process."""
    return sum(type(each) is State for each in gc.get_objects())


def test_a_checkpoint_that_is_damaged_costs_time_and_nothing_else(
    runner: asyncio.Runner, world: World
) -> None:
    """If a checkpoint is damaged, the fold begins with an older checkpoint or with the first
    revision."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        damaged = Checkpoints(path)
        for name in list(world.checkpoints.revisions):
            (path / f"{name:020}.state").write_bytes(sha256(b"?").digest())
        damaged = Checkpoints(path)
        fresh = PastStates(world.states._chronicle, damaged, world.states._snapshots)
        last = world.fold.state.revision
        found = runner.run(fresh.at(last))
    assert digest(found) == world.digests[last]
    assert damaged.revisions == []
