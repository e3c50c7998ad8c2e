"""How long to rest after failures in a row: twice as long with each, up to a limit.

Invariant: the pauses of one back-off never shrink while failures go on, and never exceed its limit.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_DOUBLINGS_MAX: Final = 64  # beyond, a float has long been over any limit, and would overflow


class BackOff(NamedTuple):
    """Pauses in seconds: the first, and the longest."""

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        """The pause in seconds after so many failures in a row; none after none.

        It is the longest that is meant: `Clock.pause` takes half of it to all of it.
        """
        if failures < 1:
            return 0.0
        return min(self.first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), self.longest_s)
