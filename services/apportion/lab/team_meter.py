"""Measure a simulation for each queue and namespace: waiting, use, entitlement and evictions.

A pod counts in its namespace, in its queue and in the queues above it, but not in `ROOT`. If a
queue gets another parent, its pending and running pods count in the new parent from then on. Waits
are those of `meter`. A share counts as the part of its device that no other share can use, as in
entitlements. What a queue is entitled to is sampled `SAMPLES` times, while any queue is declared.
Invariant: the figures follow from the observed changes alone."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from apportion.core.answers.replays import Team, TeamFigures, TeamKind
from apportion.core.devices.worth import DEVICE, most_at_once, worth_of
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import PodState, State, queue_of
from apportion.core.names import natural
from apportion.core.placement.limits.queues import Queues
from apportion.core.placement.limits.quotas import OF_MODEL, WORTH
from apportion.core.placement.limits.tree import ROOT, path_in
from apportion.core.reports.prices import Prices
from apportion.lab.meter import HOUR_S, offset_s, quantile, rounded
from apportion_schemas import PodEvicted, PodGroupObserved, QueueObserved, Share

SAMPLES: Final = 60  # of entitlements
P95: Final = 0.95
NOTHING: Final = TeamFigures(0, 0, 0, 0, *(0.0,) * 7)


class TeamKey(NamedTuple):
    """A queue or namespace; queues are first."""

    kind: TeamKind
    name: str


class _Sums(Struct):
    """The sums of one team. Times are in seconds."""

    waits: array[float]
    arrived: int = 0  # pods, each once
    placed: int = 0  # pods, each once
    waiting: int = 0
    evicted: int = 0
    waited: float = 0.0  # GPUs times seconds
    used: float = 0.0
    lost: float = 0.0
    cost: float = 0.0  # price of an hour times seconds
    entitled: float = 0.0  # the sum of all samples


class _Wait(Struct):
    teams: tuple[TeamKey, ...]
    since_s: float
    gpus: float


class _Use(Struct):
    teams: tuple[TeamKey, ...]
    since_s: float
    gpus: float = 0.0
    price: float = 0.0  # of an hour
    before: float = 0.0  # GPU seconds from the placement to `since_s`


class TeamMeter:
    """Measures the teams of a simulation between two times.

    It must observe every change of `state`. `gpus_of` returns how many devices a pod requests.
    Raises PriceError if the prices lack a model that a pod uses."""

    def __init__(
        self, state: State, begin_s: float, end_s: float, gpus_of: Callable[[PodState], float],
        prices: Prices | None = None,
    ) -> None:  # fmt: skip
        self._state = state
        self._prices = prices
        self._gpus_of = gpus_of
        self._begin_s = begin_s
        self._seconds = max(end_s - begin_s, 0.0)
        self._now = 0.0  # since begin_s
        self._samples = 0
        self._sampled = 0  # with queues
        self._sums: dict[TeamKey, _Sums] = {}
        self._waiting: dict[str, _Wait] = {}
        self._using: dict[str, _Use] = {}
        self._seen: set[str] = set()
        self._placed: set[str] = set()
        for pod in state.pods.values():
            self._note(pod)
            if (wait := self._waiting.get(pod.uid)) is not None:
                wait.since_s = offset_s(pod.submitted_time, begin_s)
            if (use := self._using.get(pod.uid)) is not None:
                use.before = -use.gpus * offset_s(pod.placed_time, begin_s)

    def advance(self, now_s: float) -> None:
        """Let the time pass until `now_s`, in seconds since 1970."""
        now = min(now_s - self._begin_s, self._seconds)
        every = self._seconds / SAMPLES
        while self._samples < SAMPLES and (self._samples + 0.5) * every <= now:
            self._samples += 1
            if not self._state.queues:
                continue  # without them, no queue has a claim
            self._sampled += 1
            queues = Queues(self._state)
            names = {*self._state.queues, *(t.name for t in self._sums if t.kind == "queue")}
            for name in sorted(names - {ROOT}):
                entitled = sum(
                    part.entitled
                    for amount, part in queues.parts(name).items()
                    if amount[0] == WORTH and len(amount) < OF_MODEL
                )
                for sums in self._sums_of((TeamKey("queue", name),)):
                    sums.entitled += entitled / DEVICE
        self._now = max(self._now, now)

    def observe(self, change: Change) -> None:
        """Update the figures after a change of the state."""
        data = change.data
        if isinstance(data, PodEvicted) and data.pod in self._using:
            use = self._using[data.pod]
            self._add_up(use)
            for sums in self._sums_of(use.teams):
                sums.evicted += 1
                sums.lost += use.before
        elif isinstance(data, PodGroupObserved) and data.group in self._state.groups:
            for pod in self._state.groups[data.group].pods.values():
                self._move(pod)
        elif isinstance(data, QueueObserved):
            for uid in self._waiting.keys() | self._using.keys():
                self._move(self._state.pods[uid])
        if change.pod is not None:
            self._note(change.pod)
        elif change.node is not None:  # its devices can have come or gone
            for pod in change.node.pods.values():
                self._note_use(pod)

    def figures(self) -> dict[TeamKey, TeamFigures]:
        """Return the figures for the whole time span, by team."""
        self.advance(self._begin_s + self._seconds)
        for use in self._using.values():
            self._add_up(use)
        queues = {TeamKey("queue", name) for name in self._state.queues if name != ROOT}
        teams = self._sums.keys() | queues
        namespaces = self._state.quotas.keys() | self._state.namespaces.keys()
        teams |= {TeamKey("namespace", name) for name in namespaces}
        unplaced: dict[TeamKey, list[float]] = {}
        waited = dict.fromkeys(teams, 0.0)
        for wait in self._waiting.values():
            for team in wait.teams:
                unplaced.setdefault(team, []).append(self._now - wait.since_s)
                waited[team] += wait.gpus * (self._now - max(wait.since_s, 0.0))
        found = {}
        for team in teams:
            sums = self._sums.get(team) or _Sums(array("d"))
            waits = np.array([*sums.waits, *unplaced.get(team, ())])
            entitled = team.kind == "queue" and self._sampled
            found[team] = TeamFigures(
                arrived=sums.arrived,
                placed=sums.placed,
                unplaced=sums.waiting,
                evicted=sums.evicted,
                wait_mean_s=rounded(float(waits.mean()) if len(waits) else 0.0),
                wait_p95_s=quantile(waits, P95),
                wait_max_s=quantile(waits, 1.0),
                gpu_hours_waited=rounded((sums.waited + waited[team]) / HOUR_S),
                gpu_hours_used=rounded(sums.used / HOUR_S),
                gpu_hours_evicted=rounded(sums.lost / HOUR_S),
                gpus=rounded(sums.used / max(self._seconds, 1e-9)),
                gpus_entitled=rounded(sums.entitled / self._sampled) if entitled else None,
                cost=rounded(sums.cost / HOUR_S) if self._prices else None,
            )
        return found

    # -------------------------------------------------------------- pods

    def _note(self, pod: PodState) -> None:
        live = self._state.pods.get(pod.uid) is pod
        waits = live and pod.placement is None and not pod.submitted.gates
        wait = self._waiting.get(pod.uid)
        if waits and wait is None:
            teams = self._teams_of(pod)
            self._waiting[pod.uid] = _Wait(teams, self._now, self._gpus_of(pod))
            for sums in self._sums_of(teams):
                sums.waiting += 1
                sums.arrived += pod.uid not in self._seen
            self._seen.add(pod.uid)
        elif not waits and wait is not None:
            del self._waiting[pod.uid]
            placed = live and pod.placement is not None and pod.uid not in self._placed
            for sums in self._sums_of(wait.teams):
                sums.waiting -= 1
                sums.placed += placed
                sums.waits.append(self._now - wait.since_s)
                sums.waited += wait.gpus * (self._now - max(wait.since_s, 0.0))
            if placed:
                self._placed.add(pod.uid)
        self._note_use(pod)

    def _note_use(self, pod: PodState) -> None:
        use = self._using.get(pod.uid)
        if use is not None:
            self._add_up(use)
        if self._state.pods.get(pod.uid) is not pod or pod.placement is None:
            self._using.pop(pod.uid, None)
            return
        if use is None:
            use = self._using[pod.uid] = _Use(self._teams_of(pod), self._now)
        taken = self._used_by(pod)
        use.gpus = taken.total() / DEVICE
        if self._prices is not None:
            price = sum(float(self._prices.of(model)) * part for model, part in taken.items())
            use.price = price / DEVICE

    def _add_up(self, use: _Use) -> None:
        seconds = self._now - use.since_s
        for sums in self._sums_of(use.teams):
            sums.used += use.gpus * seconds
            sums.cost += use.price * seconds
        use.before += use.gpus * seconds
        use.since_s = self._now

    def _move(self, pod: PodState) -> None:
        uid, teams = pod.uid, self._teams_of(pod)
        wait, use = self._waiting.get(uid), self._using.get(uid)
        one = wait or use
        if one is None or one.teams == teams:
            return
        left = one.teams
        if use is not None:
            self._add_up(use)
            use.teams = teams
        for keys, by in ((left, -1), (teams, 1)):
            for sums in self._sums_of(keys):
                sums.waiting += by if wait is not None else 0
                sums.arrived += by if uid in self._seen else 0
                sums.placed += by if uid in self._placed else 0
        if wait is not None:
            wait.teams = teams

    def _used_by(self, pod: PodState) -> Counter[str]:
        # By model, in thousandths of a device.
        placement = pod.placement
        node = self._state.nodes.get(placement.node) if placement is not None else None
        if placement is None or node is None or not node.present:
            return Counter()

        def of_share(share: Share) -> Iterable[tuple[str, int]]:
            held = node.by_id.get(share.device)
            if held is not None and held.present:
                yield held.device.model, worth_of(held.device, share.memory_mib, share.cores)

        return most_at_once(pod.submitted.shape, placement.shares, of_share)

    def _teams_of(self, pod: PodState) -> tuple[TeamKey, ...]:
        path = path_in(self._state.queues, queue_of(self._state, pod))
        queues = (TeamKey("queue", name) for name in path if name != ROOT)
        return (*queues, TeamKey("namespace", pod.submitted.namespace))

    def _sums_of(self, teams: Iterable[TeamKey]) -> Iterable[_Sums]:
        for team in teams:
            sums = self._sums.get(team)
            if sums is None:
                sums = self._sums[team] = _Sums(array("d"))
            yield sums

    # -------------------------------------------------------------- entitlements


def compared(
    happened: dict[TeamKey, TeamFigures], replayed: dict[TeamKey, TeamFigures]
) -> tuple[Team, ...]:
    """Return all teams of both courses, with the queues before the namespaces."""
    teams = happened.keys() | replayed.keys()
    in_order = sorted(teams, key=lambda team: (team.kind != "queue", natural(team.name)))
    return tuple(
        Team(
            kind=team.kind, name=team.name,
            happened=happened.get(team, NOTHING), replayed=replayed.get(team, NOTHING),
        )
        for team in in_order
    )  # fmt: skip
