"""An in-memory ledger with a usage account. The test sets the hour at which each event happens.

Invariant: the account starts at hour 0, and events come in order of time."""

from typing import Self

from apportion.core.ledger.moments import HOUR
from apportion.core.reports.accounts import Account
from apportion.core.reports.answers import IdleAnswer, ReportAnswer, ReportRow
from apportion.core.reports.meters import Meters
from apportion.core.reports.prices import Prices
from apportion.core.reports.report import Period, Reading, idle_answer, report_answer
from apportion.core.reports.rows import by_of
from apportion.core.reports.used import IDLE
from apportion_schemas.quantities import Payload
from tests.support.ledger_of import Ledger


class Accounted:
    """An in-memory ledger with a usage account of `hours` hours."""

    def __init__(
        self, by: str = "namespace", *, hours: float = 10, step: int = 0, idle: int = IDLE
    ) -> None:
        self.ledger = Ledger()
        self.period = Period(0, int(hours * HOUR), step * HOUR)
        self.by = by_of(by)  # What each row of the report is about.
        self.meters = Meters(0, self.period.end, self.period.step)
        self.account = Account(self.ledger.state, self.by, self.meters, idle)

    def at(self, hour: float, *payloads: Payload) -> Self:
        """Fold these events as if they happened at hour `hour`, and return this object."""
        for data in payloads:
            self.account.observe(self.ledger.take(data), int(hour * HOUR))
        return self

    def reading(self) -> Reading:
        """Close the account at the end of its period, and return the usage data."""
        self.account.finish()
        revision = self.ledger.state.revision
        return Reading(revision, self.by, self.period, self.meters, self.account)

    def report(self, prices: Prices | None = None) -> ReportAnswer:
        return report_answer("usage", self.reading(), prices)

    def rows(self) -> dict[str, ReportRow]:
        return {row.key: row for row in self.report().rows}

    def idle(self, prices: Prices | None = None) -> IdleAnswer:
        return idle_answer(self.reading(), prices)
