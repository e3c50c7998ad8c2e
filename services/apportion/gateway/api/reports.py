"""`GET /api/v1/report/usage|cost|idle|lost`: what was allocated, used or lost, and what it cost.

A child process of the gateway computes reports in pieces, and answers other requests in between.
Each report has a state of its own, so at most `AT_ONCE` run. The price file is read for each
report, so that a fix needs no restart. Invariant: a report is cancelled after `SECONDS`, which is
before the gateway's own timeout."""

import asyncio
from pathlib import Path
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct, field

from apportion.core.answers.reads import NO_PRICES
from apportion.core.reports.answers import IdleAnswer, LostAnswer, ReportAnswer
from apportion.core.reports.meters import TooMuch
from apportion.core.reports.prices import PriceError, Prices
from apportion.core.reports.report import COST
from apportion.core.reports.rows import KINDS_SAID, WrongBy, by_of
from apportion.gateway.api.answering import HEADERS, Handlers, json_response
from apportion.gateway.api.endpoint import Audience, Endpoint
from apportion.gateway.api.past_client import LOOK_S
from apportion.gateway.api.query import RequestRefused, WaitQuery, parsed
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.reports import (
    LOST,
    Asked,
    PeriodError,
    TooEarly,
    answered,
    as_csv,
    as_focus,
    read,
    read_prices,
)
from apportion.runtime.ledger.port import LedgerError
from apportion.runtime.process.clock import Clock
from apportion_schemas import UnknownEvent

AT_ONCE = 2
SECONDS = LOOK_S - 10
FORMATS = ("json", "csv", "focus")


class ReportQuery(WaitQuery, frozen=True, kw_only=True):
    """The parameters of a report."""

    by: Annotated[
        str, Meta(description="Group rows by `namespace`, `queue`, `user`, `node`, `model` or "
                  "`label:KEY`. Tenants may use `namespace`, `node` and `model`."),
    ] = "namespace"  # fmt: skip
    start: Annotated[str, Meta(description="Start of the period.")] = field(default="", name="from")
    end: Annotated[str, Meta(description="End of the period.")] = field(default="", name="to")
    step: Annotated[str, Meta(description="Length of a step, such as `1d`.")] = ""
    format: Annotated[
        str, Meta(extra_json_schema={"enum": list(FORMATS)}, description="JSON, CSV, or "
                  "CSV in the FOCUS format of cost tools (not for `lost`). Tenants may use only "
                  "`json`."),
    ] = "json"  # fmt: skip


def _endpoint(name: str, answer: type[Struct], summary: str) -> Endpoint:
    return Endpoint(
        path=f"report/{name}", name="report", answer=answer, query=ReportQuery,
        audience=Audience.TENANTS, also=("text/csv",), summary=summary,
    )  # fmt: skip


REPORTS = (
    _endpoint("usage", ReportAnswer, "Device-hours allocated and used"),
    _endpoint("cost", ReportAnswer, "Cost of the allocated hours, by the gateway's price file"),
    _endpoint("idle", IdleAnswer, "Idle shares"),
    _endpoint("lost", LostAnswer, "Device-hours that did no work, by cause"),
)


class Reports:
    """Makes the reports of one ledger."""

    def __init__(self, ledger: JetStreamLedger, *, clock: Clock, prices: Path | None) -> None:
        self._ledger = ledger
        self._clock = clock
        self._prices = prices

    def handlers(self) -> Handlers:
        """Return the handler of each report."""
        return [(endpoint, self._handle) for endpoint in REPORTS]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        query = parsed(ReportQuery, request.query)
        asked = await self._asked(request.path.rpartition("/")[2], query)
        try:
            async with asyncio.timeout(SECONDS):
                reading = await read(self._ledger, asked, self._clock.now())
                if query.format == "focus":
                    return _csv_response(as_focus(asked, reading))
                answer = await answered(asked, reading)
                in_csv = query.format == "csv"
                return _csv_response(as_csv(answer)) if in_csv else json_response(answer)
        except TimeoutError:
            raise RequestRefused(
                503, f"the report took longer than {SECONDS:g} s", field="from",
                fix="use a shorter period, or run `apportion report` with --nats",
            ) from None  # fmt: skip
        except PeriodError as error:
            raise RequestRefused(400, field=error.field, rest=error.rest, fix=error.fix) from None
        except TooEarly as error:
            fix = "start later, or run `apportion report --archive FILE`"
            raise RequestRefused(404, str(error), field="from", fix=fix) from None
        except TooMuch as error:
            raise RequestRefused(400, str(error), field="by", fix="use a shorter period") from None
        except PriceError as error:
            raise self._no_money(error) from None
        except (LedgerError, UnknownEvent) as error:
            raise RequestRefused(503, str(error), fix="retry later; see /readyz") from None

    async def _asked(self, report: str, query: ReportQuery) -> Asked:
        try:
            by = by_of(query.by)
        except WrongBy as error:
            raise RequestRefused(400, str(error), field="by", fix=f"use {KINDS_SAID}") from None
        if report == LOST and query.format == "focus":
            raise RequestRefused(
                400, "FOCUS has no records of lost hours", field="format", fix="use csv or json"
            )
        money = report == COST or query.format == "focus"
        if self._prices is None and money:
            raise RequestRefused(
                404,
                "this gateway has no price file",
                code=NO_PRICES,
                fix="start it with --prices FILE (for `apportion up` or `make up`, set "
                "APPORTION_PRICES=FILE), or run `apportion report cost --prices FILE`",
            )
        prices: Prices | None = None
        try:
            if self._prices is not None:  # an invalid file only prevents reports of cost
                prices = await asyncio.to_thread(read_prices, self._prices)
        except PriceError as error:
            if money:
                raise self._no_money(error) from None
        return Asked(
            report=report, by=by, start=query.start, end=query.end, step=query.step, prices=prices
        )

    def _no_money(self, error: PriceError) -> RequestRefused:
        return RequestRefused(
            404,
            f"the gateway's price file {self._prices} cannot be used: {error}",
            fix="fix the file; every report reads it again",
        )


def _csv_response(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/csv", charset="utf-8", headers=HEADERS)
