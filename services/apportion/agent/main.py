"""The command `apportion agent`, which runs `reporting.agent` as a process."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from apportion.agent.backend import DevicesUnavailable
from apportion.agent.boot_book import BootBook
from apportion.agent.kubelet.port import NotPrepared
from apportion.agent.nvidia.driver import IGNORED_XIDS, NOTICE_XIDS, QUIET_S, XID_MAX
from apportion.agent.nvidia.mig import OurInstances
from apportion.agent.nvidia.nvml import NvmlBackend
from apportion.agent.options import places_options
from apportion.agent.places import Places, may_administer
from apportion.agent.reporting.agent import Agent, IntakeClient, Node
from apportion.agent.simulated import SimulatedBackend
from apportion.agent.usage.simulating import SimulatedUse
from apportion.core.configuration.offering import NO_CDI, NO_MPS, NO_RIGHT
from apportion.core.ledger.handlers.turns import AT_ALLOCATE, AT_START, handing_out
from apportion.runtime.files.fleets import FleetInvalid, SimulatedNode, numbered_nodes, read_fleet
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.config import ConfigError, ServiceConfig
from apportion.runtime.process.memory import give_back, share_one_heap
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.service.lifecycle import Service, run_service
from apportion.runtime.service.options import many, seconds, service_options, stop_with
from apportion.runtime.service.session import Session, open_session
from apportion_schemas import HOSTNAME, Host, MigInstance

if TYPE_CHECKING:
    from apportion.agent.kubelet.node import FrontDoor, KubeletNode
    from apportion.agent.standalone import RunNode


class Backends(NamedTuple):
    """Settings of the devices that the agent reports: this machine's own or simulated ones."""

    node: str
    simulated: Sequence[SimulatedNode] = ()
    quiet_s: float = QUIET_S
    ignored_xids: frozenset[int] = frozenset()
    critical_xids: frozenset[int] = frozenset()
    use_s: float | None = None  # how often a simulated node's use is recorded; None: never


_INSTANCES = "instances.json"
_KIB_PER_MIB = 1024
_EXAMPLE = "Example:  apportion agent --node gpu-1 --simulate 8xH100-80GB"


@click.command(name="agent", epilog=_EXAMPLE)
@click.option(
    "--node",
    default=socket.gethostname,
    help="Name of the node. For several simulated nodes, a pattern with {} in place of the number.",
)
@many(
    "--simulate",
    "specs",
    "DEVICES",
    "Simulate these devices: COUNTxMODEL[:MODE], joined by +. Repeat the option to give the nodes "
    "different devices in turn.",
)
@click.option("--nodes", "count", default=1, show_default=True, help="Number of simulated nodes.")
@click.option(
    "--fleet",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Simulate the nodes in this CSV or YAML file.",
)
@seconds(
    "--simulate-use",
    "use_s",
    (1, 86_400),
    None,
    "Simulate the device usage of containers, and record it at this interval.",
)
@places_options
@seconds(
    "--xid-quiet",
    "quiet_s",
    (1, 86_400),
    QUIET_S,
    "Mark a GPU healthy again after this time without a critical XID.",
)
@many(
    "--ignore-xid",
    "ignored_xids",
    "NUMBER",
    "Do not mark a GPU unhealthy because of this XID. Repeatable.",
    type=click.IntRange(1, XID_MAX),
)
@many(
    "--critical-xid",
    "critical_xids",
    "NUMBER",
    "Also mark a GPU unhealthy because of this XID, which is ignored by default. Repeatable.",
    type=click.IntRange(1, XID_MAX),
)
@service_options
def command(
    *,
    node: str,
    specs: Sequence[str],
    count: int,
    fleet: Path | None,
    use_s: float | None,
    places: Places | None,
    quiet_s: float,
    ignored_xids: Sequence[int],
    critical_xids: Sequence[int],
    config: ServiceConfig,
) -> None:
    """Report the devices of this node, and provide containers with their shares.

    Without --simulate and --fleet, the agent reports this machine's NVIDIA GPUs. The options from
    --cdi to --usage-record need --kubelet or --runs."""
    if places is not None and (fleet or count > 1):
        stop_with("--kubelet and --runs serve one node; omit --fleet and --nodes")
    if (fleet or count > 1) and (specs if fleet else not specs):
        stop_with("use --fleet, or --simulate with --nodes, or neither")
    ignored, critical = frozenset(ignored_xids), frozenset(critical_xids)
    if both := ignored & critical:
        stop_with(f"--ignore-xid and --critical-xid both name {min(both)}; remove one")
    try:
        simulated = read_fleet(fleet) if fleet else numbered_nodes(node, count, specs)
    except FleetInvalid as error:
        stop_with(str(error))
    if use_s is not None and not simulated:
        stop_with("--simulate-use requires --simulate or --fleet")
    backends = Backends(node, simulated, quiet_s, ignored, critical, use_s)
    share_one_heap()
    # The agent of one node should use little memory; one that simulates thousands should be fast.
    small = places is not None
    sys.exit(
        run_service("agent", lambda service: body(service, backends, places), config, small=small)
    )


