"""Attack 5 through delivery subjects: the creator of a consumer may name any subject for delivery.

The server does not check whether the creator may publish on that subject. With an earlier
configuration, a gateway's consumer could call the API that purges the auditors' copy of the ledger.
"""

import json
from pathlib import Path

import pytest

from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.stream import COPY_API
from apportion.runtime.jetstream.wire import STREAM, call_api
from tests.security.attacked import AUDITOR, attacked
from tests.support.nats import Bus, draft
from tests.support.polling import until

PURGE = f"$JS.API.STREAM.PURGE.{STREAM}"
COPY_PURGE = f"{COPY_API}.STREAM.PURGE.{STREAM}"
OBEYED = (
    COPY_PURGE,
    PURGE,
    f"$JS.API.STREAM.DELETE.{STREAM}",
    f"$JS.ACK.{STREAM}.binder.1.1.1.1.0",
)
"""Subjects on which the server obeys any message."""
READERS = [
    "agent", "auditor", AUDITOR.name, "binder", "extender", "gateway", "intake",
    "operator", "scheduler", "watcher",
]  # fmt: skip
"""All roles that may create consumers of every subject."""
_BETWEEN = f"""\
  BETWEEN {{
    exports: [ {{ service: "audit.purge", accounts: [APPORTION] }} ]
    imports: [
      {{ service: {{ account: AUDIT, subject: "{PURGE}" }}, to: "audit.purge" }}
    ]
  }}
"""
_REACHED = f'{{ service: {{ account: BETWEEN, subject: "audit.purge" }}, to: "{COPY_PURGE}" }}'


def reached_from_the_ledger(configuration: str) -> str:
    """Weaken a NATS configuration: let the ledger's account purge the auditors' copy."""
    ledger, mark, rest = configuration.partition("  AUDIT {\n")
    if "    imports: [\n" in ledger:
        ledger = ledger.replace("    imports: [\n", f"    imports: [\n      {_REACHED}\n", 1)
    else:
        ledger = ledger.replace("    users: [\n", f"    imports: [ {_REACHED} ]\n    users: [\n", 1)
    given = f'"{PURGE}", accounts: ['
    assert given in rest
    return ledger + _BETWEEN + mark + rest.replace(given, f"{given}BETWEEN, ", 1)


async def deliver(ledger: JetStreamLedger, subject: str) -> str:
    """Create a consumer that delivers its records and heartbeats to `subject`. Return the
    consumer's name."""
    name = f"{ledger.wire.user}-3"
    config = {
        "name": name,
        "deliver_subject": subject,
        "ack_policy": "none",
        "headers_only": True,
        "idle_heartbeat": 100_000_000,
    }
    await call_api(
        ledger.wire, f"CONSUMER.CREATE.{STREAM}.{name}", {"stream_name": STREAM, "config": config}
    )
    return name


async def copied(bus: Bus, count: int) -> JetStreamLedger:
    """Append an event, and wait until the auditors' copy of the ledger has `count` events.

    Return an auditor's connection."""
    await (await bus.connect("watcher")).append([draft()])
    auditor = await bus.connect("auditor")

    async def all_there() -> bool:
        return await auditor.last_revision() == count

    await until(all_there, "the copy to have it")
    return auditor


async def test_weak(tmp_path: Path) -> None:
    """If the ledger's account can reach the purge API, a consumer can purge the auditors' copy."""
    async with attacked(tmp_path / "nats", reached_from_the_ledger) as bus:
        auditor = await copied(bus, 1)
        assert await auditor.first_revision() == 1
        await deliver(await bus.connect("gateway"), COPY_PURGE)

        async def purged() -> bool:
            return await auditor.first_revision() == 2

        await until(purged, "the copy to be empty")


@pytest.mark.parametrize("name", READERS)
async def test_guarded(tmp_path: Path, name: str) -> None:
    """A consumer that would deliver records to the purge API delivers nothing.

    Other consumers work, and the auditors' copy keeps all events."""
    async with attacked(tmp_path / "nats") as bus:
        auditor = await copied(bus, 1)
        attacker, watcher = await bus.connect(name), await bus.connect("watcher")
        seen: list[int] = []
        await attacker.follow(lambda record: seen.append(record.revision))
        for count, subject in enumerate(OBEYED, start=2):
            mine = await deliver(attacker, subject)
            await copied(bus, count)

            async def came(count: int = count) -> bool:
                return len(seen) == count

            await until(came, "another consumer to deliver")
            told = json.loads(await call_api(attacker.wire, f"CONSUMER.INFO.{STREAM}.{mine}"))
            assert told["delivered"]["consumer_seq"] == 0, subject
            await call_api(attacker.wire, f"CONSUMER.DELETE.{STREAM}.{mine}")
        for reader in (auditor, watcher):
            held = (await stream.read_info(reader.wire)).state
            assert (held.first_seq, held.last_seq) == (1, len(OBEYED) + 1)
