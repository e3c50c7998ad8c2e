"""Turns deliveries into recorded bindings, evictions and resizes, applied by a `Target`.

Invariants: a delivery is acknowledged only after its outcome is durable in the ledger. So a binder
may die at any point, and a delivery may come any number of times. If this build cannot read a
delivery, the binder returns it to the queue for a newer binder, and stops fetching."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import Protocol, TypeVar

import msgspec

from apportion.core.ledger.fold import PLACEMENT_SUBJECTS, Change
from apportion.core.ledger.handlers.gangs import is_held
from apportion.core.ledger.handlers.turns import ahead
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.ledger.state import Phase, State
from apportion.runtime.ledger.port import Delivery, LedgerUnavailable, WorkQueue
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import BackOff, Clock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import (
    BindFailed,
    EventError,
    PodBound,
    PodEvicted,
    PodPlaced,
    PodResized,
    UnknownEvent,
)
from apportion_schemas.catalogue import untoken
from apportion_schemas.quantities import TEXT_MAX

T = TypeVar("T")
BIND_TIMEOUT_S = 20.0
# After this long without progress, a delivery goes to another binder. A slow binder reports
# progress earlier.
ACK_WAIT_S = 6.0
BATCH = 256
IN_FLIGHT_MAX = 1_024
FETCH_TIMEOUT_S = 5.0
FETCH_PAUSE_S = 0.5
TRIES_MAX = 8
BACK_OFF = BackOff(0.5, 30.0)  # pause before a failed placement is tried again
TURN = BackOff(0.1, 1.0)  # pause of a placement that waits for its turn or for the node's agent
HOLD_S = 20.0  # longest wait for an agent that is away: a restart takes some seconds

_log = logging.getLogger(__name__)


class Bound(msgspec.Struct, frozen=True):
    """Outcome of a bind: the pod is bound to the placement's node, by this or an earlier call."""

    earlier: bool = False


class Failed(msgspec.Struct, frozen=True):
    """Outcome of a bind, eviction or resize that did not succeed.

    If `unknown`, the pod may use the devices already, so the placement is not voided."""

    message: str
    final: bool  # no retry can help
    unknown: bool = False  # the API server did not answer
    waits: bool = False  # retry without limit, for something that will become available


Outcome = Bound | Failed


class Target(Protocol):
    """The system in which a binder applies placements, evictions and resizes to pods."""

    async def bind(self, placed: PodPlaced) -> Outcome:
        """Bind the pod. Return errors as an outcome instead of raising them."""

    async def evict(self, evicted: PodEvicted, later: int | None = None) -> Failed | None:
        """Start the pod's eviction. Return None once the pod is ending or gone. Repeatable.

        With `later`, in microseconds since 1970, only announce to the pod that it will be deleted
        then."""

    async def resize(self, resized: PodResized) -> Failed | None:
        """Write the new shares to the pod. Return None or the failure; `final` if the pod is
        gone."""


class LocalTarget:
    """The target without an API server: the node's agent reads PodBound from the ledger."""

    async def bind(self, placed: PodPlaced) -> Outcome:  # noqa: ARG002 - nothing can go wrong
        """Report the pod as bound, because PodBound in the ledger is the binding."""
        return Bound()

    async def evict(self, evicted: PodEvicted, later: int | None = None) -> Failed | None:
        """Do nothing: the source of the pod reads the event in the ledger and ends the pod."""

    async def resize(self, resized: PodResized) -> Failed | None:  # noqa: ARG002 - as above
        """Do nothing, because the ledger already has the new shares."""
        return None


