"""Tests of the tables of reports. Figures that were not measured are left blank."""

import io
import re
from decimal import Decimal

import pytest
from msgspec import structs
from rich.console import Console

from apportion.cli.render.reports import (
    capacity_result,
    capacity_words,
    causes_of,
    figures,
    lost_rows_of,
    rows_of,
    show_capacity,
    span_of,
)
from apportion.cli.render.rows import Rows
from apportion.core.ledger.moments import HOUR
from apportion.core.reports.accounts import Account
from apportion.core.reports.answers import CapacityAnswer, CapacityRow, ReportAnswer, ReportRow
from apportion.core.reports.meters import Meters
from apportion_schemas import NodeCordoned, NodeUncordoned
from tests.support.accounts import Accounted, Losing
from tests.support.fleet import rack
from tests.support.golden import Golden
from tests.support.pods import cards as whole
from tests.support.pods import placed, pod, share


def test_steps_say_what_was_free_in_the_row_of_nobody() -> None:
    """A report has a row for unallocated capacity. In that row, figures about usage are blank
    instead of zero."""
    accounted = Accounted(hours=2, step=2).at(0, rack("n1", 1), pod("p1"))
    accounted.at(1, placed("p1", shares=[share("n1-g0", 40_960)]))
    answer = accounted.report()
    out = Console(file=io.StringIO(), width=200, color_system=None)
    out.print(rows_of(answer, answer.steps, money=False, steps=True))
    assert isinstance(out.file, io.StringIO)
    head, nobody, default = out.file.getvalue().splitlines()
    assert head.split()[-3:] == ["FREE", "CORDONED", "UNHEALTHY"]
    assert nobody.split()[1:] == ["(unallocated)", "1.50", "0.00", "0.00"]
    assert default.split()[1:3] == ["default", "0.50"]


def test_what_nobody_measured_is_blank() -> None:
    """A report omits a column if none of its values was measured."""
    accounted = Accounted(hours=2).at(0, rack("n1", 1), pod("p1"))
    answer = accounted.at(1, placed("p1", shares=[share("n1-g0", 40_960)])).report()
    [row] = answer.rows
    assert cells(row, answer) == ["default", "0.50", "40.00"]
    measured = structs.replace(row, reported_gpu_hours=1.0)
    assert cells(measured, answer) == ["default", "0.50", "40.00", "0%", "0.00"]
    heads = [printed(rows_of(answer, (each,), money=False))[0] for each in (row, measured)]
    assert ["UTILIZED" in head and "GiB-HOURS USED" in head for head in heads] == [False, True]
    assert all("GPU-HOURS" in head and "GiB-HOURS" in head for head in heads)


def test_what_is_added_up_has_one_number_of_decimals(golden: Golden) -> None:
    """All parts of a capacity are printed with the same number of decimals."""
    row = ReportRow(
        key="n1", allocated_gpu_hours=3.5, allocated_gib_hours=8.0, capacity_gpu_hours=4.2928,
        free_gpu_hours=0.79, cordoned_gpu_hours=0.0028, unhealthy_gpu_hours=0.0,
    )  # fmt: skip
    answer = ReportAnswer(
        revision=1, report="usage", by="node", start="", end="", rows=(row,), total=row
    )
    line = printed(rows_of(answer, (row,), money=False))[1].split()
    assert line == ["n1", "3.5000", "8.0000", "0.7900", "0.0028", "0.0000"]
    golden({"capacity": capacity_words(row)})


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        ((1 / 3, 1 / 3, 1 / 3, 0), "1.00 GPU-hours = 0.34 allocated + 0.33 free + 0.33 cordoned"),
        ((0.016, 0.016, 1.968, 0), "2.00 GPU-hours = 0.02 allocated + 0.02 free + 1.96 cordoned"),
        ((1_999.996, 0.166, 0.166, 0.166), "2,000.49 GPU-hours = 1,999.98 allocated + 0.17 free"),
    ],
)
def test_parts_of_the_capacity_come_to_it_as_they_are_printed(
    hours: tuple[float, float, float, float], said: str
) -> None:
    """The printed parts of a capacity add up to the printed total. The largest part absorbs the
    rounding difference."""
    granted, free, cordoned, broken = hours
    total = ReportRow(
        key="", allocated_gpu_hours=granted, free_gpu_hours=free, cordoned_gpu_hours=cordoned,
        unhealthy_gpu_hours=broken, capacity_gpu_hours=sum(hours),
    )  # fmt: skip
    words = capacity_words(total)
    assert said in words
    whole, *parts = map(Decimal, re.findall(r"\d+\.\d+", words.replace(",", "")))
    assert whole == sum(parts)


