"""Record a small ledger with a real scheduler, agent and binder; other writers are simulated.

    python -m tests.golden.record_ledger tests/golden/ledgers/v1.jsonl
    python -m tests.golden.record_ledger tests/golden/ledgers/v1-agreement.jsonl
    python -m tests.golden.record_ledger tests/golden/ledgers/v1-quotas.jsonl
    python -m tests.golden.record_ledger tests/golden/ledgers/v1-pods.jsonl
    python -m tests.golden.record_ledger tests/golden/ledgers/v1-evictions.jsonl
    python -m tests.golden.record_ledger tests/golden/ledgers/v1-volumes.jsonl
    python -m tests.golden.record_ledger tests/golden/ledgers/v1-resizes.jsonl
    python -m tests.golden.record_ledger tests/golden/ledgers/v1-usage.jsonl
    python -m tests.golden.record_ledger tests/golden/ledgers/v1-presence.jsonl
    python -m tests.golden.record_ledger tests/golden/ledgers/v1-cordons.jsonl
    python -m tests.golden.record_ledger tests/golden/ledgers/v1-rules.jsonl
    python -m tests.golden.record_ledger tests/golden/ledgers/v1-intake.jsonl
    python -m tests.golden.record_ledger tests/golden/ledgers/v1-plugins.jsonl
    python -m tests.golden.record_ledger tests/golden/ledgers/v1-limits.jsonl
    python -m tests.golden.record_ledger tests/golden/ledgers/v1-reservations.jsonl

The file's name decides what is recorded:

- v1: every event type of the first version
- v1-agreement: the adoption of a cluster that existed before the ledger
- v1-quotas: quotas of namespaces
- v1-pods: pods with scheduling gates, changes and host ports
- v1-evictions: evictions
- v1-volumes: volume claims and namespaces
- v1-resizes: resizes of running pods
- v1-usage: usage of devices, also without a share
- v1-presence: agents that are lost and return
- v1-cordons: two operators' cordons of the same device
- v1-rules: an enabled format, and events that are set aside
- v1-intake: an agent that reports false facts
- v1-plugins: devices that another system's device plugin registers
- v1-limits: pods of a queue and a namespace that have limits, fenced against other schedulers
- v1-reservations: a node that is reserved for a pod

Never record a ledger a second time: the file represents the ledgers that users have."""

import argparse
import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import structs

from apportion.core.audit import Auditor
from apportion.core.intake.answers import subject_of_node
from apportion.core.ledger import snapshot
from apportion.core.ledger.digest import digest
from apportion.core.ledger.rationale import Rationale
from apportion.core.ledger.rules import rules_of
from apportion.core.ledger.state import Placement, PodState, RefusedEvent, RefusedReport, State
from apportion.runtime.jetstream.client import JetStreamLedger, check_stream
from apportion.runtime.jetstream.wire import STREAM
from apportion.runtime.ledger.archive import ArchiveWriter, read_archive, read_said
from apportion.runtime.ledger.batching import Appended
from apportion.runtime.ledger.port import Draft, Record
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import (
    DEVICE_PLUGIN,
    AllocationFailed,
    BindFailed,
    BudgetGone,
    BudgetObserved,
    Configuration,
    ConfigurationChanged,
    Device,
    DeviceConstraints,
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceHealthChanged,
    DevicesRegistered,
    DeviceUncordoned,
    DifferenceFound,
    FormatEnabled,
    HostPort,
    KeptNode,
    LabelExpression,
    LedgerRebuilt,
    NamespaceGone,
    NamespaceObserved,
    NodeConstraints,
    NodeCordoned,
    NodeCordonLifted,
    NodeExpression,
    NodeGone,
    NodeHeard,
    NodeReported,
    NodeSilent,
    NodesReserved,
    NodeUncordoned,
    PlacementVoided,
    PodAdopted,
    PodBound,
    PodChanged,
    PodEvicted,
    PodGone,
    PodGroupGone,
    PodPlaced,
    PodRefused,
    PodRejected,
    PodResized,
    PolicyChanged,
    PricesLearnt,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
    ReportRefused,
    ResizeAsked,
    ResizeRefused,
    RevisionSetAside,
    ShareBreached,
    SharesAllocated,
    ShareUsed,
    UnsharedUsed,
    UsageRecorded,
    VolumeClaimGone,
    VolumeClaimObserved,
)
from apportion_schemas.catalogue import BY_PAYLOAD
from apportion_schemas.configuration import QueuesConfiguration
from apportion_schemas.quantities import Payload
from tests.support.facts import Facts
from tests.support.fleet import observed
from tests.support.nats import Bus, running_bus
from tests.support.pods import ask, cards, gang, member, pod, shape, share
from tests.support.processes import ServiceProcess

