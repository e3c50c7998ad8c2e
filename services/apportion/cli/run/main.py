"""`apportion run`: run a command on this machine, inside a share of its devices.

The command is a pod of the ledger; when its share is ready, this process becomes the command.
Invariant: the guardian records the pod's end even if the command never starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec import Struct

from apportion.cli.client.configuration import manifest_config_now
from apportion.cli.client.connection import Where, asks_both
from apportion.cli.client.gateway_client import WAIT_S, Gateway
from apportion.cli.client.ledger import open_ledger, person, run, user, with_ledger, write
from apportion.cli.exits import NotFound, Unreachable, Wrong
from apportion.cli.pods.append import Submitted, append
from apportion.cli.pods.decisions import Awaited
from apportion.cli.pods.local_process import Run, ended, engine_of, unreachable, with_device
from apportion.cli.render.output import say
from apportion.cli.run.guardian import Duty, leave_behind
from apportion.cli.usage import MIB, Verb
from apportion.core.answers.reads import NodeDetail, PodAnswer, PodDetail, Why
from apportion.core.explain.text.event_text import shares_words
from apportion.core.explain.text.printable import escaped_json
from apportion.core.explain.text.words import many
from apportion.core.grants.on_host import PRELOAD
from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.core.workloads.reading import read_document
from apportion.runtime.files.manifests import Wish
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.port import LedgerError
from apportion.runtime.ledger.starting import (
    CONTAINER,
    MARK,
    End,
    Greet,
    Start,
    Started,
    subject_of,
)
from apportion.runtime.process.lives import life_of
from apportion_schemas import PodGone, PodPlaced
from apportion_schemas.quantities import WHOLE

PREPARE_S: Final = 40.0
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""The exit codes of a shell."""
# signals that Python ignores, and the command would inherit
_OURS: Final = (signal.SIGPIPE, signal.SIGXFSZ)
_FILES: Final = (PRELOAD, "CUDA_DEVICE_MEMORY_SHARED_CACHE")


@click.command(
    cls=Verb,
    epilog="Example:  apportion run --memory 4000 --cores 30 -- python train.py",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("command_line", nargs=-1, required=True, type=click.UNPROCESSED,
                metavar="[--] COMMAND...")  # fmt: skip
@click.option("--memory", type=MIB, metavar="MIB",
              help="Memory of each device.  [default: all]")  # fmt: skip
@click.option("--cores", type=click.IntRange(0, WHOLE), metavar="PERCENT",
              help="Compute of each device; 0 is no limit.  [default: 0]")  # fmt: skip
@click.option("--count", type=click.IntRange(1, 64), default=1, show_default=True,
              metavar="N", help="Number of devices.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.1), metavar="SECONDS",
              help="Time to wait for free devices.  [default: no limit]")  # fmt: skip
@click.option("--node", default=socket.gethostname, metavar="NAME",
              help="Node name of this machine.  [default: host name]")  # fmt: skip
@asks_both
def command(
    *, where: Where, as_json: bool, command_line: tuple[str, ...], memory: int | None,
    cores: int | None, count: int, timeout_s: float | None, node: str,
) -> None:  # fmt: skip
    """Run a command on a share of this machine's GPUs; waits until a share is free.

    First start `apportion up --gpus local`, or an agent with --runs, on this machine. For
    `podman run` and `docker run`, the container gets the share as a CDI device.

    Before the command starts, messages are printed on standard error, with --json as one document
    per line. `apportion delete` stops the command.

    The exit code is that of the command. If the command does not start, the exit code is one of
    the codes below.

    Exit codes: 1 no free devices in time, or the share failed; 2 wrong usage; 3 ledger, gateway or
    agent unreachable; 126 command not executable; 127 command not found."""
    here = life_of(os.getpid())
    if here is None:
        raise Unreachable("/proc does not show this process; mount /proc")
    this = Run(node, here, engine_of(command_line))
    where = msgspec.structs.replace(where, data=where.data.absolute())
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in jobs
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # so that it ends us while we wait
    config = manifest_config_now(where)
    asked = Asked(memory, cores, count)
    draft = draft_of(document(this, command_line[0], asked, config), config)
    try:
        with contextlib.closing(Gateway(where.gateway_url())) as gateway:
            detail = gateway.ask("nodes", node, answer=NodeDetail)
    except NotFound as error:
        raise NotFound(
            f"{error}; run `apportion up --gpus local` or an agent with --runs here, and give the "
            "node name with --node if it is not the host name"
        ) from None
    room_for(asked, node, detail)

    async def submitted(ledger: JetStreamLedger) -> Submitted:
        await _asked(ledger, this, Greet(here.pid, here.started))
        basis = await ledger.last_revision()
        (pod,) = await append(ledger, Wish([draft]), basis=basis, progress=lambda _: None)
        return pod

    pod = with_ledger(where.reach(), submitted)
    try:
        tell = leave_behind(_duty(where, this, pod))
    except OSError as error:
        run(_end(where, this, pod, "its command could not be started"))
        raise NotFound(f"cannot start a process: {error}") from None
    try:
        share = run(_shared(where, this, pod, timeout_s, Telling(pod, as_json=as_json)))
    except click.ClickException as error:
        tell(f"its command did not start: {error.message}")
        raise
    _become(command_line, pod.uid, share)


def _become(command_line: tuple[str, ...], pod: str, share: Started) -> None:
    environment = {**os.environ, **share.environment}
    if share.device:
        command_line = with_device(command_line, share.device, pod)
    else:
        environment[MARK] = pod
    if PRELOAD in share.environment and os.environ.get(PRELOAD):
        environment[PRELOAD] = f"{share.environment[PRELOAD]}:{os.environ[PRELOAD]}"
    for number in _OURS:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command_line[0], command_line, environment)  # noqa: S606 - what was asked for
    except OSError as error:
        click.echo(f"{command_line[0]}: {error.strerror}", err=True)
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        raise click.exceptions.Exit(code) from None


