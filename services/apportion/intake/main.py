"""The `apportion intake` command and its process."""

import sys

import click

from apportion.intake.reads import Attesting, Showing
from apportion.intake.taking import Refusals, Taking
from apportion.runtime.jetstream.ledger import JetStreamLedger
from apportion.runtime.ledger.membership import beat
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import StateFold
from apportion.runtime.process.config import ServiceConfig
from apportion.runtime.service.lifecycle import Service, run_service
from apportion.runtime.service.options import service_options
from apportion.runtime.service.session import open_session


@click.command(
    name="intake", epilog="Example:  apportion intake --nats nats://intake:secret@localhost:4222"
)
@service_options
def command(*, config: ServiceConfig) -> None:
    """Validate the reports of agents, and append them. Several intakes share the work."""
    sys.exit(run_service("intake", body, config))


async def body(service: Service) -> None:
    """Run the intake until cancelled."""
    async with open_session(service) as session:
        cluster = StateFold(await session.restored())
        reader = session.reader(service, cluster, writes="agent")
        publisher = Publisher("intake", service.clock, session.append)
        refusals = Refusals(publisher, service.clock, service.metrics)
        taking = Taking(
            cluster.state,
            reader,
            session.ledger,
            session.append,
            refusals,
            clock=service.clock,
            metrics=service.metrics,
            free=service.soundness.free,
            spend=service.soundness.spend,
        )
        service.ready_when(taking.not_ready)
        service.loop("take", taking.run)
        service.loop("beat", lambda: beat(session.ledger, "intake", clock=service.clock))
        if isinstance(session.ledger, JetStreamLedger):
            showing = Showing(
                lambda: cluster.state,
                reader,
                session.ledger,
                session.ledger.wire,
                clock=service.clock,
                metrics=service.metrics,
            )
            service.loop("serve reads", showing.run)
        if session.snapshots is not None:
            attesting = Attesting(
                session.ledger,
                session.snapshots,
                reader,
                clock=service.clock,
                metrics=service.metrics,
            )
            service.ready_when(attesting.not_ready)
            service.loop("attest snapshots", attesting.run)
        service.loop("report refusals", lambda: refusals.tell(lambda: cluster.state.revision))
        await reader.run()
