"""Who of a service beats, as heard by somebody who does not: see `membership`.

Invariant: what is said of a member is its last word, and not older than `SILENT_S`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from apportion.runtime.ledger.membership import BEAT_S, MEMBERS_MAX, SILENT_ROUNDS, Beat
from apportion.runtime.ledger.port import Ledger
from apportion.runtime.process.clock import Clock

SILENT_S: Final = BEAT_S * SILENT_ROUNDS

_decode = msgspec.json.Decoder(Beat).decode


class Attendance:
    """One listener; `service` is whose beats it hears."""

    def __init__(self, service: str, clock: Clock) -> None:
        self._subject = f"apportion.beat.{service}.>"
        self._clock = clock
        self._heard: dict[str, tuple[bool, float]] = {}

    async def listen(self, ledger: Ledger) -> None:
        """Hear beats from now on. Raises LedgerUnavailable, NotPermitted."""
        await ledger.serve(self._subject, self._note)

    def members(self) -> tuple[str, ...]:
        """Those who are there, in order."""
        oldest = self._clock.monotonic() - SILENT_S
        self._heard = {name: said for name, said in self._heard.items() if said[1] >= oldest}
        return tuple(sorted(name for name, (here, _) in self._heard.items() if here))

    async def _note(self, subject: str, payload: bytes) -> None:
        del subject
        try:
            beat = _decode(payload)
        except msgspec.DecodeError:
            return  # schedulers say so in their logs
        if beat.member in self._heard or len(self._heard) < MEMBERS_MAX:
            self._heard[beat.member] = (beat.here, self._clock.monotonic())
