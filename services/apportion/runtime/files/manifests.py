"""Read manifests from disk or standard input (`-f FILE`, `-f DIR`, `-f -`).

A user who can write to a folder could link to files that only this process may read. Invariants:
from a folder, only files inside it are read, even if links change in the meantime. At most one
file, of bounded size, is in memory. An unreadable file or document does not hide other files."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from apportion.core.explain.text.names import did_you_mean
from apportion.core.explain.text.words import listed
from apportion.core.names import natural
from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.document import errors_below, items_of
from apportion.core.workloads.kinds.controllers import SCALED
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.kinds.limits import limit_of
from apportion.core.workloads.lint.typo_checks import left_elsewhere, queues_named, suspects
from apportion.core.workloads.pods.template import DEFAULT_CONFIG, ManifestConfig
from apportion.core.workloads.reading import (
    found_as,
    is_other,
    note_of,
    nothing_taken_words,
    others_in,
    read_document,
    with_named,
)
from apportion.runtime.files.safe_yaml import TEXT_BYTES_MAX, Parsed, parse
from apportion_schemas import PodGroupObserved, QueueObserved, QuotaObserved

STANDARD_INPUT = "-"
FILES_MAX = 10_000
ALL_BYTES_MAX = 64 << 20
# in all files of one call: one or two minutes of work on a slow processor
ALL_DOCUMENTS_MAX = 200_000
SUFFIXES = {".json", ".yaml", ".yml"}


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a manifest file: its source, position and content."""

    source: str
    parsed: Parsed

    @property
    def content(self) -> object:
        """Return the document's content as JSON-like values."""
        return self.parsed.content

    @property
    def place(self) -> str:
        """Return the document's location, such as `values.yaml:1`."""
        return f"{self.source}:{self.parsed.line}"

    def problem(self, error: ManifestError) -> Problem:
        """Convert an error in this document into a Problem with its line number."""
        line = self.parsed.line_of(error.field)
        return Problem(self.source, str(error), document=self.parsed.number, line=line)

    def doubt(self, field: str, why: str) -> str:
        """Format the warning `why` about a field of the document, with the field's line number."""
        return str(Problem(self.source, f"{field}: {why}", line=self.parsed.line_of(field)))


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in a manifest, with its location if known."""

    source: str
    message: str
    document: int = 0  # 0 if unknown
    line: int = 0  # 0 if unknown

    def __str__(self) -> str:
        where = [self.source]
        where += [f"document {self.document}"] if self.document else []
        where += [f"line {self.line}"] if self.line else []
        return f"{', '.join(where)}: {self.message}"


def read_manifest_files(names: Sequence[str], stdin: BinaryIO) -> Iterator[Document | Problem]:
    """Yield every document of the named files and folders, in order; `-` is stdin.

    Reads only files with SUFFIXES from a folder. At a limit, yields a final problem and stops."""
    size = documents = 0
    for found in read_manifest_bytes(names, stdin):
        if isinstance(found, Problem):
            yield found
            continue
        source, data = found
        size += len(data)
        if size > ALL_BYTES_MAX or documents > ALL_DOCUMENTS_MAX:
            most = f"{ALL_BYTES_MAX >> 20} MiB and {ALL_DOCUMENTS_MAX} documents"
            yield Problem(
                source,
                f"skipped, with all files after it: one command reads {most}; pass fewer files",
            )
            return
        for document in _documents(source, data):
            documents += 1
            yield document


def read_manifest_bytes(
    names: Sequence[str], stdin: BinaryIO
) -> Iterator[tuple[str, bytes] | Problem]:
    """Yield each file's name and content, in `read_manifest_files`' order; truncate large files."""
    for name in names:
        if name == STANDARD_INPUT:
            yield "standard input", stdin.read(TEXT_BYTES_MAX + 1)
            continue
        try:
            path = Path(name)
            inside = path.resolve() if path.is_dir() else None
            for each in _files(path):
                yield _file(each, inside)
        except OSError as error:
            yield _unreadable(name, error)


def read_manifest_text(text: str, source: str) -> Iterator[Document | Problem]:
    """Yield every document in the text of a request; `source` names the text in errors."""
    yield from _documents(source, text.encode())


def _files(path: Path) -> list[Path]:
    if not stat.S_ISDIR(path.stat().st_mode):
        return [path]
    found = sorted(
        entry
        for entry in path.iterdir()
        if entry.suffix in SUFFIXES and not entry.name.startswith(".") and entry.is_file()
    )
    if not found:
        raise FileNotFoundError(0, f"no manifests ({', '.join(sorted(SUFFIXES))}) in this folder")
    if len(found) > FILES_MAX:
        raise OSError(0, f"{len(found)} manifests in this folder exceed the limit of {FILES_MAX}")
    return found


def read_manifests_of(folder: Path, path: Path) -> Iterator[Document | Problem]:
    """Yield every document of a file; yield a problem if the file is outside of `folder`."""
    found = _file(path, folder.resolve())
    if isinstance(found, Problem):
        yield found
    else:
        yield from _documents(*found)


def _file(path: Path, inside: Path | None) -> tuple[str, bytes] | Problem:
    try:
        # Do not block on a named pipe without a writer.
        descriptor = os.open(path, os.O_RDONLY | (os.O_NONBLOCK if inside else 0))
        with open(descriptor, "rb") as file:  # noqa: PTH123 - it is open already
            if inside and (why := _outside(descriptor, inside)):
                return Problem(str(path), why)
            return str(path), file.read(TEXT_BYTES_MAX + 1)
    except OSError as error:
        return _unreadable(str(path), error)


def _outside(descriptor: int, folder: Path) -> str:
    # Check what is open: its name may lead elsewhere by now.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return "not a regular file; remove it"
    if not Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(folder):
        return "links to a file outside its folder, which is not followed; copy the file here"
    return ""


def _documents(source: str, data: bytes) -> Iterator[Document | Problem]:
    if len(data) > TEXT_BYTES_MAX:
        yield Problem(source, f"larger than {TEXT_BYTES_MAX >> 20} MiB; split it")
        return
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        yield Problem(source, f"not UTF-8 text ({error.reason}); save it as UTF-8", line=line)
        return
    documents = 0
    for parsed in parse(text, is_json=source.endswith(".json")):
        documents += 1
        if parsed.error is None:
            yield Document(source, parsed)
        else:
            message = f"{parsed.error.problem}; {parsed.error.fix}"
            yield Problem(source, message, document=parsed.number, line=parsed.error.line)
    if not documents:
        problem = "the file is empty, or has only comments or null"
        yield Problem(source, f"{problem}; omit the file, or add a document")


def _unreadable(source: str, error: OSError) -> Problem:
    return Problem(source, f"cannot read it ({error.strerror}); check the name and its permissions")


class TooManyPods(ValueError):
    """Error: the documents describe more pods than the limit allows."""


@dataclass(slots=True)
class Wish:
    """The pods, gangs and limits that manifests request, in the manifests' order."""

    pods: list[PodDraft] = field(default_factory=list)
    groups: dict[str, PodGroupObserved] = field(default_factory=dict)
    limits: list[QueueObserved | QuotaObserved] = field(default_factory=list)
    # Namespace and owner of pods whose number may have shrunk.
    scaled: set[tuple[str, str]] = field(default_factory=set)
    podless: list[str] = field(default_factory=list)  # workloads that declare no pods
    # The queues that pods and gangs name, with the first document and field that does.
    queues: dict[str, tuple[Document, str]] = field(default_factory=dict)
    slips: list[str] = field(default_factory=list)  # likely typos, or for another scheduler
    passed_over: list[str] = field(default_factory=list)  # neither workloads nor limits
    notes: dict[str, str] = field(default_factory=dict)  # by kind: what only its controller knows


