"""Attacks 1 and 5: a client of the server's API chooses the subject of the server's reply.

Without the guard an auditor can have the server's reply stored as an event on a node's placement
subject. Earlier placements are then refused as stale. An auditor can also purge the whole ledger,
if it names the purge API as the reply subject of a request."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.snapshots import BUCKET
from apportion.runtime.jetstream.wire import STREAM
from apportion.runtime.ledger.port import LedgerUnavailable, NotPermitted
from apportion.runtime.ledger.starting import SUBJECT as CHOICES
from tests.security.attacked import AGENT, AUDITOR, attacked, pull_nothing
from tests.security.weakened import GUARDS
from tests.simulation.hostile import NODE
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus, draft
from tests.support.polling import until

GUARD = "answers into the asker's account"
PURGE = f"$JS.API.STREAM.PURGE.{STREAM}"
DELETE = f"$JS.API.STREAM.DELETE.{STREAM}"
EMPTY = f"DIRECT.GET.OBJ_{BUCKET}"
"""A request with an empty answer. On the subject PURGE, an empty message purges the stream."""
KEPT = f"{EMPTY}.$O.{BUCKET}.C.configuration"
"""A request that the webhook may send. Its answer is empty while no configuration is stored."""
FENCE = "apportion.v1.placement.n1"
BESIDE = [
    "agent", AUDITOR.name, "admission", "binder", "defrag", "extender", "gateway", "intake",
    "operator", "scheduler", "watcher",
]  # fmt: skip
"""All roles that may send requests, except bootstrap, which may trim the ledger anyway.

