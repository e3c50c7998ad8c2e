"""Answers about the past: what a moment means, what happened, who held what, what changed.

They stand beside `answers` and keep its rules: one definition for gateway and command line, amounts
with their unit, and the revision as of which each is.
"""

from msgspec import Raw, field

from apportion.core.explain.answers import Answer


class MomentAnswer(Answer, frozen=True):
    """The newest event at or before a moment, and when it was."""

    revision: int
    time: str


class Bin(Answer, frozen=True):
    """What happened in a span of time, by type of event; no revisions where nothing did."""

    from_time: str
    to_time: str
    first_revision: int = 0
    last_revision: int = 0
    counts: dict[str, int] = {}


class MarkRow(Answer, frozen=True):
    """An event that people look for on a line of time."""

    revision: int
    time: str
    kind: str
    sentence: str


class TimelineAnswer(Answer, frozen=True):
    """The whole ledger at a glance: from when to when, how much in each bin, and the marks."""

    revision: int
    first_revision: int
    first_time: str
    last_time: str
    bins: tuple[Bin, ...]
    marks: tuple[MarkRow, ...]


class LogRow(Answer, frozen=True):
    """One event in words. `type` is empty where no build reads it.

    `namespaces` are those that it is about, none where it is about the cluster; an empty one is
    that of something of which nobody knows whose it is.
    """

    revision: int
    time: str
    type: str
    subject: str
    source: str
    sentence: str
    namespaces: tuple[str, ...] = ()


class LogPage(Answer, frozen=True):
    """Events, the newest first; older ones go on behind `continue`, which is empty at the end."""

    revision: int
    items: tuple[LogRow, ...]
    next: str = field(default="", name="continue")


class LogEntry(Answer, frozen=True):
    """One event as it stands in the ledger; `event` is None where its bytes are no JSON."""

    revision: int
    row: LogRow
    event: Raw | None = None


class HistoryRow(Answer, frozen=True):
    """One fact of the story of a pod, a node or a device; `namespaces` as in `LogRow`."""

    revision: int
    time: str
    type: str
    sentence: str
    subject: str
    namespaces: tuple[str, ...] = ()


class HistoryPage(Answer, frozen=True):
    """A story, the oldest fact first. `uids` are the pods that had the name, the newest first."""

    revision: int
    items: tuple[HistoryRow, ...]
    uids: tuple[str, ...] = ()
    next: str = field(default="", name="continue")


class PodName(Answer, frozen=True):
    """What a pod is called, or was."""

    namespace: str
    name: str


class PodNames(Answer, frozen=True):
    """The namespaces where a pod of one name is or was, in order."""

    revision: int
    items: tuple[PodName, ...]


class WhoRow(Answer, frozen=True):
    """One share and who held it, from the decision that gave it until it was freed.

    `to_revision` is 0 while it is held.
    """

    namespace: str
    pod: str
    uid: str
    container: str
    device: str
    node: str
    memory_mib: int
    cores: int
    from_revision: int
    from_time: str
    to_revision: int
    to_time: str
    decision_revision: int


class WhoPage(Answer, frozen=True):
    """Who held a device, or what of a node, from `since` to `revision`, by decisions."""

    revision: int
    since: int
    items: tuple[WhoRow, ...]
    time: str = ""
    next: str = field(default="", name="continue")


class DiffRow(Answer, frozen=True):
    """What of one thing was, and is; by which event, and who is behind it.

    `what` is the side of it that changed; an empty text is nothing. `revision` is 0 where no event
    is known. `cause` is why a pod lost its place, as it was told when it ended: for whom it was
    evicted, or who drained what, and why. Of a placement, the nodes and what was held there are in
    fields of their own too.
    """

    name: str
    what: str
    before: str
    after: str
    revision: int = 0
    time: str = ""
    by: str = ""
    sentence: str = ""
    cause: str = ""
    node_before: str = ""
    held_before: str = ""
    node_after: str = ""
    held_after: str = ""


class DiffAnswer(Answer, frozen=True):
    """What differs between two moments; `more` counts the rows of a list that are not shown."""

    revision: int
    begin: MomentAnswer = field(name="from")
    end: MomentAnswer = field(name="to")
    placements: tuple[DiffRow, ...] = ()
    waiting: tuple[DiffRow, ...] = ()
    nodes: tuple[DiffRow, ...] = ()
    devices: tuple[DiffRow, ...] = ()
    limits: tuple[DiffRow, ...] = ()
    configuration: tuple[DiffRow, ...] = ()
    policy: tuple[DiffRow, ...] = ()
    more: dict[str, int] = {}
