"""A killed test run leaves no process behind, not even a process that started its own session
(`setsid`)."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.polling import wait_until

ROOT = Path(__file__).resolve().parents[3]
SESSION = """
import subprocess, sys
from tests.support import leftovers
leftovers.watch()
for _ in range(2):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    print(subprocess.Popen(["sleep", "600"], start_new_session=True, **quiet).pid, flush=True)
sys.stdin.read()
leftovers.end()
"""


def runs(pid: int) -> bool:
    """Return True while the process runs; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, 0])
def test_what_a_killed_session_started_ends(number: int) -> None:
    """The processes of a test run end if the run is killed by SIGTERM or SIGKILL. They keep running
    if the run ends normally."""
    session = subprocess.Popen(
        [sys.executable, "-c", SESSION], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    pids = []
    try:
        assert session.stdout is not None
        pids = [int(session.stdout.readline()) for _ in range(2)]
        if number:
            session.send_signal(number)
            wait_until(lambda: not any(map(runs, pids)), "its processes to end")
        session.communicate()
        assert number or all(map(runs, pids))
    finally:
        session.kill()
        session.communicate()
        for pid in filter(runs, pids):
            os.kill(pid, signal.SIGKILL)
