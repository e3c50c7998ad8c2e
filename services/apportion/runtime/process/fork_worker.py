"""Runs work in a forked process, which shares this process's memory but uses its own CPU time.

Invariants: the fork changes nothing in this process. The fork exits with this process or when its
time limit is over, and keeps none of this process's connections open."""

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import signal
import struct
import sys
import warnings
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1  # see prctl(2)
NICE: Final = 10
FILES_MAX: Final = 4_096
_FRAME: Final = struct.Struct(">?I")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Tell = Callable[[bytes], None]


class ApartFailed(Exception):
    """Error: the fork failed or exited without an answer. The message has the cause."""


class TookTooLong(ApartFailed):
    """Error: the fork did not answer within the time limit."""


async def apart(work: Callable[[Tell], bytes], *, seconds: float) -> AsyncGenerator[bytes, None]:
    """Run `work` in a fork. Yield what it sends, then its result. Raises ApartFailed, OSError."""
    pid, pipe = _fork(work, seconds)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    try:
        # Only the transport closes the pipe, and later: closing it here as well could close an
        # unrelated connection that has got the same descriptor in the meantime.
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", 0)
        )
        try:
            last, until = False, loop.time() + seconds
            while not last:
                try:
                    async with asyncio.timeout_at(until):
                        head = await reader.readexactly(_FRAME.size)
                        last, size = _FRAME.unpack(head)
                        frame = await reader.readexactly(size)
                except TimeoutError:
                    raise TookTooLong("timed out") from None
                except asyncio.IncompleteReadError:
                    raise ApartFailed("the worker process ended without an answer") from None
                yield frame
        finally:
            transport.close()
    finally:
        _end(pid)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)  # it has answered, so nothing that it still does matters
    os.waitpid(pid, 0)


def _fork(work: Callable[[Tell], bytes], seconds: float) -> tuple[int, int]:
    ours, its = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        with warnings.catch_warnings():
            # Idle threads are harmless: the fork uses none of the locks that they may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _be_the_fork(work, its, seconds)
    except OSError:
        os.close(ours)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(its)
    return pid, ours


def _be_the_fork(work: Callable[[Tell], bytes], pipe: int, seconds: float) -> None:
    """Run the work in the fork, send the answer and exit; never return to the parent's code."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            inherited = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
        except OSError:  # another system than Linux
            inherited = list(range(3, FILES_MAX))
        for file in inherited:
            if file not in (0, 1, 2, pipe):
                with contextlib.suppress(OSError):
                    os.close(file)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        limit = int(seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        os.nice(NICE)
        gc.freeze()  # the collector writes to objects that it visits, which unshares their pages
        _send(pipe, work(lambda said: _send(pipe, said)), last=True)
        code = 0
    except BaseException as error:  # noqa: BLE001 - no caller is above us
        with contextlib.suppress(OSError):
            os.write(2, f"worker process failed: {error!r}\n".encode())
    finally:
        os._exit(code)


def _send(pipe: int, data: bytes, *, last: bool = False) -> None:
    message = memoryview(_FRAME.pack(last, len(data)) + data)
    while message:
        message = message[os.write(pipe, message) :]
