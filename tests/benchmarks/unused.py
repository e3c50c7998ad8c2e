"""Measure what the features that no pod uses cost, as a share of a decision's instructions.

    python -m tests.benchmarks.unused --nodes 100 --decisions 300

The fleet is that of the benchmark `decide`, where no pod uses a feature of `FEATURES`. Each feature
may take at most 1 % of the instructions of a decision: to fold its events, observe them, and
decide. valgrind counts the instructions, so the figures do not depend on the load of the machine.
Run `make compile` first. The run takes a few minutes.

The share of a feature is that of all calls into its modules, with everything that they call. A
compiled function has a symbol, by which callgrind reports its calls. An interpreted function gets
one: a compiled function that calls it takes its place. If a feature calls itself again by way of
another module, both calls count."""

import argparse
import gc
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

from apportion.core.ledger.fold import HANDLERS
from apportion.runtime.process.compilation import PACKAGE, SUFFIX, compiled, outdated
from tests.benchmarks.decide import Bench
from tests.benchmarks.telling import parser_of, tell

LIMIT: Final = 1.0  # percent
WARM_DECISIONS: Final = 200
CORE: Final = "apportion.core."
FEATURES: Final[dict[str, tuple[str, ...]]] = {
    "volumes": ("placement.volumes",),
    "affinity and spread": ("placement.affinity",),
    "queues": ("placement.limits",),
    "quotas": (
        "placement.limits.quotas",
        "placement.limits.limits:Namespaces",
        "placement.queueing.keys:limits_key",
    ),
    "past use": ("placement.limits.past", "ledger.past_use", "ledger.handlers.past_use"),
    "preemption": (
        "placement.preemption",
        "ledger.handlers.departures:leave",
        "ledger.handlers.departures:give_up",
        "ledger.handlers.departures:awaited",
    ),
    "idle shares": ("ledger.handlers.idle",),
    "host ports": ("placement.feasibility.nodes:ports",),
    "gangs": (
        "placement.gangs",
        "placement.gang_turn",
        "placement.gang_models",
        "ledger.handlers.gangs",
    ),
    "topology": ("placement.gang_levels", "placement.index.labels"),
    "resizing": ("placement.resizing", "ledger.handlers.resizing"),
    "cordons": ("devices.cordons",),
    "DRA": ("dra",),
    "forecasts": ("forecast",),
}
"""The modules of each feature in `apportion.core`, or single functions and classes of a module. The
longest name that matches decides."""
DECISION: Final = frozenset(
    ("ledger.fold:apply", "placement.engine:Engine.observe", "placement.engine:Engine.decide")
)
_LONGEST_FIRST: Final = sorted(
    ((place, name) for name, places in FEATURES.items() for place in places),
    key=lambda each: -len(each[0]),
)
_SYMBOLS: Final = """
cdef object collected(call):
    call()

def collect(call):
    collected(call)
"""
_SYMBOL: Final = """
cdef bint inside_{0} = False

cdef object outermost_{0}(call, args, kwargs):
    return call(*args, **kwargs)

def symbol_{0}(call):
    def entered(*args, **kwargs):
        global inside_{0}
        if inside_{0}:
            return call(*args, **kwargs)
        inside_{0} = True
        try:
            return outermost_{0}(call, args, kwargs)
        finally:
            inside_{0} = False
    return entered
"""


def feature_of(function: str) -> str:
    """Return the feature of a function of `apportion.core`, `module:Class.function`, or ""."""
    return next((x for place, x in _LONGEST_FIRST if re.match(rf"{place}(?!\w)", function)), "")


def give_symbols(symbols: ModuleType) -> None:
    """Replace the interpreted functions of all features by compiled functions that call them."""
    ours = [each for name, each in sys.modules.items() if name.startswith("apportion.")]
    replaced: dict[int, Any] = {}

    def symbol(name: str, value: Any) -> Any:
        feature = feature_of(name)
        if isinstance(value, property):
            return property(symbol(name, value.fget), value.fset)
        if not feature or not isinstance(value, FunctionType):
            return value
        return getattr(symbols, f"symbol_{[*FEATURES].index(feature)}")(value)

    for module in ours:
        place = module.__name__.removeprefix(CORE)
        for name, value in vars(module).items():
            if getattr(value, "__module__", "") != module.__name__:
                continue
            replaced[id(value)] = symbol(f"{place}:{name}", value)
            for attribute, method in [*vars(value).items()] if isinstance(value, type) else ():
                if (other := symbol(f"{place}:{name}.{attribute}", method)) is not method:
                    setattr(value, attribute, other)
    for module in ours:
        for name, value in vars(module).items():
            vars(module)[name] = replaced.get(id(value), value)
    for event, handler in HANDLERS.items():
        HANDLERS[event] = replaced.get(id(handler), handler)