def read_wish(
    found: Iterable[Document | Problem],
    config: ManifestConfig = DEFAULT_CONFIG,
    *,
    most: int = sys.maxsize,
) -> tuple[Wish, list[Problem]]:
    """Return what the documents request, and their problems. Raises TooManyPods."""
    documents = list(found)
    contents = [each.content for each in documents if isinstance(each, Document)]
    reader = _Reader(with_named(config, contents), most)
    for document in documents:
        if isinstance(document, Problem):
            reader.problems.append(document)
        else:
            reader.read(document)
    wish = reader.wish
    if documents and not reader.problems and not reader.taken:
        why = nothing_taken_words(contents)
        reader.problems.append(Problem(documents[0].source, why))
    return wish, reader.problems


def undeclared_queues(wish: Wish, declared: Iterable[str]) -> list[str]:
    """Return a warning for each queue without a declaration: its pods have no limits."""
    known = {*declared, *(each.queue for each in wish.limits if isinstance(each, QueueObserved))}
    said: list[str] = []
    # If no queue is declared at all, queues are not in use.
    for queue, (document, at) in wish.queues.items() if known else ():
        if queue not in known:
            hint = did_you_mean(queue, known)
            why = f"queue {queue} is not declared, so no limit applies; declared queues: "
            why += listed(sorted(known, key=natural)) + (f"; {hint}" if hint else "")
            said.append(document.doubt(at, why))
    return said


class _Reader:
    def __init__(self, config: ManifestConfig, most: int) -> None:
        self.wish = Wish()
        self.problems: list[Problem] = []
        self.taken = False
        self._config = config
        self._most = most
        self._left = most
        self._seen: set[str] = set()

    def read(self, document: Document) -> None:
        others = others_in(document.content)
        self.wish.passed_over += (found_as(name, document.place) for name in others)
        items, error = items_of(document.content)
        for prefix, item in items:
            try:
                with errors_below(prefix):
                    self._take(document, item, prefix)
            except ManifestError as wrong:
                self.problems.append(document.problem(wrong))
        if error is not None:
            self.problems.append(document.problem(error))

    def _take(self, document: Document, item: object, prefix: str) -> None:
        if is_other(item):
            return
        limit = limit_of(item, self._config.dialects)
        slips = [*suspects(item, self._config.dialects)]
        if limit is None:
            slips += left_elsewhere(item, self._config.schedulers)
        self.wish.slips += (document.doubt(f"{prefix}{each.field}", each.said) for each in slips)
        if limit is not None:
            self.taken = True
            self.wish.limits.append(limit)
            return
        manifest = read_document(item, self._config)
        self.taken = True
        if (note := note_of(item)) and manifest.pods:
            self.wish.notes[manifest.kind] = f"{manifest.kind}: {note}"
        self._left -= len(manifest.pods)
        if self._left < 0:
            raise TooManyPods(f"more than {self._most} pods")
        wish = self.wish
        if manifest.kind in SCALED:
            wish.scaled.add((manifest.namespace, f"{manifest.kind}/{manifest.name}"))
        wish.groups |= {group.group: group for group in manifest.groups}
        if not manifest.groups and not manifest.pods:
            wish.podless.append(f"{manifest.kind} {manifest.namespace}/{manifest.name}")
        for pod in manifest.pods:
            name = f"{pod.namespace}/{pod.name}"
            if name in self._seen:
                twice = ManifestError(
                    "metadata.name", name, "is used twice", "give each pod its own name"
                )
                self.problems.append(document.problem(twice))
                continue
            self._seen.add(name)
            wish.pods.append(pod)
        for queue, at in queues_named(item, manifest):
            self.wish.queues.setdefault(queue, (document, f"{prefix}{at}"))
