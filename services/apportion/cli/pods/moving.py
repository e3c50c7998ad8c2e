"""Move units of running pods for `drain` and `defrag`: end and resubmit them, or evict them.

Invariant: Ctrl-C and the time limit take effect between two units, and the outcome says what was
done until then."""

import asyncio
import time
from collections.abc import Iterable, Mapping

import msgspec

from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.ledger import appending, to_its_end
from apportion.cli.exits import NotFound, Unreachable
from apportion.cli.pods.append import Submitted
from apportion.cli.pods.decisions import Awaited
from apportion.cli.pods.pending import waits_for
from apportion.cli.pods.resubmit import Anew, Blocked, Unit
from apportion.cli.render.output import console
from apportion.core.answers.reads import PodAnswer, Why
from apportion.core.explain.text import words
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.process.config import ConfigError
from apportion.runtime.service.options import KubeChoice

LOOK_EVERY_S = 1.0
AGAIN_AFTER_S = 5.0  # as kubectl: a disruption budget may allow an eviction later
BY_HAND = "by Ctrl-C"
UNDECIDED = "undecided"
LEAVING = "evicted, still ending"
REASON_MAX = 1024  # characters of the reason of a cordon
NAMED_MAX = 10  # pods or nodes that are named; `--json` has all


class Moving(msgspec.Struct, frozen=True, kw_only=True):
    """Who moves pods and why, the time limit, and how to reach the API server."""

    what: str  # as in `node gpu-1`, for errors
    who: str
    why: str  # recorded as the reason for which the pods end
    timeout_s: float
    kube: KubeChoice
    force: bool = False  # in Kubernetes, also evict pods without a controller

    def is_late(self, deadline: float, outcome: "Outcome") -> bool:
        """Return True, and note it in `outcome`, if this monotonic time has passed."""
        late = time.monotonic() > deadline
        if late:
            outcome.stopped = f"after {self.timeout_s:g} s"
        return late


class Outcome(msgspec.Struct, kw_only=True):
    """What became of the pods. The keys of its maps are pods, as `namespace/name`."""

    moved: dict[str, str] = {}  # new node; "" if it ended or its controller recreates it
    waiting: dict[str, str] = {}  # why a pod that was moved is pending
    left: dict[str, str] = {}  # why a pod was not moved
    was: dict[str, str] = {}  # previous node
    evicted: dict[str, list[str]] = {}  # by moved pod: the pods evicted for it
    stopped: str = ""


class Progress:
    """Prints a line for each unit, with the number of pods done so far."""

    def __init__(self, units: Iterable[Unit]) -> None:
        self._out = console(stderr=True)
        self._total = sum(len(unit.pods) for unit in units)
        self._done = 0

    def tell(self, unit: Unit, *, stays: bool = False) -> None:
        """Print that the unit was moved, or, if it `stays`, that it was not."""
        self._done += len(unit.pods)
        count = words.many(len(unit.pods), "pod")
        what = f"gang {unit.gang}, {count}" if unit.gang else unit.names[0]
        said = f"{self._done:,} of {words.many(self._total, 'pod')}: {what}"
        self._out.say(said + (", not moved" if stays else ""))


async def move_units(
    ledger: JetStreamLedger, moving: Moving, outcome: Outcome, units: list[Unit], deadline: float,
    *, basis: int,
) -> Awaited:  # fmt: skip
    """End and resubmit each unit, and wait for the decisions about the new pods.

    `deadline` is a monotonic time. Raises LedgerError, NotFound, Outdated."""
    submitted = list[Submitted]()
    async with appending(ledger, moving.who) as (commit, _):
        anew, progress = Anew(ledger, commit, moving.who, moving.why), Progress(units)
        for unit in units:
            if moving.is_late(deadline, outcome):
                break
            submitted += await to_its_end(_move(anew, unit, outcome, progress, basis=basis))
    awaited = Awaited(submitted, lambda: None)
    try:
        await awaited.wait(ledger, max(deadline - time.monotonic(), LOOK_EVERY_S))
    finally:
        note_decisions(outcome, awaited, {})
    return awaited


async def _move(
    anew: Anew, unit: Unit, outcome: Outcome, progress: Progress, *, basis: int
) -> list[Submitted]:
    try:
        moved = await anew.move(unit, basis=basis)
    except Blocked as error:
        outcome.left |= dict.fromkeys(unit.names, str(error))
        progress.tell(unit, stays=True)
        return []
    progress.tell(unit)
    for name in unit.names:
        outcome.left.pop(name, None)
        if name in moved.ended:
            outcome.moved[name] = ""
        else:
            outcome.waiting[name] = UNDECIDED
    return moved.submitted


