"""Tests of the minimum number of pods per task of a gang, and of when Volcano ignores these
minimums."""

import pytest

from tests.support.fleet import rack
from tests.support.ledger_of import Ledger
from tests.support.pods import cards, gang, member


@pytest.mark.parametrize(
    ("min_available", "placed"),
    [
        (3, False),  # one chief and two workers must start, and two pods fit
        (2, True),  # the minimums exceed the gang's own, so any two will do
    ],
)
def test_C6_minimums_above_the_gang_s_own_bind_nothing(min_available: int, placed: bool) -> None:
    """If the tasks' minimums add up to more than the gang's own minimum, they are ignored: two
    workers may start without a chief."""
    ledger = Ledger(rack("n1", 2), gang("team/job", min_available, min_tasks={"c": 1, "w": 2}))
    ledger.submit(*(member(f"w{i}", cards(), task="w") for i in range(2))).settle()
    assert bool(ledger.where("w0") and ledger.where("w1")) is placed


def test_C6_minimums_hold_where_the_gang_needs_them_all() -> None:
    """If the tasks' minimums add up to the gang's own minimum, they apply: three workers do not
    start without a chief."""
    minimums = gang("team/job", 3, min_tasks={"c": 1, "w": 2})
    ledger = Ledger(rack("n1", 4), minimums)
    ledger.submit(*(member(f"w{i}", cards(), task="w") for i in range(3))).settle()
    assert not ledger.where("w0")
    ledger.submit(member("c0", cards(), task="c")).settle()
    assert all(ledger.where(uid) for uid in ("c0", "w0", "w1"))
