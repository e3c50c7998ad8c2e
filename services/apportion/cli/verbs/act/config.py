"""`apportion config`: check, import, apply and show the cluster's configuration document."""

import sys

import click

from apportion.cli.client.configuration import (
    configuration_at,
    configuration_now,
    read_configuration_file,
)
from apportion.cli.client.connection import JSON, Where, asks_both
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.ledger import by_whom, person, run, write
from apportion.cli.client.moments import AT, pinned
from apportion.cli.exits import REFUSED, NotFound
from apportion.cli.render.output import console, print_answer, print_json, say, warn
from apportion.cli.render.rows import Rows
from apportion.cli.usage import VerbGroup
from apportion.core.answers.reads import ConfigurationAnswer, NodeAnswer
from apportion.core.configuration import passed_over
from apportion.core.configuration.importing import Importing
from apportion.core.configuration.keys import KEYS
from apportion.core.explain.text.names import did_you_mean
from apportion.core.workloads.document import ManifestError
from apportion.runtime.files.manifests import Problem, read_manifest_files
from apportion.runtime.files.safe_yaml import parse
from apportion_schemas import ConfigurationChanged

_FILE = click.argument("file", metavar="FILE|-")


@click.group(cls=VerbGroup, epilog="Example:  apportion config check cluster.yaml")
def command() -> None:
    """Check, import, apply or show the cluster configuration, which all services follow.

    The configuration sets resource names, defaults, and how devices are shared and partitioned.

    Exit codes: 0 done; 1 invalid document; 3 ledger or gateway unreachable."""


@command.command(epilog="Example:  apportion config check cluster.yaml")
@_FILE
@JSON
def check(*, file: str, as_json: bool) -> None:
    """Check a configuration document offline.

    Each error has its line, key, value and fix. Also warns of HAMi and Volcano settings that have
    no effect in Apportion.

    Exit codes: 0 valid; 1 invalid."""
    content, configuration = read_configuration_file(file)
    for path, why in passed_over(content):
        warn(f"{path}: no effect: {why}")
    print_answer(configuration, f"{file}: valid", as_json=as_json)


@command.command(epilog="Example:  apportion config apply cluster.yaml --reason 'A100s by MIG'")
@_FILE
@click.option("--reason", default="", help="Reason, for the audit trail.")
@by_whom
@asks_both
def apply(*, where: Where, as_json: bool, file: str, reason: str, by: str) -> None:
    """Apply a configuration document.

    The new document replaces the previous one as a whole.

    Exit codes: 0 in force, or already in force; 1 invalid document; 3 ledger or gateway
    unreachable."""
    wanted = read_configuration_file(file)[1]
    now = run(configuration_now(where))
    changed = now.configuration != wanted
    revision = now.configuration_revision
    if changed:
        event = ConfigurationChanged(by=person(by), reason=reason, configuration=wanted)
        revision = run(write(where.reach(), event, basis=now.revision)).revision or 0
        if configuration_at(where, revision).configuration_revision < revision:
            raise NotFound(f"revision {revision} was refused; see the gateway's log")
    if wanted.nodeconfig:  # warn about unknown nodes: not there yet, or misspelt
        _, nodes = Gateway(where.gateway_url()).items("nodes", NodeAnswer)
        there = {node.node for node in nodes}
        for position, node in enumerate(wanted.nodeconfig):
            if node.name not in there:
                words = f"nodeconfig[{position}].name: {node.name} is not a node of the cluster yet"
                hint = did_you_mean(node.name, there)
                warn(f"{words}; {hint}" if hint else words)
    done = "in force since" if changed else "unchanged: in force since"
    said = f"{file}: {done} revision {revision}"
    body = {"revision": revision, "changed": changed, "configuration": wanted}
    print_answer(body, said, as_json=as_json)


@command.command(
    "import",
    epilog="Example:  apportion config import values.yaml device-config.yaml > cluster.json",
)
@click.argument("files", metavar="FILE|-...", nargs=-1, required=True)
@JSON
def import_(*, files: tuple[str, ...], as_json: bool) -> None:
    """Convert settings of HAMi and Volcano to a configuration document.

    Reads values of HAMi's chart (`helm get values hami --all -o yaml`), ConfigMaps of HAMi and
    Volcano, and their device configuration. Prints the document. Warns of settings that have no
    effect, and leaves out settings that Apportion does not support.

    Exit codes: 0 imported; 1 a file is invalid, or settings were left out."""
    importing = Importing(_parsed)
    for found in read_manifest_files(files, sys.stdin.buffer):
        if isinstance(found, Problem):
            raise NotFound(str(found))
        importing.add(found.source, found.content)
    try:
        done = importing.result()
    except ManifestError as error:
        raise NotFound(str(error)) from None
    by_reason: dict[tuple[str, str], list[str]] = {}
    for note in done.notes:
        by_reason.setdefault((note.source, note.why), []).append(note.path)
    for (source, why), paths in by_reason.items():
        warn(f"{f'{source}: ' if source else ''}{', '.join(paths)}: {why}")
    for source, wrong in done.errors:
        warn(f"{f'{source}: ' if source else ''}left out: {wrong}", style="red")
    body = {
        "configuration": done.configuration,
        "notes": [note._asdict() for note in done.notes],
        "left_out": [wrong.field for _, wrong in done.errors],
    }
    print_json(body if as_json else done.configuration)
    if done.errors:
        sys.exit(REFUSED)


def _parsed(text: str, path: str) -> object:
    documents = list(parse(text))
    if any(each.error for each in documents) or len(documents) > 1:
        raise ManifestError(path, None, "is not one YAML document", "correct it") from None
    return documents[0].content if documents else None


@command.command(epilog="Example:  apportion config show > cluster.json")
@AT
@asks_both
def show(*, where: Where, as_json: bool, at: str | None) -> None:
    """Print the configuration in force.

    Defaults are left out. The output can be applied again.

    Exit codes: 0 shown; 1 no data for that time; 3 ledger or gateway unreachable."""
    if at is None:
        now = run(configuration_now(where))
    else:
        gateway = Gateway(where.gateway_url())
        then = pinned(gateway, {"at": at})
        now = gateway.ask("configuration", answer=ConfigurationAnswer, query=then)
    if as_json:
        print_json(now)
        return
    since = now.configuration_revision
    words = f"in force since revision {since}" if since else "no configuration has been applied yet"
    say(words, "dim", err=True)
    print_json(now.configuration)


@command.command(epilog="Example:  apportion config keys")
@JSON
def keys(*, as_json: bool) -> None:
    """List all keys, their meaning, and the services that use them.

    Exit codes: 0 always."""
    if as_json:
        print_json([key._asdict() for key in KEYS])
        return
    made = Rows("KEY", "USED BY", "MEANING", wraps=("MEANING",))
    for key in KEYS:
        made.add_row(key.path, key.read_by, key.meaning)
    console().print(made)
