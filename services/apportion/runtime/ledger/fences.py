"""What a fenced append expects of a subject whose newest record may have been dropped.

The server compares with what it holds: once the ledger's beginning is trimmed, a subject on which
nothing has come since has, to the server, no record at all. Invariant: "nothing is there" is
expected only by a writer that has folded everything that was dropped, and a record that the server
names only by one that has folded it, so a fence never lets pass what its writer has not seen.
"""

from __future__ import annotations

from typing import Final

from apportion.runtime.ledger.port import FenceRefused, Ledger

FOUND_MAX: Final = 1_024
"""Subjects whose newest record the server named."""


class Fences:
    """One writer's knowledge of where the ledger begins; see `retention`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._begins = 1
        self._found: dict[str, int] = {}

    def expected(self, newest: int, *, folded: int, subject: str = "") -> int:
        """What to expect of a subject whose `newest` record we have folded, as all to `folded`.

        Where the state has forgotten the subject's records, which makes `newest` 0, it is the
        record that the server named, once that is folded.
        """
        if not newest and subject in self._found:
            found = self._found[subject]
            return found if found <= folded else 0
        return 0 if newest < self._begins <= folded + 1 else newest

    async def refused(self, refusal: FenceRefused) -> None:
        """Learn why: where the ledger begins, or what a subject holds that the state forgot.

        Raises LedgerUnavailable.
        """
        if refusal.found == 0 < refusal.expected:
            self._begins = await self._ledger.first_revision()
        elif refusal.found and not refusal.expected:
            if len(self._found) >= FOUND_MAX:
                self._found.clear()
            self._found[refusal.subject] = refusal.found
