"""Properties of the report of lost GPU hours, over random histories of a crowded cluster."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from apportion.core.ledger.moments import SECOND
from apportion.core.reports.accounts import Account
from apportion.core.reports.lost import Lost
from apportion.core.reports.meters import Meters, Part
from apportion.core.reports.report import Period, Reading, lost_answer
from apportion.core.reports.rows import by_of
from tests.properties.core_histories import Step, trying
from tests.properties.core_playing import changes
from tests.properties.test_core_reports import GAPS_S, HISTORIES, PERIODS, PRICES
from tests.support.ledger_of import Ledger

BYS = st.sampled_from(("namespace", "queue", "node", "model", "label:app"))
Cells = Counter[tuple[str, str, Part]]


def told(meters: Meters) -> Cells:
    """Return the device time by row, model and part, without zeros.

    The unit is a millionth of a device for a microsecond."""
    cells = Cells()
    for (_, (row, model)), sums in meters.cells.items():
        for part in Part:
            cells[row, model, part] += sums.cards[part]
    return Cells({key: cards for key, cards in cells.items() if cards})


def gap(number: int) -> int:
    """Return the time from the previous event to this event, in microseconds."""
    return GAPS_S[number % len(GAPS_S)] * SECOND


def by_model(cells: Cells) -> Counter[str]:
    found = Counter[str]()
    for (_, model, _), cards in cells.items():
        found[model] += cards
    return found


@trying(80)
@given(HISTORIES, BYS, PERIODS)
def test_lost_hours_add_up_to_the_capacity(steps: list[Step], by: str, period: Period) -> None:
    """In every time step, the parts of the report add up to the capacity in the usage report.

    No part is negative. In each row of the answer, the hours add up in the same way."""
    ledger = Ledger()
    start, end, step = period.start, period.end, period.step
    lost = Lost(ledger.state, by_of(by), Meters(start, end, step))
    account = Account(ledger.state, by_of(by), Meters(start, end, step))
    moment = 0
    for number, change in enumerate(changes(ledger, steps)):
        moment += gap(number)
        lost.observe(change, moment)
        account.observe(change, moment)
    lost.finish()
    account.finish()
    capacity, wanted = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for found, meters in ((capacity, lost._meters), (wanted, account._meters)):
        for (at, (_, model)), sums in meters.cells.items():
            assert min(sums.cards) >= 0
            found[at, model] += sum(sums.cards)
    assert capacity == wanted
    reading = Reading(ledger.state.revision, by_of(by), period, lost._meters, lost)
    answer = lost_answer(reading, PRICES)
    for row in (*answer.rows, *answer.steps, answer.total):
        micro = {
            name: round(getattr(row, name) * 1e6)
            for name in row.__struct_fields__
            if name.endswith("gpu_hours")
        }
        of_all, lost_hours = micro.pop("capacity_gpu_hours"), micro.pop("lost_gpu_hours")
        assert micro.pop("unmeasured_gpu_hours") <= micro["worked_gpu_hours"]
        assert sum(micro.values()) == of_all == lost_hours + micro["worked_gpu_hours"]


@trying(80)
@given(HISTORIES, BYS, PERIODS)
def test_causes_are_those_of_the_state(steps: list[Step], by: str, period: Period) -> None:
    """A report equals the sum of separate reports for the times from each event to the next.

    Only rounding differs, by millionths of a device for a microsecond, per row and event."""
    ledger = Ledger()
    lost = Lost(ledger.state, by_of(by), Meters(period.start, period.end))
    cells, moment, number = Cells(), 0, -1

    def look(begin: int, until: int) -> None:
        """Add a report of the current state for this period."""
        begin, until = max(begin, period.start), min(until, period.end)
        if begin < until:
            now = Lost(ledger.state, by_of(by), Meters(begin, until))
            now.finish()
            cells.update(told(now._meters))

    for number, change in enumerate(changes(ledger, steps)):
        moment += gap(number)
        lost.observe(change, moment)
        look(moment, moment + gap(number + 1))
    look(moment + gap(number + 1), period.end)
    lost.finish()
    found = told(lost._meters)
    assert by_model(found) == by_model(cells)
    for key in found.keys() | cells.keys():
        assert abs(found[key] - cells[key]) <= 30 * (number + 2), key


@trying(60)
@given(HISTORIES, BYS, st.integers(0, 40))
def test_a_report_is_the_same_from_any_snapshot(steps: list[Step], by: str, cut: int) -> None:
    """A report gives exactly the same figures, whichever earlier state it was started from."""
    ledger = Ledger()
    moments = [0]
    for number in range(cut + 1):
        moments.append(moments[-1] + gap(number))
    start = moments[-1]
    end = start + 500_000 * SECOND
    whole = Lost(ledger.state, by_of(by), Meters(start, end, 50_000 * SECOND))
    later: Lost | None = None
    moment = 0
    for number, change in enumerate(changes(ledger, steps)):
        moment += gap(number)
        whole.observe(change, moment)
        if later is not None:
            later.observe(change, moment)
        if number == cut // 2:
            later = Lost(ledger.state, by_of(by), Meters(start, end, 50_000 * SECOND))
    if later is None:
        return
    whole.finish()
    later.finish()
    assert whole._meters.cells == later._meters.cells