def decide(given: argparse.Namespace) -> None:
    """Make the decisions whose instructions callgrind counts."""
    sys.path.insert(0, given.symbols)
    symbols = importlib.import_module("symbols")
    give_symbols(symbols)
    bench = Bench(given.nodes, "binpack")
    bench.fill(0.7)
    bench.learn()
    bench.measure(WARM_DECISIONS)
    gc.collect()
    gc.disable()
    symbols.collect(lambda: bench.measure(given.decisions))


class Symbols:
    """Names the functions behind the symbols of compiled modules."""

    def __init__(self) -> None:
        parts = [each.relative_to(PACKAGE.parent).parts for each in compiled()]
        names = [(*folders, file.removesuffix(SUFFIX)) for *folders, file in parts]
        self._modules = {"".join(f"{len(x)}{x}_" for x in each): ".".join(each) for each in names}
        self._pattern = re.compile(f"_({'|'.join(self._modules)})(.+)")
        self.function_of = cache(self._function_of)

    def _function_of(self, symbol: str) -> str:
        # `module:Class.function` in `apportion.core`, or "". The name of a class has its length in
        # front, and that of a function may have a number.
        found = self._pattern.search(symbol)
        if found is None:
            return ""
        class_, rest = "", found[2]
        length = int((re.match(r"\d+", rest) or "0")[0])
        rest = rest.lstrip("0123456789")
        if rest[length : length + 1] == "_":
            class_, rest = f"{rest[:length]}.", rest[length + 1 :].lstrip("0123456789")
        return f"{self._modules[found[1]]}:{class_}{rest}".removeprefix(CORE)


def calls_in(lines: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Yield caller, callee and instructions of each call in callgrind's output."""
    names: dict[str, str] = {}
    caller = callee = ""
    called = False
    for line in lines:
        kind, _, value = line.rstrip().partition("=")
        if kind in {"fn", "cfn"}:
            number, _, name = value.partition(" ")
            name = names.setdefault(number, name)
            caller, callee = (name, callee) if kind == "fn" else (caller, name)
        elif called:  # the line after `calls=`
            yield caller, callee, int(line.split()[1])
        called = kind == "calls"


def shares(lines: Iterable[str], decisions: int) -> dict[str, float]:
    """Return the instructions of a decision, and the percentage that each feature takes."""
    function_of = Symbols().function_of
    total, found = 0, Counter(dict.fromkeys(FEATURES, 0))
    for caller, callee, instructions in calls_in(lines):
        function, before = function_of(callee), function_of(caller)
        if function in DECISION and before != function:
            total += instructions
        feature = feature_of(function)
        if callee == "__Pyx_PyObject_Call" and (number := re.search(r"outermost_(\d+)$", caller)):
            feature = [*FEATURES][int(number[1])]
        if feature and feature != feature_of(before):
            found[feature] += instructions
    percents = {name: round(100 * each / total, 2) for name, each in found.items()}
    return {"instructions per decision": total // decisions} | percents


def run(given: argparse.Namespace) -> dict[str, float]:
    """Make the decisions under callgrind, and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "symbols.pyx"), Path(folder, "callgrind")
        source.write_text(_SYMBOLS + "".join(map(_SYMBOL.format, range(len(FEATURES)))))
        environment = os.environ | {"CFLAGS": "-O1 -w -fno-inline", "PYTHONHASHSEED": "0"}
        build = (sys.executable, "-m", "Cython.Build.Cythonize", "--inplace", "-3", source)
        subprocess.run(build, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        count = (
            "valgrind", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={out}",
            "--toggle-collect=__pyx_f_7symbols_collected", "--quiet",
        )  # fmt: skip
        size = (f"--nodes={given.nodes}", f"--decisions={given.decisions}", f"--symbols={folder}")
        decide = (sys.executable, "-m", "tests.benchmarks.unused", *size)
        subprocess.run((*count, *decide), env=environment, check=True)
        with out.open() as lines:
            return shares(lines, given.decisions)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--decisions", type=int, default=300)
    parser.add_argument("--symbols", help=argparse.SUPPRESS)  # of the process that decides
    given = parser.parse_args()
    if given.symbols:
        decide(given)
        return
    if shutil.which("valgrind") is None:
        parser.error("valgrind is missing: apt install valgrind")
    if not compiled() or outdated():
        parser.error("the engine is not compiled, or was changed since: make compile")
    tell(parser, run, dict.fromkeys(FEATURES, LIMIT))


if __name__ == "__main__":
    main()
