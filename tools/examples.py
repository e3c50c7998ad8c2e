"""Write docs/reference/examples.md: how Apportion reads the example manifests of other projects.

    python -m tools.examples FOLDER

FOLDER has a checkout of each repository in tools/examples.toml, at the commit there, under the
repository's own name. To get one:

    git clone https://github.com/OWNER/NAME FOLDER/NAME && git -C FOLDER/NAME checkout COMMIT

Invariant: each document is accepted, has no pods, or is refused for a reason that a row of
tools/compatibility.toml documents. Otherwise nothing is written, and the exit status is 1."""

import argparse
import re
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from apportion.core.workloads.lint.checking import checked
from apportion.core.workloads.pods.template import DEFAULT_CONFIG
from apportion.core.workloads.reading import with_named
from apportion.runtime.files.manifests import SUFFIXES, Document, Problem, read_manifests_of
from tools.compatibility import ROOT, table

LIST = ROOT / "tools" / "examples.toml"
PAGE = ROOT / "docs" / "reference" / "examples.md"
FILE = "a file"


class Repository(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A repository, and its folders with example manifests."""

    name: str
    commit: str
    folders: tuple[str, ...]


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the compatibility table, and the messages that it documents (a pattern)."""

    row: str
    message: str


class Examples(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of tools/examples.toml."""

    repository: tuple[Repository, ...]
    refused: tuple[Reason, ...]


class Verdict(NamedTuple):
    """The result for one document. `row` is the table's row that documents a refusal.

    `row` is empty for a document that is not refused, and `?` for a refusal without a row."""

    kind: str
    skipped: bool = False
    row: str = ""
    message: str = ""


def verdicts(files: Iterable[Path], reasons: Iterable[Reason]) -> dict[Path, list[Verdict]]:
    """Return the result for each document of these files, which are read together."""
    read = {path: list(read_manifests_of(path.parent, path)) for path in files}
    contents = [
        each.content for found in read.values() for each in found if isinstance(each, Document)
    ]
    config, known = with_named(DEFAULT_CONFIG, contents), tuple(reasons)

    def of(found: Iterable[Document | Problem]) -> Iterator[Verdict]:
        for document in found:
            if isinstance(document, Problem):
                yield _refused(FILE, document.message, known)
                continue
            for each in checked(document.content, config):
                kind = each.name.partition(" ")[0]
                if not each.known:
                    yield Verdict(kind, row="?", message="this kind is not supported")
                elif each.error is not None:
                    yield _refused(kind, str(each.error), known)
                else:
                    yield Verdict(kind, skipped=each.passed_over)

    return {path: list(of(found)) for path, found in read.items()}


def _refused(kind: str, message: str, reasons: Iterable[Reason]) -> Verdict:
    found = (each.row for each in reasons if re.search(each.message, message))
    return Verdict(kind, row=next(found, "?"), message=message)


def manifests(folder: Path, below: Iterable[str]) -> list[Path]:
    """Return the manifests in these folders and their subfolders, sorted."""
    found = (path for each in below for path in (folder / each).rglob("*"))
    return sorted(path for path in found if path.suffix in SUFFIXES and path.is_file())


def section(
    repository: Repository, folder: Path, found: dict[Path, list[Verdict]]
) -> Iterator[str]:
    """Yield the lines of the page about one repository."""
    every = [each for listed in found.values() for each in listed]
    refused = sum(bool(each.row) for each in every)
    skipped = sum(each.skipped for each in every)
    accepted = len(every) - refused - skipped
    name = repository.name.partition("/")[2]
    folders = ", ".join(f"`{name}/{each}`" for each in repository.folders)
    words = f"At commit `{repository.commit}`, {len(found)} files in {folders}: {accepted} "
    words += f"documents accepted, {refused} refused, {skipped} without pods."
    yield from (
        "",
        f"## {repository.name}",
        "",
        *textwrap.wrap(words, 100, break_long_words=False, break_on_hyphens=False),
        "",
        "| file | accepted | refused | row |",
        "|---|---|---|---|",
    )
    for path, listed in found.items():
        taken = Counter(each.kind for each in listed if not each.row and not each.skipped)
        wrong = Counter(each.kind for each in listed if each.row)
        if taken or wrong:
            rows = ", ".join(sorted({each.row for each in listed if each.row}))
            at = path.relative_to(folder).as_posix()
            yield f"| `{name}/{at}` | {_counted(taken)} | {_counted(wrong)} | {rows or '-'} |"


def _counted(kinds: Counter[str]) -> str:
    words = (kind if count == 1 else f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return ", ".join(words) or "-"


HEAD = """\
# Example manifests of other projects

<!-- Generated by tools/examples.py; do not edit. -->

For users of HAMi, Volcano, KAI, Kubeflow, KubeRay and other controllers who want to know whether
Apportion reads their manifests. The tables list each example manifest of these projects that
contains a workload or a limit, and what `apportion check` reports about it. A refused document has
a row of [Compatibility](compatibility.md#differences), which states the reason and what to do.
Documents without pods, such as a Service or a ClusterRole, are skipped.\
"""


def main(arguments: list[str]) -> int:
    """Write the page. Return exit status 1 if a document is refused for an undocumented reason."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the folder with the checkouts")
    folder: Path = parser.parse_args(arguments).folder
    listed = msgspec.convert(tomllib.loads(LIST.read_text("utf-8")), Examples)
    lines, wrong = HEAD.splitlines(), []
    rows = {row.id for row in table().difference}
    wrong += [f"{each.row}: no such row" for each in listed.refused if each.row not in rows]
    for repository in listed.repository:
        at = folder / repository.name.partition("/")[2]
        found = verdicts(manifests(at, repository.folders), listed.refused)
        if not found:
            wrong.append(f"{at}: has no manifests; check out {repository.name} there")
        wrong += [
            f"{path}: {each.kind}: {each.message}"
            for path, each_of in found.items()
            for each in each_of
            if each.row == "?"
        ]
        lines += section(repository, at, found)
    if wrong:
        sys.stderr.write("\n".join(wrong) + "\n")
        return 1
    PAGE.write_text("\n".join(lines) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
