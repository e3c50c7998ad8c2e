"""Property: the compiled loops of the engine's index return the same as their Python source.

The inputs include amounts at the limits of their fields."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from apportion.core.placement.index import ask_loops, board_loops, packed
from apportion.core.placement.index.board_loops import BLOCK, REFUSED

WIDTH, KINDS, CUTS = 4, 3, 8


def written(module: ModuleType) -> ModuleType:
    """Load this module again from its Python source, so that it runs uncompiled."""
    source = Path(str(module.__file__)).parent / f"{module.__name__.rpartition('.')[2]}.py"
    spec = importlib.util.spec_from_file_location(module.__name__, source)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    for name, loop in [*vars(found).items()]:
        if name.startswith("_") and hasattr(loop, "py_func"):
            setattr(found, name, loop.py_func)  # the module calls the compiled version
    return found


ASK_SOURCE, BOARD_SOURCE = written(ask_loops), written(board_loops)
amounts = st.builds(
    packed.amounts,
    st.sampled_from([0, 1, 1000, 1001, (1 << packed.MEMORY_BITS) - 1]),
    st.sampled_from([0, 10, 100, (1 << packed.COMPUTE_BITS) - 1]),
    st.sampled_from([0, 1, 2, 10]),
)
needs = st.one_of(amounts, st.just(packed.NEVER))


class Fleet:
    """Random nodes and a random request, stored in the flat arrays that the compiled loops read."""

    def __init__(self, draw: st.DrawFn) -> None:
        def many(of: st.SearchStrategy[int], count: int, kind: type[np.integer[Any]]) -> Any:
            return np.array(draw(st.lists(of, min_size=count, max_size=count)), kind)

        self.nodes = draw(st.integers(1, 4))
        cells, flag = self.nodes * WIDTH, st.integers(0, 1)
        self.free = many(amounts, cells, np.int64) | packed.GUARDS
        self.kind = many(st.integers(0, KINDS - 1), cells, np.uint32)
        self.cut = many(st.integers(0, CUTS - 1), cells, np.uint16)
        self.closed = many(st.integers(0, 2), cells, np.uint8)
        self.ranks = many(st.integers(8, 9), cells, np.uint8)
        self.alone = many(flag, KINDS, np.uint8)
        self.elsewhere = many(flag, draw(st.sampled_from([0, cells])), np.uint8)
        self.need, self.charge = many(needs, KINDS, np.int64), many(amounts, KINDS, np.int64)
        self.fits = many(flag, KINDS * CUTS, np.uint8)
        self.totals = many(st.integers(0, 250), KINDS * 3, np.int64)
        self.rows = many(st.integers(0, self.nodes - 1), draw(st.integers(1, 6)), np.int64)
        self.node_ok = many(flag, self.nodes, np.int32)
        self.count, self.times = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        self.weight = draw(st.sampled_from([ask_loops.BINPACK, ask_loops.SPREAD]))
        self.columns = (self.free, self.kind, self.cut, self.elsewhere)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    return Fleet(draw)


@given(fleets())
def test_look_rank_and_pick_agree(fleet: Fleet) -> None:
    """For any device request, the compiled loops `look`, `rank` and `pick` return the same as their
    Python source."""
    ask: Any = (fleet.need, fleet.charge, fleet.fits, WIDTH, CUTS)
    size, wanted, found = len(fleet.rows), fleet.count * fleet.times, []
    looks: tuple[Any, ...] = (ask_loops.look, ASK_SOURCE.look)
    for look in looks:
        for noted in (1, 0):
            given = np.array([fleet.node_ok[row] - 1 for row in fleet.rows], np.int32)
            enough = np.full(size * WIDTH, 7, np.uint8)
            wants = (wanted, fleet.times, noted, enough, given)
            look(fleet.rows, size, *fleet.columns, *ask, *wants)
            found.append((given.tolist(), enough.tolist() if noted else []))
    assert found[:2] == found[2:]
    assert found[0][0] == found[1][0], "which fit does not depend on whether devices are noted"
    codes = np.array([9, *range(8)], np.uint8)
    amounts: Any = (fleet.need, fleet.alone, fleet.fits, CUTS, codes)
    devices: Any = (fleet.free, fleet.kind, fleet.closed, fleet.cut)
    ranked, both = [], (ask_loops.rank, ASK_SOURCE.rank)
    for rank in both:
        ranks: Any = fleet.ranks.copy()
        rank(ranks, *devices, *amounts)
        ranked.append(ranks.tolist())
    assert ranked[0] == ranked[1]
    assert all(was in (9, now) for was, now in zip(fleet.ranks, ranked[0], strict=True))
    one: Any = (fleet.need, fleet.fits, fleet.totals, WIDTH, CUTS, fleet.weight)
    for row in range(fleet.nodes):
        picks = (ask_loops.pick, ASK_SOURCE.pick)
        assert len({pick(row, *fleet.columns, *one) for pick in picks}) == 1


@given(fleets(), st.lists(st.tuples(needs, needs, needs, st.integers(1, 3)), max_size=5))
def test_helped_agrees(fleet: Fleet, lines: list[tuple[int, ...]]) -> None:
    """For large and small demands, the compiled loop `helped` returns the same as its Python
    source."""
    wants = np.array([need for *line, _ in lines for need in line], np.int64)
    counts = np.array([line[-1] for line in lines], np.int64)
    answers = []
    both: tuple[Any, ...] = (ask_loops.helped, ASK_SOURCE.helped)
    for helped in both:
        found = np.zeros(len(lines), np.int64)
        count = helped(fleet.rows, fleet.free, fleet.kind, wants, counts, WIDTH, KINDS, found)
        answers.append(found[:count].tolist())
    assert answers[0] == answers[1]


writes = st.lists(st.dictionaries(st.integers(0, 2 * BLOCK), st.integers(REFUSED, 5), max_size=9))


@given(writes, st.integers(1, 4))
def test_best_and_write_agree(turns: list[dict[int, int]], count: int) -> None:
    """After any calls of `write`, which stores scores, `best` returns the same nodes as a scan over
    all scores."""
    rows = 2 * BLOCK + 1
    boards: tuple[Any, ...] = (board_loops, BOARD_SOURCE)
    for write, best_of in ((each.write, each.best) for each in boards):
        points, most = np.full(rows, REFUSED, np.int32), np.full(3, REFUSED, np.int32)
        fitting, found, top = np.zeros(1, np.int64), np.zeros(count, np.int64), np.zeros(count, int)
        wanted = dict.fromkeys(range(rows), REFUSED)
        for turn in turns:
            wanted.update(turn)
            twice = [*turn, *turn]
            given = np.array([turn[row] for row in twice], np.int32)
            at = np.array(twice, np.int64)
            write(points, most, fitting, at, len(twice), given)
            assert points.tolist() == list(wanted.values())
            assert fitting[0] == sum(each != REFUSED for each in wanted.values())
            best = best_of(points, most, found, top)
            ranked = sorted((-each, row) for row, each in wanted.items() if each != REFUSED)
            assert found[:best].tolist() == [row for _, row in ranked[:count]]
