"""Checks figures of queues and namespaces in a replay against limits: `queue/ml:wait-p95<=30m`.

A gate names one team (a queue or namespace), a measure and the largest value that is accepted.
Invariants: a team name that is unknown or ambiguous is an error, so a misspelt gate never passes.
A gate passes only if its team has pods."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, cast

from apportion.core.answers.replays import Gate, Team, TeamKind
from apportion.core.explain.text.names import did_you_mean, named
from apportion.core.placement.limits.tree import ROOT

GATES_MAX: Final = 100
KNOWN_LISTED: Final = 20  # teams that an error lists
WAIT_DIGITS: Final = 1  # decimals of seconds that count
EXAMPLE: Final = "queue/ml:wait-p95<=30m"
_GATE: Final = re.compile(
    r"(?:(?P<kind>queue|namespace)/)?(?P<name>[A-Za-z0-9._-]{1,253}):(?P<measure>[a-z0-9-]{1,32})"
    r"<=(?P<bound>\S{1,32})",
    re.ASCII,
)
_LENGTH: Final = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,9}(\.\d{1,6})?", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class GateInvalid(ValueError):
    """Raised for a gate that cannot be read, or whose team is unknown; names value and fix."""


class Measure(NamedTuple):
    """A figure that a gate can bound: a field of `TeamFigures`, what it is, and its unit."""

    field: str
    means: str
    unit: str  # "s" for lengths of time, or else the noun of what is counted


MEASURES: Final = {
    "wait-mean": Measure("wait_mean_s", "mean wait", "s"),
    "wait-p95": Measure("wait_p95_s", "95th percentile of waits", "s"),
    "wait-max": Measure("wait_max_s", "longest wait", "s"),
    "gpu-hours-pending": Measure(
        "gpu_hours_waited", "GPUs requested by pending pods x time", "GPU-hour"
    ),
    "gpu-hours-evicted": Measure(
        "gpu_hours_evicted", "GPUs of evicted pods x time until their eviction", "GPU-hour"
    ),
    "evictions": Measure("evicted", "pods evicted to make room for others", "pod"),
    "pending-at-end": Measure("unplaced", "pods not placed", "pod"),
}


class Bound(NamedTuple):
    """A parsed gate. `kind` is None if it does not say `queue/` or `namespace/`."""

    text: str
    kind: TeamKind | None
    name: str
    measure: str
    most: float


def bounds_of(texts: Sequence[str]) -> tuple[Bound, ...]:
    """Parse at most GATES_MAX gates, in order. Raises GateInvalid."""
    if len(texts) > GATES_MAX:
        raise GateInvalid(f"--gate: {len(texts)} gates are too many; give at most {GATES_MAX}")
    return tuple(map(_bound, texts))


def _bound(text: str) -> Bound:
    found = _GATE.fullmatch(text.strip())
    if found is None:
        fix = f"write TEAM:MEASURE<=BOUND, as in {EXAMPLE}"
        raise GateInvalid(f"--gate: {text[:80]!r} is not a gate; {fix}")
    name, value = found["measure"], found["bound"]
    measure = MEASURES.get(name)
    if measure is None:
        fix = did_you_mean(name, MEASURES) or f"use one of {', '.join(MEASURES)}"
        raise GateInvalid(f"--gate: {text!r} has an unknown measure {name!r}; {fix}")
    if measure.unit == "s":
        length = _LENGTH.fullmatch(value)
        most = float(int(length[1]) * _SECONDS[length[2]]) if length is not None else None
        fix = "write a number followed by s, m, h or d, such as 30m"
    else:
        most = float(value) if _NUMBER.fullmatch(value) else None
        fix = "write a number, such as 12.5"
    if most is None:
        raise GateInvalid(f"--gate: the bound {value!r} of {name} is not valid; {fix}")
    return Bound(text.strip(), cast("TeamKind | None", found["kind"]), found["name"], name, most)


def judged(bounds: Iterable[Bound], teams: Sequence[Team]) -> tuple[Gate, ...]:
    """Compare the replayed figures of teams with their bounds, in the order of the bounds.

    Raises GateInvalid if a team is unknown, or if a name is that of a queue and of a namespace."""
    return tuple(_gate(bound, teams) for bound in bounds)


def _gate(bound: Bound, teams: Sequence[Team]) -> Gate:
    alike = [each for each in teams if bound.kind in (None, each.kind)]
    found = [each for each in alike if each.name == bound.name]
    if len(found) > 1:
        fix = f"write queue/{bound.name} or namespace/{bound.name}"
        raise GateInvalid(f"--gate: {bound.name!r} is a queue and a namespace; {fix}")
    if not found and bound.name == ROOT and bound.kind == "queue":
        fix = "name a queue below it, or the namespaces"
        raise GateInvalid(f"--gate: {ROOT!r} is above all queues and has no figures; {fix}")
    if not found:
        kinds: tuple[TeamKind, ...] = (
            ("queue", "namespace") if bound.kind is None else (bound.kind,)
        )
        known = {kind: [each.name for each in alike if each.kind == kind] for kind in kinds}
        near = did_you_mean(bound.name, [name for names in known.values() for name in names])
        listing = "; ".join(named(f"{kind}s", names, KNOWN_LISTED) for kind, names in known.items())
        said = f"no {' or '.join(kinds)} {bound.name!r} in this time"
        raise GateInvalid(
            f"--gate: {said}; {near}; {listing}" if near else f"--gate: {said}; {listing}"
        )
    (team,) = found
    measure = MEASURES[bound.measure]
    measured = float(getattr(team.replayed, measure.field))
    # A replay decides events together that are closer in time than this.
    counts = round(measured, WAIT_DIGITS) if measure.unit == "s" else measured
    exceeded = counts > bound.most
    # A pod that began before the span did not arrive in it, but uses GPUs.
    empty = not team.replayed.arrived and not team.replayed.gpu_hours_used
    return Gate(
        text=bound.text,
        kind=team.kind,
        name=team.name,
        measure=bound.measure,
        bound=bound.most,
        happened=float(getattr(team.happened, measure.field)),
        measured=measured,
        verdict="no-pods" if empty else "exceeded" if exceeded else "kept",
    )
