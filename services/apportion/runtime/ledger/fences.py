"""What a fenced append expects of a subject whose newest record the server no longer has.

The server compares with what it holds: once the ledger's beginning is trimmed, or the records of a
lone subject are lost, that subject has, to the server, no record at all. Invariant: "nothing is
there" is expected only by a writer that has folded everything that was trimmed, or the very record
that is missing, and a record that the server names only by one that has folded it, so a fence never
lets pass what its writer has not seen."""

import asyncio
from typing import Final

from apportion.runtime.ledger.port import FenceRefused, Ledger

FOUND_MAX: Final = 1_024
"""Subjects whose newest record the server named."""
MISSING_MAX: Final = 1_024
"""Records that were missing alone; one that is forgotten is found missing again."""


class Fences:
    """One writer's knowledge of what the server still has; see `retention`."""

    def __init__(self) -> None:
        self._begins = 1
        self._found: dict[str, int] = {}
        self._missing: set[int] = set()
        self._asking = asyncio.Lock()

    def expected(self, newest: int, *, folded: int, subject: str = "") -> int:
        """What to expect of a subject whose `newest` record we have folded, as all to `folded`.

        Where the state has forgotten the subject's records, which makes `newest` 0, it is the
        record that the server named, once that is folded."""
        if not newest and subject in self._found:
            found = self._found[subject]
            return found if found <= folded else 0
        if newest in self._missing or newest < self._begins <= folded + 1:
            return 0
        return newest

    async def refused(self, refusal: FenceRefused, ledger: Ledger) -> None:
        """Learn why: where the ledger begins, or what a subject holds that the state forgot.

        A record that is missing although the ledger begins before it says nothing of others. Many
        refusals at once ask the server only once where the ledger begins.

        Raises LedgerUnavailable."""
        if refusal.found == 0 < refusal.expected:
            async with self._asking:
                if refusal.expected >= self._begins:
                    self._begins = await ledger.first_revision()
            if refusal.expected >= self._begins:
                if len(self._missing) >= MISSING_MAX:
                    self._missing.clear()
                self._missing.add(refusal.expected)
        elif refusal.found and not refusal.expected:
            if len(self._found) >= FOUND_MAX:
                self._found.clear()
            self._found[refusal.subject] = refusal.found
