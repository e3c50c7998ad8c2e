"""Who had to go for a pod, and whether the one whose name it has had to: what only the past knows.

A state forgets an eviction once the pod is gone. Invariant: an eviction is said of a moment only if
it stands at or before that moment, and what is read for an answer is bounded.
"""

from __future__ import annotations

from apportion.core.explain.answers import Eviction, Evictions, Why
from apportion.core.explain.lines import Teller
from apportion.gateway.past.index import POD
from apportion.gateway.past.past import Past
from apportion_schemas import EventError, PodEvicted

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
        found = await _around(past, why.uid, why.placed.revision)
        made_room = tuple(said for said, data in found if data.beneficiary == why.uid)
    before = None
    if earlier:
        found = await _around(past, earlier[0], upto)
        before = next((said for said, data in reversed(found) if data.pod == earlier[0]), None)
    return Evictions(made_room=made_room, predecessors=len(earlier), before=before)


async def _around(past: Past, uid: str, upto: int) -> list[tuple[Eviction, PodEvicted]]:
    """The evictions among the newest facts about the pod, the oldest first."""
    newest = past.index.newest_facts(POD, uid, after=0, upto=upto, limit=FACTS_MAX)
    teller = Teller(past.index.name_of)
    rules = past.indexer.rules
    found = []
    for record in await past.chronicle.records(sorted(newest)):
        try:
            event = rules.read(record.revision, record.subject, record.payload)
        except EventError:
            continue
        data = event.data
        if isinstance(data, PodEvicted):
            said = Eviction(
                revision=record.revision,
                time=event.time,
                namespace=data.namespace,
                name=data.name,
                node=data.node,
                beneficiary=data.beneficiary_name,
                sentence=teller.line(data),
            )
            found.append((said, data))
    return found
