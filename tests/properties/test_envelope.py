"""Properties of encoded events: encoding can be reversed, and other bytes are refused."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from apportion_schemas import CATALOGUE, Event, EventError, EventType, decode, encode, subject_of
from apportion_schemas.catalogue import token, untoken
from tests.properties.event_strategies import events, events_of

SUBJECTS = st.sampled_from(["apportion.v1.workload.a", "apportion.v1.placement.n", "", "*"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def only_event_errors(payload: bytes, subject: str) -> None:
    """Decode the payload. Any exception except `EventError` fails the test."""
    with contextlib.suppress(EventError):
        decode(payload, subject=subject)


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.name)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_event_comes_back(row: EventType, data: st.DataObject) -> None:
    """Every encoded event decodes to an equal event, which encodes to the same bytes."""
    event = data.draw(events_of(row))
    written = encode(event)
    read = decode(written, subject=subject_of(event.data))
    assert read == event
    assert encode(read) == written


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), SUBJECTS)
@example(b'{"data":' + b"[" * 100_000, "")
@example(b'{"data":' * 5_000, "")
def test_arbitrary_bytes(payload: bytes, subject: str) -> None:
    """Decoding arbitrary bytes may only raise `EventError`."""
    only_event_errors(payload, subject)


@settings(max_examples=300, deadline=None)
@given(events(), st.data())
def test_damaged_events(event: Event, data: st.DataObject) -> None:
    """Decoding an event with changed, missing or added bytes may only raise `EventError`."""
    written = bytearray(encode(event))
    start = data.draw(st.integers(0, len(written)))
    end = data.draw(st.integers(start, min(len(written), start + 8)))
    written[start:end] = data.draw(st.binary(max_size=8))
    only_event_errors(bytes(written), subject_of(event.data))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CATALOGUE), JSON, st.dictionaries(st.text(max_size=12), JSON, max_size=2))
def test_any_json_as_data(row: EventType, data: Any, more: dict[str, Any]) -> None:
    """If the envelope is valid but its data is any JSON, decoding may only raise `EventError`."""
    document = {
        "specversion": "1.0", "type": row.type, "schemaversion": row.version, "id": "1",
        "source": "s", "time": "2026-03-01T09:30:00Z", "data": data, **more,
    }  # fmt: skip
    only_event_errors(json.dumps(document).encode(), "apportion.v1.workload.a")


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_a_name_is_one_token(name: str) -> None:
    """Any name can be encoded as one NATS subject token without wildcards, and decoded to the same
    name."""
    encoded = token(name)
    assert untoken(encoded) == name
    assert encoded
    assert not set(encoded) & set(".*> \t\r\n")
