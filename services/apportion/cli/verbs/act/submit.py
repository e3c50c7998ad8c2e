"""`apportion submit`: append the pods of manifests or a trace."""

import asyncio
import itertools
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import click
import msgspec

from apportion.cli.client.configuration import manifest_config_now
from apportion.cli.client.connection import Where, asks_both
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.ledger import open_ledger, run
from apportion.cli.exits import REFUSED
from apportion.cli.pods.append import Submitted, append, append_limits, end, look_up, stands
from apportion.cli.pods.append import replace as replace_pods
from apportion.cli.pods.decisions import Awaited
from apportion.cli.pods.live_diff import Held, compared, difference, undeclared
from apportion.cli.pods.manifest_files import (
    read_manifests,
    read_trace,
    tell_passed_over,
    tell_refused,
)
from apportion.cli.pods.pending import (
    alike,
    causes,
    evicted_for,
    never_fitting,
    unlooked,
    wait_for_room,
    waits_for,
)
from apportion.cli.render.evidence import held_words
from apportion.cli.render.output import bar, console, doubtful, print_json, say, show
from apportion.cli.render.rows import Rows
from apportion.cli.usage import hinting
from apportion.core.answers.reads import GangAnswer, PodAnswer, QueueAnswer
from apportion.core.explain.text import words
from apportion.core.explain.text.event_text import families_of, limit_name, shares_words
from apportion.core.explain.text.vocabulary import PENDING
from apportion.core.explain.text.words import listed, many
from apportion.runtime.files.manifests import Wish, undeclared_queues
from apportion.runtime.jetstream.client import JetStreamLedger

NAMED_MAX = 40  # more pods than this are only counted
CAUSES_MAX = 5  # causes shown if pods are only counted


class Report(msgspec.Struct, kw_only=True):
    """The document that `--json` prints. A dry run has no revisions, and no results of --wait."""

    dry_run: bool = False
    submitted: list[Submitted] = []
    unchanged: list[str] = []
    changed: dict[str, list[str]] = {}  # by live pod: how its manifest differs
    replaced: list[str] = []  # pods that were submitted again
    held: dict[str, Held] = {}  # others of their workload changed
    ended: dict[str, int] = {}  # surplus pods of workloads that were scaled down
    gangs: dict[str, int] = {}  # minimum of pods of each gang that is only declared
    limits: dict[str, int] = {}  # revisions of new queues and quotas
    limits_unchanged: list[str] = []  # queues and quotas already in force
    problems: list[str] = []
    passed_over: list[str] = []  # documents of other kinds
    warnings: list[str] = []  # probable mistakes
    placed: dict[str, str] = {}
    refused: dict[str, str] = {}
    causes: dict[str, int] = {}  # number of refused pods by first cause
    undecided: list[str] = []
    evicted: dict[str, list[str]] = {}  # by pod: the pods evicted for it
    mixed_gangs: dict[str, dict[str, int]] = {}  # pods per device model
    seconds: float = 0.0


@click.command(
    cls=hinting(argument="-f {}"), epilog="Example:  apportion submit -f examples/pods --wait"
)
@click.option("-f", "--file", "files", multiple=True, metavar="FILE|DIR|-",
              help="Manifests to submit: workloads such as Pod, Job or Deployment, PodGroup, "
              "Queue and ResourceQuota. Folders are read without subfolders.")  # fmt: skip
@click.option("--trace", type=click.Path(path_type=Path, dir_okay=False, exists=True),
              metavar="CSV",
              help="Submit the pods of a trace in the format of Alibaba's openb.")  # fmt: skip
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Submit only the first N pods of the trace.",
)
@click.option("--replace", is_flag=True, help="Replace live pods whose spec has changed.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, without changing anything.")
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until every pod is placed or refused; does not wait for evictions.",
)
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.1, 86_400), default=60.0,
              show_default=True, metavar="SECONDS", help="Time to wait with --wait.")  # fmt: skip
