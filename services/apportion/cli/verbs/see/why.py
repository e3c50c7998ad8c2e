"""`apportion why`: where a pod is and what decided it, or what every node lacks for it."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click
from msgspec import structs
from rich.console import Console

from apportion.cli.client.connection import Where, asks_gateway
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.moments import AT, pinned
from apportion.cli.exits import NotFound, Unreachable, Wrong
from apportion.cli.render.output import console, plain, print_json, show, table
from apportion.cli.verbs.setup.completion import PODS
from apportion.core.explain import device_names, words
from apportion.core.explain.answers import (
    DeviceAnswer,
    Evictions,
    MissRow,
    NodeDetail,
    PodAnswer,
    Why,
    WhyPlaced,
    WhyRefused,
)
from apportion.core.explain.lines import listed, share_words
from apportion.core.explain.near import near
from apportion.core.explain.past_answers import PodNames
from apportion.core.explain.vocabulary import PHASES
from apportion.core.explain.words import device_words, many


def split_name(pod: str, namespace: str | None) -> tuple[str, str]:
    """`NAME` or `NAMESPACE/NAME` as both."""
    before, slash, name = pod.partition("/")
    return (before, name) if slash else (namespace or "default", pod)


@click.command(epilog="Example:  apportion why training/worker-0")
@click.argument("pod", metavar="[NAMESPACE/]POD", shell_complete=PODS)
@click.option(
    "-n",
    "--namespace",
    metavar="NAMESPACE",
    help="Where the pod is.  [default, else wherever it is]",
)
@click.option("--at-least", type=click.IntRange(min=0), metavar="REVISION",
              help="Wait until the gateway has folded this revision.")  # fmt: skip
@AT
@asks_gateway
def command(
    *, where: Where, as_json: bool, pod: str, namespace: str | None, at_least: int | None,
    at: str | None,
) -> None:  # fmt: skip
    """Say in one sentence why a pod is where it is, or nowhere, and show the evidence.

    Of a pod that has ended: why it was where it was, and what has failed under it since. It
    ends with whom it made go, and with what came before under its name.

    Of two scores the higher one wins; `apportion policy set --help` says what their parts
    price, fgd, bestfit, binpack and spread prefer. A price in it is no money.

    Exit codes: 0 explained; 1 there never was such a pod, or nothing is known of the
    moment; 3 the gateway cannot be reached.
    """
    gateway = Gateway(where.gateway_url())
    query = pinned(gateway, {"at_least": at_least, "at": at})
    why = with_evictions(gateway, why_of(gateway, pod, namespace, query))
    if as_json:
        print_json(why)
        return
    out = console()
    show_why(out, why)
    for line in _beside_it(why):
        out.print(plain(line), style="dim", soft_wrap=not out.is_terminal)


def with_evictions(gateway: Gateway, why: Why) -> Why:
    """Add evictions and breaches from the past, if the gateway tells this user of it."""
    if why.evictions is not None:
        return why
    then = {"at": why.revision}
    try:
        before = gateway.ask("pods", why.namespace, why.name, "why", answer=Why, query=then)
    except (NotFound, Unreachable, Wrong):
        return why
    return structs.replace(why, evictions=before.evictions, breaches=before.breaches)


def _beside_it(why: Why) -> Iterator[str]:
    """Its breaches, its gang, the pods evicted for it and its predecessor, a line each."""
    for each in why.breaches:
        often = f"; {each.times:,} times since it was placed" if each.times > 1 else ""
        yield f"share breached: {each.sentence}, at revision {each.revision} ({each.time}){often}"
    if why.gang and why.gang.declared:
        phases = ", ".join(
            f"{count:,} {PHASES.get(at, at)}" for at, count in why.gang.phases.items()
        )
        queue = f"; queue {why.gang.queue}" if why.gang.queue else ""
        yield f"gang {why.gang.group}: needs {why.gang.min_available:,}, has {phases}{queue}"
        if len(why.gang.models) > 1:
            yield words.mixed_gang(why.gang.group, why.gang.models)
    evictions = why.evictions or Evictions()
    if evictions.made_room:
        gone = [f"{each.namespace}/{each.name}" for each in evictions.made_room]
        yield f"evicted for it: {listed(gone)}"
    if evictions.predecessors:
        verb = f"`apportion history {why.namespace}/{why.name}`"
        yield f"before: {_last(evictions)}{verb} tells what came before"


def _last(evictions: Evictions) -> str:
    """What became of the newest that had the name before; empty where nobody said why it ended."""
    evicted, ended = evictions.before, evictions.ended
    if evicted is not None:
        return f"{evicted.sentence}, at revision {evicted.revision} ({evicted.time}); "
    if ended is None or not ended.reason:
        return ""
    return f"{ended.reason}, at revision {ended.revision} ({ended.time}); "


def show_why(out: Console, why: Why) -> None:
    """The sentence and the evidence; a terminal has its lines broken between words, a pipe whole
    ones, for `grep`.
    """
    out.print(plain(why.sentence), style="bold", soft_wrap=not out.is_terminal)
    if why.placed:
        show_placed(out, why.placed)
    if why.refused:
        show_refused(out, why.refused)
    _history(out, why)


def why_of(gateway: Gateway, pod: str, namespace: str | None, query: Mapping[str, Any]) -> Why:
    """The answer; a name alone is looked for in `default`, and then wherever it is.

    Raises:
        NotFound: there is no such pod, or several; the message names those that are near.
    """
    space, name = split_name(pod, namespace)
    try:
        return gateway.ask("pods", space, name, "why", answer=Why, query=query)
    except NotFound as error:
        there = {key: value for key, value in query.items() if key == "at"}
        if namespace is not None or "/" in pod:
            raise unknown(gateway, name, error.message, there) from None
        other = _other_kind(gateway, name, there)
        if other:
            raise NotFound(f"{error.message}; {other}") from None
        space = namespace_of(gateway, name, there, error.message)
    return gateway.ask("pods", space, name, "why", answer=Why, query=query)


def namespace_of(gateway: Gateway, name: str, there: Mapping[str, Any], problem: str) -> str:
    """The namespace of the only pod of that name that is live at the moment `there`, or else ever
    was.

    Raises:
        NotFound: there is none, with the problem and those that are near; or several, named.
    """
    _, pods = gateway.items("pods", PodAnswer, there)
    spaces = sorted({each.namespace for each in pods if each.name == name})
    if not spaces:
        ever = gateway.ask("history", "pods", name, answer=PodNames, query=there)
        spaces = [each.namespace for each in ever.items]
    if len(spaces) > 1:
        several = listed([f"{each}/{name}" for each in spaces])
        raise NotFound(f"pods of this name: {several}; write NAMESPACE/{name}") from None
    if not spaces:
        raise NotFound(f"{problem}{pods_meant(name, pods)}") from None
    return spaces[0]


def unknown(
    gateway: Gateway, name: str, problem: str, there: Mapping[str, Any] | None = None
) -> NotFound:
    """The end of a verb that was given a pod's namespace too: it names what may have been meant."""
    _, pods = gateway.items("pods", PodAnswer, there)
    return NotFound(f"{problem}{pods_meant(name, pods)}")


