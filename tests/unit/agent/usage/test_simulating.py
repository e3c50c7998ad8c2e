"""Tests of simulated usage: how much compute and memory the shares of a simulated node use over
time."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import msgspec
import pytest
from msgspec import structs

from apportion.agent.reporting.agent import Agent, Node
from apportion.agent.simulated import SimulatedBackend
from apportion.agent.usage.simulating import FIRST_S, SimulatedUse, simulated_loads
from apportion.agent.usage.uses import Counted
from apportion.core.devices.simulating import simulated_devices
from apportion.runtime.ledger.batching import Appended
from apportion.runtime.ledger.port import Draft
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import (
    Device,
    Host,
    MigInstance,
    NodeReported,
    PodBound,
    PodGone,
    Share,
    SharesAllocated,
    UsageRecorded,
    UsageSample,
    decode,
)
from tests.support.ledger_of import Ledger
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer
from tests.support.pods import placed, pod, share
from tests.unit.agent.usage.test_uses import MIB, claim

HOST = Host(cpu_milli=64_000, memory_mib=500_000, pods=110)
RECORD_S = 300.0
HOURS = [hour * 3_600.0 for hour in range(48)]


def devices(spec: str) -> dict[str, Device]:
    """Return the devices of a simulated node, by device id."""
    return {device.id: device for device in simulated_devices("n1", spec)}


@pytest.mark.parametrize("spec", ["2xA100-40GB", "1xAscend310P", "1xL40S-48GB:mps"])
@pytest.mark.parametrize("at_s", HOURS)
def test_no_share_and_no_device_is_overused(spec: str, at_s: float) -> None:
    """Ten simulated shares never exceed their limits. Together they never exceed the device."""
    there = devices(spec)
    device = next(iter(there.values()))
    share = Share("main", device.id, device.memory_mib // 10, device.cores // 10)
    claims = [claim(f"{pod}-uid", share) for pod in range(10)]
    loads, owners = simulated_loads(claims, there, at_s)
    look = Counted(claims, loads, owners.get).look(there, {})
    assert len(look.uses) == len(claims)
    assert not look.unshared
    for use in look.uses:
        assert use.memory_used <= use.memory_limit
        assert use.cores_used is not None
        assert use.cores_used <= max(share.cores, 1)
    assert sum(use.memory_used for use in look.uses) == loads[0].memory
    assert loads[0].memory <= device.memory_mib * MIB
    assert (loads[0].cores or 0) <= device.cores


def test_some_shares_are_busy_and_some_are_idle() -> None:
    """A simulated node has busy and idle shares, and loads that change over time."""
    there = devices("8xH100-80GB")
    claims = [
        claim(f"{pod}-uid", Share("main", device, 81_559, 100)) for pod, device in enumerate(there)
    ]

    def cores(at_s: float) -> list[int]:
        loads, owners = simulated_loads(claims, there, at_s)
        uses = Counted(claims, loads, owners.get).look(there, {}).uses
        return [use.cores_used or 0 for use in uses]

    found = cores(0.0)
    assert 0 in found
    assert max(found) > 60
    assert any(before != after for before, after in pairwise(cores(100.0 * at) for at in range(6)))


def test_an_instance_has_its_own_load() -> None:
    """A MIG share has the usage of its own MIG instance, as on a real GPU."""
    there = devices("1xA100-40GB:mig")
    (device,) = there
    cut = MigInstance(profile="3g.20gb", start=0, size=4, group="g")
    claims = [claim("1-uid", Share("main", device, 20_480, 0, cut))]
    loads, owners = simulated_loads(claims, there, 0.0)
    (use,) = Counted(claims, loads, owners.get).look(there, {}).uses
    assert (use.instance and use.instance.profile, use.memory_used) == ("3g.20gb", loads[1].memory)
    assert 0 < use.memory_used <= 20_480 * MIB


def test_a_failed_device_is_idle() -> None:
    """A failed device has no load and no processes."""
    there = devices("1xT4")
    (device,) = there
    there[device] = structs.replace(there[device], healthy=False, health_reason="XID 79")
    loads, owners = simulated_loads([claim("1-uid", Share("main", device, 1_000, 10))], there, 0.0)
    assert [(load.memory, load.cores) for load in loads] == [(0, 0)]
    assert not owners


class Ticking:
    """A fake clock. `pause` advances it and returns at once."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.at_s)

    def monotonic(self) -> float:
        return self.at_s

    async def pause(self, longest_s: float) -> None:
        self.at_s += longest_s
        await asyncio.sleep(0)


