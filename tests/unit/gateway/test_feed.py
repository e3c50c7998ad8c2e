"""Test the feed: pods by name, the window of newest events, and waiting for a revision."""

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
    """Apply the events to the feed as a reader does."""
    for data in payloads:
        event = event_of(data)
        feed.apply(Record(feed.state.revision + 1, subject_of(data), encode(event)), event)


def test_pods_by_name() -> None:
    """The feed resolves a pod name to the newest existing pod with that name."""
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
    """A refused event does not change which pod a name resolves to."""
    feed = Feed()
    tell(feed, pod("u1", name="a"), pod("u1", name="b"))
    assert feed.pod("default/b") is None
    tell(feed, PodGone(uid="u1"))
    assert feed.pod("default/a") is None


def test_window() -> None:
    """The window returns the records after a revision, up to a limit. It returns None if the window
    starts later than that."""
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
    """The window of newest events has a bounded size in bytes."""
    feed = Feed(size_bytes=2_000)
    tell(feed, *(pod(f"u{number}", owner="x" * 900) for number in range(5)))
    assert feed.after(0, 10) is None
    behind = feed.after(4, 10)
    assert behind is not None
    assert [record.revision for record in behind] == [5]


def test_bytes_that_are_no_event_are_in_the_window_too() -> None:
    """The window of newest events includes records that are not events."""
    feed = Feed()
    feed.refuse(Record(1, "apportion.v1.workload.x", b"?"), "not JSON")
    assert feed.refused_count == 1
    behind = feed.after(0, 10)
    assert behind is not None
    assert [record.payload for record in behind] == [b"?"]


async def test_reached() -> None:
    """Waiting for a revision ends once that revision is folded."""
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
    """A cancelled wait for a revision leaves no waiter in the feed."""
    feed = Feed()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await feed.reached(1 << 50)
    tell(feed, pod("u1"))
    assert feed._waiting is None
