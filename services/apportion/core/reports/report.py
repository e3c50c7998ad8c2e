"""Compute the answers of reports from the device time that an account has measured.

Invariant: a total is the sum of its parts before rounding."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from msgspec import Struct, field

from apportion.core.answers.reads import fields_of
from apportion.core.ledger.moments import HOUR, text_of
from apportion.core.reports.accounts import Account
from apportion.core.reports.answers import (
    IdleAnswer,
    IdleRow,
    IdleShare,
    LostAnswer,
    LostRow,
    ReportAnswer,
    ReportRow,
)
from apportion.core.reports.meters import CARD, Meters, Part, Sums
from apportion.core.reports.prices import PriceError, Prices, lacking_words
from apportion.core.reports.rows import NO_POD, By
from apportion.core.reports.used import Idle, UsedSums

COST: Final = "cost"  # the report that fails without prices
DIGITS: Final = 6
IDLE_SHOWN: Final = 1_000
_MIB_IN_GIB: Final = 1_024
# The fields of a report of lost hours, and the part of a device that each is about.
LOST_PARTS: Final[Mapping[str, Part]] = {
    "no_demand": Part.FREE,
    "quota": Part.QUOTA,
    "fragmentation": Part.FRAGMENTED,
    "gang_assembly": Part.GANG,
    "topology": Part.TOPOLOGY,
    "unhealthy": Part.UNHEALTHY,
    "cordoned": Part.CORDONED,
    "draining": Part.DRAINING,
    "scheduler_delay": Part.DELAYED,
}


class Period(Struct, frozen=True):
    """The start and end of a report, and its step in microseconds; 0 for no steps."""

    start: int
    end: int
    step: int = 0


class Reading(Struct, frozen=True):
    """The measurements for a report, as read from the ledger up to a revision."""

    revision: int
    by: By
    period: Period
    meters: Meters
    account: Account


class _Figures(Struct):
    sums: Sums = field(default_factory=Sums)
    used: UsedSums = field(default_factory=UsedSums)
    cost: Decimal = Decimal(0)
    capacity_cost: Decimal = Decimal(0)

    def add(self, model: str, sums: Sums, prices: Prices | None) -> None:
        self.sums.add(sums)
        if prices is not None:
            self.cost += prices.cost(model, sums.cards[Part.ALLOCATED])
            self.capacity_cost += prices.cost(model, sum(sums.cards))


def report_answer(what: str, read: Reading, prices: Prices | None) -> ReportAnswer:
    """Return allocated time, used time and cost by row.

    Raises PriceError if `what` is COST and a model has no price."""
    unpriced = _unpriced(prices, (model for _, (_, model) in read.meters.cells))
    if unpriced and what == COST:
        raise PriceError(lacking_words(unpriced))
    prices = None if unpriced else prices
    rows: defaultdict[str, _Figures] = defaultdict(_Figures)
    steps: defaultdict[tuple[int, str], _Figures] = defaultdict(_Figures)
    total = _Figures()
    for (step, (key, model)), sums in read.meters.cells.items():
        for figures in (total, rows[key], steps[step, key]):
            figures.add(model, sums, prices)
    for (step, (key, _)), used in read.account.used.cells.items():
        for figures in (total, rows[key], steps[step, key]):
            figures.used.reported += used.reported
            figures.used.cards += used.cards
            figures.used.mib += used.mib
    of_devices, money = read.by.of_devices, prices is not None
    shown = [
        _row(key, figures, whole=of_devices, money=money)
        for key, figures in rows.items()
        if of_devices or key != NO_POD
    ]
    in_time = sorted(steps.items(), key=lambda item: item[0]) if read.period.step else ()
    return ReportAnswer(
        **_about(read, prices, unpriced),
        report=what,
        rows=tuple(sorted(shown, key=lambda row: (-row.allocated_gpu_hours, row.key))),
        total=_row("", total, whole=True, money=money),
        step_s=read.period.step // 1_000_000,
        steps=tuple(
            _row(
                key,
                figures,
                start=text_of(read.meters.edges(step)[0]),
                whole=of_devices or key == NO_POD,  # unallocated devices are a row of their own
                money=money,
            )
            for (step, key), figures in in_time
        ),
    )


def idle_answer(read: Reading, prices: Prices | None) -> IdleAnswer:
    """Return the shares that were idle for an hour or more."""
    stretches = read.account.used.idle()
    unpriced = _unpriced(prices, (each.model for each in stretches))
    prices = None if unpriced else prices
    by_row: dict[str, list[Idle]] = {}
    for each in stretches:
        by_row.setdefault(each.row, []).append(each)
    rows = [_idle_row(key, those, prices) for key, those in by_row.items()]
    return IdleAnswer(
        **_about(read, prices, unpriced),
        rows=tuple(sorted(rows, key=lambda row: (-row.gpu_hours, row.key))),
        shares=tuple(
            IdleShare(
                key=each.row,
                pod=each.name,
                **fields_of(each, "namespace uid container device model node"),
                start=text_of(each.start),
                end=text_of(each.end),
                hours=round((each.end - each.start) / HOUR, DIGITS),
                gpu_hours=_gpu(_cards(each)),
                gib_hours=_gib(each.mib * (each.end - each.start)),
                idle_now=each.going_on,
                cost=_money(prices.cost(each.model, _cards(each))) if prices else None,
            )
            for each in stretches[:IDLE_SHOWN]
        ),
        found=len(stretches),
        total=_idle_row("", stretches, prices),
        reported=read.account.used.reported,
    )


class _Lost(Struct):
    cards: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by field of `LostRow`
    unmeasured: int = 0
    cost: Decimal = Decimal(0)

    def add(self, model: str, sums: Sums, used: UsedSums | None, prices: Prices | None) -> None:
        allocated = sums.cards[Part.ALLOCATED]
        used = used or UsedSums()
        idle = min(used.idle, allocated)  # a report may spread its hour over steps before the share
        self.cards["worked"] += allocated - idle
        self.cards["idle"] += idle
        for name, part in LOST_PARTS.items():
            self.cards[name] += sums.cards[part]
        self.unmeasured += max(allocated - used.measured, 0)
        if prices is not None:
            self.cost += prices.cost(model, sum(sums.cards) - allocated + idle)


def lost_answer(read: Reading, prices: Prices | None) -> LostAnswer:
    """Return why devices did no work, by row. The account of `read` must be a `Lost`."""
    unpriced = _unpriced(prices, (model for _, (_, model) in read.meters.cells))
    prices = None if unpriced else prices
    rows: defaultdict[str, _Lost] = defaultdict(_Lost)
    steps: defaultdict[tuple[int, str], _Lost] = defaultdict(_Lost)
    total, money = _Lost(), prices is not None
    for (step, (key, model)), sums in read.meters.cells.items():
        used = read.account.used.cells.get((step, (key, model)))
        for figures in (total, rows[key], steps[step, key]):
            figures.add(model, sums, used, prices)
    shown = [_lost_row(key, figures, money=money) for key, figures in rows.items()]
    in_time = sorted(steps.items(), key=lambda item: item[0]) if read.period.step else ()
    return LostAnswer(
        **_about(read, prices, unpriced),
        rows=tuple(sorted(shown, key=lambda row: (-row.lost_gpu_hours, row.key))),
        total=_lost_row("", total, money=money),
        step_s=read.period.step // 1_000_000,
        steps=tuple(
            _lost_row(key, figures, money=money, start=text_of(read.meters.edges(step)[0]))
            for (step, key), figures in in_time
        ),
    )


def _lost_row(key: str, figures: _Lost, *, money: bool, start: str = "") -> LostRow:
    # In millionths of a device hour: rounded so that the parts add up to the capacity exactly.
    whole = round(Fraction(sum(figures.cards.values()), HOUR))
    parts = {name: cards // HOUR for name, cards in figures.cards.items()}
    by_remainder = sorted(parts, key=lambda name: (-(figures.cards[name] % HOUR), name))
    for name in by_remainder[: whole - sum(parts.values())]:
        parts[name] += 1
    hours = {f"{name}_gpu_hours": amount / 10**DIGITS for name, amount in parts.items()}
    worked = parts.get("worked", 0)
    return LostRow(
        key=key,
        start=start,
        capacity_gpu_hours=whole / 10**DIGITS,
        unmeasured_gpu_hours=min(figures.unmeasured // HOUR, worked) / 10**DIGITS,
        lost_gpu_hours=(whole - worked) / 10**DIGITS,
        lost_cost=_money(figures.cost) if money else None,
        **hours,
    )


def _about(read: Reading, prices: Prices | None, unpriced: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields that the answers of all reports have."""
    period, begins = read.period, read.account.begins
    return {
        "revision": read.revision,
        "by": str(read.by),
        "start": text_of(period.start),
        "end": text_of(period.end),
        "begins": text_of(begins) if period.start < begins < period.end else "",
        "currency": prices.currency if prices else "",
        "unpriced": unpriced,
    }


