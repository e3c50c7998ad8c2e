"""`apportion doctor`: find faults of an installation, each with its fix."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from apportion.cli.client.connection import CONNECTION, GATEWAY_ENV, Where, asks_both
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.exits import REFUSED, NotLetIn, Unreachable, Wrong
from apportion.cli.render.output import console, plain, print_answer
from apportion.cli.render.rows import Rows
from apportion.cli.usage import Verb
from apportion.core.answers.doctor import CheckAnswer, DoctorAnswer
from apportion.core.doctor.checks import CHECKS, examined
from apportion.core.doctor.facts import Facts, KubeFacts, LedgerFacts
from apportion.runtime.jetstream import client as jetstream
from apportion.runtime.jetstream.examining import examine
from apportion.runtime.jetstream.server.embedded import monitor_url, server_says
from apportion.runtime.ledger.archive import archive_facts
from apportion.runtime.ledger.port import LedgerError
from apportion.runtime.ledger.receipts import receipt_facts
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.config import ConfigError
from apportion.runtime.process.logs import configure_logs
from apportion.runtime.service.options import KubeChoice, kube_choice, kubernetes_options

STYLES = {"ok": "green", "warning": "yellow", "unknown": "magenta", "broken": "red"}
# only the server's monitoring port has these, so a caller with access wins
SEEN_BY_MONITOR = frozenset(("durability", "disk"))
DOCS = "docs/"


@click.command(cls=Verb, epilog="Example:  apportion doctor --kubeconfig ~/.kube/config")
@click.option("--monitor", default="", envvar="APPORTION_NATS_MONITOR", metavar="URL",
              help="Monitoring URL of nats-server, for durability and disk usage.")  # fmt: skip
@click.option("--archives", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Folder of ledger archives (*.jsonl) to check.")  # fmt: skip
@click.option("--receipts", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Folder of ledger receipts to check.")  # fmt: skip
@kubernetes_options
@asks_both
def command(
    *,
    where: Where,
    as_json: bool,
    monitor: str,
    archives: Path | None,
    receipts: Path | None,
    **kube: Any,
) -> None:
    """Check the ledger, its server, clocks, agents, schedulers and the cluster.

    The result of each check is ok, warning (works, but needs attention), broken, or unknown
    (the doctor could not check it). To also check a Kubernetes cluster, give --kubernetes,
    --kubeconfig or --context.

    Exit codes: 0 nothing is broken; 1 a check is broken; 3 ledger and gateway unreachable."""
    configure_logs(service="cli", level="error")
    try:
        monitor = monitor and monitor_url("--monitor", monitor)
    except ConfigError as error:
        raise Wrong(str(error)) from None
    theirs, silence = None, None
    try:
        theirs = Gateway(where.gateway_url()).ask("doctor", answer=DoctorAnswer)
    except click.ClickException as error:
        silence = error
    gateway_problem = silence.message if silence is not None else ""
    ledger, ledger_problem = None, ""
    if theirs is None or where.nats or monitor or not where.gateway:
        # Otherwise the user has named a gateway only, and its answer has the checks of its ledger.
        ledger, ledger_problem = asyncio.run(_of_ledger(where, monitor))
    if theirs is None and ledger is None:
        if where.nats or where.gateway or (where.data / CONNECTION).exists():
            raise Unreachable(f"{ledger_problem}; {gateway_problem}")
        # Without `up`, both are missing for the same reason.
        raise Unreachable(
            f"{ledger_problem}; name the gateway too, with --gateway URL or {GATEWAY_ENV}"
        )
    now = SystemClock().now()
    facts = Facts(
        ledger=ledger, ledger_problem=ledger_problem, gateway_problem=gateway_problem,
        not_let_in=isinstance(silence, NotLetIn),
        archives=archive_facts(archives, now=now) if archives else None,
        receipts=receipt_facts(receipts, now=now) if receipts else None,
        kube=asyncio.run(_of_kubernetes(kube_choice(**kube))),
    )  # fmt: skip
    answer = _together(facts, theirs)
    print_answer(answer, lambda: _show(answer), as_json=as_json)
    if any(check.state == "broken" for check in answer.checks):
        sys.exit(REFUSED)


async def _of_ledger(where: Where, monitor: str) -> tuple[LedgerFacts | None, str]:
    try:
        reach = where.reach()
        said: Mapping[str, Any] = await server_says(monitor)
        async with await jetstream.connect(reach, name="apportion doctor") as ledger:
            return await examine(ledger.wire, clock=SystemClock(), server_says=said), ""
    except Unreachable as error:
        return None, error.message
    except LedgerError as error:
        return None, str(error)


async def _of_kubernetes(choice: KubeChoice) -> KubeFacts | None:
    if not choice.wanted:
        return None
    from apportion.runtime.kube.examining import examine_kube  # see KubeChoice

    try:
        async with choice.open() as api:
            return await examine_kube(api, SystemClock().now())
    except ConfigError as error:
        return KubeFacts(url="", problem=str(error))


def _together(facts: Facts, theirs: DoctorAnswer | None) -> DoctorAnswer:
    found = {check.id: check for check in theirs.checks} if theirs else {}
    for check in examined(facts):
        unseen = facts.ledger is None or facts.ledger.sync_always is None
        if check.id in found and check.id in SEEN_BY_MONITOR and unseen:
            continue
        found[check.id] = check
    if theirs is not None and "gateway" not in found:
        found["gateway"] = CheckAnswer(id="gateway", state="ok", words="answers")
    order = [check.id for check in CHECKS]
    known = sorted(found, key=lambda name: order.index(name) if name in order else len(order))
    return DoctorAnswer(
        revision=theirs.revision if theirs else 0, checks=tuple(found[name] for name in known)
    )


def _show(answer: DoctorAnswer) -> None:
    made = Rows("CHECK", "STATE", "FINDING", wraps=("FINDING",))
    for check in answer.checks:
        words = Text("\n").join(map(plain, check.words.split("\n")))
        if check.fix:
            words.append("\n").append_text(plain(check.fix)).stylize("bold", len(check.words))
            words.append(f"\nsee {DOCS}{check.link}" if check.link else "", "dim")
        made.add_row(check.id, Text(check.state, STYLES[check.state]), words)
    out = console()
    out.print(made)
    counts = {state: sum(c.state == state for c in answer.checks) for state in STYLES}
    said = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    worst = next((s for s in ("broken", "unknown", "warning") if counts[s]), "ok")
    out.print(plain(said), style=STYLES[worst])
