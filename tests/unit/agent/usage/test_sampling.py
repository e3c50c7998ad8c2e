"""Tests that usage sampling continues if the account file is corrupt or the ledger accepts no
records."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apportion.agent.places import Places
from apportion.agent.reporting.agent import Agent, Node
from apportion.agent.shares.regions import Regions
from apportion.agent.simulated import SimulatedBackend
from apportion.agent.standalone import Runs
from apportion.agent.usage.account import Account, restored, saved
from apportion.agent.usage.sampling import Sampling
from apportion.agent.usage.uses import Look, Use
from apportion.core.devices.simulating import simulated_devices
from apportion.runtime.ledger.batching import Appended, GroupCommit
from apportion.runtime.ledger.port import Draft
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import Configuration, Host, UsageRecorded, decode
from apportion_schemas.configuration import IdleConfiguration
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer
from tests.support.polling import until
from tests.unit.agent.usage.test_account import use

HOST = Host(cpu_milli=1000, memory_mib=1000, pods=110)
NO_TIME = saved([Account(float("nan"))])


def sampling_of(agent: Agent, node: Node, folder: Path) -> Sampling:
    """Return a sampling loop of the node that samples every 10 ms and keeps all files in
    `folder`."""
    places = Places(folder, folder, folder, sample_s=0.01)
    return Sampling(
        agent, node, Regions(folder / "shares"), Runs(folder, Path("/proc")),
        clock=SystemClock(), places=places,
    )  # fmt: skip


async def test_looks_go_on_while_the_ledger_takes_no_record(tmp_path: Path) -> None:
    """While the ledger accepts no records, the agent continues to sample and keeps the unsent
    record on disk."""
    hour = Account(7_200)
    hour.add(Look((use(mib=100),)), 5)
    file = tmp_path / "usage.msgpack"
    file.write_bytes(saved([hour]))
    room = asyncio.Event()
    drafts: list[Draft] = []
    samples: list[bytes] = []

    async def append(draft: Draft) -> Appended:
        drafts.append(draft)
        await room.wait()
        return Appended(1)

    async def looked() -> bool:
        return len(samples) > 5

    async def one_on_disk() -> bool:
        return len(restored(file.read_bytes())) == 1

    async def two_on_disk() -> bool:
        return len(restored(file.read_bytes())) == 2

    async def send(_subject: str, payload: bytes) -> None:
        samples.append(payload)

    ledger = MemoryLedger(MemoryServer(), role="agent")
    node = Node(
        "n1", SimulatedBackend(simulated_devices("n1", "1xT4")), HOST,
        Publisher("agent/n1", SystemClock(), append),
    )  # fmt: skip
    agent = Agent([node], ledger, Metrics())
    agent._looks = 1
    running = asyncio.create_task(sampling_of(agent, node, tmp_path).run(send))
    await until(looked, "more looks")
    await until(two_on_disk, "the hour on the disk")
    closed, _ = restored(file.read_bytes())
    (draft,) = drafts
    room.set()
    await until(one_on_disk, "the hour to be recorded")
    running.cancel()
    event = decode(draft.payload, subject=draft.subject)
    assert datetime.fromisoformat(event.time).timestamp() == pytest.approx(closed.ended_s, abs=1)
    assert isinstance(event.data, UsageRecorded)
    (share,) = event.data.shares
    assert (share.seconds, share.memory_mib_peak) == (5, 100)


@pytest.mark.parametrize("found", [b"", b"\xff" * 100, b"\x93\x01\x02\x03", NO_TIME])
async def test_an_account_that_is_broken_is_set_aside_by_its_name(
    tmp_path: Path, found: bytes
) -> None:
    """If the account file is corrupt, the agent renames it and starts a new account."""
    saved, ledger = tmp_path / "usage.msgpack", MemoryLedger(MemoryServer(), role="intake")
    saved.write_bytes(found)
    backend, clock = SimulatedBackend(simulated_devices("n1", "1xT4")), SystemClock()
    async with GroupCommit(ledger) as commit:
        node = Node("n1", backend, HOST, Publisher("agent/n1", clock, commit.append))
        sampling = sampling_of(Agent([node], ledger, Metrics()), node, tmp_path)
        (account,) = sampling._restored()
    account.ended_s = account.began_s + 3_600
    assert list(account.records("n1")) == []
    assert not saved.exists()
    assert (tmp_path / "usage.msgpack.broken").read_bytes() == found


class Hand(SystemClock):
    """A clock that shows the time that a test sets, in seconds since 1970."""

    now_s = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_s, UTC)


class Hours:
    """Sampling of the node n1 with a clock that the test sets, and a configuration."""

    def __init__(self, folder: Path, **idle: Any) -> None:
        self.clock, ledger = Hand(), MemoryLedger(MemoryServer(), role="intake")
        node = Node(
            "n1", SimulatedBackend(simulated_devices("n1", "1xT4")), HOST,
            Publisher("agent/n1", self.clock, GroupCommit(ledger).append),
        )  # fmt: skip
        self.agent = Agent([node], ledger, Metrics())
        self.configure(**idle)
        self.sampling = sampling_of(self.agent, node, folder)
        self.sampling._clock = self.clock
        self.begin_s = self.sampling._offset_s + 100 * self.sampling._record_s

    def configure(self, **idle: Any) -> None:
        self.agent._view.configuration = Configuration(idle=IdleConfiguration(**idle))

    def end(self, *uses: Use) -> None:
        """Let the sampling see the end of an hour with this use."""
        hour = Account(self.begin_s)
        hour.add(Look(uses), 3_600)
        self.begin_s += 3_600
        assert self.is_over(hour, 0)

    def is_over(self, account: Account, passed_s: float) -> bool:
        self.clock.now_s = self.begin_s + passed_s
        return self.sampling.is_over(account)

    def early(self, *uses: Use) -> bool:
        """Return True if an hour that begins with this use ends after two minutes."""
        account = Account(self.begin_s)
        account.add(Look(uses), 5)
        return self.is_over(account, 120)


RECLAIM: dict[str, Any] = {"after": "4h", "action": "reclaim"}


@pytest.mark.parametrize(("idle", "early"), [
    (RECLAIM, [False, False, True, False, False]),
    ({"after": "4h"}, [False] * 5),
    ({}, [False] * 5),
], ids=["reclaim", "notify", "off"])  # fmt: skip
def test_the_end_of_an_idle_hour_is_recorded_early(
    tmp_path: Path, idle: dict[str, Any], early: list[bool]
) -> None:
    """If a share works that did nothing in the last hour, the agent records its use after a minute,
    once, and only if the configuration lets pending pods evict idle pods."""
    hours = Hours(tmp_path, **idle)
    hours.end(use(), use("busy", cores=9))
    next_one, found = Account(hours.begin_s), []
    for passed_s, cores in ((30, 50), (50, 50), (70, 0), (80, 50), (3_000, 0)):
        next_one.add(Look((use(cores=cores), use("busy", cores=9))), 5)
        found.append(hours.is_over(next_one, passed_s))
    assert found == early


def test_work_below_the_threshold_is_no_work(tmp_path: Path) -> None:
    """With `idle.below`, little use neither ends an idle period nor prevents one."""
    hours = Hours(tmp_path, **RECLAIM, below=10)  # of a share of 30 %
    hours.end(use(cores=1))
    assert not hours.early(use(cores=2))
    assert hours.early(use(cores=3))


def test_the_first_work_after_a_restart_is_recorded_early(tmp_path: Path) -> None:
    """An agent that restarts, or whose configuration has just changed, records work early once,
    because it does not know which shares did nothing before."""
    Hours(tmp_path, **RECLAIM).end(use())
    again = Hours(tmp_path, **RECLAIM)
    assert [again.early(use(cores=50)) for _ in range(2)] == [True, False]
    again.configure(after="4h")
    again.end(use())
    again.configure(**RECLAIM)
    assert [again.early(use(cores=50)) for _ in range(2)] == [True, False]


def test_only_measured_shares_are_idle_or_work() -> None:
    """An account names the shares with any work and those without, if their compute is known."""
    account = Account(0)
    account.add(Look((use("a"), use("b", cores=1), use("c", cores=None))), 5)
    account.add(Look((use("a"), use("b"))), 5)
    assert [pod for pod, *_ in account.shares(working=True)] == ["b"]
    assert [pod for pod, *_ in account.shares(working=False)] == ["a"]
