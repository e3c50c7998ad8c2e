"""The `apportion admission` command and its process.

The webhook reads one subject of the ledger, the configuration, and writes nothing. Invariant: once
the webhook has read a configuration, it answers by the newest one that it has read, even if the
ledger is unreachable."""

import sys
from functools import partial
from typing import Any, Final

import click

from apportion.admission.reviews import LIMITS, Reviews
from apportion.core.ledger.state import State
from apportion.core.workloads.schedulers import OURS
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream.following import ConfigurationLedger, configuration_rules
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.config import Address, ConfigError, ServiceConfig, parse_address
from apportion.runtime.service.lifecycle import Service, run_service
from apportion.runtime.service.options import dra_option, service_options, stop_with
from apportion.runtime.service.serving_tls import (
    CERTIFICATE,
    KEY,
    ServedFiles,
    served_files,
    serving,
    serving_tls_options,
)

LISTEN = "127.0.0.1:8443"
NAMESPACE = "apportion"
SCHEDULERS_MAX = 32


def checked(given: dict[str, Any]) -> tuple[Address, ServedFiles]:
    """Return the listen address and the TLS files. Raises ConfigError if options conflict."""
    files = served_files(given["tls_cert"], given["tls_key"], given["tls_client_ca"])
    if files is None:
        fix = f"add it and {KEY}: API servers call webhooks only over HTTPS"
        raise ConfigError(CERTIFICATE, None, fix)
    names = given["schedulers"]
    if len(names) > SCHEDULERS_MAX:
        raise ConfigError("--scheduler-name", len(names), f"use at most {SCHEDULERS_MAX}")
    if given["scheduler"] not in names:
        fix = f"use a name given with --scheduler-name: {', '.join(names)}"
        raise ConfigError("--fill-in", given["scheduler"], fix)
    return parse_address("--listen", given["listen"]), files


LOOK_S: Final = 1.0


@click.command(
    name="admission",
    epilog="Example:  apportion admission --nats nats://admission:secret@localhost:4222 "
    "--tls-cert tls.crt --tls-key tls.key",
)
@click.option("--listen", default=LISTEN, envvar="APPORTION_LISTEN", show_default=True,
              show_envvar=True, metavar="HOST:PORT",
              help="Address that the webhook listens on (HTTPS).")  # fmt: skip
@click.option("--fill-in", "scheduler", default=OURS[0], show_default=True, metavar="NAME",
              help="schedulerName to set in pods that request a device but name no "
              "scheduler.")  # fmt: skip
@click.option("--scheduler-name", "schedulers", multiple=True, default=OURS, show_default=True,
              metavar="NAME", help="Check pods with this schedulerName. Use the same values as for "
              "the watcher. Repeatable."
)  # fmt: skip
@click.option(
    "--namespace", default=NAMESPACE, envvar="APPORTION_NAMESPACE", show_default=True,
    show_envvar=True, metavar="NAME",
    help="Namespace of the services. Only the binder in this namespace may write Apportion's "
    "annotations.",
)  # fmt: skip
@serving_tls_options
@dra_option
@service_options
def command(*, config: ServiceConfig, **given: Any) -> None:
    """Validate new pods for the API server, and fill in defaults.

    You can run several replicas. The same port serves /healthz, /readyz and /metrics."""
    try:
        listen, files = checked(given)
    except ConfigError as error:
        stop_with(str(error))
    live = partial(body, listen=listen, files=files, given=given)
    sys.exit(run_service("admission", live, config))


async def body(
    service: Service, *, listen: Address, files: ServedFiles, given: dict[str, Any]
) -> None:
    """Run the webhook until cancelled. `given` has the command-line options by name."""
    ledger = await jetstream.connect(service.config.reach, name=service.name)
    try:
        await jetstream.check_stream(ledger)
        service.watch(ledger)
        known = _Known(service, ConfigurationLedger(ledger.wire))
        reviews = Reviews(
            lambda: known.cluster.state.configuration,
            unready=lambda: "; ".join(known.reader.not_ready()),
            metrics=service.metrics,
            schedulers=given["schedulers"],
            scheduler=given["scheduler"],
            writer=f"system:serviceaccount:{given['namespace']}:binder",
            dra=given["dra"],
        )
        service.ready_when(known.reader.not_ready)
        service.loop("watch the connection", known.say)
        async with serving(service, listen, files, reviews.routes(), LIMITS) as url:
            service.log.info("admitting", url=f"{url}/")
            await known.reader.run()
    finally:
        await ledger.close()


class _Known:
    def __init__(self, service: Service, ledger: ConfigurationLedger) -> None:
        self._service = service
        self._ledger = ledger
        self.cluster = StateFold(State(rules=configuration_rules()))
        self.reader = Reader(ledger, self.cluster, metrics=service.metrics)
        service.metrics.gauge(
            "apportion_admission_configuration_revision",
            "Revision of the configuration that the webhook uses; 0 if it has none yet.",
        ).set_function(lambda: self.cluster.state.configuration_revision)
        service.metrics.gauge(
            "apportion_admission_configuration_unsure",
            "1 while the ledger is unreachable, so the configuration may be outdated; else 0.",
        ).set_function(lambda: float(not ledger.in_touch))

    async def say(self) -> None:
        """Log each time the ledger becomes unreachable or reachable again, until cancelled.

        While the ledger is unreachable, pods are checked by the newest known configuration."""
        await self.reader.caught_up()
        sure = True
        while True:
            await self._service.clock.pause(LOOK_S)
            if sure == self._ledger.in_touch:
                continue
            sure = not sure
            revision = self.cluster.state.configuration_revision
            if sure:
                self._service.log.info("ledger reachable again", configuration=revision)
            else:
                self._service.log.warning(
                    "ledger unreachable, using the last known configuration", configuration=revision
                )