@asks_both
def command(
    *, where: Where, as_json: bool, files: tuple[str, ...], trace: Path | None,
    limit: int | None, replace: bool, dry_run: bool, wait: bool, timeout_s: float,
) -> None:  # fmt: skip
    """Submit the pods of manifests or of a trace.

    If a live pod has the same name and spec, nothing happens. If its spec has changed, the verb
    shows the difference, and with --replace also deletes and resubmits the pod. Without --replace,
    the other pods of its workload or gang stay as they are too.

    Surplus pods of a Deployment, or of another workload that was scaled down, are ended. --wait
    also waits for pods of the manifests that were submitted earlier and are still pending. An
    invalid document is reported with its field, value and fix; the others are submitted. Documents
    of other kinds, such as a Service, are skipped. If all documents are skipped, that is an error.

    Exit codes: 0 all submitted, or with --wait all placed; 1 an invalid document, a changed pod
    without --replace, or with --wait a pod that is pending or undecided; 2 wrong usage; 3 ledger or
    gateway unreachable; 4 with --wait, the decisions are from a newer build."""
    if bool(files) == bool(trace):
        raise click.UsageError("give either -f FILE or --trace CSV")
    if limit and not trace:
        raise click.UsageError("--limit requires --trace")
    if dry_run and wait:
        raise click.UsageError(
            "--dry-run and --wait exclude each other; to predict decisions, use `apportion plan`"
        )
    if trace:
        wish, problems = read_trace(trace, limit)
    else:
        wish, problems = read_manifests(files, manifest_config_now(where))
    report = Report(
        dry_run=dry_run,
        problems=[str(problem) for problem in problems],
        passed_over=wish.passed_over,
    )
    tell_passed_over(wish)
    tell_refused(problems)
    _tell_doubtful(report, [*wish.slips, *wish.notes.values()])
    if wish.pods or wish.groups or wish.limits or wish.scaled:
        run(_submit(where, wish, report, replace=replace, wait_s=timeout_s if wait else None))
    if as_json:
        print_json(report)
    else:
        _tell(report, waited=wait)
        if files and (hint := of_plan(report)):
            say(hint)
    if report.problems or report.refused or report.undecided or report.changed:
        sys.exit(REFUSED)


async def _submit(
    where: Where, wish: Wish, report: Report, *, replace: bool, wait_s: float | None
) -> None:
    gateway = Gateway(where.gateway_url())
    async with open_ledger(where.reach()) as ledger:
        newest = await ledger.last_revision()
        basis, live = await asyncio.to_thread(look_up, gateway, wish.pods, at_least=newest)
        if wish.queues:
            _, queues = await asyncio.to_thread(gateway.items, "queues", QueueAnswer)
            _tell_doubtful(report, undeclared_queues(wish, [each.queue for each in queues]))
        found = await asyncio.to_thread(compared, wish, live, gateway)
        report.unchanged = found.same
        if not replace:
            found.hold_back()
            report.held = found.held
            for draft, there in found.changed:
                name = f"{draft.namespace}/{draft.name}"
                report.changed[name] = await difference(ledger, draft, there)
        gangs = await undeclared(ledger, gateway, found.gangs)
        found.new.groups |= gangs
        report.gangs = {name: each.min_available for name, each in gangs.items()}
        names = [limit_name(limit) for limit in wish.limits]
        if report.dry_run:
            report.submitted = [Submitted(pod.namespace, pod.name, "", 0) for pod in found.new.pods]
            if replace:
                report.replaced = [f"{draft.namespace}/{draft.name}" for draft, _ in found.changed]
            report.ended = {f"{pod.namespace}/{pod.name}": 0 for pod in found.surplus}
            report.limits = {
                name: 0
                for name, limit in zip(names, wish.limits, strict=True)
                if await stands(ledger, limit) != limit
            }
            report.limits_unchanged = _but(names, report.limits)
            return
        began = time.monotonic()
        report.limits = await append_limits(ledger, wish.limits, basis=basis)
        report.limits_unchanged = _but(names, report.limits)
        with bar("submitting", len(found.new.pods)) as tell:
            report.submitted = await append(ledger, found.new, basis=basis, progress=tell)
        if replace and found.changed:
            anew = await replace_pods(ledger, found.changed, wish.groups, basis=basis)
            report.submitted += anew
            report.replaced = [pod.full_name for pod in anew]
        report.ended = await end(ledger, [(basis, pod) for pod in found.surplus], "scaled down")
        report.seconds = round(time.monotonic() - began, 3)
        if wait_s is not None:
            await _decided(
                ledger, gateway, wish, report,
                waiting=found.waiting, basis=basis, wait_s=wait_s,
            )  # fmt: skip


