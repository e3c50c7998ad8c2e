"""Measure how many small faults the tests notice: `make mutants N=40 SEED=1`.

Each mutant changes one place of the services, chosen at random by the seed. It runs in a copy of
the tree without compiled modules, so that Python runs the changed source.

First, all fast tests run once on unchanged code and record the functions that each test calls. Each
mutant is tried with the tests that call its function, quickest first. Then come the tests that name
its module, and one seed of the simulation. Modules that use Kubernetes are also tried against a
real API server, if there is one.

The first test that fails has caught the mutant, unless it also fails without the change.
Annotations, texts, logs, metrics and the command line are not mutated."""

import argparse
import ast
import cProfile
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import CodeType
from typing import NamedTuple

import msgspec
import pytest
from click import echo

from tests.support.control_plane import find_binaries
from tests.support.interpreted import copy_tree, environment
from tests.tidy.tree import ROOT

SCOPE = ROOT / "services" / "apportion"
LEFT_OUT = {"cli"}
QUIET = re.compile(r"_log\.|metrics|\.inc\(|\.labels\(|\.observe\(|echo\(")
FAST = ("tests/unit", "tests/properties", "tests/golden", "tests/contracts/ledger")
KUBERNETES = ("tests/integration/kube", "tests/contracts/kube", "tests/e2e/test_admission.py")
OF_KUBERNETES = re.compile(r"/kube(rnetes)?(\.py|/)")
SIMULATION = "tests/simulation/test_simulation.py::test_nothing_is_ever_wrong[0]"
RECORD = "APPORTION_MUTANTS_RECORD"  # names the file in which the tests' calls are recorded
LIMIT_S = 1500
CALLERS_MAX = 400  # the slowest of many callers add minutes and catch nothing more
USAGE_ERROR, NO_TESTS = 4, 5  # exit statuses of pytest
WANTED = 0.9
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}


class Mutant(NamedTuple):
    """A mutant of a file: the place that is changed, and the code that replaces it."""

    path: str
    line: int
    before: str
    after: str
    start: int
    end: int

    def told(self) -> str:
        """Return the mutant's position and its change, on one line."""
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.path}:{self.line}: {before}  ->  {after}"

    def source(self) -> str:
        """Return the text of the whole file with the mutant's change."""
        text = (ROOT / self.path).read_bytes()
        return (text[: self.start] + self.after.encode() + text[self.end :]).decode()


def changes(node: ast.AST) -> Iterator[str]:
    """Yield code that may replace a syntax node. A statement may also be removed."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=others) if type(op) in SWAPS:
            yield ast.unparse(ast.Compare(left, [SWAPS[type(op)]()], others))  # type: ignore[list-item]
        case ast.BoolOp(op=op, values=values):
            yield ast.unparse(ast.BoolOp(SWAPS[type(op)](), values))  # type: ignore[arg-type]
            yield ast.unparse(values[0])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS:
            yield f"({ast.unparse(ast.BinOp(left, SWAPS[type(op)](), right))})"  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.IfExp(body=body, orelse=orelse):
            yield from (f"({ast.unparse(each)})" for each in (body, orelse))
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() as value):
            yield str(value + 1)
        case ast.Raise() | ast.Continue() | ast.Break() | ast.AugAssign():
            yield "pass"
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "pass"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "return None"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield every possible mutant of a file, in source order."""
    text = path.read_bytes()
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    for node in _running(ast.parse(text)):
        start = lines[node.lineno - 1] + node.col_offset
        end = lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        before = text[start:end].decode()
        for after in changes(node):
            relative = path.relative_to(ROOT).as_posix()
            yield Mutant(relative, node.lineno, before, after, start, end)


