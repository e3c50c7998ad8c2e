"""What each node's agent has asked and was not answered yet: a bounded, paced queue for each.

Invariants: a lane holds no more than its share whatever is sent to it, nor all of them together
more than a process has, and what does not fit is dropped before anybody reads it; so a flood fills
the lane of its own node alone. What a request costs does not depend on how many nodes there are.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from datetime import datetime
from itertools import islice
from typing import Final

from apportion.core.intake.buckets import Bucket
from apportion.runtime.ledger.port import Request
from apportion_schemas import Event, UsageRecorded

UNANSWERED_MAX: Final = 64
"""Of one node: twice what its agent ever has under way."""
UNANSWERED_BYTES_MAX: Final = 4 << 20
BYTES_OF_ALL_MAX: Final = 256 << 20
"""Of all nodes together: whoever speaks for every node could fill as many lanes as it likes."""
RATE: Final = 100.0
"""Events of one node each second, for longer than a burst."""
BURST: Final = 500.0
"""Twice the pods that a kubelet runs, all at once."""
CHANGES_RATE: Final = 1.0
CHANGES_BURST: Final = 128.0
"""Changes of a node's inventory: all of its cards may fail at once, and recover."""
RECORDS_AN_HOUR: Final = 10_000
BYTES_AN_HOUR: Final = 16 << 20
"""What is appended of one node in an hour: sixty times what a kubelet full of short jobs makes."""
BYTES_OF_A_TOKEN: Final = 4_096
LANES_MAX: Final = 20_000
"""More than the nodes of the largest cluster; idle ones make room for others."""
LOOKED_AT: Final = 4
"""So many of those that asked longest ago are looked at for one that is idle."""
OVERLAP_S: Final = 120.0
"""Clocks are set, and an agent rounds; records of one container overlap by no more."""
USED_MAX: Final = 4_096
HELD_S: Final = 600.0
"""For so long it is remembered that a report was held."""


class Room:
    """How many bytes the lanes hold together, of how many requests."""

    taken = 0
    unanswered = 0


class Lane:
    """The requests of one node, in the order in which they came."""

    def __init__(self, node: str, now_s: float, room: Room) -> None:
        self.node = node
        self.held = ""
        self.held_s = 0.0
        self.work: asyncio.Task[None] | None = None
        self._waiting: deque[Request] = deque()
        self._bucket = Bucket(RATE, BURST, now_s)
        self._changes = Bucket(CHANGES_RATE, CHANGES_BURST, now_s)
        self._records = Bucket(RECORDS_AN_HOUR / 3_600, RECORDS_AN_HOUR, now_s)
        self._size = Bucket(BYTES_AN_HOUR / 3_600, BYTES_AN_HOUR, now_s)
        self._used: dict[tuple[str, ...], tuple[float, str]] = {}
        self._unanswered = 0
        self._bytes = 0
        self._room = room

    def put(self, request: Request) -> bool:
        """Queue it, if there is room."""
        size = len(request.payload)
        if self._unanswered >= UNANSWERED_MAX or self._bytes + size > UNANSWERED_BYTES_MAX:
            return False
        if self._room.taken + size > BYTES_OF_ALL_MAX:
            return False
        self._unanswered += 1
        self._bytes += size
        self._room.unanswered += 1
        self._room.taken += size
        self._waiting.append(request)
        return True

    def next(self) -> Request | None:
        """The one that waits longest; whoever takes it says when it is `over`."""
        return self._waiting.popleft() if self._waiting else None

    def over(self, request: Request) -> None:
        """It was answered, or never will be."""
        self._unanswered -= 1
        self._bytes -= len(request.payload)
        self._room.unanswered -= 1
        self._room.taken -= len(request.payload)

    def pace(self, request: Request, now_s: float) -> float:
        """For how many seconds to wait before it is read: by number, and by size."""
        return self._bucket.take(1 + len(request.payload) / BYTES_OF_A_TOKEN, now_s)

    def may_change(self, now_s: float) -> bool:
        """Whether its inventory may change again already."""
        return self._changes.may_take(1, now_s)

    def may_append(self, size: int, now_s: float) -> bool:
        """Whether so many bytes more are within what the node may append in an hour."""
        return self._records.may_take(1, now_s) and self._size.may_take(size, now_s)

    def used_twice(self, event: Event, data: UsageRecorded) -> str:
        """Which container's use of a device overlaps with an earlier record, in words, or nothing.

        The same event may come again, as when its answer was lost. What is remembered here is of
        one intake's life.
        """
        ends_s = datetime.fromisoformat(event.time).timestamp()
        for share in data.shares:
            key = share.pod, share.container, share.device, str(share.instance)
            before_s, identity = self._used.get(key, (0.0, ""))
            begins_s = ends_s - min(share.seconds, data.seconds)
            if identity and identity != event.id and begins_s < before_s - OVERLAP_S:
                return f"the seconds of pod {share.pod} on {share.device} are recorded already"
        for share in data.shares:
            key = share.pod, share.container, share.device, str(share.instance)
            self._used.pop(key, None)
            self._used[key] = ends_s, event.id
        while len(self._used) > USED_MAX:
            del self._used[next(iter(self._used))]
        return ""

    def idle(self, now_s: float) -> bool:
        """Whether nothing would be forgotten with it."""
        held = self.held and now_s - self.held_s <= HELD_S
        buckets = (self._bucket, self._changes, self._records, self._size)
        full = all(each.full(now_s) for each in buckets)
        return full and not held and not self._unanswered


class Lanes:
    """The lane of each node that asked lately, in the order in which they last did."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, Lane] = OrderedDict()
        self._room = Room()

    def of(self, node: str, now_s: float) -> Lane | None:
        """Its lane; None where there are too many, which only an intruder could bring about."""
        lane = self._lanes.get(node)
        if lane is None:
            if len(self._lanes) >= LANES_MAX:
                # One that is idle of those that asked longest ago makes room; others go to the end.
                for oldest in list(islice(self._lanes.values(), LOOKED_AT)):
                    if oldest.idle(now_s):
                        del self._lanes[oldest.node]
                        break
                    self._lanes.move_to_end(oldest.node)
            if len(self._lanes) >= LANES_MAX:
                return None
            lane = self._lanes[node] = Lane(node, now_s, self._room)
        self._lanes.move_to_end(node)
        return lane

    @property
    def unanswered(self) -> int:
        """How many requests wait, of all nodes together."""
        return self._room.unanswered
