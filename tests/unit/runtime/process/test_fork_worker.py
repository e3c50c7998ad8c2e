"""Tests of work that runs in a forked process, which sends messages and a result."""

import errno
import os
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from apportion.runtime.process.fork_worker import ApartFailed, Tell, TookTooLong, apart


def _forks() -> list[str]:
    # A fork has the command line of its parent, or none once it has ended and was not waited for.
    ours = (Path("/proc/self/cmdline").read_bytes(), b"")
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [child for child in children if Path(f"/proc/{child}/cmdline").read_bytes() in ours]


def _open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


async def test_what_it_tells_and_answers_is_heard_and_nothing_else_changes() -> None:
    """The parent gets the messages and the result of the forked process. The parent's own memory
    does not change."""
    held = ["before"]

    def work(tell: Tell) -> bytes:
        held.append("in the fork")
        tell(b"half")
        return ",".join(held).encode() * 10_000

    async with aclosing(apart(work, seconds=30)) as frames:
        heard = [frame async for frame in frames]
    assert heard == [b"half", b"before,in the fork" * 10_000]
    assert held == ["before"]
    assert not _forks()


async def test_a_fork_that_fails_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    """If the work in a fork fails, the fork logs the error and the caller gets an error."""

    def work(_: Tell) -> bytes:
        raise RuntimeError("no such luck")

    with pytest.raises(ApartFailed, match="without an answer"):
        _ = [frame async for frame in apart(work, seconds=30)]
    assert "no such luck" in capfd.readouterr().err
    assert not _forks()


async def test_a_fork_without_end_is_ended() -> None:
    """If a fork exceeds its time limit, it is killed."""

    def work(_: Tell) -> bytes:
        while True:
            time.monotonic()

    with pytest.raises(TookTooLong):
        _ = [frame async for frame in apart(work, seconds=0.2)]
    assert not _forks()


async def test_no_pipe_is_left_where_there_is_no_process_for_the_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the process cannot be forked, the error is raised and no pipe stays open."""

    def full() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", full)
    before = _open_files()
    with pytest.raises(BlockingIOError):
        _ = [frame async for frame in apart(lambda _: b"", seconds=30)]
    assert _open_files() == before


async def test_whoever_stops_listening_ends_it() -> None:
    """If the caller stops reading the messages, the fork is ended."""

    def work(tell: Tell) -> bytes:
        tell(b"first")
        while True:
            time.monotonic()

    async with aclosing(apart(work, seconds=30)) as frames:
        assert await anext(frames) == b"first"
    assert not _forks()
