"""`apportion resize`: change the device shares of a running pod.

Invariant: the printed answer of the scheduler is the answer to this request."""

import asyncio

import click
import msgspec

from apportion.cli.client.completion import PODS
from apportion.cli.client.connection import Where, asks_both
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.ledger import by_whom, follow_until, open_ledger, person, run, write
from apportion.cli.client.lookup import split_name, unknown
from apportion.cli.exits import NotFound, Outdated, Unreachable
from apportion.cli.render.output import console, plain, print_json
from apportion.cli.usage import MIB, Verb
from apportion.core.answers.reads import PodDetail
from apportion.core.explain.text.event_text import CORES_LATER, families_of, shares_words
from apportion.core.explain.text.vocabulary import PHASES
from apportion.core.explain.text.words import resize_refused
from apportion.core.ledger.rules import Rules
from apportion.runtime.jetstream import stream
from apportion.runtime.ledger.port import Record
from apportion.runtime.process.reach import Reach
from apportion_schemas import (
    InvalidEvent,
    PodResized,
    ResizeAsked,
    ResizeRefused,
    UnknownEvent,
    UnreadableEvent,
)
from apportion_schemas.quantities import WHOLE

SUBJECTS = ("apportion.v1.placement.>", "apportion.v1.pending.>")
Answer = PodResized | ResizeRefused


class Said(msgspec.Struct, frozen=True):
    """The document that `--json` prints."""

    asked: int  # revision of the request
    revision: int  # revision of the answer
    answer: Answer
    cores_from_next_process: bool = False


@click.command(
    cls=Verb, epilog="Example:  apportion resize training/worker-0 --memory 12000 --cores 60"
)
@click.argument("pod", metavar="[NAMESPACE/]POD", shell_complete=PODS)
@click.option(
    "-n", "--namespace", metavar="NAMESPACE", help="Namespace of the pod.  [default: `default`]"
)
@click.option("--memory", type=MIB, metavar="MIB",
              help="Memory of each device.")  # fmt: skip
@click.option("--cores", type=click.IntRange(0, WHOLE), metavar="PERCENT",
              help="Compute of each device; 0 is no limit.")  # fmt: skip
@click.option("--container", default="", help="Container to resize, if several have devices.")
@click.option("--reason", default="", help="Reason, for the audit trail.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), default=30.0,
              metavar="SECONDS", show_default=True,
              help="Time to wait for the scheduler.")  # fmt: skip
@by_whom
@asks_both
def command(
    *,
    where: Where,
    as_json: bool,
    pod: str,
    namespace: str | None,
    memory: int | None,
    cores: int | None,
    container: str,
    reason: str,
    timeout_s: float,
    by: str,
) -> None:
    """Resize the device shares of a running pod, without a restart.

    Only shares of NVIDIA GPUs in mode hami-core can be resized. A share can grow only if its device
    has enough free capacity. A new memory limit applies at once, but the pod keeps memory that is
    in use until it frees the memory. A new cores limit applies to processes that start later.

    Exit codes: 0 resized; 1 no such pod, or resize refused; 3 ledger or gateway unreachable, or no
    scheduler answered."""
    if memory is None and cores is None:
        raise click.UsageError("give --memory MIB, --cores PERCENT, or both")
    space, name = split_name(pod, namespace)
    gateway = Gateway(where.gateway_url())
    try:
        found = gateway.ask("pods", space, name, answer=PodDetail)
    except NotFound as error:
        raise unknown(gateway, name, error.message) from None
    if not found.pod.bound_revision:
        raise NotFound(
            f"{space}/{name} is {PHASES.get(found.pod.phase, found.pod.phase)}; only bound pods "
            "can be resized, so change its manifest instead"
        )
    wish = ResizeAsked(
        pod=found.pod.uid, by=person(by), memory_mib=memory, cores=cores,
        container=container, reason=reason,
    )  # fmt: skip
    said = run(_ask(where.reach(), wish, found.revision, timeout_s))
    later = cores is not None and isinstance(said.answer, PodResized)
    said = msgspec.structs.replace(said, cores_from_next_process=later)
    if as_json:
        print_json(said)
    if isinstance(said.answer, ResizeRefused):
        raise NotFound(f"{space}/{name} was not resized: {resize_refused(said.answer)}")
    if not as_json:
        held = shares_words(said.answer.shares, families_of(found.pod.asks))
        console().print(plain(f"{space}/{name} resized to {held} at revision {said.revision}"))
        if said.cores_from_next_process:
            console().print(f"{CORES_LATER}; restart the process to apply them now")


async def _ask(reach: Reach, wish: ResizeAsked, basis: int, timeout_s: float) -> Said:
    asked = (await write(reach, wish, basis=basis)).revision or 0
    found: asyncio.Future[Said] = asyncio.get_running_loop().create_future()
    rules = Rules()

    def deliver(record: Record) -> None:
        try:
            data = rules.read(record.revision, record.subject, record.payload).data
        except UnknownEvent as error:
            found.set_exception(Outdated(f"this build cannot read the answer: {error}"))
            return
        except (UnreadableEvent, InvalidEvent):
            return  # the fold reports it
        if (
            isinstance(data, Answer)
            and (data.pod, data.asked) == (wish.pod, asked)
            and not found.done()
        ):
            found.set_result(Said(asked, record.revision, data))

    async with open_ledger(reach) as ledger:
        try:
            async with asyncio.timeout(timeout_s):
                rules = await stream.read_rules(ledger.wire)
                await follow_until(found, ledger, deliver, start=asked, subjects=SUBJECTS)
                return found.result()
        except TimeoutError:
            raise Unreachable(
                f"no scheduler answered the request of revision {asked} within {timeout_s:g} s; "
                "watch for an answer with `apportion tail`"
            ) from None
