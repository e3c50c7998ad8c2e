"""Which shares may be in use on this node: those of the pods that its kubelet knows.

Nobody tells an agent that a pod is gone. The kubelet keeps a pod in its checkpoint until its
containers have ended, and the ledger says what that pod holds. A pod that the ledger has not told
of was given nothing by us. Invariant: once the ledger was read to its end, whatever is not named
here is used by no container of ours.
"""

from __future__ import annotations

from collections.abc import Iterable

from apportion.agent.reporting.view import Claim, NodeView
from apportion.agent.usage.owners import Books
from apportion_schemas import Share


class Needed:
    """The node's books and the ledger, read together."""

    def __init__(self, books: Books, view: NodeView) -> None:
        self._books = books
        self._view = view

    async def shares(self, *, but: str = "") -> list[Share]:
        """Of all pods but one, whose own containers make way for one another.

        Raises:
            NotPrepared: the books cannot be read.
        """
        pods = await self._books.pods()
        return list(_shares(claim for pod, claim in self._view.held.items() if pod in pods - {but}))


def largest(shares: Iterable[Share]) -> dict[str, int]:
    """By card, the memory of its largest share, in MiB."""
    most: dict[str, int] = {}
    for share in shares:
        most[share.device] = max(most.get(share.device, 0), share.memory_mib)
    return most


def _shares(claims: Iterable[Claim]) -> Iterable[Share]:
    for claim in claims:
        yield from claim.placed.shares
        yield from claim.placed.borrowed
