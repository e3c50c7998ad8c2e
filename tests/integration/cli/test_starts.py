"""A test process that starts as a fork behaves like one that users start as a program."""

import asyncio
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support import starts
from tests.support.polling import until
from tests.support.standalone import APPORTION


@pytest.fixture(params=[False, True], ids=["executed", "forked"], autouse=True)
def _both_ways(request: pytest.FixtureRequest) -> None:
    """Run each test twice: once with forks, and once with processes that execute a program."""
    starts.use(request.param)


@pytest.mark.parametrize(
    ("words", "code", "stream"),
    [
        (["version"], 0, "stdout"),
        (["check", "-f", "pod.yaml"], 1, "stdout"),
        (["no-such"], 2, "stderr"),
    ],
)
def test_it_prints_and_exits(words: list[str], code: int, stream: str, tmp_path: Path) -> None:
    """A command exits with the expected code, writes only to stdout or only to stderr as expected,
    and finds a file by its relative path."""
    (tmp_path / "pod.yaml").write_text("kind: Pod\n")
    done = subprocess.run(
        [*APPORTION, *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == code
    assert [name for name in ("stdout", "stderr") if getattr(done, name)] == [stream]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_it_is_a_process_of_its_own(tmp_path: Path, number: signal.Signals) -> None:
    """A process that is started as a fork has its own command line, environment and folder."""
    words = [*APPORTION, "check", "-f", "-"]
    kept = {name: each for name, each in os.environ.items() if starts.INTERPRETER.match(name)}
    environment = kept | {"PATH": os.environ["PATH"], "MARK": "its own"}
    process = await asyncio.create_subprocess_exec(
        *words, env=environment, cwd=tmp_path, stdin=subprocess.PIPE, start_new_session=True
    )
    proc = Path(f"/proc/{process.pid}")
    try:

        async def shown() -> bool:
            lines = (proc / "environ").read_text().split("\0")
            shown = dict(line.split("=", 1) for line in lines if line.isprintable() and line)
            asked = (proc / "cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
            return asked == words and shown == environment

        await until(shown, "it to be what was started")
        assert (proc / "cwd").readlink() == tmp_path
        status = (proc / "status").read_text()
        assert re.findall(r"^PPid:\s(\d+)", status, re.MULTILINE) == [str(os.getpid())]
        assert os.getsid(process.pid) == process.pid
        process.send_signal(number)
        assert await process.wait() == -number
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