def note_decisions(outcome: Outcome, awaited: Awaited, now: Mapping[str, Why]) -> None:
    """Note where the new pods are placed, or why they are pending; `now` has answers by uid."""
    for uid in filter(awaited.decided.__contains__, awaited.pods):  # in the order of the moves
        name, said, why = awaited.pods[uid].full_name, awaited.decided[uid], now.get(uid)
        placed = said.placed or (why.placed if why is not None else None)
        if placed is not None:
            outcome.waiting.pop(name, None)
            outcome.moved[name] = placed.node
        elif said.refused is not None:
            outcome.waiting[name] = waits_for(awaited, uid, why)
    outcome.evicted |= {awaited.pods[uid].full_name: gone for uid, gone in awaited.evicted.items()}


async def evict_units(
    gateway: Gateway, moving: Moving, outcome: Outcome, units: list[Unit], deadline: float
) -> None:
    """In Kubernetes, evict each unit and wait for its pods to end. Raises NotFound, Unreachable."""
    from apportion.cli.pods.evict import Evicting, evict_all
    from apportion.runtime.kube.client import KubeRefused

    evicted: dict[str, PodAnswer] = {}
    progress = Progress(units)

    def asked(unit: Unit) -> None:
        for pod, name in zip(unit.pods, unit.names, strict=True):
            evicted[name] = pod
            outcome.left[name] = LEAVING
        progress.tell(unit)

    def note_gone() -> None:
        live: set[str] = set()
        for namespace in sorted({pod.namespace for pod in evicted.values()}):
            _, pods = gateway.items("pods", PodAnswer, {"namespace": namespace})
            live |= {pod.uid for pod in pods}
        for name, pod in list(evicted.items()):
            if pod.uid not in live:
                del evicted[name]
                outcome.left.pop(name, None)
                outcome.moved[name] = ""

    def blocked(unit: Unit, why: str) -> None:
        outcome.left |= dict.fromkeys(unit.names, why)

    try:
        async with asyncio.timeout(max(deadline - time.monotonic(), 0)), moving.kube.open() as api:
            evicting = Evicting(api, force=moving.force)
            work = asyncio.create_task(
                evict_all(evicting, units, pause_s=AGAIN_AFTER_S, asked=asked, blocked=blocked)
            )
            try:
                while not work.done() or (evicted and work.exception() is None):
                    await asyncio.sleep(LOOK_EVERY_S)
                    await asyncio.to_thread(note_gone)
                await work
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
    except TimeoutError:
        outcome.stopped = f"after {moving.timeout_s:g} s"
    except ConfigError as error:
        raise Unreachable(f"API server, for {moving.what}: {error}") from None
    except KubeRefused as error:
        raise NotFound(f"refused by the API server: {error}") from None


async def try_units(moving: Moving, units: Iterable[Unit]) -> dict[str, str]:
    """In Kubernetes, try the evictions of all units in a dry run. Return the refusals by pod.

    Raises Unreachable."""
    from apportion.cli.pods.evict import Evicting
    from apportion.runtime.kube.client import KubeRefused, KubeUnavailable

    refused: dict[str, str] = {}
    try:
        async with moving.kube.open() as api:
            evicting = Evicting(api, force=moving.force)
            for unit in units:
                try:
                    await evicting.try_out(unit)
                except (Blocked, KubeRefused) as error:
                    refused |= dict.fromkeys(unit.names, str(error))
    except (ConfigError, KubeUnavailable) as error:
        raise Unreachable(f"API server, for {moving.what}: {error}") from None
    return refused


def how_far(outcome: Outcome) -> list[str]:
    """Return one line per count: pods moved, pending, still ending and not moved."""
    leaving = sum(why == LEAVING for why in outcome.left.values())
    parts = (
        (len(outcome.moved), "moved"),
        (len(outcome.waiting), "pending: the scheduler continues without this command"),
        (leaving, "evicted: still ending"),
        (len(outcome.left) - leaving, "not moved: still running"),
    )
    said = [f"{words.many(count, 'pod')} {what}" for count, what in parts if count]
    return said or ["no pod was moved"]
