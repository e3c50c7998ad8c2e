"""`apportion why`: explain why a pod is pending or where it is placed."""

import time
from collections.abc import Iterator

import click
from msgspec import structs

from apportion.cli.client.completion import PODS
from apportion.cli.client.connection import Where, asks_gateway
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.lookup import why_of
from apportion.cli.client.moments import AT, AT_LEAST, pinned
from apportion.cli.exits import NotFound, Unreachable, Wrong
from apportion.cli.render.evidence import show_placed, show_refused
from apportion.cli.render.output import Screen, console, print_json
from apportion.cli.usage import Verb
from apportion.core.answers.reads import Evictions, Why
from apportion.core.explain.text import words
from apportion.core.explain.text.answer_text import start_words
from apportion.core.explain.text.vocabulary import PHASES
from apportion.core.explain.text.words import listed


@click.command(cls=Verb, epilog="Example:  apportion why training/worker-0")
@click.argument("pod", metavar="[NAMESPACE/]POD", shell_complete=PODS)
@click.option("-n", "--namespace", metavar="NAMESPACE",
              help="Namespace of the pod.  [default: `default`, then the others]")  # fmt: skip
@AT_LEAST
@AT
@asks_gateway
def command(
    *, where: Where, as_json: bool, pod: str, namespace: str | None, at_least: int | None,
    at: str | None,
) -> None:  # fmt: skip
    """Explain why a pod is pending or where it is placed, with the evidence.

    For a pod that has ended, the verb explains the last placement and later failures of its
    devices. It also lists pods that were evicted for this pod, and earlier pods of the same name.

    The node with the highest score wins. Each part of a score has the name of a policy;
    see `apportion policy set --help`. A "price" is a score, not money.

    Exit codes: 0 explained; 1 no such pod, or no data for that time; 3 gateway unreachable."""
    gateway = Gateway(where.gateway_url())
    query = pinned(gateway, {"at_least": at_least, "at": at})
    why = with_evictions(gateway, why_of(gateway, pod, namespace, query))
    if as_json:
        print_json(why)
        return
    out = console()
    show_why(out, why)
    for line in _beside_it(why):
        out.say(line, "dim", folds=True)


def with_evictions(gateway: Gateway, why: Why) -> Why:
    """Add past evictions and breaches to `why`, if the user may read past events."""
    if why.evictions is not None:
        return why
    then = {"at": why.revision}
    try:
        before = gateway.ask("pods", why.namespace, why.name, "why", answer=Why, query=then)
    except (NotFound, Unreachable, Wrong):
        return why
    return structs.replace(why, evictions=before.evictions, breaches=before.breaches)


def _beside_it(why: Why) -> Iterator[str]:
    for each in why.breaches:
        often = f"; {each.times:,} times since placement" if each.times > 1 else ""
        yield f"share breached: {each.sentence}, at revision {each.revision} ({each.time}){often}"
    if why.gang and why.gang.declared:
        phases = ", ".join(
            f"{count:,} {PHASES.get(at, at)}" for at, count in why.gang.phases.items()
        )
        queue = f"; queue {why.gang.queue}" if why.gang.queue else ""
        yield f"gang {why.gang.group}: requires {why.gang.min_available:,} pods; {phases}{queue}"
        for level, found in why.gang.domains.items():
            yield f"topology {level}: {words.domains(found)}"
        if len(why.gang.models) > 1:
            yield words.mixed_gang(why.gang.group, why.gang.models)
    evictions = why.evictions or Evictions()
    if evictions.made_room:
        gone = [f"{each.namespace}/{each.name}" for each in evictions.made_room]
        yield f"evicted for it: {listed(gone)}"
    if evictions.predecessors:
        verb = f"`apportion history {why.namespace}/{why.name}`"
        evicted, ended = evictions.before, evictions.ended
        last = ""  # how the previous pod of that name ended
        if evicted is not None:
            last = f"{evicted.sentence}, at revision {evicted.revision} ({evicted.time}); "
        elif ended is not None and ended.reason:
            last = f"{ended.reason}, at revision {ended.revision} ({ended.time}); "
        yield f"earlier pod of this name: {last}see {verb}"


def show_why(out: Screen, why: Why) -> None:
    """Print the sentence that explains the pod, and the evidence. Wrap lines only on a terminal."""
    out.say(why.sentence, "bold", folds=True)
    if why.placed:
        show_placed(out, why.placed)
    if why.refused:
        show_refused(out, why.refused)
    if why.start and (said := start_words(why.start, time.time())):
        out.say(said, folds=True)
    # Its history has only the last refusal.
    named = {"refused": "last tried"}
    steps = ", ".join(
        f"{named.get(step.phase, step.phase)} at revision {step.revision}"
        + (f" ({step.time})" if step.time else "")
        for step in why.history
    )
    out.say(f"{steps}; as of revision {why.revision}", "dim", folds=True)
