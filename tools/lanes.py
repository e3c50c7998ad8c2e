"""Run every check of this repository in parallel lanes: `make test`.

Most lanes wait for servers half of the time, so the program runs two more lanes than there are
processors. Lanes that only compute run at a lower priority than those whose services must answer in
time. Tests marked `nightly`, which take long and rarely fail, have a lane of their own. Invariants:
every test is in exactly one lane. A lane that fails, even without output, fails the run. The last
line counts the tests of all lanes.

    python -m tools.lanes                    all lanes except those of --nightly
    python -m tools.lanes nats simulation    these
    python -m tools.lanes --nightly          the tests that take long and rarely fail"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

from click import echo

from tests.support.control_plane import BUILD, REQUIRED

PYTEST = [sys.executable, "-m", "pytest", "--durations=10"]
SLOW_DOWN = 10
"""The niceness of lanes that only compute; see nice(1)."""
COUNTED = re.compile(r"\b(\d+) (passed|failed|skipped|error)")
CLOSING = re.compile(r"^(?:=+ )?\d+ \w+.* in [\d.]+s\b", re.MULTILINE)


class Lane(NamedTuple):
    """A group of checks that runs in parallel with other groups.

    It has the tests under its paths, except those under a path of another lane."""

    name: str
    paths: tuple[str, ...]
    computes: bool = False


LANES = (
    Lane("cluster", ("tests/e2e",)),
    Lane("nats", ("tests/contracts", "tests/faults", "tests/gpu", "tests/integration")),
    Lane("cli", ("tests/integration/cli",)),
    Lane("console", ("tests/integration/console",)),
    Lane("security", ("tests/security",)),
    Lane("kubernetes", ("tests/contracts/kube", "tests/integration/kube")),
    Lane("simulation", ("tests/simulation",), computes=True),
    Lane("nodes", ("tests/integration/kubelet", "tests/integration/ledger")),
    Lane(
        "containers",
        (
            "tests/e2e/test_helm.py",
            "tests/integration/test_compose.py",
            "tests/integration/test_fresh_machine.py",
            "tests/integration/test_run_container.py",
        ),
    ),
    Lane("core", ("tests/golden", "tests/properties", "tests/unit"), computes=True),
    Lane("static", ("tests/tidy",), computes=True),
)
"""The lanes that take longest start first."""
INTERPRETED = Lane(
    "interpreted",
    (
        "tests/golden/test_ledgers.py",
        "tests/properties/test_core_engine.py",
        "tests/properties/test_core_fold.py",
        "tests/properties/test_core_loops.py",
        "tests/unit/core",
    ),
    computes=True,
)
"""Some of the tests again, with uncompiled sources."""
SELDOM = Lane("seldom", ("tests",))
"""The tests with the mark `nightly`."""
NIGHTLY = (SELDOM, INTERPRETED)


class Ended(NamedTuple):
    """The result of a lane: success, duration, output and CPU time."""

    name: str
    ok: bool
    took_s: float
    output: str
    cpu_s: float = 0.0
    """CPU time of its processes, in seconds. Detached processes (such as podman's) do not count."""


def environment(temporary: str) -> dict[str, str]:
    """Return the environment of a lane, with cached bytecode and its own temporary folders.

    Tests start hundreds of processes. Without cached bytecode, each process compiles all its
    imports again, which is more than half of a service's start time. Two pytest runs that share a
    root for temporary folders both delete its old folders at their end, and one of the runs may
    fail on that."""
    kept = {name: each for name, each in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTEST_DEBUG_TEMPROOT": temporary}


def commands(lane: Lane) -> Iterator[Sequence[str]]:
    """Yield the commands of a lane. A command runs only if the previous command succeeded."""
    if lane.name == "static":
        yield ["make", "check"]
        return
    if (
        lane.name in {"cluster", "kubernetes", "containers", "security", "seldom"}
        and os.environ.get(REQUIRED) == "1"
    ):
        # Each returns at once if the build exists, and waits for a build in progress.
        yield [str(BUILD)]
        yield [str(BUILD), "--helm"]
    if lane is INTERPRETED:
        yield [sys.executable, "-m", "tests.support.interpreted", *PYTEST[3:], *lane.paths]
        return
    if lane is SELDOM:
        yield [*PYTEST, "-m", "nightly", "-o", f"cache_dir=.pytest_cache/{lane.name}", *lane.paths]
        return
    others = [path for other in LANES if other is not lane for path in other.paths]
    beneath = [path for path in others if any(path.startswith(f"{own}/") for own in lane.paths)]
    cache = f"cache_dir=.pytest_cache/{lane.name}"
    ignored = [f"--ignore={path}" for path in beneath]
    yield [*PYTEST, "-m", "not nightly", "-o", cache, *ignored, *lane.paths]


def run(lane: Lane) -> Ended:
    """Run all commands of a lane, or stop at the first command that fails. Return the result."""
    began_s = time.monotonic()
    output, ok, cpu_s = "", True, 0.0
    first = ["nice", f"-n{SLOW_DOWN}"] if lane.computes else []
    with tempfile.TemporaryDirectory(prefix="lane-", ignore_cleanup_errors=True) as temporary:
        for command in commands(lane):
            said, status, spent_s = ran([*first, *command], environment(temporary))
            output, ok, cpu_s = output + said, status == 0, cpu_s + spent_s
            if not ok:
                break
    return Ended(lane.name, ok, time.monotonic() - began_s, output, cpu_s)


def ran(command: Sequence[str], environ: dict[str, str]) -> tuple[str, int, float]:
    """Run a command. Return its output, its exit status, and the CPU seconds that it used."""
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        said = process.stdout.read().decode(errors="replace")
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return said, process.returncode, used.ru_utime + used.ru_stime


def counts(ended: Ended) -> Counter[str]:
    """Count a lane's tests by outcome.

    A lane that fails without a failed test counts as one failure."""
    lines = list(CLOSING.finditer(ended.output))
    closing = lines[-1].string[lines[-1].start() :].partition("\n")[0] if lines else ""
    found = Counter({word: int(number) for number, word in COUNTED.findall(closing)})
    found["failed"] += found.pop("error", 0)
    if not ended.ok and not found["failed"]:
        found["failed"] = 1
    return found


def main() -> int:
    """Run the requested lanes. Return exit status 0 if every lane succeeded."""
    every = {lane.name: lane for lane in (*LANES, *NIGHTLY)}
    parser = argparse.ArgumentParser(prog="python -m tools.lanes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "lanes", nargs="*", metavar="LANE", help=f"lanes to run: {', '.join(every)}"
    )
    parser.add_argument(
        "--nightly", action="store_true", help="run the slow tests that rarely fail"
    )
    beside = (os.cpu_count() or 1) + 2
    parser.add_argument("--beside", type=int, default=beside, help="lanes to run at once")
    given = parser.parse_args()
    if unknown := set(given.lanes) - set(every):
        parser.error(f"no lane {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    began_s = time.monotonic()
    ended: list[Ended] = []
    with ThreadPoolExecutor(given.beside) as pool:
        chosen = NIGHTLY if given.nightly else LANES
        lanes = [every[name] for name in given.lanes] or chosen
        for future in as_completed([pool.submit(run, lane) for lane in lanes]):
            ended.append(future.result())
            echo(f"\n=== lane {ended[-1].name} ({ended[-1].took_s:.0f} s)\n{ended[-1].output}")
    return report(ended, time.monotonic() - began_s)


def report(ended: Sequence[Ended], took_s: float) -> int:
    """Print each lane's time and the sum of all tests. Return the exit status."""
    total: Counter[str] = Counter()
    echo("=== lanes")
    for each in ended:
        total += counts(each)
        echo(
            f"{each.name:<12} {'ok' if each.ok else 'FAILED':<7} {each.took_s:6.0f} s,"
            f" of a processor {each.cpu_s:6.0f} s"
        )
    cpu_s = sum(each.cpu_s for each in ended)
    echo(f"{'all':<12} {'':<7} {took_s:6.0f} s, of a processor {cpu_s:6.0f} s\n")
    echo(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 0 if ended and all(each.ok for each in ended) else 1


if __name__ == "__main__":
    sys.exit(main())
