"""An in-memory ledger with a usage account. The test sets the hour at which each event happens.

Invariant: the account starts at hour 0, and events come in order of time."""

from typing import Self

from apportion.core.ledger.moments import HOUR
from apportion.core.reports.accounts import Account
from apportion.core.reports.answers import IdleAnswer, LostAnswer, ReportAnswer, ReportRow
from apportion.core.reports.lost import Lost
from apportion.core.reports.meters import Meters
from apportion.core.reports.prices import Prices
from apportion.core.reports.report import Period, Reading, idle_answer, lost_answer, report_answer
from apportion.core.reports.rows import by_of
from apportion.core.reports.used import IDLE
from apportion_schemas import PodBound, PodPlaced
from apportion_schemas.quantities import Payload
from tests.support.ledger_of import Ledger


class Accounted:
    """An in-memory ledger with an account of the usage in the first `hours` hours."""

    def __init__(
        self,
        by: str = "namespace",
        *,
        hours: float = 10,
        step: int = 0,
        idle: int = IDLE,
        kind: type[Account] = Account,
    ) -> None:
        self.ledger = Ledger()
        self.period = Period(0, int(hours * HOUR), step * HOUR)
        self.by = by_of(by)  # What each row of the report is about.
        self.meters = Meters(0, self.period.end, self.period.step)
        self.account = kind(self.ledger.state, self.by, self.meters, idle)

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


class Losing(Accounted):
    """An in-memory ledger with an account of lost GPU hours."""

    def __init__(self, by: str = "namespace", *, hours: float = 10, step: int = 0) -> None:
        super().__init__(by, hours=hours, step=step, kind=Lost)

    def decide(self, hour: float) -> Self:
        """Let the scheduler decide at hour `hour`, and bind at once what it places."""
        for event in self.ledger.consider().events:
            self.at(hour, event)
            if isinstance(event, PodPlaced) and not event.held:
                self.at(hour, PodBound(pod=event.pod, node=event.node, attempt=event.attempt))
        return self

    def answer(self, prices: Prices | None = None) -> LostAnswer:
        return lost_answer(self.reading(), prices)

    def hours(self, key: str | None = None) -> dict[str, float]:
        """Return the GPU hours by part, without zeros and sums, in the row `key` or in total."""
        answer = self.answer()
        row = next(each for each in answer.rows if each.key == key) if key else answer.total
        names = (name.removesuffix("_gpu_hours") for name in row.__struct_fields__)
        found = {name: getattr(row, f"{name}_gpu_hours", 0) for name in names}
        return {name: hours for name, hours in found.items() if hours and name not in SUMS}


SUMS = {"capacity", "lost", "unmeasured"}
