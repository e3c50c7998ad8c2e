"""Answers about the past: timeline, log, history, allocations and differences."""

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
    """The newest event at or before a point in time, and the event's own time."""

    revision: Everyone[int]
    time: Everyone[str]


class Bin(Answer, frozen=True):
    """Counts of events by type in a span of time; revisions are 0 if the span has no event."""

    from_time: Everyone[str]
    to_time: Everyone[str]
    first_revision: Everyone[int] = 0
    last_revision: Everyone[int] = 0
    counts: Everyone[dict[str, int]] = {}


class MarkRow(Answer, frozen=True):
    """A notable event; `type` is as in `Bin.counts`, and `sentence` joins the `parts`."""

    revision: Everyone[int]
    time: Everyone[str]
    kind: Everyone[str]
    sentence: EventText[str] = ""
    type: Everyone[str] = ""
    parts: EachItem[tuple[str | Part, ...]] = ()


class TimelineAnswer(Answer, frozen=True):
    """The ledger as a timeline: its span, event counts per bin, and notable events."""

    revision: Everyone[int]
    first_revision: Everyone[int]
    first_time: Everyone[str]
    last_time: Everyone[str]
    bins: Everyone[tuple[Bin, ...]]
    marks: Everyone[tuple[MarkRow, ...]]


class LogRow(Answer, frozen=True):
    """One event as a sentence, with the facts behind that sentence.

    `type` is empty if this build does not know the event. `sentence` is `parts`, in which names are
    marked, followed by `clauses` joined by semicolons. The first `own` parts name the pod and
    repeat the type. `namespaces` are those that the event concerns: none for a cluster event, an
    empty one if the owner is unknown. `healthy` and `reason` are the new health of a device;
    `priority` is that of an evicted pod."""

    revision: Everyone[int]
    time: Everyone[str]
    type: Everyone[str]
    subject: OrEmpty[str]
    source: OrEmpty[str]
    sentence: EventText[str] = ""
    namespaces: Namespaces = ()
    parts: tuple[str | Part, ...] = ()
    own: int = 0
    clauses: tuple[str, ...] = ()
    healthy: bool | None = None
    reason: People[str] = ""
    priority: int = 0


class LogPage(Answer, frozen=True):
    """Events, newest first. `continue` leads to older events; empty on the last page."""

    revision: Everyone[int]
    items: Everyone[tuple[LogRow, ...]]
    next: Everyone[str] = field(default="", name="continue")


class LogEntry(Answer, frozen=True):
    """One event as it is in the ledger; `event` is None if its bytes are not JSON."""

    revision: Everyone[int]
    row: Everyone[LogRow]
    event: Raw | None = None


HistoryRow = LogRow  # one fact in the history of a pod, a node or a device


class HistoryPage(Answer, frozen=True):
    """The history of a name, oldest event first; `uids` are the pods that had it, newest first."""

    revision: Everyone[int]
    items: Everyone[tuple[HistoryRow, ...]]
    uids: Everyone[tuple[str, ...]] = ()
    next: Everyone[str] = field(default="", name="continue")


class PodName(Answer, frozen=True):
    """The name of a pod that exists or existed."""

    namespace: Namespace
    name: str


class PodNames(Answer, frozen=True):
    """The namespaces in which a pod of this name exists or existed, in order."""

    revision: Everyone[int]
    items: OwnItems[tuple[PodName, ...]]


class WhoRow(Answer, frozen=True):
    """One share and its pod; `to_revision` is 0 while the share is allocated."""

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
    to_revision: Everyone[int]
    to_time: Everyone[str]
    decision_revision: Everyone[int]


class WhoPage(Answer, frozen=True):
    """The pods with shares of a device or node from `since` to `revision`."""

    revision: Everyone[int]
    since: Everyone[int]
    items: Everyone[tuple[WhoRow, ...]]
    time: Everyone[str] = ""
    next: Everyone[str] = field(default="", name="continue")


class Side(Answer, frozen=True, omit_defaults=True):
    """One side of a difference; all fields are empty if the object did not exist.

    `state` is a code. `reason` is why a device failed, or why it or its node was cordoned. `cards`
    is the device count of a node that joined. Placements have `node` and `shares`; limits, settings
    and the policy have `value`."""

    state: Everyone[str] = ""
    reason: People[str] = ""
    cards: Everyone[int | None] = None
    node: Everyone[str] = ""
    shares: Everyone[tuple[Share, ...]] = ()
    value: Everyone[str] = ""


class DiffRow(Answer, frozen=True):
    """One object that differs, the event that changed it, and the event's author.

    `what` is the aspect that changed. `before` and `after` are `was` and `now` as text; `sentence`
    is built as in `LogRow`. `revision` is 0 if the event is unknown. `cause` is why a pod lost its
    node."""

    name: Names[str]
    what: Everyone[str]
    was: Everyone[Side] = Side()
    now: Everyone[Side] = Side()
    before: Made[str] = ""
    after: Made[str] = ""
    revision: Everyone[int] = 0
    time: Everyone[str] = ""
    by: People[str] = ""
    sentence: EventText[str] = ""
    parts: EachItem[tuple[str | Part, ...]] = ()
    clauses: EachItem[tuple[str, ...]] = ()
    cause: People[str] = ""


class DiffAnswer(Answer, frozen=True):
    """Differences between two points in time; `more` counts rows that were cut off."""

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
    more: Everyone[dict[str, int]] = {}
