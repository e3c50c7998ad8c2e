"""Checks after a round: no acknowledged event is lost, and every pod that fits is placed.

Three sources must agree: `apportion verify`, the acknowledgements that the loader and the services
recorded, and the store of each server. A store is read while its server leads the stream."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256

from apportion.core.intake.answers import append_id
from apportion.core.ledger.state import Phase, State
from apportion.core.placement.engine import Engine
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.wire import call_api
from apportion.runtime.ledger.port import LedgerError, Record
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import Event, EventError, PodRefused, decode
from tests.faults.servers import COUNT, Cluster
from tests.faults.services import Acknowledged
from tests.support.deciding import decided
from tests.support.polling import until

SETTLE_S = 120.0
READ_TOGETHER = 200


def undone(state: State) -> Iterator[str]:
    """Yield a description of each placed pod without its devices, and of each decision that a
    scheduler has yet to make."""
    for pod in state.pods.values():
        if pod.phase in (Phase.PLACED, Phase.BOUND):
            yield f"pod {pod.uid} is {pod.phase.value} and not allocated"
    for event in decided(Engine(state)).events:
        if not isinstance(event, PodRefused):
            yield f"an engine would still say {type(event).__name__} of pod {event.pod}"


async def settled(ledger: JetStreamLedger) -> State:
    """Read the ledger until no pod and no decision is unfinished, and return the state.

    Raise AssertionError if that takes too long."""
    cluster = StateFold()
    reader = Reader(ledger, cluster, metrics=Metrics())
    following = asyncio.create_task(reader.run())
    try:
        await reader.caught_up()

        async def done() -> bool:
            if reader.revision < await ledger.last_revision():
                return False
            return not any(undone(cluster.state))

        try:
            await until(done, "all to be placed", timeout_s=SETTLE_S, interval_s=0.5)
        except AssertionError as late:
            late.add_note("\n".join(list(undone(cluster.state))[:10]))
            raise
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    return cluster.state


async def verified(url: str) -> int:
    """Run `apportion verify`, and return how many events it checked.

    Raise AssertionError if it reports a violation."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "apportion.cli.main", "verify", "--json"],
        env={**os.environ, "APPORTION_NATS_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"verify: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    return int(json.loads(done.stdout)["checked"])


class Contents:
    """The revisions of each event in a ledger, by the id under which the event was appended."""

    def __init__(self) -> None:
        self.at: dict[str, list[int]] = {}

    async def read(self, ledger: JetStreamLedger) -> None:
        """Read everything that the stream's leader has stored.

        Raise AssertionError if the reader ends before the newest record."""
        newest = await ledger.last_revision()

        def deliver(record: Record) -> None:
            try:
                event = decode(record.payload, subject=record.subject)
            except EventError:
                return
            self.at.setdefault(_appended_as(event), []).append(record.revision)

        subscription = await ledger.follow(deliver)
        await subscription.caught_up()
        position = subscription.position
        await subscription.stop()
        assert position >= newest, f"the reader ended at {position}, and {newest} are there"

    def lost(self, acknowledged: Iterable[Acknowledged]) -> list[str]:
        """Return the acknowledged events that are missing from the ledger or have another
        revision."""
        lost = []
        for event_id, revision in acknowledged:
            found = self.at.get(event_id, [])
            if not found or (revision is not None and revision not in found):
                lost.append(f"{event_id} was acknowledged at {revision} and stands at {found}")
        return lost

    def twice(self) -> list[str]:
        """Return the placements that the ledger has more than once."""
        count = Counter({each: len(at) for each, at in self.at.items() if each.endswith("/placed")})
        return [f"{each} stands at {self.at[each]}" for each, times in count.items() if times > 1]


def _appended_as(event: Event) -> str:
    """Return the id under which this event was appended.

    For an agent's event, the intake derives that id."""
    service, _, node = event.source.partition("/")
    return append_id(node, event.id) if service == "agent" else event.id


async def stores(cluster: Cluster) -> dict[str, str]:
    """Return the digest of each server's store, by server name.

    Each server is made leader of the stream while its store is read."""
    ledger = await jetstream.connect(cluster.url_for("chaos"), name="chaos")
    try:
        return {server.name: await _store(ledger, server.name) for server in cluster.servers}
    finally:
        await ledger.close()


async def _store(ledger: JetStreamLedger, name: str) -> str:
    async def leads() -> bool:
        try:
            info = await call_api(ledger.wire, "STREAM.INFO.APPORTION")
            leader = json.loads(info)["cluster"].get("leader")
            if leader != name and leader:
                body = {"placement": {"preferred": name}}
                await call_api(ledger.wire, "STREAM.LEADER.STEPDOWN.APPORTION", body)
        except LedgerError:
            return False  # between two leaders, no server answers
        return bool(leader == name)

    async def read() -> str:
        """Return the digest of the leader's store, or "" if the server is no longer the leader."""
        await until(leads, f"{name} to lead the stream", interval_s=0.3)
        try:
            digest = await _digest(ledger)
            cluster = json.loads(await call_api(ledger.wire, "STREAM.INFO.APPORTION"))["cluster"]
        except LedgerError:
            return ""
        assert len(cluster["replicas"]) == COUNT - 1
        return digest if cluster.get("leader") == name else ""

    return await until(read, f"{name} to lead while its store is read")


async def _digest(ledger: JetStreamLedger) -> str:
    """Return the digest of everything that the stream's leader has stored."""
    info = await stream.read_info(ledger.wire)
    digest = sha256(f"{info.state.first_seq} {info.state.last_seq}".encode())
    revisions = range(info.state.first_seq, info.state.last_seq + 1)
    for first in range(0, len(revisions), READ_TOGETHER):
        group = revisions[first : first + READ_TOGETHER]
        asked = (call_api(ledger.wire, "STREAM.MSG.GET.APPORTION", {"seq": at}) for at in group)
        for answer in await asyncio.gather(*asked):
            digest.update(json.dumps(json.loads(answer)["message"], sort_keys=True).encode())
    return digest.hexdigest()
