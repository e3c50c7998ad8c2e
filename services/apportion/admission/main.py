"""`apportion admission`: the process around the webhook.

It writes nothing to the ledger, and reads one subject of it: the configuration. Invariant: once it
has read a configuration it judges pods by the newest one that has come, also while the ledger is
out of reach. A combination of options that could not work is named before anything is started.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

import click
from msgspec import Struct

from apportion.admission.reviews import LIMITS, Reviews
from apportion.core.ledger.state import State
from apportion.core.workloads.schedulers import OURS
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream.following import (
    ConfigurationLedger,
    configuration_rules,
)
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.config import Address, ConfigError, ServiceConfig, parse_address
from apportion.runtime.service.http import HttpServer, listening
from apportion.runtime.service.lifecycle import Service, run_service
from apportion.runtime.service.options import Command, dra_option, service_options, stop_with
from apportion.runtime.service.serving_tls import (
    CERTIFICATE,
    KEY,
    ServedFiles,
    given_tls,
    served_files,
    serving_tls_options,
)

LISTEN = "127.0.0.1:8443"
NAMESPACE = "apportion"
SCHEDULERS_MAX = 32


class AdmissionChoice(Struct, frozen=True, kw_only=True):
    """How the webhook is served.

    `schedulers` are all names of our scheduler, `scheduler` is the one that it fills in, and
    `namespace` is where our services run.
    """

    listen: Address
    scheduler: str
    schedulers: tuple[str, ...]
    namespace: str
    files: ServedFiles
    dra: bool = False


_OPTIONS = (
    click.option(
        "--listen",
        default=LISTEN,
        envvar="APPORTION_LISTEN",
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        help="Where the webhook answers, over HTTPS.",
    ),
    click.option(
        "--fill-in",
        "scheduler",
        default=OURS[0],
        show_default=True,
        metavar="NAME",
        help="The schedulerName of pods that ask for a device and name none.",
    ),
    click.option(
        "--scheduler-name",
        "schedulers",
        multiple=True,
        default=OURS,
        show_default=True,
        metavar="NAME",
        help="Pods with this schedulerName are ours, as for the watcher.",
    ),
    click.option(
        "--namespace",
        default=NAMESPACE,
        envvar="APPORTION_NAMESPACE",
        show_default=True,
        show_envvar=True,
        metavar="NAME",
        help="Where our services run; the binder's account there may write our annotations.",
    ),
    serving_tls_options,
)


def webhook_options(command: Command) -> Command:
    """Add the options of `admission_choice`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def admission_choice(given: dict[str, Any]) -> AdmissionChoice:
    """Validate the options.

    Raises:
        ConfigError: the options do not go together.
    """
    files = served_files(given["tls_cert"], given["tls_key"], given["tls_client_ca"])
    if files is None:
        raise ConfigError(
            CERTIFICATE,
            "not given",
            f"give it and {KEY}: API servers call a webhook over HTTPS only",
        )
    if len(given["schedulers"]) > SCHEDULERS_MAX:
        raise ConfigError(
            "--scheduler-name", len(given["schedulers"]), f"name at most {SCHEDULERS_MAX}"
        )
    if given["scheduler"] not in given["schedulers"]:
        raise ConfigError(
            "--fill-in",
            given["scheduler"],
            f"name one of --scheduler-name, whose pods are taken: {', '.join(given['schedulers'])}",
        )
    return AdmissionChoice(
        listen=parse_address("--listen", given["listen"]),
        scheduler=given["scheduler"],
        schedulers=given["schedulers"],
        namespace=given["namespace"],
        files=files,
        dra=given["dra"],
    )


LOOK_S: Final = 1.0


