"""Reserve ports for one test process. All tests must take their ports from this module.

A port that the kernel chooses can be taken before a server listens on it. Invariants: no port here
is in the kernel's ephemeral range, and no two processes get the same port."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

CHOSEN_BY_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST, END = 10_000, 65_536
"""Lower ports are well known, such as the kubelet's and a user's own NATS."""
BLOCK = 200


def _blocks() -> list[int]:
    """Return the first port of each block of ports that is outside the kernel's ephemeral range."""
    low, high = map(int, CHOSEN_BY_KERNEL.read_text().split())
    return [at for at in range(FIRST, END - BLOCK, BLOCK) if at > high or at + BLOCK <= low]


def _hold(block: int) -> bool:
    """Reserve a block of ports until this process ends. Return False if another process has it.

    The reservation is an abstract socket name, which all users see and which leaves no file behind.
    """
    with socket.socket(socket.AF_UNIX) as holder, contextlib.suppress(OSError):
        holder.bind(f"\0apportion-tests-ports-{block}")
        holder.detach()  # stays open until the process ends
        return True
    return False


def _is_free(port: int) -> bool:
    """Return True if no process listens on the port at any address of this machine."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("", port))
        return True
    return False


class Ports:
    """The ports of one process, from blocks that the process has reserved."""

    def __init__(self) -> None:
        self._ports = self._held()

    def _held(self) -> Iterator[int]:
        blocks = _blocks()
        random.SystemRandom().shuffle(blocks)
        for block in filter(_hold, blocks):
            yield from filter(_is_free, range(block, block + BLOCK))
        raise AssertionError("other processes hold all ports that tests may take")

    def take(self) -> int:
        return next(self._ports)


_ours = Ports()


def free_port() -> int:
    """Return a free port that no other test process gets while this process runs."""
    return _ours.take()
