"""Sign and check a release, built by `make release`: wheel, image and bill of materials.

    python -m tools.release sign --key KEY DIST
    python -m tools.release check --public KEY.pub DIST

`sign` writes `provenance.intoto.json` into DIST: an in-toto statement with SLSA 1.0 provenance in a
DSSE envelope. The statement has the SHA-256 of every file, the digest of the image, the commit, and
the build's lock files and base images. Any tool that supports DSSE can check it, for example:

    cosign verify-blob-attestation --key KEY.pub --type https://slsa.dev/provenance/v1
        --insecure-ignore-tlog --signature DIST/provenance.intoto.json DIST/FILE

Invariant: `check` passes only if DIST has exactly the signed files, with the same content."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final

import click

from apportion.runtime.files.signing import (
    KeyInvalid,
    SigningKey,
    VerifyingKey,
    read_signing_key,
    read_verifying_key,
)
from tools.pins import pinned

ROOT = Path(__file__).resolve().parents[1]
PROVENANCE: Final = "provenance.intoto.json"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:apportion:make-release:1"
LOCKS: Final = ("requirements/build.txt", "requirements/runtime.txt")
IMAGE: Final = "apportion.oci.tar"


class Untrusted(Exception):
    """Raised if the folder differs from what was signed; the message names the difference."""


def signed(statement: Mapping[str, Any], key: SigningKey) -> dict[str, Any]:
    """Return the statement in a DSSE 1.0 envelope, signed by `key`."""
    body = json.dumps(statement, sort_keys=True).encode()
    signature = bytes.fromhex(key.sign(authenticated(PAYLOAD_TYPE, body)))
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(body).decode(),
        "signatures": [{"keyid": key.id, "sig": base64.b64encode(signature).decode()}],
    }


def opened(envelope: Mapping[str, Any], key: VerifyingKey) -> dict[str, Any]:
    """Return the statement in an envelope. Raises Untrusted if the key did not sign it."""
    try:
        body = base64.b64decode(envelope["payload"], validate=True)
        signatures = [base64.b64decode(each["sig"], validate=True).hex()
                      for each in envelope["signatures"]]  # fmt: skip
        data = authenticated(envelope["payloadType"], body)
    except (KeyError, TypeError, ValueError) as error:
        raise Untrusted(f"{PROVENANCE} is no envelope of DSSE: {error!r}") from error
    if envelope["payloadType"] != PAYLOAD_TYPE:
        raise Untrusted(f"{PROVENANCE} holds {envelope['payloadType']}, not {PAYLOAD_TYPE}")
    if not any(key.signed(data, each) for each in signatures):
        raise Untrusted(f"{PROVENANCE} is not signed by the key {key.id}")
    return json.loads(body)  # type: ignore[no-any-return]


def authenticated(payload_type: str, body: bytes) -> bytes:
    """Return DSSE 1.0's pre-authentication encoding of a payload: the bytes that are signed."""
    return b"DSSEv1 %d %s %d %s" % (len(payload_type), payload_type.encode(), len(body), body)


def provenance(folder: Path, *, commit: str, key_id: str, finished: datetime) -> dict[str, Any]:
    """Return a statement with the digests of all files in the folder, and of the image."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    images = [
        {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
        for name, digest in sorted(pinned().items())
    ]
    locks = [{"name": name, "digest": {"sha256": _sha256(ROOT / name)}} for name in LOCKS]
    return {
        "_type": STATEMENT_TYPE,
        "subject": _subjects(folder),
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"version": version, "command": "make release"},
                "resolvedDependencies": [
                    {"name": "apportion", "digest": {"gitCommit": commit}}, *locks, *images
                ],
            },
            # SLSA Build level 1: the holder of the key built it on their own machine.
            "runDetails": {
                "builder": {"id": f"urn:apportion:key:{key_id}"},
                "metadata": {"finishedOn": finished.strftime("%Y-%m-%dT%H:%M:%SZ")},
            },
        },
    }  # fmt: skip


def compared(statement: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the folder's file names if they match the statement. Raises Untrusted otherwise."""
    wanted = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    there = {each["name"]: each["digest"]["sha256"] for each in _subjects(folder)}
    for name in sorted(wanted.keys() | there.keys()):
        if name not in there:
            raise Untrusted(f"{name} was signed and is not there")
        if name not in wanted:
            raise Untrusted(f"{name} is there and was not signed")
        if wanted[name] != there[name]:
            raise Untrusted(f"{name} has SHA-256 {there[name]}, and {wanted[name]} was signed")
    return sorted(wanted)


def image_digest(archive: Path) -> str:
    """Return the SHA-256 of the manifest in an OCI archive.

    A registry would give the image the same digest."""
    with tarfile.open(archive) as tar:
        index = tar.extractfile("index.json")
        manifests = json.loads(index.read())["manifests"] if index is not None else []
    if len(manifests) != 1:
        raise Untrusted(f"{archive.name} has {len(manifests)} images, not one")
    return str(manifests[0]["digest"]).removeprefix("sha256:")


def _subjects(folder: Path) -> list[dict[str, Any]]:
    files = sorted(path for path in folder.iterdir() if path.name != PROVENANCE)
    found = [{"name": path.name, "digest": {"sha256": _sha256(path)}} for path in files]
    if (folder / IMAGE).is_file():
        found.append(
            {"name": "pkg:oci/apportion", "digest": {"sha256": image_digest(folder / IMAGE)}}
        )
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _commit() -> str:
    """Return the commit of a clean checkout. Raises ClickException if anything is uncommitted."""
    changed = _git("status", "--porcelain")
    if changed:
        raise click.ClickException(f"commit first, the checkout was changed:\n{changed}")
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str:
    git = shutil.which("git")
    if git is None:
        raise click.ClickException("no git to say which commit this is: install it")
    command = [git, "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def main() -> None:
    """Sign a folder with a release, or check one."""


@main.command()
@click.option("--key", required=True, type=FILE, help="What `apportion receipt key` made.")
@click.argument("folder", type=FOLDER)
def sign(key: Path, folder: Path) -> None:
    """Sign the provenance of the files in FOLDER."""
    try:
        private = read_signing_key(key)
        statement = provenance(
            folder, commit=_commit(), key_id=private.id, finished=datetime.now(UTC)
        )
    except (Untrusted, KeyInvalid, OSError, ValueError, tarfile.TarError) as error:
        raise click.ClickException(str(error)) from error
    text = json.dumps(signed(statement, private), indent=1)
    (folder / PROVENANCE).write_text(text + "\n", "utf-8")
    click.echo(f"{folder / PROVENANCE}: {len(statement['subject'])} digests, key {private.id}")


@main.command()
@click.option("--public", required=True, type=FILE, help="The public half of the key: KEY.pub.")
@click.argument("folder", type=FOLDER)
def check(public: Path, folder: Path) -> None:
    """Check that FOLDER contains exactly the files that were signed."""
    try:
        envelope = json.loads((folder / PROVENANCE).read_bytes())
        statement = opened(envelope, read_verifying_key(public))
        names = compared(statement, folder)
    except (Untrusted, KeyInvalid, OSError, ValueError, tarfile.TarError) as error:
        raise click.ClickException(str(error)) from error
    (source, *_) = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    click.echo(f"{', '.join(names)}: as signed, of commit {source['digest']['gitCommit']}")


if __name__ == "__main__":
    main()