@click.command(
    name="admission",
    epilog="Example:  apportion admission --nats nats://admission:secret@localhost:4222 "
    "--tls-cert tls.crt --tls-key tls.key",
)
@webhook_options
@dra_option
@service_options
def command(*, config: ServiceConfig, **given: Any) -> None:
    """Judge pods for an API server before it takes them, and fill in what they leave out.

    Start as many replicas as you like. /healthz, /readyz and /metrics are on the same port, too.
    """
    try:
        choice = admission_choice(given)
    except ConfigError as error:
        stop_with(str(error))
    sys.exit(run_service("admission", lambda service: body(service, choice), config))


async def body(service: Service, choice: AdmissionChoice) -> None:
    """One life of the service, until cancelled."""
    ledger = await jetstream.connect(service.config.reach, name=service.name)
    try:
        await jetstream.check_stream(ledger)
        service.watch(ledger)
        known = _Known(service, ConfigurationLedger(ledger.wire))
        reviews = Reviews(
            lambda: known.cluster.state.configuration,
            unready=lambda: "; ".join(known.reader.not_ready()),
            metrics=service.metrics,
            schedulers=choice.schedulers,
            scheduler=choice.scheduler,
            writer=f"system:serviceaccount:{choice.namespace}:binder",
            dra=choice.dra,
        )
        webhook = Webhook(choice, reviews, service)
        service.ready_when(known.reader.not_ready)
        service.ready_when(webhook.not_ready)
        service.loop("admit", webhook.run)
        service.loop("say how it is known", known.say)
        await known.reader.run()
    finally:
        await ledger.close()


class _Known:
    """The configuration as far as it is known: a fold of it alone, by the rule of every fold."""

    def __init__(self, service: Service, ledger: ConfigurationLedger) -> None:
        self._service = service
        self._ledger = ledger
        self.cluster = StateFold(State(rules=configuration_rules()))
        self.reader = Reader(ledger, self.cluster, metrics=service.metrics)
        service.metrics.gauge(
            "apportion_admission_configuration_revision",
            "Revision of the configuration by which pods are judged; 0 before the first.",
        ).set_function(lambda: self.cluster.state.configuration_revision)
        service.metrics.gauge(
            "apportion_admission_configuration_unsure",
            "1 while the ledger is out of reach: a newer configuration would not be known.",
        ).set_function(lambda: float(not ledger.in_touch))

    async def say(self) -> None:
        """Log when the ledger goes out of reach and when it is back, until cancelled.

        Not to be sure is no reason to judge nobody: pods would come past the webhook, or not at
        all, for as long as the ledger is away.
        """
        await self.reader.caught_up()
        sure = True
        while True:
            await self._service.clock.pause(LOOK_S)
            if sure == self._ledger.in_touch:
                continue
            sure = not sure
            revision = self.cluster.state.configuration_revision
            if sure:
                self._service.log.info("the ledger is back", configuration=revision)
            else:
                self._service.log.warning(
                    "the ledger is out of reach; pods are judged by the last configuration",
                    configuration=revision,
                )


class Webhook:
    """The HTTPS server of the webhook, for one life of the service."""

    def __init__(self, choice: AdmissionChoice, reviews: Reviews, service: Service) -> None:
        self._choice = choice
        self._reviews = reviews
        self._service = service
        self._listening = False

    def not_ready(self) -> list[str]:
        """Why the API server gets no answer yet; empty once the server listens."""
        return [] if self._listening else ["starting to listen"]

    async def run(self) -> None:
        """Serve, and follow changes of the certificate's files, until cancelled.

        Raises:
            ConfigError: the certificate cannot be used, or the address is taken.
        """
        tls, certificates = given_tls(self._choice.files, self._service.clock)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(certificates.run(), name="certificates")
            server = HttpServer(
                self._choice.listen,
                metrics=None,
                not_ready=self._service.reasons_against_ready,
                routes=self._reviews.routes(),
                key="--listen",
                tls=tls.context,
                limits=LIMITS,
            )
            async with listening(server) as address:
                self._service.log.info("admitting", url=f"https://{address}/")
                self._listening = True
                await asyncio.Event().wait()
