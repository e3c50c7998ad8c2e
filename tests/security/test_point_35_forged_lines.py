"""A pod's name has line breaks or control codes, to forge log lines or terminal output.

Without the guards, the log prints the line breaks and `--json` prints the control codes."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from apportion_schemas import PodGone
from tests.support.facts import Facts
from tests.support.nats import Bus
from tests.support.pods import ask, pod
from tests.support.polling import until
from tests.support.processes import NO_AGENTS, environment

FORGED = "2026-01-01 00:00:00 [error    ] the ledger lost events"
NAME = f"x\x1b[2J\x9b2J\u202e\u2028\x7f\r\n{FORGED}"
ACTS = "\x1b\x9b\u202e\u2028\x7f\r"


def command(guard: str, *words: str) -> list[str]:
    """Return a command line that runs a verb with the named guard removed."""
    module = ["tests.security.weakened", guard, "--"] if guard else ["apportion.cli.main"]
    return [sys.executable, "-m", *module, *words]


@pytest.mark.parametrize("without", ["writes one event a line", ""], ids=["weak", "guarded"])
async def test_a_name_does_not_write_a_line(bus: Bus, tmp_path: Path, without: str) -> None:
    """A pod's name with line breaks writes no line of its own into the log, and the scheduler
    continues."""
    facts = Facts(bus)
    await facts.open()
    log = tmp_path / "scheduler.log"
    url = bus.server.url_for("scheduler")
    words = command(without, "scheduler", "--nats", url, "--log-format", "console", *NO_AGENTS)
    with log.open("wb") as file:
        running = await asyncio.create_subprocess_exec(
            *words, "--health", "127.0.0.1:0", stderr=file, env=environment(None)
        )
    try:
        await facts.write(PodGone(uid=NAME))

        async def said() -> bool:
            return "is not live" in log.read_text()

        await until(said, "the scheduler to say that it does not know the pod")
    finally:
        running.terminate()
        await running.wait()
    lines = log.read_bytes().decode().splitlines()
    forged = any(line.startswith(FORGED) for line in lines)
    acts = any(each in log.read_text() for each in ACTS)
    assert (forged, acts) == ((True, True) if without else (False, False))
    if not without:
        [line] = [line for line in lines if "is not live" in line]
        assert r"pod x\x1b[2J\x9b2J\u202e\u2028\x7f\r\n2026-01-01" in line


@pytest.mark.parametrize("without", ["escapes what it prints", ""], ids=["weak", "guarded"])
@pytest.mark.parametrize("json_asked", [True, False], ids=["json", "words"])
async def test_what_is_printed_acts_nowhere(bus: Bus, without: str, json_asked: bool) -> None:
    """Control codes in a pod's name are escaped in the output, with and without `--json`."""
    facts = Facts(bus)
    await facts.open()
    await facts.write(pod(NAME, ask(1000)))
    words = command(without, "tail", "--from", "1", "--no-follow", *["--json"] * json_asked)
    environ = {**environment(None), "APPORTION_NATS_URL": bus.server.url_for("operator")}
    done = await asyncio.to_thread(
        subprocess.run, words, env={**os.environ, **environ}, capture_output=True, check=True
    )
    printed = done.stdout.decode()
    assert any(each in printed for each in ACTS) == bool(without)
    if json_asked:
        [line] = printed.splitlines() if not without else printed.split("\n")[:-1]
        assert json.loads(line)["event"]["data"]["name"] == NAME
    elif not without:
        assert len(printed.splitlines()) == 1
