"""What only the past knows of a pod: evictions for it, its predecessor, breaches of its shares.

A state forgets an eviction once the pod is gone, and keeps no breach. Invariant: an answer about a
moment has only events at or before that moment, and what is read for it is bounded.
"""

from __future__ import annotations

from apportion.core.explain.answer_text import eviction_with_text
from apportion.core.explain.answers import Breach, End, Eviction, Evictions, Why
from apportion.core.explain.lines import breach_words
from apportion.gateway.past.index import POD
from apportion.gateway.past.past import Past
from apportion_schemas import Event, EventError, PodEvicted, PodGone, ShareBreached

FACTS_MAX = 200
"""So many of the newest facts about a pod are looked at."""
PREDECESSORS_MAX = 1_000
"""So many pods of one name are counted."""
BREACHES_MAX = 16
"""Of the newest kinds: a container, a device and a code."""


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
            _eviction(at, event.time, event.data) for at, event in found
            if isinstance(event.data, PodEvicted) and event.data.beneficiary == why.uid
        )  # fmt: skip
    before, ended = None, None
    for at, event in await _facts(past, earlier[0], upto) if earlier else ():
        if isinstance(event.data, PodEvicted) and event.data.pod == earlier[0]:
            before = _eviction(at, event.time, event.data)
        elif isinstance(event.data, PodGone):
            ended = End(revision=at, time=event.time, reason=event.data.reason)
    return Evictions(made_room=made_room, predecessors=len(earlier), before=before, ended=ended)


async def breaches_of(past: Past, why: Why, upto: int) -> tuple[Breach, ...]:
    """The breaches of the pod's shares since it was placed, up to a revision, the newest first.

    Raises LedgerError, ArchiveError.
    """
    if why.placed is None:
        return ()
    found: dict[tuple[str, str, str], Breach] = {}
    for at, event in await _facts(past, why.uid, upto, after=why.placed.revision):
        data = event.data
        if not isinstance(data, ShareBreached):
            continue
        before = found.pop((data.container, data.device, data.code), None)
        found[data.container, data.device, data.code] = Breach(
            revision=at,
            time=event.time,
            container=data.container,
            device=data.device,
            code=data.code,
            times=before.times + 1 if before else 1,
            sentence=breach_words(data),
        )
    return tuple(reversed(found.values()))[:BREACHES_MAX]


async def _facts(past: Past, uid: str, upto: int, *, after: int = 0) -> list[tuple[int, Event]]:
    """The newest events about the pod with their revisions, the oldest first."""
    newest = past.index.newest_facts(POD, uid, after=after, upto=upto, limit=FACTS_MAX)
    rules = past.indexer.rules
    found = []
    for record in await past.chronicle.records(sorted(newest)):
        try:
            event = rules.read(record.revision, record.subject, record.payload)
        except EventError:
            continue
        found.append((record.revision, event))
    return found


def _eviction(revision: int, time: str, data: PodEvicted) -> Eviction:
    made = Eviction(
        revision=revision,
        time=time,
        namespace=data.namespace,
        name=data.name,
        node=data.node,
        beneficiary=data.beneficiary_name,
        event=data,
    )
    return eviction_with_text(made)
