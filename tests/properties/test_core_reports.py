"""Property: a usage report equals a sum over all devices that is recomputed after every event."""

import csv
import io
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from apportion.core.ledger.moments import SECOND
from apportion.core.ledger.state import NodeState, State
from apportion.core.reports.accounts import Account, card_part
from apportion.core.reports.answers import ReportAnswer
from apportion.core.reports.meters import CARD, Meters, Part
from apportion.core.reports.prices import prices_of
from apportion.core.reports.report import Period, Reading, report_answer
from apportion.core.reports.rows import by_of
from apportion.runtime.jetstream.reports import as_csv
from apportion_schemas import (
    DeviceCordoned,
    DeviceHealthChanged,
    DeviceUncordoned,
    NodeCordoned,
    NodeGone,
    NodeUncordoned,
)
from tests.properties.core_histories import (
    NAMESPACES,
    QUEUED,
    Decide,
    Step,
    decisions,
    effects,
    histories,
    queued_histories,
    queued_payloads,
    submissions,
    trying,
    weighed,
)
from tests.properties.core_playing import changes
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger

SETTINGS = trying(120)
DEVICES = st.integers(0, 2).map("roomy-g{}".format)
AT_WORK: st.SearchStrategy[Step] = st.one_of(
    st.builds(DeviceCordoned, device=DEVICES, by=st.just("x"), reason=st.just("x")),
    st.builds(DeviceUncordoned, device=DEVICES, by=st.just("x")),
    st.builds(NodeCordoned, node=st.just("roomy"), by=st.just("x"), reason=st.just("x")),
    st.builds(NodeUncordoned, node=st.just("roomy"), by=st.just("x")),
    st.builds(DeviceHealthChanged, node=st.just("roomy"), device=DEVICES, healthy=st.booleans()),
    st.builds(observed, st.just("roomy"), ready=st.booleans(), version=st.integers(0, 1)),
    st.builds(rack, st.just("roomy"), st.integers(0, 3), memory_mib=st.sampled_from((700, 81920))),
    st.builds(rack, st.just("other"), st.just(0)).map(
        lambda report: structs.replace(report, devices=rack("roomy", 2).devices)
    ),
    st.just(NodeGone(node="roomy")),
)
"""Events of the roomy node; its devices may move to another node."""


def at_work() -> st.SearchStrategy[list[Step]]:
    """Draw a history in which pods run on one large node while many other events happen."""
    start = st.lists(submissions(queues=QUEUED, namespaces=NAMESPACES), min_size=4, max_size=8)
    steps = weighed((3, queued_payloads), (2, effects), (4, decisions), (3, AT_WORK))
    return st.builds(
        lambda begun, on: [rack("roomy", 3), *begun, Decide(), *on],
        start,
        st.lists(steps, min_size=20, max_size=40),
    )


HISTORIES = at_work() | histories(longest=48) | queued_histories(longest=48)
PRICES = prices_of(b"currency = 'EUR'\n[models]\n'*' = 3.7")
GAPS_S = (0, 61, 1800, 3599, 20_000, 400)
"""The delays between consecutive events, repeated in a cycle."""
BYS = st.sampled_from(("namespace", "queue", "node", "model", "user", "label:app"))
PERIODS = st.builds(
    lambda start, length, step: Period(start * SECOND, (start + length) * SECOND, step * SECOND),
    st.sampled_from((0, 0, 95_000)),
    st.sampled_from((100_000, 3_000_000, 5_000_000)),
    st.sampled_from((0, 9_000, 50_000)),
)
Counted = Counter[tuple[str, str, Part]]


def looked(state: State, by: str) -> Iterator[tuple[tuple[str, str, Part], int, int]]:
    """Yield every part of every device in this state as (key, millionths of a device, MiB).

    The key has the report's row, the device model, and whether the part is allocated, free,
    cordoned or unhealthy."""
    for node in state.nodes.values():
        held: Counter[str] = Counter()
        for pod in node.pods.values():
            for share in pod.placement.shares if pod.placement else ():
                device = node.by_id[share.device].device
                cards = card_part(device, share.memory_mib, share.cores)
                held[share.device] += cards
                row = by_of(by).row_of(state, pod, node.name, device.model)
                yield (row, device.model, Part.ALLOCATED), cards, share.memory_mib
        yield from rests(node, held, by)


