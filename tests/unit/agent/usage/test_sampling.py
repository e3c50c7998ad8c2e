"""An account on the disk that nothing can be read from is set aside, and the agent goes on."""

from pathlib import Path

import pytest

from apportion.agent.hands.regions import Regions
from apportion.agent.places import Places
from apportion.agent.reporting import Agent, Node
from apportion.agent.runs import Runs
from apportion.agent.simulated import SimulatedBackend
from apportion.agent.usage.sampling import Sampling
from apportion.core.devices.simulating import simulated_devices
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import Host
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer


@pytest.mark.parametrize("found", [b"", b"\xff" * 100, b"\x93\x01\x02\x03"])
async def test_an_account_that_is_broken_is_set_aside_by_its_name(
    tmp_path: Path, found: bytes
) -> None:
    """So that the next life does not find it, and a person does."""
    saved, ledger = tmp_path / "usage.msgpack", MemoryLedger(MemoryServer(), role="intake")
    saved.write_bytes(found)
    backend, clock = SimulatedBackend(simulated_devices("n1", "1xT4")), SystemClock()
    host = Host(cpu_milli=1000, memory_mib=1000, pods=110)
    async with GroupCommit(ledger) as commit:
        node = Node("n1", backend, host, Publisher("agent/n1", clock, commit.append))
        sampling = Sampling(
            Agent([node], ledger, Metrics()), node, Regions(tmp_path / "shares"),
            Runs(tmp_path, Path("/proc")), clock=clock, places=Places(tmp_path, tmp_path, tmp_path),
        )  # fmt: skip
        account = sampling._restored()
    assert list(account.records("n1", account.began_s + 3_600)) == []
    assert not saved.exists()
    assert (tmp_path / "usage.msgpack.broken").read_bytes() == found
