"""Attacks 4, 5 and 7: a compromised node agent sends false reports, and floods the ledger.

Without the guards, the agent can empty another node, claim its GPUs, and halt readers with an
unknown event type. With the guards, the agent may only send requests to an intake, which checks
each report."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec import structs

from apportion.core.intake.answers import Answer, decode_answer, subject_of_node
from apportion.runtime.ledger.port import Draft, DuplicateRefused
from apportion_schemas import (
    Device,
    DeviceHealthChanged,
    Event,
    NodeReported,
    PodPlaced,
    ReportRefused,
    encode,
)
from apportion_schemas.quantities import Payload
from tests.security.attacked import AGENT, attacked
from tests.security.weakened import without
from tests.simulation.hostile import NODE, NOTHING, SUBJECT, of_a_later_version
from tests.simulation.rogue import TIME
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus
from tests.support.pods import ask, pod
from tests.support.polling import until
from tests.support.processes import NO_AGENTS, ServiceProcess

VICTIM = rack("victim", 2)
FLOOD = 3_000
WAITED_S = 20
"""The longest time for an answer to another node. Behind the flood, it would take longer."""
SOME = 800
"""More reports than the intake's rate limit accepts from one node during the test."""


class Lie(NamedTuple):
    """An agent's false report, the check that finds it, and the cause of its refusal."""

    data: Payload
    cause: str
    guard: str
    by: str = NODE
    basis: int = 0


def card(memory_mib: int) -> Device:
    """Return an invented device with this much memory."""
    return Device(
        id="GPU-lie", index=0, family="nvidia", model="NVIDIA Tesla T4", memory_mib=memory_mib,
        physical_memory_mib=memory_mib,
    )  # fmt: skip


CARD = card(15_000)
LIES = {
    "empties another node": Lie(
        structs.replace(NOTHING, node="victim"), "foreign-node", "takes the sender for the node"
    ),
    "claims its cards": Lie(
        structs.replace(NOTHING, devices=VICTIM.devices),
        "device-of-another-node",
        "knows whose cards are",
    ),
    "a card of 16 TiB": Lie(
        structs.replace(NOTHING, devices=(card(1 << 24),)),
        "implausible-device",
        "knows how large cards are",
    ),
    "what is yet to come": Lie(NOTHING, "future-basis", "knows what is yet to come", basis=1 << 40),
    "another's name": Lie(NOTHING, "foreign-source", "looks at the signature", by="victim"),
}


class World(NamedTuple):
    """A ledger with an intake, and the compromised agent that attacks them."""

    bus: Bus
    facts: Facts
    intake: ServiceProcess

    async def say(self, payload: bytes) -> Answer:
        """Send these bytes to the intake and return its answer."""
        agent = await self.bus.connect(AGENT.name)
        return decode_answer(await agent.request(SUBJECT, payload, 10))

    async def logged(self, cause: str) -> list[str]:
        """Wait until the intake has logged `cause`. Return the node that each of these log lines
        names."""

        async def lines() -> list[str]:
            return [str(line["node"]) for line in self.intake.log if line.get("cause") == cause]

        return await until(lines, f"the intake to log {cause}")


@contextlib.asynccontextmanager
async def world(folder: Path, guard: str = "") -> AsyncIterator[World]:
    """Yield a ledger with an intake that runs without the named guard."""
    async with attacked(folder / "nats") as bus:
        facts = Facts(bus)
        await facts.open()
        await facts.write(VICTIM)
        url = bus.server.url_for("intake")
        async with ServiceProcess("intake", url, first=without(guard)) as intake:
            await intake.ready()
            yield World(bus, facts, intake)


def said(data: Payload, *, by: str = NODE, basis: int = 0, name: str = "lie") -> bytes:
    """Return an event as the compromised agent encodes it."""
    return encode(Event(id=name, source=f"agent/{by}", time=TIME, data=data, basis=basis))


@pytest.mark.parametrize("name", LIES)
async def test_weak_a_lie_is_on_the_ledger(tmp_path: Path, name: str) -> None:
    """If the guard against a false report is removed, the intake accepts that report and the ledger
    stores it."""
    lie = LIES[name]
    async with world(tmp_path, lie.guard) as made:
        answer = await made.say(said(lie.data, by=lie.by, basis=lie.basis))
        assert answer.revision == 2, answer
        assert (await made.facts.count(NodeReported, 2))[1] == lie.data