def pods_meant(name: str, pods: Iterable[PodAnswer]) -> str:
    """What is said behind "no such pod": the pods of that name elsewhere, of an owner or a gang of
    that name, or of a like one.

    As in `; did you mean training/worker-0?`; empty where there is none.
    """
    full = defaultdict[str, list[str]](list)
    made = defaultdict[str, list[str]](list)
    for pod in pods:
        full[pod.name].append(f"{pod.namespace}/{pod.name}")
        if what := _made_by(name, pod):
            made[what].append(f"{pod.namespace}/{pod.name}")
    if made and name not in full:
        return "".join(f"; it is a {what}, and its pods are {listed(made[what])}" for what in made)
    meant = full.get(name) or [each for found in near(name, full) for each in full[found]]
    return f"; did you mean {listed(meant)}?" if meant else ""


def _made_by(name: str, pod: PodAnswer) -> str:
    """As what the name stands above the pod: the kind of its owner, or a gang; empty where not."""
    kind, _, owner = pod.owner.partition("/")
    if owner == name:
        return kind
    return "gang" if pod.group.rpartition("/")[2] == name else ""


def _other_kind(gateway: Gateway, name: str, there: Mapping[str, Any]) -> str:
    """Which verb answers for it, where it is the name of a node or a device; empty else."""
    try:
        gateway.ask("nodes", name, answer=NodeDetail, query=there)
        kind = "node"
    except NotFound:
        _, devices = gateway.items("devices", DeviceAnswer, there)
        if not any(device_names.means(name, each.device) for each in devices):
            return ""
        kind = "device"
    return f"it is a {kind}: `apportion who {name}` tells who is on it, `apportion history` more"


