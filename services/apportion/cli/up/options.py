"""What `apportion up` was asked for; apart from `up` and `standalone`, which both need it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from apportion.cli.up.fleet import Fleet


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for on the command line, and when (`began_s`, on the monotonic clock).

    `advice` is told with how to look further, line by line. `max_bytes` is the ledger's size, -1
    for what the disk holds; None leaves it as it is.
    """

    data: Path
    ephemeral: bool
    nats_port: int
    port: int
    agent: tuple[str, ...]
    fleet: Fleet
    samples: bool
    advice: tuple[str, ...]
    exit_after_samples: bool
    max_bytes: int | None = None
    began_s: float
