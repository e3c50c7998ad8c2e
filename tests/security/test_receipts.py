"""The operator of the ledger's servers rewrites the ledger's history.

The operator changes one event and appends all events again with correct hashes, so `verify` finds
nothing. Receipts that another party has signed and keeps elsewhere reveal the change."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger, connect, create_stream
from apportion.runtime.jetstream.wire import STREAM, call_api
from apportion.runtime.ledger.archive import read_archive
from apportion.runtime.ledger.port import Draft, Record
from tests.support.facts import Facts
from tests.support.nats import PlainServer, remake_stream, running_bus
from tests.support.processes import ServiceProcess

RECORDED = Path(__file__).parents[1] / "golden" / "ledgers" / "v1-evictions.jsonl"
RECORDS = list(read_archive(RECORDED))
MORE = 7
"""Number of records after the first receipt."""


class Place:
    """A ledger on a server of its own, and a folder of receipts. Tests run `apportion` on it."""

    def __init__(self, folder: Path, ledger: JetStreamLedger, url: str) -> None:
        self.folder = folder
        self.ledger = ledger
        self.url = url
        self.receipts = ("--receipts", str(folder / "receipts"))
        self.key = str(folder / "key")
        self.public = ("--key", f"{self.key}.pub")

    async def run(self, *arguments: str, code: int = 0, gateway: str = "") -> str:
        """Run `apportion` with these arguments and check its exit code. Return what it printed."""
        environ = {**os.environ, "APPORTION_NATS_URL": self.url, "APPORTION_GATEWAY": gateway}
        command = [sys.executable, "-m", "apportion.cli.main", *arguments]
        done = await asyncio.to_thread(
            subprocess.run, command, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done.stdout or done.stderr

    async def verify(self, *arguments: str, code: int = 0) -> Any:
        """Return the output of `verify --json`."""
        return json.loads(await self.run("verify", "--json", *arguments, code=code))

    async def sign(self) -> list[Any]:
        """Write receipts for the ledger, and return them."""
        told = await self.run("receipt", "write", "--json", "--key", self.key, *self.receipts)
        return [json.loads(line)["checkpoint"] for line in told.splitlines()]

    async def append(self, records: Sequence[Record]) -> None:
        """Append these records unchanged."""
        for each in records:
            draft = Draft(each.subject, json.loads(each.payload)["id"], each.payload)
            await self.ledger.append([draft])

    async def rewrite(self, records: Sequence[Record]) -> None:
        """Replace the stream's history with these records."""
        config = (await stream.read_info(self.ledger.wire)).config
        await call_api(self.ledger.wire, f"STREAM.DELETE.{STREAM}")
        await remake_stream(self.ledger.wire, config)
        await self.append(records)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """Provide a ledger with two receipts, of which the second covers only the last few events."""
    server = PlainServer(tmp_path / "plain")
    await server.start()
    ledger = await connect(server.url, name="test")
    await create_stream(ledger)
    made = Place(tmp_path, ledger, server.url)
    await made.run("receipt", "key", made.key)
    await made.append(RECORDS[:-MORE])
    assert [(each["first"], each["last"]) for each in await made.sign()] == [
        (1, len(RECORDS) - MORE)
    ]
    await made.append(RECORDS[-MORE:])
    assert len(await made.sign()) == 1
    assert await made.sign() == []
    yield made
    await ledger.close()
    await server.stop()


def forged() -> tuple[int, list[Record]]:
    """Return a revision, and the recorded history with a false time for that revision's event."""
    for index, each in enumerate(RECORDS):
        event = json.loads(each.payload)
        if event["type"].endswith("/PodGone"):
            event["time"] = "2020" + event["time"][4:]
            payload = json.dumps(event, separators=(",", ":")).encode()
            changed = Record(each.revision, each.subject, payload)
            return each.revision, [*RECORDS[:index], changed, *RECORDS[index + 1 :]]
    raise AssertionError("the recorded ledger has no such event")


async def test_a_history_that_was_written_anew(place: Place) -> None:
    """Without receipts `verify` accepts a rewritten ledger; with receipts it finds the change.

    `receipt write` refuses to add receipts for the rewritten ledger to those of the original."""
    whole = await place.verify(*place.receipts, *place.public)
    assert (whole["receipts"], whole["proven"], whole["proven_to"]) == (
        2,
        len(RECORDS),
        len(RECORDS),
    )
    revision, records = forged()
    await place.rewrite(records)
    assert (await place.verify())["ok"] is True
    found = await place.verify(*place.receipts, *place.public, code=1)
    assert (found["violations"][0]["revision"], found["found"]) == (revision, {"receipt": 1})
    said = await place.run("receipt", "write", "--key", place.key, *place.receipts, code=1)
    assert "ledger created at" in said
    await place.rewrite(RECORDS[:-2])
    found = await place.verify(*place.receipts, *place.public, code=1)
    assert found["violations"][0]["revision"] == len(RECORDS) - 1


