"""Print reports as tables and sentences."""

from collections.abc import Iterable
from itertools import chain

from apportion.cli.render.output import between, clock, console, plain, show
from apportion.cli.render.rows import Rows
from apportion.core.explain.health import moment
from apportion.core.reports.answers import (
    LOST_CAUSES,
    CapacityAnswer,
    CapacityRow,
    IdleAnswer,
    LostAnswer,
    LostRow,
    ReportAnswer,
    ReportRow,
)
from apportion.core.reports.prices import lacking_words
from apportion.core.reports.rows import NO_POD

IDLE_LISTED = 40
DIGITS = (2, 4, 6)  # decimals, as many as needed; answers have no more than the last
# columns that a narrow terminal drops, first to last
DROPS = ("GiB-HOURS USED", "UTILIZED", "UNHEALTHY", "CORDONED", "GiB-HOURS", "FREE")


def show_report(answer: ReportAnswer) -> None:
    """Print the report: one row per group, or per step and group, and the hours of the fleet."""
    out = console()
    out.print(f"{span_of(answer)}, by {answer.by}, as of revision {answer.revision}")
    money = bool(answer.currency)
    if answer.steps:
        show(rows_of(answer, answer.steps, money=money, steps=True))
        out.print()
    show(rows_of(answer, answer.rows, money=money))
    total = answer.total
    out.print(capacity_words(total))
    _say_unpriced(answer)
    if money:
        out.print(
            f"cost of allocated hours: {_h(total.cost)} of {_h(total.capacity_cost)} "
            f"{answer.currency} for the whole fleet"
        )


def capacity_words(total: ReportRow) -> str:
    """Return text that splits the fleet's GPU-hours into parts, rounded so that they add up."""
    hours = (total.capacity_gpu_hours, total.allocated_gpu_hours, total.free_gpu_hours,
             total.cordoned_gpu_hours, total.unhealthy_gpu_hours)  # fmt: skip
    digits = digits_of(hours)
    capacity, *parts = (round(each or 0.0, digits) for each in hours)
    parts[parts.index(max(parts))] += capacity - sum(parts)  # the rounding error
    whole, granted, free, cordoned, broken = figures((capacity, *parts), digits)
    used = "no utilization data yet"
    if total.reported_gpu_hours:
        all_of_it = total.allocated_gpu_hours
        share = 100 * total.reported_gpu_hours / all_of_it if all_of_it else 0
        used = f"utilization {_percent(total)} (reported for {share:.0f}% of allocated hours)"
    return (
        f"capacity {whole} GPU-hours = {granted} allocated + {free} free + {cordoned} cordoned + "
        f"{broken} unhealthy; {used}"
    )


def span_of(answer: ReportAnswer | IdleAnswer | LostAnswer) -> str:
    """Return the reported period. It starts at the first event if the ledger is younger."""
    begins = f"{moment(answer.begins)} (the first event)" if answer.begins else ""
    return f"{begins or moment(answer.start)} to {moment(answer.end)}"


def _say_unpriced(answer: ReportAnswer | IdleAnswer | LostAnswer) -> None:
    if answer.unpriced:
        console().print(plain(f"no costs: {lacking_words(answer.unpriced)}"), style="dim")


def rows_of(
    answer: ReportAnswer, rows: tuple[ReportRow, ...], *, money: bool, steps: bool = False
) -> Rows:
    """Return the table of allocated and used hours, with a row per group or step.

    `money`: add a column of costs. `steps`: `rows` are per time step. All amounts have the same
    number of decimals. Columns of usage are shown only with data."""
    held = [row if row.key != NO_POD else None for row in rows]
    granted = [row.allocated_gpu_hours if row else None for row in held]
    granted_gib = [row.allocated_gib_hours if row else None for row in held]
    # Empty if no node measured it; a node that measures work measures memory too.
    used_gib = [
        row.used_gib_hours if row and (row.used_gib_hours or row.reported_gpu_hours) else None
        for row in held
    ]
    cost = [row.cost if row else None for row in held] if money else []
    parts = {
        "FREE": [row.free_gpu_hours for row in rows],
        "CORDONED": [row.cordoned_gpu_hours for row in rows],
        "UNHEALTHY": [row.unhealthy_gpu_hours for row in rows],
    }
    parts = parts if steps or answer.by in {"node", "model"} else {}
    digits = digits_of(chain(granted, granted_gib, used_gib, cost, *parts.values()))
    used = {
        "UTILIZED": [_percent(row) if row else "" for row in held],
        "GiB-HOURS USED": figures(used_gib, digits),
    }
    columns = {"FROM": [clock(row.start) for row in rows]} if steps else {}
    columns[answer.by.upper()] = [row.key if row else "(unallocated)" for row in held]
    columns["GPU-HOURS"] = figures(granted, digits)
    columns["GiB-HOURS"] = figures(granted_gib, digits)
    columns |= {name: cells for name, cells in used.items() if any(cells)}
    if money:
        columns[answer.currency] = figures(cost, digits)
    columns |= {name: figures(amounts, digits) for name, amounts in parts.items()}
    made = Rows(*columns, right=list(columns)[1 + steps :], drops=DROPS)
    for line in zip(*columns.values(), strict=True):
        made.add_row(*map(plain, line))
    return made


