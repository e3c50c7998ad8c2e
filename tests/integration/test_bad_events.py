"""Bad events on a real ledger cause a clear error, no crash and no lost event in any service.

The tests append raw bytes with the NATS login of a real role."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from apportion.runtime.ledger.port import Draft
from apportion_schemas import (
    Event,
    FormatEnabled,
    NodeReported,
    PlacementVoided,
    PodPlaced,
    Score,
    Share,
    SharesAllocated,
    encode,
)
from tests.support.facts import Facts
from tests.support.nats import Bus, running_bus
from tests.support.polling import until
from tests.support.processes import ServiceProcess

TIME = "2026-01-01T00:00:00.000000Z"
SERVICES = (
    ("scheduler", "--name", "test"),
    ("binder",),
    ("gateway", "--listen", "127.0.0.1:0"),
    ("agent", "--simulate", "2xT4", "--node", "node-a"),
)


goes_on = pytest.mark.asyncio(loop_scope="module")
"""A test that leaves the system as it should be, and so shares it with the others."""


class System:
    """All services on one ledger, for tests that append bad events."""

    def __init__(self, bus: Bus, facts: Facts, services: list[ServiceProcess]) -> None:
        self.bus = bus
        self.facts = facts
        self.services = services

    async def append(self, role: str, subject: str, payload: bytes) -> int:
        """Append exactly these bytes as this role."""
        ledger = await self.bus.connect(role)
        draft = Draft(f"apportion.v1.{subject}", f"rogue-{hash(payload)}", payload)
        return (await ledger.append([draft]))[0]

    async def still_works(self, pod: str) -> None:
        """Check that a new pod is placed and allocated, and that no service has died."""
        await self.facts.submit(pod)
        await self.facts.until(
            lambda: any(data.pod == pod for data in self.facts.of(SharesAllocated)),
            f"{pod} to be allocated",
        )
        assert all(service.running for service in self.services)


@contextlib.asynccontextmanager
async def running_system(folder: Path) -> AsyncIterator[System]:
    """Provide a fresh ledger with every service ready."""
    async with running_bus(folder / "nats") as bus, contextlib.AsyncExitStack() as stack:
        services = [
            await stack.enter_async_context(
                ServiceProcess(verb, bus.server.url_for(verb), *options)
            )
            for verb, *options in SERVICES
        ]
        facts = Facts(bus)
        await facts.open()
        await facts.count(NodeReported, 1)
        await asyncio.gather(*(service.ready() for service in services))
        yield System(bus, facts, services)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """Provide a system that several tests share, each with its own pods."""
    async with running_system(tmp_path_factory.mktemp("system")) as running:
        yield running


def document(data: PodPlaced | PlacementVoided, **changes: object) -> bytes:
    """Return an event as JSON, with the attributes or payload fields in `changes` replaced."""
    event = json.loads(encode(Event(id="rogue", source="rogue", time=TIME, data=data)))
    for name, value in changes.items():
        (event if name in event else event["data"])[name] = value
    return json.dumps(event).encode()


def placement(pod: str, node: str = "node-a") -> PodPlaced:
    """Return a placement that no scheduler made, on a device that does not exist."""
    share = Share(container="main", device="GPU-none", memory_mib=16, cores=0)
    return PodPlaced(
        pod=pod,
        namespace="default",
        name=pod,
        attempt=1,
        node=node,
        shares=(share,),
        score=Score(node=node, total=1.0),
    )


@goes_on
async def test_broken_bytes_are_refused_by_every_reader(system: System) -> None:
    """If a record is not an event, every reader logs the record's revision and reads on."""
    revision = await system.append("scheduler", "placement.node-a", b"\xff not json")
    for service in system.services[:2]:
        line = await service.logged(f"revision {revision} on")
        assert "not a CloudEvents" in str(line["event"])
    await system.still_works("after-broken-bytes")


@goes_on
async def test_a_negative_amount_is_refused_by_its_field(system: System) -> None:
    """An event with a negative amount is refused, and the log names the event's type and the field.

    The event's pod is still placed correctly."""
    rogue = placement("robbed")
    payload = document(
        rogue, shares=[{"container": "main", "device": "d", "memory_mib": -5, "cores": 0}]
    )
    revision = await system.append("scheduler", "placement.node-a", payload)
    line = await system.services[0].logged(f"revision {revision} on")
    assert "PodPlaced" in str(line["event"])
    assert "$.shares[0].memory_mib" in str(line["event"])
    await system.still_works("robbed")


@goes_on
async def test_an_event_for_another_node_is_refused(system: System) -> None:
    """If an event on one node's subject names another node, all readers ignore the event, and
    neither node changes."""
    payload = document(placement("misled", node="node-b"))
    revision = await system.append("scheduler", "placement.node-a", payload)
    line = await system.services[0].logged(f"revision {revision} on")
    assert "belongs on 'apportion.v1.placement.node-b'" in str(line["event"])
    await system.still_works("misled")


@goes_on
async def test_a_share_of_a_device_that_is_not_there_is_refused(system: System) -> None:
    """A well-formed placement that contradicts the state is ignored, and services keep working."""
    await system.facts.submit("victim")
    await system.facts.until(
        lambda: any(d.pod == "victim" for d in system.facts.of(SharesAllocated)), "the victim"
    )
    revision = await system.append("scheduler", "placement.node-a", document(placement("victim")))
    line = await system.services[0].logged(f"revision {revision} on")
    assert "ignored" in str(line["event"])
    await system.still_works("another")


async def test_an_unknown_version_that_is_enabled_halts_and_says_so(tmp_path: Path) -> None:
    """An event with an enabled format version that this build does not know halts every service.
    The processes stay alive, and /readyz names revision, subject and fix."""
    change: dict[str, object] = {"schemaversion": 99}
    async with running_system(tmp_path) as system:
        await system.still_works("before")
        await system.facts.write(FormatEnabled(format="PodPlaced", version=99, by="ada"))
        payload = document(placement("x"), **change)
        revision = await system.append("scheduler", "placement.node-a", payload)
        for service in system.services:
            await _unready(service, f"revision {revision}")
            status, _ = await service.get("/healthz")
            assert status == 200


async def _unready(service: ServiceProcess, words: str) -> None:
    bodies: list[str] = []

    async def asked() -> bool:
        status, body = await service.get("/readyz")
        bodies.append(body)
        return status == 503 and words in body and "upgrade" in body

    await until(asked, f"{service.verb} to say it halted at {words}; it says {bodies[-1:]}")
