"""`apportion binder`: the process around `binding`."""

from __future__ import annotations

import sys

import click

from apportion.binder.binding import ACK_WAIT_S, IN_FLIGHT_MAX, Binding
from apportion.binder.target import LocalTarget, Target
from apportion.runtime.config import ServiceConfig
from apportion.runtime.lifecycle import Service, run_service
from apportion.runtime.options import service_options
from apportion.runtime.publisher import Publisher
from apportion.runtime.reader import Reader, StateFold
from apportion.runtime.session import open_session

DURABLE = "binder"
PLACEMENTS = "apportion.v1.placement.>"
QUEUE_IN_FLIGHT_MAX = 4 * IN_FLIGHT_MAX
"""Of all replicas together; the queue's settings are the same for each of them."""


@click.command(
    name="binder",
    epilog="Example:  apportion binder --nats nats://binder:secret@localhost:4222",
)
@service_options
def command(config: ServiceConfig) -> None:
    """Bind what was placed, and record it. Start as many as you like: they share the work."""
    sys.exit(run_service("binder", body, config))


async def body(service: Service, target: Target | None = None) -> None:
    """One life of the binder, until cancelled; without a `target` the ledger is all there is."""
    async with open_session(service) as session:
        cluster = StateFold()
        reader = Reader(session.ledger, cluster, metrics=service.metrics)
        publisher = Publisher("binder", service.clock, session.append)
        binding = Binding(
            cluster.state,
            target or LocalTarget(),
            publisher,
            clock=service.clock,
            metrics=service.metrics,
        )
        service.ready_when(reader.not_ready)
        queue = await session.ledger.work_queue(
            DURABLE, [PLACEMENTS], ack_wait_s=ACK_WAIT_S, max_in_flight=QUEUE_IN_FLIGHT_MAX
        )
        service.loop("hold", binding.hold)
        service.loop("bind", lambda: binding.run(queue, reader))
        await reader.run()
