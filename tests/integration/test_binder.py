"""Real binder processes on a real ledger bind each placement once, whatever process is killed."""

import asyncio

import pytest

from apportion.binder.binding import ACK_WAIT_S, Binding, Bound, LocalTarget, Outcome
from apportion.binder.main import DURABLE, PLACEMENTS, QUEUE_IN_FLIGHT_MAX
from apportion.core.devices.simulating import simulated_devices
from apportion.core.ledger.handlers.turns import AT_ALLOCATE, handing_out
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import (
    BindFailed,
    Host,
    NodeReported,
    PlacementVoided,
    PodBound,
    PodGone,
    PodGroupObserved,
    PodPlaced,
    SharesAllocated,
)
from tests.support.facts import Facts
from tests.support.nats import Bus
from tests.support.pods import member
from tests.support.polling import until
from tests.support.processes import ServiceProcess

NODE = "n1"
(DEVICE,) = simulated_devices(NODE, "1xT4")


@pytest.fixture
async def facts(bus: Bus) -> Facts:
    """Provide a ledger that has one node."""
    opened = Facts(bus)
    await opened.open()
    host = Host(cpu_milli=64_000, memory_mib=65_536, pods=100_000)
    await opened.write(NodeReported(node=NODE, devices=(DEVICE,), host=host))
    return opened


def binder_of(bus: Bus) -> ServiceProcess:
    return ServiceProcess("binder", bus.server.url_for("binder"))


async def bound(facts: Facts, *pods: str) -> None:
    """Wait until exactly these pods are bound, in any order, and each only once."""
    await facts.count(PodBound, len(pods))
    assert sorted(event.pod for event in facts.of(PodBound)) == sorted(pods)


async def test_live_placements_are_bound_and_dead_ones_are_not(bus: Bus, facts: Facts) -> None:
    """The binder binds live placements from before and after its start. It ignores withdrawn
    placements, and placements of ended or unknown pods."""
    await facts.submit("early", "voided", "gone", "late", "twice")
    await facts.place("early", NODE, DEVICE.id)
    await facts.place("voided", NODE, DEVICE.id)
    await facts.write(PlacementVoided(pod="voided", attempt=1, node=NODE, reason="test"))
    await facts.place("gone", NODE, DEVICE.id)
    await facts.write(PodGone(uid="gone"))
    await facts.place("unheard-of", NODE, DEVICE.id)
    async with binder_of(bus) as binder:
        await binder.ready()
        await facts.place("twice", NODE, DEVICE.id)
        await facts.place("twice", NODE, DEVICE.id)
        await facts.place("late", NODE, DEVICE.id)
        await bound(facts, "early", "twice", "late")
        assert await binder.stop() == 0
    causes = {event.data.pod: event.cause for _, event in facts.events
              if isinstance(event.data, PodBound)}  # fmt: skip
    assert causes["early"] < causes["twice"] < causes["late"]


async def test_a_new_attempt_is_bound_again(bus: Bus, facts: Facts) -> None:
    """If a pod's placement was withdrawn, the binder binds the pod by its next placement."""
    await facts.submit("p")
    async with binder_of(bus) as binder:
        await binder.ready()
        await facts.place("p", NODE, DEVICE.id)
        await facts.count(PodBound, 1)
        await facts.write(PlacementVoided(pod="p", attempt=1, node=NODE, reason="test"))
        await facts.place("p", NODE, DEVICE.id, attempt=2)
        await facts.count(PodBound, 2)
    assert [event.attempt for event in facts.of(PodBound)] == [1, 2]


async def test_two_binders_and_kills_under_load(bus: Bus, facts: Facts) -> None:
    """With two binders, each killed and restarted under load, every pod is bound once."""
    pods = [f"p{i}" for i in range(200)]
    await facts.submit(*pods)
    async with binder_of(bus) as one, binder_of(bus) as two:
        await asyncio.gather(one.ready(), two.ready())
        for number, pod in enumerate(pods):
            await facts.place(pod, NODE)
            if number in (60, 120):
                victim = one if number == 60 else two
                await victim.kill()
                await victim.start()
        await bound(facts, *pods)


@pytest.mark.parametrize("recorded", [True, False])
async def test_a_redelivery_is_harmless(bus: Bus, facts: Facts, *, recorded: bool) -> None:
    """If a binder dies before or after recording a binding, the placement is redelivered and bound
    once."""
    await facts.submit("p")
    await facts.place("p", NODE, DEVICE.id)
    worker = await bus.connect("binder")
    queue = await worker.work_queue(
        DURABLE, [PLACEMENTS], ack_wait_s=ACK_WAIT_S, max_in_flight=QUEUE_IN_FLIGHT_MAX
    )
    (delivery,) = await queue.fetch(1, 30)
    if recorded:
        await facts.write(PodBound(pod="p", node=NODE, attempt=1), event_id="p/1/bound")
    await delivery.retry(0)
    async with binder_of(bus) as binder:
        await binder.ready()
        await bound(facts, "p")

        async def settled() -> bool:
            return await queue.waiting() == 0

        await until(settled, "the queue to be empty")
    await bound(facts, "p")