`agent` is an agent of all nodes, because an agent of one node may send the server no requests."""


async def ask(bus: Bus, name: str, reply: str, about: str = f"STREAM.INFO.{STREAM}") -> None:
    """Send the server a request with this reply subject, and wait until it has answered."""
    ledger: JetStreamLedger = await bus.connect(name)
    await ledger.wire.publish(f"$JS.API.{about}", b"", reply=reply, headers={})
    await ledger.last_revision()


async def ask_for_nothing(bus: Bus, name: str, reply: str) -> None:
    """Send a permitted request whose answer is empty, and name `reply` as its reply subject."""
    if name == AUDITOR.name:
        await pull_nothing(await bus.connect(name), reply)
    else:
        await ask(bus, name, reply, KEPT if name == "admission" else EMPTY)


@pytest.mark.parametrize("name", BESIDE)
async def test_weak_an_answer_is_an_event_and_an_order(tmp_path: Path, name: str) -> None:
    """If all users are in the ledger's account, any of them can have a reply stored as an event.

    To do so, a user names a node's subject as the reply subject. An auditor can also purge the
    ledger."""
    with GUARDS[GUARD]():
        bus_of = attacked(tmp_path / "nats")
        async with bus_of as bus:
            facts = Facts(bus)
            await facts.open()
            await facts.write(rack("n1", 1))
            watcher = await bus.connect("watcher")
            await ask(bus, name, FENCE)

            async def moved() -> int:
                return await watcher.last_on_subject(FENCE)

            fence = await until(moved, "the fence to move")
            assert fence == 2
            if name != AUDITOR.name:
                return  # requests with empty answers are in another account now
            await ask_for_nothing(bus, name, PURGE)

            async def purged() -> bool:
                return await watcher.first_revision() == 3

            await until(purged, "what was written to be gone")
            with contextlib.suppress(LedgerUnavailable):  # it may be gone before we have looked
                await ask_for_nothing(bus, name, DELETE)

            async def deleted() -> bool:
                try:
                    await watcher.last_revision()
                except LedgerUnavailable:
                    return True
                return False

            await until(deleted, "the ledger to be gone")


@pytest.mark.parametrize("name", BESIDE)
async def test_guarded_an_answer_goes_back_to_the_askers_account(tmp_path: Path, name: str) -> None:
    """Whatever reply subject a client names, the ledger does not change, and other writers can
    append."""
    async with attacked(tmp_path / "nats") as bus:
        facts = Facts(bus)
        await facts.open()
        await facts.write(rack("n1", 1))
        watcher = await bus.connect("watcher")
        for reply in (FENCE, PURGE, DELETE):
            await ask(bus, name, reply)
            await ask_for_nothing(bus, name, reply)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):  # long enough for an answer to arrive
                await asyncio.Event().wait()
        assert await watcher.last_on_subject(FENCE) == 0
        assert (await watcher.first_revision(), await watcher.last_revision()) == (1, 1)
        await facts.write(rack("n2", 1))
        assert await watcher.last_revision() == 2


@pytest.mark.parametrize("guarded", [False, True], ids=["weak", "guarded"])
async def test_the_answer_of_a_service_is_an_event_and_an_order(
    tmp_path: Path, *, guarded: bool
) -> None:
    """A client cannot change the ledger by having a reply sent to a subject of its choice.

    This is true of an intake's replies, and of the server's confirmations of appends."""
    with contextlib.nullcontext() if guarded else GUARDS[GUARD]():
        async with attacked(tmp_path / "nats") as bus:
            facts = Facts(bus)
            await facts.open()
            await facts.write(rack("n1", 1))
            watcher, gateway = await bus.connect("watcher"), await bus.connect("gateway")
            agent, intake = await bus.connect(AGENT.name), await bus.connect("intake")
            asked = asyncio.Event()

            async def answer(_subject: str, _payload: bytes) -> bytes:
                asked.set()
                return b""

            await gateway.wire.publish(
                "apportion.v1.operator.node.n1", b"{}", reply=FENCE, headers={}
            )
            await gateway.last_revision()

            async def stored() -> bool:
                return await watcher.last_on_subject(FENCE) > 0

            if not guarded:  # or the purge comes before it
                await until(stored, "the confirmation to be stored at the fence")
            await intake.serve("apportion.intake.*", answer)
            await agent.wire.publish(f"apportion.intake.{NODE}", b"", reply=PURGE, headers={})
            await asyncio.wait_for(asked.wait(), 30)
            await intake.last_revision()
            if guarded:
                await facts.write(rack("n2", 1))
                assert await watcher.last_on_subject(FENCE) == 0
                assert (await watcher.first_revision(), await watcher.last_revision()) == (1, 3)
                return

            async def purged() -> bool:
                return await watcher.first_revision() == 4

            await until(purged, "the ledger to be gone, with what was stored at the fence")


@pytest.mark.parametrize("guarded", [False, True], ids=["weak", "guarded"])
async def test_the_answer_to_who_takes_from_a_queue_is_an_order(
    tmp_path: Path, *, guarded: bool
) -> None:
    """A binder cannot purge the ledger by naming the purge API as a reply subject."""
    with contextlib.nullcontext() if guarded else GUARDS[GUARD]():
        async with attacked(tmp_path / "nats") as bus:
            watcher, binder = await bus.connect("watcher"), await bus.connect("binder")
            scheduler = await bus.connect("scheduler")
            await scheduler.append([draft("placement.n1")])
            queue = await binder.work_queue("binder", [FENCE], ack_wait_s=60, max_in_flight=10)
            assert len(await queue.fetch(1, 5)) == 1
            asked = {
                f"$JS.ACK.{STREAM}.binder.1.1.1.1.0": b"+ACK",
                f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.binder": b'{"batch":1,"no_wait":true}',
            }
            for written, (subject, payload) in enumerate(asked.items(), start=1):
                await binder.wire.publish(subject, payload, reply=PURGE, headers={})
                await binder.last_revision()

                async def purged(written: int = written) -> bool:
                    return await watcher.first_revision() == written + 1

                if not guarded:
                    await until(purged, "the ledger to be gone")
                await watcher.append([draft("workload.a")])
            if guarded:
                assert (await watcher.first_revision(), await watcher.last_revision()) == (1, 3)
                assert await queue.waiting() == 0, "it was taken all the same"


@pytest.mark.parametrize("guarded", [False, True], ids=["weak", "guarded"])
async def test_an_answer_is_no_request_to_a_third_account(tmp_path: Path, *, guarded: bool) -> None:
    """The server's reply to a gateway cannot reach a scheduler as a request of an extender."""
    with contextlib.nullcontext() if guarded else GUARDS[GUARD]():
        async with attacked(tmp_path / "nats") as bus:
            extender, scheduler = await bus.connect("extender"), await bus.connect("scheduler")
            heard: list[bytes] = []

            async def hear(_subject: str, payload: bytes) -> bytes:
                heard.append(payload)
                return b"heard"

            await scheduler.serve(CHOICES, hear)
            await ask(bus, "gateway", CHOICES)
            if not guarded:

                async def obeyed() -> bool:
                    return len(heard) == 1

                await until(obeyed, "the scheduler to hear the server's answer")
                return
            assert await extender.request(CHOICES, b"n1", 5) == b"heard"
            assert heard == [b"n1"]


@pytest.mark.parametrize("guarded", [False, True], ids=["weak", "guarded"])
async def test_a_scheduler_gives_itself_no_leave_by_what_it_hears(
    tmp_path: Path, *, guarded: bool
) -> None:
    """A scheduler may answer messages, but cannot use that right to publish on other subjects.

    The attacker sends a heartbeat that the scheduler itself receives, and names the purge API as
    the heartbeat's reply subject."""
    answering = GUARDS["schedulers answer where the server says"]
    with contextlib.nullcontext() if guarded else answering():
        async with attacked(tmp_path / "nats") as bus:
            facts = Facts(bus)
            await facts.open()
            await facts.write(rack("n1", 1))
            watcher, scheduler = await bus.connect("watcher"), await bus.connect("scheduler")
            heard = asyncio.Event()

            async def hear(_subject: str, _payload: bytes) -> None:
                heard.set()

            beat = "apportion.beat.scheduler.mine"
            await scheduler.serve(beat, hear)
            await scheduler.wire.publish(beat, b"", reply=PURGE, headers={})
            await asyncio.wait_for(heard.wait(), 30)
            if not guarded:
                await scheduler.publish(PURGE, b"")

                async def purged() -> bool:
                    return await watcher.first_revision() == 2

                await until(purged, "the ledger to be gone")
                return
            with pytest.raises(NotPermitted, match="PURGE"):
                await scheduler.request(PURGE, b"", 5)
            assert await watcher.first_revision() == 1
