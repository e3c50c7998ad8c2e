"""Seeds that once found a real bug, and must stay right for ever.

What a seed does depends on everything that draws chance, so an old one may no longer go the way
that it went. Where that matters the bug is a planted fault too, or has a test of its own, named
here.
"""

from __future__ import annotations

from typing import NamedTuple


class Regression(NamedTuple):
    """A seed, what was wrong, and where else it is held."""

    seed: int
    found: str
    held_by: str


REGRESSIONS = (
    Regression(
        37,
        "pods that fitted nowhere beside what a decision assumed stayed parked after the ledger "
        "had refused that decision, and starved until something else was freed",
        "planted: parked for what never came",
    ),
    Regression(
        0,
        "a binder recorded that its bind had failed after another binder had bound the pod",
        "planted: binds what is gone",
    ),
    Regression(
        89,
        "a parked gang that one more member completed waited for that member's turn, so pods "
        "submitted after its head were placed before it",
        "test_simulation: a gang that one more member completes goes before who came between",
    ),
    Regression(
        3255,
        "a pod of two containers was refused because the first took the only device that had room "
        "for both, in the order of that moment; when the order changed, nothing asked again",
        "test_assign: whether a pod fits does not depend on the order of devices",
    ),
    Regression(3056, "the same, with MIG cards in the cluster", "test_assign"),
    Regression(
        68,
        "a report of a device's health that was on its way when its agent died arrived after the "
        "next life had found the device as the ledger had it; the agent took it for another "
        "agent's, and pods were placed on a failed device and refused there for ever",
        "test_agent: a report of an earlier life is answered",
    ),
)