async def _decided(
    ledger: JetStreamLedger, gateway: Gateway, wish: Wish, report: Report, *,
    waiting: Sequence[PodAnswer], basis: int, wait_s: float,
) -> None:  # fmt: skip
    end = time.monotonic() + wait_s
    live = [Submitted(pod.namespace, pod.name, pod.uid, basis + 1) for pod in waiting]
    pods = [*report.submitted, *live]
    with bar("deciding", len(pods)) as tell:
        awaited = Awaited(pods, lambda: tell(1))
        await awaited.recall(ledger, [at for pod in waiting if (at := pod.refused_revision)])
        newest = await ledger.last_revision()
        awaited.set_aside(
            await asyncio.to_thread(unlooked, gateway, wish.pods, pods, at_least=newest)
        )
        await awaited.wait(ledger, wait_s)
    left = max(end - time.monotonic(), 0.0)
    priorities = {f"{pod.namespace}/{pod.name}": pod.priority for pod in wish.pods if pod.preempts}
    now = await wait_for_room(ledger, gateway, awaited, priorities, left)
    # A gang's refusal may be about another pod with another shape.
    lone = {f"{pod.namespace}/{pod.name}": pod.shape for pod in wish.pods if not pod.group}
    shapes = {pod.uid: lone[pod.full_name] for pod in pods if pod.full_name in lone}
    families = {f"{pod.namespace}/{pod.name}": families_of(pod.shape.asks) for pod in wish.pods}
    never = await asyncio.to_thread(never_fitting, gateway, awaited)
    for uid, said in awaited.decided.items():
        name, why = awaited.pods[uid].full_name, now.get(uid)
        if said.placed is not None:
            held = shares_words(said.placed.shares, families.get(name, {}))
            report.placed[name] = f"{said.placed.node}: {held}"
        elif why is not None and why.placed is not None:
            held = held_words(why.placed.shares)
            report.placed[name] = f"{why.placed.node}: {held}"
        elif said.refused is not None:
            report.refused[name] = waits_for(awaited, uid, why, shapes.get(uid))
    for uid, text in awaited.unlooked.items():
        if uid not in awaited.decided:
            report.refused[awaited.pods[uid].full_name] = text
    still = [uid for uid, pod in awaited.pods.items() if pod.full_name in report.refused]
    report.causes = causes(awaited, still, shapes, never)
    report.undecided = [awaited.pods[uid].full_name for uid in awaited.undecided]
    report.evicted = {awaited.pods[uid].full_name: gone for uid, gone in awaited.evicted.items()}
    groups = {pod.group for pod in wish.pods if pod.group}
    if groups and report.placed:
        query = {"at_least": awaited.revision, "wait_s": 30}
        _, gangs = await asyncio.to_thread(gateway.items, "gangs", GangAnswer, query)
        for gang in gangs:
            if gang.group in groups and len(gang.models) > 1:
                report.mixed_gangs[gang.group] = gang.models
                _tell_doubtful(report, [words.mixed_gang(gang.group, gang.models)])


