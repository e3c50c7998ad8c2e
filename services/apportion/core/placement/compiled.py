"""Loops over nodes and devices, compiled to machine code when they are first called.

A loop that asks several questions of a row at once would be as many passes of numpy, each with its
own arrays. Invariant: a compiled loop does whole numbers only and calls nothing but its like, so it
answers the same on every machine, and the same as the Python that it was written in.
"""

import importlib.util
from collections.abc import Callable
from types import ModuleType
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


def interpreted(module: ModuleType) -> ModuleType:
    """The module made from its source once more: of one compiled ahead numba can read nothing."""
    folder, _, name = str(module.__file__).rpartition("/")
    source = f"{folder}/{name.partition('.')[0]}.py"
    spec = importlib.util.spec_from_file_location(module.__name__, source)
    if spec is None or spec.loader is None:
        raise ImportError(f"{module.__name__} has no source at {source}")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
