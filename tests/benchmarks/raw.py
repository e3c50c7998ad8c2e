"""Measure the ledger alone: appends with fsync, and reading.

python -m tests.benchmarks.raw --json"""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.port import Draft, Ledger
from tests.benchmarks.telling import parser_of, tell
from tests.support.nats import running_bus

RAW_SUBJECT = "apportion.v1.pending.raw"


async def measure_raw_append(
    ledger: Ledger, payloads: Sequence[bytes], batch_size: int, *, subject: str = RAW_SUBJECT
) -> float:
    """Append `payloads` in atomic batches, one after another. Return the events per second."""
    run = secrets.token_hex(8)
    drafts = [Draft(subject, f"{run}-{n}", payload) for n, payload in enumerate(payloads)]
    began = time.perf_counter()
    for start in range(0, len(drafts), batch_size):
        await ledger.append(drafts[start : start + batch_size])
    return len(drafts) / (time.perf_counter() - began)


async def measure_group_commit(
    ledger: Ledger, payloads: Sequence[bytes], writers: int, *, subject: str = RAW_SUBJECT
) -> float:
    """Let concurrent writers append single events through one group commit.

    A group commit combines concurrent appends into batches. Return the events per second."""
    run = secrets.token_hex(8)
    left = enumerate(payloads)

    async def write(commit: GroupCommit) -> None:
        for number, payload in left:
            await commit.append(Draft(subject, f"{run}-{number}", payload))

    began = time.perf_counter()
    async with GroupCommit(ledger) as commit:
        await asyncio.gather(*(write(commit) for _ in range(writers)))
    return len(payloads) / (time.perf_counter() - began)


async def measure_follow(ledger: Ledger) -> float:
    """Read the whole ledger with a callback that does nothing. Return the records per second."""
    began = time.perf_counter()
    following = await ledger.follow(lambda _record: None)
    await following.caught_up()
    seconds = time.perf_counter() - began
    await following.stop()
    return following.position / seconds


async def measure(events: int, payload_bytes: int) -> dict[str, float]:
    """Start a server in a temporary folder, and return all figures."""
    payloads = [b"x" * payload_bytes] * events
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with running_bus(Path(folder)) as bus:
            ledger = await bus.connect("scheduler")
            await measure_raw_append(ledger, payloads[:1000], 100)
            for size in (100, 256, 1000):
                figures[f"append_batch_{size}_per_s"] = await measure_raw_append(
                    ledger, payloads, size
                )
            figures["append_single_per_s"] = await measure_raw_append(ledger, payloads[:1000], 1)
            figures["group_commit_256_writers_per_s"] = await measure_group_commit(
                ledger, payloads, 256
            )
            figures["follow_per_s"] = await measure_follow(ledger)
    return {name: round(figure) for name, figure in figures.items()}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--payload-bytes", type=int, default=600)
    tell(parser, lambda given: uvloop.run(measure(given.events, given.payload_bytes)))


if __name__ == "__main__":
    main()
