"""Tests of a service in a process of its own: signals, restarts, exit codes and readiness."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from apportion.runtime.service.lifecycle import EXIT_CONFIG, EXIT_ERROR, EXIT_OK, EXIT_STUCK
from tests.support.polling import until

PRELUDE = """
import asyncio, signal, sys
from apportion.runtime.service import lifecycle
from apportion.runtime.process.config import read_config
from apportion.runtime.ledger.port import LedgerUnavailable, LedgerDrifted
config = read_config({"log_format": "json", "stop_timeout_s": "1"},
                     environ={"APPORTION_NATS_URL": "nats://a:b@127.0.0.1:4222"})
lives = []
"""
POSTLUDE = "\nsys.exit(lifecycle.run_service('test', main, config))\n"


class Process:
    """A service in a child process, with its log lines."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child = child
        self.lines: list[dict[str, object]] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.child.stderr is not None
        while line := await self.child.stderr.readline():
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.lines.append({"event": line.decode()})

    async def logged(self, event: str) -> dict[str, object]:
        """Wait for the first log line of this event, and return the line."""

        async def there() -> dict[str, object] | None:
            return next((line for line in self.lines if line["event"] == event), None)

        found = await until(there, f"the log line {event!r}, have {self.lines}")
        assert found is not None
        return found

    async def exit_code(self) -> int:
        code = await self.child.wait()
        await self._reading
        return code


Run = Callable[[str], Awaitable[Process]]


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    """Provide a function that starts a service whose body is the given source code."""
    started: list[Process] = []

    async def start(body: str) -> Process:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PRELUDE + body + POSTLUDE, stderr=asyncio.subprocess.PIPE
        )
        started.append(Process(child))
        return started[-1]

    yield start
    for process in started:
        if process.child.returncode is None:
            process.child.kill()
        await process.exit_code()


FOREVER = """
async def main(service):
    async def beat():
        try:
            await asyncio.Event().wait()
        finally:
            service.log.info("cleaned up")
    service.loop("beat", beat)
    service.log.info("body")
"""


ELSEWHERE = """
import msgspec
from apportion.runtime.process.config import Address
config = msgspec.structs.replace(config, health=Address("0.0.0.0", 0))
"""


@pytest.mark.parametrize(
    ("first", "host", "status"),
    [
        ("", "elsewhere.example", 403),
        ("", "localhost", 200),
        ("", "127.0.0.1", 200),
        (ELSEWHERE, "10.0.0.7", 401),
        (ELSEWHERE, "scheduler.apportion.svc", 401),
    ],
)
async def test_a_site_that_calls_itself_this_machine_reads_no_metrics(
    run: Run, first: str, host: str, status: int
) -> None:
    """On a loopback address, a request for metrics needs a local Host header, against DNS
    rebinding. Probes need no such header."""
    process = await run(first + FOREVER)
    port = str((await process.logged("started"))["health"]).split(":")[2].split("/")[0]
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        for path, expected in (("/metrics", status), ("/healthz", 200)):
            async with session.get(path, headers={"Host": f"{host}:{port}"}) as answer:
                assert answer.status == expected, path


async def test_other_machines_read_metrics_with_the_token_alone(run: Run, tmp_path: Path) -> None:
    """On a public address, a request for metrics needs the token in the `--metrics-token` file. The
    file may be created later. Probes need no token."""
    token = tmp_path / "metrics.token"
    setting = f"config = msgspec.structs.replace(config, metrics_token=Path({str(token)!r}))\n"
    process = await run(f"{ELSEWHERE}from pathlib import Path\n{setting}{FOREVER}")
    port = str((await process.logged("started"))["health"]).split(":")[2].split("/")[0]
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

        async def status(sent: str, path: str = "/metrics") -> int:
            headers = {"Authorization": sent} if sent else {}
            async with session.get(path, headers=headers) as answer:
                return answer.status

        assert [await status(sent) for sent in ("", "Bearer", "Bearer sesame")] == [401] * 3
        token.write_text("sesame\n")
        assert await status("Bearer sesame") == 200
        wrong = ("", "Bearer", "Bearer open", "Basic sesame", "sesame")
        assert [await status(sent) for sent in wrong] == [401] * len(wrong)
        assert [await status("", path) for path in ("/healthz", "/readyz")] == [200, 503]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_service_cleanly(run: Run, number: signal.Signals) -> None:
    """On SIGTERM or SIGINT, the service stops cleanly with exit code 0."""
    process = await run(FOREVER)
    await process.logged("body")
    process.child.send_signal(number)
    assert await process.exit_code() == EXIT_OK
    assert [line["event"] for line in process.lines][-3:] == ["stopping", "cleaned up", "stopped"]


async def test_a_loop_that_will_not_stop_is_named_and_left_behind(run: Run) -> None:
    """If one of the service's loops does not stop in time, its name is logged and the process exits
    anyway."""
    process = await run(
        """
async def main(service):
    async def stubborn():
        while True:
            try:
                service.log.info("body")
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
    service.loop("stubborn", stubborn)
"""
    )
    await process.logged("body")
    process.child.terminate()
    assert await process.exit_code() == EXIT_STUCK
    line = await process.logged("stop timed out")
    assert "stubborn" in str(line["tasks"])