FLEET = "2xA100-40GB:mig+4xH100-80GB"
CARDS = ("GPU-b9a928f1-69e7-f0e0-c2d9-5add693ef600", "GPU-721568b1-e872-2daa-6141-5901d298cc6f")
"""Devices of the simulated node-1 with two A100-80GB."""
AGENT = ("agent", "--simulate", "2xA100-80GB", "--node", "node-1")
HTTP = HostPort(port=80)
SCHEDULER = ("scheduler", "--name", "golden", "--snapshot-every", "0")
BINDER = ("binder",)


class Pens:
    """Appends each event with the NATS account of the role that owns the event's type."""

    def __init__(self, bus: Bus, facts: Facts) -> None:
        self._bus = bus
        self._facts = facts
        self._ledgers: dict[str, JetStreamLedger] = {}
        self._number = 0

    async def write(self, *payloads: Payload) -> list[int]:
        """Append these events one by one, and wait until each has been read back. Return their
        revisions."""
        revisions = []
        for data in payloads:
            row = BY_PAYLOAD[type(data)]
            role = row.appender
            if role not in self._ledgers:
                self._ledgers[role] = await self._bus.connect(role)
            self._number += 1
            publisher = Publisher(row.writer, SystemClock(), _no_append)
            name = f"{type(data).__name__}/{self._number}"
            draft = publisher.draft(data, event_id=name, basis=self._facts.revision)
            (revision,) = await self._ledgers[role].append([draft])
            await self._facts.until(lambda: self._facts.revision >= revision, name)  # noqa: B023
            revisions.append(revision)
        return revisions


async def _no_append(_draft: Draft) -> Appended:  # a pen appends what its publisher has drafted
    raise AssertionError


@contextlib.asynccontextmanager
async def services(bus: Bus, *commands: tuple[str, ...]) -> AsyncIterator[None]:
    """Start each service in its own process, and stop all of them when the `with` block ends. Each
    item of `commands` is a command line."""
    async with contextlib.AsyncExitStack() as stack:
        for verb, *options in commands:
            url = bus.server.url_for(verb)
            await stack.enter_async_context(ServiceProcess(verb, url, *options))
        yield


async def happen(bus: Bus, facts: Facts) -> None:
    """Record the ledger `v1`, with every event type of the first version."""
    pens = Pens(bus, facts)
    agents = ("agent", "--simulate", FLEET, "--nodes", "3", "--node", "node-{}")
    async with services(bus, agents, SCHEDULER):
        reports: list[NodeReported] = await facts.count(NodeReported, 3)
        await pens.write(
            observed(reports[0].node),
            QueueObserved(queue="training", weight=3),
            PolicyChanged(by="alice", reason="recording", node_policy="binpack"),
            ConfigurationChanged(
                by="alice", configuration=Configuration(scheduler_names=("apportion",))
            ),
        )
        await _place(pens, facts)
        async with services(bus, BINDER):
            await facts.count(PodBound, 35)
            await facts.count(SharesAllocated, 35)
            await _end(pens, facts)


