"""Tests of how processes are identified, since the kernel reuses process ids.

The tests use the real kernel and fake /proc files."""

import os
import subprocess
import sys
from pathlib import Path

from apportion.runtime.process.lives import Life, life_of, lives, marked, parent_of


def test_a_process_lives_until_it_ends() -> None:
    """A process that has exited counts as ended, even if its parent has not waited for it yet."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        life = life_of(process.pid)
        assert life is not None
        assert lives(life)
        assert parent_of(process.pid) == os.getpid()
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not lives(life)


def test_an_id_that_is_given_again_is_another_life() -> None:
    """Two processes with the same id and different start times are different processes."""
    own = life_of(os.getpid())
    assert own is not None
    assert not lives(Life(own.pid, own.started + 1))


def test_a_name_may_have_anything_in_it(tmp_path: Path) -> None:
    """A process's start time is read correctly even if the process's name has spaces and
    parentheses."""
    folder = tmp_path / "7"
    folder.mkdir()
    fields = " ".join(str(number) for number in range(5, 53))
    (folder / "stat").write_text(f"7 (a) S 1 (b) ) S 3 {fields}\n")
    assert parent_of(7, tmp_path) == 3
    assert life_of(7, tmp_path) == Life(7, 22)
    assert life_of(8, tmp_path) is None
    assert parent_of(8, tmp_path) == 0


def test_a_mark_is_found_in_the_environment_of_whoever_inherits_it() -> None:
    """A process is found by a marker in its environment. Child processes inherit the marker unless
    they start with an empty environment."""
    again = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    environment = {**os.environ, "A_MARK_OF_THIS_TEST": "x=1"}
    with (
        subprocess.Popen(again, stdin=subprocess.PIPE, env=environment) as kept,
        subprocess.Popen(["/usr/bin/env", "-i", *again], stdin=subprocess.PIPE) as emptied,
    ):
        found = dict(marked("A_MARK_OF_THIS_TEST"))
        assert found.get(kept.pid) == "x=1"
        assert emptied.pid not in found
        kept.communicate()
        emptied.communicate()


def test_a_process_that_becomes_another_program_keeps_its_mark(tmp_path: Path) -> None:
    """While a process calls exec, /proc briefly shows an empty environment. The process is still
    found by its marker."""
    itself = tmp_path / "itself"
    itself.write_text('#!/bin/sh\nexec "$0"\n')
    itself.chmod(0o755)
    with subprocess.Popen([itself], env={"A_MARK_OF_THIS_TEST": "x"}) as process:
        proc = tmp_path / "proc"
        proc.mkdir()
        (proc / str(process.pid)).symlink_to(f"/proc/{process.pid}")
        looks = [list(marked("A_MARK_OF_THIS_TEST", proc)) for _ in range(3_000)]
        process.kill()
    assert all(found == [(process.pid, "x")] for found in looks)
