"""Tests of how the intake checks a usage report about a pod that has since ended or moved."""

import asyncio
from typing import Any

import pytest
from msgspec import structs

from apportion.core.intake.judging import Doubt, Refusal, judge
from apportion.intake.taking import Holdings
from apportion.runtime.ledger.port import Draft, Record
from apportion.runtime.ledger.reader import StateFold
from apportion_schemas import (
    Event,
    PlacementVoided,
    PodAdopted,
    PodBound,
    PodGone,
    PodPlaced,
    UsageRecorded,
    encode,
    subject_of,
)
from apportion_schemas.quantities import Payload
from apportion_schemas.usage import ShareUsed
from tests.simulation.loop import run_virtually
from tests.support.fleet import rack
from tests.support.folding import taken
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer
from tests.support.pods import ask, placed, pod, share


def at(hour: int, minute: int = 0) -> str:
    """Return this time on the day of the test."""
    return f"2026-01-0{1 + hour // 24}T{hour % 24:02}:{minute:02}:00.000000Z"


async def ledger_of(*events: tuple[str, str, Payload, int]) -> tuple[StateFold, MemoryLedger]:
    """Append these events, given as (writer, time, payload, cause). Return the folded state and the
    ledger."""
    server, fold = MemoryServer(), StateFold()
    for number, (role, time, said, cause) in enumerate(events, 1):
        data = said
        if isinstance(said, PodPlaced):
            data = structs.replace(said, previous=fold.state.nodes[said.node].chain)
        event = Event(
            id=f"e{number}", source=role, time=time, data=data, basis=number - 1, cause=cause
        )
        draft = Draft(subject_of(data), event.id, encode(event))
        await MemoryLedger(server, role=role).append([draft])
        record = server.record_at(number)
        assert record is not None
        assert not taken(fold, record).refused, data
    return fold, MemoryLedger(server, role="intake")


def used(uid: str, bound: int, device: str = "n1-g0", **more: Any) -> ShareUsed:
    """Return a minute of usage by the pod with this uid, which was bound at revision `bound`."""
    fields: dict[str, Any] = {"name": uid, "seconds": 60, **more}
    return ShareUsed(
        pod=uid, namespace="default", container="main", device=device, memory_mib=1_000,
        memory_mib_seconds=60, memory_mib_peak=1, bound=bound, **fields,
    )  # fmt: skip


EVENTS: tuple[tuple[str, str, Payload, int], ...] = (
    ("intake", at(0), rack("n1", 2), 0),
    ("intake", at(0), rack("n2", 1), 0),
    ("watcher", at(0), pod("ended", ask(1_000)), 0),
    ("scheduler", at(0), placed("ended", "n1", [share("n1-g0")]), 0),
    ("binder", at(0), PodBound(pod="ended", node="n1", attempt=1), 4),
    ("watcher", at(0, 10), PodGone(uid="ended"), 0),
    ("watcher", at(0, 10), pod("moved", ask(1_000)), 0),
    ("scheduler", at(0, 10), placed("moved", "n1", [share("n1-g0")]), 0),
    ("binder", at(0, 10), PodBound(pod="moved", node="n1", attempt=1), 8),
    ("scheduler", at(0, 20), PlacementVoided(pod="moved", node="n1", attempt=1, reason="x"), 0),
    ("scheduler", at(0, 20), placed("moved", "n2", [share("n2-g0")], attempt=2), 0),
    ("binder", at(0, 20), PodBound(pod="moved", node="n2", attempt=2), 11),
    ("watcher", at(0), PodAdopted("found", "n1", pod("found", ask(1)), shares=(share("n1-g1"),),
                                  running=True), 0),
    ("watcher", at(0, 30), PodGone(uid="found"), 0),
    ("watcher", at(0, 30), pod("waits", ask(1_000)), 0),
)  # fmt: skip


@pytest.mark.parametrize(
    ("share", "cause"),
    [
        (used("ended", 5), ""),
        (used("moved", 9), ""),
        (used("found", 13, "n1-g1"), ""),
        (used("invented", 0), "implausible-use"),
        (used("invented", 5), "implausible-use"),
        (used("invented", 99), "implausible-use"),
        (used("ended", 4), "implausible-use"),  # a placement, not a binding
        (used("ended", 9), "implausible-use"),  # another pod's
        (used("ended", 5, "n1-g1"), "implausible-use"),  # on another GPU
        (used("ended", 5, name="other"), "implausible-use"),
        (used("ended", 5, seconds=5_000), "implausible-use"),  # longer than its life of ten minutes
        (used("moved", 12), "implausible-use"),  # on another node
        (used("found", 13), "implausible-use"),
        (used("waits", 0), "implausible-use"),
        (used("waits", 9), "implausible-use"),
    ],
)
@pytest.mark.parametrize("hours", [1, 72])
def test_use_is_of_a_pod_that_held_the_device(share: ShareUsed, cause: str, hours: int) -> None:
    """The intake accepts a pod's usage of a device only if the device was allocated to the pod. It
    refuses usage that arrives too late."""

    async def judged() -> str:
        fold, ledger = await ledger_of(*EVENTS)
        data = UsageRecorded(node="n1", seconds=3_600, shares=(share,))
        event = Event(id="u", source="agent/n1", time=at(hours), data=data)
        verdict = judge(fold.state, "n1", event)
        assert isinstance(verdict, Doubt | Refusal)
        if isinstance(verdict, Doubt):
            verdict = await Holdings(fold.state, ledger).refusal(event, verdict)
        return verdict.cause if verdict is not None else ""

    ends = share.pod in {"ended", "found"} and cause == ""
    late = hours > 1 and (ends or share.seconds > 60)
    assert run_virtually(judged()) == ("late" if late else cause)


def test_bindings_that_were_dropped_prove_nothing() -> None:
    """The intake refuses usage that refers to a binding which is no longer in the ledger."""

    async def judged() -> Refusal | None:
        fold, ledger = await ledger_of(*EVENTS)
        ledger.server.drop(5)
        data = UsageRecorded(node="n1", seconds=3_600, shares=(used("ended", 5),))
        event = Event(id="u", source="agent/n1", time=at(1), data=data)
        verdict = judge(fold.state, "n1", event)
        assert isinstance(verdict, Doubt)
        return await Holdings(fold.state, ledger).refusal(event, verdict)

    refusal = run_virtually(judged())
    assert refusal is not None


def test_a_binding_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The intake reads a binding from the ledger only once, even if many usage reports refer to
    it."""

    async def read() -> list[int]:
        fold, ledger = await ledger_of(*EVENTS)
        asked: list[int] = []
        record_at = ledger.server.record_at

        def counted(revision: int) -> Record | None:
            asked.append(revision)
            return record_at(revision)

        monkeypatch.setattr(ledger.server, "record_at", counted)
        holdings = Holdings(fold.state, ledger)
        data = UsageRecorded(node="n1", seconds=3_600, shares=(used("ended", 5),))
        event = Event(id="u", source="agent/n1", time=at(1), data=data)
        for _ in range(5):
            assert await holdings.refusal(event, Doubt(data, data.shares)) is None
            await asyncio.sleep(0)
        return asked

    assert run_virtually(read()) == [5, 4, 6]
