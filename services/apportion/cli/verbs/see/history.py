"""`apportion history`: print all events of a pod, node or device, one line per event."""

from contextlib import suppress
from datetime import datetime
from typing import Any

import click
import msgspec

from apportion.cli.client.completion import ANYTHING
from apportion.cli.client.connection import Where, asks_gateway
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.lookup import NothingLike, namespace_of, split_name, unknown
from apportion.cli.client.moments import AT, pinned
from apportion.cli.exits import NotFound
from apportion.cli.render.output import between, console, plain, print_json
from apportion.cli.usage import Verb
from apportion.core.answers.past import HistoryPage, HistoryRow
from apportion.core.answers.reads import AMBIGUOUS_DEVICE, DeviceAnswer, NodeAnswer
from apportion.core.explain.text.names import did_you_mean

LISTS = "list names with `apportion get pods`, `get nodes` or `get devices`"
NAME_CELLS = 20


class Story(msgspec.Struct, frozen=True):
    """The document that `--json` prints: the events, up to `revision`."""

    revision: int
    kind: str
    items: list[HistoryRow]


@click.command(cls=Verb, epilog="Example:  apportion history training/worker-0")
@click.argument("target", metavar="[NAMESPACE/]POD|NODE|DEVICE", shell_complete=ANYTHING)
@click.option("-n", "--namespace", metavar="NAMESPACE",
              help="Namespace of the pod.  [default: `default`, then the others]")  # fmt: skip
@AT
@asks_gateway
def command(
    *, where: Where, as_json: bool, target: str, namespace: str | None, at: str | None
) -> None:
    """Show all events of a pod, node or device, oldest first, with the time between them.

    If you give only a name, the verb looks for a node, then a device, then a pod. It looks for pods
    first in the namespace `default`, then among live pods, then among past pods. NAMESPACE/POD and
    -n always mean a pod. The history of a pod includes failures of its devices and node, and
    earlier pods of the same name.

    Exit codes: 0 shown; 1 no such object, or no data for that time; 3 gateway unreachable."""
    gateway = Gateway(where.gateway_url())
    query = pinned(gateway, {"at": at})
    if namespace or "/" in target:
        place = split_name(target, namespace)
        try:
            story = _story(gateway, ("pods", *place), query)
        except NotFound as error:
            raise unknown(gateway, place[1], error.message, query) from None
    else:
        story = _anywhere(gateway, target, query)
    if as_json:
        print_json(story)
        return
    out, day = console(), ""
    before: datetime | None = None
    for row in story.items:
        time: datetime | None = None
        with suppress(ValueError):
            time = datetime.fromisoformat(row.time)
        if row.time[:10] != day:
            day = row.time[:10]
            out.print(plain(day), style="bold")
        since = between((time - before).total_seconds()) if time and before else ""
        before = time or before
        name = f"{row.type or 'unreadable':<{NAME_CELLS}}"
        out.say(f"{row.time[11:23]:<12} {since:>8} {row.revision:>8} {name} {row.sentence}")


def _anywhere(gateway: Gateway, name: str, query: dict[str, Any]) -> Story:
    problem, several = f"no node, device or pod {name!r} has ever existed", False
    for place in (("nodes", name), ("devices", name), ("pods", "default", name)):
        try:
            return _story(gateway, place, query)
        except NotFound as error:
            if error.code == AMBIGUOUS_DEVICE:
                problem, several = error.message, True
    try:
        space = namespace_of(gateway, name, query, problem)
    except NothingLike:
        if several:
            raise
        _, devices = gateway.items("devices", DeviceAnswer, query)
        _, nodes = gateway.items("nodes", NodeAnswer, query)
        known = [*(each.node for each in nodes), *(each.device for each in devices)]
        raise NotFound(f"{problem}; {did_you_mean(name, known) or LISTS}") from None
    return _story(gateway, ("pods", space, name), query)


def _story(gateway: Gateway, place: tuple[str, ...], query: dict[str, Any]) -> Story:
    pages = list(gateway.pages("history", *place, answer=HistoryPage, query=query))
    items = [row for page in pages for row in page.items]
    return Story(pages[-1].revision, place[0].removesuffix("s"), items)
