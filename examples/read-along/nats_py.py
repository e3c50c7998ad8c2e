# ruff: noqa: INP001 - a program of its own, in no package
"""Read along with nats-py: every placement from the ledger's beginning, in order, and the chain.

    python examples/read-along/nats_py.py nats://auditor:PASSWORD@127.0.0.1:4222 [--limit N]

Needs only `pip install nats-py`. An ordered consumer gets each event once and in order, and begins
anew by itself where a message was lost. Each placement names the SHA-256 of the one before it on
its node, so whoever reads from the beginning sees if one was changed, left out or put in.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import sys
from urllib.parse import urlsplit

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError


async def read_along(url: str, limit: int) -> int:
    """Print each event of `placement.<node>`; how many links of the chain did not hold."""
    # What a user is answered on, and the consumers that it may make, begin with its own name.
    who = urlsplit(url).username
    client = await nats.connect(url, inbox_prefix=f"_INBOX_{who}")
    stream = client.jetstream()
    config = ConsumerConfig(name=f"{who}-1", deliver_policy=DeliverPolicy.ALL)
    with contextlib.suppress(NotFoundError):  # of a run that ended a moment ago
        await stream.delete_consumer("APPORTION", f"{who}-1")
    subscription = await stream.subscribe(
        "apportion.v1.placement.>", stream="APPORTION", config=config, ordered_consumer=True
    )
    newest: dict[str, str] = {}
    broken = seen = 0
    async for message in subscription.messages:
        event = json.loads(message.data)
        node = message.subject.rpartition(".")[2]
        holds = event["data"].get("previous", "") == newest.get(node, "")
        newest[node] = hashlib.sha256(message.data).hexdigest()
        broken += not holds
        kind = event["type"].rpartition("/")[2]
        revision = message.metadata.sequence.stream
        said = (revision, event["time"], kind, node, *(() if holds else ("CHAIN BROKEN",)))
        sys.stdout.write(" ".join(map(str, said)) + "\n")
        seen += 1
        if seen == limit:
            break
    await client.close()
    return broken


def main() -> int:
    """Exit code 0 if every link held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="as `apportion up` prints it, with the auditor's password")
    parser.add_argument("--limit", type=int, default=0, help="end after so many; 0 never")
    given = parser.parse_args()
    return int(asyncio.run(read_along(given.url, given.limit)) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
