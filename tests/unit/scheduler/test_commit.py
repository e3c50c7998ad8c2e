"""Tests of how the scheduler appends its events. It appends a few events one by one, and gangs or
many events as one batch.

With a fence, the ledger refuses an event if another writer has since written to the event's
subject."""

import asyncio
from collections.abc import Sequence

import pytest

from apportion.runtime.ledger.batching import FEW_DRAFTS
from apportion.runtime.ledger.port import Draft, FenceRefused
from apportion.scheduler.cycle import commit
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer

NODE = "apportion.v1.placement.n1"


class CountingLedger(MemoryLedger):
    """A ledger connection that counts its appends. A rival can write before one of them."""

    def __init__(self, *, rival_before: int = -1) -> None:
        super().__init__(MemoryServer(), role="scheduler")
        self.sizes: list[int] = []
        self._rival_before = rival_before

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append the events and record their number. A rival may write just before."""
        if len(self.sizes) == self._rival_before:
            rival = Draft(NODE, "rival", b"{}")
            self.server.append([rival], {}, role="scheduler", writer="rival")
        self.sizes.append(len(drafts))
        return await super().append(drafts)

    @property
    def stored(self) -> list[str]:
        """Return the ids of the events in the ledger, in order."""
        return self.server.ids


def fenced(count: int) -> list[Draft]:
    """Return `count` events about one node. As in a batch, only the first has a fence."""
    return [Draft(NODE, f"p{n}", b"{}", 0 if n == 0 else None) for n in range(count)]


@pytest.mark.parametrize(
    ("count", "together", "sizes"),
    [
        (1, False, [1]),
        (FEW_DRAFTS, False, [1] * FEW_DRAFTS),
        (FEW_DRAFTS + 1, False, [FEW_DRAFTS + 1]),
        (2, True, [2]),
    ],
)
def test_how_many_appends(count: int, *, together: bool, sizes: list[int]) -> None:
    """The scheduler appends a few independent events one by one. It appends many events, or those
    of a gang, as one batch."""
    ledger = CountingLedger()
    assert asyncio.run(commit(ledger, fenced(count), together=together)) == count
    assert ledger.sizes == sizes
    assert ledger.stored == [f"p{n}" for n in range(count)]


@pytest.mark.parametrize("before", [0, 1, 3])
def test_nobody_comes_between_unseen(before: int) -> None:
    """If a rival writes between two of the scheduler's events about a node, the ledger refuses the
    second event and all after it."""
    ledger = CountingLedger(rival_before=before)
    with pytest.raises(FenceRefused):
        asyncio.run(commit(ledger, fenced(5), together=False))
    assert ledger.stored == [*(f"p{n}" for n in range(before)), "rival"]


def test_what_belongs_together_is_stored_whole_or_not_at_all() -> None:
    """The ledger stores the events of a gang completely or not at all."""
    ledger = CountingLedger(rival_before=0)
    with pytest.raises(FenceRefused):
        asyncio.run(commit(ledger, fenced(5), together=True))
    assert ledger.stored == ["rival"]


def test_other_subjects_need_no_fence() -> None:
    """An event that is not about a node has no fence: the scheduler expects no certain revision."""
    ledger = CountingLedger()
    drafts = [Draft("apportion.v1.pending.a", f"a{n}", b"{}") for n in range(2)]
    assert asyncio.run(commit(ledger, [*drafts, *fenced(2)], together=False)) == 4
