"""The `apportion gateway` command and its process."""

import ssl
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import click
from aiohttp import web
from msgspec import Struct

from apportion.core.ledger.fold import Change
from apportion.core.reports.prices import PriceError
from apportion.gateway.access import acts
from apportion.gateway.access.acts import Acts, Sessions
from apportion.gateway.access.gate import Cursors, Gate, own_pages_only
from apportion.gateway.access.options import LoginChoice, login_choice, login_options
from apportion.gateway.api import diff, history, log
from apportion.gateway.api.answering import by_turns, guarded, guarded_routes, unknown_path
from apportion.gateway.api.api import Api
from apportion.gateway.api.doctor import DOCTOR, Doctor, PriceWatch
from apportion.gateway.api.endpoint import PREFIX, Endpoint
from apportion.gateway.api.live import EVENTS, EventStream
from apportion.gateway.api.measures import Measures
from apportion.gateway.api.past_client import LONG_EVENTS, PastClient, Seen
from apportion.gateway.api.plans import AT_ONCE, DEFRAG, PLAN, Plans
from apportion.gateway.api.reads import READS
from apportion.gateway.api.reports import REPORTS
from apportion.gateway.console.console import console_routes
from apportion.gateway.feed import Feed
from apportion.gateway.fleet import FleetRows, FleetSums
from apportion.gateway.usage import SUBJECT as USAGE_SAMPLES
from apportion.gateway.usage import Uses
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.reports import read_prices
from apportion.runtime.jetstream.server.embedded import monitor_url
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.port import LedgerError, NotPermitted
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.ledger.reading import read_while
from apportion.runtime.process.config import Address, ConfigError, ServiceConfig, parse_address
from apportion.runtime.service.http import Handle, HttpServer, address_of, listening, refused
from apportion.runtime.service.lifecycle import Service, run_service
from apportion.runtime.service.limits import Turns
from apportion.runtime.service.options import service_options, stop_with
from apportion.runtime.service.own_machine import both, own_machine_only
from apportion.runtime.service.serving_tls import (
    ServedFiles,
    given_tls,
    served_files,
    serving_tls_options,
)

LISTEN = "127.0.0.1:8470"
LOOK_BACK_EVENTS = 20_000  # newest events from which a restarted gateway learns to forecast
ELSE = "; behind a proxy, start the gateway with a login or --open"


class Places(Struct, frozen=True, kw_only=True):
    """The settings of one gateway process."""

    api: Address
    login: LoginChoice
    files: ServedFiles | None = None  # for HTTPS; plain HTTP if None
    seen: Seen = Seen()


ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *READS,
    *log.ENDPOINTS,
    *history.ENDPOINTS,
    diff.DIFF,
    *REPORTS,
    DOCTOR,
    EVENTS,
    PLAN,
    DEFRAG,
    *acts.ENDPOINTS,
)


@click.command(
    name="gateway", epilog="Example:  apportion gateway --nats nats://gateway:secret@localhost:4222"
)
@click.option("--listen", default=LISTEN, envvar="APPORTION_LISTEN", show_default=True,
              metavar="HOST:PORT",
              help="Address of the API and the console.  [APPORTION_LISTEN]")  # fmt: skip
@click.option(
    "--archives", envvar="APPORTION_ARCHIVES", show_envvar=True, metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of ledger archives (*.jsonl). The gateway reads trimmed revisions from them.",
)  # fmt: skip
@click.option(
    "--past", envvar="APPORTION_PAST", show_envvar=True, metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the index of past states.  [default: a temporary folder]",
)  # fmt: skip
@click.option(
    "--monitor", envvar="APPORTION_NATS_MONITOR", show_envvar=True, default="", metavar="URL",
    help="URL of nats-server's monitoring port. /api/v1/doctor checks the storage there.",
)  # fmt: skip
@click.option(
    "--prices", envvar="APPORTION_PRICES", show_envvar=True, metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the price of a device-hour by model (TOML), for cost reports.  [default: none]",
)  # fmt: skip
@login_options
@serving_tls_options
@service_options
def command(
    *,
    listen: str,
    login: Mapping[str, Any],
    archives: Path | None,
    past: Path | None,
    prices: Path | None,
    monitor: str,
    config: ServiceConfig,
    **tls: Path | None,
) -> None:
    """Serve the HTTP API and the console.

    The console is at /, and the API below /api/v1; /healthz, /readyz and /metrics are on the same
    port. On 127.0.0.1 no login is required by default. --kubernetes checks tokens and permissions
    with the cluster's API server, and --tokens with a file."""
    try:
        api = parse_address("--listen", listen)
        places = Places(
            api=api,
            login=login_choice(api, **login),
            files=served_files(tls["tls_cert"], tls["tls_key"], tls["tls_client_ca"]),
            seen=Seen(monitor and monitor_url("--monitor", monitor), archives, prices, past),
        )
        if prices is not None:
            read_prices(prices)  # report errors at the start, although every report reads it again
    except PriceError as error:
        stop_with(f"--prices {prices}: {error}")
    except ConfigError as error:
        stop_with(str(error))
    gateway = Gateway(places)
    guard = gateway.guard if places.login.wanted else None
    sys.exit(run_service("gateway", gateway.body, config, guard=guard))


