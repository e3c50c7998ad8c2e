"""Tests of collapsing a process's memory into huge pages. All figures come from the kernel."""

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
    """Return True if this kernel can collapse memory into huge pages on request."""
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
    """Return a field of the kernel's smaps_rollup text, in KiB."""
    [count] = re.findall(rf"^{field}: +(\d+) kB$", text, re.MULTILINE)
    return int(count)


def gathered(count: int) -> tuple[str, str]:
    """Start a process that uses about `count` kilobytes and collapses its memory into huge pages.

    Return the kernel's counts from before and after the collapse."""
    script = GATHER.replace("COUNT", str(count))
    made = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    before, after = made.stdout.split("then")
    return before, after


@pytest.fixture(scope="module")
def large() -> tuple[str, str]:
    """Provide the kernel's memory counts before and after a large process uses huge pages."""
    return gathered(300_000)


@pytest.mark.skipif(not possible(), reason="this kernel gathers no huge pages")
def test_what_is_in_use_is_gathered(large: tuple[str, str]) -> None:
    """After the collapse, most of a large process's memory is in huge pages."""
    _, after = large
    assert kib("AnonHugePages", after) > 150_000


def test_what_is_not_in_use_is_not_taken(large: tuple[str, str]) -> None:
    """Collapsing a process's memory into huge pages makes the process only slightly larger."""
    before, after = large
    assert kib("Rss", after) - kib("Rss", before) < 16 << 10


def test_a_small_process_is_left_as_it_is() -> None:
    """The memory of a small process is not collapsed into huge pages."""
    before, after = gathered(64_000)
    assert kib("AnonHugePages", after) == kib("AnonHugePages", before)


def test_a_system_that_wants_none_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the system disables huge pages, the process does not use them."""
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