async def test_a_key_of_another_signs_nothing(place: Place) -> None:
    """Receipts that were signed with a key other than the published one are rejected."""
    forger = Place(place.folder / "forger", place.ledger, place.url)
    forger.folder.mkdir()
    await forger.run("receipt", "key", forger.key)
    await forger.sign()
    found = await place.verify(*forger.receipts, *place.public, code=1)
    assert "signed by key" in found["violations"][0]["text"]


async def test_whoever_signs_goes_on_from_what_he_signed(place: Place) -> None:
    """A signer continues only from receipts that were signed with its own key, or with another key
    that it is told to accept. The second case lets an operator rotate keys."""
    await place.run("receipt", "key", str(place.folder / "new"))
    await place.ledger.append([Draft(RECORDS[0].subject, "again", RECORDS[0].payload)])
    write = ("receipt", "write", "--key", str(place.folder / "new"), *place.receipts)
    assert "signed by key" in await place.run(*write, code=1)
    await place.run(*write, "--known", place.public[1])
    both = (*place.public, "--key", str(place.folder / "new.pub"))
    assert (await place.verify(*place.receipts, *both))["receipts"] == 3
    told = await place.run("doctor", "--json", *place.receipts, code=1)  # a plain server is no good
    (check,) = (each for each in json.loads(told)["checks"] if each["id"] == "receipts")
    assert (check["state"], f"revision {len(RECORDS) + 1}," in check["words"]) == ("ok", True)


async def test_one_decision_is_shown_offline(place: Place) -> None:
    """The proof of one decision can be verified offline and without other events.

    It is not valid for any other decision."""
    gateway = ServiceProcess("gateway", place.url, "--listen", "127.0.0.1:0")
    async with gateway:
        url = (await gateway.logged("answering"))["console"].rstrip("/")
        await gateway.ready()
        name = json.loads(await place.run("get", "pods", "--json", gateway=url))["items"][0]["name"]
        proof = await place.run("receipt", "show", name, *place.receipts, gateway=url)
    file = place.folder / "proof.json"
    file.write_text(proof)
    place.url = "nats://nobody:nothing@127.0.0.1:1"
    shown = json.loads(await place.run("receipt", "check", str(file), *place.public, "--json"))
    assert (shown["ok"], "placed on" in shown["event"]) == (True, True)
    archived = await place.run(
        "receipt", "show", "--revision", str(shown["revision"]), *place.receipts,
        "--archive", str(RECORDED),
    )  # fmt: skip
    assert json.loads(archived) == json.loads(proof)
    file.write_text(proof.replace('"memory_mib\\\\":', '"memory_mib\\\\":9', 1).replace(name, "x"))
    said = await place.run("receipt", "check", str(file), *place.public, code=1)
    assert f"revision {shown['revision']} does not match its receipt" in said


async def test_a_ledger_whose_beginning_was_dropped(place: Place) -> None:
    """The archive and the rest of a trimmed ledger are verified against the receipts as one
    history."""
    archive = str(place.folder / "ledger.jsonl")
    await place.run("ledger", "archive", archive)
    await stream.drop(place.ledger.wire, last=12)
    found = await place.verify("--before", archive, *place.receipts, *place.public)
    assert found["proven"] == len(RECORDS)
    found = await place.verify("--archive", archive, *place.receipts, *place.public)
    assert found["proven"] == len(RECORDS)
    (place.folder / "receipts" / "state.snapshot").unlink()
    draft = Draft(RECORDS[0].subject, "again", RECORDS[0].payload)
    await place.ledger.append([draft])
    said = await place.run("receipt", "write", "--key", place.key, *place.receipts, code=1)
    assert "newest receipt" in said


async def test_whoever_audits_may_sign_and_verify(tmp_path: Path) -> None:
    """An auditor's read rights are enough to sign and verify receipts."""
    async with running_bus(tmp_path / "nats") as bus:
        facts = Facts(bus)
        await facts.open()
        await facts.submit("a", "b")
        auditor = Place(tmp_path, await bus.connect("auditor"), bus.server.url_for("auditor"))
        await auditor.run("receipt", "key", auditor.key)
        (first,) = await auditor.sign()
        await facts.submit("c")
        (second,) = await auditor.sign()
        assert (first["last"], second["first"]) == (2, 3)
        # The pen of the tests signs as a test, which is all that is wrong.
        found = await auditor.verify(*auditor.receipts, *auditor.public, code=1)
        assert (found["receipts"], found["found"]) == (2, {"owner": 3})