class Binding:
    """Handles each delivery in its own task, so that a slow bind delays no other delivery."""

    def __init__(
        self, state: State, target: Target, publisher: Publisher, *, clock: Clock, metrics: Metrics
    ) -> None:
        self._clock = clock
        self._state = state
        self._target = target
        self._publisher = publisher
        self._tasks: dict[asyncio.Task[None], Delivery] = {}
        self._room = asyncio.Event()
        self._away: dict[str, tuple[str, float]] = {}
        self._unread = ""
        self._outcomes = metrics.counter(
            "apportion_bindings_total",
            "Placements and evictions handled by this binder, by outcome.",
            ("outcome",),
        )
        metrics.gauge(
            "apportion_binder_in_flight", "Number of placements that are being bound now."
        ).set_function(lambda: len(self._tasks))

    def not_ready(self) -> list[str]:
        """Return why this binder takes no more deliveries; empty while it takes them."""
        return [self._unread] if self._unread else []

    async def run(self, queue: WorkQueue, reader: Reader[Change]) -> None:
        """Handle deliveries until cancelled, or until this build cannot read a delivery.

        Finishes the deliveries in progress. Raises LedgerErrors that a retry cannot fix."""

        def ended(task: asyncio.Task[None]) -> None:
            del self._tasks[task]
            if len(self._tasks) <= IN_FLIGHT_MAX - BATCH:
                self._room.set()

        await reader.caught_up()
        async with asyncio.TaskGroup() as group:
            while not (self._unread or reader.halted):
                for delivery in await self._fetch(queue, reader):
                    task = group.create_task(self._see_through(delivery))
                    self._tasks[task] = delivery
                    task.add_done_callback(ended)
                while len(self._tasks) > IN_FLIGHT_MAX - BATCH:  # fetch many or none
                    self._room.clear()
                    await self._room.wait()
            await queue.leave()

    async def hold(self) -> None:
        """Keep extending the timeouts of deliveries in progress, so no other binder gets them."""
        while True:
            held = set(self._tasks.values())
            await self._clock.pause(ACK_WAIT_S / 3)
            for delivery in held.intersection(self._tasks.values()):
                with contextlib.suppress(LedgerUnavailable):
                    await delivery.progress()

    async def _fetch(self, queue: WorkQueue, reader: Reader[Change]) -> list[Delivery]:
        """Fetch deliveries. Return those whose event was folded, and give the others back."""
        room = IN_FLIGHT_MAX - len(self._tasks)
        try:
            deliveries = await queue.fetch(min(BATCH, room), FETCH_TIMEOUT_S)
        except LedgerUnavailable:
            await self._clock.pause(FETCH_PAUSE_S)  # the connection comes back by itself
            return []
        passed = []
        for delivery in deliveries:
            if await reader.folds(delivery.record.revision):
                passed.append(delivery)
            else:
                await self._give_back(delivery)
        return passed

    async def _give_back(self, delivery: Delivery) -> None:
        self._outcomes.labels("left to a newer build").inc()
        with contextlib.suppress(LedgerUnavailable):  # else it is redelivered after ACK_WAIT_S
            await delivery.retry(0)

    async def _see_through(self, delivery: Delivery) -> None:
        try:
            await self.settle(delivery)
        except LedgerUnavailable as error:
            # The delivery comes again; if it was recorded already, it is skipped.
            _log.info("revision %d not acknowledged: %s", delivery.record.revision, error)

    async def settle(self, delivery: Delivery) -> None:
        """Handle a delivery whose event the fold has read. A LedgerError leads to redelivery."""
        record = delivery.record
        try:
            event = self._state.rules.read(record.revision, record.subject, record.payload)
            placed = event.data
        except EventError as error:
            await self._leave_unread(delivery, error)
            return
        if isinstance(placed, PodEvicted):
            await self._evict(placed, delivery, begun=event.time)
            return
        if isinstance(placed, PodResized):
            await self._tell_resized(placed, delivery)
            return
        live = isinstance(placed, PodPlaced) and self._is_live(placed, record.revision)
        if live:
            pod = self._state.pods[placed.pod]
            waits = ahead(self._state, pod) is not None
            if waits:  # record the reason once
                message = f"waiting for another pod: node {placed.node} starts one pod at a time"
                if pod.last_failure != message:
                    await self._publish_failed(placed, message, "bind-waits", delivery)
            else:  # for the rest of the gang, or for the node's agent
                waits = is_held(self._state, pod) or (
                    bool(placed.shares) and self._is_away(placed.node)
                )
            if waits:
                self._outcomes.labels("waits for its turn").inc()
                await delivery.retry(TURN.after(delivery.attempt))
                return
        outcome = await self._bind(placed) if live else None
        if outcome is None or not self._is_live(placed, record.revision):
            # Another binder, or the end of the pod, has settled it already.
            await self._done(delivery, "passed over")
            return
        if isinstance(outcome, Bound):
            await self._record_bound(placed, delivery)
        else:
            await self._record_failed(placed, outcome, delivery)

    def _is_away(self, name: str) -> bool:
        """Return True if the node's agent has just stopped, so the kubelet would fail new pods."""
        node = self._state.nodes.get(name)
        if node is None or not node.silent or node.foreign_plugin or node.observed is None:
            self._away.pop(name, None)
            return False
        now_s = self._clock.monotonic()
        if self._away.get(name, ("", 0.0))[0] != node.silent:
            self._away[name] = node.silent, now_s
        return now_s - self._away[name][1] < HOLD_S

    async def _evict(self, evicted: PodEvicted, delivery: Delivery, *, begun: str) -> None:
        if self._state.evictions.get(evicted.pod) != evicted:
            await self._done(delivery, "passed over")
            return
        end = (micros_of(begun) or 0) + evicted.notice_s * SECOND
        left_s = min(end / SECOND - self._clock.now().timestamp(), evicted.notice_s)
        failed = await _in_time(self._target.evict(evicted, end if left_s > 0 else None))
        if failed is None and left_s > 0:
            self._outcomes.labels("eviction announced").inc()
            await delivery.retry(left_s)
            return
        if failed is None:
            await self._done(delivery, "evicted")
            return
        name = f"{evicted.namespace}/{evicted.name}"
        _log.warning("pod %s not evicted, retrying: %s", name, failed.message)
        self._outcomes.labels("not evicted yet").inc()
        await delivery.retry(BACK_OFF.after(delivery.attempt))

    async def _tell_resized(self, resized: PodResized, delivery: Delivery) -> None:
        pod = self._state.pods.get(resized.pod)
        placed = pod.placement if pod is not None else None
        if placed is None or (placed.attempt, placed.shares) != (resized.attempt, resized.shares):
            await self._done(delivery, "passed over")
            return
        failed = await _in_time(self._target.resize(resized))
        if failed is None or failed.final:
            await self._done(delivery, "resized" if failed is None else "passed over")
            return
        name = f"{resized.namespace}/{resized.name}"
        _log.warning(
            "annotations of pod %s not updated after its resize, retrying: %s", name, failed.message
        )
        await delivery.retry(BACK_OFF.after(delivery.attempt))

    async def _leave_unread(self, delivery: Delivery, error: EventError) -> None:
        # A newer build's snapshot may have a pod placed by an event that this build cannot read.
        record = delivery.record
        node = self._state.nodes.get(untoken(record.subject.removeprefix(PLACEMENT_SUBJECTS)))
        is_taken = node is not None and any(
            pod.phase is Phase.PLACED and pod.placed_revision == record.revision
            for pod in node.pods.values()
        )
        if not isinstance(error, UnknownEvent) and not is_taken:
            await self._done(delivery, "passed over")
            return
        if not self._unread:
            self._unread = (
                f"binding stopped: cannot read revision {record.revision} on {record.subject}: "
                f"{error}"
            )
            _log.critical("%s", self._unread)
        await self._give_back(delivery)

    def _is_live(self, placed: PodPlaced, revision: int) -> bool:
        pod = self._state.pods.get(placed.pod)
        if pod is None or pod.phase is not Phase.PLACED or pod.placed_revision != revision:
            return False
        return placed.pod not in self._state.failing

    async def _bind(self, placed: PodPlaced) -> Outcome:
        return await _in_time(self._target.bind(placed))

    async def _record_bound(self, placed: PodPlaced, delivery: Delivery) -> None:
        data = PodBound(pod=placed.pod, node=placed.node, attempt=placed.attempt)
        await self._publish(data, f"{placed.pod}/{placed.attempt}/bound", delivery)
        await self._done(delivery, "bound")

    async def _record_failed(self, placed: PodPlaced, failed: Failed, delivery: Delivery) -> None:
        tries = delivery.attempt
        final = failed.final or (tries >= TRIES_MAX and not (failed.unknown or failed.waits))
        message, name = failed.message[:TEXT_MAX], f"bind-failed/{tries}"
        pod = self._state.pods.get(placed.pod)
        if not failed.waits or pod is None or pod.last_failure != message:  # told once
            await self._publish_failed(placed, message, name, delivery, final=final)
        self._outcomes.labels("failed for good" if final else "failed for now").inc()
        if final:
            await delivery.ack()
        else:
            await delivery.retry(BACK_OFF.after(tries))

    async def _publish_failed(
        self, placed: PodPlaced, message: str, name: str, delivery: Delivery, *, final: bool = False
    ) -> None:
        pod, attempt = placed.pod, placed.attempt
        data = BindFailed(pod=pod, node=placed.node, attempt=attempt, message=message, final=final)
        await self._publish(data, f"{pod}/{attempt}/{name}", delivery)

    async def _done(self, delivery: Delivery, outcome: str) -> None:
        self._outcomes.labels(outcome).inc()
        await delivery.ack()

    async def _publish(
        self, data: PodBound | BindFailed, event_id: str, delivery: Delivery
    ) -> None:
        await self._publisher.publish(
            data, event_id=event_id, basis=self._state.revision, cause=delivery.record.revision
        )


async def _in_time(effect: Awaitable[T]) -> T | Failed:
    try:
        async with asyncio.timeout(BIND_TIMEOUT_S):
            return await effect
    except TimeoutError:
        return Failed(f"no answer within {BIND_TIMEOUT_S:g} s", final=False, unknown=True)
