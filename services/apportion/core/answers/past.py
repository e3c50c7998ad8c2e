"""Answers about the past: timeline, log, history, earlier shares of a device, and differences."""

from typing import Final

from msgspec import Raw, field

from apportion.core.answers.reads import Answer, Part
from apportion.core.answers.visibility import (
    EachItem,
    EventText,
    Everyone,
    Made,
    Names,
    Namespace,
    Namespaces,
    OrEmpty,
    OwnItems,
    People,
)
from apportion_schemas import Share

READY: Final = "ready"  # the state of a node that takes pods


class MomentAnswer(Answer, frozen=True):
    """The newest event at or before the requested time, with the time of that event."""

    revision: Everyone[int]
    time: Everyone[str]


class Bin(Answer, frozen=True):
    """One bar of the timeline: the number of events of each type."""

    from_time: Everyone[str]
    to_time: Everyone[str]
    first_revision: Everyone[int] = 0  # 0 without events
    last_revision: Everyone[int] = 0
    counts: Everyone[dict[str, int]] = {}


class MarkRow(Answer, frozen=True):
    """A notable event of the timeline."""

    revision: Everyone[int]
    time: Everyone[str]
    kind: Everyone[str]
    sentence: EventText[str] = ""  # joins `parts`
    type: Everyone[str] = ""  # a key of `Bin.counts`
    parts: EachItem[tuple[str | Part, ...]] = ()


class TimelineAnswer(Answer, frozen=True):
    """The timeline of the ledger: its first and last event, bars of counts, and notable events."""

    revision: Everyone[int]
    first_revision: Everyone[int]
    first_time: Everyone[str]
    last_time: Everyone[str]
    bins: Everyone[tuple[Bin, ...]]
    marks: Everyone[tuple[MarkRow, ...]]


class LogRow(Answer, frozen=True):
    """One event of the ledger as a sentence, with the facts behind it."""

    revision: Everyone[int]
    time: Everyone[str]
    type: Everyone[str]  # empty if this build does not know the event
    subject: OrEmpty[str]
    source: OrEmpty[str]
    sentence: EventText[str] = ""
    namespaces: Namespaces = ()  # none for a cluster event
    parts: tuple[str | Part, ...] = ()
    own: int = 0  # how many of the first parts name the pod
    clauses: tuple[str, ...] = ()  # joined by semicolons
    healthy: bool | None = None  # new health of a device
    reason: People[str] = ""
    priority: int = 0  # of an evicted pod


class LogPage(Answer, frozen=True):
    """A page of events, newest first. `continue` leads to older events; empty on the last page."""

    revision: Everyone[int]
    items: Everyone[tuple[LogRow, ...]]
    next: Everyone[str] = field(default="", name="continue")


class LogEntry(Answer, frozen=True):
    """One event, as a row and as it is in the ledger; `event` is None if its bytes are not JSON."""

    revision: Everyone[int]
    row: Everyone[LogRow]
    event: Raw | None = None


HistoryRow = LogRow  # one fact in the history of a pod, a node or a device


class HistoryPage(Answer, frozen=True):
    """Events about one name, oldest first."""

    revision: Everyone[int]
    items: Everyone[tuple[HistoryRow, ...]]
    uids: Everyone[tuple[str, ...]] = ()  # pods that had the name, newest first
    next: Everyone[str] = field(default="", name="continue")


class PodName(Answer, frozen=True):
    """The namespace and name of a pod that exists or existed."""

    namespace: Namespace
    name: str


class PodNames(Answer, frozen=True):
    """The pods, live or past, that have this name in any namespace, in order of namespace."""

    revision: Everyone[int]
    items: OwnItems[tuple[PodName, ...]]


class WhoRow(Answer, frozen=True):
    """A pod's share, with the times at which it was allocated and freed."""

    namespace: Namespace
    pod: str
    uid: str
    container: str
    device: Everyone[str]
    node: Everyone[str]
    memory_mib: Everyone[int]
    cores: Everyone[int]
    from_revision: Everyone[int]
    from_time: Everyone[str]
    to_revision: Everyone[int]  # 0 while the share is allocated
    to_time: Everyone[str]
    decision_revision: Everyone[int]


class WhoPage(Answer, frozen=True):
    """A page of the shares that existed on a device or node between two revisions."""

    revision: Everyone[int]
    since: Everyone[int]
    items: Everyone[tuple[WhoRow, ...]]
    time: Everyone[str] = ""
    next: Everyone[str] = field(default="", name="continue")


class Side(Answer, frozen=True, omit_defaults=True):
    """An object before or after a span of time; all fields are empty if it did not exist."""

    state: Everyone[str] = ""  # a code
    reason: People[str] = ""  # why it failed or was cordoned
    cards: Everyone[int | None] = None  # devices of a node that joined
    node: Everyone[str] = ""
    shares: Everyone[tuple[Share, ...]] = ()
    families: dict[str, str] = {}  # of the devices of each container
    value: Everyone[str] = ""  # of limits, settings and the policy


class DiffRow(Answer, frozen=True):
    """An object that differs between two points in time, and the event that changed it."""

    name: Names[str]
    what: Everyone[str]  # the aspect that changed
    was: Everyone[Side] = Side()
    now: Everyone[Side] = Side()
    before: Made[str] = ""  # `was` as text
    after: Made[str] = ""  # `now` as text
    revision: Everyone[int] = 0  # 0 if the event is unknown
    time: Everyone[str] = ""
    by: People[str] = ""  # author of the event
    sentence: EventText[str] = ""
    parts: EachItem[tuple[str | Part, ...]] = ()
    clauses: EachItem[tuple[str, ...]] = ()
    cause: People[str] = ""  # why a pod lost its node


class DiffAnswer(Answer, frozen=True):
    """The differences between two points in time."""

    revision: Everyone[int]
    begin: Everyone[MomentAnswer] = field(name="from")
    end: Everyone[MomentAnswer] = field(name="to")
    placements: Everyone[tuple[DiffRow, ...]] = ()
    waiting: Everyone[tuple[DiffRow, ...]] = ()
    nodes: Everyone[tuple[DiffRow, ...]] = ()
    devices: Everyone[tuple[DiffRow, ...]] = ()
    limits: tuple[DiffRow, ...] = ()
    configuration: tuple[DiffRow, ...] = ()
    policy: Everyone[tuple[DiffRow, ...]] = ()
    more: Everyone[dict[str, int]] = {}  # rows left out of each list
