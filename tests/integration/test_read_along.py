"""The examples of reading along run as they stand, as the auditor whom the docs name."""

import asyncio
import sys
from pathlib import Path

from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import running_bus

EXAMPLES = Path(__file__).parents[2] / "examples" / "read-along"


async def test_nats_py(tmp_path: Path) -> None:
    """An ordered consumer gets every placement in order, and the chain of each node holds."""
    async with running_bus(tmp_path / "nats") as bus:
        facts = Facts(bus)
        await facts.open()
        await facts.write(rack("n1", 2), rack("n2", 2))
        await facts.submit("a", "b", "c")
        for uid, node in (("a", "n1"), ("b", "n2"), ("c", "n1")):
            await facts.place(uid, node)
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(EXAMPLES / "nats_py.py"), bus.server.url_for("auditor"),
            "--limit", "3", stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0
        lines = [line.split() for line in out.decode().splitlines()]
        assert [(line[2], line[3]) for line in lines] == [
            ("PodPlaced", "n1"), ("PodPlaced", "n2"), ("PodPlaced", "n1"),
        ]  # fmt: skip
        revisions = [int(line[0]) for line in lines]
        assert revisions == sorted(revisions)
