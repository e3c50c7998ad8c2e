"""Tests of what the scheduler does if the ledger refuses a decision: it retries a limited number of
times, each time for fewer pods."""

import asyncio
import random
from collections.abc import Callable, Sequence

import msgspec
import pytest

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import Phase
from apportion.core.placement.engine import EVENTS_MAX
from apportion.runtime.ledger import starting
from apportion.runtime.ledger.batching import FEW_DRAFTS, Appended
from apportion.runtime.ledger.port import Draft
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.metrics import Metrics
from apportion.scheduler.cycle import REFUSALS_MAX, Cycle, DecisionMetrics, DecisionsRefused
from apportion_schemas import Event, PolicyChanged, ShareUsed, UsageRecorded, encode, subject_of
from apportion_schemas.catalogue import BY_PAYLOAD
from apportion_schemas.quantities import Payload
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.fleet import rack
from tests.support.idling import looking
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer
from tests.support.pods import ask, cards, pod
from tests.support.prices import learnt, priced, whole

TIME = "2026-01-01T00:00:00.000000Z"
PODS = 40
HALVINGS = (EVENTS_MAX // FEW_DRAFTS).bit_length() - 1
"""The number of halvings until decisions are small."""


class RivalledLedger(MemoryLedger):
    """A ledger connection on which a rival writes just before each of the first `rivals`
    appends."""

    rivals = 0

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append the events. If the rival has writes left, it writes first."""
        self.sizes.append(len(drafts))
        if self.rivals:
            self.rivals -= 1
            rival = Draft(drafts[0].subject, f"rival-{len(self.sizes)}", b"{}")
            self.server.append([rival], {}, role="scheduler", writer="rival")
        return await super().append(drafts)

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server, role="scheduler")
        self.sizes: list[int] = []


class Scheduler:
    """A scheduler with an in-memory ledger, one large node and forty pods."""

    def __init__(self, *, rivals: int) -> None:
        self.server = MemoryServer()
        self.ledger = RivalledLedger(self.server)
        self.ledger.rivals = rivals
        self.metrics = Metrics()
        self.cluster = StateFold()
        clock = SkewedClock(random.Random(7), skew_s=0.0)
        publisher = Publisher("scheduler/test", clock, _nothing)
        self.cycle = Cycle(
            self.cluster.state, self.ledger, clock=clock, publisher=publisher, sound=_at_once
        )
        self.reader: Reader[Change] = Reader(
            self.ledger, self.cluster, metrics=self.metrics, on_change=self.cycle.observe
        )
        self.write(rack("n1", 8))
        self.write(*(pod(f"p{number:02}", ask(1000, cores=1)) for number in range(PODS)))

    def write(self, *payloads: Payload) -> None:
        """Append these events as other services do."""
        for data in payloads:
            row = BY_PAYLOAD[type(data)]
            identity = f"test-{self.server.last_revision}"
            event = Event(id=identity, source=f"{row.writer}/test", time=TIME, data=data)
            draft = Draft(subject_of(data), identity, encode(event))
            self.server.append([draft], {}, role=row.appender, writer=row.writer)

    async def run(self) -> None:
        """Read the ledger and decide, until the task is cancelled or fails."""
        decisions = DecisionMetrics(self.metrics, self.cycle.engine)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.reader.run())
            tasks.create_task(self.cycle.run(self.reader, decisions, _at_once))

    def counted(self, outcome: str) -> float:
        """Return how many decisions had this outcome, according to the scheduler's metrics."""
        labels = {"outcome": outcome}
        return self.metrics.registry.get_sample_value("apportion_decisions_total", labels) or 0.0

    @property
    def placed(self) -> int:
        pods = self.cluster.state.pods.values()
        return sum(each.phase is Phase.PLACED for each in pods)


async def _at_once() -> None:
    return


async def _nothing(_draft: Draft) -> Appended:
    raise AssertionError("a cycle appends whole decisions only")


def after(rivals: int, *, check: Callable[[Scheduler], None]) -> None:
    """Run a scheduler while a rival writes `rivals` times. Then call `check`."""

    async def main() -> None:
        scheduler = Scheduler(rivals=rivals)
        running = asyncio.create_task(scheduler.run())
        await rest(60.0)
        running.cancel()
        check(scheduler)

    run_virtually(main())


def test_a_refused_decision_is_made_again_and_counted() -> None:
    """If the ledger refuses a decision, the scheduler counts the refusal and decides again on the
    new state."""

    def check(scheduler: Scheduler) -> None:
        assert scheduler.placed == PODS
        assert (scheduler.counted("refused"), scheduler.counted("taken")) == (1.0, 1.0)
        again = scheduler.metrics.registry.get_sample_value("apportion_decided_again_total")
        assert again == PODS

    after(1, check=check)


def test_each_refusal_halves_the_next_decision() -> None:
    """After each refusal by the ledger, the scheduler decides for half as many pods.

    If a decision is small enough, its events are appended one by one."""

    def check(scheduler: Scheduler) -> None:
        sizes = [min(PODS, EVENTS_MAX >> refused) for refused in range(HALVINGS)]
        assert scheduler.ledger.sizes == [*sizes, *[1] * FEW_DRAFTS, PODS - FEW_DRAFTS]
        assert scheduler.placed == PODS

    after(HALVINGS, check=check)


def test_refusals_without_end_begin_the_service_anew() -> None:
    """After too many refusals in a row, the scheduler ends with an error, so that its service
    restarts."""

    async def main() -> None:
        scheduler = Scheduler(rivals=1_000)
        with pytest.raises(ExceptionGroup) as caught:
            await scheduler.run()
        assert caught.group_contains(DecisionsRefused)
        assert len(scheduler.ledger.sizes) == REFUSALS_MAX + 1
        assert scheduler.ledger.sizes[-1] == 1

    run_virtually(main())


def test_a_taken_decision_forgives_the_refusals_before_it() -> None:
    """After the ledger has accepted a decision, the scheduler counts refusals from zero again."""

    def check(scheduler: Scheduler) -> None:
        assert scheduler.placed == PODS
        scheduler.ledger.rivals = REFUSALS_MAX

    after(REFUSALS_MAX, check=check)


def test_a_choice_is_served_once_the_prices_are_known() -> None:
    """Under the price policy, the scheduler places a pod on the node that kube-scheduler chose,
    even if the node's GPU model has no price yet."""

    async def main() -> None:
        scheduler = Scheduler(rivals=0)
        scheduler.write(PolicyChanged(by="test", node_policy="price"), learnt(priced(whole(), 9)))
        running = asyncio.create_task(scheduler.run())
        await rest(10.0)
        for uid, model in (("early", "T4"), ("late", "A10")):
            choice = starting.Choice(pod=uid, node=f"of-{uid}")
            extender = MemoryLedger(scheduler.server, role="operator")
            await extender.request(starting.SUBJECT, msgspec.json.encode(choice), 5.0)
            scheduler.write(rack(f"of-{uid}", 8, model=model), pod(uid, ask(1000, cores=1)))
            await rest(10.0)
        assert not running.done()
        running.cancel()
        placements = [scheduler.cluster.state.pods[uid].placement for uid in ("early", "late")]
        assert [each and each.node for each in placements] == ["of-early", "of-late"]

    run_virtually(main())


def test_a_report_that_shows_idle_pods_lets_a_pending_pod_evict_them() -> None:
    """The scheduler decides again after a usage report by which pods are idle, without any other
    event."""

    async def main() -> None:
        scheduler = Scheduler(rivals=0)
        running = asyncio.create_task(scheduler.run())
        scheduler.write(looking("1h", action="reclaim"), pod("new", cards(8)))
        await rest(60.0)
        state = scheduler.cluster.state
        placed = [each for each in state.pods.values() if each.placement is not None]
        assert (len(placed), state.evictions) == (PODS, {})
        shares = tuple(
            ShareUsed(
                pod=each.uid, namespace="default", name=each.submitted.name, device=share.device,
                container=share.container, seconds=3_600, memory_mib=1_000, memory_mib_seconds=0,
                memory_mib_peak=0, cores=1, cores_seconds=0, cores_peak=0,
            )
            for each in placed if each.placement is not None for share in each.placement.shares
        )  # fmt: skip
        scheduler.write(UsageRecorded(node="n1", seconds=3_600, shares=shares))
        await rest(10.0)
        running.cancel()
        assert {each.reason for each in state.evictions.values()} == {"idle"}
        assert len(state.evictions) == PODS

    run_virtually(main())
