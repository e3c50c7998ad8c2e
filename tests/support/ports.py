"""Ports of this machine that nobody else is given: the one place in the tests that chooses one.

A port that the kernel chose may be anybody's by the time a server listens on it: the source of a
connection of another lane, or even of a client that waits for that very server and so meets itself.
Invariants: the kernel chooses none of these for anybody; no two processes that take ports here get
the same, and none gets one twice."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

CHOSEN_BY_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST, END = 10_000, 65_536
"""Below are well-known ones, such as the kubelet's and those of a NATS that a person runs."""
BLOCK = 200


def _blocks() -> list[int]:
    """The first port of each block of which the kernel gives none to whoever asks for any."""
    low, high = map(int, CHOSEN_BY_KERNEL.read_text().split())
    return [at for at in range(FIRST, END - BLOCK, BLOCK) if at > high or at + BLOCK <= low]


def _hold(block: int) -> bool:
    """Keep a block from all others for as long as this process lives; False: another has it.

    A socket's abstract name is as wide as the ports are, whoever runs the tests, and leaves no file
    behind."""
    with socket.socket(socket.AF_UNIX) as holder, contextlib.suppress(OSError):
        holder.bind(f"\0apportion-tests-ports-{block}")
        holder.detach()  # open until the process ends
        return True
    return False


def _is_free(port: int) -> bool:
    """Whether nobody listens on it, at whatever address of this machine."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("", port))
        return True
    return False


class Ports:
    """Ports for one process, of blocks that it holds."""

    def __init__(self) -> None:
        self._ports = self._held()

    def _held(self) -> Iterator[int]:
        blocks = _blocks()
        random.SystemRandom().shuffle(blocks)
        for block in filter(_hold, blocks):
            yield from filter(_is_free, range(block, block + BLOCK))
        raise AssertionError("other processes hold all ports that tests may take")

    def take(self) -> int:
        """Another one."""
        return next(self._ports)


_ours = Ports()


def free_port() -> int:
    """A port that nobody listens on, and that nobody else is given while this process lives."""
    return _ours.take()
