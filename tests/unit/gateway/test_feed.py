"""Tests of the feed, which keeps the current state and the newest events, and lets requests wait
for a revision."""

import asyncio

import pytest
from msgspec import structs

from apportion.core.forecast.line import Line
from apportion.core.ledger import fold
from apportion.core.ledger.moments import SECOND, text_of
from apportion.core.ledger.rationale import placed_of
from apportion.core.ledger.snapshot import restore, take
from apportion.gateway.feed import Feed
from apportion.runtime.ledger.port import Record
from apportion_schemas import PodGone, encode
from apportion_schemas.catalogue import subject_of
from apportion_schemas.quantities import Payload
from tests.support.ledger_of import event_of
from tests.support.pods import pod
from tests.support.story import A30S, Story


def tell(feed: Feed, *payloads: Payload) -> None:
    """Pass the events to the feed as a ledger reader does."""
    for data in payloads:
        event = event_of(data)
        feed.apply(Record(feed.state.revision + 1, subject_of(data), encode(event)), event)


def test_pods_by_name() -> None:
    """The feed finds the newest existing pod with a given name."""
    feed = Feed()
    tell(feed, pod("u1", name="a"), pod("u2", name="a"))
    found = feed.pod("default/a")
    assert found
    assert found.uid == "u2"
    tell(feed, PodGone(uid="u2"))
    found = feed.pod("default/a")
    assert found
    assert found.uid == "u1"
    tell(feed, PodGone(uid="u1"))
    assert feed.pod("default/a") is None


def test_looking_back_gives_the_same_forecast() -> None:
    """After a restart, a feed that reads all old events makes the same forecast as a feed that
    never stopped. Without the old events, the feed has too little history for a forecast."""
    story = Story(40)
    without = Feed(restore(take(story.live.state))).forecast(story.last)
    assert without
    assert without.unknown == "little-history"
    found = story.restarted().forecast(story.last)
    assert found
    assert found.median
    assert found == story.live.forecast(story.last)


def test_history_has_a_beginning() -> None:
    """A forecast states the time of the oldest event that the feed has learned from."""
    story = Story(40)
    found = story.restarted(start=50).forecast(story.last)
    assert found
    assert found.since == text_of((1_700_000_000 + 50 * 60) * SECOND)


def test_looking_back_corrects_what_the_fold_refused() -> None:
    """While a feed reads old events, a placement that the fold refused does not count as a started
    pod, even if the state no longer lists the refused event."""
    story = Story(40)
    runs = story.live.state.pods["p38"]
    assert runs.placement
    lost = structs.replace(placed_of(runs, runs.placement), pod=story.last.uid, attempt=9)
    story.record(lost)
    assert story.live.state.refused_count == 1
    for forgotten in (False, True):
        if forgotten:
            story.live.state.refused_events.clear()
        found = story.restarted().forecast(story.last)
        assert found
        assert found.unknown == "" or forgotten
        assert found.unknown != "no-devices"


def test_looking_back_ends_at_the_newest_event() -> None:
    """While a feed reads old events, it learns from each newly arriving event exactly once."""
    story = Story(30)
    feed = Feed(restore(take(story.live.state)))
    learn, before = feed.look_back(), len(story.records)
    for record in story.records[:20]:
        assert learn(record)
    for _ in range(3):
        story.play(PodGone(uid=story.last.uid), pod(f"new{len(story.records)}", shape=A30S))
    for record in story.records[before:]:
        feed.take(record)
    assert not [learn(record) for record in story.records[20:]][-1]
    assert feed.forecast(story.last) == story.live.forecast(story.last)


def test_undecided_pod_has_waited_too() -> None:
    """For a pod that has been undecided for a day, a history of short waits gives no forecast."""
    story = Story(40)
    story.record(pod("undecided", shape=A30S))
    soon = story.live.forecast(story.last)
    assert soon
    assert soon.median
    other = pod("undecided-too", shape=A30S)
    late = event_of(other, text_of((1_700_000_000 + 86_400 * 2) * SECOND))
    story.live.apply(Record(len(story.records) + 1, subject_of(other), encode(late)), late)
    found = story.live.forecast(story.live.state.pods["undecided"])
    assert found
    assert found.unknown in ("few-started", "little-history")


