"""Manifests on disk or standard input: `-f FILE`, `-f DIR`, `-f -`.

Whoever may write into a folder may put a link there, and be shown what it leads to by the rights of
whoever reads the folder. Invariants: every file and every document has its own result, so one that
cannot be read hides no other; no input makes us hold more than one bounded file; of a folder
nothing is read that is not in it, whatever is done to it meanwhile.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from apportion.core.workloads.dialects import ManifestError
from apportion.runtime.files.safe_yaml import TEXT_BYTES_MAX, Parsed, parse

STANDARD_INPUT = "-"
FILES_MAX = 10_000
ALL_BYTES_MAX = 64 << 20
ALL_DOCUMENTS_MAX = 200_000
"""Of all files that are read at once: on a slow processor a minute or two of work."""
SUFFIXES = {".json", ".yaml", ".yml"}


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file; `number` counts from 1."""

    source: str
    parsed: Parsed

    @property
    def content(self) -> object:
        """What the document holds, as JSON-like values."""
        return self.parsed.content

    @property
    def place(self) -> str:
        """Where it begins, as in `values.yaml:1`."""
        return f"{self.source}:{self.parsed.line}"

    def problem(self, error: ManifestError) -> "Problem":
        """What a reader of manifests found wrong with the document."""
        line = self.parsed.line_of(error.field)
        return Problem(self.source, str(error), document=self.parsed.number, line=line)

    def doubt(self, field: str, why: str) -> str:
        """What is probably not meant so of a field of the document, with where it stands."""
        return str(Problem(self.source, f"{field}: {why}", line=self.parsed.line_of(field)))


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and where; `document` and `line` are 0 where they cannot be told."""

    source: str
    message: str
    document: int = 0
    line: int = 0

    def __str__(self) -> str:
        where = [self.source]
        where += [f"document {self.document}"] if self.document else []
        where += [f"line {self.line}"] if self.line else []
        return f"{', '.join(where)}: {self.message}"


def read_manifest_files(names: Sequence[str], stdin: BinaryIO) -> Iterator[Document | Problem]:
    """Every document of the named files and folders, in order; `-` is standard input.

    A folder stands for its manifests (`.yaml`, `.yml`, `.json`) by name, not for its subfolders.
    What is beyond the limits of all together is not read, and the last problem says from where on.
    """
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
                source, f"is not read, nor what follows: {most} at once: read it in parts"
            )
            return
        for document in _documents(source, data):
            documents += 1
            yield document


def read_manifest_bytes(
    names: Sequence[str], stdin: BinaryIO
) -> Iterator[tuple[str, bytes] | Problem]:
    """The same files as they are, each with its name; one that is too large is cut."""
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
    """Every document of a text that somebody sent."""
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
        raise FileNotFoundError(0, f"no manifest ({', '.join(sorted(SUFFIXES))}) in this folder")
    if len(found) > FILES_MAX:
        raise OSError(0, f"{len(found)} manifests in this folder; at most {FILES_MAX}")
    return found


def read_manifests_of(folder: Path, path: Path) -> Iterator[Document | Problem]:
    """Every document of one file of a folder; a problem if it is not in that folder."""
    found = _file(path, folder.resolve())
    if isinstance(found, Problem):
        yield found
    else:
        yield from _documents(*found)


def _file(path: Path, inside: Path | None) -> tuple[str, bytes] | Problem:
    """What the file holds, cut where it is too large; of a folder, only if it is `inside` of it."""
    try:
        # A pipe must not keep us waiting for somebody who writes.
        descriptor = os.open(path, os.O_RDONLY | (os.O_NONBLOCK if inside else 0))
        with open(descriptor, "rb") as file:  # noqa: PTH123 - it is open already
            if inside and (why := _outside(descriptor, inside)):
                return Problem(str(path), why)
            return str(path), file.read(TEXT_BYTES_MAX + 1)
    except OSError as error:
        return _unreadable(str(path), error)


def _outside(descriptor: int, folder: Path) -> str:
    """Why this open file is none of the folder's; empty if it is. A link may have led to it.

    What is open is asked, not the name, which may lead elsewhere a moment later.
    """
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return "is no file: remove it"
    if not Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(folder):
        return "is a link out of its folder, and is not followed: put the file itself there"
    return ""


def _documents(source: str, data: bytes) -> Iterator[Document | Problem]:
    if len(data) > TEXT_BYTES_MAX:
        yield Problem(source, f"is larger than {TEXT_BYTES_MAX >> 20} MiB: split it")
        return
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        yield Problem(source, f"is not UTF-8 text ({error.reason}): save it as UTF-8", line=line)
        return
    documents = 0
    for parsed in parse(text, is_json=source.endswith(".json")):
        documents += 1
        if parsed.error is None:
            yield Document(source, parsed)
        else:
            message = f"{parsed.error.problem}: {parsed.error.fix}"
            yield Problem(source, message, document=parsed.number, line=parsed.error.line)
    if not documents:
        yield Problem(source, "holds no document: write one, or leave the file out")


def _unreadable(source: str, error: OSError) -> Problem:
    return Problem(source, f"cannot be read ({error.strerror}): check the name and its rights")
