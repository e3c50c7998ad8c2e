"""Who had to go for a pod, and what became of the one whose name it has: what only the past knows.

A state forgets an eviction once the pod is gone. Invariant: an eviction is said of a moment only if
it stands at or before that moment, and what is read for an answer is bounded.
"""

from __future__ import annotations

from apportion.core.explain.answers import End, Eviction, Evictions, Why
from apportion.core.explain.lines import Teller
from apportion.gateway.past.index import POD
from apportion.gateway.past.past import Past
from apportion_schemas import Event, EventError, PodEvicted, PodGone

FACTS_MAX = 200
"""So many of the newest facts about a pod are looked at."""
PREDECESSORS_MAX = 1_000
"""So many pods of one name are counted."""


async def evictions_of(past: Past, why: Why, upto: int) -> Evictions:
    """The evictions that have to do with the pod that this explains, up to a revision.

    Raises LedgerError, ArchiveError.
    """
    name = f"{why.namespace}/{why.name}"
    uids = past.index.pods_named(name, upto=upto, limit=PREDECESSORS_MAX)
    behind = uids.index(why.uid) + 1 if why.uid in uids else 0
    earlier = uids[behind:]
    made_room: tuple[Eviction, ...] = ()
    if why.placed is not None:
        found = await _facts(past, why.uid, why.placed.revision)
        made_room = tuple(
            _eviction(past, at, event.time, event.data) for at, event in found
            if isinstance(event.data, PodEvicted) and event.data.beneficiary == why.uid
        )  # fmt: skip
    before, ended = None, None
    for at, event in await _facts(past, earlier[0], upto) if earlier else ():
        if isinstance(event.data, PodEvicted) and event.data.pod == earlier[0]:
            before = _eviction(past, at, event.time, event.data)
        elif isinstance(event.data, PodGone):
            ended = End(revision=at, time=event.time, reason=event.data.reason)
    return Evictions(made_room=made_room, predecessors=len(earlier), before=before, ended=ended)


async def _facts(past: Past, uid: str, upto: int) -> list[tuple[int, Event]]:
    """The newest events about the pod with their revisions, the oldest first."""
    newest = past.index.newest_facts(POD, uid, after=0, upto=upto, limit=FACTS_MAX)
    rules = past.indexer.rules
    found = []
    for record in await past.chronicle.records(sorted(newest)):
        try:
            event = rules.read(record.revision, record.subject, record.payload)
        except EventError:
            continue
        found.append((record.revision, event))
    return found


def _eviction(past: Past, revision: int, time: str, data: PodEvicted) -> Eviction:
    return Eviction(
        revision=revision,
        time=time,
        namespace=data.namespace,
        name=data.name,
        node=data.node,
        beneficiary=data.beneficiary_name,
        sentence=Teller(past.index.name_of).line(data),
    )
