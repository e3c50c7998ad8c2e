"""`apportion plan`: show what would happen. The gateway computes the plan and appends nothing."""

import sys
from collections.abc import Iterable
from typing import get_args

import click
import msgspec

from apportion.cli.client.completion import TARGETS
from apportion.cli.client.connection import Where, asks_gateway
from apportion.cli.client.moments import AT
from apportion.cli.client.plans import ask
from apportion.cli.exits import NEVER, NOT_NOW, REFUSED
from apportion.cli.pods.manifest_files import tell_refused
from apportion.cli.render.evidence import held_words, show_placed, show_refused
from apportion.cli.render.output import Screen, console, doubtful, plain, print_json, warn
from apportion.cli.render.rows import Rows
from apportion.cli.render.tables import start_cell
from apportion.cli.usage import hinting
from apportion.core.answers.plans import Ahead, PlanAnswer, PlannedPod, PlanRequest, Totals
from apportion.core.explain.text import words
from apportion.core.explain.text.answer_text import start_words
from apportion.core.explain.text.names import RULE
from apportion.core.explain.text.vocabulary import OUTCOMES
from apportion.core.explain.text.words import device_words, eviction, many
from apportion.core.workloads.reading import passed_over_words
from apportion.runtime.files.manifests import Problem, read_manifest_bytes
from apportion_schemas import Policy

AS_OF = 0.0  # starts count from the time of the plan, whatever the clock of this machine says
DETAILED_MAX = 3  # more pods than this are shown without evidence
STYLES = {"fits": "green", "not-now": "yellow", "never": "red", "unchanged": "dim"}
EXITS = {"fits": 0, "unchanged": 0, "not-now": NOT_NOW, "never": NEVER}


@click.command(
    cls=hinting(argument="-f {}", renamed={"--without": "--lose"}),
    epilog="Examples:  apportion plan -f job.yaml     apportion plan --lose h100-1\n\n"
    "  apportion plan -f job.yaml --add 4x8xH100-80GB --policy price\n\n"
    "  apportion plan -f job.yaml --at 14:20",
)
@click.option("-f", "--file", "files", multiple=True, metavar="FILE|DIR|-",
              help="Manifests to plan, as for `apportion submit`.")  # fmt: skip
@click.option("--lose", multiple=True, metavar="NODE|DEVICE", shell_complete=TARGETS,
              help=f"Assume this node or device is lost. {RULE}")  # fmt: skip
@click.option("--add", multiple=True, metavar="4x8xH100-80GB",
              help="Assume additional nodes: 4 nodes with 8 devices each.")  # fmt: skip
@click.option("--policy", type=click.Choice(get_args(Policy)),
              help="Assume this placement policy.")  # fmt: skip
@AT
@asks_gateway
def command(
    *, where: Where, as_json: bool, files: tuple[str, ...], lose: tuple[str, ...],
    add: tuple[str, ...], policy: str | None, at: str | None,
) -> None:  # fmt: skip
    """Show what would happen, without doing it: placements, neighbours and evictions.

    With -f, the plan shows where the pods of manifests would be placed. Pending pods are decided
    again, and placed pods keep their node. Without -f, the plan shows the effect of --lose, --add
    or --policy on running and pending pods.

    The plan places the pods of a lost node or device again, because their controllers would
    recreate them. An added node has the size of existing nodes with the same model, and the labels
    and taints that all of these nodes have.

    Exit codes: 0 all pods would be placed; 1 an invalid document or an unknown node; 2 wrong usage;
    3 gateway unreachable; 5 some pods would be pending; 6 some pods can never fit on this fleet."""
    if not (files or lose or add or policy):
        raise click.UsageError("give at least one of -f, --lose, --add and --policy")
    texts: dict[str, str] = {}
    problems = []
    for found in read_manifest_bytes(files, sys.stdin.buffer):
        if isinstance(found, Problem):
            problems.append(str(found))
            continue
        name, data = found
        try:
            texts[name] = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            problems.append(f"{name}: not UTF-8 text ({error.reason}); save it as UTF-8")
    request = PlanRequest(files=texts, lose=lose, add=add, policy=policy or "")
    if not texts and problems and not (lose or add or policy):
        tell_refused(problems)
        sys.exit(REFUSED)
    answer = ask(where.gateway_url(), request, at)
    answer = msgspec.structs.replace(answer, problems=(*problems, *answer.problems))
    if as_json:
        print_json(answer)
    elif answer.pods or answer.changes or not answer.problems:
        _show(answer)
    if answer.passed_over:
        warn(passed_over_words(answer.passed_over))
    doubtful(words.mixed_gang(gang.group, gang.models) for gang in answer.mixed_gangs)
    doubtful(answer.warnings)
    tell_refused(answer.problems)
    sys.exit(REFUSED if answer.problems else EXITS[answer.outcome])


