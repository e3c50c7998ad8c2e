"""Run `apportion up` once, from starting its processes to ending them.

Invariant: however the run ends, none of its processes is left."""

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
import sysconfig
import time
from pathlib import Path
from urllib.parse import urlsplit

import click
import msgspec

from apportion.cli.client.configuration import configuration_now
from apportion.cli.client.connection import (
    CONNECTION,
    MAX_BYTES_ENV,
    TOKEN_ENV,
    Connection,
    Where,
    elsewhere,
    write_connection,
)
from apportion.cli.client.gateway_client import WAIT_S, Gateway
from apportion.cli.client.ledger import open_ledger
from apportion.cli.exits import REFUSED, NotFound, Unreachable
from apportion.cli.pods.append import append, look_up
from apportion.cli.pods.decisions import Awaited
from apportion.cli.pods.live_diff import only_new
from apportion.cli.pods.manifest_files import read_manifests
from apportion.cli.render.output import Screen, console, phase
from apportion.cli.render.rows import Rows
from apportion.cli.render.tables import short_name, shown_phase
from apportion.cli.up import fleet as kept_fleet
from apportion.cli.up.fleet import PRICES_ENV, Wanted
from apportion.cli.up.fork_server import ForkServer
from apportion.cli.up.supervisor import Child, HeldPort, Supervisor, UpFailed, why_taken
from apportion.core.answers.reads import DeviceAnswer, PodAnswer, PodDetail, RevisionAnswer, Why
from apportion.core.configuration import manifest_config
from apportion.core.explain.health import FREEZES
from apportion.core.explain.text import words
from apportion.core.explain.text.event_text import shares_words
from apportion.core.explain.text.words import many
from apportion.runtime.files.manifests import Problem, Wish
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.server.embedded import ServerFailed, credentials_file
from apportion.runtime.ledger.port import LedgerError

FREEZE_LOOK_S = 2.0
NO_SAMPLES = (
    "no sample pods, as this ledger began without them; add pods with `apportion submit -f FILE`"
)


def stand(wanted: Wanted, fork_server: ForkServer) -> int:
    """Run `up` until it ends, and return the exit code. Raises Unreachable."""
    try:
        return asyncio.run(Up(wanted, fork_server).run())
    except (ServerFailed, UpFailed, LedgerError, OSError) as error:
        raise Unreachable(f"cannot start: {error}") from None


