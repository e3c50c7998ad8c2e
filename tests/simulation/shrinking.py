"""Reduce a failing run to fewer kinds of fault and fewer user requests, so that it still fails.

Invariant: the returned case failed in its last run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.simulation.weather import KINDS
from tests.simulation.world import WISHES, Outcome

TRIES_MAX = 60
SIDES = {"manifests": False, "cluster": True}
SEPARATOR = "; "  # kinds of fault have commas in their names


@dataclass(frozen=True)
class Case:
    """One simulation run: its seed, and the faults and requests that are left out."""

    seed: int
    spared: frozenset[str] = frozenset()  # Kinds of fault to leave out.
    wishes_max: int = WISHES[1]  # The maximum number of user requests.
    cluster: bool | None = None

    def command(self) -> str:
        """Return the command line that repeats this run."""
        parts = ["python -m tests.simulation", "--seed", str(self.seed)]
        if self.wishes_max < WISHES[1]:
            parts += ["--wishes", str(self.wishes_max)]
        if self.cluster is not None:
            parts += ["--side", "cluster" if self.cluster else "manifests"]
        if self.spared:
            parts += ["--spare", shlex.quote(SEPARATOR.join(sorted(self.spared)))]
        return " ".join(parts)


def shrink(case: Case, outcome: Outcome, play: Callable[[Case], Outcome]) -> tuple[Case, Outcome]:
    """Return the smallest case found in about a minute that still fails, and its outcome."""
    tries = 0
    smaller = True
    while smaller:
        smaller = False
        for next_case in _smaller(case, outcome):
            if tries >= TRIES_MAX:
                return case, outcome
            tries += 1
            found = play(next_case)
            if found.trouble:
                case, outcome, smaller = next_case, found, True
                break
    return case, outcome


def _smaller(case: Case, outcome: Outcome) -> Iterator[Case]:
    """Yield smaller cases to try, those with the largest reductions first.

    Faults that never struck are left out first, because they cannot be the cause."""
    idle = frozenset(KINDS) - outcome.struck.keys() - case.spared
    if idle:
        yield replace(case, spared=case.spared | idle)
    for wishes_max in (case.wishes_max // 4, case.wishes_max // 2, case.wishes_max * 3 // 4):
        if 0 < wishes_max < case.wishes_max:
            yield replace(case, wishes_max=wishes_max)
    for kind in sorted(outcome.struck.keys() - case.spared, key=KINDS.index):
        yield replace(case, spared=case.spared | {kind})
