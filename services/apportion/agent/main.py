"""`apportion agent`: the process around `reporting`."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from apportion.agent.backend import DevicesUnavailable
from apportion.agent.fleet import FleetInvalid, SimulatedNode, numbered_nodes, read_fleet
from apportion.agent.host import local_host
from apportion.agent.nvml import NvmlBackend
from apportion.agent.reporting import Agent, Node
from apportion.agent.simulated import SimulatedBackend
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.config import ConfigError, ServiceConfig
from apportion.runtime.service.lifecycle import Service, run_service
from apportion.runtime.service.options import service_options, stop_with
from apportion.runtime.service.session import Session, open_session

_EXAMPLE = "Example:  apportion agent --node gpu-1 --simulate 8xH100-80GB"


@click.command(name="agent", epilog=_EXAMPLE)
@click.option("--node", default=socket.gethostname, help="The node's name, or a pattern with {}.")
@click.option(
    "--simulate",
    "specs",
    multiple=True,
    metavar="DEVICES",
    help="Simulate COUNTxMODEL[:MODE], joined by +. Given again, the nodes take them in turn.",
)
@click.option("--nodes", "count", default=1, show_default=True, help="How many to simulate.")
@click.option(
    "--fleet",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Simulate the nodes of this CSV or YAML file.",
)
@service_options
def command(
    *, node: str, specs: Sequence[str], count: int, fleet: Path | None, config: ServiceConfig
) -> None:
    """Report the devices of this node and take the shares that are placed on it.

    Without --simulate and --fleet the node has this machine's NVIDIA GPUs.
    """
    if (fleet or count > 1) and (specs if fleet else not specs):
        stop_with("choose one: --fleet, or --simulate with --nodes, or neither")
    try:
        simulated = read_fleet(fleet) if fleet else numbered_nodes(node, count, specs)
    except FleetInvalid as error:
        stop_with(str(error))
    sys.exit(run_service("agent", lambda service: body(service, node, simulated), config))


async def body(service: Service, node: str, simulated: Sequence[SimulatedNode]) -> None:
    """One life of the agent, until cancelled."""
    async with open_session(service) as session:
        nodes = _nodes(service, session, node, simulated)
        agent = Agent(
            nodes, session.ledger, service.metrics, state=await session.beyond_beginning()
        )
        service.ready_when(agent.not_ready)
        service.loop("report", agent.watch)
        service.loop("allocate", agent.allocate)
        service.loop("orders", agent.take_orders)
        try:
            await agent.fold()
        finally:
            for member in nodes:
                await member.backend.close()


def _nodes(
    service: Service, session: Session, node: str, simulated: Sequence[SimulatedNode]
) -> list[Node]:
    def publisher(name: str) -> Publisher:
        return Publisher(f"agent/{name}", service.clock, session.append)

    if not simulated:
        try:
            backend = NvmlBackend(service.clock)
        except DevicesUnavailable as error:
            raise ConfigError("--simulate", "not given", str(error)) from None
        return [Node(node, backend, local_host(), publisher(node))]
    return [
        Node(member.name, SimulatedBackend(member.devices), member.host, publisher(member.name))
        for member in simulated
    ]
