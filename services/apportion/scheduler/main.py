"""`apportion scheduler`: the process around `cycle`."""

from __future__ import annotations

import socket
import sys

import click

from apportion.core.ledger.fold import Change
from apportion.runtime.config import ServiceConfig
from apportion.runtime.lifecycle import Service, run_service
from apportion.runtime.options import service_options
from apportion.runtime.publisher import Publisher
from apportion.runtime.reader import Reader, StateFold
from apportion.runtime.session import open_session
from apportion.scheduler.cycle import Cycle, DecisionMetrics
from apportion.scheduler.learning import Learning


@click.command(
    name="scheduler",
    epilog="Example:  apportion scheduler --nats nats://scheduler:secret@localhost:4222",
)
@click.option("--name", default=socket.gethostname, help="How its decisions are signed.")
@service_options
def command(*, name: str, config: ServiceConfig) -> None:
    """Decide where pods go, and record why. Start as many as you like: the fences keep order."""
    sys.exit(run_service("scheduler", lambda service: body(service, name), config))


async def body(service: Service, name: str) -> None:
    """One life of the scheduler, until cancelled."""
    async with open_session(service) as session:
        cluster = StateFold()
        publisher = Publisher(f"scheduler/{name}", service.clock, session.append)
        cycle = Cycle(cluster.state, session.ledger, clock=service.clock, publisher=publisher)
        learning = Learning(cluster.state, session.ledger, publisher)

        def observe(change: Change) -> None:
            cycle.observe(change)
            learning.observe(change)

        reader = Reader(session.ledger, cluster, metrics=service.metrics, on_change=observe)
        service.ready_when(reader.not_ready)
        metrics = DecisionMetrics(service.metrics, cycle.engine)
        service.loop("decide", lambda: cycle.run(reader, metrics))
        service.loop("learn prices", lambda: learning.run(reader))
        await reader.run()