async def _place(pens: Pens, facts: Facts) -> None:
    """Submit pods of many shapes and a gang, and wait until they are placed. Two of the placements
    fail."""
    small = [
        pod(f"pod-{n:02}", ask(2_000 + 500 * (n % 4), cores=5 + n % 3), labels={"app": f"a{n % 2}"})
        for n in range(28)
    ]
    await pens.write(*small)
    await facts.count(PodPlaced, 28)
    await facts.count(PricesLearnt, 1)
    first, second = facts.of(PodPlaced)[:2]
    await pens.write(
        BindFailed(pod=first.pod, node=first.node, attempt=1, message="refused", final=True),
        AllocationFailed(pod=second.pod, node=second.node, attempt=1, message="no device"),
    )
    await facts.count(PlacementVoided, 2)
    await pens.write(
        gang("research/trainer", 3),
        *(member(f"rank-{n}", cards(2), group="research/trainer") for n in range(3)),
        *(pod(f"slice-{n}", ask(9_000)) for n in range(4)),
        PodRejected(
            uid="odd", namespace="default", name="odd", field="spec", value="-1",
            problem="is negative", fix="write a number from 1",
        ),
        pod("large", shape=shape(cards(40))),
    )  # fmt: skip
    await facts.count(PodPlaced, 28 + 2 + 3 + 4)
    await facts.count(PodRefused, 1)


async def _end(pens: Pens, facts: Facts) -> None:
    """Record device failures, cordons, ended pods and a removed node."""
    device = facts.of(NodeReported)[1].devices[0].id
    node = facts.of(NodeReported)[1].node
    await pens.write(
        DeviceHealthChanged(node=node, device=device, healthy=False, reason="XID 79"),
        NodeCordoned(node=node, by="alice", reason="memory test"),
        DeviceCordoned(device=device, by="alice", reason="hot"),
        pod("after", ask(3_000)),
    )
    await facts.count(PodPlaced, 38)
    await facts.count(SharesAllocated, 36)
    await pens.write(
        DeviceHealthChanged(node=node, device=device, healthy=True),
        DeviceUncordoned(device=device, by="alice", reason="cool"),
        NodeUncordoned(node=node, by="alice", reason="done"),
        *(PodGone(uid=f"pod-{n:02}", reason="finished") for n in range(0, 28, 3)),
        PodGone(uid="pod-00", reason="told twice"),
        PodGone(uid="odd", reason="mended"),
        NodeGone(node=facts.of(NodeReported)[0].node),
    )


async def agree(bus: Bus, facts: Facts) -> None:
    """Record a ledger that, after a loss, is rebuilt from the cluster before any agent reports."""
    pens = Pens(bus, facts)
    claims = [
        PodAdopted(
            pod=f"old-{n}", node="node-1", submitted=pod(f"old-{n}", ask(2_000 + n)),
            attempt=1 + n % 2,
            shares=(share(CARDS[n % 2], 2_000 + n, 10),), evidence="apportion.dev/shares",
            running=n % 2 == 0,
        )
        for n in range(4)
    ]  # fmt: skip
    await pens.write(LedgerRebuilt(by="alice", reason="lost", cluster="test", pods=4), *claims)
    async with services(bus, AGENT, SCHEDULER, BINDER):
        await facts.count(NodeReported, 1)
        await pens.write(observed("node-1", unnamed_families=("ascend310p",)))
        await pens.write(*(pod(f"new-{n}", ask(2_000, cores=5)) for n in range(8)))
        await facts.count(SharesAllocated, 2 + 8)
        await pens.write(
            DifferenceFound(kind="gone", name="default/old-0", pod="old-0", ledger="node-1"),
            PodGone(uid="old-0", reason="deleted"),
            DifferenceFound(kind="annotation", name="default/old-1", pod="old-1", cluster="[]"),
            PodGone(uid="old-3", reason="finished"),
            claims[0],
            claims[1],
            gang("research/never", 2),
            PodGroupGone(group="research/never"),
            gang("research/waits", 2),
        )


