"""Attack 5 between auditors: an auditor makes the NATS server delete the auditors' copy.

The auditor pulls from an empty consumer, and names an API subject as the reply subject. The
server's reply is an empty message, which is a valid request on that subject. Such a request deletes
or purges the copy, or deletes another auditor's consumer."""

import contextlib
from pathlib import Path

import pytest

from apportion.runtime.jetstream import consumers, stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.wire import STREAM, call_api
from apportion.runtime.ledger.port import LedgerUnavailable
from tests.security.attacked import AUDITOR, attacked, pull_nothing
from tests.security.weakened import GUARDS
from tests.support.nats import Bus, draft
from tests.support.polling import until

TOOLS = "auditor"
"""The user name of the auditor that tools log in as by default."""
THEIRS = "auditor-7"
"""The victim's consumer."""
ORDERS = ("STREAM.DELETE", "STREAM.PURGE", "CONSUMER.DELETE")


def order(what: str) -> str:
    """Return the subject on which an empty message makes the NATS server do `what`."""
    whose = f".{THEIRS}" if what.startswith("CONSUMER") else ""
    return f"$JS.API.{what}.{STREAM}{whose}"


async def reader_of(bus: Bus) -> JetStreamLedger:
    """Append an event, and wait until the auditors' copy has it.

    Return an auditor that has a consumer of the copy."""
    await (await bus.connect("watcher")).append([draft()])
    reader = await bus.connect(TOOLS)

    async def copied() -> bool:
        return await reader.last_revision() == 1

    await until(copied, "the copy to have it")
    body = {"stream_name": STREAM, "config": {"name": THEIRS, "ack_policy": "none"}}
    await call_api(reader.wire, f"CONSUMER.CREATE.{STREAM}.{THEIRS}", body)
    return reader


async def whole(reader: JetStreamLedger) -> bool:
    """Return True if both the event in the auditors' copy and the reader's consumer still exist."""
    try:
        held = (await stream.read_info(reader.wire)).state.first_seq
        return held == 1 and (await consumers.read_info(reader.wire, THEIRS)).num_pending == 1
    except LedgerUnavailable:
        return False


@pytest.mark.parametrize("what", ORDERS)
async def test_weak(tmp_path: Path, what: str) -> None:
    """If auditors are in the NATS account of their copy, one of them can delete or purge the copy.

    To do so, the auditor names a subject of the stream API as the reply subject of a request."""
    with GUARDS["auditors beside their copy"]():
        async with attacked(tmp_path / "nats") as bus:
            reader = await reader_of(bus)
            assert await whole(reader)
            auditor = await bus.connect(AUDITOR.name)
            with contextlib.suppress(
                LedgerUnavailable
            ):  # its own consumer was deleted with the copy
                await pull_nothing(auditor, order(what))

            async def harmed() -> bool:
                return not await whole(reader)

            await until(harmed, "the copy, or the consumer, to be gone")


@pytest.mark.parametrize("attacker", [AUDITOR.name, TOOLS])
async def test_guarded(tmp_path: Path, attacker: str) -> None:
    """No reply of the server can reach its API, so the auditors' copy and consumers stay."""
    async with attacked(tmp_path / "nats") as bus:
        reader = await reader_of(bus)
        made = (await stream.read_info(reader.wire)).created
        for what in ORDERS:
            await pull_nothing(await bus.connect(attacker), order(what))
            assert await whole(reader), what
        seen: list[int] = []
        await reader.follow(lambda record: seen.append(record.revision))
        await (await bus.connect("watcher")).append([draft()])

        async def came() -> bool:
            return seen == [1, 2]

        await until(came, "the reader to have what is written then")
        assert (await stream.read_info(reader.wire)).created == made
