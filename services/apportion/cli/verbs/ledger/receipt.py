"""`apportion receipt`: sign the ledger, and prove one decision offline.

`receipt write` may run on a machine that can only read the ledger. Invariant: with --json, standard
output is a whole document that can be piped to an append-only store."""

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from apportion.cli.client.completion import PODS
from apportion.cli.client.connection import JSON, Where, asks_both, asks_ledger
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.ledger import open_ledger, run, with_ledger
from apportion.cli.client.lookup import why_of
from apportion.cli.exits import REFUSED, NotFound, Wrong
from apportion.cli.render.output import print_json, progress, say
from apportion.cli.usage import FILE, VerbGroup, read_keys
from apportion.core.explain.text.event_text import Teller
from apportion.core.explain.text.printable import escaped_json
from apportion.core.ledger.receipts import (
    FORMAT,
    Checkpoint,
    Proof,
    ReceiptInvalid,
    check_proof,
    encoded,
    leaf_of,
    path_of,
    read_proof,
    root_by,
)
from apportion.runtime.files.signing import (
    KeyInvalid,
    make_key,
    read_signing_key,
    read_verifying_key,
)
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.signing_receipts import CannotSign, sign
from apportion.runtime.ledger.archive import ArchiveError, read_archive
from apportion.runtime.ledger.port import LedgerError, Record
from apportion.runtime.ledger.reading import read_to
from apportion.runtime.ledger.receipts import Found, Receipts, check_signature
from apportion.runtime.process.clock import SystemClock, rfc3339
from apportion.runtime.process.reach import Reach
from apportion_schemas import decode
from apportion_schemas.envelope import EventError

_FOLDER = click.Path(file_okay=False, path_type=Path)
# `sign` with all arguments but the ledger
Signing = Callable[[JetStreamLedger], Awaitable[list[Found]]]
PROOF_BYTES_MAX = 64 << 20
EVERY_MIN_S = 10

receipts_option = click.option(
    "--receipts",
    "folder",
    type=_FOLDER,
    required=True,
    metavar="DIR",
    help="Folder of the receipts.",
)


class Shown(msgspec.Struct, frozen=True):
    """The document that `receipt check --json` prints."""

    ok: bool
    revision: int = 0
    subject: str = ""
    event: str = ""
    first: int = 0
    last: int = 0
    time: str = ""
    key: str = ""
    error: str = ""


@click.group(cls=VerbGroup, epilog="Example:  apportion receipt key receipts.key")
def command() -> None:
    """Sign the ledger, or prove that it contains a decision.

    A receipt covers all events since the previous receipt. To check a ledger or an archive against
    receipts, use `apportion verify --key PUBLIC --receipts DIR`.

    Exit codes: 0 done, or the proof is valid; 1 the proof is invalid, or nothing can be signed; 3
    ledger or gateway unreachable; 4 the ledger has events of a newer build."""


@command.command(epilog="Example:  apportion receipt key receipts.key")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@JSON
def key(*, as_json: bool, file: Path) -> None:
    """Create an Ed25519 key pair.

    Writes the private key to FILE and the public key to FILE.pub."""
    try:
        public = make_key(file)
    except OSError as error:
        raise NotFound(f"cannot create the key: {error}") from None
    made = read_verifying_key(public)
    if as_json:
        print_json({"private": str(file), "public": str(public), "key": made.id})
        return
    say(f"private key: {file} (keep it secret)")
    say(f"public key:  {public}, id {made.id} (publish it)")


@command.command(epilog="Example:  apportion receipt write --key receipts.key --receipts receipts")
@click.option("--key", "key_file", type=FILE, required=True, help="Private key to sign with.")
@receipts_option
@click.option("--known", "known_files", type=FILE, multiple=True,
              help="Public key that signed earlier receipts; repeat for more.")  # fmt: skip
@click.option("--every", "every_s", type=click.IntRange(min=EVERY_MIN_S, max=86_400 * 7),
              metavar="SECONDS", help="Repeat at this interval until stopped.")  # fmt: skip
@asks_ledger
def write(
    *,
    where: Where,
    as_json: bool,
    key_file: Path,
    folder: Path,
    known_files: tuple[Path, ...],
    every_s: int | None,
) -> None:
    """Sign all events since the latest receipt in DIR.

    With --json, each receipt is printed on one line, for an append-only store."""
    try:
        receipts, clock = Receipts(folder), SystemClock()
        signing = functools.partial(
            sign, receipts=receipts, key=read_signing_key(key_file), known=read_keys(known_files),
            time=lambda: rfc3339(clock.now()), tell=progress(0),
        )  # fmt: skip
        with receipts.alone():
            run(_write(where.reach(), signing, every_s=every_s, as_json=as_json))
    except BlockingIOError:
        raise NotFound(f"another process is writing receipts to {folder}") from None
    except (KeyInvalid, CannotSign, ReceiptInvalid, OSError) as error:
        raise NotFound(f"cannot write a receipt: {error}") from None


async def _write(reach: Reach, signing: Signing, *, every_s: int | None, as_json: bool) -> None:
    while True:
        try:
            async with open_ledger(reach) as ledger:
                made = await signing(ledger)
            for found in made:
                signed, receipt = found.checkpoint, found.receipt
                if as_json:
                    print_json(receipt, line=True)
                else:
                    said = f"signed revisions {signed.first:,} to {signed.last:,} with key"
                    say(f"{said} {receipt.key}: {found.path}")
            if not made and not as_json:
                say("nothing new to sign")
        except LedgerError as error:
            if every_s is None:
                raise
            say(f"cannot write a receipt, retrying: {error}", err=True)
        if every_s is None:
            return
        await asyncio.sleep(every_s)