class Up:
    """One run of `apportion up`: its processes, its sample pods and its output."""

    def __init__(self, wanted: Wanted, fork_server: ForkServer) -> None:
        self._wanted = wanted
        self._out = console()
        self._where = Where(data=wanted.data)
        self._any_port = HeldPort()
        self._telling: asyncio.Task[None] | None = None
        self._gateway = f"127.0.0.1:{wanted.port}"

        def changed() -> None:
            url, pids = f"http://{self._gateway}", self._supervisor.pids()
            write_connection(wanted.data, Connection(gateway=url, processes=pids))

        self._supervisor = Supervisor(
            wanted.data, wanted.nats_port, fork_server, say=self._out.say, changed=changed
        )

    async def run(self) -> int:
        """Start, submit samples, wait, and stop. Raises ServerFailed, UpFailed, LedgerError."""
        work = asyncio.ensure_future(self._work())

        def interrupt() -> None:
            """Stop gracefully at the first signal, and kill the services at the second."""
            if work.done():
                self._supervisor.kill()
            work.cancel()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, interrupt)
        try:
            return await work
        except asyncio.CancelledError:
            return 0
        finally:
            if self._telling is not None:
                self._telling.cancel()
            started = self._supervisor.started
            if started:
                self._out.say("stopping")
                with contextlib.suppress(OSError):
                    (self._wanted.data / CONNECTION).unlink(missing_ok=True)
            await self._supervisor.stop()
            self._any_port.release()
            if self._wanted.ephemeral:
                shutil.rmtree(self._wanted.data, ignore_errors=True)
            if started:
                self._out.say("stopped")

    async def _work(self) -> int:
        await self._start()
        self._out.say(f"all services ready after {time.monotonic() - self._wanted.began_s:.1f} s")
        self._start_service("watcher", ("--by-hand",))  # not needed before an eviction
        self._telling = asyncio.create_task(self._tell_freezes())
        code = 0
        if self._wanted.samples and not kept_fleet.without_samples(self._wanted.data):
            samples = await submit_samples(self._where, self._out)
            show_samples(self._out, samples)
            if samples.never:
                self._out.say(
                    f"{samples.never} of {many(len(samples.pods), 'sample')} can never fit on "
                    f"{self._wanted.fleet.name}: the samples are for the default fleet; omit them "
                    "with --no-samples"
                )
            if samples.first_placed_s:
                took_s = samples.first_placed_s - self._wanted.began_s
                self._out.say(f"first pod placed {took_s:.1f} s after start")
            code = REFUSED if samples.refused else 0
        await self.tell_unpriced()
        if self._wanted.exit_after_samples:
            return code
        await self._supervisor.ready()
        self._tell_how_to_look()
        raise await self._supervisor.failed()

    async def _start(self) -> None:
        wanted, supervisor = self._wanted, self._supervisor
        supervisor.server.take()  # first, because another `up` on it uses the ports too
        if why := kept_fleet.refusal(wanted.data, wanted.fleet):
            raise UpFailed(why)
        if not wanted.port:
            self._gateway = self._any_port.take()
        check_ports(self._gateway, wanted.nats_port)
        goes_on = kept_fleet.kept(wanted.data) is not None
        await supervisor.start_server(remove=wanted.ephemeral)
        kept_fleet.keep(wanted.data, wanted.fleet, samples=wanted.samples)
        server = supervisor.server
        ledger = await jetstream.connect(
            server.credentials.reach_for("bootstrap"), name="apportion up"
        )
        size = -1 if wanted.max_bytes is None else wanted.max_bytes
        try:
            info = await jetstream.create_stream(ledger, max_bytes=size)
            if wanted.max_bytes is not None and info.config.get("max_bytes") != size:
                await stream.resize(ledger.wire, max_bytes=size)
        except stream.SizeRefused as refused:
            raise UpFailed(f"--max-bytes (or {MAX_BYTES_ENV}): {refused.why}") from refused
        finally:
            await ledger.close()
        self._out.say(f"ledger at 127.0.0.1:{server.port}, data in {wanted.data}")
        if goes_on:
            self._out.say(f"continuing with its fleet: {wanted.fleet.name}")
            if wanted.samples and kept_fleet.without_samples(wanted.data):
                self._out.say(NO_SAMPLES)
        past, monitor = str(wanted.data / "past"), server.monitor_url
        gateway = ("--listen", self._gateway, "--past", past, "--monitor", monitor)
        self._start_service("intake")
        self._start_service("agent", wanted.agent)
        self._start_service("scheduler")
        self._start_service("binder")
        self._start_service("gateway", gateway)
        with self._out.status("starting intake, agent, scheduler, binder, gateway"):
            await supervisor.ready()

    def _start_service(self, name: str, arguments: tuple[str, ...] = ()) -> None:
        log = self._wanted.data / "logs" / f"{name}.log"
        environment = self._supervisor.server.credentials.environment_for(name)
        self._supervisor.start(Child(name, arguments, environment, log))

    async def _tell_freezes(self) -> None:
        """Print when placements stop and why, and when they resume.

        A cause counts if found twice in a row, as a scheduler's restart causes a short stop."""
        gateway, reported, before = Gateway(self._where.gateway_url()), "", ""
        while True:
            await asyncio.sleep(FREEZE_LOOK_S)
            try:
                answer = await asyncio.to_thread(gateway.ask, "revision", answer=RevisionAnswer)
            except click.ClickException:
                continue
            found, before = (
                answer.frozen if answer.frozen in ("", before) else reported,
                answer.frozen,
            )
            if found and found != reported:
                why, fix = FREEZES.get(found, (found, "see the logs"))
                self._out.say(f"placements are paused: {why}; {fix}")
            elif reported and not found:
                self._out.say("placements resumed")
            reported = found

    async def tell_unpriced(self) -> None:
        """Print the models of the fleet that have no price, if the gateway answers."""
        if not (file := os.environ.get(PRICES_ENV)):
            return
        # slow to import, and needed for prices only
        from apportion.core.reports.prices import PriceError, lacking_words
        from apportion.runtime.jetstream.reports import read_prices

        try:
            async with open_ledger(self._where.reach()) as ledger:
                newest = await ledger.last_revision()
            query = {"at_least": newest, "wait_s": WAIT_S}
            gateway = Gateway(self._where.gateway_url())
            _, devices = await asyncio.to_thread(gateway.items, "devices", DeviceAnswer, query)
            prices = await asyncio.to_thread(read_prices, Path(file))
        except (click.ClickException, LedgerError):
            return
        except PriceError as error:
            problem = str(error)
        else:
            lacking = prices.lacking(device.model for device in devices if device.present)
            problem = lacking_words(lacking) if lacking else ""
        if problem:
            self._out.say(f"cannot report costs with {file}: {problem}")

    def _tell_how_to_look(self) -> None:
        found = urlsplit(self._supervisor.server.url_for("auditor"))
        url = f"nats://auditor:PASSWORD@{found.hostname}:{found.port}"
        # Another terminal's PATH lacks the virtual environment that is active here.
        scripts, path, to_call = sysconfig.get_path("scripts"), os.get_exec_path(), list[str]()
        if sys.prefix != sys.base_prefix:
            path = [each for each in path if each != scripts]
        if not shutil.which("apportion", path=os.pathsep.join(path)):
            activate = Path(scripts, "activate")
            quoted = shlex.quote(str(activate if activate.exists() else scripts))
            to_call = [f"  . {quoted}" if activate.exists() else f"  PATH={quoted}:$PATH"]
        prefix, login = elsewhere(self._wanted.data), ""
        if token := os.environ.get(TOKEN_ENV):
            login = f'-H "Authorization: Bearer $(cat {shlex.quote(str(Path(token).absolute()))})" '
        self._out.print()
        for line in (
            f"Console: http://{self._gateway}/",
            "In a second terminal, try:",
            *to_call,
            f"  {prefix}apportion top",
            f"  {prefix}apportion get pods",
            f"  {prefix}apportion why POD",
            f"  {prefix}apportion tail --from 1",
            f"  curl {login}http://{self._gateway}/api/v1/pods",
            f"  nats sub -s {url} 'apportion.v1.placement.>'",
            f"  (PASSWORD: see `auditor` in {credentials_file(self._wanted.data)})",
            *self._wanted.advice,
            f"Logs are in {self._wanted.data / 'logs'}. Stop everything with Ctrl-C.",
        ):
            self._out.say(line)


