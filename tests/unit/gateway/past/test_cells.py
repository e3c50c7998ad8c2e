"""Tests of the cells, the time intervals in which the gateway counts events. Each event is in
exactly one cell."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from apportion.gateway.past.cells import CELLS_MAX, Cells, binned


def counted(cells: Cells) -> int:
    """Return the number of events in all cells together."""
    return sum(sum(cell.counts.values()) for cell in cells.all)


def test_their_number_is_bounded_and_nothing_is_lost() -> None:
    """The number of cells (time intervals) never exceeds a limit. Cells have no gaps between them,
    and contain every event."""
    cells = Cells()
    events = CELLS_MAX * 3
    for revision in range(1, events + 1):
        cells.add(revision, revision * 1_000_000, "a" if revision % 3 else "b")
        assert len(cells.all) < CELLS_MAX
    assert counted(cells) == events
    assert cells.all[0].first == 1
    assert cells.all[-1].last == events
    for cell, after in zip(cells.all, cells.all[1:], strict=False):
        assert cell.last + 1 == after.first
        assert cell.to_ns <= after.from_ns
    assert Cells(cells.encode()).all == cells.all


def test_events_of_one_moment_are_one_cell() -> None:
    """Events with the same time are in the same cell (time interval)."""
    cells = Cells()
    for revision in range(1, CELLS_MAX + 2):
        cells.add(revision, 5, "a")
    assert len(cells.all) <= 3
    assert counted(cells) == CELLS_MAX + 1


def test_a_clock_that_goes_back_moves_nothing() -> None:
    """If an event's time is earlier than that of the previous event, both events count at the
    previous event's time."""
    cells = Cells()
    for revision, ns in enumerate((10, 4, 12), 1):
        cells.add(revision, ns, "a")
    assert [cell.from_ns for cell in cells.all] == [10, 10, 12]


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=60), st.integers(1, 20))
def test_bins_hold_every_event_once(times: list[int], number: int) -> None:
    """The bins of a chart cover its time span in order. Each event is in exactly one bin."""
    cells = Cells()
    for revision, ns in enumerate(sorted(times), 1):
        cells.add(revision, ns, "a")
    bins = binned(cells.all, number=number, from_ns=min(times), to_ns=max(times))
    assert len(bins) == number
    assert sum(sum(cell.counts.values()) for _, _, cell in bins if cell) == len(times)
    assert bins[0][0] == min(times)
    for (_, ends, _), (begins, _, _) in itertools.pairwise(bins):
        assert begins >= ends
