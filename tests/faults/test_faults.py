"""One short round of real faults for CI, and tests that its checks find lost events."""

import os
from pathlib import Path

import pytest

from tests.faults.disks import Disk
from tests.faults.evidence import history
from tests.faults.rounds import play
from tests.faults.servers import Cluster
from tests.faults.shaking import Deed
from tests.faults.verdict import Contents

STRIKES = 3


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_nothing_acknowledged_is_lost() -> None:
    """When servers, services and disks fail under load, the ledger loses no acknowledged event."""
    outcome = await play(1, span_s=8.0, rate=30.0, strikes_min=STRIKES)
    assert outcome.struck.total() >= STRIKES
    assert outcome.acknowledged > outcome.allocated > 0


def test_missing_and_duplicate_events_are_reported() -> None:
    """The checks after a round report missing events, wrong revisions and duplicate placements."""
    contents = Contents()
    contents.at = {"a/submitted": [1], "a/1/placed": [2, 5]}
    assert contents.lost([("a/submitted", 1), ("a/submitted", None), ("a/1/placed", 5)]) == []
    assert len(contents.lost([("a/submitted", 3), ("b/submitted", None)])) == 2
    assert contents.twice() == ["a/1/placed stands at [2, 5]"]


def test_the_history_of_a_round_is_ordered_by_time(tmp_path: Path) -> None:
    """The history of a round lists faults and log lines in order of time, without irrelevant
    lines."""
    cluster = Cluster(tmp_path)
    said = (
        "[7] 2026/11/20 19:01:01.500000 [INF] JetStream cluster new stream leader for 'A > B'",
        "[7] 2026/11/20 19:01:02.500000 [INF] 127.0.0.1:1 - rid:27 - Route connection created",
        '[7] 2026/11/20 19:01:03.500000 [WRN] Healthcheck failed: "not yet"',
        "[7] 2026/11/20 19:01:04.500000 [ERR] Critical write error: no space left on device",
    )
    for server, lines in zip(cluster.servers, (said, said[:1], ()), strict=True):
        server.log_path.parent.mkdir()
        server.log_path.write_text("".join(f"{line}\n" for line in lines))
    told = history(cluster, [Deed("19:01:01.000000", "n1: disk full")])
    leader, _, _, error = (line.partition(" [")[2] for line in said)
    assert told == [
        "19:01:01.000000 -- n1: disk full",
        *(f"19:01:01.500000 {server} [{leader}" for server in ("n1", "n2")),
        f"19:01:04.500000 n1 [{error}",
    ]


def test_a_small_disk_is_full_to_the_last_byte(tmp_path: Path) -> None:
    """After `fill` the disk accepts no byte; after `free` it accepts writes again.

    If nothing can be mounted, `fill` raises RuntimeError."""
    disk = Disk(tmp_path, size_mib=16)
    disk.mount()
    try:
        if not disk.can_fill:
            with pytest.raises(RuntimeError, match="no disk of its own"):
                disk.fill()
            return
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            write_through(disk.path / "more")
        disk.free()
        write_through(disk.path / "more")
    finally:
        disk.unmount()
    assert not os.path.ismount(disk.path)


def write_through(path: Path) -> None:
    """Write a few blocks to a file, and flush them to the disk."""
    with path.open("wb") as file:
        file.write(b"x" * 65_536)
        file.flush()
        os.fsync(file.fileno())
