"""Tests of older event versions. Each is validated by its own rules and then converted to the
newest version."""

import json

import msgspec
import pytest

from apportion_schemas import (
    CATALOGUE,
    Event,
    InvalidEvent,
    UnknownEvent,
    UnreadableEvent,
    catalogue,
    decode,
    encode,
    envelope,
)
from apportion_schemas.catalogue import Older
from apportion_schemas.envelope import lifted
from tests.support.evolved import FIRST, NO_CODE, ROW, UNTOLD, PodGone

SUBJECT = "apportion.v1.workload.uid-1"
DATA = {1: {"uid": "uid-1"}, 2: {"uid": "uid-1", "reason": "done", "exit_code": 0}}
NEWEST = PodGone(uid="uid-1", why="done", exit_code=0)


@pytest.fixture
def tomorrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the event catalogue with one in which `PodGone` has three versions."""
    decoder = msgspec.json.Decoder(ROW.payload)
    monkeypatch.setitem(catalogue.BY_TYPE, ROW.type, ROW)
    monkeypatch.setitem(catalogue.BY_PAYLOAD, ROW.payload, ROW)
    monkeypatch.setitem(envelope._NEWEST, ROW.type, (ROW.version, decoder.decode))
    monkeypatch.setitem(envelope._DECODERS, ROW.type, decoder.decode)


def wire(version: int, data: object, **attributes: object) -> bytes:
    """Return the JSON of an event in this version."""
    document = {
        "specversion": "1.0", "type": ROW.type, "schemaversion": version, "id": "1",
        "source": "watcher/a", "time": "2026-03-01T09:30:00Z", "data": data, "basis": 7,
    }  # fmt: skip
    return json.dumps(document | attributes).encode()


def test_the_newest_is_written_and_read(tomorrow: None) -> None:
    """An event of the newest version is encoded and decoded without a conversion."""
    event = Event(id="1", source="s", time="2026-03-01T09:30:00Z", data=NEWEST)
    assert json.loads(encode(event))["schemaversion"] == ROW.version == 3
    assert decode(encode(event), subject=SUBJECT) == event


@pytest.mark.parametrize(
    ("version", "means"), [(1, PodGone(uid="uid-1", why=UNTOLD, exit_code=NO_CODE)), (2, NEWEST)]
)
def test_an_older_one_is_lifted(tomorrow: None, version: int, means: PodGone) -> None:
    """An event of an older version is converted to the newest version, one version at a time. Its
    envelope stays the same."""
    event = decode(wire(version, DATA[version]), subject=SUBJECT)
    assert event == Event(
        id="1", source="watcher/a", time="2026-03-01T09:30:00Z", data=means, basis=7
    )


def test_one_of_before_the_first_release_is_read_as_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An event version from before the first release is read as if it were the first released
    version."""
    monkeypatch.setitem(catalogue.BORN, ROW.name, 3)
    assert (ROW.first, ROW.version) == (3, 5)
    first = {"uid": "uid-1", "reason": "done"}
    for version in (1, 2, 3):
        told = lifted(ROW, version, json.dumps(first).encode())
        assert told == PodGone(uid="uid-1", why="done", exit_code=NO_CODE)
    newest = ROW._replace(older=())
    assert newest.version == 3
    assert lifted(newest, 1, json.dumps({"uid": "u", "why": "w", "exit_code": 1}).encode()) == (
        PodGone(uid="u", why="w", exit_code=1)
    )
    with pytest.raises(msgspec.ValidationError):
        lifted(newest, 1, json.dumps(first).encode())


@pytest.mark.parametrize(
    ("version", "data", "says"),
    [
        (1, {"uid": "uid-1", "exit_code": 0}, "unknown field `exit_code`"),
        (1, {"reason": "done"}, "missing required field `uid`"),
        (2, {"uid": "uid-1", "exit_code": 0}, "missing required field `reason`"),
        (2, {"uid": "uid-1", "reason": "x" * 1025, "exit_code": 0}, "length <= 1024"),
        (3, DATA[2], "unknown field `reason`"),
    ],
)
def test_an_older_one_is_held_to_its_own_fields(
    tomorrow: None, version: int, data: dict[str, object], says: str
) -> None:
    """An event of an older version is validated against the fields of that version. All builds
    therefore accept the same events."""
    with pytest.raises(InvalidEvent, match=f"PodGone.*: .*{says}"):
        decode(wire(version, data), subject=SUBJECT)


def test_it_stands_on_its_subject(tomorrow: None) -> None:
    """An event of an older version is invalid on the wrong subject."""
    with pytest.raises(InvalidEvent, match=r"belongs on 'apportion\.v1\.workload\.uid-1'"):
        decode(wire(1, DATA[1]), subject="apportion.v1.workload.uid-2")


def test_a_newer_one_halts_whatever_it_holds(tomorrow: None) -> None:
    """An event of a newer version or an unknown type raises the error that halts a reader, whatever
    its content."""
    for payload in (wire(4, {"x": 1}), wire(4, [], traceparent="00-1"), wire(4, 0, id="")):
        with pytest.raises(
            UnknownEvent, match=r"schemaversion 4 .* reads only up to 3; upgrade App"
        ):
            decode(payload, subject=SUBJECT)
    with pytest.raises(UnknownEvent, match=r"not know the event type 'apportion\.dev/PodMoved'"):
        decode(wire(1, {}, type="apportion.dev/PodMoved", more=1), subject=SUBJECT)
    with pytest.raises(UnreadableEvent, match="traceparent"):
        decode(wire(3, DATA[2], traceparent="00-1"), subject=SUBJECT)


@pytest.mark.parametrize("wrong", [lambda _: {}, lambda told: told["reason"], lambda _: None])
def test_a_lift_that_fails_halts(wrong: object) -> None:
    """If an event cannot be converted to the newest version, this build has a bug. The error
    therefore halts the reader."""
    row = ROW._replace(older=(FIRST, Older(ROW.older[1].payload, wrong)))  # type: ignore[arg-type]
    with pytest.raises(UnknownEvent, match=r"cannot convert version 2 to 3 .*a bug in this"):
        lifted(row, 2, json.dumps(DATA[2]).encode())


def test_an_older_payload_has_the_name_of_its_event() -> None:
    """The payload classes of all versions of an event have the event's name."""
    for row in (ROW, *CATALOGUE):
        names = {row.payload_of(version).__name__ for version in range(1, row.version + 1)}
        assert names == {row.name}
    assert [ROW.payload_of(version) for version in (1, 2, 3)] == [
        *(older.payload for older in ROW.older),
        PodGone,
    ]
