# ruff: noqa: INP001 - a program of its own, in no package
"""Print every placement in the ledger, oldest first, and check the chain of hashes. Uses nats-py.

    python examples/read-along/nats_py.py nats://auditor:PASSWORD@127.0.0.1:4222 [--limit N]
    python examples/read-along/nats_py.py nats://anna@127.0.0.1:4222 --nkey anna.nk

Needs `pip install nats-py`. To log in with a key from `apportion user add auditor anna`, install
`nats-py[nkeys]` instead. The script uses an ordered consumer, which delivers each event once and in
order, and restarts by itself after a lost message. Each placement names the SHA-256 of the previous
placement on its node. A reader that starts at the beginning therefore detects a placement that was
changed, left out or inserted."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import sys
from typing import Any
from urllib.parse import urlsplit

import nats
from nats.aio.client import Client
from nats.errors import Error
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError


async def connected(url: str, who: str, nkey: str | None) -> Client:
    """Log in once without reconnection, then return a client that reconnects."""
    # A user's inboxes must begin with its own name.
    as_whom: dict[str, Any] = {"inbox_prefix": f"_INBOX_{who}", "nkeys_seed": nkey}
    # A reconnecting client would retry a rejected login forever, so log in without that first.
    first = await nats.connect(url, allow_reconnect=False, error_cb=unheard, **as_whom)
    await first.close()
    return await nats.connect(url, **as_whom)


async def unheard(_error: Exception) -> None:
    """Do not print the error, because nats-py raises it, too."""


def refusal(who: str, nkey: str | None) -> str:
    """Return the message for a rejected login, with the fix."""
    if nkey:
        return f"the server rejected {who}'s key in {nkey}; check it with `apportion user list`"
    return (
        f"the server rejected {who}; put the password into the URL, as `apportion up` prints it, "
        "or use --nkey FILE with a key from `apportion user add auditor NAME`"
    )


async def read_along(url: str, who: str, nkey: str | None, limit: int) -> int:
    """Print every placement event. Return how many links of the chain are broken."""
    client = await connected(url, who, nkey)
    stream = client.jetstream()
    # A user's consumers must begin with its own name, too.
    config = ConsumerConfig(name=f"{who}-1", deliver_policy=DeliverPolicy.ALL)
    with contextlib.suppress(NotFoundError):  # left by a run that has just ended
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
        sys.stdout.flush()  # for the reader of a pipe
        seen += 1
        if seen == limit:
            break
    await client.close()
    return broken


def main() -> int:
    """Return 0 if the chain is intact, 1 if a link is broken, 2 if the ledger is unreadable."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "url", help="URL from `apportion up`, with the auditor's password, or nats://NAME@HOST"
    )
    parser.add_argument("--nkey", metavar="FILE", help="key of NAME, instead of a password")
    parser.add_argument(
        "--limit", type=int, default=0, help="stop after this many events; 0: never"
    )
    given = parser.parse_args()
    who = urlsplit(given.url).username
    if not who:
        parser.error("the URL has no user; write nats://NAME@HOST:PORT")
    try:
        return int(asyncio.run(read_along(given.url, who, given.nkey, given.limit)) > 0)
    except ModuleNotFoundError as missing:
        parser.error(f"{missing}: pip install 'nats-py[nkeys]'")
    except BrokenPipeError:  # `| head` has ended; discard what Python writes at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Error, OSError) as error:
        refused = "Authorization Violation" in str(error)
        parser.error(refusal(who, given.nkey) if refused else f"cannot read along: {error}")


if __name__ == "__main__":
    raise SystemExit(main())