def _show(answer: PlanAnswer) -> None:
    out = console()
    out.say(answer.sentence, "bold", folds=True)
    if answer.changes:
        said = ", ".join(change.words for change in answer.changes)
        out.say(f"assuming: {said}", folds=True)
    if len(answer.pods) > 1 or answer.changes:
        _show_pods(out, "POD", answer.pods)
    if len(answer.pods) <= DETAILED_MAX:
        for pod in answer.pods:
            out.say(pod.sentence, "bold", folds=True)
            if pod.placed is not None:
                show_placed(out, pod.placed)
            if pod.refused is not None:
                show_refused(out, pod.refused)
            if pod.start and (said := start_words(pod.start, AS_OF)):
                out.say(said, folds=True)
            made = Rows("NEIGHBOUR", "DEVICE", "MEMORY", "CORES", right=("MEMORY", "CORES"))
            for other in pod.beside:
                made.add_row(
                    f"{other.namespace}/{other.pod}", device_words(other.device),
                    f"{other.memory_mib:,} MiB", str(other.cores),
                )  # fmt: skip
            if made.row_count:
                out.print(made)
            if pod.ahead:
                verb = "is" if pod.ahead == 1 else "are"
                out.print(plain(f"{many(pod.ahead, 'pod')} {verb} ahead of it in the queue"))
    _show_pods(out, "DISPLACED POD", answer.moved)
    _show_pods(out, "PENDING POD", answer.helped)
    _show_evicted(out, answer)
    _show_waiting(out, answer)
    if said := totals_words(answer):
        out.say(said, "dim", folds=True)


def _show_pods(out: Screen, title: str, pods: Iterable[PlannedPod]) -> None:
    moves = any(pod.was and pod.outcome != "unchanged" for pod in pods)
    made = Rows(title, "OUTCOME", "FROM", "NODE", "SHARES OR REASON", "START", "WITHOUT",
                wraps=("SHARES OR REASON",), drops=("FROM",),
                optional=("FROM", "START", "WITHOUT"))  # fmt: skip
    # Pods that fail for one reason, as of a gang, are one row.
    rows: dict[object, list[PlannedPod]] = {}
    for pod in pods:
        alike = (pod.outcome, pod.was, pod.without, pod.node_without, pod.line, pod.start)
        alone = pod.node or pod.evicted is not None
        rows.setdefault((pod.namespace, pod.name) if alone else alike, []).append(pod)
    for pod, *others in rows.values():
        more = f" and {len(others):,} more" if others else ""
        why_not = eviction(pod.evicted) if pod.evicted is not None else pod.cause
        held = held_words(pod.placed.shares) if pod.placed else why_not
        without = f"{OUTCOMES[pod.without]} {pod.node_without}".strip() if pod.without else ""
        start = start_cell(pod.start, AS_OF)
        made.add_row(
            f"{pod.namespace}/{pod.name}{more}", OUTCOMES[pod.outcome], pod.was if moves else "",
            pod.node, held or pod.sentence, start, without, style=STYLES[pod.outcome],
        )  # fmt: skip
    if made.row_count:
        out.print(made)


def _show_evicted(out: Screen, answer: PlanAnswer) -> None:
    made = Rows("EVICTED POD", "PRIORITY", "FROM", "FOR", "THEN", "EXCEEDS",
                right=("PRIORITY",), wraps=("EXCEEDS",), optional=("THEN", "EXCEEDS"))  # fmt: skip
    for gone in answer.evicted:
        made.add_row(
            f"{gone.namespace}/{gone.pod}", str(gone.priority), gone.node,
            gone.beneficiary, gone.to, ", ".join(gone.budgets), style="yellow",
        )  # fmt: skip
    if made.row_count:
        out.print(made)


def _show_waiting(out: Screen, answer: PlanAnswer) -> None:
    """Print pods that the plan makes pending, or that are queued before the plan's pods."""
    before_it = any(pod.ahead for pod in answer.pods)
    shown = [pod for pod in answer.waiting if before_it or pod.submitted_revision > answer.revision]
    made = Rows("ALSO PENDING", "PRIORITY", "REVISION", "REASON",
                right=("PRIORITY", "REVISION"), wraps=("REASON",))  # fmt: skip
    lines: dict[int, list[Ahead]] = {}
    for pod in shown:
        lines.setdefault(pod.line, []).append(pod)
    counted = 0
    for alike in lines.values():
        first, count = alike[0], max(len(alike), alike[0].alike if before_it else 0)
        counted += count
        more = f" and {count - 1:,} more" if count > 1 else ""
        since = str(first.submitted_revision)
        made.add_row(
            f"{first.namespace}/{first.pod}{more}", str(first.priority),
            since if first.submitted_revision <= answer.revision else "the plan",
            first.cause, style="dim",
        )  # fmt: skip
    if made.row_count:
        out.print(made)
    # Only the first pending pods are named in the answer; the others are counted.
    above = {(pod.namespace, pod.name) for pod in (*answer.pods, *answer.moved) if not pod.node}
    waiting = (answer.after.waiting if answer.after else 0) - len(above)
    if waiting > max(counted, len(answer.waiting)):
        named = counted >= len(answer.waiting)
        said = many(waiting - counted, "pod" if named else "more pod")
        out.print(f"and {said} {'behind them' if named else 'pending'}", style="dim")
    elif waiting > counted:
        out.print(f"{many(waiting - counted, 'other pod')} would stay pending", style="dim")


def totals_words(answer: PlanAnswer) -> str:
    """Return, as text, the fleet's totals before and after the plan's changes."""
    if answer.before is None or answer.after is None:
        return ""
    before, after = _totals(answer.before), _totals(answer.after)
    said = f"before: {before}; after: {after}" if before != after else f"before and after: {after}"
    return f"{said}; as of revision {answer.revision}"


def _totals(totals: Totals) -> str:
    broken = f"{totals.devices_unhealthy:,} unhealthy, " if totals.devices_unhealthy else ""
    return (
        f"{totals.devices_used:,} of {totals.devices:,} devices in use, {broken}"
        f"{many(totals.placed, 'pod')} placed, {totals.waiting:,} pending"
    )
