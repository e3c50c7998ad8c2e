"""`apportion who`: show the pods that have or had a device, and the decisions that placed them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime

import click
from msgspec import structs
from rich.text import Text

from apportion.cli.client.completion import TARGETS
from apportion.cli.client.connection import Where, asks_gateway
from apportion.cli.client.gateway_client import Gateway, at_of
from apportion.cli.client.listing import Listed
from apportion.cli.client.lookup import is_pod
from apportion.cli.client.moments import AT, FORMS, MOMENT, both, pinned
from apportion.cli.exits import NotFound
from apportion.cli.render.output import clock, console, plain, print_json, say, show
from apportion.cli.render.rows import Rows
from apportion.cli.render.tables import device_state, node_state
from apportion.cli.usage import Verb
from apportion.core.answers.past import MomentAnswer, WhoPage, WhoRow
from apportion.core.answers.reads import UNKNOWN_DEVICE, DeviceAnswer, NodeAnswer, NodeDetail
from apportion.core.explain.health import moving
from apportion.core.explain.text import names as device_names
from apportion.core.explain.text.names import target_meant
from apportion.core.explain.text.words import device_words
from apportion.core.names import natural

PAGE = 1_000
Index = Mapping[tuple[str, str], int]  # the index of a device on its node, by the names of both
OF_PODS = "use `apportion why` or `apportion history`"


@click.command(cls=Verb, epilog="Example:  apportion who GPU-1a2b3c4d --since -2h")
@click.argument("target", metavar="DEVICE|NODE", shell_complete=TARGETS)
@AT
@click.option("--since", type=MOMENT, metavar="TIME",
              help=f"Also show past pods since then, up to --at or now: {FORMS}.")  # fmt: skip
@asks_gateway
def command(*, where: Where, as_json: bool, target: str, at: str | None, since: str | None) -> None:
    """Show the pods on a device, or on the devices of a node, and the decisions that placed them.

    If the device or node takes no new pods, the reason is printed on standard error (failed,
    cordoned, agent not reporting). CORES is - for a share without a limit of cores and for a MIG
    instance. Rows are sorted by device, then by time.

    Exit codes: 0 shown, even if there are no pods; 1 no such device or node, or no data for that
    time; 3 gateway unreachable."""
    gateway = Gateway(where.gateway_url())
    query = pinned(gateway, {"at": at, "since": since})
    try:
        page, node = _all(gateway, {**query, "node": target}), target
    except NotFound:
        page = _of_device(gateway, query, target)
        node = page.items[-1].node if page.items else ""
    revision = page.revision
    moment: dict[str, object] = {"at" if at or since else "at_least": revision}
    if not node:  # no holder names the node of the device
        _, devices = gateway.items("devices", DeviceAnswer, moment)
        node = next((d.node for d in devices if device_names.means(target, d.device)), "")
    detail: NodeDetail | None = None
    with suppress(NotFound):
        detail = gateway.ask("nodes", node, answer=NodeDetail, query=moment) if node else None
    index = {(each.node, each.device): each.index for each in detail.devices} if detail else {}
    items = by_card(page.items, index)
    if since:
        meant = gateway.ask("moment", answer=MomentAnswer, query={"at": page.since})
        say(f"since {both(since, meant, datetime.now(UTC))}", "dim", err=True)
    if as_json:
        print_json(Listed(revision, items))
        return
    if items:
        show(rows_of(items, index))
    else:
        when = f"since {since}" if since else f"at revision {revision}"
        console(stderr=True).print(f"no pods on {target} {when}")
    for line in _troubles(detail, target):
        console(stderr=True).print(line, soft_wrap=True)


def _troubles(detail: NodeDetail | None, target: str) -> Iterator[Text]:
    if detail is None:
        return
    if not detail.node.ready or detail.node.cordon:
        yield trouble_of_node(detail.node)
    for device in detail.devices:
        meant = target == detail.node.node or device_names.means(target, device.device)
        if meant and not (device.present and device.healthy and not device.cordon):
            yield trouble(device)


def trouble_of_node(node: NodeAnswer) -> Text:
    """Return why the node takes no new pods, and how to move the pods on it."""
    line = plain(f"{node.node}: ").append_text(node_state(node))
    if node.silent and node.pods:
        line.append_text(plain(f"; {moving(node.node)}"))
    return line


def trouble(device: DeviceAnswer) -> Text:
    """Return why the device takes no new pods, and how to move the pods on it."""
    of_itself = device_state(structs.replace(device, node_cordon="", node_ready=True))
    line = plain(f"{device_words(device.device)}: ").append_text(of_itself)
    if device.present and not device.healthy and device.holders:
        line.append_text(plain(f"; {moving(device_words(device.device))}"))
    return line


def _of_device(gateway: Gateway, query: dict[str, object], target: str) -> WhoPage:
    try:
        return _all(gateway, {**query, "device": target})
    except NotFound as error:
        if error.code != UNKNOWN_DEVICE:
            raise
        if is_pod(gateway, target, at_of(query)):
            raise NotFound(f"{target} is a pod, not a node or device; {OF_PODS}") from None
        _, devices = gateway.items("devices", DeviceAnswer)
        node_of = {each.device: each.node for each in devices}
        meant = target_meant(target, node_of.values(), node_of)
        raise NotFound(f"no node or device {target!r} has ever existed; {meant}") from None


def _all(gateway: Gateway, query: dict[str, object]) -> WhoPage:
    items: list[WhoRow] = []
    behind = ""
    while True:
        asked = {**query, "limit": PAGE, **({"continue": behind} if behind else {})}
        page = gateway.ask("who", answer=WhoPage, query=asked)
        items += page.items
        behind = page.next
        query = {**query, "at": page.revision, "since": page.since}
        if not behind:
            return structs.replace(page, items=tuple(items))


def by_card(items: Iterable[WhoRow], index: Index) -> list[WhoRow]:
    """Sort rows by device as `get devices` does, then by time. Removed devices come last."""

    def place(each: WhoRow) -> tuple[object, ...]:
        known = index.get((each.node, each.device))
        gone = known is None
        return natural(each.node), gone, known or 0, natural(each.device), each.from_revision

    return sorted(items, key=place)


def rows_of(items: list[WhoRow], index: Index) -> Rows:
    """Return the table with one row per allocation, without columns that have no values."""
    containers = len({item.container for item in items}) > 1
    made = Rows("NODE", "#", "DEVICE", "POD", "CONTAINER", "MEMORY", "CORES", "FROM", "UNTIL",
                "DECISION", right=("#", "MEMORY", "CORES", "DECISION"),
                drops=("CONTAINER", "CORES", "NODE", "MEMORY", "DECISION", "#"),
                optional=("#", "CONTAINER", "UNTIL"))  # fmt: skip
    for item in items:
        made.add_row(
            item.node, str(index.get((item.node, item.device), "")), device_words(item.device),
            f"{item.namespace}/{item.pod}", item.container if containers else "",
            f"{item.memory_mib:,} MiB", str(item.cores or "-"), clock(item.from_time),
            clock(item.to_time) if item.to_revision else "", str(item.decision_revision),
        )  # fmt: skip
    return made
