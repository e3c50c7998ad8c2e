"""Transparent huge pages for the heap, as the kernel counts them."""

import mmap
import re
import subprocess
import sys
from pathlib import Path

import pytest

from apportion.runtime.process import memory

GATHER = """
from pathlib import Path
from apportion.runtime.process.memory import gather
kept = [bytes(1000) for _ in range(COUNT)]
sparse = bytearray(64 << 20)  # of which nothing is touched
print(Path("/proc/self/smaps_rollup").read_text(), "then")
gather()
print(Path("/proc/self/smaps_rollup").read_text())
"""


def possible() -> bool:
    """Whether this kernel collapses pages on request."""
    enabled = memory._ENABLED
    if not enabled.exists() or "[never]" in enabled.read_text():
        return False
    with mmap.mmap(-1, 2 * memory.PAGE, mmap.MAP_PRIVATE) as area:
        area.write(b"x" * len(area))
        try:
            area.madvise(memory.MADV_COLLAPSE)
        except OSError:
            return False
    return True


def kib(field: str, text: str) -> int:
    """A count of smaps_rollup in KiB."""
    [count] = re.findall(rf"^{field}: +(\d+) kB$", text, re.MULTILINE)
    return int(count)


def gathered(count: int) -> tuple[str, str]:
    """The kernel's counts of a process that holds this many kilobytes, before and after."""
    script = GATHER.replace("COUNT", str(count))
    made = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    before, after = made.stdout.split("then")
    return before, after


@pytest.fixture(scope="module")
def large() -> tuple[str, str]:
    """The kernel's counts of a large process."""
    return gathered(300_000)


@pytest.mark.skipif(not possible(), reason="this kernel gathers no huge pages")
def test_what_is_in_use_is_gathered(large: tuple[str, str]) -> None:
    """Most of a large process's memory is collapsed into huge pages."""
    _, after = large
    assert kib("AnonHugePages", after) > 150_000


def test_what_is_not_in_use_is_not_taken(large: tuple[str, str]) -> None:
    """Collapsing adds little memory beyond what was in use."""
    before, after = large
    assert kib("Rss", after) - kib("Rss", before) < 16 << 10


def test_a_small_process_is_left_as_it_is() -> None:
    """A small process is not changed."""
    before, after = gathered(64_000)
    assert kib("AnonHugePages", after) == kib("AnonHugePages", before)


def test_a_system_that_wants_none_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If huge pages are disabled, memory is not touched."""
    enabled = tmp_path / "enabled"
    enabled.write_text("always madvise [never]\n")
    monkeypatch.setattr(memory, "WORTH", 0)
    monkeypatch.setattr(memory, "_ENABLED", enabled)
    monkeypatch.setattr(memory, "_AREAS", tmp_path / "none")
    memory.gather()
    monkeypatch.setattr(memory, "_ENABLED", tmp_path / "none")
    memory.gather()
    enabled.write_text("always [madvise] never\n")
    monkeypatch.setattr(memory, "_ENABLED", enabled)
    with pytest.raises(FileNotFoundError):
        memory.gather()
