"""What a fenced append expects of a subject whose newest record may have been dropped.

The server compares with what it holds: once the ledger's beginning is trimmed, a subject on which
nothing has come since has, to the server, no record at all. Invariant: "nothing is there" is
expected only by a writer that has folded everything that was dropped, so a fence never lets pass
what its writer has not seen.
"""

from __future__ import annotations

from apportion.runtime.ledger.port import FenceRefused, Ledger


class Fences:
    """One writer's knowledge of where the ledger begins; see `retention`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._begins = 1

    def expected(self, newest: int, *, folded: int) -> int:
        """What to expect of a subject whose `newest` record we have folded, as all to `folded`."""
        return 0 if newest < self._begins <= folded + 1 else newest

    async def refused(self, refusal: FenceRefused) -> None:
        """Look where the ledger begins, if that is why. Raises LedgerUnavailable."""
        if refusal.found == 0 < refusal.expected:
            self._begins = await self._ledger.first_revision()
