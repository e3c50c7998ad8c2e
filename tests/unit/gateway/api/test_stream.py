"""Server-sent events: one record, one event, whatever its bytes are."""

import pytest

from apportion.gateway.api.stream import encoded
from apportion.runtime.ledger.port import Record
from apportion_schemas import encode
from tests.support.ledger_of import event_of
from tests.support.pods import pod


def test_event() -> None:
    """Revision, bare type, and the CloudEvent as it stands in the ledger."""
    payload = encode(event_of(pod("u1")))
    text = encoded(Record(7, "apportion.v1.workload.u1", payload)).decode()
    assert text == f"id: 7\nevent: PodSubmitted\ndata: {payload.decode()}\n\n"


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff\xfe", b"a\nb\r\nc", b'{"type":"x\\nid: 9"}', b'{"type":7}'],
)
def test_bytes_that_are_no_event(payload: bytes) -> None:
    """Nothing in a payload can end the event early or forge another."""
    lines = encoded(Record(7, "s", payload)).decode().split("\n")
    assert lines[:2] == ["id: 7", "event: unreadable"]
    assert lines[-2:] == ["", ""]
    assert all(line.startswith("data: ") for line in lines[2:-2])
    assert "\r" not in "".join(lines)


def test_separators_that_json_allows_stay_data() -> None:
    """A line separator of Unicode inside a JSON text must not cut the text in two."""
    payload = encode(event_of(pod("u1", owner="a\u2028b\u0085c")))
    lines = encoded(Record(7, "s", payload)).decode().split("\n")
    assert lines[2] == f"data: {payload.decode()}"
