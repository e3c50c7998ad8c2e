"""Tests of the limits on waiting agent requests. An intake has one queue per node, called a
lane."""

from dataclasses import dataclass

import pytest

from apportion.intake import taking as lanes_module
from apportion.intake.taking import (
    BYTES_AN_HOUR,
    BYTES_OF_ALL_MAX,
    LOOKED_AT,
    RECORDS_AN_HOUR,
    UNANSWERED_BYTES_MAX,
    Lane,
    Lanes,
)
from apportion_schemas import Event, UsageRecorded
from apportion_schemas.usage import ShareUsed


@dataclass
class Sent:
    """A fake request to the intake. It discards the intake's answer."""

    payload: bytes
    subject: str = ""
    reply: str = ""

    async def answer(self, payload: bytes) -> None:
        """Discard the answer."""


LARGEST = Sent(bytes(UNANSWERED_BYTES_MAX))


def test_a_lane_and_all_of_them_together_hold_no_more_than_their_share() -> None:
    """The intake limits waiting requests per node and in total. Each answer makes room for one
    more."""
    lanes = Lanes()
    many = BYTES_OF_ALL_MAX // UNANSWERED_BYTES_MAX
    for number in range(many):
        lane = lane_of(lanes, f"n{number}")
        assert lane.put(LARGEST)
        assert not lane.put(Sent(b"x"))
    first, other = lane_of(lanes, "n0"), lane_of(lanes, "other")
    assert not other.put(Sent(b"x"))
    assert first.next() is LARGEST
    first.over(LARGEST)
    assert other.put(Sent(b"x"))
    assert lanes.unanswered == many


def test_room_for_one_more_node_is_made_without_a_look_at_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If there are as many request queues as allowed, the intake removes an idle one for a new
    node. It checks a few queues at a time, and never removes one with waiting requests."""
    monkeypatch.setattr(lanes_module, "LANES_MAX", 1_000)
    looked: list[str] = []
    idle = Lane.idle

    def counted(lane: Lane, now_s: float) -> bool:
        looked.append(lane.node)
        return idle(lane, now_s)

    monkeypatch.setattr(Lane, "idle", counted)
    lanes = Lanes()
    for number in range(1_000):
        lane = lane_of(lanes, f"n{number}")
        assert number == 7 or lane.put(Sent(b"x"))
    tries = 0
    while lanes.of("other", 1.0) is None:
        tries += 1
        assert len(looked) == LOOKED_AT * tries
    assert looked == [f"n{number}" for number in range(8)]
    assert lanes.unanswered == 999
    assert not any(lane_of(lanes, f"n{number}").idle(1.0) for number in range(1_000) if number != 7)


def lane_of(lanes: Lanes, node: str) -> Lane:
    lane = lanes.of(node, 0.0)
    assert lane is not None
    return lane


def test_a_node_appends_so_many_records_and_bytes_in_an_hour() -> None:
    """Each node may append a limited number of records and of bytes per hour."""
    lane = lane_of(Lanes(), "n0")
    small = sum(lane.may_append(1, 0.0) for _ in range(2 * RECORDS_AN_HOUR))
    assert small == RECORDS_AN_HOUR
    large = lane_of(Lanes(), "n0")
    size = BYTES_AN_HOUR // 60
    assert sum(large.may_append(size, 0.0) for _ in range(200)) == 60
    assert sum(large.may_append(size, 3_600.0) for _ in range(200)) == 60


def test_the_same_seconds_are_not_recorded_twice() -> None:
    """The intake refuses a usage report that overlaps in time with a recorded one. It accepts a
    retry of the same event."""

    def said(time: str, identity: str) -> str:
        share = ShareUsed(
            pod="p", namespace="d", name="p", container="c", device="g0", seconds=3_600,
            memory_mib=1, memory_mib_seconds=1, memory_mib_peak=1,
        )  # fmt: skip
        data = UsageRecorded(node="n0", seconds=3_600, shares=(share,))
        event = Event(id=identity, source="agent/n0", time=f"2026-01-01T{time}:00Z", data=data)
        return lane.used_twice(event, data)

    lane = lane_of(Lanes(), "n0")
    assert said("01:00", "a") == said("01:00", "a") == said("02:00", "b") == ""
    assert "already" in said("02:00", "c")
    assert "already" in said("01:00", "d")
    assert said("03:00", "e") == ""