class Fleet:
    """A simulated node with an in-memory ledger, whose agent samples and records usage. Tests use
    it to run hours in an instant."""

    def __init__(self) -> None:
        self.clock, self.ledger = Ticking(), Ledger()
        self.drafts: list[Draft] = []
        self.samples: list[UsageSample] = []
        self.backend = SimulatedBackend(simulated_devices("n1", "2xT4"))
        publisher = Publisher("agent/n1", self.clock, self._append)
        self.node = Node("n1", self.backend, HOST, publisher)
        self.node.devices = devices("2xT4")
        agent = Agent([self.node], MemoryLedger(MemoryServer(), role="agent"), Metrics())
        there = tuple(self.node.devices.values())
        report = NodeReported(
            node="n1", devices=there, host=HOST, driver="simulated", simulated=True
        )
        self.take(report)
        self.use = SimulatedUse(
            agent, [self.node], self.ledger.state, clock=self.clock, record_s=RECORD_S
        )

    def take(self, *payloads: msgspec.Struct) -> None:
        """Append the payloads to the ledger and assert that none is refused."""
        for data in payloads:
            assert not self.ledger.take(data).refused  # type: ignore[arg-type] # all are payloads

    def allocate(self, name: str) -> None:
        """Place, bind and allocate the pod."""
        device = next(iter(self.node.devices))
        self.take(
            pod(name), placed(name, shares=[share(device)]),
            PodBound(pod=name, node="n1", attempt=1),
            SharesAllocated(pod=name, node="n1", attempt=1, devices=(device,)),
        )  # fmt: skip

    async def run(self, seconds: float) -> None:
        """Run the agent's loops for this much simulated time."""
        tasks = [
            asyncio.create_task(self.use.sample(self._send)),
            asyncio.create_task(self.use.record()),
        ]
        until_s = self.clock.at_s + seconds
        while self.clock.at_s < until_s:  # noqa: ASYNC110 - both loops advance this clock
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()

    @property
    def records(self) -> list[UsageRecorded]:
        """Return the usage records that the agent has appended."""
        events = (decode(each.payload, subject=each.subject).data for each in self.drafts)
        return [data for data in events if isinstance(data, UsageRecorded)]

    async def _append(self, draft: Draft) -> Appended:
        self.drafts.append(draft)
        return Appended(1)

    async def _send(self, _subject: str, payload: bytes) -> None:
        self.samples.append(msgspec.json.decode(payload, type=UsageSample))


async def test_nothing_is_sampled_where_nothing_is_allocated() -> None:
    """A simulated node without allocated pods sends neither samples nor records."""
    fleet = Fleet()
    await fleet.run(1_000)
    assert (fleet.samples, fleet.drafts) == ([], [])


async def test_the_first_record_comes_early_and_the_next_after_the_period() -> None:
    """The first usage record comes early and the second after a full period. Each record has a
    unique id. Each share in a record has the revision at which its pod was bound."""
    fleet = Fleet()
    fleet.allocate("a")
    await fleet.run(FIRST_S + 10)
    assert [each.name for each in fleet.samples[0].shares] == ["a"]
    assert len(fleet.samples[0].devices) == 2
    [first] = fleet.records
    assert FIRST_S <= first.seconds < FIRST_S + 10
    assert first.shares[0].bound == fleet.ledger.state.pods["a"].bound_revision > 0
    await fleet.run(RECORD_S + 30)
    [_, second] = fleet.records
    assert second.seconds >= RECORD_S
    assert len({draft.id for draft in fleet.drafts}) == 2


async def test_a_pod_that_ended_is_in_the_last_record_alone() -> None:
    """A pod that ends is in the next usage record and in no later one. After that record, the empty
    node is no longer sampled."""
    fleet = Fleet()
    fleet.allocate("a")
    await fleet.run(10)
    fleet.take(PodGone(uid="a"))
    await fleet.run(2 * RECORD_S)
    [record] = fleet.records
    assert 0 < record.shares[0].seconds < FIRST_S
    assert fleet.samples[-1].shares == ()
    sampled = len(fleet.samples)
    await fleet.run(RECORD_S)
    assert len(fleet.samples) == sampled


async def test_a_lost_node_sends_nothing() -> None:
    """While a simulated node is lost, it sends neither samples nor records. Both resume when it
    returns."""
    fleet = Fleet()
    fleet.allocate("a")
    fleet.backend.there.clear()
    await fleet.run(RECORD_S)
    assert (fleet.samples, fleet.drafts) == ([], [])
    fleet.backend.there.set()
    await fleet.run(20)
    assert fleet.samples
