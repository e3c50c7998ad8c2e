"""Attack 5: a client that may append uses the message id that a pod's placement will need.

The server accepts each message id only once, on any subject. Without the guard the attacker can
send a message with the id `<uid>/1/placed` on its own subject. Every placement of the pod is then
rejected as a duplicate, for as long as the server remembers ids."""

import base64
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apportion.runtime.jetstream.wire import call_api
from apportion.runtime.ledger.port import NotPermitted
from apportion_schemas import PodPlaced
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus, running_bus
from tests.support.pods import ask, pod
from tests.support.processes import NO_AGENTS, ServiceProcess


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a running NATS server with the ledger's stream."""
    async with running_bus(tmp_path / "data") as running:
        yield running


async def burn(bus: Bus, role: str, subject: str, *ids: str) -> None:
    """Send invalid messages under ids that other writers' events will have."""
    wire = (await bus.connect(role)).wire
    for each in ids:
        await wire.request(subject, b"{}", timeout_s=5, headers={"Nats-Msg-Id": each})


@pytest.mark.parametrize("guarded", [False, True], ids=["weak", "guarded"])
async def test_a_burnt_id_keeps_no_pod_from_its_place(
    bus: Bus, tmp_path: Path, guarded: bool
) -> None:
    """With the ledger's key, no watcher can guess the id of a placement, so the pod is placed.

    Without the key, a watcher uses the id first, and the pod is not placed. An agent cannot make
    this attack in either case, because agents may not append."""
    key = tmp_path / "ledger.key"
    key.write_text(secrets.token_hex(32))
    options = [*NO_AGENTS, *(["--ledger-key", str(key)] if guarded else [])]
    facts = Facts(bus)
    await facts.open()
    with pytest.raises(NotPermitted):
        await burn(bus, "agent", "apportion.v1.inventory.n1", "victim/1/placed")
    await burn(bus, "watcher", "apportion.v1.workload.mine", "victim/1/placed")
    async with ServiceProcess("scheduler", bus.server.url_for("scheduler"), *options) as scheduler:
        await scheduler.ready()
        await facts.write(rack("n1", 8))
        await facts.write(pod("victim", ask(1000)))
        if not guarded:
            refused = await scheduler.logged("decision refused, deciding again")
            assert " ids" in str(refused)
            assert not facts.of(PodPlaced)
            return
        (placed,) = await facts.count(PodPlaced, 1)
        assert placed.pod == "victim"
        read = await call_api(
            (await bus.connect("watcher")).wire,
            "STREAM.MSG.GET.APPORTION",
            {"last_by_subj": "apportion.v1.placement.n1"},
        )
        headers = base64.b64decode(json.loads(read)["message"]["hdrs"])
        assert b"Nats-Msg-Id" in headers
        assert b"victim" not in headers