def _running(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield the executable code of functions, without logs and metrics."""
    for child in ast.iter_child_nodes(tree):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from (each for node in child.body for each in _inside(node))
            case ast.ClassDef():
                yield from _running(child)


def _inside(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    if isinstance(node, ast.JoinedStr):
        return  # nodes inside an f-string have no usable position
    if isinstance(node, _PLAIN) and QUIET.search(ast.unparse(node)):
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    for name, value in ast.iter_fields(node):
        if name not in {"annotation", "returns"}:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _inside(child)


_PLAIN = ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Raise


def chosen(count: int, seed: int) -> list[Mutant]:
    """Choose `count` mutants on different lines; every line in scope is equally likely."""
    files = sorted(
        path for path in SCOPE.rglob("*.py") if path.relative_to(SCOPE).parts[0] not in LEFT_OUT
    )
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for path in files:
        for mutant in mutants_of(path):
            by_line.setdefault((mutant.path, mutant.line), []).append(mutant)
    chance = random.Random(seed)
    return [chance.choice(by_line[line]) for line in chance.sample(sorted(by_line), count)]


def nearest(path: str) -> list[str]:
    """Return the tests named after this file or its folder, and the tests that import it or its
    package."""
    module = path.removeprefix("services/").removesuffix(".py").removesuffix("/__init__")
    package, _, name = module.replace("/", ".").rpartition(".")
    called = {f"test_{name}.py", f"test_{package.rpartition('.')[2]}.py"}
    whole = rf"\b{re.escape(package)}\.{name}\b|from {re.escape(package)} import [^\n]*\b{name}\b"
    texts = {
        test.relative_to(ROOT).as_posix(): test.read_text()
        for test in (ROOT / "tests").rglob("test_*.py")
    }
    for named, folders in ((whole, (*FAST, "tests/integration")), (re.escape(package), FAST)):
        found = [
            path
            for path, text in texts.items()
            if path.startswith(folders) and not path.startswith(NEEDY)
            if Path(path).name in called or re.search(named, text)
        ]
        if found:
            return sorted(
                found, key=lambda path: (SLOW in path, Path(path).name not in called, path)
            )
    return []


class Called(msgspec.Struct):
    """The record of one test: its duration, and the line of each function that it called."""

    seconds: float
    functions: dict[str, list[int]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Record what each test and its fixtures call, while pytest has this module as a plugin."""
    profile, began_s = cProfile.Profile(builtins=False), time.monotonic()
    profile.enable()
    try:
        return (yield)
    finally:
        profile.disable()
        called = Called(time.monotonic() - began_s, {})
        scope = f"{item.config.rootpath}/{SCOPE.relative_to(ROOT)}/"
        for entry in profile.getstats():
            code = entry.code
            if isinstance(code, CodeType) and code.co_filename.startswith(scope):
                relative = code.co_filename.removeprefix(f"{item.config.rootpath}/")
                called.functions.setdefault(relative, []).append(code.co_firstlineno)
        with Path(os.environ[RECORD]).open("ab") as record:
            record.write(msgspec.json.encode((item.nodeid, called)) + b"\n")


def recorded(copies: Sequence[Path]) -> dict[str, Called]:
    """Run the fast tests once, split over the copies, and return what each test calls."""
    files = sorted(
        test.relative_to(ROOT).as_posix()
        for folder in FAST
        for test in (ROOT / folder).rglob("test_*.py")
    )
    running = []
    for number, copy in enumerate(copies):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tools.mutants", "--no-header"]
        command += ["-p", "no:cacheprovider", "--timeout", "300", *files[number :: len(copies)]]
        given = environment(copy) | {RECORD: str(copy / "calls")}
        running.append(subprocess.Popen(command, cwd=copy, env=given, stdout=subprocess.DEVNULL))
    for process in running:
        process.wait()
    lines = [line for copy in copies for line in (copy / "calls").read_bytes().splitlines()]
    return dict(msgspec.json.decode(line, type=tuple[str, Called]) for line in lines)


def callers(mutant: Mutant, tests: Mapping[str, Called]) -> list[str]:
    """Return the tests that call the function of the mutant, quickest first."""
    inside: range | None = None
    for node in ast.walk(ast.parse((ROOT / mutant.path).read_bytes())):  # outer functions first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and inside is None:
            first = min((each.lineno for each in node.decorator_list), default=node.lineno)
            lines = range(first, (node.end_lineno or first) + 1)
            inside = lines if mutant.line in lines else None
    called = [
        (test.seconds, name)
        for name, test in tests.items()
        if any(line in (inside or ()) for line in test.functions.get(mutant.path, ()))
    ]
    return [name for _, name in sorted(called)]


SLOW = "/integration/"
NEEDY = (
    "tests/integration/kube",
    "tests/integration/test_compose.py",
    "tests/integration/test_fresh_machine.py",
    "tests/integration/test_run_container.py",
)


def trial(mutant: Mutant, copy: Path, tests: Mapping[str, Called]) -> str:
    """Return the test that catches the mutant in this copy, or "" if no test does."""
    run = ["-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    steps = [callers(mutant, tests)[:CALLERS_MAX], nearest(mutant.path), [SIMULATION]]
    if OF_KUBERNETES.search(mutant.path) and find_binaries()[0]:
        steps.append([*KUBERNETES])
    for step in filter(None, steps):
        (copy / "chosen").write_text("\n".join(step))
        command = [*run, "@chosen"]
        while caught := _caught_with(mutant, command, copy):
            test = caught.partition("[")[0]
            if "::" not in test or not _caught([*run, test], copy):
                return caught
            echo(f"        {test} fails without any change, so it catches nothing")
            command += ["--deselect", test]
    return ""


def _caught_with(mutant: Mutant, step: Sequence[str], copy: Path) -> str:
    place = copy / mutant.path
    place.write_text(mutant.source())
    try:
        return _caught(step, copy)
    finally:
        shutil.copy(ROOT / mutant.path, place)


def _caught(step: Sequence[str], copy: Path) -> str:
    try:
        done = subprocess.run(
            [sys.executable, *step],
            cwd=copy, env=environment(copy),
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "never ended"
    if done.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    broken = found or "while loading conftest" in done.stderr  # pytest reports a usage error
    if done.returncode in {USAGE_ERROR, NO_TESTS} and not broken:
        raise RuntimeError(done.stdout + done.stderr)
    return found[1] if found else "nothing could be imported any more"


def main() -> int:
    """Run the trials. Return exit status 0 if at least nine of ten mutants are caught."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("-n", type=int, default=40, help="how many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="copies at work")
    parser.add_argument("--list", action="store_true", help="say which, and try none")
    given = parser.parse_args()
    every = chosen(given.n, given.seed)
    if given.list:
        echo("\n".join(mutant.told() for mutant in every))
        return 0
    survivors = [mutant for mutant, caught in tried(every, given.jobs) if not caught]
    for mutant in survivors:
        echo(f"survived: {mutant.told()}")
    caught = len(every) - len(survivors)
    echo(f"{caught} of {len(every)} mutants caught (seed {given.seed})")
    return 0 if caught >= WANTED * len(every) else 1


def tried(every: Sequence[Mutant], jobs: int) -> list[tuple[Mutant, str]]:
    """Try every mutant and print a line as each trial ends. Return each mutant with the test that
    caught it."""
    with tempfile.TemporaryDirectory(prefix="apportion-mutants-") as folder:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copy_tree(Path(folder) / str(number))
            free.put(Path(folder) / str(number))
        began_s = time.monotonic()
        tests = recorded([Path(folder) / str(number) for number in range(jobs)])
        echo(f"{time.monotonic() - began_s:5.0f} s  {len(tests)} tests recorded")

        def work(mutant: Mutant) -> tuple[Mutant, str]:
            copy, began_s = free.get(), time.monotonic()
            try:
                caught = trial(mutant, copy, tests)
            finally:
                free.put(copy)
            echo(f"{time.monotonic() - began_s:5.0f} s  {caught or 'SURVIVED'}  {mutant.told()}")
            return mutant, caught

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(work, every))


if __name__ == "__main__":
    sys.exit(main())
