"""`apportion check`: show how Apportion reads manifests, without a cluster."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from apportion.cli.client.configuration import read_configuration_file
from apportion.cli.client.connection import JSON
from apportion.cli.exits import REFUSED
from apportion.cli.pods.manifest_files import documents
from apportion.cli.render.output import Screen, console, plain, print_answer
from apportion.cli.usage import Verb
from apportion.core.configuration import manifest_config
from apportion.core.explain.text.event_text import added_up, ask_words
from apportion.core.explain.text.words import LISTED, many, of_resource
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.lint.checking import checked
from apportion.core.workloads.pods.template import DEFAULT_CONFIG, ManifestConfig
from apportion.core.workloads.reading import nothing_taken_words, with_named
from apportion.runtime.files.manifests import FILES_MAX, STANDARD_INPUT, SUFFIXES, Document, Problem

HELM = b"{{"
HELM_LOOKED_AT = 1 << 20


class NoteRow(msgspec.Struct, frozen=True):
    """A warning about a field; `doubtful` and `partly` are as in `Suspect`."""

    field: str
    why: str
    doubtful: bool = False
    partly: bool = False
    line: int = 0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One document of a manifest file, with what the check found."""

    source: str
    line: int
    name: str
    pods: int = 0
    dialect: str = ""
    asks: tuple[str, ...] = ()
    node: tuple[str, ...] = ()  # requests other than devices
    gangs: tuple[str, ...] = ()
    note: str = ""  # what only the controller knows about the pods
    notes: tuple[NoteRow, ...] = ()
    refused: str = ""  # the error


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A document that was not checked, with the reason. `document` is its number in the file."""

    source: str
    document: int
    line: int
    name: str
    holds_pods: bool
    why: str


class Report(msgspec.Struct, kw_only=True):
    """The document that `--json` prints: checked and skipped documents."""

    documents: list[Row] = []
    skipped: list[Skipped] = []

    @property
    def refused(self) -> int:
        """Return the number of documents that are refused or unreadable."""
        return sum(bool(row.refused) for row in self.documents)

    @property
    def doubtful(self) -> int:
        """Return the total number of doubtful fields in all documents."""
        return sum(note.doubtful for row in self.documents for note in row.notes)


@click.command(cls=Verb, epilog="Example:  apportion check -f deploy/ --config apportion.yaml")
@click.option("-f", "--file", "files", multiple=True, required=True, metavar="FILE|DIR|-",
              help="Manifests to check; folders are read with all subfolders.")  # fmt: skip
@click.option("--config", "config_file", metavar="FILE",
              help="Cluster configuration, for custom resource names and units.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Also exit with 1 on warnings and skipped documents.")
@JSON
def command(
    *, files: tuple[str, ...], config_file: str | None, strict: bool, as_json: bool
) -> None:
    """Show each manifest's dialect, requests and ignored fields; works offline.

    Suspended workloads and templates, such as a WorkflowTemplate, are checked as well.
    PriorityClasses and training runtimes in the same files are used.

    Warnings flag what you probably did not intend: a misspelt name, an amount in another unit, or
    another scheduler. These documents are skipped: workloads of an unknown kind, and documents that
    are neither a workload nor a limit, such as a Service.

    Exit codes: 0 all accepted; 1 a document is rejected, all are skipped, or with --strict there
    are warnings or skipped documents; 2 wrong usage."""
    config = DEFAULT_CONFIG
    if config_file is not None:
        config = manifest_config(read_configuration_file(config_file)[1])
    report = Report()
    read = list(documents(_expanded(files)))
    contents = [each.content for each in read if isinstance(each, Document)]
    config = with_named(config, contents)
    for found in read:
        if isinstance(found, Problem):
            said = found.message
            if found.source != STANDARD_INPUT:
                with suppress(OSError), Path(found.source).open("rb") as file:
                    if HELM in file.read(HELM_LOOKED_AT):
                        made = f"check the output of `helm template` ({said})"
                        said = f"is a Helm template, not a manifest; {made}"
            unreadable = Row(source=found.source, line=found.line, name="", refused=said)
            report.documents.append(unreadable)
        else:
            _look(found, config, report)
    if not report.documents and not any(each.holds_pods for each in report.skipped):
        why = nothing_taken_words(contents)
        report.documents.append(Row(source=read[0].source, line=0, name="", refused=why))
    print_answer(report, lambda: _show(report, (found.source for found in read)), as_json=as_json)
    incomplete = not report.documents or (strict and (report.doubtful or report.skipped))
    if report.refused or incomplete:
        sys.exit(REFUSED)


def _expanded(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        path = Path(name)
        if name == STANDARD_INPUT or not path.is_dir():
            yield name
            continue
        found = sorted(
            Path(folder, file)
            for folder, _, below in os.walk(path)
            for file in below
            if Path(file).suffix in SUFFIXES and not file.startswith(".")
        )
        inside = [file for file in found if file.resolve().is_relative_to(path.resolve())]
        if len(inside) > FILES_MAX:
            raise click.UsageError(
                f"{name}: has {len(inside)} manifests, more than {FILES_MAX}; pass its "
                "subfolders instead"
            )
        if not inside:
            raise click.UsageError(f"{name}: has no manifests ({', '.join(sorted(SUFFIXES))})")
        yield from map(str, inside)


def _look(document: Document, config: ManifestConfig, report: Report) -> None:
    for each in checked(document.content, config):
        source, line, name = document.source, document.parsed.line, each.name
        if each.passed_over or not each.known:
            why = "this kind is not supported; check its pod template"
            skipped = Skipped(
                source=source, document=document.parsed.number, line=line, name=name,
                holds_pods=not each.passed_over,
                why="neither a workload nor a limit" if each.passed_over else why,
            )  # fmt: skip
            report.skipped.append(skipped)
            continue
        if each.error is not None:
            line = document.problem(each.error).line or line
            row = Row(source=source, line=line, name=name, refused=str(each.error))
            report.documents.append(row)
            continue
        asks = {
            f"{ask.container}: {ask_words(ask)}": None
            for pod in each.pods
            for ask in added_up((*pod.shape.asks, *pod.borrowing))
        }
        notes = (NoteRow(*note, line=document.parsed.line_of(note.field)) for note in each.notes)
        row = Row(
            source=source, line=line, name=name, pods=len(each.pods), asks=tuple(asks),
            dialect=", ".join(dict.fromkeys(pod.dialect for pod in each.pods)),
            node=tuple(dict.fromkeys(words for pod in each.pods if (words := _of_node(pod)))),
            gangs=tuple(
                f"{group.group}: at least {many(group.min_available, 'pod')} together"
                for group in each.groups
            ),
            note=each.note, notes=tuple(notes),
        )  # fmt: skip
        report.documents.append(row)


def _of_node(pod: PodDraft) -> str:
    node = pod.shape.node
    said = [of_resource("cpu", node.cpu_milli)] if node.cpu_milli else []
    said += [f"{of_resource('memory', node.memory_mib)} memory"] if node.memory_mib else []
    said += [f"{of_resource(name, much)} of {name}" for name, much in node.extended.items()]
    return ", ".join(said)


def _show(report: Report, sources: Iterable[str]) -> None:
    out = console()
    places = {source: place for place, source in enumerate(dict.fromkeys(sources))}
    rows: tuple[Row | Skipped, ...] = (*report.documents, *report.skipped)
    for row in sorted(rows, key=lambda row: (places[row.source], row.line)):
        where = f"{row.source}:{row.line}" if row.line else row.source
        out.say(f"{where}  {row.name}".rstrip(), "bold")
        if isinstance(row, Skipped):
            out.say(f"  skipped   document {row.document}: {row.why}", "yellow")
        else:
            _show_known(row, out)
    taken = len(report.documents) - report.refused
    total = f"{taken:,} accepted, {report.refused:,} rejected"
    if report.skipped:
        total += f", {len(report.skipped):,} skipped"
    if report.doubtful:
        total += f", {many(report.doubtful, 'warning')}"
    out.print(plain(total))


def _show_known(row: Row, out: Screen) -> None:
    if row.refused:
        out.say(f"  rejected  {row.refused}", "red")
    elif not row.pods:
        out.say("  accepted  creates no pods")
    elif not row.asks:
        out.say("  accepted  requests no device")
    for ask in row.asks:
        out.say(f"  {row.dialect:<9} {ask}")
    for words in row.node:
        out.say(f"  {'node':<9} {words}")
    gangs = list(row.gangs[:LISTED])
    if len(row.gangs) > LISTED:
        gangs.append(f"and {many(len(row.gangs) - LISTED, 'more gang')}")
    for words in gangs:
        out.say(f"  {'gang':<9} {words}")
    if row.note:
        out.say(f"  {'note':<9} {row.note}", "dim")
    for note in sorted(row.notes, key=lambda note: not note.doubtful):
        kind = "warning" if note.doubtful else "note" if note.partly else "ignored"
        said = f"  {kind:<9} line {note.line}, {note.field}: {note.why}"
        out.say(said, "bold yellow" if note.doubtful else "dim")
