"""`apportion shadow`: decide again each pod that another scheduler placed, and compare."""

from pathlib import Path

import click

from apportion.cli.client.connection import Where, asks_ledger
from apportion.cli.client.moments import ARCHIVES, BEGIN, END
from apportion.cli.render.output import console, print_json
from apportion.cli.render.rows import Rows
from apportion.cli.usage import Verb
from apportion.core.answers.replays import ShadowAnswer, ShadowPod, Spot
from apportion.core.explain.text.vocabulary import PENDING
from apportion.core.explain.text.words import device_words, many

SAID = {
    "same": "same",
    "other-devices": "other devices",
    "other-node": "another node",
    "would-wait": "pending",
}

NOTHING = (
    "no pods of another scheduler in this period; `shadow` needs a Kubernetes cluster where "
    "another scheduler places the pods, see docs/tasks/shadow.md"
)

FOLLOWS = (
    "following: prints each pod that the other scheduler places differently; stop with Ctrl-C "
    "(under `apportion up` there is no other scheduler)"
)


@click.command(
    cls=Verb,
    epilog="Examples:  apportion shadow --from -1h\n\n  apportion shadow --follow\n\n"
    "  apportion shadow --archive 2026-11.jsonl --json",
)
@BEGIN
@END
@click.option("-f", "--follow", is_flag=True,
              help="Keep printing a line per pod until Ctrl-C.")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Also show pods that would be placed the same.")
@ARCHIVES
@asks_ledger
def command(
    *, where: Where, as_json: bool, begin: str, end: str, follow: bool, every: bool,
    archives: tuple[Path, ...],
) -> None:  # fmt: skip
    """Compare the placements of another scheduler with those of Apportion.

    Apportion decides again for every pod that another scheduler placed, on the cluster as it was at
    that time. Nothing is written or bound.

    This needs a Kubernetes cluster where another scheduler places the pods and Apportion runs as
    its shadow, or an archive of such a ledger; see docs/tasks/shadow.md. Under `apportion up`
    there is nothing to compare.

    A TIME is 14:20, -10m, 2026-11-20T03:00 or a revision.

    Exit codes: 0 compared; 1 invalid archive; 2 wrong usage; 3 ledger unreachable; 4 the ledger has
    events of a newer build."""
    if follow and (archives or end):
        raise click.UsageError("--follow excludes --to and --archive")
    # slow: needs numpy
    from apportion.cli.client.replaying import Asked, shadowed

    out = console()

    def see(pod: ShadowPod) -> None:
        if as_json:
            print_json(pod, line=True)
        elif every or pod.verdict != "same":
            out.say(line(pod))

    if follow:
        click.echo(FOLLOWS, err=True)  # it may be silent for long
    answer = shadowed(
        where, Asked(begin=begin, end=end, archives=archives), see if follow else None
    )
    if answer is None:
        return
    if as_json:
        print_json(answer)
        return
    rows = [pod for pod in answer.pods if every or pod.verdict != "same"]
    if rows:
        made = Rows("REVISION", "POD", "OTHER", "APPORTION", "REASON",
                    right=("REVISION",), wraps=("REASON",), drops=("REVISION",))  # fmt: skip
        for pod in rows:
            ours = spot(pod.ours) if pod.ours else PENDING
            why = pod.reason or SAID[pod.verdict]
            made.add_row(str(pod.revision), name_of(pod), spot(pod.theirs), ours, why)
        out.print(made)
    out.say(summary(answer))


def summary(answer: ShadowAnswer) -> str:
    """Return the totals of the comparison, in one sentence."""
    count = len(answer.pods)
    if not count:
        return NOTHING
    said = (
        f"{count:,} pods placed by another scheduler; Apportion would place {answer.same:,} the "
        f"same, {answer.other_devices:,} on other devices, {answer.other_node:,} on another node, "
        f"and keep {answer.would_wait:,} pending; empty devices used: {answer.opened_theirs:,} by "
        f"the other, {answer.opened_ours:,} by Apportion"
    )
    if answer.passed_over:
        said += f"; {many(answer.passed_over, 'event')} of the ledger had no effect"
    return said


def line(pod: ShadowPod) -> str:
    """Return the line that compares both placements of one pod."""
    ours = spot(pod.ours) if pod.ours else f"{PENDING}: {pod.reason}"
    return (
        f"{pod.revision:>8} {name_of(pod)}: other scheduler {spot(pod.theirs)}, Apportion {ours} "
        f"({SAID[pod.verdict]})"
    )


def name_of(pod: ShadowPod) -> str:
    """Return the pod's name as users see it: `namespace/name`."""
    return f"{pod.namespace}/{pod.name}"


def spot(place: Spot) -> str:
    """Return a node and its devices as text."""
    devices = ", ".join(device_words(device) for device in place.devices)
    return f"{place.node} {devices or '(devices unknown)'}"