def idle_words(answer: IdleAnswer, least: str = "") -> str:
    """Return how often shares were idle for `least` (default: an hour), or that data is missing."""
    period = span_of(answer)
    if not answer.reported:
        return f"{period}: no utilization data yet; nodes report it once an hour"
    return (
        f"{period}: shares were idle {answer.found:,} times for {least or 'an hour'} or more, "
        f"{_h(answer.total.gpu_hours)} GPU-hours in total"
    )


def show_idle(answer: IdleAnswer, least: str = "") -> None:
    """Print idle hours per group, and the shares that were idle longest, at least for `least`."""
    out = console()
    money = bool(answer.currency)
    by = answer.by.upper()
    out.print(idle_words(answer, least))
    if not answer.found:
        return
    cost = [answer.currency] if money else []
    rows = Rows(by, "TIMES", "GPU-HOURS", "GiB-HOURS", *cost,
                right=("TIMES", "GPU-HOURS", "GiB-HOURS", *cost), drops=DROPS)  # fmt: skip
    amounts: list[list[float | None]] = [
        [row.gpu_hours for row in answer.rows],
        [row.gib_hours for row in answer.rows],
        *([[row.cost for row in answer.rows]] if money else []),
    ]
    digits = digits_of(chain(*amounts))
    for row, *cells in zip(answer.rows, *(figures(each, digits) for each in amounts), strict=True):
        rows.add_row(row.key, f"{row.shares:,}", *cells)
    show(rows)
    out.print()
    shares = Rows("POD", "CONTAINER", "DEVICE", "FROM", "HOURS", "GPU-HOURS", "NOW",
                  right=("HOURS", "GPU-HOURS"), drops=("CONTAINER", "HOURS"))  # fmt: skip
    listed = answer.shares[:IDLE_LISTED]
    hours = [each.hours for each in listed], [each.gpu_hours for each in listed]
    digits = digits_of(chain(*hours))
    for each, long, cards in zip(listed, *(figures(each, digits) for each in hours), strict=True):
        shares.add_row(
            f"{each.namespace}/{each.pod}", each.container, each.device[:12],
            clock(each.start), long, cards, "idle" if each.idle_now else "ended",
        )  # fmt: skip
    show(shares)
    _say_unpriced(answer)
    if answer.found > IDLE_LISTED:
        out.print(f"and {answer.found - IDLE_LISTED:,} more; list all with --format csv")


def show_lost(answer: LostAnswer) -> None:
    """Print the lost hours of the fleet by cause, then those of each group, or step and group."""
    out = console()
    out.print(f"{span_of(answer)}, as of revision {answer.revision}")
    total = answer.total
    show(causes_of(total))
    if total.unmeasured_gpu_hours:
        share = 100 * total.unmeasured_gpu_hours / total.worked_gpu_hours
        out.print(
            f"{share:.0f}% of the worked hours have no usage report: they may be idle", style="dim"
        )
    if answer.rows:
        out.print()
        show(lost_rows_of(answer))
    _say_unpriced(answer)
    if answer.currency:
        out.print(f"cost of lost hours: {_h(total.lost_cost)} {answer.currency}")


def show_capacity(answer: CapacityAnswer) -> None:
    """Print how much less pods would have waited with more nodes of each type, and the cost."""
    out = console()
    span = f"{moment(answer.start)} to {moment(answer.end)}"
    out.print(f"{span}: pods waited {_h(answer.waited_gpu_hours)} GPU-hours")
    if not answer.rows:
        out.print(capacity_result(answer))
        return
    money = [f"COST, {answer.currency}", f"SAVED PER {answer.currency}"] if answer.currency else []
    right = ("SAVED GPU-HOURS", "WAIT, MEAN", "WAIT, 95%", "PENDING", *money)
    table = Rows("NODE", "IN FLEET", *right, right=right, drops=("WAIT, MEAN", "IN FLEET"))
    saved = figures([row.saved_gpu_hours for row in answer.rows])
    cost = figures([row.cost for row in answer.rows])
    value = [_per_unit(row) for row in answer.rows]
    for row, hours, *priced in zip(answer.rows, saved, cost, value, strict=True):
        waits = (between(each).lstrip("+") for each in (row.wait_mean_s, row.wait_p95_s))
        table.add_row(
            f"{answer.count} x ({row.node})" if answer.count > 1 else row.node,
            "yes" if row.in_fleet else "no", hours, *waits, f"{row.unplaced:,}",
            *(priced if money else ()),
        )  # fmt: skip
    show(table)
    if answer.unpriced:
        out.print(plain(f"no costs: {lacking_words(answer.unpriced)}"), style="dim")
    out.print(plain(capacity_result(answer)))


