"""Compute how much a queue uses and is entitled to, and which queues use more than that."""

from collections import Counter
from itertools import pairwise
from typing import Final

from msgspec import structs

from apportion.core.answers.reads import Borrower, QueueEntitlement, QueuePart
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.limits.entitlements import Part
from apportion.core.placement.limits.queues import Queues
from apportion.core.placement.limits.quotas import MODEL, WORTH, Amount
from apportion.core.placement.limits.reclaiming import Reclaim
from apportion.core.placement.limits.tree import ROOT
from apportion.core.placement.queueing.queue import NO_CLOCK

HOUR_MS: Final = 3_600_000


def queue_parts(queues: Queues, name: str) -> tuple[QueuePart, ...]:
    """Return what a queue uses and is entitled to, by device family and resource.

    Included are only resources that the queue deserves, and device families that it uses."""
    named, parts = queues.named(name), sorted(queues.parts(name).items())
    return tuple(
        _with_loans(queues, name, amount, _part(queues, name, amount, part))
        for amount, part in parts
        if part.deserved or amount in named or (queues.used(name).get(amount) and _devices(amount))
    )


def past_use_of(queues: Queues, name: str) -> dict[str, int]:
    """Return the past use of a queue by device family or resource, in amounts times hours."""
    found = Counter[str]()
    for of, much in queues.past.sums(name).items():
        found[of.partition("/")[0]] += much
    return {of: much // HOUR_MS for of, much in found.items() if much >= HOUR_MS}


def entitlement_of(state: State, queues: Queues, pod: PodState) -> QueueEntitlement | None:
    """Return the entitlement of a pending pod's queue to the amounts that the pod needs.

    None if no queue may reclaim what other queues use, and past use does not count."""
    if not queues.lends and queues.past.memory is None:
        return None
    reclaim = Reclaim(state, queues, pod, NO_CLOCK)
    path = queues.path_of(queues.account_of(pod))
    name = next((each for each in path if queues.named(each)), path[0])
    borrowers: dict[str, int] = {}
    for below, above in pairwise(path):
        for other in queues.below(above):
            for amount in reclaim.wanted[:1]:
                most = queues.parts(other).get(amount, Part()).most
                much = queues.used(other).get(amount, 0) - most
                if other != below and much > 0:
                    borrowers[other.rstrip("/")] = much
    return QueueEntitlement(
        queue=name,
        parts=tuple(
            _part(queues, name, amount, queues.parts(name).get(amount, Part()))
            for amount in reclaim.wanted
        ),
        takes_back=queues.lends and bool(reclaim),
        borrowers=tuple(Borrower(queue=each, much=much) for each, much in borrowers.items()),
    )


def _with_loans(queues: Queues, name: str, amount: Amount, part: QueuePart) -> QueuePart:
    # A queue that uses more than it deserves takes first what no queue deserves, and then borrows.
    # The loans are divided in proportion, because no share says from which queue it is.
    if name == ROOT:
        return part
    above = queues.path_of(name)[1]
    siblings = [(each, queues.parts(each).get(amount, Part())) for each in queues.below(above)]
    used = {each: queues.used(each).get(amount, 0) for each, _ in siblings}
    beyond = sum(max(used[each] - of.deserved, 0) for each, of in siblings)
    idle = sum(max(of.deserved - used[each], 0) for each, of in siblings)
    total = queues.parts(above).get(amount, Part()).entitled
    unclaimed = max(total - sum(of.deserved for _, of in siblings), 0)
    loans = min(max(beyond - unclaimed, 0), idle)
    return structs.replace(
        part,
        borrowed=max(part.used - part.deserved, 0) * loans // max(beyond, 1),
        lent=max(part.deserved - part.used, 0) * loans // max(idle, 1),
    )


def _part(queues: Queues, name: str, amount: Amount, part: Part) -> QueuePart:
    return QueuePart(
        of=amount[-1],
        devices=_devices(amount),
        used=queues.used(name).get(amount, 0),
        asked=queues.asked(name).get(amount, 0),
        entitled=part.entitled,
        owned=part.owned,
        deserved=part.deserved,
        plain=part.plain,
    )


def _devices(amount: Amount) -> bool:
    return amount[0] in (WORTH, MODEL)
