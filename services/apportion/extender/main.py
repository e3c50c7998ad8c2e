"""The `apportion extender` command and its process.

Invariant: the extender answers only after it has folded the whole ledger."""

import sys
from pathlib import Path

import click

from apportion.core.ledger.fold import Change
from apportion.core.placement.fit_query import FitQuery
from apportion.extender.binding import ExtenderBinding
from apportion.extender.extender import LIMITS, Extender
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.config import Address, ConfigError, ServiceConfig, parse_address
from apportion.runtime.service.lifecycle import Service, run_service
from apportion.runtime.service.options import service_options, stop_with
from apportion.runtime.service.serving_tls import (
    ServedFiles,
    served_files,
    serving,
    serving_tls_options,
)

LISTEN = "127.0.0.1:3456"


@click.command(
    name="extender",
    epilog="Example:  apportion extender --nats nats://extender:secret@localhost:4222 "
    "--tls-cert FILE --tls-key FILE --tls-client-ca FILE",
)
@click.option("--listen", default=LISTEN, envvar="APPORTION_LISTEN", show_default=True,
              show_envvar=True, metavar="HOST:PORT",
              help="Address for kube-schedulers.")  # fmt: skip
@serving_tls_options
@service_options
def command(*, listen: str, config: ServiceConfig, **tls: Path | None) -> None:
    """Serve kube-schedulers as an extender: filter and score nodes, and bind pods.

    You can run several replicas. Any client that reaches the port can place pods: accept only
    client certificates of --tls-client-ca, or only the hosts of kube-schedulers."""
    try:
        address = parse_address("--listen", listen)
        files = served_files(tls["tls_cert"], tls["tls_key"], tls["tls_client_ca"])
    except ConfigError as error:
        stop_with(str(error))
    sys.exit(run_service("extender", lambda service: body(service, address, files), config))


async def body(service: Service, listen: Address, files: ServedFiles | None) -> None:
    """Run the extender until cancelled."""
    ledger = await jetstream.connect(service.config.reach, name=service.name)
    try:
        await jetstream.check_stream(ledger)
        service.watch(ledger)
        cluster = StateFold(await Snapshots(ledger.wire).restore())
        state = cluster.state
        fit_query = FitQuery(state)
        binding = ExtenderBinding(lambda: state, ledger.request)

        def observe(change: Change) -> None:
            fit_query.observe(change)
            binding.observe(change)

        reader = Reader(
            ledger, cluster, metrics=service.metrics, on_change=observe, after=state.revision
        )
        service.ready_when(reader.not_ready)
        extender = Extender(
            lambda: state,
            fit_query,
            binding,
            unready=lambda: "; ".join(reader.not_ready()),
            metrics=service.metrics,
        )
        async with serving(service, listen, files, extender.routes(), LIMITS) as url:
            service.log.info("extending", url=url)
            await reader.run()
    finally:
        await ledger.close()
