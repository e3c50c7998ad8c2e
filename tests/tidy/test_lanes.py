"""Every test belongs to one lane (a group of tests), and a failed lane fails the whole run."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, files
from tools.lanes import (
    LANES,
    NIGHTLY,
    SELDOM,
    Ended,
    Lane,
    commands,
    counts,
    environment,
    ran,
    report,
)

TESTS = [path for path in files() if path.startswith("tests/") and "/test_" in path]


def taken(lane: Lane) -> set[str]:
    """Return the test files that a lane (a group of tests) passes to pytest."""
    words = [word for command in commands(lane) for word in command]
    ignored = [word.partition("=")[2] for word in words if word.startswith("--ignore=")]
    return {path for path in TESTS if _below(path, lane.paths) and not _below(path, ignored)}


def _below(path: str, folders: tuple[str, ...] | list[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in folders)


def test_every_test_is_in_one_lane() -> None:
    """Every test file is in exactly one lane (a group of tests), because CI runs only lanes."""
    times = Counter(path for lane in LANES for path in taken(lane))
    assert times == dict.fromkeys(TESTS, 1)


@pytest.mark.parametrize("lane", [*LANES, *NIGHTLY], ids=lambda lane: lane.name)
def test_the_paths_of_a_lane_are_there(lane: Lane) -> None:
    """All paths of a test lane exist, because a renamed folder would silently drop its tests."""
    assert [path for path in lane.paths if not Path(ROOT, path).exists()] == []


def test_what_is_marked_is_run_at_night_and_nothing_else() -> None:
    """`make nightly` runs exactly the tests marked `nightly`, and `make test` runs none of them."""
    for lane in LANES:
        *_, tests = commands(lane)  # a build of the control plane comes first, if needed
        assert lane.name == "static" or tests[tests.index("-m", 3) + 1] == "not nightly"
    *_, command = commands(SELDOM)
    words = list(command)
    assert (words[words.index("-m", 3) + 1], words[-1]) == ("nightly", "tests")


WELL = Ended("a", ok=True, took_s=1.0, output="....\n==== 3 passed, 1 skipped in 0.12s ====\n")


@pytest.mark.parametrize(
    ("output", "failed"),
    [
        ("== 2 failed, 3 passed, 1 error in 61.20s (0:01:01) ==\n", 3),
        ("error: found 4 things\n", 1),
        ("3 passed in 0.10s\nmake: *** [Makefile:9: check] Error 1\n", 1),
        ("", 1),
    ],
)
def test_a_lane_that_fails_fails_the_whole(
    output: str, failed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make test` fails if a lane (a group of tests) fails in, before or after its tests."""
    ill = Ended("b", ok=False, took_s=2.0, output=output)
    assert report([WELL, ill], 2.0) == 1
    *_, last = capsys.readouterr().out.splitlines()
    assert last == f"{3 + counts(ill)['passed']} passed, {failed} failed, 1 skipped"
    assert report([WELL], 1.0) == 0


def test_a_run_without_lanes_fails() -> None:
    """A test run fails if no lane (a group of tests) is selected."""
    assert report([], 0.0) == 1


def test_what_a_lane_starts_keeps_what_it_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The processes of a test lane cache bytecode even if PYTHONDONTWRITEBYTECODE is set."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environ = environment(str(tmp_path))
    asked = "import sys; print(sys.dont_write_bytecode)"
    said, status, cpu_s = ran([sys.executable, "-c", asked], environ)
    assert (said, status) == ("False\n", 0)
    assert cpu_s > 0
    said, status, _ = ran([sys.executable, "-c", "raise SystemExit('no')"], environ)
    assert (said, status) == ("no\n", 1)


def test_the_temporary_folders_of_a_lane_are_its_own(tmp_path: Path) -> None:
    """Each test lane has its own temporary folders, because concurrent pytest runs delete shared
    ones."""
    test = tmp_path / "test_where.py"
    test.write_text("def test_where(tmp_path):\n    print(tmp_path)\n")
    pytest_of_it = [sys.executable, "-m", "pytest", "-qs", "-p", "no:cacheprovider", str(test)]
    said, status, _ = ran(pytest_of_it, environment(str(tmp_path)))
    assert (status, f"{tmp_path}/pytest-of-" in said) == (0, True)