async def limit(bus: Bus, facts: Facts) -> None:
    """Record pods that wait for a quota. The quota is raised and later removed."""
    pens = Pens(bus, facts)
    hard = {"limits.nvidia.com/gpumem": 5_000, "requests.nvidia.com/gpu": 4}
    told = QuotaObserved(namespace="research", quota="gpus", hard=hard, version=1)
    cards = QuotaObserved(namespace="research", quota="cards", hard={"nvidia.com/gpu": 3})
    async with services(bus, AGENT, SCHEDULER, BINDER):
        await facts.count(NodeReported, 1)
        await pens.write(told)
        inside = [pod(f"in-{n}", ask(2_000), namespace="research") for n in range(5)]
        await pens.write(*inside, pod("out", ask(2_000)))
        await facts.count(PodRefused, 3)
        await facts.count(SharesAllocated, 3)
        more = {"limits.nvidia.com/gpumem": 7_000}
        await pens.write(QuotaObserved(namespace="research", quota="gpus", hard=more, version=2))
        await facts.count(SharesAllocated, 4)
        await pens.write(cards, QuotaGone(namespace="research", quota="gpus"))
        await facts.count(PodRefused, 4)
        await pens.write(QuotaGone(namespace="research", quota="cards"))
        await facts.count(SharesAllocated, 6)
        await pens.write(told, cards)


async def change(bus: Bus, facts: Facts) -> None:
    """Record a Kubernetes cluster in which nodes, scheduling gates and requests change."""
    pens = Pens(bus, facts)
    web = shape(ask(2_000, cores=5), node=NodeConstraints(cpu_milli=2_000, ports=(HTTP,)))
    agents = ("agent", "--simulate", "2xA100-80GB", "--nodes", "3", "--node", "node-{}")
    async with services(bus, agents, SCHEDULER, BINDER):
        await facts.count(NodeReported, 3)
        await pens.write(
            observed("node-1", version=7),
            observed("node-2", version=8, unschedulable=True),
            *(pod(f"web-{n}", shape=web, labels={"app": "web"}) for n in range(2)),
            pod("gated", ask(2_000, cores=5), gates=("example.com/quota", "example.com/data")),
            PodChanged(uid="gated", gates=("example.com/data",)),
        )
        await facts.count(SharesAllocated, 1)
        await facts.count(PodRefused, 1)
        await pens.write(PodChanged(uid="gated", labels={"app": "late"}))
        await facts.count(SharesAllocated, 2)
        await pens.write(
            PodChanged(uid="web-0", labels={"app": "web"}, cpu_milli=3_000, memory_mib=512),
            observed("node-2", version=9),
        )
        await facts.count(SharesAllocated, 3)
        await pens.write(
            PodGone(uid="web-0", reason="finished"),
            PodChanged(uid="web-0", labels={"app": "told too late"}),
        )


async def evict(bus: Bus, facts: Facts) -> None:
    """Record pods that are evicted for pods of higher priority. One eviction violates a disruption
    budget."""
    pens = Pens(bus, facts)
    one, two = ask(2_000, cores=100), ask(2_000, cores=100, count=2)
    app = (LabelExpression(key="app", operator="In", values=("web",)),)
    async with services(bus, AGENT, SCHEDULER, BINDER):
        await facts.count(NodeReported, 1)
        await pens.write(
            BudgetObserved(namespace="default", budget="web", selector=app, version=3),
            BudgetObserved(namespace="default", budget="old", selector=app, allowed=1, version=4),
            BudgetGone(namespace="default", budget="old"),
            *(pod(f"low-{n}", one, labels={"app": "web"}) for n in range(2)),
        )
        await facts.count(SharesAllocated, 2)
        await pens.write(pod("high", two, priority=100), pod("never", one, preempts=False))
        await facts.count(PodEvicted, 2)
        await pens.write(PodGone(uid="low-0", reason="evicted"))
        await pens.write(pod("late", one), PodGone(uid="low-1", reason="evicted"))
        await facts.count(SharesAllocated, 3)
        await pens.write(pod("higher", one, priority=1_000))
        await facts.count(PodEvicted, 3)


