"""Tests of the operators' rules: which event formats are enabled, and which revisions are ignored.

Every reader of the ledger must apply the rules alike."""

import json
from collections.abc import Sequence

import pytest

from apportion.core.audit import Auditor
from apportion.core.ledger import fold
from apportion.core.ledger.digest import canonical
from apportion.core.ledger.rules import Rules, SetAsideEvent, Superseded, missing, rules_of, said_at
from apportion.core.ledger.snapshot import restore, take
from apportion.core.ledger.state import State
from apportion_schemas import (
    CATALOGUE,
    Event,
    FormatEnabled,
    NodeCordoned,
    NotEnabledEvent,
    RevisionSetAside,
    UnknownEvent,
    encode,
    subject_of,
)
from apportion_schemas.quantities import Payload
from tests.support.pods import pod

TIME = "2026-01-01T00:00:00.000000Z"
Entry = tuple[int, str, bytes]


def entry(revision: int, data: Payload, source: str = "cli/ada") -> Entry:
    """Return the revision, subject and bytes with which a ledger stores this event."""
    event = Event(id=f"id-{revision}", source=source, time=TIME, data=data)
    return revision, subject_of(data), encode(event)


def unheard(revision: int, version: int = 1, name: str = "PodWeighed") -> Entry:
    """Return an event of a type that this build does not know, on the subject of pod `p1`."""
    document = {
        "specversion": "1.0", "type": f"apportion.dev/{name}", "schemaversion": version,
        "id": f"id-{revision}", "source": "watcher", "time": TIME, "data": {"more": 1},
    }  # fmt: skip
    return revision, "apportion.v1.workload.p1", json.dumps(document).encode()


def enabled(revision: int, version: int = 1, name: str = "PodWeighed") -> Entry:
    """Return the event with which an operator allows events of this format."""
    return entry(revision, FormatEnabled(format=name, version=version, by="ada"))


def aside(revision: int, of: int, reason: str = "bug 99") -> Entry:
    """Return the event with which an operator makes all readers ignore revision `of`."""
    return entry(revision, RevisionSetAside(revision=of, by="ada", reason=reason))


def ahead(entries: Sequence[Entry]) -> Rules:
    """Return the rules in these entries. A reader collects them before it folds the first entry."""
    return rules_of(said for each in entries if (said := said_at(*each)) is not None)


def folded(entries: Sequence[Entry], state: State | None = None) -> State:
    """Fold the entries that are newer than the state. Without a state, fold all entries into a new
    one."""
    state = state or State(rules=ahead(entries))
    for each in entries[state.revision :]:
        Auditor(state).take(*each)
    return state


LEDGER = [
    entry(1, pod("p1"), "watcher"),
    unheard(2),
    enabled(3, 2),
    unheard(4),
    enabled(5),
    aside(6, 4),
    entry(7, NodeCordoned(node="n1", by="ada", reason="hot")),
    aside(8, 7, "wrong node"),
    aside(9, 7, "again"),
    aside(10, 9),
    aside(11, 11),
    aside(12, 3, "withdrawn"),
    unheard(13, 2),
    entry(14, pod("p2"), "watcher"),
]
REASONS = {
    2: "format 'PodWeighed@1' is not enabled on this ledger",
    3: "set aside at revision 12 by ada: withdrawn",
    4: "set aside at revision 6 by ada: bug 99",
    7: "set aside at revision 8 by ada: wrong node",
    9: "revision 7 cannot be set aside",
    10: "revision 9 cannot be set aside",
    11: "revision 11 cannot be set aside",
    13: "format 'PodWeighed@2' is not enabled on this ledger",
}


def test_every_rule_at_once() -> None:
    """The fold refuses exactly the expected events, each with its reason.

    The ledger of this test has enabled formats, unknown formats, and revisions that readers must
    ignore."""
    state = folded(LEDGER)
    found = {each.revision: each.reason for each in state.refused_events}
    assert found.keys() == REASONS.keys()
    assert all(found[at].startswith(reason) for at, reason in REASONS.items())
    assert list(state.pods) == ["p1", "p2"]
    assert "n1" not in state.nodes or not state.nodes["n1"].cordon
    assert [enabled.at for enabled in state.rules.enabled["PodWeighed"]] == [5]


