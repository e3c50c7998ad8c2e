"""Tests of the feed, which keeps the current state and the newest events, and lets requests wait
for a revision."""

import asyncio

import pytest

from apportion.gateway.feed import Feed
from apportion.runtime.ledger.port import Record
from apportion_schemas import PodGone, encode
from apportion_schemas.catalogue import subject_of
from apportion_schemas.quantities import Payload
from tests.support.ledger_of import event_of
from tests.support.pods import pod


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
