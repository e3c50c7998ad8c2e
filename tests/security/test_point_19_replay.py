"""The owner of a scheduler's identity replays an old message, byte for byte.

The pod's placement was withdrawn, its node is cordoned, and the pod is pending. The replayed
message would place the pod on that node again, because a scheduler once decided and signed it. The
server rejects a repeated message id for two minutes only, and accepts the message under another id
at any time."""

import asyncio
import contextlib

import pytest

from apportion.runtime.jetstream import stream
from apportion.runtime.ledger.port import Draft, DuplicateRefused
from apportion_schemas import (
    BindFailed,
    NodeCordoned,
    NodeUncordoned,
    PlacementVoided,
    PodBound,
    PodPlaced,
    PodRefused,
)
from tests.security.weakened import without as taken_out
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus
from tests.support.pods import ask, pod
from tests.support.processes import NO_AGENTS, ServiceProcess


async def voided(bus: Bus, facts: Facts) -> tuple[str, bytes]:
    """Place a pod, withdraw the placement, and cordon the node. Return the subject and the bytes of
    the withdrawn placement."""
    await facts.write(rack("n1", 1))
    await facts.write(pod("p1", ask(1000)))
    await facts.count(PodPlaced, 1)
    revision = next(at for at, event in facts.events if isinstance(event.data, PodPlaced))
    await facts.write(NodeCordoned(node="n1", by="ada", reason="fan"))
    await facts.write(BindFailed(pod="p1", node="n1", attempt=1, message="no", final=True))
    await facts.count(PlacementVoided, 1)
    await facts.count(PodRefused, 1)
    record = await stream.read_record((await bus.connect("auditor")).wire, revision)
    assert record is not None
    return record.subject, record.payload


@pytest.mark.parametrize("without", ["holds a placement to its turn", ""], ids=["weak", "guarded"])
async def test_an_old_placement_is_no_placement(bus: Bus, without: str) -> None:
    """A replayed placement changes nothing, because its attempt number is outdated.

    Without the guard the pod is bound to the cordoned node."""
    facts = Facts(bus)
    await facts.open()
    async with contextlib.AsyncExitStack() as stack:
        first = taken_out(without)
        verbs = (("scheduler", *NO_AGENTS), ("binder",))
        scheduler, binder = (
            ServiceProcess(verb, bus.server.url_for(verb), *options, first=first)
            for verb, *options in verbs
        )
        await stack.enter_async_context(scheduler)
        subject, payload = await voided(bus, facts)
        await stack.enter_async_context(binder)
        await asyncio.gather(scheduler.ready(), binder.ready())
        attacker = await bus.connect("scheduler")
        with pytest.raises(DuplicateRefused):
            await attacker.append([Draft(subject, "p1/1/placed", payload)])
        [again] = await attacker.append([Draft(subject, "another id", payload)])
        if without:
            [bound] = await facts.count(PodBound, 1)
            assert (bound.node, bound.attempt) == ("n1", 1)
            return
        line = await scheduler.logged(f"revision {again} on {subject} ignored")
        assert "attempt 1, expected 2" in str(line["event"])
        await facts.write(NodeUncordoned(node="n1", by="ada"))
        [bound] = await facts.count(PodBound, 1)
        assert (bound.node, bound.attempt) == ("n1", 2)
