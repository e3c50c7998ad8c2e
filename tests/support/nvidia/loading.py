"""Select the library that nvidia-ml-py uses in this process: the real driver's or a fake's.

The loader identifies a library by its SONAME, which both share; the first one loaded wins. So the
real one, if any, is loaded before any fake, and pynvml is given the fake's handle while a test
needs it.
Invariant: outside `using`, pynvml finds what it would find without fake drivers, or a fake without
a state, which reports that no driver is loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pynvml

from tests.support.nvidia.build import built

NAME = "libnvidia-ml.so.1"


@contextmanager
def using(state: Path) -> Iterator[None]:
    """Within this context, nvidia-ml-py in this process uses the fake driver with that state."""
    library = _library()
    before = pynvml.nvmlLib
    library.fake_use(str(state).encode())
    _give(library)
    try:
        yield
    finally:
        library.fake_use(None)
        _give(before)


def _give(library: Any) -> None:
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()


@cache
def _library() -> Any:
    """The fake's NVML; a real driver's is loaded first, so that it keeps the name."""
    with suppress(OSError):
        ctypes.CDLL(NAME)
    library = ctypes.CDLL(str(built() / NAME))
    library.fake_use.argtypes = [ctypes.c_char_p]
    library.fake_use.restype = None
    return library
