"""Tests of the log of changed rows, which drops its older half when it is full."""

import pytest

from apportion.core.placement.index import row_log as module
from apportion.core.placement.index.row_log import RowLog


def test_row_log_forgets_its_older_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader whose position was dropped from the log gets None, and must then read every row."""
    monkeypatch.setattr(module, "LOG_ROWS_MAX", 8)
    log = RowLog()
    for row in range(8):
        log.append(row)
    assert log.end == 8
    whole = log.since(0)
    assert whole is not None
    assert whole.tolist() == list(range(8))
    log.append(8)
    assert log.end == 9
    assert log.since(3) is None
    kept, nothing = log.since(4), log.since(9)
    assert kept is not None
    assert nothing is not None
    assert (kept.tolist(), nothing.tolist()) == ([4, 5, 6, 7, 8], [])