async def mount(bus: Bus, facts: Facts) -> None:
    """Record two pods that wait for a volume claim. Only one pod at a time can use the claim."""
    pens = Pens(bus, facts)
    zone = NodeExpression(key="zone", operator="In", values=("b",))
    data = VolumeClaimObserved(namespace="default", claim="data", state="unbound", version=3)
    bound = structs.replace(data, state="bound", nodes=((zone,),), single_pod=True, version=4)
    agents = ("agent", "--simulate", "2xA100-80GB", "--nodes", "2", "--node", "node-{}")
    async with services(bus, agents, SCHEDULER, BINDER):
        reports: list[NodeReported] = await facts.count(NodeReported, 2)
        for name, where in zip((each.node for each in reports), "ab", strict=True):
            await pens.write(observed(name, version=2, labels={"zone": where}))
        pods = [pod(f"p{n}", ask(2_000), volume_claims=("data",)) for n in range(2)]
        team = NamespaceObserved(namespace="team", labels={"team": "one"}, version=5)
        old = NamespaceObserved(namespace="old", labels={"team": "none"}, version=6)
        await pens.write(team, old, NamespaceGone(namespace="old"), data, *pods)
        await facts.count(PodRefused, 2)
        await pens.write(bound)
        await facts.count(SharesAllocated, 1)
        await facts.count(PodRefused, 3)
        gone = VolumeClaimGone(namespace="default", claim="other")
        await pens.write(gone, PodGone(uid="p0", reason="finished"))
        await facts.count(SharesAllocated, 2)


async def resize(bus: Bus, facts: Facts) -> None:
    """Record running pods that are resized.

    One resize is refused, and one pod ends before its resize is answered."""
    pens = Pens(bus, facts)
    async with services(bus, AGENT, SCHEDULER, BINDER):
        await facts.count(NodeReported, 1)
        await pens.write(*(pod(f"p{n}", ask(30_000, cores=20)) for n in range(4)))
        await facts.count(SharesAllocated, 4)
        await pens.write(ResizeAsked(pod="p0", by="alice", memory_mib=40_000, cores=40))
        await facts.count(PodResized, 1)
        await pens.write(ResizeAsked(pod="p1", by="alice", memory_mib=70_000, reason="larger"))
        await facts.count(ResizeRefused, 1)
        await pens.write(ResizeAsked(pod="p0", by="alice", memory_mib=2_000))
        await facts.count(PodResized, 2)
        await pens.write(pod("p4", ask(40_000)))
        await facts.count(SharesAllocated, 5)
        await pens.write(ResizeAsked(pod="none", by="alice", cores=1))
    await pens.write(ResizeAsked(pod="p2", by="alice", cores=5), PodGone(uid="p2"))
    await pens.write(ResizeAsked(pod="p3", by="alice", cores=5))


async def use(bus: Bus, facts: Facts) -> None:
    """Record a pod that ends after using part of its share, and a process that uses a GPU without a
    share."""
    pens = Pens(bus, facts)
    async with services(bus, AGENT, SCHEDULER, BINDER):
        (report,) = await facts.count(NodeReported, 1)
        await pens.write(pod("p0", ask(2_000, cores=20)), pod("p1", ask(4_000)))
        await facts.count(SharesAllocated, 2)
    held: SharesAllocated = next(each for each in facts.of(SharesAllocated) if each.pod == "p0")
    used = ShareUsed(
        pod="p0",
        namespace="default",
        name="p0",
        container="main",
        device=held.devices[0],
        seconds=3_600,
        memory_mib=2_000,
        memory_mib_seconds=6_000_000,
        memory_mib_peak=1_900,
        cores=20,
        cores_seconds=54_000,
        cores_peak=21,
    )
    stranger = UnsharedUsed(
        device=held.devices[0],
        command="Xorg",
        seconds=3_600,
        memory_mib_seconds=720_000,
        memory_mib_peak=200,
    )
    hour = UsageRecorded(node=report.node, seconds=3_600, shares=(used,), unshared=(stranger,))
    breach = ShareBreached(
        pod="p0", node=report.node, attempt=1, container="main", device=held.devices[0],
        code="raised", memory_mib=2_000, memory_found_mib=14_000, cores=20, cores_found=100,
    )  # fmt: skip
    gone = PodGone(uid="p0")
    await pens.write(breach, hour, gone, structs.replace(hour, seconds=60), breach)


