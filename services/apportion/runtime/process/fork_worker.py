"""Work on what this process holds, done by a fork of it: the memory is shared, the time is not.

A fork has at once, and without copying, all that the process had at that moment. It works at the
lowest priority, sends what it has to say through a pipe, and ends. Invariants: nothing that it does
changes this process; it ends with it, or once its time is over; it holds none of its connections.
"""

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
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""See prctl(2)."""
NICE: Final = 10
FILES_MAX: Final = 4_096
STANDARD: Final = (0, 1, 2)
_FRAME: Final = struct.Struct(">?I")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Tell = Callable[[bytes], None]


class ApartFailed(Exception):
    """The fork ended without an answer; the message says how."""


class TookTooLong(ApartFailed):
    """The fork had not answered when its time was over."""


async def apart(work: Callable[[Tell], bytes], *, seconds: float) -> AsyncGenerator[bytes, None]:
    """What a fork of this process tells while it does `work`, and last what that returns.

    Raises TookTooLong, ApartFailed: there is no answer. OSError: there is no process or memory
    left."""
    pid, pipe = _fork(work, seconds)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    try:
        # The transport closes the pipe, and not at once: closed here as well, its number may be
        # that of somebody's connection by then.
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", 0)
        )
        try:
            async for frame in _frames(reader, loop.time() + seconds):
                yield frame
        finally:
            transport.close()
    finally:
        _end(pid)


def _end(pid: int) -> None:
    """Nothing that it does after its answer matters; it is ours until we have waited for it."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


async def _frames(reader: asyncio.StreamReader, until: float) -> AsyncIterator[bytes]:
    last = False
    while not last:
        try:
            async with asyncio.timeout_at(until):
                head = await reader.readexactly(_FRAME.size)
                last, size = _FRAME.unpack(head)
                frame = await reader.readexactly(size)
        except TimeoutError:
            raise TookTooLong("the time was over") from None
        except asyncio.IncompleteReadError:
            raise ApartFailed("it ended without an answer") from None
        yield frame


def _fork(work: Callable[[Tell], bytes], seconds: float) -> tuple[int, int]:
    """The fork, and the end of the pipe where it is heard. Raises OSError."""
    ours, its = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        with warnings.catch_warnings():
            # Threads that wait for work are no harm to a fork that uses none of what they hold.
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
    """Work, answer and end; nothing of the process that we are a copy of is ever run again."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _close_all_but(pipe)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        limit = int(seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        os.nice(NICE)
        gc.freeze()  # what is shared stays shared: the collector writes into whatever it looks at
        _send(pipe, work(lambda said: _send(pipe, said)), last=True)
        code = 0
    except BaseException as error:  # noqa: BLE001 - there is nobody above us
        with contextlib.suppress(OSError):
            os.write(2, f"what was done apart failed: {error!r}\n".encode())
    finally:
        os._exit(code)


def _close_all_but(pipe: int) -> None:
    """Let go of every connection and file; a limit of a million of them is no reason to count."""
    try:
        numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    except OSError:  # another system than Linux
        numbers = list(range(3, FILES_MAX))
    for number in numbers:
        if number not in (*STANDARD, pipe):
            with contextlib.suppress(OSError):
                os.close(number)


def _send(pipe: int, data: bytes, *, last: bool = False) -> None:
    message = memoryview(_FRAME.pack(last, len(data)) + data)
    while message:
        message = message[os.write(pipe, message) :]
