"""The loops of the index say the same as the Python that they were written in.

Whichever way they were compiled, and for amounts at the limits of their fields.
"""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.core.placement.index import ask_loops, board_loops, packed
from apportion.core.placement.index.board_loops import BLOCK, REFUSED

WIDTH, KINDS, CUTS = 4, 3, 8


def written(module: ModuleType) -> ModuleType:
    """The module from its source; `py_func` of one of its loops is the Python of it."""
    source = Path(str(module.__file__)).parent / f"{module.__name__.rpartition('.')[2]}.py"
    spec = importlib.util.spec_from_file_location(module.__name__, source)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    for name, loop in [*vars(found).items()]:
        if name.startswith("_") and hasattr(loop, "py_func"):
            setattr(found, name, loop.py_func)  # it calls what was compiled ahead
    return found


ASK_SOURCE, BOARD_SOURCE = written(ask_loops), written(board_loops)
ONCE_COMPILED = settings(deadline=None)  # by numba, at the first call, where nothing was ahead
amounts = st.builds(
    packed.amounts,
    st.sampled_from([0, 1, 1000, 1001, (1 << packed.MEMORY_BITS) - 1]),
    st.sampled_from([0, 10, 100, (1 << packed.COMPUTE_BITS) - 1]),
    st.sampled_from([0, 1, 2, 10]),
)
needs = st.one_of(amounts, st.just(packed.NEVER))


class Fleet:
    """Random nodes and what an ask is to each kind of device, flat as loops take it."""

    def __init__(self, draw: st.DrawFn) -> None:
        def many(of: st.SearchStrategy[int], count: int, kind: type[np.integer[Any]]) -> Any:
            return np.array(draw(st.lists(of, min_size=count, max_size=count)), kind)

        self.nodes = draw(st.integers(1, 4))
        cells, flag = self.nodes * WIDTH, st.integers(0, 1)
        self.free = many(amounts, cells, np.int64) | packed.GUARDS
        self.kind = many(st.integers(0, KINDS - 1), cells, np.uint32)
        self.cut = many(st.integers(0, CUTS - 1), cells, np.uint16)
        self.elsewhere = many(flag, draw(st.sampled_from([0, cells])), np.uint8)
        self.need, self.charge = many(needs, KINDS, np.int64), many(amounts, KINDS, np.int64)
        self.fits = many(flag, KINDS * CUTS, np.uint8)
        self.totals = many(st.integers(0, 250), KINDS * 3, np.int64)
        self.rows = many(st.integers(0, self.nodes - 1), draw(st.integers(1, 6)), np.int64)
        self.node_ok = many(flag, self.nodes, np.uint8)
        self.load = many(st.integers(0, packed.POINTS), self.nodes, np.int32)
        self.count, self.times = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        self.weight = draw(st.sampled_from([ask_loops.BINPACK, ask_loops.SPREAD]))
        self.columns = (self.free, self.kind, self.cut, self.elsewhere)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Some fleet."""
    return Fleet(draw)


@ONCE_COMPILED
@given(fleets())
def test_a_look_at_rows(fleet: Fleet) -> None:
    """`look`, `rank` and `pick` of some ask."""
    ask: Any = (fleet.need, fleet.charge, fleet.fits, WIDTH, CUTS)
    size, found = len(fleet.rows), []
    looks: tuple[Any, ...] = (ask_loops.look, ASK_SOURCE.look.py_func)
    ranks: tuple[Any, ...] = (ask_loops.rank, ASK_SOURCE.rank.py_func)
    for look in looks:
        fit, enough = np.ones(size, np.uint8), np.full(size * WIDTH, 7, np.uint8)
        look(fleet.rows, *fleet.columns, *ask, fleet.count, fleet.times, fit, enough)
        found.append((fit.tolist(), enough.tolist()))
    for rank in ranks:
        given = np.zeros(size, np.int32)
        wanted, rest = fleet.count * fleet.times, (fleet.node_ok, fleet.load, given)
        rank(fleet.rows, 0, size, *fleet.columns, *ask, wanted, fleet.times, *rest)
        found.append((given.tolist(), []))
    assert found[0] == found[1]
    assert found[2] == found[3]
    fits = [a and fleet.node_ok[row] for a, row in zip(found[0][0], fleet.rows, strict=True)]
    assert [points != REFUSED for points in found[2][0]] == [bool(each) for each in fits]
    one: Any = (fleet.need, fleet.fits, fleet.totals, WIDTH, CUTS, fleet.weight)
    for row in range(fleet.nodes):
        picks = (ask_loops.pick, ASK_SOURCE.pick.py_func)
        assert len({pick(row, *fleet.columns, *one) for pick in picks}) == 1


@ONCE_COMPILED
@given(fleets(), st.lists(st.tuples(needs, needs, needs, st.integers(1, 3)), max_size=5))
def test_lines_that_are_helped(fleet: Fleet, lines: list[tuple[int, ...]]) -> None:
    """`helped`, with lines that want much and lines that want little."""
    wants = np.array([need for *line, _ in lines for need in line], np.int64)
    counts = np.array([line[-1] for line in lines], np.int64)
    answers = []
    for helped in (ask_loops.helped, ASK_SOURCE.helped.py_func):
        found = np.zeros(len(lines), np.int64)
        count = helped(fleet.rows, fleet.free, fleet.kind, wants, counts, WIDTH, KINDS, found)
        answers.append(found[:count].tolist())
    assert answers[0] == answers[1]


writes = st.lists(st.dictionaries(st.integers(0, 2 * BLOCK), st.integers(REFUSED, 5), max_size=9))


@ONCE_COMPILED
@given(writes, st.integers(1, 4))
def test_the_board(turns: list[dict[int, int]], count: int) -> None:
    """`write` and `best` say what a walk over all points would."""
    rows = 2 * BLOCK + 1
    for write, best_of in (
        (board_loops.write, board_loops.best),
        (BOARD_SOURCE.write.py_func, BOARD_SOURCE.best.py_func),
    ):
        points, most = np.full(rows, REFUSED, np.int32), np.full(3, REFUSED, np.int32)
        fitting, found, top = np.zeros(1, np.int64), np.zeros(count, np.int64), np.zeros(count, int)
        wanted = dict.fromkeys(range(rows), REFUSED)
        for turn in turns:
            wanted.update(turn)
            twice = [*turn, *turn]
            given = np.array([turn[row] for row in twice], np.int32)
            at = np.array(twice, np.int64)
            write(points, most, fitting, at, 0, len(twice), given)
            assert points.tolist() == list(wanted.values())
            assert fitting[0] == sum(each != REFUSED for each in wanted.values())
            best = best_of(points, most, found, top)
            ranked = sorted((-each, row) for row, each in wanted.items() if each != REFUSED)
            assert found[:best].tolist() == [row for _, row in ranked[:count]]
