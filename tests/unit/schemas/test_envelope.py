"""Bytes that are no event of ours: each kind of wrong has its own error, and no other happens."""

import json
from typing import Any

import pytest
from msgspec import structs

from apportion_schemas import (
    Ask,
    Event,
    InvalidEvent,
    NodeReported,
    PodGone,
    PodSubmitted,
    Score,
    Shape,
    UnknownEvent,
    UnreadableEvent,
    decode,
    encode,
)
from apportion_schemas.catalogue import subject_of
from apportion_schemas.envelope import EVENT_BYTES_MAX
from apportion_schemas.placement import PodPlaced, PodRefused

SUBJECT = "apportion.v1.workload.uid-1"
GONE = Event(id="1", source="watcher/a", time="2026-03-01T09:30:00Z", data=PodGone(uid="uid-1"))


def wire(data: object = None, **attributes: Any) -> bytes:
    """The document of `GONE` with other attributes; None leaves one out."""
    document = json.loads(encode(GONE)) | attributes
    if data is not None:
        document["data"] = data
    return json.dumps({k: v for k, v in document.items() if v is not None}).encode()


def test_the_unchanged_document_is_read() -> None:
    """The errors below come of what each changes."""
    assert decode(wire(), subject=SUBJECT) == GONE


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[]", "Expected `object`"),
        (b'{"data":' + b"[" * 100_000, "recursion"),
        (wire().replace(b"watcher/a", b"\xff"), "decode"),
        (wire(id=None), "missing required field `id`"),
        (wire(id=""), "length >= 1"),
        (wire(time="now"), "length >= 20"),
        (wire(basis=-1), "`int` >= 0"),
        (wire(cause=0.5), "Expected `int`"),
        (wire(schemaversion="1"), "Expected `int`"),
        (wire(datacontenttype="text/plain"), "datacontenttype"),
        (wire(extra=1), "unknown field `extra`"),
    ],
)
def test_unreadable(payload: bytes, says: str) -> None:
    """Not a CloudEvents document, for every reader there will ever be."""
    with pytest.raises(UnreadableEvent, match=says):
        decode(payload, subject=SUBJECT)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (wire(type="apportion.dev/PodMoved"), "'apportion.dev/PodMoved' is not known"),
        (wire(type="PodGone"), "is not known"),
        (wire(schemaversion=2), "schemaversion 2 .* which reads up to 1: .*upgrade Apportion here"),
        (wire(specversion="2.0"), r"CloudEvents 2\.0"),
    ],
)
def test_unknown(payload: bytes, says: str) -> None:
    """A newer writer exists: this reader must stop, whatever the data is."""
    with pytest.raises(UnknownEvent, match=says):
        decode(payload, subject=SUBJECT)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "missing required field `uid`"),
        ({"uid": ""}, "length >= 1"),
        ({"uid": 1}, "Expected `str`"),
        ({"uid": "uid-1", "why": "x"}, "unknown field `why`"),
        ({"uid": "uid-1", "reason": "x" * 1025}, "length <= 1024"),
        ([], "Expected `object`"),
        ({"uid": "uid-2"}, r"stands on subject '.*uid-1' and belongs on '.*uid-2'"),
    ],
)
def test_invalid(data: object, says: str) -> None:
    """A known type whose payload no version of the schema takes, or that is about another."""
    with pytest.raises(InvalidEvent, match=f"PodGone: .*{says}"):
        decode(wire(data), subject=SUBJECT)


def test_deep_data() -> None:
    """Nesting that would end a reader is only a bad event."""
    payload = wire().replace(b'{"uid": "uid-1"}', b'{"uid":' + b"[" * 5000 + b"]" * 5000 + b"}")
    with pytest.raises((UnreadableEvent, InvalidEvent), match="recursion"):
        decode(payload, subject=SUBJECT)


@pytest.mark.parametrize("amount", [-1, 1 << 25])
def test_an_absurd_amount(amount: int) -> None:
    """It is refused before it can reach a fold, by the reader and by the writer."""
    bad = Shape(asks=(Ask(container="c", family="nvidia", memory_mib=amount),))
    data = PodSubmitted(uid="uid-1", namespace="n", name="p", shape=bad, dialect="hami")
    with pytest.raises(InvalidEvent, match="memory_mib"):
        encode(structs.replace(GONE, data=data))
    asks = [{"container": "c", "family": "nvidia", "memory_mib": amount}]
    document: dict[str, Any] = {"uid": "uid-1", "namespace": "n", "name": "p", "dialect": "hami"}
    document |= {"shape": {"asks": asks}}
    with pytest.raises(InvalidEvent, match="memory_mib"):
        decode(wire(document, type="apportion.dev/PodSubmitted"), subject=SUBJECT)


@pytest.mark.parametrize(
    "change",
    [{"id": ""}, {"id": "x" * 513}, {"source": ""}, {"time": "now"}, {"basis": -1}, {"cause": -1},
     {"data": PodGone(uid="\ud800")}, {"data": PodGone(uid="")}],
)  # fmt: skip
def test_nothing_bad_is_written(change: dict[str, Any]) -> None:
    """What a reader would refuse is refused by the writer already."""
    with pytest.raises(InvalidEvent, match=r"^PodGone: "):
        encode(structs.replace(GONE, **change))


@pytest.mark.parametrize("total", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_has_not(total: float) -> None:
    """They would be written as null and come back as nothing."""
    score = Score(node="n", total=total)
    data = PodPlaced(pod="p", namespace="n", name="p", attempt=1, node="n", shares=(), score=score)
    with pytest.raises(InvalidEvent, match="total"):
        encode(structs.replace(GONE, data=data))


def test_an_event_that_no_stream_would_take() -> None:
    """Larger than the stream's largest message: said by us, before the server says it."""
    labels = {f"label-{i}": "x" * 1024 for i in range(1100)}
    data = NodeReported(
        node="n",
        devices=(),
        host={"cpu_milli": 1, "memory_mib": 1, "labels": labels},  # type: ignore[arg-type]
    )
    with pytest.raises(InvalidEvent, match=f"at most {EVENT_BYTES_MAX}"):
        encode(structs.replace(GONE, data=data))


def test_a_refusal_may_be_for_a_reason_that_this_build_does_not_know() -> None:
    """It is kept, and written as it was read; what cannot be a reason is none."""
    data = {"pod": "p", "namespace": "d", "name": "p", "reasons": {"VolumeNotBound": 3}, "nodes": 3}
    refused = {
        **json.loads(encode(GONE)),
        "type": "apportion.dev/PodRefused",
        "data": data,
    }
    subject = subject_of(PodRefused(pod="p", namespace="d", name="p", reasons={}, nodes=0))
    event = decode(json.dumps(refused).encode(), subject=subject)
    assert json.loads(encode(event))["data"]["reasons"] == {"VolumeNotBound": 3}
    data["reasons"] = {"volume not bound": 3}
    with pytest.raises(InvalidEvent, match="volume not bound"):
        decode(json.dumps(refused).encode(), subject=subject)
