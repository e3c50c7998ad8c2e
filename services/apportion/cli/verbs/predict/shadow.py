"""`apportion shadow`: decide again what another scheduler placed."""

from pathlib import Path

import click

from apportion.cli.client.connection import Where, asks_ledger
from apportion.cli.client.moments import ARCHIVES, BEGIN, END
from apportion.cli.render.output import console, print_json
from apportion.cli.render.rows import Rows
from apportion.core.answers.replays import ShadowAnswer, ShadowPod, Spot
from apportion.core.explain.text.words import device_words, many

SAID = {
    "same": "the same",
    "other-devices": "other devices",
    "other-node": "another node",
    "would-wait": "would wait",
}

NOTHING = (
    "no pod that another scheduler placed in this time; a shadow needs a Kubernetes cluster whose "
    "pods another scheduler places: docs/guides/shadow.md"
)

FOLLOWS = (
    "following: a line comes for each pod that another scheduler places where we would not, and "
    "none without such a scheduler, as under `apportion up`; Ctrl-C ends this"
)


@click.command(
    epilog="Examples:  apportion shadow --from -1h\n\n  apportion shadow --follow\n\n"
    "  apportion shadow --archive 2026-11.jsonl --json"
)
@BEGIN
@END
@click.option("-f", "--follow", is_flag=True,
              help="Go on with what comes, a line for each pod, until Ctrl-C.")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Show pods that we would place alike, too.")
@ARCHIVES
@asks_ledger
def command(
    *, where: Where, as_json: bool, begin: str, end: str, follow: bool, every: bool,
    archives: tuple[Path, ...],
) -> None:  # fmt: skip
    """Compare with the scheduler that places the pods: where it put each, and where we would have.

    It needs a Kubernetes cluster whose pods another scheduler places, with Apportion installed as
    its shadow, or an archive of the ledger of such a one: docs/guides/shadow.md. Under `apportion
    up` nobody else places pods, so there is nothing to compare.

    Every pod that the ledger found on a node without a decision of ours is decided anew, on the
    cluster as it was at that moment. Nothing is written or bound. A MOMENT is 14:20, -10m,
    2026-11-20T03:00 or a revision.

    Exit codes: 0 compared, whatever came of it; 1 an archive cannot be read; 2 wrong usage; 3 the
    ledger cannot be reached; 4 it holds events of a newer build."""
    if follow and (archives or end):
        raise click.UsageError("--follow is for what comes: give neither --to nor --archive")
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
        made = Rows("REVISION", "POD", "THEIRS", "OURS", "WHY",
                    right=("REVISION",), wraps=("WHY",), drops=("REVISION",))  # fmt: skip
        for pod in rows:
            ours = spot(pod.ours) if pod.ours else "nowhere"
            why = pod.reason or SAID[pod.verdict]
            made.add_row(str(pod.revision), name_of(pod), spot(pod.theirs), ours, why)
        out.print(made)
    out.say(summary(answer))


def summary(answer: ShadowAnswer) -> str:
    """Return the sums in a sentence."""
    count = len(answer.pods)
    if not count:
        return NOTHING
    said = (
        f"{count:,} pods placed by another scheduler: {answer.same:,} where we would have, "
        f"{answer.other_devices:,} on other devices, {answer.other_node:,} on another node, "
        f"{answer.would_wait:,} would wait; devices taken into use: {answer.opened_theirs:,}, "
        f"by us {answer.opened_ours:,}"
    )
    if answer.passed_over:
        verb = "contradicts" if answer.passed_over == 1 else "contradict"
        said += f"; {many(answer.passed_over, 'event')} {verb} the ledger and changed nothing"
    return said


def line(pod: ShadowPod) -> str:
    """Return one pod as a line."""
    ours = spot(pod.ours) if pod.ours else f"nowhere: {pod.reason}"
    return f"{pod.revision:>8} {name_of(pod)}: {spot(pod.theirs)}, we {ours} ({SAID[pod.verdict]})"


def name_of(pod: ShadowPod) -> str:
    """Return what users call the pod, as `namespace/name`."""
    return f"{pod.namespace}/{pod.name}"


def spot(place: Spot) -> str:
    """Describe a node and its devices."""
    devices = ", ".join(device_words(device) for device in place.devices)
    return f"{place.node} {devices or '(devices not told)'}"
