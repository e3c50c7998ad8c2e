"""Loops over nodes and devices as machine code, made when they are first called.

A loop that asks several questions of a row at once would be as many passes of numpy, each with its
own arrays. Invariant: a compiled loop does whole numbers only and calls nothing but its like, so it
answers the same on every machine, and the same as the Python that it was written in.

Of a module that was compiled ahead of time (`hatch_build`) the loops are machine code already, and
stay what they are.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])

Flat64 = NDArray[np.int64]
Flat32 = NDArray[np.int32]
FlatKinds = NDArray[np.uint32]
FlatCuts = NDArray[np.uint16]
FlatFlags = NDArray[np.uint8]
"""What loops take that are compiled either way: arrays of one dimension, which code that was
compiled ahead sees as their values one by one.
"""


def compiled(function: F) -> F:
    """The function as machine code, kept beside its file or where `NUMBA_CACHE_DIR` says.

    Where nothing can be kept, every process compiles it anew.
    """
    if not isinstance(function, FunctionType):
        return function
    try:
        return cast("F", njit(cache=True)(function))
    except RuntimeError:  # numba found no folder that it may write to
        return cast("F", njit(function))


def flags(answers: NDArray[np.bool_]) -> FlatFlags:
    """Answers row by row, as loops take them; a view."""
    return answers.reshape(-1).view(np.uint8)