@pytest.mark.parametrize("at", range(len(LEDGER) + 1))
def test_a_snapshot_anywhere_and_the_tail_are_the_whole(at: int) -> None:
    """A snapshot at any revision, plus the events after it, gives the same state as a fold of all
    events."""
    begun = State(rules=ahead(LEDGER))
    for each in LEDGER[:at]:
        Auditor(begun).take(*each)
    again = restore(take(begun))
    assert canonical(again) == canonical(begun)
    assert again.rules.go_on(ahead(LEDGER), at)
    assert canonical(folded(LEDGER, again)) == canonical(folded(LEDGER))


@pytest.mark.parametrize("at", range(1, len(LEDGER)))
def test_a_snapshot_of_before_a_rule_is_used_as_long_as_it_holds(at: int) -> None:
    """A new rule keeps older snapshots usable, unless it ignores one of their events."""
    known = ahead(LEDGER[:at])
    state = State(rules=known)
    try:
        for each in LEDGER[:at]:
            Auditor(state).take(*each)
    except UnknownEvent:
        assert at in (4, 5)  # a halted reader takes no snapshot
        return
    again = restore(take(state))
    if again.rules.go_on(ahead(LEDGER), at):
        assert canonical(folded(LEDGER, again)) == canonical(folded(LEDGER))
    else:
        assert any(of <= at < why.at for of, why in ahead(LEDGER).aside.items())


def test_who_has_folded_what_is_set_aside_begins_anew() -> None:
    """If a reader has already folded an event that a rule tells it to ignore, it raises Superseded.

    The reader must then fold the whole ledger again."""
    entries = [entry(1, pod("p1"), "watcher"), aside(2, 1)]
    state = State()
    Auditor(state).take(*entries[0])
    before = canonical(state)
    with pytest.raises(Superseded, match="revision 1 was set aside at revision 2 by ada: bug 99"):
        Auditor(state).take(*entries[1])
    assert canonical(state) == before
    assert folded(entries).pods == {}


def test_a_format_is_legal_behind_the_event_alone() -> None:
    """The event that enables a format applies only to later revisions, and only to versions up to
    the enabled one."""
    rules = ahead([enabled(3, 2)])
    for at, version in ((2, 1), (3, 1), (4, 3)):
        with pytest.raises(NotEnabledEvent):
            rules.read(*unheard(at, version))
    with pytest.raises(NotEnabledEvent):
        rules.read(*unheard(9, 1, "PodMeasured"))
    for version in (1, 2):
        with pytest.raises(UnknownEvent, match="upgrade Apportion here"):
            rules.read(*unheard(4, version))
    with pytest.raises(SetAsideEvent):
        ahead([enabled(3), aside(5, 4)]).read(*unheard(4))


def test_what_was_set_aside_when_the_ledger_was_trimmed_stays_so() -> None:
    """If the events with the rules were trimmed from the ledger, the rules still apply: a snapshot
    keeps them."""
    state = folded(LEDGER)
    again = restore(take(state))
    assert again.rules.go_on(Rules(), state.revision)
    assert canonical(again) == canonical(state)


def test_a_snapshot_that_knows_what_no_ledger_says_is_not_used() -> None:
    """A snapshot is not used if its rules are missing from the ledger, for example after the ledger
    was restored from a backup."""
    entries = [entry(1, pod("p1"), "watcher"), entry(2, pod("p2"), "watcher"), aside(3, 1)]
    state = State(rules=ahead(entries))
    Auditor(state).take(*entries[0])
    assert not restore(take(state)).rules.go_on(Rules(), 1)


def test_nobody_waits_for_what_is_legal_everywhere() -> None:
    """If every build can read a format, services may use it without an event that enables it."""
    for writer in {row.writer for row in CATALOGUE}:
        assert missing(Rules(), writer, 1) == []


def test_a_refused_format_moves_the_fence_of_its_node() -> None:
    """An event on a node's placement subject advances the node's fence, even in a format that is
    not enabled.

    The fence is the revision of the last event on this subject."""
    revision, _, payload = unheard(1)
    state = State()
    Auditor(state).take(revision, "apportion.v1.placement.n1", payload)
    assert state.nodes["n1"].fence == 1
    assert state.nodes["n1"].chain
    assert fold.refuse(state, 1, "x", "again").refused == ""
