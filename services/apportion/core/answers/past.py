"""Answers about the past: what a moment means, what happened, who held what, what changed.

They stand beside `reads` and keep its rules: one definition for gateway and command line, amounts
with their unit, and the revision as of which each is."""

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

READY: Final = "ready"
"""The state of a node that takes pods."""


class MomentAnswer(Answer, frozen=True):
    """The newest event at or before a moment, and when it was."""

    revision: Everyone[int]
    time: Everyone[str]


class Bin(Answer, frozen=True):
    """What happened in a span of time, by type of event; no revisions where nothing did."""

    from_time: Everyone[str]
    to_time: Everyone[str]
    first_revision: Everyone[int] = 0
    last_revision: Everyone[int] = 0
    counts: Everyone[dict[str, int]] = {}


class MarkRow(Answer, frozen=True):
    """An event that people look for on a line of time; `type` as in `Bin.counts`, and `sentence` is
    that of `parts`."""

    revision: Everyone[int]
    time: Everyone[str]
    kind: Everyone[str]
    sentence: EventText[str] = ""
    type: Everyone[str] = ""
    parts: EachItem[tuple[str | Part, ...]] = ()


class TimelineAnswer(Answer, frozen=True):
    """The whole ledger at a glance: from when to when, how much in each bin, and the marks."""

    revision: Everyone[int]
    first_revision: Everyone[int]
    first_time: Everyone[str]
    last_time: Everyone[str]
    bins: Everyone[tuple[Bin, ...]]
    marks: Everyone[tuple[MarkRow, ...]]


class LogRow(Answer, frozen=True):
    """One event in words, and the facts of which they are made.

    `type` is empty where no build reads it. The sentence is that of `parts`, in which names are
    told apart, and then `clauses` with semicolons between them; `own` parts at the front name the
    pod that it is about, and say what its type says. `namespaces` are those that it is about, none
    where it is about the cluster; an empty one is that of something of which nobody knows whose it
    is. Of the health of a device `healthy` and `reason` say what it became; `priority` is that of a
    pod that is evicted."""

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
    """Events, the newest first; older ones go on behind `continue`, which is empty at the end."""

    revision: Everyone[int]
    items: Everyone[tuple[LogRow, ...]]
    next: Everyone[str] = field(default="", name="continue")


class LogEntry(Answer, frozen=True):
    """One event as it stands in the ledger; `event` is None where its bytes are no JSON."""

    revision: Everyone[int]
    row: Everyone[LogRow]
    event: Raw | None = None


HistoryRow = LogRow
"""One fact of the story of a pod, a node or a device."""


class HistoryPage(Answer, frozen=True):
    """A story, the oldest fact first. `uids` are the pods that had the name, the newest first."""

    revision: Everyone[int]
    items: Everyone[tuple[HistoryRow, ...]]
    uids: Everyone[tuple[str, ...]] = ()
    next: Everyone[str] = field(default="", name="continue")


class PodName(Answer, frozen=True):
    """What a pod is called, or was."""

    namespace: Namespace
    name: str


class PodNames(Answer, frozen=True):
    """The namespaces where a pod of one name is or was, in order."""

    revision: Everyone[int]
    items: OwnItems[tuple[PodName, ...]]


class WhoRow(Answer, frozen=True):
    """One share and who held it, from the decision that gave it until it was freed.

    `to_revision` is 0 while it is held."""

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
    """Who held a device, or what of a node, from `since` to `revision`, by decisions."""

    revision: Everyone[int]
    since: Everyone[int]
    items: Everyone[tuple[WhoRow, ...]]
    time: Everyone[str] = ""
    next: Everyone[str] = field(default="", name="continue")


class Side(Answer, frozen=True, omit_defaults=True):
    """What of one thing was, or is; nothing where all is empty.

    `state` is a code, and `reason` why a device failed, or why it or its node was cordoned. A node
    that joined has so many `cards`. A placement has a `node` and `shares`; a limit, a setting and
    the policy have a `value`."""

    state: Everyone[str] = ""
    reason: People[str] = ""
    cards: Everyone[int | None] = None
    node: Everyone[str] = ""
    shares: Everyone[tuple[Share, ...]] = ()
    value: Everyone[str] = ""


class DiffRow(Answer, frozen=True):
    """What of one thing was, and is; by which event, and who is behind it.

    `what` is the side of it that changed; `before` and `after` are made from `was` and `now`, and
    `sentence` is that of `parts` and `clauses`, as in a `LogRow`. `revision` is 0 where no event is
    known. `cause` is why a pod lost its place, as its end gave it: for whom it was evicted, or who
    drained what, and why."""

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
    """What differs between two moments; `more` counts the rows of a list that are not shown."""

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
