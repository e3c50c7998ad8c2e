"""Select the library that nvidia-ml-py uses in this process: the real driver's or a fake driver's.

Both libraries have the same SONAME, so the loader keeps the library that it loaded first. The real
library is therefore loaded first, and `using` passes the fake library's handle to pynvml.
Invariant: outside `using`, pynvml uses the real library if there is one."""

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
    """Make nvidia-ml-py use the fake driver with this state file, until the block ends."""
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
    """Load the fake NVML library, after the real one if there is one."""
    with suppress(OSError):
        ctypes.CDLL(NAME)
    library = ctypes.CDLL(str(built() / NAME))
    library.fake_use.argtypes = [ctypes.c_char_p]
    library.fake_use.restype = None
    return library