def rests(
    node: NodeState, held: Counter[str], by: str
) -> Iterator[tuple[tuple[str, str, Part], int, int]]:
    """Yield the unallocated part of each device of the node, as a (key, millionths, MiB) tuple.

    `held` has the allocated millionths of each device."""
    for each in node.devices:
        if each.present and node.present:
            part = Part.UNHEALTHY if not (each.healthy and node.ready) else Part.FREE
            if part is Part.FREE and (each.cordon or node.cordoned):
                part = Part.CORDONED
            cards = max(CARD - held[each.device.id], 0)
            row = {"node": node.name, "model": each.device.model}.get(by, "")
            yield (row, each.device.model, part), cards, max(each.memory_free_mib, 0)


def told(meters: Meters) -> tuple[Counted, Counted]:
    """Return the totals of the usage meters, in millionths of a device and in MiB."""
    cards, mib = Counted(), Counted()
    for (_, (row, model)), sums in meters.cells.items():
        for part in Part:
            cards[row, model, part] += sums.cards[part]
            mib[row, model, part] += sums.mib[part]
    return +cards, +mib


@SETTINGS
@given(HISTORIES, BYS, PERIODS)
def test_a_report_is_what_one_would_count(steps: list[Step], by: str, period: Period) -> None:
    """For any period, a usage report equals a sum over all devices. The allocated, free, cordoned
    and unhealthy parts add up to the capacity."""
    ledger = Ledger()
    start, end = period.start, period.end
    meters = Meters(start, end, period.step)
    account = Account(ledger.state, by_of(by), meters)
    cards, mib = Counted(), Counted()
    moment, before = 0, list(looked(ledger.state, by))
    for number, change in enumerate(changes(ledger, steps)):
        after = moment + GAPS_S[number % len(GAPS_S)] * SECOND
        inside = max(0, min(after, end) - max(moment, start))
        for key, of_cards, of_mib in before:
            cards[key] += of_cards * inside
            mib[key] += of_mib * inside
        account.observe(change, after)
        moment, before = after, list(looked(ledger.state, by))
    account.finish()
    inside = max(0, end - max(moment, start))
    for key, of_cards, of_mib in before:
        cards[key] += of_cards * inside
        mib[key] += of_mib * inside
    assert told(meters) == (+cards, +mib)
    reading = Reading(ledger.state.revision, by_of(by), period, meters, account)
    adds_up(reading)


def rows_of_csv_add_up(answer: ReportAnswer) -> None:
    """Check that the rows of the CSV add up to the report's total in every column, including
    capacity and cost."""
    rows = list(csv.DictReader(io.StringIO(as_csv(answer))))
    if not rows:
        assert answer.total.capacity_gpu_hours == 0, "nothing was there in this time"
        return
    for name in (each for each in rows[0] if each.endswith(("hours", "cost"))):
        come = sum(float(row[name] or 0) for row in rows)
        whole = getattr(answer.total, name) or 0
        assert come == pytest.approx(whole, abs=2e-6 * (len(rows) + 4)), name
    keys = Counter((row["from"], row["key"]) for row in rows)
    assert max(keys.values()) == 1, "no two rows have one name"


def adds_up(reading: Reading) -> None:
    """Check that the report's rows and time steps each add up to its total.

    Also check that the allocated, free, cordoned and unhealthy parts add up to the capacity."""
    answer = report_answer("usage", reading, PRICES)
    total = answer.total
    assert total.capacity_gpu_hours == pytest.approx(
        total.allocated_gpu_hours
        + sum(part or 0 for part in (
            total.free_gpu_hours, total.cordoned_gpu_hours, total.unhealthy_gpu_hours
        )),
        abs=1e-5,
    )  # fmt: skip
    for rows in (answer.rows, answer.steps or answer.rows):
        for name in ("allocated_gpu_hours", "allocated_gib_hours"):
            come = sum(getattr(row, name) for row in rows)
            assert come == pytest.approx(getattr(total, name), abs=1e-6 * (len(rows) + 1))
        rows_of_csv_add_up(structs.replace(answer, steps=rows if rows is answer.steps else ()))
    starts = [row.start for row in answer.steps]
    assert all(one <= two for one, two in pairwise(starts))