async def silence(bus: Bus, facts: Facts) -> None:
    """Record agents that are lost, and pods that wait until one of these agents returns."""
    pens = Pens(bus, facts)
    agents = ("agent", "--simulate", "2xA100-80GB", "--nodes", "2", "--node", "node-{}")
    async with services(bus, agents, SCHEDULER, BINDER):
        await facts.count(NodeReported, 2)
        await pens.write(*(NodeSilent(node=f"node-{n}", grace_s=40) for n in (1, 2, 1)))
        await pens.write(observed("node-2", version=2), *(pod(p, ask(2_000)) for p in ("p0", "p1")))
        await facts.count(PodRefused, 1)
        await pens.write(NodeHeard(node="node-2"))
        await facts.count(SharesAllocated, 2)
        await pens.write(NodeHeard(node="node-3"))


async def cordon(bus: Bus, facts: Facts) -> None:
    """Record two operators who cordon the same node and device, and remove only their own
    cordons."""
    pens = Pens(bus, facts)
    agents = ("agent", "--simulate", "2xA100-80GB", "--nodes", "1", "--node", "node-{}")
    async with services(bus, agents, SCHEDULER, BINDER):
        await facts.count(NodeReported, 1)
        [report] = facts.of(NodeReported)
        node, device = report.node, report.devices[0].id
        await pens.write(*(pod(p, ask(2_000)) for p in ("p0", "p1")))
        await facts.count(SharesAllocated, 2)
        await pens.write(
            NodeCordoned(node=node, by="ada", reason="fan"),
            NodeCordoned(node=node, by="bob", reason="firmware"),
            DeviceCordoned(device=device, by="ada", reason="hot"),
            DeviceCordoned(device=device, by="bob", reason="loud"),
            NodeCordoned(node=node, by="ada", reason="fan again"),
            NodeCordonLifted(node=node, of="bob", by="ada", reason="asked him"),
            NodeCordonLifted(node=node, of="bob", by="bob", reason="lifted twice"),
            DeviceCordonLifted(device=device, of="ada", by="ada"),
            DeviceCordoned(device="not-there-yet", by="ada", reason="on order"),
            DeviceUncordoned(device="not-there-yet", by="bob", reason="sent back"),
        )


async def rule(bus: Bus, facts: Facts) -> None:
    """Record that an operator enables an unknown event format, and sets a mistaken cordon aside."""
    pens = Pens(bus, facts)
    agents = ("agent", "--simulate", "2xA100-80GB", "--nodes", "1", "--node", "node-{}")
    async with services(bus, agents, SCHEDULER, BINDER):
        await facts.count(NodeReported, 1)
        await pens.write(
            FormatEnabled(format="PodWeighed", version=2, by="ada", reason="the next release"),
            FormatEnabled(format="PodWeighed", version=1, by="ada"),
            pod("p0", ask(2_000)),
        )
        await facts.count(SharesAllocated, 1)
        mistaken = await pens.write(NodeCordoned(node="node-1", by="ada", reason="wrong node"))
        for revision in (*mistaken, *mistaken, 1 << 40):
            await pens.write(RevisionSetAside(revision=revision, by="bob", reason="not this one"))
        await pens.write(pod("p1", ask(2_000)))
        await facts.count(SharesAllocated, 2)