def _unpriced(prices: Prices | None, models: Iterable[str]) -> tuple[str, ...]:
    """Return the models without a price. While there are any, no cost is shown."""
    return () if prices is None else prices.lacking(models)


def _row(key: str, figures: _Figures, *, whole: bool, money: bool, start: str = "") -> ReportRow:
    cards, mib = figures.sums.cards, figures.sums.mib
    rest: dict[str, float] = {}
    for name, part in (
        ("free", Part.FREE), ("cordoned", Part.CORDONED), ("unhealthy", Part.UNHEALTHY),
    ) if whole else ():  # fmt: skip
        rest |= {f"{name}_gpu_hours": _gpu(cards[part]), f"{name}_gib_hours": _gib(mib[part])}
    return ReportRow(
        key=key,
        start=start,
        allocated_gpu_hours=_gpu(cards[Part.ALLOCATED]),
        allocated_gib_hours=_gib(mib[Part.ALLOCATED]),
        reported_gpu_hours=_gpu(figures.used.reported),
        used_gpu_hours=_gpu(figures.used.cards),
        used_gib_hours=_gib(figures.used.mib),
        cost=_money(figures.cost) if money else None,
        capacity_gpu_hours=_gpu(sum(cards)),
        capacity_gib_hours=_gib(sum(mib)),
        capacity_cost=_money(figures.capacity_cost) if money else None,
        **rest,
    )


def _idle_row(key: str, stretches: list[Idle], prices: Prices | None) -> IdleRow:
    cost = None
    if prices is not None:
        cost = sum((prices.cost(each.model, _cards(each)) for each in stretches), Decimal(0))
    return IdleRow(
        key=key,
        shares=len(stretches),
        gpu_hours=_gpu(sum(_cards(each) for each in stretches)),
        gib_hours=_gib(sum(each.mib * (each.end - each.start) for each in stretches)),
        cost=None if cost is None else _money(cost),
    )


def _cards(each: Idle) -> int:
    return each.cards * (each.end - each.start)


def _gpu(cards: int) -> float:
    return round(cards / (CARD * HOUR), DIGITS)


def _gib(mib: int) -> float:
    return round(mib / (_MIB_IN_GIB * HOUR), DIGITS)


def _money(amount: Decimal) -> float:
    return float(round(amount, DIGITS))