def check_ports(gateway: str, nats_port: int) -> None:
    """Raise UpFailed if ports are in use; the error names them all. Port 0 means any free port."""
    taken, options = [], []
    for address, option in ((gateway, "--port"), (f"127.0.0.1:{nats_port}", "--nats-port")):
        host, _, port = address.rpartition(":")
        if why := why_taken(host, int(port)):
            taken.append(f"{address} ({why})")
            options.append(option)
    if taken:
        free = "a free port" if len(taken) == 1 else "free ports"
        said = f"cannot listen on {' and '.join(taken)}"
        raise UpFailed(f"{said}; choose {free} with {' and '.join(options)}")


DECIDE_TIMEOUT_S = 30.0
_HERE = Path(__file__).parent
SUBMITTED = "samples"  # file in the data folder with the names of samples submitted before
# the package data, or the repository
FOLDERS = (_HERE / "samples", _HERE.parents[3] / "examples" / "pods")


class Samples(msgspec.Struct, frozen=True):
    """The result of submitting the sample pods."""

    pods: list[PodAnswer]
    whys: dict[str, Why]
    problems: list[Problem]
    first_placed_s: float  # monotonic time, or 0

    @property
    def never(self) -> int:
        """Return the number of sample pods that can never fit on the fleet."""
        return sum(why.refused is not None and why.refused.never for why in self.whys.values())

    @property
    def refused(self) -> bool:
        """Return True if any sample was not placed on a node."""
        return bool(self.problems) or any(not pod.node for pod in self.pods)


