"""Print lists for `apportion get` in any output format, once or as they change.

Invariant: every format shows the same items in the same order."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple, TypeVar

import click
import msgspec

from apportion.cli.client.gateway_client import Gateway, at_of
from apportion.cli.exits import NotFound, Unanswered, Unreachable, Wrong
from apportion.cli.render import tables
from apportion.cli.render.output import console, print_json, say, show
from apportion.cli.render.rows import Rows
from apportion.cli.render.tables import Look
from apportion.core.answers.reads import (
    DeviceAnswer,
    GangAnswer,
    NodeAnswer,
    NodeDetail,
    PlacementAnswer,
    PodAnswer,
    QueueAnswer,
    QuotaAnswer,
    RevisionAnswer,
)
from apportion.core.explain.text import names as device_names
from apportion.core.explain.text.names import did_you_mean, named
from apportion.core.explain.text.printable import escaped
from apportion.core.explain.text.words import device_words, listed
from apportion.core.names import natural

Form = Literal["", "wide", "json", "yaml", "name"]
FORMS = ("wide", "json", "yaml", "name")
LOOK_S = 1.0
T = TypeVar("T")
UNDECLARED = "an undeclared queue has weight 1 and no limits"
GOES_ON = "(retrying; stop with Ctrl-C)"


class Kind(NamedTuple):
    """The description of one list: how its items are named, matched, sorted and printed."""

    what: str
    item: type[Any]
    name: Callable[[Any], str]
    answers_to: Callable[[Any, str], bool]
    order: Callable[[Any], Any] | None
    rows: Callable[[Iterable[Any], Look], Rows]


def _by_name(
    what: str, item: type[T], name: Callable[[T], str], rows: Callable[[Iterable[T], Look], Rows]
) -> Kind:
    return Kind(
        what, item, name, lambda each, asked: name(each) == asked,
        lambda each: natural(name(each)), rows,
    )  # fmt: skip


def _full_name(item: PodAnswer | PlacementAnswer) -> str:
    return f"{item.namespace}/{item.name}"


def _is_pod(item: PodAnswer | PlacementAnswer, name: str) -> bool:
    return name in (item.name, _full_name(item))


PODS = Kind("pods", PodAnswer, _full_name, _is_pod, None, tables.pods)
PLACEMENTS = Kind("placements", PlacementAnswer, _full_name, _is_pod, None, tables.placements)
NODES = _by_name("nodes", NodeAnswer, lambda node: node.node, tables.nodes)
GANGS = _by_name("gangs", GangAnswer, lambda gang: gang.group, tables.gangs)
QUEUES = Kind(
    "queues", QueueAnswer, lambda queue: queue.queue, lambda queue, name: queue.queue == name,
    lambda queue: [natural(name) for name in (*queue.above, queue.queue)], tables.queues,
)  # fmt: skip
DEVICES = Kind(
    "devices", DeviceAnswer, lambda device: str(device.device),
    lambda device, name: device_names.means(name, device.device),
    lambda device: (natural(device.node), device.index), tables.devices,
)  # fmt: skip
QUOTAS = Kind(
    "quotas", QuotaAnswer, lambda quota: f"{quota.namespace}/{quota.quota}",
    lambda quota, name: name in (quota.quota, f"{quota.namespace}/{quota.quota}"),
    lambda quota: natural(f"{quota.namespace}/{quota.quota}"), tables.quotas,
)  # fmt: skip


@contextmanager
def naming_nodes(gateway: Gateway, query: Mapping[str, Any]) -> Iterator[None]:
    """If the query names an unknown node, add similar names to a NotFound from the `with` block."""
    try:
        yield
    except NotFound as error:
        if not (node := query.get("node")):
            raise
        names = [each.node for each in gateway.items("nodes", NodeAnswer, at_of(query))[1]]
        if node in names:
            raise
        meant = did_you_mean(node, names) or named("nodes", names)
        problem = error.answer.error if error.answer is not None else error.message
        raise NotFound(f"{problem}; {meant}") from None


class Listed(msgspec.Struct, frozen=True):
    """The document that `--json` prints: the whole list, and the revision of its last page."""

    revision: int
    items: list[Any]


class Listing(NamedTuple):
    """A list to print. If the connection is lost, `find` returns the gateway's current URL."""

    gateway: Gateway
    kind: Kind
    names: Sequence[str]
    query: dict[str, Any]
    form: Form
    look: Look
    find: Callable[[], str]

    def print(self) -> None:
        """Print the list. Raises NotFound for unknown names, after printing the known ones."""
        revision, found = self._ask()
        items, missing = self._named(found)
        if items or not missing:
            self._print(revision, items)
        if missing:
            raise NotFound("; ".join(self._no_such(name, found, revision) for name in missing))

    def watch(self) -> None:
        """Print the list and then each change, until interrupted. Raises Wrong for YAML."""
        if self.form == "yaml":
            raise Wrong("-o yaml cannot be used with --watch; choose json, name or wide")
        revision, found = self._ask()
        before = {self.kind.name(item): item for item in self._named(found)[0]}
        self._print(revision, list(before.values()), piece=True)
        while True:
            revision, found = self._newer(revision)
            after = {self.kind.name(item): item for item in self._named(found)[0]}
            changed = [item for name, item in after.items() if before.get(name) != item]
            if changed:
                self._print(revision, changed, piece=True, header=False)
            if self.form in {"", "wide"}:
                for name in before.keys() - after.keys():
                    say(f"{name} is gone")
            before = after

    def _newer(self, revision: int) -> tuple[int, list[Any]]:
        away = False
        while True:
            time.sleep(LOOK_S)
            try:
                now = self.gateway.ask("revision", answer=RevisionAnswer).revision
                if away:
                    click.echo("gateway reconnected", err=True)
                away = False
                if now != revision:
                    return self._ask()
            except Unanswered as error:
                if not away:
                    click.echo(f"{escaped(error.message)} {GOES_ON}", err=True)
                away = True
                with suppress(Unreachable):
                    self.gateway.move(self.find())

    def _ask(self) -> tuple[int, list[Any]]:
        with naming_nodes(self.gateway, self.query):
            revision, items = self.gateway.items(self.kind.what, self.kind.item, self.query)
        if self.kind.order is not None:
            items.sort(key=self.kind.order)
        return revision, items

    def _named(self, items: list[Any]) -> tuple[list[Any], list[str]]:
        if not self.names:
            return items, []
        of_name = {
            name: [item for item in items if self.kind.answers_to(item, name)]
            for name in dict.fromkeys(self.names)
        }
        wanted = {self.kind.name(item) for found in of_name.values() for item in found}
        chosen = [item for item in items if self.kind.name(item) in wanted]
        return chosen, [name for name, found in of_name.items() if not found]

    def _no_such(self, name: str, items: list[Any], revision: int) -> str:
        problem = f"no {self.kind.what.removesuffix('s')} {name!r} at revision {revision}"
        if self.kind in (PODS, PLACEMENTS, DEVICES):
            with suppress(NotFound):
                self.gateway.ask("nodes", name, answer=NodeDetail, query=at_of(self.query))
                return (
                    f"{problem}; it is a node, try `apportion get {self.kind.what} --node {name}`"
                )
        if self.kind is QUEUES:
            problem += f"; {UNDECLARED}"
        if self.kind is DEVICES and (unclear := device_names.unclear(name, ())):
            begin = [item.device for item in items if item.device.startswith(name)]
            so = f": {listed([device_words(device) for device in begin])}"
            return f"{unclear}; {device_names.WRITE_MORE}{so if begin else ''}"
        shown = device_words if self.kind is DEVICES else str
        names = [shown(self.kind.name(item)) for item in items]
        hint = did_you_mean(name, [*names, *(full.rpartition("/")[2] for full in names)])
        if not hint and names:
            hint = f"known: {listed(names)}"
        return f"{problem}; {hint}" if hint else problem

    def _print(
        self, revision: int, items: list[Any], *, piece: bool = False, header: bool = True
    ) -> None:
        if self.form == "json" and piece:
            for item in items:
                print_json(item, line=True)
        elif self.form == "json":
            print_json(Listed(revision, items))
        elif self.form == "yaml":
            from apportion.runtime.files.safe_yaml import written

            click.echo(written(msgspec.to_builtins(Listed(revision, items))), nl=False)
        elif self.form == "name":
            for item in items:
                click.echo(escaped(self.kind.name(item)))
        elif items:
            rows = self.kind.rows(items, self.look)
            rows.header = header
            show(rows)
        elif not (self.names or piece):
            query = (f" {key} {each}" for key, each in self.query.items() if each and key != "at")
            none = f"no {self.kind.what} at revision {revision} with" + ",".join(query)
            console(stderr=True).print(escaped(none.removesuffix(" with")))
