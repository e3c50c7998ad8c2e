"""Tests of payloads that are not valid events. Each kind of defect has its own error."""

import json
from typing import Any

import pytest
from msgspec import structs

from apportion_schemas import (
    Ask,
    Event,
    InvalidEvent,
    NodeReported,
    NotEnabledEvent,
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
    """Return the event `GONE` as JSON, with these attributes replaced. None removes an
    attribute."""
    document = json.loads(encode(GONE)) | attributes
    if data is not None:
        document["data"] = data
    return json.dumps({k: v for k, v in document.items() if v is not None}).encode()


def test_the_unchanged_document_is_read() -> None:
    """The event that the other tests change is valid without their changes."""
    assert decode(wire(), subject=SUBJECT) == GONE


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[]", "Expected `object`"),
        (b'{"data":' + b"[" * 100_000, "nests deeper than 64 levels"),
        (b'{"data":' + b"[" * 64, "nests deeper than 64 levels"),
        (b'{"data":' + b"[" * 63, "truncated"),
        (b'{"data":"' + b"[" * 100, "truncated"),
        (b'{"data":"\\"' + b"[" * 100 + b'", "id": "\\', "truncated"),
        (wire(specversion="2.0"), "specversion is '2.0'"),
        (wire(schemaversion=1 << 16), "`int` <= 65535"),
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
    """Decoding a payload that is not a valid CloudEvent raises UnreadableEvent."""
    with pytest.raises(UnreadableEvent, match=says):
        decode(payload, subject=SUBJECT)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (wire(type="apportion.dev/PodMoved"), "not know the event type 'apportion.dev/PodMoved'"),
        (wire(type="PodGone"), "does not know"),
        (wire(schemaversion=2), "schemaversion 2 .* reads only up to 1; upgrade Apportion here"),
        (wire(schemaversion=2, specversion="2.0"), r"CloudEvents 2\.0"),
    ],
)
def test_unknown(payload: bytes, says: str) -> None:
    """An unknown event type or version raises UnknownEvent."""
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
    """Decoding an event of a known type raises InvalidEvent if its data is invalid or its subject
    is wrong."""
    with pytest.raises(InvalidEvent, match=f"PodGone: .*{says}"):
        decode(wire(data), subject=SUBJECT)


def test_deep_data() -> None:
    """An event that is nested deeper than 64 levels raises UnreadableEvent, whatever its type."""
    for depth in (63, 200, 900, 5_000):
        deep = b'{"uid":' + b"[" * depth + b"]" * depth + b"}"
        for document in (wire(), wire(type="apportion.dev/PodMoved"), wire(schemaversion=9)):
            payload = document.replace(b'{"uid": "uid-1"}', deep)
            with pytest.raises(UnreadableEvent, match="nests deeper than 64 levels"):
                decode(payload, subject=SUBJECT)


def test_what_no_operator_has_enabled_is_refused_before_anybody_looks_at_it() -> None:
    """If no operator has enabled an event's format, the event is refused for that reason, whatever
    else is wrong with it."""
    asked: list[tuple[str, int]] = []

    def legal(type_: str, version: int) -> bool:
        asked.append((type_, version))
        return False

    for change in ({}, {"data": 7}, {"traceparent": "00-1"}, {"specversion": "9"}, {"id": None}):
        with pytest.raises(NotEnabledEvent, match=r"^format 'PodGone@2' is not enabled on this"):
            decode(wire(schemaversion=2, **change), subject=SUBJECT, legal=legal)
    with pytest.raises(NotEnabledEvent, match="'PodMoved@1' is not enabled"):
        decode(wire(type="apportion.dev/PodMoved"), subject=SUBJECT, legal=legal)
    with pytest.raises(NotEnabledEvent, match=r"'evil\.dev/PodGone@1' is not enabled"):
        decode(wire(type="evil.dev/PodGone"), subject=SUBJECT, legal=legal)
    assert len(asked) == 7
    asked.clear()
    assert decode(wire(), subject=SUBJECT, legal=legal) == GONE
    assert asked == []


@pytest.mark.parametrize("amount", [-1, 1 << 25])
def test_an_absurd_amount(amount: int) -> None:
    """An amount out of range is refused when an event is written and when it is read."""
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
    """Encoding an event fails if readers would refuse the event."""
    with pytest.raises(InvalidEvent, match=r"^PodGone: "):
        encode(structs.replace(GONE, **change))


@pytest.mark.parametrize("total", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_has_not(total: float) -> None:
    """Encoding an event fails if it contains NaN or infinity, which JSON cannot represent."""
    score = Score(node="n", total=total)
    data = PodPlaced(pod="p", namespace="n", name="p", attempt=1, node="n", shares=(), score=score)
    with pytest.raises(InvalidEvent, match="total"):
        encode(structs.replace(GONE, data=data))


def test_an_event_that_no_stream_would_take() -> None:
    """Encoding an event fails if the event is larger than the stream allows."""
    labels = {f"label-{i}": "x" * 1024 for i in range(1100)}
    data = NodeReported(
        node="n",
        devices=(),
        host={"cpu_milli": 1, "memory_mib": 1, "labels": labels},  # type: ignore[arg-type]
    )
    with pytest.raises(InvalidEvent, match=f"the limit is {EVENT_BYTES_MAX}"):
        encode(structs.replace(GONE, data=data))


def test_a_refusal_may_be_for_a_reason_that_this_build_does_not_know() -> None:
    """A refusal reason that this build does not know is kept when the event is encoded again. A
    malformed reason is refused."""
    data = {"pod": "p", "namespace": "d", "name": "p", "reasons": {"VolumeNotBound": 3}, "nodes": 3}
    refused = {**json.loads(encode(GONE)), "type": "apportion.dev/PodRefused", "data": data}
    subject = subject_of(PodRefused(pod="p", namespace="d", name="p", reasons={}, nodes=0))
    event = decode(json.dumps(refused).encode(), subject=subject)
    assert json.loads(encode(event))["data"]["reasons"] == {"VolumeNotBound": 3}
    data["reasons"] = {"volume not bound": 3}
    with pytest.raises(InvalidEvent, match="volume not bound"):
        decode(json.dumps(refused).encode(), subject=subject)