def show_placed(out: Console, placed: WhyPlaced) -> None:
    """What the pod holds, and the scores that decided it."""
    held = table("CONTAINER", "HOLDS", "#", "MODEL", right=("#",), wraps=("HOLDS", "MODEL"),
                 drops=("MODEL", "#"))  # fmt: skip
    for share in placed.shares:
        held.add_row(
            plain(share.share.container), plain(share_words(share.share)),
            str(share.index) if share.index >= 0 else "", plain(share.model),
        )  # fmt: skip
    if placed.shares:
        show(held, out)
    parts = list(placed.score.parts)
    columns = [part.upper() for part in parts]
    scores = table("NODE", "SCORE", *columns, drops=reversed(columns))
    row = [f"{placed.score.parts[part]:.1f}" for part in parts]
    scores.add_row(plain(placed.node), f"{placed.score.total:.1f}", *row, style="green")
    for other in placed.runners_up:
        row = [f"{other.parts[part]:.1f}" if part in other.parts else "" for part in parts]
        scores.add_row(plain(other.node), f"{other.total:.1f}", *row)
    show(scores, out)
    more = placed.fitting - 1 - len(placed.runners_up)
    lines = (
        [f"and {many(more, 'more node')} that fit" + ("" if more > 1 else "s")] if more > 0 else []
    )
    for line in (*lines, *([placed.choice] if placed.choice else [])):
        out.print(plain(line), style="dim", soft_wrap=not out.is_terminal)


def show_refused(out: Console, refused: WhyRefused) -> None:
    """What keeps it from every node, and which came nearest."""
    of_nodes = any(cause.nodes for cause in refused.causes)  # no node is counted for a limit
    causes = table(*(["NODES"] if of_nodes else []), "CAUSE", "WHAT WOULD UNBLOCK IT",
                   right=("NODES",), wraps=("CAUSE", "WHAT WOULD UNBLOCK IT"))  # fmt: skip
    for cause in refused.causes:
        causes.add_row(*([str(cause.nodes)] if of_nodes else []), plain(cause.words),
                       plain(cause.unblocked_by))  # fmt: skip
    out.print(causes)
    if not refused.nearest:
        return
    held = any(miss.held_by for miss in refused.nearest)
    misses = table("NEAREST", "DEVICE", "CAUSE", "NEEDED", "AVAILABLE", "MISSING",
                   *(["HELD BY"] if held else []), right=("NEEDED", "AVAILABLE", "MISSING"),
                   wraps=("CAUSE", "HELD BY"),
                   drops=("NEEDED", "AVAILABLE", "DEVICE"))  # fmt: skip
    for miss in refused.nearest:
        misses.add_row(
            plain(miss.node), plain(device_words(miss.device)), plain(miss.words),
            miss.needed_words, miss.available_words, miss.missing,
            *([plain(_held_by(miss))] if held else []),
        )  # fmt: skip
    if misses.crowded(out.width):
        _show_below_another(out, refused.nearest)
    else:
        show(misses, out)


def _show_below_another(out: Console, misses: Iterable[MissRow]) -> None:
    """What the table of the nearest would say, where it would leave out columns or break names:
    lines end between words, and a name that is longer than the terminal is wide stays whole.
    """
    for miss in misses:
        amounts = (("needed", miss.needed_words), ("available", miss.available_words),
                   ("missing", miss.missing))  # fmt: skip
        lines = [f"nearest: {miss.node} {device_words(miss.device)}".rstrip(), f"  {miss.words}"]
        lines += [f"  {', '.join(f'{what} {much}' for what, much in amounts if much)}"]
        lines += [f"  held by {_held_by(miss)}"] if miss.held_by else []
        for line in lines:
            folded = textwrap.wrap(
                line, out.width, subsequent_indent="    ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
            for part in folded:
                out.print(plain(part), soft_wrap=True)


def _held_by(miss: MissRow) -> str:
    more = miss.holders - len(miss.held_by)
    return ", ".join(miss.held_by) + (f" and {more:,} more" if more > 0 else "")


def _step(phase: str) -> str:
    """A pod waits since its submission, so of its refusal it is told that it is the newest."""
    return "last found no place at" if phase == "refused" else f"{phase} at"


def _history(out: Console, why: Why) -> None:
    steps = ", ".join(
        f"{_step(step.phase)} revision {step.revision}" + (f" ({step.time})" if step.time else "")
        for step in why.history
    )
    said = plain(f"{steps}; as of revision {why.revision}")
    out.print(said, style="dim", soft_wrap=not out.is_terminal)
