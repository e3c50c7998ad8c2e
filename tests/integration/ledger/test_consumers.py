"""The name of a reading client's NATS consumer consists of the client's user and a number.

A client never takes a consumer that another client is using."""

import pytest

from apportion.core.identity.roles import BY_NAME
from apportion.runtime.jetstream import consumers
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.following import Follower
from apportion.runtime.jetstream.wire import STREAM, ApiRefused, call_api
from apportion.runtime.ledger.port import LedgerUnavailable, Subscription
from tests.support.nats import Bus, draft, ignore
from tests.support.polling import until

SETTINGS = {"ack_policy": "none", "inactive_threshold": 30_000_000_000, "mem_storage": True}


def name_of(reader: Subscription) -> str:
    """Return the name of the consumer through which this reader reads."""
    assert isinstance(reader, Follower)
    return str(reader._consumer["name"])


async def reading(ledger: JetStreamLedger) -> str:
    """Start a reader, wait until it has read all records, and return its consumer's name."""
    reader = await ledger.follow(ignore)
    assert isinstance(reader, Follower)

    async def named() -> bool:
        return "name" in reader._consumer

    await until(named, "a consumer")
    await reader.caught_up()
    return name_of(reader)


async def test_each_reader_has_a_number_of_its_own(bus: Bus) -> None:
    """Three readers of one user, two of them on the same connection, get consumers with three
    different numbers."""
    await (await bus.connect("watcher")).append([draft()])
    first, second = await bus.connect("scheduler"), await bus.connect("scheduler")
    found = [await reading(first), await reading(first), await reading(second)]
    assert found == ["scheduler-0", "scheduler-1", "scheduler-2"]


async def test_what_a_killed_process_left_behind_is_taken(bus: Bus) -> None:
    """A new reader replaces the consumer of a killed process, and uses the same consumer name."""
    await (await bus.connect("watcher")).append([draft()])
    before, after = await bus.connect("scheduler"), await bus.connect("scheduler")
    assert await reading(before) == "scheduler-0"
    before.wire._client._transport._io_writer.transport.abort()  # type: ignore[attr-defined]
    await before.close()
    assert await reading(after) == "scheduler-0"


async def test_a_reader_keeps_its_number_through_a_crash_of_the_server(bus: Bus) -> None:
    """A reader keeps its consumer's number through a crash of the server."""
    writer, ledger = await bus.connect("watcher"), await bus.connect("scheduler")
    await writer.append([draft()])
    seen: list[int] = []
    readers = [await ledger.follow(lambda record: seen.append(record.revision)) for _ in "ab"]
    for reader in readers:
        await reader.caught_up()
    await bus.crash()
    await bus.restart()
    await writer.wire.wait_connected(30)
    await writer.append([draft()])

    async def both() -> bool:
        return len(seen) >= 2 * len(readers)

    await until(both, "both readers to go on", interval_s=0.05)  # else a new one takes a number
    await reading(ledger)
    assert sorted(name_of(reader) for reader in readers) == ["scheduler-0", "scheduler-1"]


@pytest.mark.parametrize("user", ["watcher", "intake"])
async def test_when_all_are_in_use_it_is_said(bus: Bus, user: str) -> None:
    """If all consumers of a user are in use, the user's next reader fails. It takes no consumer
    from another reader."""
    await (await bus.connect("watcher")).append([draft()])
    ledger = await bus.connect(user)
    most = BY_NAME[user].consumers
    used = [await reading(ledger) for _ in range(most)]
    assert used == [f"{user}-{number}" for number in range(most)]
    settings = {**SETTINGS, "deliver_subject": ledger.wire.new_inbox()}
    with pytest.raises(LedgerUnavailable, match=f"all consumers allowed for {user}"):
        await consumers.create(ledger.wire, settings, ["apportion.v1.>"])
    for name in used:
        assert (await consumers.read_info(ledger.wire, name)).push_bound


async def test_one_that_many_share_has_any_name_but_those_of_others(bus: Bus) -> None:
    """If all numbered consumer names of a user are in use, further clients of the user get other
    names.

    Many clients can share one user, for example agents with one password."""
    ledger = await bus.connect("agent")
    await (await bus.connect("watcher")).append([draft()])
    used = [await reading(ledger) for _ in range(6)]
    assert used[:4] == [f"agent-{number}" for number in range(4)]
    assert all(name.startswith("agent-") for name in used[4:])
    assert len(set(used)) == 6
    with pytest.raises(ApiRefused):  # it is permitted, but there is none
        await call_api(ledger.wire, f"CONSUMER.INFO.{STREAM}.mine")