async def test_a_node_without_cdi_is_bound_one_pod_after_the_other(bus: Bus, facts: Facts) -> None:
    """On a node without CDI, the binder binds a pod only once the previous pod is allocated or has
    ended. Pods of other nodes do not wait."""
    card, other = simulated_devices("old", "2xT4")
    host = handing_out(Host(cpu_milli=64_000, memory_mib=65_536), AT_ALLOCATE)
    await facts.write(NodeReported(node="old", devices=(card, other), host=host))
    await facts.submit("a", "b", "c", "elsewhere")
    async with binder_of(bus) as binder:
        await binder.ready()
        await facts.place("a", "old", card.id)
        await facts.place("b", "old", other.id)
        await facts.place("c", "old", card.id)
        await facts.place("elsewhere", NODE, DEVICE.id)
        await facts.count(BindFailed, 2)  # both were handed over by that time
        await bound(facts, "a", "elsewhere")
        await facts.write(SharesAllocated(pod="a", node="old", attempt=1, devices=(card.id,)))
        await bound(facts, "a", "elsewhere", "b")
        await facts.write(PodGone(uid="b"))
        await bound(facts, "a", "elsewhere", "b", "c")
    waited = [(event.pod, event.final) for event in facts.of(BindFailed)]
    assert sorted(waited) == [("b", False), ("c", False)]


class Slow(LocalTarget):
    """A binding target that waits until the test lets it bind."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.let = asyncio.Event()

    async def bind(self, placed: PodPlaced) -> Outcome:
        """Wait until the test permits it, and then bind."""
        assert placed.pod == "p"
        self.begun.set()
        await self.let.wait()
        return Bound()


async def test_a_slow_bind_is_not_handed_to_another(bus: Bus, facts: Facts) -> None:
    """If a bind outlasts the acknowledgement timeout, no other binder gets the placement."""
    ledger, rival = await bus.connect("binder"), await bus.connect("binder")
    queue, same = [
        await each.work_queue("binder", [PLACEMENTS], ack_wait_s=ACK_WAIT_S, max_in_flight=10)
        for each in (ledger, rival)
    ]
    cluster, target, metrics = StateFold(), Slow(), Metrics()
    reader = Reader(ledger, cluster, metrics=metrics)
    async with GroupCommit(ledger) as commit, asyncio.TaskGroup() as group:
        publisher = Publisher("binder", SystemClock(), commit.append)
        binding = Binding(cluster.state, target, publisher, clock=SystemClock(), metrics=metrics)
        loops = [
            group.create_task(loop)
            for loop in (reader.run(), binding.run(queue, reader), binding.hold())
        ]
        await facts.submit("p")
        await facts.place("p", NODE, DEVICE.id)
        await asyncio.wait_for(target.begun.wait(), 30)
        assert await same.fetch(1, 1.5 * ACK_WAIT_S) == []
        target.let.set()
        await bound(facts, "p")
        for loop in loops:
            loop.cancel()


async def test_more_held_pods_than_the_queue_gives_out(bus: Bus, facts: Facts) -> None:
    """The binder binds a large gang although the queue cannot deliver the gang's last placement.

    All placements of the gang wait for the last one, and the queue delivers only four at once. So
    the binder reads the last one from the ledger. Pods placed after the gang are bound too."""
    ledger, most, held = await bus.connect("binder"), 4, 20
    queue = await ledger.work_queue(
        "binder", [PLACEMENTS], ack_wait_s=ACK_WAIT_S, max_in_flight=most
    )
    cluster, metrics = StateFold(), Metrics()
    reader = Reader(ledger, cluster, metrics=metrics)
    names = [f"m{n}" for n in range(held)]
    await facts.write(PodGroupObserved(group="default/gang", min_available=held + 1))
    await facts.write(*(member(name, group="default/gang") for name in (*names, "last")))
    async with GroupCommit(ledger) as commit, asyncio.TaskGroup() as group:
        publisher = Publisher("binder", SystemClock(), commit.append)
        binding = Binding(
            cluster.state, LocalTarget(), publisher, clock=SystemClock(), metrics=metrics
        )
        loops = [
            group.create_task(loop)
            for loop in (reader.run(), binding.run(queue, reader), binding.hold())
        ]
        for name in names:
            await facts.place(name, NODE, held=True)
        full = "apportion_bindings_total", {"outcome": "waits for its turn"}
        await facts.until(
            lambda: (metrics.registry.get_sample_value(*full) or 0) > 2 * most, "held deliveries"
        )
        assert not facts.of(PodBound)
        await facts.place("last", NODE)
        await facts.submit("other")
        await facts.place("other", NODE)
        await bound(facts, *names, "last", "other")
        for loop in loops:
            loop.cancel()


async def test_the_server_restarts(bus: Bus, facts: Facts) -> None:
    """If the server crashes, a running binder reconnects. It binds placements from before and after
    the crash once."""
    await facts.submit("p1", "p2")
    async with binder_of(bus) as binder:
        await binder.ready()
        await facts.place("p1", NODE, DEVICE.id)
        await facts.count(PodBound, 1)
        await bus.crash()
        await bus.restart()
        await facts.place("p2", NODE, DEVICE.id)
        await bound(facts, "p1", "p2")
        assert binder.running
    assert not facts.of(SharesAllocated)


async def test_it_stops_while_the_ledger_is_away(bus: Bus, facts: Facts) -> None:
    """A binder that waits for placements obeys SIGTERM in time while the ledger is down."""
    await facts.submit("p")
    async with binder_of(bus) as binder:
        await binder.ready()
        await bus.crash()
        assert await binder.stop() == 0
