"""`GET /api/v1/report/usage|cost|idle`: what was granted, used and worth, from the ledger.

They are made by the process that looks back, each in pieces that let its other answers go on.
Each holds a state of its own: the gateway asks for no more than `AT_ONCE` at a time.
The price file is read for each, so that whoever mends it need start nothing anew; only cost needs
it. Invariant: one that takes longer than `SECONDS` is given up, before the gateway gives up on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from aiohttp import web

from apportion.core.reports.meters import TooMuch
from apportion.core.reports.prices import PriceError, Prices
from apportion.core.reports.report import COST
from apportion.core.reports.rows import WrongBy, by_of
from apportion.gateway.api.answering import guarded, json_response
from apportion.gateway.api.measures import Measures
from apportion.gateway.api.past_client import LOOK_S
from apportion.gateway.api.query import RequestRefused, only
from apportion.gateway.api.reads import PREFIX
from apportion.runtime.jetstream.accounting import TooEarly
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.periods import PeriodError
from apportion.runtime.jetstream.reports import (
    REPORTS,
    Asked,
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
_PARAMETERS = ("at_least", "wait_s", "by", "from", "to", "step", "format")


class Reports:
    """The reports of one ledger; `prices` is the gateway's price file, None where it has none."""

    def __init__(
        self,
        ledger: JetStreamLedger,
        *,
        measures: Measures,
        clock: Clock,
        prices: Path | None,
    ) -> None:
        self._ledger = ledger
        self._measures = measures
        self._clock = clock
        self._prices = prices

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The route of each report, guarded as all others."""
        for name in REPORTS:
            handle = guarded(self._measures, "report", self._handle)
            yield web.get(f"{PREFIX}/report/{name}", handle)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        only(request.query, _PARAMETERS)
        form = request.query.get("format", "json")
        if form not in FORMATS:
            raise RequestRefused(
                400, field="format", rest=f" is {form[:40]!r}", fix=f"use {', '.join(FORMATS)}"
            )
        asked = await self._asked(request)
        try:
            async with asyncio.timeout(SECONDS):
                return await self._made(asked, form)
        except TimeoutError:
            raise RequestRefused(
                503, f"the report took longer than {SECONDS:g} s", field="from",
                fix="ask for a shorter time, or use `apportion report` with --nats",
            ) from None  # fmt: skip

    async def _asked(self, request: web.Request) -> Asked:
        query, report = request.query, request.path.rpartition("/")[2]
        try:
            by = by_of(query.get("by", "namespace"))
        except WrongBy as error:
            raise RequestRefused(
                400, str(error), field="by", fix="namespace, queue, user, node or label:KEY"
            ) from None
        money = report == COST or query.get("format") == "focus"
        if self._prices is None and money:
            raise RequestRefused(
                404,
                "this gateway has no prices",
                fix="start it with --prices FILE (beneath `apportion up` or `make up`: with "
                "APPORTION_PRICES=FILE in its environment), or use `apportion report cost --prices "
                "FILE`",
            )
        return Asked(
            report=report,
            by=by,
            start=query.get("from", ""),
            end=query.get("to", ""),
            step=query.get("step", ""),
            prices=await self._read_prices(money=money),
        )

    async def _read_prices(self, *, money: bool) -> Prices | None:
        """Those of the file as it is now; hours are told without, where nobody can use it."""
        if self._prices is None:
            return None
        try:
            return await asyncio.to_thread(read_prices, self._prices)
        except PriceError as error:
            if money:
                raise self._no_money(error) from None
            return None

    def _no_money(self, error: PriceError) -> RequestRefused:
        return RequestRefused(
            404,
            f"the gateway's price file {self._prices} cannot be used: {error}",
            fix="mend that file; the next report reads it anew",
        )

    async def _made(self, asked: Asked, form: str) -> web.StreamResponse:
        try:
            reading = await read(self._ledger, asked, self._clock.now())
            if form == "focus":
                return _csv_response(as_focus(asked, reading))
            answer = await answered(asked, reading)
            return _csv_response(as_csv(answer)) if form == "csv" else json_response(answer)
        except PeriodError as error:
            raise RequestRefused(400, field=error.field, rest=error.rest, fix=error.fix) from None
        except TooEarly as error:
            raise RequestRefused(
                404, str(error), field="from",
                fix="begin later, or use `apportion report --archive FILE`",
            ) from None  # fmt: skip
        except TooMuch as error:
            raise RequestRefused(400, str(error), field="by", fix="ask for less") from None
        except PriceError as error:
            raise self._no_money(error) from None
        except (LedgerError, UnknownEvent) as error:
            raise RequestRefused(503, str(error), fix="ask again later; see /readyz") from None


def _csv_response(text: str) -> web.Response:
    return web.Response(
        text=text,
        content_type="text/csv",
        charset="utf-8",
        headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"},
    )
