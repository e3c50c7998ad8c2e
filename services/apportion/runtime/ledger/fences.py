"""Finds the revision to expect (the fence) on a subject whose newest record the state lacks.

After a trim or a loss of records, the server treats the subject as empty. The fold may have skipped
the newest record, or forgotten it. Invariant: a writer never appends past an event that it has not
folded."""

import asyncio
from typing import Final

from apportion.runtime.ledger.port import FenceRefused, Ledger

FOUND_MAX: Final = 1_024  # subjects whose newest record the server named
MISSING_MAX: Final = 1_024  # records that are missing although the ledger begins before them


class Fences:
    """Remembers for a writer which records are gone from the server, or missing in the state."""

    def __init__(self) -> None:
        self._begins = 1
        self._found: dict[str, tuple[int, int]] = {}  # what was expected instead, by subject
        self._missing: set[int] = set()
        self._asking = asyncio.Lock()

    def expected(self, newest: int, *, folded: int, subject: str = "") -> int:
        """Return the revision to expect on `subject`, given the newest revision folded (or 0)."""
        instead, found = self._found.get(subject, (-1, 0))
        if instead == newest and found <= folded:  # a record without effect on the state
            return found
        if newest in self._missing or newest < self._begins <= folded + 1:
            return 0
        return newest

    async def refused(self, refusal: FenceRefused, ledger: Ledger) -> None:
        """Learn from a refused append which records exist. Raises LedgerUnavailable."""
        if refusal.found == 0 < refusal.expected:
            async with self._asking:
                if refusal.expected >= self._begins:
                    self._begins = await ledger.first_revision()
            if refusal.expected >= self._begins:
                if len(self._missing) >= MISSING_MAX:
                    self._missing.clear()
                self._missing.add(refusal.expected)
        elif refusal.found:
            if len(self._found) >= FOUND_MAX:
                self._found.clear()
            self._found[refusal.subject] = refusal.expected, refusal.found
