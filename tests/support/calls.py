"""Count the calls of each function while the engine makes plain decisions.

    python -m tests.support.calls 100    the calls in 100 decisions, as JSON

A compiled function reports no calls. So Python runs the sources of all modules, also where compiled
ones exist: this process imports nothing of `apportion` before `interpret`."""

import gc
import json
import sys
from collections import Counter
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path
from types import FrameType
from typing import Any, Final

SERVICES: Final = Path(__file__).parents[2] / "services"
NODES: Final = 60


def interpret() -> None:
    """Import `apportion` from its sources from now on."""

    def finder(folder: str) -> FileFinder:
        if not Path(folder).is_relative_to(SERVICES):
            raise ImportError(folder)
        return FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, finder)
    sys.path_importer_cache.clear()


def calls(decisions: int) -> Counter[str]:
    """Return how often each function `module:Class.function` was called in so many decisions."""
    from tests.benchmarks.decide import Bench  # noqa: PLC0415 - imports the sources

    bench = Bench(NODES, "binpack")
    bench.fill(0.3)
    bench.learn()
    bench.measure(decisions)
    gc.collect()
    gc.disable()
    found: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found[f"{frame.f_globals['__name__']}:{frame.f_code.co_qualname}"] += 1

    sys.setprofile(profile)
    bench.measure(decisions)
    sys.setprofile(None)
    return found


if __name__ == "__main__":
    interpret()
    print(json.dumps(calls(int(sys.argv[1]))))  # noqa: T201 - its result
