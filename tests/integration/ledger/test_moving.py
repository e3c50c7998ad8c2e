"""A pod that one user moves or replaces is not recreated if another user ends it first."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from apportion.cli.client.ledger import to_its_end
from apportion.cli.exits import NotFound
from apportion.cli.pods.append import append_limits, end, replace
from apportion.cli.pods.moving import Outcome, Progress, _move
from apportion.cli.pods.resubmit import Anew, Unit
from apportion.core.answers.reads import PodAnswer
from apportion.core.explain.text.event_text import limit_name
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.reports import history
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.port import Draft
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import PodGone, PodSubmitted, QueueObserved, decode, subject_of
from tests.support.nats import Bus
from tests.support.pods import ask, pod, shape


async def submit(ledger: JetStreamLedger, *pods: PodSubmitted) -> None:
    """Submit pods as a user does."""
    async with GroupCommit(ledger) as commit:
        publisher = Publisher("cli/ada", SystemClock(), commit.append)
        for each in pods:
            await publisher.publish(each, event_id=f"{each.uid}/submitted", basis=0)


async def delete(ledger: JetStreamLedger, uid: str, event_id: str = "") -> None:
    """Append a PodGone event, by default with the event id that `apportion delete` uses."""
    async with GroupCommit(ledger) as commit:
        publisher = Publisher("cli/bob", SystemClock(), commit.append)
        gone = PodGone(uid=uid, reason="x")
        await publisher.publish(gone, event_id=event_id or f"{uid}/gone", basis=0)


async def live(ledger: JetStreamLedger) -> dict[str, PodSubmitted]:
    """Return the submitted pods that have not ended, by uid."""
    found: dict[str, PodSubmitted] = {}
    for record, _ in await history(ledger, 0, 1_000):
        data = decode(record.payload, subject=record.subject).data
        if isinstance(data, PodSubmitted):
            found[data.uid] = data
        elif isinstance(data, PodGone):
            found.pop(data.uid, None)
    return found


def answer(each: PodSubmitted) -> PodAnswer:
    """Return what a gateway would answer about a live pod."""
    return PodAnswer(each.namespace, each.name, each.uid, "placed", asks=each.shape.asks)


@asynccontextmanager
async def moving(ledger: JetStreamLedger) -> AsyncIterator[Anew]:
    """Yield the `Anew` that a drain uses to move pods to other nodes."""
    async with GroupCommit(ledger) as commit:
        yield Anew(ledger, commit, "ada", "drained")


@pytest.mark.parametrize("event_id", ["two/gone", "an id that nobody else has"])
async def test_a_pod_that_was_deleted_meanwhile_is_not_submitted_anew(
    bus: Bus, event_id: str
) -> None:
    """A pod deleted during a move is not recreated, and the other pods of its gang are still
    moved."""
    ledger = await bus.connect("operator")
    one, two = pod("one"), pod("two")
    await submit(ledger, one, two)
    unit = Unit((answer(one), answer(two)), "team/job")
    await delete(ledger, "two", event_id)
    async with moving(ledger) as anew:
        moved = await anew.move(unit, basis=0)
    assert ([each.name for each in moved.submitted], moved.ended) == (["one"], ["default/two"])
    left = await live(ledger)
    assert [each.name for each in left.values()] == ["one"]
    assert "one" not in left, "it was ended, and submitted under another uid"


async def test_a_pod_after_whose_move_a_ctrl_c_comes_is_told_of(
    bus: Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    """If Ctrl-C interrupts the move of a pod, the move is still completed and reported."""
    ledger = await bus.connect("operator")
    one = pod("one")
    await submit(ledger, one)
    unit, report = Unit((answer(one),)), Outcome()

    async def stopped(anew: Anew) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await to_its_end(_move(anew, unit, report, Progress([unit]), basis=0))

    async with moving(ledger) as anew:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(stopped(anew))
    assert list(report.waiting) == ["default/one"]
    assert "1 of 1 pod: default/one\n" in capsys.readouterr().err


async def test_two_who_drain_at_once_make_one_pod_of_one(bus: Bus) -> None:
    """If two drains move a pod, the pod is submitted again only once, because the second drain
    finds the pod ended."""
    ledger = await bus.connect("operator")
    one = pod("one")
    await submit(ledger, one)
    async with moving(ledger) as first, moving(ledger) as second:
        await first.move(Unit((answer(one),)), basis=0)
        moved = await second.move(Unit((answer(one),)), basis=0)
    assert [each.name for each in (await live(ledger)).values()] == ["one"]
    assert (moved.submitted, moved.ended) == ([], ["default/one"])


async def test_a_resized_pod_keeps_its_size(bus: Bus) -> None:
    """A pod that was resized keeps the resized request when it is moved."""
    ledger = await bus.connect("operator")
    one = pod("one", ask(memory_mib=4_000))
    await submit(ledger, one)
    now = msgspec.structs.replace(answer(one), asks=(ask(memory_mib=8_000),))
    async with moving(ledger) as anew:
        await anew.move(Unit((now,)), basis=0)
    [again] = (await live(ledger)).values()
    assert again.shape.asks == (ask(memory_mib=8_000),)


async def test_one_that_ended_before_keeps_no_other_from_ending(bus: Bus) -> None:
    """If one pod of a batch has already ended, the other pods of the batch are still ended."""
    ledger = await bus.connect("operator")
    pods = [pod("one"), pod("two"), pod("three")]
    await submit(ledger, *pods)
    await delete(ledger, "two")
    ended = await end(ledger, [(0, answer(each)) for each in pods], "scaled down")
    assert set(ended) == {"default/one", "default/two", "default/three"}
    assert await live(ledger) == {}


async def test_of_two_who_replace_one_pod_the_second_is_told(bus: Bus) -> None:
    """If two users replace one pod at once, the second command fails and tells the user to repeat
    it."""
    ledger = await bus.connect("operator")
    one = pod("one")
    await submit(ledger, one)
    basis = await ledger.last_revision()
    wanted = [
        PodDraft(namespace="default", name="one", shape=shape(ask(memory_mib=mib)), dialect="hami")
        for mib in (1, 2)
    ]
    await replace(ledger, [(wanted[0], answer(one))], {}, basis=basis)
    with pytest.raises(
        NotFound, match=r"^default/one was changed .*at revision 3; run the command again"
    ):
        await replace(ledger, [(wanted[1], answer(one))], {}, basis=basis)
    assert [each.shape for each in (await live(ledger)).values()] == [wanted[0].shape]


async def test_a_limit_is_said_anew_where_what_stands_last_is_no_event(bus: Bus) -> None:
    """A queue's limit is appended again if the last record about the queue is not a valid event."""
    ledger = await bus.connect("operator")
    queue = QueueObserved(queue="team", weight=2)
    await ledger.append([Draft(subject_of(queue), "torn", b"?")])
    assert await append_limits(ledger, [queue], basis=0) == {limit_name(queue): 2}
    assert await append_limits(ledger, [queue], basis=0) == {}