async def _shared(
    where: Where, this: Run, pod: Submitted, timeout_s: float | None, telling: Telling
) -> Started:
    """Wait until the pod is placed, then request its share from the agent and return the share.

    Raises NotFound if this takes too long or the share fails; LedgerError, Unreachable."""

    async def sweep() -> None:
        """Record the end of each command whose guardian died. Raise NotFound if our pod is gone."""
        with contextlib.closing(Gateway(where.gateway_url())) as gateway:
            revision, pods = await asyncio.to_thread(gateway.items, "pods", PodAnswer)
        over = await asyncio.to_thread(ended, pods, this.node, label(user()))
        for each in over:
            gone = Submitted(each.namespace, each.name, each.uid, each.submitted_revision)
            await _end(where, this, gone, "its command has ended, and `apportion run` was killed")
        if revision >= pod.revision and all(each.uid != pod.uid for each in pods):
            raise NotFound(f"{pod.full_name} was deleted while it was pending")

    async def cause(revision: int) -> str:
        """Return why the pod is pending as of `revision`, or ""."""

        def asked() -> str:
            path, query = ("pods", pod.namespace, pod.name, "why"), {"at_least": revision}
            with contextlib.closing(Gateway(where.gateway_url())) as gateway:
                return gateway.ask(*path, answer=Why, query=query).cause

        return await asyncio.to_thread(asked)

    start = Start(pod.uid, this.life.pid, this.life.started, bool(this.engine))
    async with open_ledger(where.reach()) as ledger:
        try:
            async with asyncio.timeout(timeout_s):
                decision = await placed(ledger, pod, telling, sweep, cause)
        except TimeoutError:
            with contextlib.suppress(Unreachable, NotFound):  # only the reason is lost
                telling.waits(await cause(pod.revision))
            raise NotFound(f"not placed within {timeout_s:g} s{telling.last()}") from None
        share = await _asked(ledger, this, start)
    for name in _FILES:  # the library and its region enforce the share
        path = share.environment.get(name, "")
        if path and (closed := unreachable(Path(path))):
            raise NotFound(
                f"{name}={path}: {user()} cannot read {closed}; run chmod "
                f"o+{'r' if closed == Path(path) else 'x'} {closed}"
            )
    telling.starts(decision, share)
    return share


def _duty(where: Where, this: Run, pod: Submitted) -> Duty:
    query = {"at_least": pod.revision, "wait_s": WAIT_S}

    def deleted() -> bool:
        try:
            with contextlib.closing(Gateway(where.gateway_url())) as gateway:
                path = ("pods", pod.namespace, pod.name)
                return gateway.ask(*path, answer=PodDetail, query=query).pod.uid != pod.uid
        except NotFound:
            return True
        except click.ClickException:
            return False  # unknown for now

    def end(why: str) -> None:
        run(_end(where, this, pod, "" if deleted() else why))

    return Duty(this, pod.uid, deleted, end)


async def _end(where: Where, this: Run, pod: Submitted, why: str) -> None:
    """Make the agent release the pod's share. If `why` is not empty, record the pod's end."""
    async with open_ledger(where.reach()) as ledger:
        await _asked(ledger, this, End(pod.uid))
    if why:
        gone = PodGone(uid=pod.uid, reason=f"{why} ({person('')})")
        await write(where.reach(), gone, basis=pod.revision, event_id=f"{pod.uid}/gone")


async def _asked(ledger: JetStreamLedger, this: Run, wish: Greet | Start | End) -> Started:
    """Send a request to the agent. Raises NotFound if it refuses, Unreachable without an answer."""
    try:
        reply = await ledger.request(subject_of(this.node), msgspec.json.encode(wish), PREPARE_S)
    except LedgerError as error:
        raise Unreachable(
            f"no agent on {this.node} starts commands ({error}); on that machine, run "
            "`apportion up --gpus local`, or start the agent with --runs"
        ) from None
    try:
        answer = msgspec.json.decode(reply, type=Started)
    except msgspec.DecodeError as error:
        raise Unreachable(f"the agent of {this.node} has another version: {error}") from None
    if answer.error:
        raise NotFound(answer.error)
    return answer


_LABEL_MAX: Final = 63
_FAMILY: Final = "nvidia"


