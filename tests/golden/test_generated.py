"""Tests of the generated files: they are up to date, and an event's schema changes only with its
version."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from apportion_schemas import CATALOGUE
from apportion_schemas import PodGone as PodGoneOfToday
from apportion_schemas.catalogue import BORN, BY_PAYLOAD, Older
from apportion_schemas.quantities import Name, Payload
from tests.support import generated
from tests.support.golden import Golden
from tools import events, reference
from tools.security_page import PAGE, page, rows

ROOT = Path(__file__).resolve().parents[2]


class PodGone(Payload, frozen=True):
    """A made-up later version of the PodGone event, with other fields than today's."""

    uid: Name
    exit_code: int = 0


def test_every_event_has_its_first_version() -> None:
    """Before the first release, every event type has version 1. Remove this test after the
    release."""
    assert {row.name: row.version for row in CATALOGUE} == BORN, (
        "no release is out: say it by `born` where the event is declared"
    )


def test_committed_files_are_the_generated_ones() -> None:
    """The committed schemas, AsyncAPI document and page of events are up to date."""
    generated.assert_none(events.differing(events.files(CATALOGUE, events.read_lock())))


def test_the_page_on_security_is_the_generated_one() -> None:
    """The security page's tables of identities, attacks and checks are up to date."""
    text = PAGE.read_text("utf-8")
    generated.assert_none([PAGE] if page(text, rows()) != text else [])


def test_the_reference_pages_are_the_generated_ones() -> None:
    """The reference pages of commands, settings, metrics, refusals and chart values are up to
    date."""
    generated.assert_none(generated.outdated(reference.files()))


def test_no_schema_changed_under_its_version() -> None:
    """Every event whose schema changed has a new version. Ledgers keep events of old versions."""
    assert events.unraised(CATALOGUE, events.read_lock()) == []


ROW = BY_PAYLOAD[PodGoneOfToday]
LIFTED = Older(PodGoneOfToday, lambda told: told)


def test_a_change_without_a_new_version_is_caught(golden: Golden) -> None:
    """The check of generated files reports an event whose fields change without a new version."""
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
    """The check of generated files reports an older event version if its fields have changed or if
    no code reads it."""
    raised = ROW._replace(payload=PodGone, older=(LIFTED,))
    lock = events.relocked([raised], events.read_lock())
    (other,) = events.unraised([raised._replace(older=(Older(PodGone, dict),))], lock)
    (unread,) = events.unraised([ROW], lock)
    golden({"other fields of version 1": other, "no reader of version 2": unread})


def test_a_version_of_before_the_first_release_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Event versions from before the first release need neither a schema nor a fingerprint.

    The event type in this test was first released with version 2."""
    raised = ROW._replace(payload=PodGone, older=(LIFTED,))
    lock = events.relocked([raised], {})
    monkeypatch.setitem(BORN, "PodGone", 2)
    newest = ROW._replace(payload=PodGone)
    assert events.unraised([newest], lock) == []
    assert events.relocked([newest], lock) == {"PodGone": {"2": lock["PodGone"]["2"]}}
    made = events.files([newest], lock)
    assert [path for path in made if path.endswith(".1.json")] == []


def test_every_version_has_its_schema() -> None:
    """Every version of an event type has its own schema file, including the older versions.

    Ledgers contain all versions, and readers in other languages need the schemas."""
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


def test_descriptions_may_change() -> None:
    """A new description in a schema needs no new event version, but a new field needs one."""
    schema = events.event_schema(ROW)
    assert events.fingerprint(schema | {"description": "x"}) == events.fingerprint(schema)
    properties = schema["properties"] | {"description": {"type": "string"}}
    assert events.fingerprint(schema | {"properties": properties}) != events.fingerprint(schema)


def test_differences_are_named(golden: Golden, tmp_path: Path) -> None:
    """The check of generated files names each file that is missing, outdated, or no longer
    generated."""
    folder = tmp_path / events.PACKAGE / "json"
    folder.mkdir(parents=True)
    (folder / "PodGone.json").write_text("{}")
    (folder / "PodMoved.json").write_text("{}")
    lines = events.differing(events.files(CATALOGUE, {}), tmp_path)
    assert "docs/reference/events.md: is missing" in lines
    json_lines = [line for line in lines if "/json/PodGone" in line or "/json/PodMoved" in line]
    golden({"a file of {} each": "\n".join(json_lines)})


def test_every_event_is_on_the_page_and_in_a_channel() -> None:
    """Every event type is on the page of events, and is an AsyncAPI message in the channel of its
    subject."""
    made = events.files(CATALOGUE, {})
    page, document = made["docs/reference/events.md"], events.asyncapi(CATALOGUE)
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


def test_check_returns_its_exit_status() -> None:
    """The generator's option `--check` exits with 0 if all files are up to date, whatever Python's
    hash seed is."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.events", "--check"],
        capture_output=True, text=True, check=False, cwd=ROOT, env={"PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
