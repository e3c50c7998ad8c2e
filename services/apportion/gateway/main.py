"""`apportion gateway`: the process around the read API, the webhook and the extender."""

from __future__ import annotations

import sys
from typing import Any

import click
from aiohttp import web
from msgspec import Struct

from apportion.gateway.admission import Admission
from apportion.gateway.api import PREFIX, Api, unknown_path
from apportion.gateway.choices import AdmissionChoice, admission_choice, role_options
from apportion.gateway.feed import Feed
from apportion.gateway.measures import Measures
from apportion.gateway.stream import EventStream
from apportion.runtime import jetstream
from apportion.runtime.config import Address, ConfigError, ServiceConfig, parse_address
from apportion.runtime.http import HttpServer
from apportion.runtime.jetstream import JetStreamLedger
from apportion.runtime.kube_options import KubeChoice, kube_choice, kubernetes_options
from apportion.runtime.lifecycle import Service, run_service
from apportion.runtime.options import service_options, stop_with
from apportion.runtime.reader import Reader
from apportion.runtime.snapshots import Snapshots

LISTEN = "127.0.0.1:8470"


class Roles(Struct, frozen=True, kw_only=True):
    """What one gateway is: where its API answers, and what else it is asked to be."""

    listen: Address
    kube: KubeChoice = KubeChoice(wanted=False)
    admission: AdmissionChoice | None = None


@click.command(
    name="gateway",
    epilog="Example:  apportion gateway --nats nats://gateway:secret@localhost:4222",
)
@click.option(
    "--listen",
    default=LISTEN,
    envvar="APPORTION_LISTEN",
    show_default=True,
    metavar="HOST:PORT",
    help="Where the API answers.  [APPORTION_LISTEN]",
)
@role_options
@kubernetes_options
@service_options
def command(*, listen: str, config: ServiceConfig, **given: Any) -> None:
    """Answer questions about the cluster over HTTP: nodes, devices, pods, why, live events.

    /healthz, /readyz and /metrics are on the same port. There is no login: listen on a public
    address only behind something that has one. With --admission it is the cluster's webhook too.
    """
    kube = kube_choice(**{name: given[name] for name in ("kubernetes", "kubeconfig", "context")})
    try:
        roles = Roles(
            listen=parse_address("--listen", listen),
            kube=kube,
            admission=admission_choice(given, kube_wanted=kube.wanted),
        )
    except ConfigError as error:
        stop_with(str(error))
    sys.exit(run_service("gateway", Gateway(roles).body, config))


class Gateway:
    """One process: what it is, and what it measures through all its lives."""

    def __init__(self, roles: Roles) -> None:
        self._roles = roles
        self._measures: Measures | None = None

    async def body(self, service: Service) -> None:
        """One life of the gateway, until cancelled."""
        ledger = await jetstream.connect(service.config.nats_url, name=service.name)
        try:
            await jetstream.check_stream(ledger)
            feed = Feed(await Snapshots(ledger.wire).restore())
            reader = Reader(ledger, feed, metrics=service.metrics, after=feed.state.revision)
            service.ready_when(reader.not_ready)
            if self._roles.admission is not None:
                self._admit(service, feed, reader, self._roles.admission)
            server = self._api(service, feed, reader, ledger)
            listening = await server.start()
            service.log.info("answering", url=f"http://{listening}{PREFIX}/")
            try:
                await reader.run()
            finally:
                await server.stop()
        finally:
            await ledger.close()

    def _api(
        self, service: Service, feed: Feed, reader: Reader[Any], ledger: JetStreamLedger
    ) -> HttpServer:
        measures = self._measures = self._measures or Measures(service.metrics)
        api = Api(feed, unready=lambda: "; ".join(reader.not_ready()), measures=measures)
        stream = EventStream(feed, ledger, measures=measures)
        return HttpServer(
            self._roles.listen,
            metrics=service.metrics,
            not_ready=service.reasons_against_ready,
            routes=[
                *api.routes(),
                web.get(f"{PREFIX}/events", api.guarded("events", stream.handle)),
                web.route("*", "/api/{tail:.*}", api.guarded("unknown", unknown_path)),
            ],
            key="--listen",
        )

    def _admit(
        self, service: Service, feed: Feed, reader: Reader[Any], choice: AdmissionChoice
    ) -> None:
        # The library behind certificates takes its time; a gateway without a webhook needs none.
        from apportion.gateway.admission_service import AdmissionService  # noqa: PLC0415

        admission = Admission(
            lambda: feed.state,
            unready=lambda: "; ".join(reader.not_ready()),
            metrics=service.metrics,
            told=choice.told,
            scheduler=choice.scheduler,
            accounts=f"system:serviceaccounts:{choice.namespace}",
        )
        webhook = AdmissionService(choice, self._roles.kube, admission, service)
        service.ready_when(webhook.not_ready)
        service.loop("admit", webhook.run)