def test_forecasts_in_a_copy_change_nothing() -> None:
    """Forecasts in another state count its pods, and leave those of the feed as they are."""
    story = Story(40)
    other = restore(take(story.live.state))
    before = story.live.forecast(story.last)
    assert before
    found = story.live.forecasts_in(other)
    assert found(other.pods[story.last.uid]) == before
    for uid in list(other.pods):
        if uid != story.last.uid:
            fold.apply(other, other.revision + 1, event_of(PodGone(uid=uid)))
    alone = story.live.forecasts_in(other)(other.pods[story.last.uid])
    assert alone
    assert alone.median < before.median
    assert story.live.forecast(story.last) == before


def test_a_fault_in_a_copy_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the forecasts for a plan fail, the plan has none, and the fault is logged once."""

    def fail(*_: object) -> None:
        raise KeyError

    story = Story(20)
    found = story.live.forecasts_in(restore(take(story.live.state)))
    monkeypatch.setattr(Line, "forecast", fail)
    assert [found(story.last) for _ in range(3)] == [None] * 3
    assert len(caplog.records) == 1


@pytest.mark.parametrize("step", ["observe", "forecast", "meet"])
def test_fault_of_a_forecast_stops_nothing_else(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """If the forecast code fails, the feed goes on folding and answers without forecasts."""

    def fail(*_: object) -> None:
        raise KeyError

    story = Story(20)
    feed = Feed(restore(take(story.live.state)))
    monkeypatch.setattr(Line, step, fail)
    learn = feed.look_back()
    assert not [learn(record) for record in story.records][-1]
    other = restore(take(story.live.state))
    assert feed.forecasts_in(other)(other.pods[story.last.uid]) is None
    story.record(PodGone(uid=story.last.uid))
    feed.take(story.records[-1])
    assert feed.state.revision == len(story.records)
    assert feed.forecast(story.last) is None or step == "observe"


def test_refused_event_leaves_names_alone() -> None:
    """If the fold refuses an event, the feed still finds pods by the same names."""
    feed = Feed()
    tell(feed, pod("u1", name="a"), pod("u1", name="b"))
    assert feed.pod("default/b") is None
    tell(feed, PodGone(uid="u1"))
    assert feed.pod("default/a") is None


def test_window() -> None:
    """The feed returns the records after a given revision, up to a limit. It returns None if it has
    already dropped some of these records."""
    feed = Feed(events=3)
    tell(feed, *(pod(f"u{number}") for number in range(5)))
    assert feed.after(1, 10) is None
    behind = feed.after(2, 10)
    assert behind is not None
    assert [record.revision for record in behind] == [3, 4, 5]
    behind = feed.after(3, 1)
    assert behind is not None
    assert [record.revision for record in behind] == [4]
    assert feed.after(5, 10) == []
    assert feed.after(99, 10) == []


def test_window_is_bounded_in_bytes() -> None:
    """The feed keeps the newest events up to a total size in bytes."""
    feed = Feed(size_bytes=2_000)
    tell(feed, *(pod(f"u{number}", owner="x" * 900) for number in range(5)))
    assert feed.after(0, 10) is None
    behind = feed.after(4, 10)
    assert behind is not None
    assert [record.revision for record in behind] == [5]


def test_bytes_that_are_no_event_are_in_the_window_too() -> None:
    """The newest events that the feed keeps include records that are no valid events."""
    feed = Feed()
    feed.refuse(Record(1, "apportion.v1.workload.x", b"?"), "not JSON")
    assert feed.refused_count == 1
    behind = feed.after(0, 10)
    assert behind is not None
    assert [record.payload for record in behind] == [b"?"]


async def test_reached() -> None:
    """A request that waits for a revision continues when the revision is folded."""
    feed = Feed()
    tell(feed, pod("u1"))
    await feed.reached(1)
    waiting = [asyncio.create_task(feed.reached(revision)) for revision in (2, 3, 3)]
    await asyncio.sleep(0)
    tell(feed, pod("u2"))
    await waiting[0]
    assert not waiting[1].done()
    tell(feed, pod("u3"))
    await asyncio.gather(*waiting)


async def test_given_up_wait_leaves_nothing_behind() -> None:
    """If a request that waits for a revision is cancelled, the feed forgets the request."""
    feed = Feed()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await feed.reached(1 << 50)
    tell(feed, pod("u1"))
    assert feed._waiting is None