class Gateway:
    """Objects of a gateway process that outlive restarts of its `body`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._measures: Measures | None = None
        self._gate: Gate | None = None

    async def guard(self, request: web.Request, handle: Handle) -> web.StreamResponse:
        """Guard /metrics on the health port like the API: metrics name the pods of all users."""
        if self._gate is not None:
            return await self._gate.guard(request, handle)
        return refused(503, "the gateway is starting", "retry in a moment", again_s=1)

    async def body(self, service: Service) -> None:
        """Run the gateway until cancelled."""
        measures = self._measures = self._measures or Measures(service.metrics)
        async with await jetstream.connect(service.config.reach, name=service.name) as ledger:
            await jetstream.check_stream(ledger)
            service.watch(ledger)
            feed = Feed(
                await Snapshots(ledger.wire).restore(),
                clock_s=lambda: service.clock.now().timestamp(),
            )
            life = _Life(service, ledger, feed, self._places)
            service.ready_when(life.reader.not_ready)
            async with AsyncExitStack() as open_servers:
                cursors = Cursors(service.config.reach.read_ledger_key())
                login = self._places.login.opened(cursors, ENDPOINTS)
                self._gate = await open_servers.enter_async_context(login)
                commit = GroupCommit(ledger, clock=service.clock)
                append = (await open_servers.enter_async_context(commit)).append
                publisher = Publisher("gateway", service.clock, append)
                past = PastClient(service.config, self._places.seen)
                open_servers.push_async_callback(past.close)
                scheme = "https" if life.tls else "http"
                server = life.api(measures, past, self._gate, publisher)
                address = await open_servers.enter_async_context(listening(server))
                at = f"{scheme}://{address}"
                service.log.info("answering", url=f"{at}{PREFIX}/", console=f"{at}/")
                service.loop("past", lambda: life.begin_past(past))
                service.loop("prices", life.look_at_prices)
                service.loop("forecasts", life.look_back)
                await life.reader.run()


class _Life:
    def __init__(
        self, service: Service, ledger: JetStreamLedger, feed: Feed, places: Places
    ) -> None:
        self._service = service
        self._places = places
        self._seen = places.seen
        self._ledger = ledger
        self._feed = feed
        self._observers: list[Callable[[Change], None]] = []

        def observed(change: Change) -> None:
            for observe in self._observers:
                observe(change)

        self.reader = Reader(
            ledger, feed, metrics=service.metrics, on_change=observed, after=feed.state.revision
        )
        self.tls: ssl.SSLContext | None = None
        if places.files is not None:
            tls, files = given_tls(places.files, service.clock)
            self.tls = tls.context
            service.loop("certificates", files.run)

    def _unready(self) -> str:
        return "; ".join(self.reader.not_ready())

    async def begin_past(self, past: PastClient) -> None:
        """If the ledger is long, start to index it before the first request about the past."""
        await self.reader.caught_up()
        if self._feed.state.revision >= LONG_EVENTS:
            try:
                await past.begin()
            except (OSError, TimeoutError) as error:
                self._service.log.warning("cannot start to index past events", error=str(error))

    async def look_back(self) -> None:
        """If the fold began with a snapshot, learn from older events how long pods run and wait."""
        if self.reader.revision:
            await self.reader.caught_up()
            start = max(self._feed.state.revision - LOOK_BACK_EVENTS, 0) + 1
            try:
                start = max(start, await self._ledger.first_revision())
                await read_while(self._ledger, self._feed.look_back(), start=start)
            except LedgerError as error:
                log = self._service.log
                log.warning("forecasts of starts do not use past events", error=str(error))

    async def look_at_prices(self) -> None:
        """Log which models lack a price, if there is a price file."""
        await self.reader.caught_up()
        if self._seen.prices is not None:
            watch = PriceWatch(self._seen.prices, self._feed.state)
            self._observers.append(watch.observe)
            await watch.run()

    def api(
        self, measures: Measures, past: PastClient, gate: Gate | None, publisher: Publisher
    ) -> HttpServer:
        """Return the server of the read API, the event stream and the users' acts."""
        rows = FleetRows(self._feed.state)
        sums = FleetSums(self._feed.state, rows, self._service.clock)
        self._observers += [rows.observe, sums.observe]
        sums.expose(self._service.metrics)
        uses = Uses(self._feed.state, self._service.clock)

        async def listen_to_uses() -> None:
            try:  # an older server's permissions forbid it, and the gateway works without it
                await self._ledger.serve(USAGE_SAMPLES, uses.note)
            except NotPermitted as error:
                self._service.log.warning("cannot receive the usage of shares", error=str(error))

        self._service.loop("uses", listen_to_uses)
        doctor = Doctor(
            self._feed,
            self._ledger,
            clock=self._service.clock,
            unready=self._unready,
            frozen=self._service.frozen,
            seen=self._seen,
        )
        self._service.loop("listen to schedulers", doctor.listen)
        api = Api(
            self._feed,
            rows,
            uses,
            unready=self._unready,
            measures=measures,
            look_back=past.handle,
            frozen=doctor.frozen,
        )
        stream = EventStream(self._feed, past.records, measures=measures)
        plans = Plans(api.present, measures=measures, forecasts_in=self._feed.forecasts_in)
        turns = Turns(AT_ONCE)
        handlers = [
            *api.handlers(),
            (DOCTOR, doctor.handle),
            (PLAN, by_turns(turns, "plans", api.or_past(plans.handle))),
            (DEFRAG, by_turns(turns, "plans", plans.handle_defrag)),
            (EVENTS, stream.handle),
            *Sessions(gate).handlers(),
            *Acts(gate, self._feed, publisher).handlers(),
        ]
        unknown = guarded(measures, "unknown", unknown_path(ENDPOINTS))
        routes = [*guarded_routes(measures, handlers), web.route("*", "/api/{tail:.*}", unknown)]
        public = self._places.login.public
        without_login = own_pages_only if public else both(own_machine_only(ELSE), own_pages_only)
        return HttpServer(
            self._places.api,
            metrics=self._service.metrics,
            not_ready=self._service.reasons_against_ready,
            routes=[*routes, *console_routes()],
            key="--listen",
            tls=self.tls,
            client=address_of if gate is None else gate.client,
            guard=gate.guard if gate else without_login,
        )