def test_a_table_has_one_number_of_decimals() -> None:
    """All amounts of a table have as many decimals as the smallest one needs."""
    assert figures([0.0001, 0.0098, 0.02, None, 0.0]) == [
        "0.0001",
        "0.0098",
        "0.0200",
        "",
        "0.0000",
    ]
    assert figures([1234.5, 0.01]) == ["1,234.50", "0.01"]
    assert figures([0.000002, 3.0]) == ["0.000002", "3.000000"]
    accounted = Accounted(hours=2).at(0, rack("n1", 1), pod("p1"), pod("p2", namespace="web"))
    accounted.at(0, placed("p1", shares=[share("n1-g0", 40_960)]))
    accounted.at(1.99, placed("p2", namespace="web", shares=[share("n1-g0", 4_096)]))
    answer = accounted.report()
    out = Console(file=io.StringIO(), width=200, color_system=None)
    out.print(rows_of(answer, answer.rows, money=False))
    assert isinstance(out.file, io.StringIO)
    assert [line.split()[1:3] for line in out.file.getvalue().splitlines()[1:]] == [
        ["1.0000", "80.0000"], ["0.0005", "0.0400"],
    ]  # fmt: skip


def test_lost_hours_are_printed_by_cause(golden: Golden) -> None:
    """The fleet's table lists every cause of lost hours; the table by queue has a column for each
    cause that occurred. In that table, zero is blank. A tiny amount is never shown as zero."""
    losing = Losing("queue", hours=4).at(0, rack("n1", 4), pod("p1", whole(), queue="ml"))
    losing.decide(0).at(1, NodeCordoned(node="n1", by="x", reason="fan"))
    losing.at(3, NodeUncordoned(node="n1", by="x"), pod("p2", whole(2), queue="web"))
    losing.decide(3.001)
    answer = losing.answer()
    tables = {"causes": causes_of(answer.total), "rows": lost_rows_of(answer)}
    golden({name: "\n".join(printed(table)) for name, table in tables.items()})


def cells(row: ReportRow, answer: ReportAnswer) -> list[str]:
    """Return the cells of this row as the report's table prints them."""
    return printed(rows_of(answer, (row,), money=False))[1].split()


def test_additional_nodes_are_compared_by_what_they_save(
    golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has a row for each node type. The last line names the best type, or says that no
    type saves any waiting."""
    row = CapacityRow(
        node="8 x NVIDIA L40S", in_fleet=False, saved_gpu_hours=12.5, waited_gpu_hours=3.5,
        wait_mean_s=60, wait_p95_s=720, unplaced=1, cost=672, saved_per_unit=0.018601,
    )  # fmt: skip
    none = structs.replace(row, node="4 x NVIDIA L4", in_fleet=True, saved_gpu_hours=0.0)
    answer = CapacityAnswer(
        start="2026-01-02T03:04:05Z", end="2026-01-03T03:04:05Z", count=1, waited_gpu_hours=16.0,
        wait_mean_s=600, wait_p95_s=7200, unplaced=1, currency="EUR", unpriced=("NVIDIA L4",),
        rows=(row, structs.replace(none, cost=None, saved_per_unit=None)),
    )  # fmt: skip
    shown = {}
    for name, each in {
        "prices": answer,
        "no prices, two nodes": structs.replace(
            answer,
            currency="",
            unpriced=(),
            count=2,
            rows=(structs.replace(row, cost=None, saved_per_unit=None),),
        ),
        "nothing saved": structs.replace(
            answer, rows=(structs.replace(none, saved_per_unit=0.0),), unpriced=()
        ),
        "free": structs.replace(
            answer, rows=(structs.replace(row, cost=0.0, saved_per_unit=None),), unpriced=()
        ),
        "no waits": structs.replace(answer, rows=(), waited_gpu_hours=0.0),
    }.items():
        show_capacity(each)
        shown[name] = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    shown["no types"] = capacity_result(structs.replace(answer, rows=()))
    golden(shown)


def printed(rows: Rows) -> list[str]:
    """Return the lines of the table on a wide terminal."""
    out = Console(file=io.StringIO(), width=200, color_system=None)
    out.print(rows)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


def test_the_period_of_a_young_ledger_is_from_when_it_begins(golden: Golden) -> None:
    """If the ledger is younger than a report's period, the period starts when the ledger starts."""
    accounted = Accounted(hours=24).at(22, rack("n1", 1))
    golden({"usage": span_of(accounted.report()), "idle": span_of(accounted.idle())})
    later = Accounted(hours=24).at(0, rack("n1", 1)).at(22, pod("p1"))
    assert span_of(later.report()) == "1970-01-01T00:00:00Z to 1970-01-02T00:00:00Z"
    snapshot = Account(later.ledger.state, later.by, Meters(0, later.period.end))
    snapshot.observe(later.ledger.take(pod("p2")), 22 * HOUR)
    assert not snapshot.begins, "read from a snapshot: what was before it is not known"
