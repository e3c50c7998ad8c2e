"""Tests of fences on a subject if the ledger has dropped the subject's newest record. A fence is
the revision that a writer expects to be the subject's newest."""

import asyncio

import pytest

from apportion.runtime.ledger.fences import Fences
from apportion.runtime.ledger.port import FenceRefused
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer
from tests.support.nats import draft

A, B = "apportion.v1.workload.a", "apportion.v1.workload.b"


class Counting(MemoryLedger):
    """A ledger that counts how often it is asked for its first revision."""

    asked = 0

    async def first_revision(self) -> int:
        self.asked += 1
        await asyncio.sleep(0)
        return await super().first_revision()


async def test_a_record_that_is_missing_alone_says_nothing_of_others() -> None:
    """If one record is missing from the ledger, only that record's subject counts as empty. The
    fences of other subjects stay as they were."""
    server = MemoryServer()
    ledger = MemoryLedger(server, role="watcher")
    older, newer = await ledger.append([draft("workload.a"), draft("workload.b")])
    server.lose_subject(B)
    fences = Fences()
    with pytest.raises(FenceRefused) as refused:
        await ledger.append([draft("workload.b", expect=fences.expected(newer, folded=newer))])
    assert refused.value.found == 0
    await fences.refused(refused.value, ledger)
    assert fences.expected(newer, folded=newer) == 0
    assert fences.expected(older, folded=newer) == older
    for subject in ("workload.b", "workload.a"):
        expect = fences.expected(older if subject == "workload.a" else newer, folded=newer)
        await ledger.append([draft(subject, expect=expect)])


async def test_many_refusals_ask_once_where_the_ledger_begins() -> None:
    """If the ledger refuses many events because of their fences, the writer asks for the ledger's
    first revision only once."""
    server = MemoryServer()
    ledger = Counting(server, role="watcher")
    revisions = await ledger.append([draft(f"workload.{number}") for number in range(8)])
    server.drop(revisions[-1])
    fences = Fences()
    refusals = [FenceRefused(A, revision, 0) for revision in revisions]
    await asyncio.gather(*(fences.refused(refusal, ledger) for refusal in refusals))
    assert ledger.asked == 1
    assert {fences.expected(revision, folded=revisions[-1]) for revision in revisions} == {0}


async def test_a_newer_record_without_effect_is_expected_once_it_is_folded() -> None:
    """If the fold skips the newest record of a subject, for example invalid bytes, a writer's fence
    still names that record. Otherwise no append on the subject could ever succeed again."""
    server = MemoryServer()
    ledger = MemoryLedger(server, role="watcher")
    known, skipped = [(await ledger.append([draft("workload.a")]))[0] for _ in range(2)]
    fences = Fences()
    expected = fences.expected(known, folded=skipped, subject=A)
    with pytest.raises(FenceRefused) as refused:
        await ledger.append([draft("workload.a", expect=expected)])
    await fences.refused(refused.value, ledger)
    assert fences.expected(known, folded=known, subject=A) == known
    assert fences.expected(known, folded=skipped, subject=A) == skipped
    await ledger.append([draft("workload.a", expect=skipped)])
