"""Tests of how the lab selects a time span of an archive file."""

from pathlib import Path

import pytest

from apportion.lab import record
from apportion.lab.ledgers import SpanInvalid
from apportion.runtime.ledger.archive import ArchiveWriter
from apportion_schemas import QueueObserved
from tests.support.virtual_ledger import BEGIN_S
from tests.unit.lab.test_setups import HOUR, two_teams


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Provide a six-hour archive whose last event is not at the current time."""
    ledger = two_teams()
    ledger.until(6 * HOUR)
    ledger.write(QueueObserved(queue="last"))
    path = tmp_path / "ledger.jsonl"
    with ArchiveWriter(path, stream="ledger", created="2027-01-15T08:00:00Z") as writer:
        for each in ledger.records:
            writer.add(each)
    return path


@pytest.mark.parametrize(
    ("begin", "end", "hours"),
    [
        ("-2h", "", (4, 6)), ("-2h", "-1h", (4, 5)), ("-5h", "now", (1, 6)),
        ("11:00", "13:00:00", (3, 5)), ("1", "-1h", (0, 5)),
    ],
)  # fmt: skip
def test_relative_times_count_from_the_last_event(
    archive: Path, begin: str, end: str, hours: tuple[int, int]
) -> None:
    """In an archive, ages such as `-2h` and times of day count back from the last event."""
    recorded = record(archive, begin, end)
    found = (recorded.begin_s - BEGIN_S, recorded.end_s - BEGIN_S)
    assert found == tuple(hour * HOUR for hour in hours)


def test_absolute_times_do_not_depend_on_the_archive(archive: Path) -> None:
    """A date in the future is refused, whatever the archive contains."""
    with pytest.raises(SpanInvalid, match="--to: '2990-01-01' is in the future"):
        record(archive, "-2h", "2990-01-01")
