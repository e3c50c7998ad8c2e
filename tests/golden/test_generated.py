"""What is generated from the events is what is committed, and a schema changes only by version."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from apportion_schemas import CATALOGUE
from apportion_schemas import PodGone as PodGoneOfToday
from apportion_schemas.catalogue import BORN, BY_PAYLOAD, Older
from apportion_schemas.quantities import Name, Payload
from tests.support.golden import Golden
from tools import events, reference
from tools.security_page import PAGE, page, rows

ROOT = Path(__file__).resolve().parents[2]


class PodGone(Payload, frozen=True):
    """A PodGone of tomorrow: other fields under the same name."""

    uid: Name
    exit_code: int = 0


def test_what_this_build_writes_is_legal_everywhere() -> None:
    """So it is until the first release; after it `BORN` never grows, and this test goes."""
    assert {row.name: row.version for row in CATALOGUE} == BORN, (
        "no release is out: say it by `born` where the event is declared"
    )


def test_committed_files_are_the_generated_ones() -> None:
    """Schemas, AsyncAPI document and catalogue page; `make generate` mends it."""
    assert events.differing(events.files(CATALOGUE, events.read_lock())) == []


def test_the_page_on_security_is_the_generated_one() -> None:
    """Its tables of identities, attacks and points; `make generate` mends it."""
    text = PAGE.read_text("utf-8")
    assert page(text, rows()) == text


def test_the_manual_and_the_console_list_what_the_descriptors_say() -> None:
    """Policies and refusal codes; `make generate` mends it."""
    for path, text in reference.files().items():
        assert (ROOT / path).read_text("utf-8") == text, path


def test_no_schema_changed_under_its_version() -> None:
    """Old events stay in the ledger: a changed schema is a new version."""
    assert events.unraised(CATALOGUE, events.read_lock()) == []


ROW = BY_PAYLOAD[PodGoneOfToday]
LIFTED = Older(PodGoneOfToday, lambda told: told)


def test_a_change_without_a_new_version_is_caught(golden: Golden) -> None:
    """Guards the guard: the same check over a catalogue with one changed payload."""
    lock = events.read_lock()
    changed = ROW._replace(payload=PodGone)
    (problem,) = events.unraised([changed], lock)
    golden({"other fields": problem})
    raised = changed._replace(older=(LIFTED,))
    assert events.unraised([raised], lock) == []
    kept = events.relocked([raised], lock)["PodGone"]
    assert set(kept) == {"1", "2"}
    assert kept["1"] == lock["PodGone"]["1"] != kept["2"]


def test_an_older_version_keeps_its_fields(golden: Golden) -> None:
    """Its events stay in the ledger: neither other fields, nor no reader at all."""
    raised = ROW._replace(payload=PodGone, older=(LIFTED,))
    lock = events.relocked([raised], events.read_lock())
    (other,) = events.unraised([raised._replace(older=(Older(PodGone, dict),))], lock)
    (unread,) = events.unraised([ROW], lock)
    golden({"other fields of version 1": other, "no reader of version 2": unread})


def test_a_version_of_before_the_first_release_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither a schema nor a fingerprint is kept: it is read as the first that was released."""
    raised = ROW._replace(payload=PodGone, older=(LIFTED,))
    lock = events.relocked([raised], {})
    monkeypatch.setitem(BORN, "PodGone", 2)
    newest = ROW._replace(payload=PodGone)
    assert events.unraised([newest], lock) == []
    assert events.relocked([newest], lock) == {"PodGone": {"2": lock["PodGone"]["2"]}}
    made = events.files([newest], lock)
    assert [path for path in made if path.endswith(".1.json")] == []


def test_every_version_has_its_schema() -> None:
    """For readers in other languages, who meet all of them in a ledger."""
    made = events.files([ROW._replace(payload=PodGone, older=(LIFTED,))], {})
    schemas = {
        version: json.loads(made[f"{events.PACKAGE}/json/PodGone{suffix}.json"])
        for version, suffix in ((1, ".1"), (2, ""))
    }
    for version, schema in schemas.items():
        assert schema["properties"]["schemaversion"] == {"const": version}
        assert schema["$id"] == f"urn:apportion:event:PodGone:{version}"
    assert "exit_code" not in schemas[1]["$defs"]["PodGone"]["properties"]
    assert "exit_code" in schemas[2]["$defs"]["PodGone"]["properties"]


def test_words_may_change() -> None:
    """A better sentence is no new version; a field that is called like a keyword counts."""
    schema = events.event_schema(ROW)
    assert events.fingerprint(schema | {"description": "x"}) == events.fingerprint(schema)
    properties = schema["properties"] | {"description": {"type": "string"}}
    assert events.fingerprint(schema | {"properties": properties}) != events.fingerprint(schema)


def test_differences_are_named(golden: Golden, tmp_path: Path) -> None:
    """Missing, out of date, and left over from an event that is gone."""
    folder = tmp_path / events.PACKAGE / "json"
    folder.mkdir(parents=True)
    (folder / "PodGone.json").write_text("{}")
    (folder / "PodMoved.json").write_text("{}")
    lines = events.differing(events.files(CATALOGUE, {}), tmp_path)
    assert "docs/events.md: is missing" in lines
    json_lines = [line for line in lines if "/json/PodGone" in line or "/json/PodMoved" in line]
    golden({"a file of {} each": "\n".join(json_lines)})


def test_every_event_is_on_the_page_and_in_a_channel() -> None:
    """One row and one message each, with the subject that the code computes."""
    made = events.files(CATALOGUE, {})
    page, document = made["docs/events.md"], events.asyncapi(CATALOGUE)
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
        [sys.executable, "-m", "tools.events", "--check"],
        capture_output=True, text=True, check=False, cwd=ROOT, env={"PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