class Asked(Struct, frozen=True):
    """The devices that a command requests: their number, and MiB and percent of each."""

    memory: int | None
    cores: int | None
    count: int


def document(this: Run, program: str, asked: Asked, config: ManifestConfig) -> dict[str, Any]:
    """Return the manifest of a pod that runs the command; memory is in MiB."""
    names = config.dialects.hami
    given = {names.count: asked.count, names.memory: asked.memory, names.cores: asked.cores}
    limits = {name: str(value) for name, value in given.items() if value is not None}
    own = {"key": "metadata.name", "operator": "In", "values": [this.node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [own]}]}
    name = label(f"{program.rpartition('/')[2]}-{this.life.pid}-{this.life.started}")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": label(user()),
            "ownerReferences": [{"kind": this.kind, "name": this.name, "controller": True}],
        },
        "spec": {
            "containers": [{"name": CONTAINER, "resources": {"limits": limits}}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        },
    }


def draft_of(manifest: dict[str, Any], config: ManifestConfig) -> PodDraft:
    """Parse the manifest of a command's pod. Raises Wrong unless the pod requests devices."""
    in_mib = msgspec.structs.replace(
        config, dialects=msgspec.structs.replace(config.dialects, memory_factor=1)
    )
    try:
        return read_document(manifest, in_mib).pods[0]
    except ManifestError as error:
        raise Wrong(str(error)) from None


def room_for(asked: Asked, node: str, detail: NodeDetail) -> None:
    """Raise NotFound if the command could not run on this machine even without other pods."""
    cards = [card for card in detail.devices if card.present and card.family == _FAMILY]
    if not cards:
        raise NotFound(f"{node} has no NVIDIA GPU; see `apportion get devices`")
    largest = max(card.memory_mib for card in cards)
    if (asked.memory or 0) > largest:
        raise NotFound(
            f"--memory {asked.memory}: the largest GPU of {node} has {largest:,} MiB; request less"
        )
    enough = [card for card in cards if card.memory_mib >= (asked.memory or 0)]
    if asked.count > len(enough):
        of_size = f" with {asked.memory:,} MiB or more" if asked.memory else ""
        raise NotFound(
            f"--count {asked.count}: {node} has only {many(len(enough), 'GPU')}{of_size}; request "
            "fewer"
        )


def label(text: str) -> str:
    """Turn the text into a valid Kubernetes name (RFC 1123)."""
    kept = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    return kept[-_LABEL_MAX:].strip("-") or "run"


LOOK_S: Final = 5.0  # between two sweeps for ended commands, while waiting for room


class Telling:
    """Prints progress of one pod to standard error, because the command uses standard output."""

    def __init__(self, pod: Submitted, *, as_json: bool) -> None:
        self._pod = pod
        self._as_json = as_json
        self.said = ""

    def waits(self, why: str) -> None:
        """Print why the pod is pending, unless the reason is empty or unchanged."""
        if why in {"", self.said}:
            return
        self.said = why
        if self._as_json:
            self._write(waits=why)
        else:
            say(f"{self._pod.full_name} is pending: {why}", err=True)

    def last(self) -> str:
        """Return the last printed reason, formatted to be appended to a sentence."""
        return f": {self.said}" if self.said else ""

    def starts(self, placed: PodPlaced, share: Started) -> None:
        """Print that the share is ready and the command starts."""
        if self._as_json:
            self._write(
                node=placed.node, shares=placed.shares, environment=share.environment,
                device=share.device, notes=share.notes,
            )  # fmt: skip
            return
        if self.said:
            say(f"{self._pod.full_name} was allocated {shares_words(placed.shares)}", err=True)
        for note in share.notes:
            say(f"note: {note}", err=True)

    def _write(self, **said: object) -> None:
        said = {"pod": self._pod.full_name, "uid": self._pod.uid, **said}
        click.echo(escaped_json(msgspec.json.encode(said)), err=True)
        sys.stderr.flush()


async def placed(
    ledger: JetStreamLedger,
    pod: Submitted,
    telling: Telling,
    sweep: Callable[[], Awaitable[None]],
    cause: Callable[[int], Awaitable[str]],
) -> PodPlaced:
    """Wait until the pod is bound and allocated. While it is pending, print why.

    `sweep` frees shares of dead commands; `cause` explains the wait. Raises NotFound, Outdated."""
    since = pod
    while True:
        try:
            await sweep()
            awaited = Awaited([since], lambda: None, allocated=True)
            await awaited.wait(ledger, LOOK_S)
            why = await cause(awaited.revision) if awaited.refused else ""
        except (LedgerError, Unreachable) as error:
            telling.waits(str(error))
            await asyncio.sleep(LOOK_S)
            continue
        said = awaited.decided.get(pod.uid)
        if said is not None and said.placed is not None and awaited.settled:
            return said.placed
        if said is None:
            telling.waits(telling.said or "no decision yet: is a scheduler running?")
            continue
        if said.refused is None:
            telling.waits("placed, but not bound yet")
            continue
        telling.waits(why)
        since = msgspec.structs.replace(since, revision=said.revision + 1)