async def submit_samples(where: Where, out: Screen) -> Samples:
    """Submit the sample pods and wait for decisions. Raises LedgerError, Unreachable."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    if folder is None:
        return Samples([], {}, [Problem("samples", "no sample pods are installed")], 0.0)
    config = manifest_config((await configuration_now(where)).configuration)
    wish, problems = read_manifests([str(folder)], config)
    gateway = Gateway(where.gateway_url())
    async with open_ledger(where.reach()) as ledger:
        newest = await ledger.last_revision()
        basis, live = await asyncio.to_thread(look_up, gateway, wish.pods, at_least=newest)
        record = where.data / SUBMITTED
        before = set(record.read_text("utf-8").split()) if record.exists() else set[str]()
        # Samples that were submitted before and are not live were deleted, and stay so.
        kept = [
            pod
            for pod in wish.pods
            if (name := f"{pod.namespace}/{pod.name}") not in before or name in live
        ]
        gone = {pod.group for pod in wish.pods} - {pod.group for pod in kept}
        groups = {name: group for name, group in wish.groups.items() if name not in gone}
        new = only_new(Wish(kept, groups), live)
        with out.status(f"placing {len(new.pods)} sample pods"):
            submitted = await append(ledger, new, basis=basis, progress=lambda _: None)
            names = before | set(live) | {pod.full_name for pod in submitted}
            record.write_text("".join(f"{name}\n" for name in sorted(names)), "utf-8")
            awaited = Awaited(submitted, lambda: None, allocated=True)
            await awaited.wait(ledger, DECIDE_TIMEOUT_S)
    samples = [(pod.namespace, pod.name) for pod in wish.pods]
    pods, whys = await asyncio.to_thread(_outcomes, gateway, samples, max(awaited.revision, basis))
    return Samples(pods, whys, problems, awaited.first_placed_s)


def _outcomes(
    gateway: Gateway, names: list[tuple[str, str]], at_least: int
) -> tuple[list[PodAnswer], dict[str, Why]]:
    pods, whys = list[PodAnswer](), dict[str, Why]()
    query = {"at_least": at_least}
    for namespace, name in names:
        try:
            pod = gateway.ask("pods", namespace, name, answer=PodDetail, query=query).pod
            pods.append(pod)
            if not pod.node:
                whys[pod.uid] = gateway.ask("pods", namespace, name, "why", answer=Why)
        except NotFound:
            continue  # deleted in the meantime
    return pods, whys


def show_samples(out: Screen, samples: Samples) -> None:
    """Print a row per sample pod, and a line per problem."""
    made = Rows("POD", "PHASE", "NODE", "SHARES OR REASON", wraps=("SHARES OR REASON",),
                drops=("PHASE",))  # fmt: skip
    for pod in samples.pods:
        why = samples.whys.get(pod.uid)
        if pod.shares:
            text = shares_words(pod.shares)
        elif why is not None and why.refused is not None:
            text = "; ".join(
                f"{cause.words} ({words.nodes(cause.nodes)})" for cause in why.refused.causes
            )
        else:
            text = why.sentence if why else ""
        made.add_row(
            short_name(pod.namespace, pod.name), phase(shown_phase(pod)), pod.node,
            text,
        )  # fmt: skip
    out.print(made)
    for problem in samples.problems:
        out.say(problem, "red")