async def test_a_thread_that_does_not_end_is_left_behind(run: Run) -> None:
    """The process exits in time even if one of its threads does not end."""
    process = await run(
        """
import time
async def main(service):
    print("at it", file=sys.stderr, flush=True)
    await asyncio.to_thread(time.sleep, 600)
"""
    )
    await process.logged("at it\n")
    process.child.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.exit_code(), 10) == EXIT_OK


async def test_a_failing_loop_drops_the_body_and_begins_anew(run: Run) -> None:
    """If one of the service's loops fails, the service ends all other loops. It then runs its main
    function again, which starts the loops."""
    process = await run(
        """
async def main(service):
    lives.append(1)
    service.log.info("body", life=len(lives))
    async def failing():
        if len(lives) < 3:
            raise RuntimeError("surprise")
        await asyncio.Event().wait()
    async def other():
        try:
            await asyncio.Event().wait()
        finally:
            service.log.info("other ended", life=len(lives))
    service.loop("other", other)
    service.loop("failing", failing)
    if len(lives) == 3:
        service.log.info("third life")
"""
    )
    await process.logged("third life")
    errors = [line for line in process.lines if line["event"] == "unexpected error"]
    assert len(errors) == 2
    assert "RuntimeError: surprise" in str(errors[0]["exception"])
    assert "in loop 'failing'" in str(errors[0]["exception"])
    assert sum(line["event"] == "other ended" for line in process.lines) == 2
    process.child.terminate()
    assert await process.exit_code() == EXIT_OK


async def test_a_body_that_keeps_failing_ends_the_process(run: Run) -> None:
    """If the service's main function or its loops fail too often within a minute, the process
    exits."""
    process = await run(
        """
lifecycle.BACK_OFF = lifecycle.BACK_OFF._replace(longest_s=0.01)
async def main(service):
    raise RuntimeError("always")
"""
    )
    assert await process.exit_code() == EXIT_ERROR
    assert (await process.logged("too many failures, giving up"))["failures"] == 6


async def test_an_absent_ledger_is_waited_for_without_bound(run: Run) -> None:
    """If the ledger does not exist, the service waits for it without a time limit."""
    process = await run(
        """
lifecycle.BACK_OFF = lifecycle.BACK_OFF._replace(longest_s=0.01)
async def main(service):
    lives.append(1)
    if len(lives) < 20:
        raise LedgerUnavailable("no server")
    service.log.info("there at last")
    await asyncio.Event().wait()
"""
    )
    await process.logged("there at last")
    assert sum("the ledger" in str(line["event"]) for line in process.lines) == 19
    process.child.terminate()
    assert await process.exit_code() == EXIT_OK


async def test_pauses_grow_while_the_ledger_is_absent(run: Run) -> None:
    """While the ledger is absent, the pause before each restart of the service is longer than the
    last, because the server limits how many connections a token may open."""
    process = await run(
        """
pauses = []
class Pauses:
    def after(self, failures):
        pauses.append(failures)
        return 0.0
lifecycle.BACK_OFF = Pauses()
async def main(service):
    lives.append(1)
    if len(lives) < 5:
        raise LedgerUnavailable("no server")
    service.log.info("there at last", pauses=pauses)
    await asyncio.Event().wait()
"""
    )
    assert (await process.logged("there at last"))["pauses"] == [1, 2, 3, 4]
    process.child.terminate()
    assert await process.exit_code() == EXIT_OK


async def test_what_trying_again_cannot_mend_ends_at_once(run: Run) -> None:
    """If retries cannot solve an error, the process exits at once with exit code 78."""
    process = await run(
        """
async def main(service):
    raise LedgerDrifted("stream APPORTION deny_delete", False, True)
"""
    )
    assert await process.exit_code() == EXIT_CONFIG
    line = await process.logged("cannot continue")
    for part in ("deny_delete", "False", "True"):
        assert part in str(line["error"])


async def test_a_taken_health_port_ends_at_once(run: Run) -> None:
    """If the health port is in use, the process exits with an error that names the address."""
    first = await run(FOREVER)
    address = str((await first.logged("started"))["health"]).split("/")[2]
    taken = f"""
config = read_config({{"health": "{address}", "log_format": "json"}},
                     environ={{"APPORTION_NATS_URL": "nats://h:1"}})
"""
    second = await run(taken + FOREVER)
    assert await second.exit_code() == EXIT_CONFIG
    assert address in str((await second.logged("cannot start"))["error"])


async def test_ready_follows_the_body(run: Run) -> None:
    """The readiness probe fails while the service's main function reports reasons. The service is
    ready as soon as the main function reports no more reasons."""
    process = await run(
        """
async def main(service):
    ready = asyncio.Event()
    service.ready_when(lambda: [] if ready.is_set() else ["folding: 3 of 9"])
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, ready.set)
    service.log.info("body")
    await asyncio.Event().wait()
"""
    )
    url = str((await process.logged("started"))["health"])
    await process.logged("body")

    async def ask() -> tuple[int, object]:
        async with aiohttp.request("GET", url) as page:
            return page.status, (await page.json())["reasons"]

    assert await ask() == (503, ["folding: 3 of 9"])
    process.child.send_signal(signal.SIGUSR1)

    async def ready() -> bool:
        return await ask() == (200, [])

    await until(ready, "the service to be ready")
