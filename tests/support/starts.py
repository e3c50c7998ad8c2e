"""Start services and CLI verbs as forks of a process that has already imported their modules.

This saves the imports, which are most of the cost of a short-lived verb. After `use(True)`,
`subprocess` and `asyncio` fork for each command that runs a service or `python -m
apportion.cli.main`. They execute all other commands as usual, also those that change how Python
starts (`PYTHONPATH`, a locale, a terminal).

Invariant: a fork looks like a new process. It is a child of the test's process with its own id,
exit status, signals, environment and descriptors, and `/proc` shows its own command line.

    python -m tests.support.starts      the process to fork from; requests come on standard input"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import itertools
import json
import os
import pkgutil
import platform
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

VERB: Final = ["-m", "apportion.cli.main"]
UP_FORKS: Final = ["-m", "apportion.cli.up.fork_server"]
SERVICE: Final = re.compile(r"\s*from apportion\.\w+\.main import command; command\(\)\s*")
INTERPRETER: Final = re.compile(r"PYTHON|LD_|LC_|LANG|MALLOC_|GLIBC_|OPENSSL_")
"""Variables that are read before any of our code runs: a fork would not notice a change."""
ORDER_BYTES: Final = 120_000
ARGUMENT_BYTES: Final = 24_000
ENVIRONMENT_BYTES: Final = 48_000
PADDING: Final = "APPORTION_TEST_PADDING"
NO_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""Without this, importing NumPy starts threads, which a fork would not have."""
CLONE_PARENT: Final = 0x8000
CLONE: Final = {"x86_64": 56, "aarch64": 220}
"""The system call number of clone(2), by architecture."""

Asked: Final = namedtuple(  # noqa: PYI024 - the parameters of Popen._execute_child have no types
    "Asked",
    "args executable preexec_fn close_fds pass_fds cwd env startupinfo creationflags shell"
    " p2cread p2cwrite c2pread c2pwrite errread errwrite"
    " restore_signals gid gids uid umask start_new_session process_group",
)
_execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_lock = threading.Lock()
_orders: list[socket.socket] = []
_process: list[subprocess.Popen[bytes]] = []
_numbers: Final = itertools.count(1)
_begun: dict[str, str] = {}
"""The environment with which the process to be forked was itself started."""


def use(wanted: bool) -> None:
    """Choose whether later processes are forks of a process that has imported their modules.

    If `wanted` is False or this machine cannot fork like that, they start as new processes."""
    possible = sys.platform == "linux" and platform.machine() in CLONE
    chosen = _fork_or_execute if wanted and possible else _execute
    subprocess.Popen._execute_child = chosen  # type: ignore[attr-defined]


def end() -> None:
    """End the process that tests fork from. Existing forks continue to run."""
    use(False)
    for orders in _orders:
        orders.close()
    for process in _process:
        process.wait()
    _orders.clear()
    _process.clear()


def _fork_or_execute(popen: subprocess.Popen[Any], *given: Any) -> None:
    """Replace `Popen._execute_child`: fork where a fork behaves the same, and execute otherwise."""
    asked = Asked(*given)
    words = [os.fspath(each) for each in asked.args] if isinstance(asked.args, list | tuple) else []
    environment = dict(os.environ if asked.env is None else asked.env)
    wanted = (asked.p2cread, asked.c2pwrite, asked.errwrite)
    files = [own if number == -1 else number for own, number in enumerate(wanted)]
    if (
        any((asked.executable, asked.preexec_fn, asked.pass_fds, asked.shell))
        or (asked.gid, asked.gids, asked.uid, asked.umask) != (None, None, None, -1)
        or asked.process_group not in {None, -1}
        or any(map(os.isatty, files))
        or not _forkable(words, environment)
    ):
        _execute(popen, *given)
        return
    order = {
        "words": words, "environment": environment, "folder": str(asked.cwd or Path.cwd()),
        "session": asked.start_new_session,
    }  # fmt: skip
    try:
        popen.pid = _order(json.dumps(order).encode(), files)
        popen._child_created = True  # type: ignore[attr-defined]
    finally:
        ends = given[Asked._fields.index("p2cread") :][:6]
        popen._close_pipe_fds(*ends)  # type: ignore[attr-defined]


