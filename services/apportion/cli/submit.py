"""`apportion submit`: manifests or a trace become pods of the ledger."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from apportion.cli.asking import Gateway
from apportion.cli.awaiting import Awaited
from apportion.cli.configured import manifest_config_now
from apportion.cli.connection import Where, asks_both
from apportion.cli.exits import REFUSED
from apportion.cli.output import console, plain, print_json, table
from apportion.cli.reading import read_manifests, read_trace
from apportion.cli.submitting import Submitted, Wish, append, look_up
from apportion.cli.writing import open_ledger, run
from apportion.core.explain import words
from apportion.core.explain.answers import PodAnswer
from apportion.core.explain.lines import shares_words
from apportion.runtime.files.manifests import Problem

NAMED_MAX = 40
"""Up to so many pods are named one by one."""


class Report(msgspec.Struct, kw_only=True):
    """What `--json` prints. `undecided` is only filled with --wait, as are placed and refused."""

    submitted: list[Submitted] = []
    unchanged: list[str] = []
    problems: list[str] = []
    placed: dict[str, str] = {}
    refused: dict[str, str] = {}
    undecided: list[str] = []
    seconds: float = 0.0


@click.command(epilog="Example:  apportion submit -f examples/pods --wait")
@click.option("-f", "--file", "files", multiple=True, metavar="FILE|DIR|-",
              help="Manifests: Pod, Job, Deployment, Volcano Job, PodGroup.")  # fmt: skip
@click.option("--trace", type=click.Path(path_type=Path, dir_okay=False, exists=True),
              metavar="CSV", help="A trace in the columns of the openb traces.")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The trace's first N pods.")
@click.option("--wait", is_flag=True, help="Wait until each pod is placed or refused.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.1, 86_400), default=60.0,
              show_default=True, metavar="SECONDS", help="How long to wait.")  # fmt: skip
@asks_both
def command(
    *, where: Where, as_json: bool, files: tuple[str, ...], trace: Path | None,
    limit: int | None, wait: bool, timeout_s: float,
) -> None:  # fmt: skip
    """Submit pods. One that is live already under its name is left unchanged.

    A document that cannot be used is named with its field, value and fix; the others go on.

    Exit codes: 0 all submitted, with --wait all placed; 1 a document was wrong, or with --wait a
    pod was refused or not decided in time; 2 wrong usage; 3 the ledger or gateway is away; 4 with
    --wait, a newer build decides and this one cannot read it.
    """
    if bool(files) == bool(trace):
        raise click.UsageError("give either -f (files, folders or -) or --trace CSV")
    if limit and not trace:
        raise click.UsageError("--limit is for --trace")
    if trace:
        wish, problems = read_trace(trace, limit)
    else:
        wish, problems = read_manifests(files, manifest_config_now(where))
    report = Report(problems=[str(problem) for problem in problems])
    _tell_problems(problems)
    if wish.pods or wish.groups:
        run(_submit(where, wish, report, wait_s=timeout_s if wait else None))
    if as_json:
        print_json(report)
    else:
        _tell(report, waited=wait)
    if report.problems or report.refused or report.undecided:
        sys.exit(REFUSED)


async def _submit(where: Where, wish: Wish, report: Report, *, wait_s: float | None) -> None:
    """Fill the report."""
    gateway = Gateway(where.gateway_url())
    async with open_ledger(where.nats_url()) as ledger:
        newest = await ledger.last_revision()
        basis, live = await asyncio.to_thread(look_up, gateway, wish.pods, at_least=newest)
        new = only_new(wish, live)
        report.unchanged = sorted(live)
        began = time.monotonic()
        with _bar("submitting", len(new.pods)) as advance:
            report.submitted = await append(ledger, new, basis=basis, progress=advance)
        report.seconds = round(time.monotonic() - began, 3)
        if wait_s is not None:
            with _bar("deciding", len(new.pods)) as advance:
                awaited = Awaited(report.submitted, lambda: advance(1))
                await awaited.wait(ledger, wait_s)
            _note_decisions(report, awaited)


def only_new(wish: Wish, live: dict[str, PodAnswer]) -> Wish:
    """What of the wish is not live already: its pods, and their gangs or gangs that stand alone."""
    new = [pod for pod in wish.pods if f"{pod.namespace}/{pod.name}" not in live]
    needed = {pod.group for pod in new}
    settled = {pod.group for pod in wish.pods} - needed
    groups = {name: group for name, group in wish.groups.items() if name not in settled}
    return Wish(new, groups)


def _note_decisions(report: Report, awaited: Awaited) -> None:
    for uid, said in awaited.decided.items():
        name = awaited.pods[uid].full_name
        if said.placed is not None:
            report.placed[name] = f"{said.placed.node}: {shares_words(said.placed.shares)}"
        elif said.refused is not None:
            report.refused[name] = words.refusal(said.refused)
    report.undecided = [awaited.pods[uid].full_name for uid in awaited.undecided]


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error; yields what moves it on. A pipe sees nothing of it."""
    out = console(stderr=True)
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, disable=not out.is_terminal, transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)


def _tell_problems(problems: list[Problem]) -> None:
    out = console(stderr=True)
    for problem in problems:
        out.print("refused", plain(problem), style="red", soft_wrap=True)


def _tell(report: Report, *, waited: bool) -> None:
    out = console()
    made = table("POD", "OUTCOME", wraps=("OUTCOME",))
    if waited:
        for name, text in report.placed.items():
            made.add_row(plain(name), plain(text))
        for name, text in report.refused.items():
            made.add_row(plain(name), plain(text), style="red")
        for name in report.undecided:
            made.add_row(plain(name), "no decision yet: is a scheduler running?", style="yellow")
    else:
        for pod in report.submitted:
            made.add_row(plain(pod.full_name), f"submitted at revision {pod.revision}")
    for name in report.unchanged:
        made.add_row(plain(name), "unchanged: live already", style="dim")
    if 0 < made.row_count <= NAMED_MAX:
        out.print(made)
    count = len(report.submitted)
    parts = [f"{count:,} submitted"]
    if report.seconds and count > NAMED_MAX:
        parts.append(f"{count / report.seconds:,.0f} per second")
    for what, number in (
        ("placed", len(report.placed)), ("refused", len(report.refused)),
        ("undecided", len(report.undecided)), ("unchanged", len(report.unchanged)),
    ):  # fmt: skip
        parts += [f"{number:,} {what}"] if number else []
    if report.problems:
        wrong = len(report.problems)
        parts.append(f"{wrong:,} document{'s' if wrong > 1 else ''} wrong")
    out.print(", ".join(parts))
