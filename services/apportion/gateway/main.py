"""`apportion gateway`: the process around the read API."""

from __future__ import annotations

import sys

import click
from aiohttp import web

from apportion.gateway.api import PREFIX, Api, unknown_path
from apportion.gateway.feed import Feed
from apportion.gateway.measures import Measures
from apportion.gateway.stream import EventStream
from apportion.runtime import jetstream
from apportion.runtime.config import Address, ConfigError, ServiceConfig, parse_address
from apportion.runtime.http import HttpServer
from apportion.runtime.lifecycle import Service, run_service
from apportion.runtime.options import service_options, stop_with
from apportion.runtime.reader import Reader
from apportion.runtime.snapshots import Snapshots

LISTEN = "127.0.0.1:8470"


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
@service_options
def command(*, listen: str, config: ServiceConfig) -> None:
    """Answer questions about the cluster over HTTP: nodes, devices, pods, why, live events.

    /healthz, /readyz and /metrics are on the same port. There is no login: listen on a public
    address only behind something that has one.
    """
    try:
        address = parse_address("--listen", listen)
    except ConfigError as error:
        stop_with(str(error))
    sys.exit(run_service("gateway", Gateway(address).body, config))


class Gateway:
    """One process: where it listens, and what it measures through all its lives."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._measures: Measures | None = None

    async def body(self, service: Service) -> None:
        """One life of the gateway, until cancelled."""
        measures = self._measures = self._measures or Measures(service.metrics)
        ledger = await jetstream.connect(service.config.nats_url, name=service.name)
        try:
            await jetstream.check_stream(ledger)
            feed = Feed(await Snapshots(ledger.wire).restore())
            reader = Reader(ledger, feed, metrics=service.metrics, after=feed.state.revision)
            service.ready_when(reader.not_ready)
            api = Api(feed, unready=lambda: "; ".join(reader.not_ready()), measures=measures)
            stream = EventStream(feed, ledger, measures=measures)
            server = HttpServer(
                self._address,
                metrics=service.metrics,
                not_ready=service.reasons_against_ready,
                routes=[
                    *api.routes(),
                    web.get(f"{PREFIX}/events", api.guarded("events", stream.handle)),
                    web.route("*", "/api/{tail:.*}", api.guarded("unknown", unknown_path)),
                ],
                key="--listen",
            )
            listening = await server.start()
            service.log.info("answering", url=f"http://{listening}{PREFIX}/")
            try:
                await reader.run()
            finally:
                await server.stop()
        finally:
            await ledger.close()
