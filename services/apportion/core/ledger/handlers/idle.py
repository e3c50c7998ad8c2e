"""Keep track of shares that do no work, if the configuration's section `idle` asks for it.

Nodes report once an hour how much each share used. A share is idle while the peaks in consecutive
reports are below `idle.below`. Time without reports does not count: after a gap, the share starts
again from zero. Shares whose compute is not measured never count. The times are sums by the node's
clock, so a wrong clock makes no share idle. Invariant: only shares of placed pods are listed, and
none without `idle.after`."""

from typing import Final, NamedTuple

from apportion.core.configuration.checks import idle_after_s
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.moments import HOUR, SECOND, micros_of
from apportion.core.ledger.state import IdleShare, PodState, State
from apportion_schemas import (
    ConfigurationChanged,
    PlacementVoided,
    PodChanged,
    PodGone,
    Share,
    ShareUsed,
    UsageRecorded,
)
from apportion_schemas.configuration import IdleConfiguration

GAP: Final = HOUR // 2  # the longest time without reports that does not end an idle period
STALE: Final = 2 * HOUR + GAP  # the age at which a report no longer shows what a pod does now
KEEP: Final = ("apportion.dev/idle", "keep")  # the label of pods that may be idle


def configure(state: State, before: IdleConfiguration) -> None:
    """Start, restart or end the search for idle shares, as the state's configuration says.

    `before` is the section until now."""
    now = state.configuration.idle
    if not now.after:
        state.idle = None
    elif state.idle is None or now.below != before.below:
        state.idle = {}


def follow(state: State, idle: dict[str, dict[str, IdleShare]], change: Change, time: str) -> None:
    """Apply one change of the state, made by an event of this time."""
    data = change.data
    if isinstance(data, UsageRecorded):
        end = micros_of(time)
        for used in data.shares if end is not None else ():
            note(state, idle, used, data, end or 0)
    elif isinstance(data, PodGone):
        idle.pop(data.uid, None)
    elif isinstance(data, PlacementVoided):
        idle.pop(data.pod, None)


def note(
    state: State,
    idle: dict[str, dict[str, IdleShare]],
    used: ShareUsed,
    data: UsageRecorded,
    end: int,
) -> None:
    """Add the use of one share, from a report that ends at `end` by the clock of the node."""
    pod = state.pods.get(used.pod)
    placed = pod.placement if pod is not None else None
    if pod is None or placed is None or placed.node != data.node:
        return
    key = _key(used)
    if not used.seconds or key not in map(_key, placed.shares):
        return
    shares = idle.get(used.pod, {})
    before = shares.pop(key, None)
    if not works(used, state.configuration.idle.below):
        start = end - used.seconds * SECOND
        if before is None or start - before.until > GAP or end < before.since:
            before = IdleShare(0, start, start, 0)
        seconds = max(min(used.seconds, (end - before.until) // SECOND), 0)
        until = max(end, before.until)
        shares[key] = IdleShare(before.seconds + seconds, before.since, until, used.memory_mib_peak)
    if shares:
        idle[used.pod] = shares
    else:
        idle.pop(used.pod, None)


def works(used: ShareUsed, below: int) -> bool:
    """Return True if the share's peak shows work, by `idle.below`, or compute is not measured."""
    if used.cores_seconds is None:
        return True  # not measured
    peak = used.cores_peak or bool(used.cores_seconds)
    return peak * 100 >= max(below * (used.cores or 100), 1)


def _key(share: Share | ShareUsed) -> str:
    found = f"{share.container}/{share.device}"
    return found if share.instance is None else f"{found}/{share.instance.start}"


class IdlePod(NamedTuple):
    """How long a pod has done no work on any of its devices.

    `since` and `until` are in microseconds since 1970, by the clock of the node."""

    seconds: int
    since: int
    until: int
    memory_mib: int  # the peaks of its shares in their last reports


def idle_pod(state: State, pod: PodState, now: int = 0) -> IdlePod | None:
    """Return how long the pod has done no work, if it counts as idle by the configuration.

    `now` is in microseconds since 1970, or 0 if unknown. A pod is not idle if the last report is
    too old or in the future, or if the agent of its node is silent."""
    known = state.idle.get(pod.uid) if state.idle else None
    placed = pod.placement
    if known is None or placed is None or len(known) < len({*map(_key, placed.shares)}):
        return None
    policy = state.configuration.idle
    if policy.namespaces and pod.submitted.namespace not in policy.namespaces:
        return None
    if pod.submitted.labels.get(KEEP[0]) == KEEP[1] or state.nodes[placed.node].silent:
        return None
    shares = known.values()
    found = IdlePod(
        min(each.seconds for each in shares),
        max(each.since for each in shares),
        min(each.until for each in shares),
        sum(each.memory_mib for each in shares),
    )
    if found.seconds < idle_after_s(policy) or (now and not -GAP <= now - found.until <= STALE):
        return None
    return found


def reclaims(state: State) -> bool:
    """Return True if idle pods may be evicted, and there may be some."""
    return bool(state.idle) and state.configuration.idle.action == "reclaim"


class IdleNews:
    """Remembers which pods are idle, so that each is reported once while it stays idle."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: set[str] = set()

    def news(self, change: Change | None = None, stale: set[str] | None = None) -> list[PodState]:
        """Return the pods that are idle since this change; without a change, all idle pods.

        Pods in `stale` are news again with their next report, which removes them from the set."""
        state, data = self._state, change.data if change is not None else None
        if not state.idle:
            self._known.clear()
            if stale:
                stale.clear()
            return []
        if change is None or isinstance(data, ConfigurationChanged):
            uids = list(state.idle)
            self._known.clear()
        elif isinstance(data, UsageRecorded):
            uids = list(dict.fromkeys(used.pod for used in data.shares))
            if stale:
                self._known.difference_update(stale.intersection(uids))
                stale.difference_update(uids)
        elif isinstance(data, PodChanged | PodGone):
            uids = [data.uid]
            if stale:
                stale.discard(data.uid)
        else:
            return []
        found: list[PodState] = []
        for uid in uids:
            pod = state.pods.get(uid)
            if pod is None or idle_pod(state, pod) is None:
                self._known.discard(uid)
            elif uid not in self._known:
                self._known.add(uid)
                found.append(pod)
        return found