def _note_handing_out(node: Node, places: Places) -> None:
    # How the agent hands out shares, and which modes it cannot hand out.
    if places.kubelet is not None:
        node.host = handing_out(node.host, AT_ALLOCATE if places.no_cdi else AT_START)
    if places.no_cdi:
        node.closed += ((("mig",), NO_CDI),)
    if not node.backend.simulated and not may_administer():
        node.closed += ((("mig", "mps"), NO_RIGHT),)
    if not node.backend.simulated and places.kubelet is not None and not places.mps_offered:
        node.closed += ((("mps",), NO_MPS),)


async def body(service: Service, backends: Backends, places: Places | None = None) -> None:
    """Run the agent until cancelled.

    With `places`, the agent also gives devices to the node's containers or commands. Without
    `places`, it only reports devices and answers placements."""
    simulated = [each.name for each in backends.simulated]
    node = backends.node if not simulated else simulated[0] if len(simulated) == 1 else ""
    async with open_session(service, node=node) as session:
        intake = IntakeClient(session.ledger, service.clock)
        nodes = _nodes(service, intake, backends, places)
        if places is not None:
            _note_handing_out(nodes[0], places)
        agent = Agent(
            nodes,
            session.ledger,
            service.metrics,
            state=await session.beyond_beginning(),
            rules=await session.rules(),
            remember=places is not None,
            kubelet=places is not None and places.kubelet is not None,
        )
        service.ready_when(agent.not_ready)
        service.ready_when(intake.not_ready)
        door = (
            None if places is None else await _hand_out(service, session, agent, nodes[0], places)
        )
        service.loop("report", agent.watch)
        service.loop("allocate", agent.allocate)
        service.loop("orders", agent.take_orders)
        if backends.use_s is not None:
            # No event of a node reports that a pod has ended, so this folds the whole ledger.
            cluster = StateFold(await session.restored(), quiet=True)
            # Metrics of its own: those of the service are about the agent's reader.
            after = cluster.state.revision
            reader = Reader(session.ledger, cluster, metrics=Metrics(), after=after, writes="agent")
            usage = SimulatedUse(
                agent, nodes, cluster.state, clock=service.clock, record_s=backends.use_s
            )
            service.loop("pods", reader.run)
            service.loop("usage", lambda: usage.sample(session.ledger.publish))
            service.loop("usage records", usage.record)
        if door is None:
            service.loop("beat", lambda: agent.beat(service.clock))
        else:
            service.loop("beat", lambda: agent.beat(service.clock, waits=door.not_ready))
            service.before_stopping(lambda: agent.leave(service.clock))
        try:
            await agent.fold()
        finally:
            for member in nodes:
                await member.backend.close()


async def _hand_out(
    service: Service, session: Session, agent: Agent, node: Node, places: Places
) -> FrontDoor | None:
    served: KubeletNode | RunNode
    door = None
    metrics, clock, kubelet = service.metrics, service.clock, places.kubelet
    if kubelet is not None:
        # gRPC is a third of an agent's memory, so it is imported only where there is a kubelet.
        from apportion.agent.kubelet.node import KubeletNode  # noqa: PLC0415

        served = KubeletNode(agent, node, places, kubelet=kubelet, metrics=metrics, clock=clock)
        door = served.door
        service.loop("kubelet", served.serve)
    else:
        from apportion.agent.standalone import RunNode  # noqa: PLC0415

        served = runs = RunNode(agent, node, places, metrics=metrics, clock=clock)
        service.loop("runs", lambda: runs.serve(session.ledger))
    with contextlib.suppress(NotPrepared):  # a kubelet that has just started
        # must happen before the ledger's beginning, which names these pods, is read
        await served.lifecycle.look()
    service.ready_when(served.not_ready)
    service.loop("usage", lambda: served.lifecycle.sampling.run(session.ledger.publish))
    service.loop("memory", lambda: give_back(service.clock))
    return door


def _nodes(
    service: Service, intake: IntakeClient, backends: Backends, places: Places | None
) -> list[Node]:
    def publisher(name: str) -> Publisher:
        return Publisher(f"agent/{name}", service.clock, intake.append)

    if not backends.simulated:
        try:
            ours = OurInstances(
                BootBook(places.state / _INSTANCES, places.proc, MigInstance) if places else None
            )
            ignored = IGNORED_XIDS | NOTICE_XIDS | backends.ignored_xids
            backend = NvmlBackend(
                service.clock,
                quiet_s=backends.quiet_s,
                ours=ours,
                ignored=ignored - backends.critical_xids,
            )
        except DevicesUnavailable as error:
            raise ConfigError("--simulate", None, str(error)) from None
        fields = dict(
            line.split(":", 1) for line in Path("/proc/meminfo").read_text("ascii").splitlines()
        )
        host = Host(
            cpu_milli=(os.cpu_count() or 1) * 1_000,
            memory_mib=int(fields["MemTotal"].split()[0]) // _KIB_PER_MIB,
            labels={HOSTNAME: backends.node},
        )
        return [Node(backends.node, backend, host, publisher(backends.node))]
    return [
        Node(member.name, SimulatedBackend(member.devices), member.host, publisher(member.name))
        for member in backends.simulated
    ]
