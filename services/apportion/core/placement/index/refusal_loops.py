# cython: boundscheck=False, wraparound=False, initializedcheck=False, nonecheck=False
"""The loop of `refusals`: at which filter the devices of every node stop.

Arrays are flat, as in `ask_loops`. Compiled, no loop here looks whether an index is within its
array. Invariant: as of the loops of `row_loops`.
"""

from typing import Final

from apportion.core.placement.index import packed
from apportion.core.placement.index.columns import HOST, OPEN, UNHEALTHY
from apportion.core.placement.index.packed import Int64, Int64s, UInt8s, UInt16s, UInt32s

_UNHEALTHY: Final[Int64] = 0
_CORDONED: Final[Int64] = 1
_IN_USE: Final[Int64] = 2
_SLOTS: Final[Int64] = 3
_CORES: Final[Int64] = 4
_MEMORY: Final[Int64] = 5
_SLICES: Final[Int64] = 6
_TEMPLATE_CPU: Final[Int64] = 7
_FITS: Final[Int64] = 8
"""Positions in `filters.AMOUNTS`, and the one after it."""


def rank_nodes(
    free: Int64s,
    kind: UInt32s,
    closed: UInt8s,
    cut: UInt16s,
    width: Int64,
    need: Int64s,
    never: UInt8s,
    alone: UInt8s,
    fits: UInt8s,
    cuts: Int64,
    place: UInt8s,
    furthest: UInt8s,
    least: Int64,
    few: Int64,
    first: Int64,
    fit: Int64,
    last: UInt8s,
) -> None:
    """Fill `last`, by node, with the rank at which the last device stopped that the ask would need.

    By kind of device `never` is the rank of the rule that refuses it, or `fit`, and `alone` whether
    the ask wants it alone. `place` is by device the rank of the rule on ids or indexes that it
    breaks, or `fit`, empty where the pod names none. `furthest` is room for as many devices as the
    ask wants. Ranks are at `least` that of no such device; `few` is that of too few devices,
    `first` that of the first filter of amounts, `fit` above every refusal's.
    """
    wanted: Int64 = len(furthest)
    row: Int64
    at: Int64
    to: Int64
    for row in range(len(last)):
        for to in range(wanted):
            furthest[to] = least
        for at in range(row * width + HOST + 1, (row + 1) * width):
            of: Int64 = kind[at]
            rank: Int64 = never[of]
            if len(place):
                rank = min(rank, place[at])
            if rank == fit:
                lacks: Int64 = ~(free[at] - need[of])
                stop: Int64 = _stop(lacks, closed[at], alone[of], fits[of * cuts + cut[at]])
                rank = fit if stop == _FITS else first + stop
            to = wanted
            while to and furthest[to - 1] < rank:
                if to < wanted:
                    furthest[to] = furthest[to - 1]
                to -= 1
            if to < wanted:
                furthest[to] = rank
        last[row] = furthest[wanted - 1]
        if last[row] == least and furthest[0] > least:
            last[row] = few


def _stop(lacks: Int64, closed: Int64, alone: Int64, has_place: Int64) -> Int64:
    """The first of the filters of amounts that stops a device; `lacks` has guards where they do."""
    if closed != OPEN:
        return _UNHEALTHY if closed == UNHEALTHY else _CORDONED
    # Guards as numbers of C: as they stand, they would be taken for Python's.
    slots: Int64 = packed.SLOTS_GUARD
    compute: Int64 = packed.COMPUTE_GUARD
    template_cpu: Int64 = packed.TEMPLATE_CPU_GUARD
    if lacks & slots:
        return _IN_USE if alone else _SLOTS
    if lacks & compute:
        return _CORES
    if lacks & packed.MEMORY_GUARD:
        return _MEMORY
    if not has_place:
        return _SLICES
    return _TEMPLATE_CPU if lacks & template_cpu else _FITS