def _but(names: Iterable[str], said: Collection[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name not in said]


def _tell_doubtful(report: Report, said: Sequence[str]) -> None:
    report.warnings = [*report.warnings, *said]
    doubtful(said)


def _tell(report: Report, *, waited: bool) -> None:
    out = console()
    made = _outcomes(report, waited=waited)
    if 0 < made.row_count <= NAMED_MAX:
        show(made)
    if report.dry_run:
        out.print("dry run: nothing was changed")
    out.print(counted(report))
    if made.row_count > NAMED_MAX:
        for line in of_waiting(report):
            out.say(line, "yellow")
    if report.changed:
        out.print(of_replace(report))


def of_waiting(report: Report) -> Iterator[str]:
    """Yield lines that count the pending pods by cause, instead of naming each pod."""
    for cause, count in itertools.islice(report.causes.items(), CAUSES_MAX):
        yield f"{count:,} {PENDING}: {cause}"
    if (more := len(report.causes) - CAUSES_MAX) > 0:
        yield f"and {many(more, 'more cause')}"
    if report.causes:
        listing = f"list them with `apportion get pods --phase {PENDING}`"
        yield f"{listing}; explain one with `apportion why POD`"


def of_replace(report: Report) -> str:
    """Return a text that says how many pods --replace would replace, submit and end."""
    done = [f"would replace {len(report.changed):,}"]
    for what, verb in (("submitted", "submit"), ("ended", "end")):
        count = sum(each == what for each in report.held.values())
        done += [f"{verb} {count:,} more"] if count else []
    return f"--replace {listed(done)}"


def counted(report: Report) -> str:
    """Return a summary of the report in numbers."""
    would, count = "would be " if report.dry_run else "", len(report.submitted)
    done = [f"{count:,} {would}submitted"] if count else []
    for what, number in (
        ("placed", len(report.placed)), (PENDING, len(report.refused)),
        ("undecided", len(report.undecided)), ("evicted", sum(map(len, report.evicted.values()))),
        ("unchanged", len(report.unchanged)), ("changed but not replaced", len(report.changed)),
        ("held back", len(report.held)),
        (f"{would}replaced", len(report.replaced)), (f"{would}ended", len(report.ended)),
    ):  # fmt: skip
        done += [f"{number:,} {what}"] if number else []
    if report.gangs:
        done.append(f"{many(len(report.gangs), 'gang')} {would}declared")
    if report.limits:
        done.append(f"{many(len(report.limits), 'limit')} {would}applied")
    if report.limits_unchanged:
        done.append(f"{many(len(report.limits_unchanged), 'limit')} unchanged")
    done = done or [f"0 {would}submitted"]
    if report.problems:
        done.append(f"{many(len(report.problems), 'document')} rejected")
    return ", ".join(done)


def of_plan(report: Report) -> str:
    """Return a hint to use `apportion plan` after a dry run, or ""."""
    if not report.dry_run or not (report.submitted or report.replaced):
        return ""
    return "to see placements and evictions, use `apportion plan -f FILE`"


def _outcomes(report: Report, *, waited: bool) -> Rows:
    others = report.gangs or report.limits or report.limits_unchanged
    made = Rows("NAME" if others else "POD", "OUTCOME", wraps=("OUTCOME",))
    would = "would be " if report.dry_run else ""
    if waited:
        _waited(report, made)
    else:
        for pod in report.submitted:
            at = f" at revision {pod.revision}" if pod.revision else ""
            made.add_row(pod.full_name, f"{would}submitted{at}")
    for name in sorted({*report.unchanged} - {*report.placed, *report.refused, *report.undecided}):
        made.add_row(name, "unchanged: already live", style="dim")
    for name, said in report.changed.items():
        made.add_row(name, f"changed: {'; '.join(said)}", style="yellow")
    for name, what in report.held.items():
        made.add_row(name, f"held back: would be {what} with --replace", style="yellow")
    for name in report.replaced if report.dry_run else ():
        made.add_row(name, "would be replaced")
    for name, revision in report.ended.items():
        at = f" at revision {revision}" if revision else ""
        made.add_row(name, f"{would}ended{at}: its controller was scaled down")
    for name, least in report.gangs.items():
        rule = f"at least {least:,} pods are placed together"
        made.add_row(f"gang {name}", f"{would}declared: {rule}")
    for name, revision in report.limits.items():
        at = f" at revision {revision}" if revision else ""
        made.add_row(name, f"{would}applied{at}")
    for name in report.limits_unchanged:
        made.add_row(name, "unchanged: already applied", style="dim")
    return made


def _waited(report: Report, made: Rows) -> None:
    for name, text in report.placed.items():
        made.add_row(name, f"{text}{evicted_for(report.evicted.get(name, []))}")
    for names, text in alike(report.refused):
        made.add_row(names, f"{PENDING}: {text}", style="yellow")
    for name in report.undecided:
        made.add_row(name, "undecided: is a scheduler running?", style="yellow")
