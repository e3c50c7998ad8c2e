"""Loops over nodes and devices, compiled to machine code when they are first called.

A loop that asks several questions of a row at once would be as many passes of numpy, each with its
own arrays. Invariant: a compiled loop does whole numbers only and calls nothing but its like, so it
answers the same on every machine, and the same as the Python that it was written in.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """The function as machine code, kept beside its file or where `NUMBA_CACHE_DIR` says.

    Where nothing can be kept, every process compiles it anew.
    """
    try:
        return cast("F", njit(cache=True)(function))
    except RuntimeError:  # numba found no folder that it may write to
        return cast("F", njit(function))
