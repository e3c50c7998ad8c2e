"""Tests of the files that an agent keeps about pods on a node without a kubelet."""

import asyncio
from pathlib import Path

import pytest

from apportion.agent.boot_book import BootBook
from apportion.agent.places import Places
from apportion.agent.reporting.agent import Agent, Node
from apportion.agent.reporting.view import Claim
from apportion.agent.shares import share_lifecycle
from apportion.agent.shares.share_lifecycle import ShareLifecycle
from apportion.agent.simulated import SimulatedBackend
from apportion.agent.standalone import Runs
from apportion.core.devices.simulating import simulated_devices
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import Host
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer
from tests.support.pods import placed
from tests.support.polling import until

HOST = Host(cpu_milli=1000, memory_mib=1000, pods=110)
PROC = Path("/proc")


async def test_what_cannot_be_written_is_tidied_up_at_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the agent's folder is not writable, the cleanup of records of ended pods fails. The agent
    repeats the cleanup once the folder is writable.

    The record of an adopted pod stays, since that pod may start again."""
    monkeypatch.setattr(share_lifecycle, "TIDY_S", 0.01)
    state, away = tmp_path / "state", tmp_path / "away"
    handed = state / "handed.json"
    state.mkdir()
    for pod in ("gone", "adopted"):
        BootBook(handed, PROC, str, outlives_boot=True).note(pod, "what it was given")
    ledger = MemoryLedger(MemoryServer(), role="intake")
    backend = SimulatedBackend(simulated_devices("n1", "1xT4"))
    async with GroupCommit(ledger) as commit:
        node = Node("n1", backend, HOST, Publisher("agent/n1", SystemClock(), commit.append))
        agent = Agent([node], ledger, Metrics())
        agent.view_of("n1").hold(Claim(placed("adopted", "n1"), 1, adopted=True, doubtful=True))
        places = Places(cdi=tmp_path / "cdi", state=state, run=tmp_path / "run")
        kept = ShareLifecycle(
            agent, node, places, Runs(tmp_path, PROC), metrics=Metrics(), clock=SystemClock()
        )
        state.rename(away)
        async with asyncio.TaskGroup() as group:
            loops = (agent.watch(), agent.fold(), kept._tidy())
            tasks = [group.create_task(each) for each in loops]

            async def refused() -> bool:
                return "cleanup skipped" in caplog.text

            await until(refused, "the round that cannot write")
            away.rename(state)

            async def struck() -> bool:
                return set(BootBook(handed, PROC, str).entries) == {"adopted"}

            await until(struck, "the next round")
            for task in tasks:
                task.cancel()
