"""`apportion gateway`: the process around the read API."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import click
from aiohttp import web
from msgspec import Struct

from apportion.core.ledger.fold import Change
from apportion.core.reports.prices import PriceError
from apportion.gateway.api.answering import unknown_path
from apportion.gateway.api.api import Api
from apportion.gateway.api.doctor import Doctor, Seen
from apportion.gateway.api.looking_back import LONG_EVENTS, LookingBack, PastOptions
from apportion.gateway.api.measures import Measures
from apportion.gateway.api.plans import Plans
from apportion.gateway.api.reads import PREFIX
from apportion.gateway.api.stream import EventStream
from apportion.gateway.console.console import console_routes
from apportion.gateway.feed import Feed
from apportion.gateway.fleet import FleetRows
from apportion.gateway.fleet_sums import FleetSums
from apportion.gateway.usage import Uses
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.monitoring import monitor_url
from apportion.runtime.jetstream.reports import read_prices
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.port import NotPermitted
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.config import Address, ConfigError, ServiceConfig, parse_address
from apportion.runtime.service.http import HttpServer, listening
from apportion.runtime.service.lifecycle import Service, run_service
from apportion.runtime.service.options import service_options, stop_with
from apportion.runtime.service.serving_tls import (
    ServedFiles,
    given_tls,
    served_files,
    serving_tls_options,
)

LISTEN = "127.0.0.1:8470"


class Places(Struct, frozen=True, kw_only=True):
    """Where one gateway answers; without `files` over plain HTTP."""

    api: Address
    files: ServedFiles | None = None
    seen: Seen = Seen()


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
@click.option(
    "--archives",
    envvar="APPORTION_ARCHIVES",
    show_envvar=True,
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Archives of what the ledger has dropped (*.jsonl), to look further back.",
)
@click.option(
    "--past",
    envvar="APPORTION_PAST",
    show_envvar=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to keep what looks into the past need.  [default: a temporary folder]",
)
@click.option(
    "--monitor",
    envvar="APPORTION_NATS_MONITOR",
    show_envvar=True,
    default="",
    metavar="URL",
    help="nats-server's monitoring port, for /api/v1/doctor: how durable, how full.",
)
@click.option(
    "--prices",
    envvar="APPORTION_PRICES",
    show_envvar=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What an hour of a card costs, by model (TOML), for reports of cost.  [default: none]",
)
@serving_tls_options
@service_options
def command(
    *,
    listen: str,
    archives: Path | None,
    past: Path | None,
    prices: Path | None,
    monitor: str,
    config: ServiceConfig,
    **tls: Path | None,
) -> None:
    """Answer questions about the cluster over HTTP: nodes, devices, pods, why, live events.

    The console, for a browser, is at /; the API below /api/v1; /healthz, /readyz and /metrics are
    on the same port. There is no login: listen on a public
    address only behind something that has one.
    """
    try:
        places = Places(
            api=parse_address("--listen", listen),
            files=served_files(tls["tls_cert"], tls["tls_key"], tls["tls_client_ca"]),
            seen=Seen(monitor and monitor_url("--monitor", monitor), archives),
        )
        if prices is not None:
            read_prices(prices)  # those who look back read them; better told before they begin
    except PriceError as error:
        stop_with(f"--prices {prices}: {error}")
    except ConfigError as error:
        stop_with(str(error))
    options = PastOptions(archives=archives, kept=past, prices=prices)
    sys.exit(run_service("gateway", Gateway(places, options).body, config))


class Gateway:
    """One process: where it answers, and what it measures through all its lives."""

    def __init__(self, places: Places, past: PastOptions) -> None:
        self._places = places
        self._past = past
        self._measures: Measures | None = None

    async def body(self, service: Service) -> None:
        """One life of the gateway, until cancelled."""
        measures = self._measures = self._measures or Measures(service.metrics)
        ledger = await jetstream.connect(service.config.reach, name=service.name)
        try:
            await jetstream.check_stream(ledger)
            service.watch(ledger)
            feed = Feed(await Snapshots(ledger.wire).restore())
            life = _Life(service, ledger, feed, self._places)
            service.ready_when(life.reader.not_ready)
            async with AsyncExitStack() as open_servers:
                past = LookingBack(service.config, self._past)
                open_servers.push_async_callback(past.close)
                scheme = "https" if life.tls else "http"
                server = life.api(self._places.api, measures, past)
                address = await open_servers.enter_async_context(listening(server))
                at = f"{scheme}://{address}"
                service.log.info("answering", url=f"{at}{PREFIX}/", console=f"{at}/")
                service.loop("past", lambda: life.begin_past(past))
                await life.reader.run()
        finally:
            await ledger.close()


class _Life:
    """What one life of the gateway folds, and the servers that answer from it."""

    def __init__(
        self, service: Service, ledger: JetStreamLedger, feed: Feed, places: Places
    ) -> None:
        self._service = service
        self._seen = places.seen
        self._ledger = ledger
        self._feed = feed
        self._observers: list[Callable[[Change], None]] = []
        self.reader = Reader(
            ledger,
            feed,
            metrics=service.metrics,
            on_change=self._observe,
            after=feed.state.revision,
        )
        self.tls: ssl.SSLContext | None = None
        if places.files is not None:
            tls, files = given_tls(places.files, service.clock)
            self.tls = tls.context
            service.loop("certificates", files.run)

    def _observe(self, change: Change) -> None:
        for observe in self._observers:
            observe(change)

    def _unready(self) -> str:
        return "; ".join(self.reader.not_ready())

    async def begin_past(self, past: LookingBack) -> None:
        """Have a long ledger read before somebody asks what was."""
        await self.reader.caught_up()
        if self._feed.state.revision >= LONG_EVENTS:
            try:
                await past.begin()
            except (OSError, TimeoutError) as error:
                self._service.log.warning("nobody answers for the past yet", error=str(error))

    async def _listen_to(self, uses: Uses) -> None:
        """What shares use is nice to see; a server of before does not let this user hear it."""
        try:
            await uses.listen(self._ledger)
        except NotPermitted as error:
            self._service.log.warning("what shares use is not shown", error=str(error))

    def api(self, listen: Address, measures: Measures, past: LookingBack) -> HttpServer:
        """The read API and the event stream."""
        rows = FleetRows(self._feed.state)
        sums = FleetSums(self._feed.state, rows, self._service.clock)
        self._observers += [rows.observe, sums.observe]
        sums.expose(self._service.metrics)
        uses = Uses(self._feed.state, self._service.clock)
        self._service.loop("uses", lambda: self._listen_to(uses))
        api = Api(
            self._feed, rows, uses, unready=self._unready, measures=measures, look_back=past.handle
        )
        stream = EventStream(self._feed, past.records, measures=measures)
        plans = Plans(api.present, measures=measures)
        doctor = Doctor(
            self._feed,
            self._ledger,
            clock=self._service.clock,
            unready=self._unready,
            seen=self._seen,
        )
        self._service.loop("hear schedulers", doctor.listen)
        return HttpServer(
            listen,
            metrics=self._service.metrics,
            not_ready=self._service.reasons_against_ready,
            routes=[
                *api.routes(),
                web.get(f"{PREFIX}/doctor", api.guarded("doctor", doctor.handle)),
                web.post(f"{PREFIX}/plan", api.guarded("plan", api.or_past(plans.handle))),
                web.get(f"{PREFIX}/events", api.guarded("events", stream.handle)),
                web.route("*", "/api/{tail:.*}", api.guarded("unknown", unknown_path)),
                *console_routes(),
            ],
            key="--listen",
            tls=self.tls,
        )
