"""If a service cannot fold an event, it stops folding but its process survives.

A service that skipped the event would continue with a state that differs from all others."""

import asyncio
import json
import subprocess
import sys

import pytest

from apportion_schemas import NodeCordoned, PodPlaced, PodRefused
from tests.security.weakened import without as taken_out
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus
from tests.support.pods import ask, pod
from tests.support.polling import until
from tests.support.processes import NO_AGENTS, ServiceProcess, environment

FAULTY = """
from apportion.core.ledger.fold import HANDLERS
from apportion_schemas import NodeCordoned


def fails(*_):
    raise ZeroDivisionError


HANDLERS[NodeCordoned] = fails
"""


def scheduler(bus: Bus, name: str, first: str) -> ServiceProcess:
    """Return a scheduler with this name. It runs the Python code in `first` before it starts."""
    url = bus.server.url_for("scheduler")
    return ServiceProcess("scheduler", url, "--name", name, *NO_AGENTS, first=first)


async def set_aside(bus: Bus, revision: int) -> int:
    """Run `ledger set-aside` for a revision. Return the revision of the resulting event.

    The option `--force` is needed, because this build can read the event that is set aside."""
    words = ("ledger", "set-aside", str(revision), "--reason", "a fault", "--force", "--json")
    environ = {**environment(None), "APPORTION_NATS_URL": bus.server.url_for("operator")}
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "apportion.cli.main", *words],
        env=environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(json.loads(done.stdout)["revisions"][str(revision)])


@pytest.mark.parametrize("without", ["halts at its own fault", ""], ids=["weak", "guarded"])
async def test_a_fault_of_the_fold_is_not_passed_over(bus: Bus, without: str) -> None:
    """If a scheduler's fold fails at an event, the scheduler halts before that event.

    The scheduler is not ready until the event is set aside. Here the event is a cordon of the only
    node. Without the guard the faulty scheduler stays ready, and places a pod on the cordoned node.
    """
    facts = Facts(bus)
    await facts.open()
    async with scheduler(bus, "faulty", FAULTY + taken_out(without)) as faulty:
        await facts.write(rack("n1", 2))
        await facts.write(pod("before", ask(1000)))
        await facts.count(PodPlaced, 1)
        closed = await facts.write(NodeCordoned(node="n1", by="ada", reason="fan"))
        if without:
            await facts.write(pod("after", ask(1000)))
            await facts.count(PodPlaced, 2)
            assert (await faulty.get("/readyz"))[0] == 200
            return

        async def halted() -> bool:
            status, body = await faulty.get("/readyz")
            return status == 503 and f"halted at revision {closed}" in body

        await until(halted, "the faulty scheduler to halt")
        assert (await faulty.get("/healthz"))[0] == 200
        assert "apportion_fold_halted 1.0" in (await faulty.get("/metrics"))[1].splitlines()
        async with scheduler(bus, "sound", "") as sound:
            await sound.ready()
            await facts.write(pod("after", ask(1000)))
            await facts.count(PodRefused, 1)
            aside = await set_aside(bus, closed)
            await facts.count(PodPlaced, 2)
            assert [at for at, e in facts.events if isinstance(e.data, PodPlaced)][1] > aside
            await asyncio.gather(faulty.ready(), sound.ready())