async def lie(bus: Bus, facts: Facts) -> None:
    """Record an agent that twice reports the devices of another node as its own.

    The intake refuses these reports, and accepts the agent's true report."""
    pens = Pens(bus, facts)
    agents = ("agent", "--simulate", "2xA100-80GB", "--nodes", "2", "--node", "node-{}")
    async with services(bus, agents, SCHEDULER, BINDER):
        await facts.count(NodeReported, 2)
        stolen, own = facts.of(NodeReported)
        agent = await bus.connect("agent")
        for number, cards_of in enumerate((stolen, stolen, own)):
            claim = structs.replace(own, devices=cards_of.devices)
            publisher = Publisher(f"agent/{own.node}", SystemClock(), _no_append)
            draft = publisher.draft(claim, event_id=f"claim/{number}", basis=facts.revision)
            await agent.request(subject_of_node(own.node), draft.payload, 10)
        await facts.count(ReportRefused, 1)
        await pens.write(*(pod(p, ask(2_000)) for p in ("p0", "p1")))
        await facts.count(SharesAllocated, 2)


async def register(bus: Bus, facts: Facts) -> None:
    """Record a node whose devices HAMi's plugin registers, and which our agent then takes over."""
    pens = Pens(bus, facts)
    agents = ("agent", "--simulate", "2xA100-80GB", "--node", "node-1")
    async with services(bus, SCHEDULER):
        card = Device(
            id="GPU-1", index=0, family="nvidia", model="Tesla T4", memory_mib=15_360,
            physical_memory_mib=15_360,
        )  # fmt: skip
        theirs = DevicesRegistered(node="node-1", plugin="hami", devices=(card,), version=2)
        kept = observed("node-1", version=2, labels={DEVICE_PLUGIN: "hami"})
        await pens.write(kept, theirs)
        wish = pod("p0", ask(2_000))
        hamis = structs.replace(wish.shape, devices=DeviceConstraints(plugin="hami"))
        await pens.write(structs.replace(wish, shape=hamis), pod("p1", ask(2_000)))
        await facts.count(PodPlaced, 1)
        await facts.count(PodRefused, 1)
        unread = structs.replace(theirs, devices=(), problem="it has 3 fields", version=3)
        await pens.write(unread, structs.replace(theirs, version=4))
    async with services(bus, agents, SCHEDULER):
        await facts.count(NodeReported, 1)
        await pens.write(observed("node-1", version=5))
        await facts.count(PodPlaced, 2)
        await pens.write(DevicesRegistered(node="node-1", version=6))


async def fence(bus: Bus, facts: Facts) -> None:
    """Record pods whose queue or namespace has a limit, so the scheduler fences their
    placements."""
    pens = Pens(bus, facts)
    async with services(bus, AGENT, SCHEDULER, BINDER):
        await facts.count(NodeReported, 1)
        await pens.write(
            QueueObserved(queue="research", capability={"nvidia.com/gpu": 2}),
            QuotaObserved(namespace="web", quota="gpus", hard={"nvidia.com/gpu": 1}),
        )
        await pens.write(*(pod(f"r-{n}", ask(2_000), queue="research") for n in range(3)))
        await facts.count(SharesAllocated, 2)
        await facts.count(PodRefused, 1)
        await pens.write(*(pod(f"w-{n}", ask(2_000), namespace="web") for n in range(2)))
        await facts.count(SharesAllocated, 3)
        await facts.count(PodRefused, 2)
        await pens.write(PodGone(uid="r-0", reason="finished"))
        await facts.count(SharesAllocated, 4)


