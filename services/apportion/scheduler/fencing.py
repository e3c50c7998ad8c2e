"""Decisions to drafts: the fences and the chain that make a placement final.

Each placement names the SHA-256 of the message before it on its node, and the first of a batch on a
node expects that message's revision to be the newest there (`Nats-Expected-Last-Subject-Sequence`).

What is decided together is told with one time. Invariant: a batch fenced on a state is taken by the
server only if no placement came between.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from msgspec import structs

from apportion.core.ledger.agent_view import handed
from apportion.core.ledger.state import State
from apportion.core.placement.engine import DecisionEvent
from apportion.runtime.ledger.fences import Fences
from apportion.runtime.ledger.port import Draft
from apportion.runtime.ledger.publisher import Publisher
from apportion_schemas import (
    PlacementVoided,
    PodEvicted,
    PodPlaced,
    PodRefused,
    PodResized,
    ResizeRefused,
    subject_of,
)


def fence(
    events: Iterable[DecisionEvent], state: State, publisher: Publisher, fences: Fences
) -> list[Draft]:
    """The drafts of one decision, in order, for one atomic append."""
    chains: dict[str, str] = {}
    drafts, time = [], publisher.time()

    def draft(event: DecisionEvent, expect: int | None = None) -> Draft:
        if isinstance(event, PodResized | ResizeRefused):
            cause = event.asked
        else:
            cause = state.pods[event.pod].submitted_revision
        return publisher.draft(
            event,
            event_id=_id(event, state),
            basis=state.revision,
            cause=cause,
            expect=expect,
            time=time,
        )

    for event in events:
        if isinstance(event, PodRefused | ResizeRefused):
            drafts.append(draft(event))
            continue
        node, expect = state.nodes[event.node], None
        if node.name not in chains:
            subject = "" if node.fence else subject_of(event)
            expect = fences.expected(node.fence, folded=state.revision, subject=subject)
        if isinstance(event, PodPlaced):
            submitted = state.pods[event.pod].submitted
            devices = (held.device for held in node.devices)
            event = handed(event, submitted, devices)  # noqa: PLW2901
        chained = structs.replace(event, previous=chains.get(node.name, node.chain))
        drafts.append(draft(chained, expect))
        chains[node.name] = sha256(drafts[-1].payload).hexdigest()
    return drafts


def _id(event: DecisionEvent, state: State) -> str:
    """The pod fence: one placement, and one voiding of it, for each attempt of a pod.

    A place that was adopted may have been voided before, or the pod evicted for the same one, in an
    earlier life of the pod. An eviction for a pod that has gone since changes nothing, and is none
    for the next that needs the room. A refusal is told once for each revision that it was worked
    out on.
    """
    pod = state.pods[event.pod]
    again = f"/{pod.submitted_revision}" if pod.adopted else ""
    match event:
        case PodPlaced():
            return f"{event.pod}/{event.attempt}/placed"
        case PodEvicted():
            wanting = state.pods[event.beneficiary]
            return f"{event.pod}/{event.attempt}/evicted/{wanting.uid}/{wanting.attempt}{again}"
        case PlacementVoided():
            return f"{event.pod}/{event.attempt}/voided{again}"
        case PodResized():
            return f"{event.pod}/resized/{event.asked}"
        case ResizeRefused():
            return f"{event.pod}/not-resized/{event.asked}"
        case PodRefused():
            return f"{event.pod}/refused/{state.revision}"