def capacity_result(answer: CapacityAnswer) -> str:
    """Return in one sentence which additional nodes save most for their price, or that none do."""
    if not answer.waited_gpu_hours:
        return "nothing to save: no pod waited"
    if not answer.rows:
        return "no type of node to try; name one with --node"
    best = next((row for row in answer.rows if row.saved_gpu_hours > 0), None)
    if best is None:
        return "nothing saved: pods would have waited just as long with any of these nodes"
    if best.cost == 0:
        [hours] = figures([best.saved_gpu_hours])
        return f"{best.node} saves {hours} GPU-hours at no cost"
    what = f"{best.node} saves most"
    if best.saved_per_unit is None:
        return what
    return f"{what} for its price: {_per_unit(best)} GPU-hours per {answer.currency}"


def _per_unit(row: CapacityRow) -> str:
    return "" if row.saved_per_unit is None else f"{row.saved_per_unit:.3g}"


def causes_of(total: LostRow) -> Rows:
    """Return a table of all causes, with the worked hours first and the capacity last."""
    named = {"worked": "worked"} | {name: each.name for name, each in LOST_CAUSES.items()}
    hours = [getattr(total, f"{name}_gpu_hours") for name in named]
    capacity = total.capacity_gpu_hours
    table = Rows("CAUSE", "GPU-HOURS", "SHARE", right=("GPU-HOURS", "SHARE"))
    names, amounts = [*named.values(), "capacity"], [*hours, capacity]
    digits = digits_of((total.worked_gpu_hours, total.lost_gpu_hours))
    shares = [100 * amount / (capacity or 1.0) for amount in amounts]
    for name, hours_cell, share in zip(
        names, nonzero(amounts, digits, zero="0"), nonzero(shares, 1, zero="0"), strict=True
    ):
        table.add_row(name, hours_cell, f"{share}%")
    return table


def lost_rows_of(answer: LostAnswer) -> Rows:
    """Return the table of groups, or of steps and groups, with a column for each cause in it."""
    rows = answer.steps or answer.rows
    by_cause = {
        each.name.upper(): [getattr(row, f"{name}_gpu_hours") for row in rows]
        for name, each in LOST_CAUSES.items()
    }
    by_cause = {name: hours for name, hours in by_cause.items() if any(hours)}
    worked = [row.worked_gpu_hours for row in rows]
    lost = [row.lost_gpu_hours for row in rows]
    cost = [row.lost_cost for row in rows] if answer.currency else []
    digits = digits_of(chain(worked, lost, cost))
    columns = {"FROM": [clock(row.start) for row in rows]} if answer.steps else {}
    columns[answer.by.upper()] = [row.key or "(no pod)" for row in rows]
    named = len(columns)
    columns |= {"WORKED": nonzero(worked, digits), "LOST": nonzero(lost, digits)}
    columns |= {answer.currency: nonzero(cost, digits)} if cost else {}
    columns |= {name: nonzero(hours, digits) for name, hours in by_cause.items()}
    # A narrow terminal drops the causes with the fewest hours first.
    drops = sorted(by_cause, key=lambda name: (sum(by_cause[name]), name))
    made = Rows(*columns, right=list(columns)[named:], drops=drops)
    for line in zip(*columns.values(), strict=True):
        made.add_row(*map(plain, line))
    return made


def _percent(row: ReportRow) -> str:
    return (
        f"{100 * row.used_gpu_hours / row.reported_gpu_hours:.0f}%"
        if row.reported_gpu_hours
        else ""
    )


def figures(amounts: Iterable[float | None], digits: int | None = None) -> list[str]:
    """Format numbers with `digits` decimals, or by default as many as the smallest one needs."""
    column = list(amounts)
    digits = digits_of(column) if digits is None else digits
    return ["" if each is None else f"{each:,.{digits}f}" for each in column]


def nonzero(amounts: Iterable[float | None], digits: int, zero: str = "") -> list[str]:
    """Format numbers with `digits` decimals, 0 as `zero`, and smaller numbers as `<0.01`."""
    least = 10.0**-digits
    return [
        f"<{least:.{digits}f}" if each and each < least else f"{each:,.{digits}f}" if each else zero
        for each in amounts
    ]


def digits_of(amounts: Iterable[float | None]) -> int:
    """Return how many decimals the smallest amount needs so that it is not shown as zero."""
    least = min((each for each in amounts if each), default=1.0)
    return next((each for each in DIGITS if least >= 10.0**-each), DIGITS[-1])


def _h(amount: float | None) -> str:
    [said] = figures((amount,))
    return said
