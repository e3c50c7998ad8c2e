"""What is generated from the events is what is committed, and a schema changes only by version."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from apportion_schemas import CATALOGUE
from apportion_schemas.quantities import Name, Payload

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "schemas" / "generate.py"


class PodGone(Payload, frozen=True):
    """A PodGone of tomorrow: other fields under the same name."""

    uid: Name
    exit_code: int = 0


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The script, which is beside the package and not in it."""
    spec = importlib.util.spec_from_file_location("generate", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_files_are_the_generated_ones(generate: ModuleType) -> None:
    """Schemas, AsyncAPI document and catalogue page; `make generate` mends it."""
    assert generate.differing(generate.files(CATALOGUE, generate.read_lock())) == []


def test_no_schema_changed_under_its_version(generate: ModuleType) -> None:
    """Old events stay in the ledger: a changed schema is a new version."""
    assert generate.unraised(CATALOGUE, generate.read_lock()) == []


def test_a_change_without_a_new_version_is_caught(generate: ModuleType) -> None:
    """Guards the guard: the same check over a catalogue with one changed payload."""
    (row,) = (row for row in CATALOGUE if row.name == "PodGone")
    lock = generate.read_lock()
    changed = row._replace(payload=PodGone)
    (problem,) = generate.unraised([changed], lock)
    assert problem.startswith("PodGone: version 1 has another schema: raise it in catalogue.py")
    raised = changed._replace(version=2)
    assert generate.unraised([raised], lock) == []
    kept = generate.relocked([raised], lock)["PodGone"]
    assert set(kept) == {"1", "2"}
    assert kept["1"] == lock["PodGone"]["1"] != kept["2"]


def test_words_may_change(generate: ModuleType) -> None:
    """A better sentence is no new version; a field that is called like a keyword counts."""
    (row,) = (row for row in CATALOGUE if row.name == "PodGone")
    schema = generate.event_schema(row)
    assert generate.fingerprint(schema | {"description": "x"}) == generate.fingerprint(schema)
    properties = schema["properties"] | {"description": {"type": "string"}}
    assert generate.fingerprint(schema | {"properties": properties}) != generate.fingerprint(schema)


def test_differences_are_named(generate: ModuleType, tmp_path: Path) -> None:
    """Missing, out of date, and left over from an event that is gone."""
    folder = tmp_path / generate.PACKAGE / "json"
    folder.mkdir(parents=True)
    (folder / "PodGone.json").write_text("{}")
    (folder / "PodEvicted.json").write_text("{}")
    lines = generate.differing(generate.files(CATALOGUE, {}), tmp_path)
    assert "docs/events.md: is missing" in lines
    assert f"{generate.PACKAGE}/json/PodGone.json: is out of date" in lines
    assert f"{generate.PACKAGE}/json/PodEvicted.json: belongs to no event" in lines


def test_every_event_is_on_the_page_and_in_a_channel(generate: ModuleType) -> None:
    """One row and one message each, with the subject that the code computes."""
    made = generate.files(CATALOGUE, {})
    page, document = made["docs/events.md"], generate.asyncapi(CATALOGUE)
    addresses = {
        name: channel["address"]
        for channel in document["channels"].values()
        for name in channel["messages"]
    }
    assert set(addresses) == {row.name for row in CATALOGUE}
    for row in CATALOGUE:
        assert f"[{row.name}]" in page
        assert f"`{addresses[row.name]}`" in page
    assert addresses["PodPlaced"] == "apportion.v1.placement.{node}"
    assert addresses["PolicyChanged"] == "apportion.v1.operator.policy"
    assert document["operations"]["scheduler.send.placement"]["action"] == "send"


def test_check_says_so_by_its_exit_status() -> None:
    """As continuous integration calls it, under another hash seed."""
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check"],
        capture_output=True, text=True, check=False, cwd=ROOT, env={"PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