async def test_guarded_lies_are_refused_by_name(tmp_path: Path) -> None:
    """The intake refuses each false report and logs the reason once. It accepts true reports."""
    async with world(tmp_path) as made:
        for lie in LIES.values():
            for _ in range(2):
                answer = await made.say(said(lie.data, by=lie.by, basis=lie.basis))
                assert answer.refused == lie.cause, answer
            assert await made.logged(lie.cause) == [NODE]
        assert (await made.say(said(NOTHING))).revision is not None
        told = await made.facts.count(ReportRefused, len(LIES))
        assert {(each.node, each.cause) for each in told} == {
            (NODE, lie.cause) for lie in LIES.values()
        }
    assert made.facts.of(NodeReported) == [VICTIM, NOTHING]
    assert len(made.facts.of(ReportRefused)) == len(LIES)


async def test_guarded_what_nobody_knows_does_not_come_to_the_ledger(tmp_path: Path) -> None:
    """The intake refuses an agent's event if its type or version could halt a reader."""
    async with world(tmp_path) as made:
        known = said(NOTHING)
        for payload, cause in (
            (known.replace(b"dev/NodeReported", b"dev/Unheard"), "unknown-format"),
            (of_a_later_version(known), "unknown-format"),
            (b"\xff", "unreadable"),
            (b"[" * 100_000, "unreadable"),
            (b"x" * 600_000, "too-large"),
        ):
            assert (await made.say(payload)).refused == cause
        await made.facts.count(ReportRefused, 3)
        assert len(made.facts.of(NodeReported)) == 1


async def test_an_intake_outlives_whatever_id_an_event_has(tmp_path: Path) -> None:
    """An intake keeps working even if an agent's event has an invalid or reused id."""
    async with world(tmp_path) as made:
        for name in ("é", "\n", "x" * 512):
            reported = structs.replace(NOTHING, driver=repr(name)[:9])
            assert (await made.say(said(reported, name=name))).revision is not None
        there = (await made.say(said(structs.replace(NOTHING, devices=(CARD,))))).revision
        assert there is not None
        ill = DeviceHealthChanged(node=NODE, device=CARD.id, healthy=False)
        again = said(ill, name="é", basis=there)  # so that the intake has folded the device
        assert (await made.say(again)).refused == "late"
        shared = await made.bus.connect("agent")
        long = "ü" * 253
        lie = said(structs.replace(NOTHING, node=long), by="x")
        answer = decode_answer(await shared.request(subject_of_node(long), lie, 10))
        assert answer.refused == "foreign-source"
        assert (await made.facts.count(ReportRefused, 1))[0].node == long
        assert (await made.say(said(NOTHING, name="still there"))).revision is not None


async def test_weak_a_fence_is_burnt(tmp_path: Path) -> None:
    """If an agent chooses event ids, it can use the id of a future placement.

    The server then refuses that placement as a duplicate."""
    async with world(tmp_path, "appends under its own ids") as made:
        assert (await made.say(said(NOTHING, name="p1/1/placed"))).revision == 2
        scheduler = await made.bus.connect("scheduler")
        with pytest.raises(DuplicateRefused):
            await scheduler.append([Draft("apportion.v1.placement.victim", "p1/1/placed", b"{}")])


async def test_guarded_a_fence_cannot_be_burnt(tmp_path: Path) -> None:
    """An agent cannot use the id of a future placement, so the pod is placed."""
    async with world(tmp_path) as made:
        assert (await made.say(said(NOTHING, name="p1/1/placed"))).revision == 2
        url = made.bus.server.url_for("scheduler")
        async with ServiceProcess("scheduler", url, *NO_AGENTS) as scheduler:
            await scheduler.ready()
            await made.facts.write(pod("p1", ask(1000)))
            await made.facts.count(PodPlaced, 1)


@pytest.mark.parametrize("guard", ["", "bounds what one says"], ids=["guarded", "weak"])
async def test_a_flood_is_bounded(tmp_path: Path, guard: str) -> None:
    """The intake limits an agent that floods it with 3,000 different true reports, so reports of
    another node do not wait."""
    async with world(tmp_path, guard) as made:
        agent = await made.bus.connect(AGENT.name)
        for number in range(FLOOD):
            data = structs.replace(NOTHING, driver=f"v{number}")
            payload = said(data, name=f"flood-{number}")
            await agent.wire.publish(SUBJECT, payload, reply=agent.wire.new_inbox(), headers={})
        if guard:
            await made.facts.count(NodeReported, FLOOD)
            return
        other = await made.bus.connect("agent")
        honest = said(rack("honest", 1), by="honest")
        answer = decode_answer(await other.request("apportion.intake.honest", honest, WAITED_S))
        assert answer.revision is not None
        assert len(made.facts.of(NodeReported)) < SOME
        await made.intake.logged("report refused")
        causes = [line["cause"] for line in made.intake.log if "cause" in line]
        assert sorted(set(causes)) == sorted(causes), "each once"
        assert {"too-many"} <= set(causes) <= {"too-many", "flapping"}
