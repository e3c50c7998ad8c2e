"""Any service killed under load is restarted. No pod is lost, and no pod is placed twice."""

import asyncio
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest

from apportion.core.ledger.invariants import violations
from apportion.core.ledger.state import Phase
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream.server.embedded import load_credentials
from apportion.runtime.ledger.port import Record
from apportion.runtime.ledger.reader import StateFold
from apportion_schemas import PodPlaced
from tests.support.polling import WAIT_S, until
from tests.support.standalone import Standalone, settle

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PODS = 3_000
KILL_AT = 200
"""After this many placements the load is well under way and far from its end."""
FLEET = ("--no-samples", "--fleet", "8xH100-80GB", "--nodes", "60")
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: load}
spec:
  parallelism: PODS
  template:
    spec:
      containers:
      - name: main
        image: x
        resources: {limits: {nvidia.com/gpu: "1", nvidia.com/gpumem: "8000"}}
""".replace("PODS", str(PODS))


class Load:
    """Submits all pods once in the background, and tries again if that fails.

    Submitting pods again is safe, because pods that are already live stay unchanged."""

    def __init__(self, up: Standalone) -> None:
        self._up = up
        self._thread = threading.Thread(target=self._submit)
        self._last: subprocess.CompletedProcess[str] | None = None

    def start(self) -> None:
        self._thread.start()

    def _submit(self) -> None:
        for _ in range(10):
            self._last = self._up.run("submit", "-f", "-", stdin=JOB.encode())
            if self._last.returncode == 0:
                return

    def ended(self) -> None:
        """Wait until all pods are submitted."""
        self._thread.join(300)
        assert self._last is not None
        assert self._last.returncode == 0, self._last.stderr


class Watched:
    """Counts placements as they arrive, and kills one service after `KILL_AT` placements."""

    def __init__(self, up: Standalone, service: str) -> None:
        self._up = up
        self._service = service
        self.killed = asyncio.Event()
        self.pid = 0
        self.revision = 0
        self._placed = 0

    def deliver(self, record: Record) -> None:
        """Count one placement. Kill the service once `KILL_AT` placements have arrived."""
        if self.pid:
            return
        self._placed += 1
        if self._placed == KILL_AT:
            self.pid = self._up.kill_service(self._service)
            self.revision = record.revision
            self.killed.set()


@pytest.mark.parametrize("service", ["scheduler", "binder", "agent", "gateway", "nats-server"])
async def test_kill(tmp_path: Path, service: str) -> None:
    """After a service is killed while pods are being placed, each pod is placed and allocated
    exactly once."""
    with Standalone(tmp_path / "data", *FLEET) as up:
        up.up()
        watched = Watched(up, service)
        url = load_credentials(tmp_path / "data").url_for("auditor")
        ledger = await jetstream.connect(url, name="test")
        await ledger.follow(watched.deliver, subjects=["apportion.v1.placement.>"])
        load = Load(up)
        load.start()
        await asyncio.wait_for(watched.killed.wait(), WAIT_S)
        if service != "nats-server":
            watched.revision = await ledger.last_revision()
        await ledger.close()
        up.started_again(service, watched.pid)
        load.ended()
        await allocations(url, PODS)
        settle(up, PODS, timeout_s=300)
        up.said("nats-server ended" if service == "nats-server" else f"the {service} was killed")
        cluster = up.folded()
    check(cluster, watched)
    up.nothing_left()


async def allocations(url: str, count: int) -> None:
    """Wait for this many allocations by reading the ledger, because listing thousands of pods from
    the gateway would slow the services."""
    seen: list[int] = []
    async with await jetstream.connect(url, name="test") as ledger:

        def deliver(record: Record) -> None:
            seen.append(record.revision)

        await ledger.follow(deliver, subjects=["apportion.v1.allocation.>"])

        async def enough() -> bool:
            return len(seen) >= count

        await until(enough, f"{count} allocations", timeout_s=300)


def check(cluster: StateFold, watched: Watched) -> None:
    """Check that every pod is allocated after exactly one placement, and that every invariant
    holds."""
    state = cluster.state
    assert watched.revision < state.revision * 0.8, "the load was nearly done before the shot"
    assert violations(state) == []
    assert len(state.pods) == PODS
    assert Counter(pod.phase for pod in state.pods.values()) == {Phase.ALLOCATED: PODS}
    assert len({pod.full_name for pod in state.pods.values()}) == PODS
    assert {pod.attempt for pod in state.pods.values()} == {1}
    refused = [event for event in state.refused_events if event.subject == PodPlaced.__name__]
    assert refused == []
