"""No two tests get the same port, even if they run at the same time."""

import os
import socket
import subprocess
import sys

from tests.support.ports import BLOCK, CHOSEN_BY_KERNEL, Ports
from tests.tidy.tree import ROOT

TAKEN = BLOCK + 50
"""More ports than a process reserves at first."""
PROGRAM = f"""
from tests.support.ports import free_port
print(*(free_port() for _ in range({TAKEN})), flush=True)
input()
"""


def test_no_two_processes_get_the_same_port() -> None:
    """Two live processes never get the same port, and no process gets a port twice."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as other:  # fmt: skip
        assert other.stdout is not None
        theirs = set(map(int, other.stdout.readline().split()))
        ports = Ports()
        ours = {ports.take() for _ in range(TAKEN)}
        other.communicate("\n")
    assert len(theirs) == len(ours) == TAKEN
    assert not theirs & ours


def test_ports_are_outside_the_ephemeral_range() -> None:
    """Tests get ports outside the kernel's ephemeral range, whose ports may be in use for
    minutes."""
    low, high = map(int, CHOSEN_BY_KERNEL.read_text().split())
    ports = Ports()
    assert not [port for port in (ports.take() for _ in range(TAKEN)) if low <= port <= high]


def test_a_port_in_use_is_skipped() -> None:
    """A test never gets a port that an unrelated server uses on any address of this machine."""
    ports = Ports()
    first = ports.take()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 1))
        taken.listen()
        assert ports.take() > first + 1