@command.command(epilog="Example:  apportion receipt show training/worker-0 --receipts receipts")
@click.argument("pod", metavar="[[NAMESPACE/]POD]", default="", shell_complete=PODS)
@click.option("-n", "--namespace", metavar="NAMESPACE", help="Namespace of the pod.")
@click.option("--revision", type=click.IntRange(min=1), metavar="REVISION",
              help="Prove this event instead of a placement.")  # fmt: skip
@receipts_option
@click.option("--archive", "archives", type=FILE, multiple=True,
              help="Read this archive instead of the ledger; repeat for more.")  # fmt: skip
@asks_both
def show(
    *, where: Where, as_json: bool, pod: str, namespace: str | None, revision: int | None,
    folder: Path, archives: tuple[Path, ...],
) -> None:  # fmt: skip
    """Print a proof of the placement of POD, for `receipt check`.

    The proof is a JSON document with the event, the receipt that covers it, and its position
    there."""
    if bool(pod) == bool(revision):
        raise Wrong("give either a pod or --revision")
    if revision is None:
        why = why_of(Gateway(where.gateway_url()), pod, namespace, {})
        placed = [step.revision for step in why.history if step.phase == "placed"]
        if not placed:
            raise NotFound(f"{why.namespace}/{why.name} was never placed: {why.sentence}")
        revision = placed[-1]
    try:
        found = Receipts(folder).of(revision)
        if found is None:
            raise NotFound(
                f"no receipt in {folder} covers revision {revision}; create one with `apportion "
                "receipt write`"
            )
        signed = found.checkpoint
        if archives:
            records = list[Record]()
            for each in (record for archive in archives for record in read_archive(archive)):
                if each.revision == signed.first + len(records) <= signed.last:
                    records.append(each)
        else:
            records = with_ledger(where.reach(), lambda ledger: _read(ledger, signed))
        proof = _proof(found, records, revision)
    except (ReceiptInvalid, ArchiveError, OSError) as error:
        raise NotFound(f"cannot make a proof: {error}") from None
    data = encoded(proof)
    click.echo(escaped_json(data if as_json else msgspec.json.format(data, indent=2)))


async def _read(ledger: JetStreamLedger, signed: Checkpoint) -> list[Record]:
    records: list[Record] = []
    tell = progress(signed.last)

    def take(record: Record) -> None:
        records.append(record)
        if record.revision % 10_000 == 0:
            tell(record.revision)

    if await ledger.last_revision() < signed.last or await ledger.first_revision() > signed.first:
        raise NotFound(
            f"the ledger lacks some of the revisions {signed.first} to {signed.last}; give the "
            "archives that have them with --archive FILE"
        )
    await read_to(ledger, signed.last, take, start=signed.first)
    return records


def _proof(found: Found, records: list[Record], revision: int) -> Proof:
    """Return the proof of one event. Raises ReceiptInvalid if the records were changed."""
    signed = found.checkpoint
    leaves = [leaf_of(each.revision, each.subject, each.payload) for each in records]
    size, index = signed.last - signed.first + 1, revision - signed.first
    if len(leaves) != size:
        raise ReceiptInvalid(f"only {len(leaves)} of its {size} events were found")
    path = tuple(path_of(leaves, index))
    if root_by(leaves[index], index, size, path) != signed.root:
        raise ReceiptInvalid(
            f"revisions {signed.first} to {signed.last} differ from those signed in {found.path}; "
            "find the first with `apportion verify --key PUBLIC --receipts DIR`"
        )
    record = records[index]
    proof = Proof(FORMAT, record.revision, record.subject, path, found.receipt)
    try:
        return msgspec.structs.replace(proof, payload=record.payload.decode())
    except UnicodeDecodeError:
        return msgspec.structs.replace(proof, base64=record.payload)


@command.command(epilog="Example:  apportion receipt check proof.json --key receipts.key.pub")
@click.argument("file", type=click.File("rb"))
@click.option("--key", "key_files", type=FILE, required=True, multiple=True,
              help="Public key of the signer; repeat to accept several.")  # fmt: skip
@JSON
def check(*, as_json: bool, file: BinaryIO, key_files: tuple[Path, ...]) -> None:
    """Check a proof from `receipt show` offline.

    FILE `-` is standard input."""
    keys = read_keys(key_files)
    try:
        proof = read_proof(file.read(PROOF_BYTES_MAX))
        check_signature(proof.receipt, keys, where="its receipt")
        signed = check_proof(proof)
    except ReceiptInvalid as error:
        shown = Shown(ok=False, error=str(error))
    else:
        event = f"event on {proof.subject} that this build cannot read"
        with suppress(EventError):
            event = Teller().line(decode(proof.message(), subject=proof.subject).data)
        shown = Shown(
            ok=True, revision=proof.revision, subject=proof.subject, event=event,
            first=signed.first, last=signed.last, time=signed.time, key=proof.receipt.key,
        )  # fmt: skip
    if as_json:
        print_json(shown)
    elif shown.ok:
        say(f"revision {shown.revision:,}: {shown.event}")
        say(
            f"covered by the receipt of revisions {shown.first:,} to {shown.last:,}, signed with "
            f"key {shown.key} at {shown.time}"
        )
    else:
        say(f"invalid proof: {shown.error}", "red", err=True)
    if not shown.ok:
        sys.exit(REFUSED)
