"""A complete round: start a cluster, services and load, inject faults, recover, and check the
ledger.

Invariant: a round leaves no process, mount or file behind, however it ends."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from apportion.core.ledger.state import Phase
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream.client import create_stream
from apportion.runtime.ledger.port import LedgerUnavailable
from tests.faults import evidence
from tests.faults.servers import COUNT, Cluster
from tests.faults.services import LoaderProcess, Service
from tests.faults.shaking import KINDS, Shaking
from tests.faults.verdict import Contents, settled, stores, verified
from tests.support.polling import until

NODES = 20
FLEET = ("--simulate", "8xH100-80GB", "--nodes", str(NODES), "--node", "node-{}")
SNAPSHOT_EVERY = "500"
CONNECT_S = 60.0
READY_S = 90.0
LOST_SHOWN = 10
HISTORY_SHOWN = 80


@dataclass(frozen=True)
class Outcome:
    """The result of a passed round: the injected faults, and how many events were checked."""

    seed: int
    struck: Counter[str]
    disks: str
    events: int
    acknowledged: int
    allocated: int
    pending: int
    judged_s: float


class Round:
    """One round of random faults, with the cluster, services and load that it runs."""

    def __init__(self, seed: int, folder: Path, rate: float, kinds: Sequence[str]) -> None:
        self.seed = seed
        self._folder = folder
        self.cluster = Cluster(folder)
        self.services = _services(self.cluster)
        self.loader = LoaderProcess(self.cluster.url_for("watcher"), folder, seed, rate)
        self.shaking = Shaking(seed, self.cluster, self.services, self.loader, kinds=kinds)

    async def begin(self) -> None:
        await self.cluster.start()
        await make_stream(self.cluster)
        await asyncio.gather(*(each.revive() for each in self.services), self.loader.revive())

    async def verdict(self) -> Outcome:
        """Check after the faults that no event was lost. Raise AssertionError if a check fails."""
        began_s = time.monotonic()
        await asyncio.gather(*(each.ready(timeout_s=READY_S) for each in self.services))
        await self.loader.stop()
        # Read the ledger itself: auditors read a copy.
        reader = await jetstream.connect(self.cluster.url_for("operator"), name="faults")
        async with reader:
            state = await settled(reader)
            contents = Contents()
            await contents.read(reader)
        acknowledged = self.loader.acknowledged()
        for service in self.services:
            acknowledged += service.acknowledged()
            assert not service.troubles(), f"{service.name}: {service.troubles()[:2]}"
        lost = contents.lost(acknowledged)
        assert not lost, f"{len(lost)} lost: {lost[:LOST_SHOWN]}"
        assert not contents.twice(), contents.twice()
        events = await verified(self.cluster.url_for("operator"))
        digests = await stores(self.cluster)
        assert len(set(digests.values())) == 1, f"the servers do not agree: {digests}"
        phases = Counter(pod.phase for pod in state.pods.values())
        return Outcome(
            seed=self.seed,
            struck=self.shaking.struck,
            disks=self.cluster.servers[0].disk.kind,
            events=events,
            acknowledged=len(acknowledged),
            allocated=phases[Phase.ALLOCATED],
            pending=phases[Phase.PENDING],
            judged_s=time.monotonic() - began_s,
        )

    async def explain(self) -> list[str]:
        """Return evidence about a failed round. Call this before the round ends."""
        held = await evidence.holdings(self.cluster)
        told = evidence.history(self.cluster, self.shaking.deeds)
        evidence.write(self._folder, self.services, [*told, *held])
        return [*told[-HISTORY_SHOWN:], *held, *evidence.last_words(self.services)]

    async def end(self, *, keep: bool) -> None:
        """End every process. Keep stores and logs only if `keep` is set."""
        for service in self.services:
            if service.running:
                await service.kill()
        await self.loader.kill()
        await self.cluster.end(keep=keep)
        if not keep:
            shutil.rmtree(self._folder, ignore_errors=True)


async def play(
    seed: int, *, span_s: float, rate: float, kinds: Sequence[str] = KINDS, keep: bool = False,
    strikes_min: int = 0,
) -> Outcome:  # fmt: skip
    """Run the round of this seed. Raise AssertionError if it fails or takes too long."""
    folder = Path(tempfile.mkdtemp(prefix=f"apportion-faults-{seed}-"))
    played = Round(seed, folder, rate, kinds)
    wrong = False
    try:
        await played.begin()
        await played.shaking.reign(span_s, strikes_min=strikes_min)
        await played.shaking.mend()
        return await played.verdict()
    except Exception as failure:
        wrong = True
        failure.add_note(f"round of seed {seed}" + (f", kept in {folder}" if keep else ""))
        for words in await played.explain():
            failure.add_note(words)
        raise
    finally:
        await played.end(keep=keep and wrong)


def _services(cluster: Cluster) -> list[Service]:
    scheduler, binder = cluster.url_for("scheduler"), cluster.url_for("binder")
    options = ("--snapshot-every", SNAPSHOT_EVERY)
    return [
        Service("intake 1", "intake", cluster.url_for("intake")),
        Service("intake 2", "intake", cluster.url_for("intake")),
        Service("agent", "agent", cluster.url_for("agent"), *FLEET),
        Service("scheduler 1", "scheduler", scheduler, "--name", "s1", *options),
        Service("scheduler 2", "scheduler", scheduler, "--name", "s2", *options),
        Service("binder 1", "binder", binder),
        Service("binder 2", "binder", binder),
    ]


async def make_stream(cluster: Cluster) -> None:
    """Wait until the servers have a leader, and create the ledger's stream."""
    boot = await jetstream.connect(
        cluster.url_for("bootstrap"), name="bootstrap", timeout_s=CONNECT_S
    )

    async def made() -> bool:
        try:
            await create_stream(boot, replicas=COUNT)
        except LedgerUnavailable:
            return False  # routes between servers that have just started are not stable yet
        return True

    try:
        await until(made, "the stream to be made", timeout_s=CONNECT_S)
    finally:
        await boot.close()