def _forkable(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return True if a fork behaves like a process executed with these words and environment."""
    if not all(isinstance(each, str) for each in (*words, *environment, *environment.values())):
        return False
    if len(words) < 3 or words[0] != sys.executable:
        return False
    if words[1:3] != VERB and not (words[1] == "-c" and SERVICE.fullmatch(words[2])):
        return False
    begun = _begun or os.environ
    names = filter(INTERPRETER.match, {*environment, *begun})
    return (
        all(environment.get(name) == begun.get(name) for name in names)
        and len("\0".join(words).encode(errors="surrogateescape")) < ARGUMENT_BYTES
        and len(_block(environment)) < ENVIRONMENT_BYTES
    )


def _order(order: bytes, files: Sequence[int]) -> int:
    """Request a fork, and return its process id.

    If an earlier test timed out, first read the answer to its request and kill that fork."""
    with _lock:
        if not _orders:
            _start()
        wanted = next(_numbers)
        socket.send_fds(_orders[0], [b"%d " % wanted + order], files)
        while answer := _orders[0].recv(64):
            number, pid = map(int, answer.split())
            if number == wanted:
                return pid
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    raise ChildProcessError("the process that is forked has ended; see its standard error")


def _start() -> None:
    _begun.update(os.environ)
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        _process.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.starts", "." * ARGUMENT_BYTES],
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                env=os.environ | {PADDING: "." * ENVIRONMENT_BYTES, **NO_THREADS},
                cwd=Path(__file__).parents[2],
            )
        )
    _orders.append(ours)


# ------------------------------------------------------------------ the process that is forked


def _import_everything() -> None:
    import apportion  # noqa: PLC0415 - only the process that is forked has all of it

    for found in pkgutil.walk_packages(apportion.__path__, "apportion."):
        importlib.import_module(found.name)
    [_itself] = Path("/proc/self/task").iterdir()  # another thread would be missing in every fork


def _clone() -> int:
    """Fork this process, but give the child the same parent as this process."""
    api, libc = ctypes.pythonapi, ctypes.PyDLL(None)
    api.PyOS_BeforeFork()
    pid = int(libc.syscall(CLONE[platform.machine()], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid:
        api.PyOS_AfterFork_Parent()
    else:
        api.PyOS_AfterFork_Child()
    return pid


def _serve() -> None:
    """Fork processes on request until the tests have ended."""
    # Its own descriptor, because a fork's standard input replaces descriptor 0.
    orders = socket.socket(fileno=os.dup(0))
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end of the tests ends this process
    _import_everything()
    gc.collect()
    gc.freeze()
    while True:
        data, files, *_ = socket.recv_fds(orders, ORDER_BYTES, 3)
        if not data:
            return
        asked, _, order = data.partition(b" ")
        pid = _clone()
        if not pid:
            orders.close()
            _become(json.loads(order), files)
        for file in files:
            os.close(file)
        orders.send(b"%s %d" % (asked, pid))


def _fork_for_up(popen: subprocess.Popen[Any], *given: Any) -> None:
    """Replace `Popen._execute_child` in a forked `apportion up`.

    If `up` starts its helper process, from which it starts services, fork `up`. Otherwise execute
    the command."""
    asked = Asked(*given)
    words = [os.fspath(each) for each in asked.args] if isinstance(asked.args, list | tuple) else []
    if words[:3] != [sys.executable, *UP_FORKS] or len(list(Path("/proc/self/task").iterdir())) > 1:
        _execute(popen, *given)
        return
    sys.stdout.flush()
    popen.pid = os.fork()
    if not popen.pid:
        numbers = (asked.p2cread, asked.c2pwrite, asked.errwrite)
        files = [os.dup(own if each == -1 else each) for own, each in enumerate(numbers)]
        order = {
            "words": words, "environment": dict(os.environ if asked.env is None else asked.env),
            "folder": str(asked.cwd or Path.cwd()), "session": asked.start_new_session,
        }  # fmt: skip
        _become(order, files)
    popen._child_created = True  # type: ignore[attr-defined]
    popen._close_pipe_fds(*given[Asked._fields.index("p2cread") :][:6])  # type: ignore[attr-defined]


def _become(order: Mapping[str, Any], files: Sequence[int]) -> None:
    """Turn this fork into the requested process, and run its code."""
    for own, number in enumerate(files):
        os.dup2(number, own)
        os.close(number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    subprocess.Popen._execute_child = _fork_for_up  # type: ignore[attr-defined]
    if order["session"]:
        os.setsid()
    os.chdir(order["folder"])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    words, environment = order["words"], order["environment"]
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    _show(words, environment)
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before, raw = getattr(sys, name), io.FileIO(number, "rb" if number == 0 else "wb", False)
        buffer = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
        text = io.TextIOWrapper(
            buffer, before.encoding, before.errors,
            line_buffering=number == 2, write_through=unbuffered and number > 0,
        )  # fmt: skip
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    try:
        if words[1] == "-c":
            sys.argv = ["-c", *words[3:]]
            exec(compile(words[2], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
        else:
            module = importlib.import_module(words[2])
            sys.argv = [str(module.__file__), *words[3:]]
            module.main()
        _exit(0)
    except SystemExit as ended:
        _exit(ended.code)


def _exit(code: object) -> None:
    """End the process as the interpreter does, but skip the costly cleanup of each module."""
    if not isinstance(code, int | None):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120  # as Python does if its output is closed
    os._exit((code or 0) & 0xFF)


def _block(environment: Mapping[str, str]) -> bytes:
    listed = (f"{name}={value}\0" for name, value in environment.items())
    return "".join(listed).encode(errors="surrogateescape")


def _show(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Make `/proc` show this command line and this environment for the process, by writing them to
    its memory."""
    listed = "".join(f"{each}\0" for each in words).encode(errors="surrogateescape")
    behind_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arg_start, arg_end, env_start, env_end = map(int, behind_name[45:49])  # 48 to 51 of proc(5)
    for start, end_, block in (
        (arg_start, arg_end, listed),
        (env_start, env_end, _block(environment)),
    ):
        ctypes.memset(start, 0, end_ - start)
        ctypes.memmove(start, block, min(len(block), end_ - start - 1))


if __name__ == "__main__":
    _serve()