async def reserve(bus: Bus, facts: Facts) -> None:
    """Record a reservation of a node that ends, and one whose pod is placed."""
    pens = Pens(bus, facts)
    queues = QueuesConfiguration(reserve_after="10m")
    async with services(bus, AGENT, SCHEDULER, BINDER):
        await facts.count(NodeReported, 1)
        await pens.write(
            ConfigurationChanged(by="alice", configuration=Configuration(queues=queues)),
            pod("short", ask(2_000), deadline_s=1_200),
        )
        await facts.count(SharesAllocated, 1)
        await pens.write(pod("large", cards(2)))
        await facts.count(PodRefused, 1)
        kept = KeptNode(namespace="default", pod="large", node="node-1")
        reserved = NodesReserved(
            pod="large", name="default/large", kept=(kept,), starts="2100-01-01T00:00:00Z"
        )
        await pens.write(reserved, NodesReserved(), reserved)
        await pens.write(pod("other", cards(1)))
        await facts.count(PodRefused, 2)
        await pens.write(PodGone(uid="short", reason="finished"))
        await facts.count(SharesAllocated, 2)


SCENES = {
    "v1-reservations": reserve,
    "v1-limits": fence,
    "v1-plugins": register,
    "v1-intake": lie,
    "v1-cordons": cordon,
    "v1-rules": rule,
    "v1": happen,
    "v1-agreement": agree,
    "v1-quotas": limit,
    "v1-pods": change,
    "v1-evictions": evict,
    "v1-volumes": mount,
    "v1-resizes": resize,
    "v1-usage": use,
    "v1-presence": silence,
}


async def record(path: Path) -> None:
    """Run the scenario that is named like the file `path`, and save the resulting ledger in the
    file."""
    with tempfile.TemporaryDirectory() as folder:
        async with running_bus(Path(folder) / "nats") as bus:
            facts = Facts(bus)
            await facts.open()
            await SCENES[path.stem](bus, facts)
            ledger = await bus.connect("auditor")
            last, info = await ledger.last_revision(), await check_stream(ledger)
            whole = asyncio.Event()
            with ArchiveWriter(path, stream=STREAM, created=info.created) as writer:

                def deliver(record: Record) -> None:
                    writer.add(record)
                    if record.revision == last:
                        whole.set()

                subscription = await ledger.follow(deliver)
                await whole.wait()
                await subscription.stop()


def folded(path: Path) -> State:
    """Return the state that a recorded ledger folds to."""
    auditor = Auditor(State(rules=rules_of(read_said([path]))))
    for each in read_archive(path):
        auditor.take(each.revision, each.subject, each.payload)
    return auditor.state


def write_digest(path: Path, state: State) -> None:
    """Write the digest of this state, folded from the ledger at `path`, to a file next to the
    ledger."""
    told = {"revision": state.revision, "digest": digest(state)}
    path.with_suffix(".digest.json").write_text(json.dumps(told) + "\n", encoding="utf-8")


def write_snapshot(path: Path, state: State) -> None:
    """Write a snapshot of this state, which was folded from the ledger at `path`."""
    name = f"format-{snapshot.FORMAT}-{path.stem}.snapshot"
    folder = path.parents[1] / "snapshots"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(snapshot.take(state))
    (folder / f"format-{snapshot.FORMAT}.fields.json").write_text(
        json.dumps(snapshot_fields(), indent=1) + "\n", encoding="utf-8"
    )


def snapshot_fields() -> dict[str, list[str]]:
    """Return, for each struct that a snapshot stores as a list, the names of its fields in order.

    A new field in one of these structs could make readers misread an older snapshot."""
    parts = (snapshot._Part, snapshot._Head, snapshot._Node, snapshot._Device)
    held = (*parts, PodState, Placement, Rationale, RefusedEvent, RefusedReport)
    return {of.__name__: list(of.__struct_fields__) for of in held}


def main() -> None:
    """Record a ledger, or write the digest or a snapshot of a recorded ledger."""
    parser = argparse.ArgumentParser(
        description="Record a ledger, or the digest or a snapshot of one."
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--digest", action="store_true", help="only the digest beside the file")
    parser.add_argument("--snapshot", action="store_true", help="only a snapshot of its state")
    given = parser.parse_args()
    if given.snapshot:
        write_snapshot(given.file, folded(given.file))
        return
    if not given.digest:
        asyncio.run(record(given.file))
    write_digest(given.file, folded(given.file))


if __name__ == "__main__":
    main()
