"""Read the manifests and traces given to `submit` and `delete`.

Invariant: each unusable document is reported, and all other documents are used."""

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from apportion.cli.render.output import progress, say, warn
from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.pods.template import DEFAULT_CONFIG, ManifestConfig
from apportion.core.workloads.reading import passed_over_words
from apportion.core.workloads.trace import read_trace_pods
from apportion.runtime.files.manifests import (
    Document,
    Problem,
    Wish,
    read_manifest_files,
    read_wish,
)

TRACE_BYTES_MAX = 256 << 20
TOLD_EVERY = 1_000


def read_manifests(
    names: Sequence[str], config: ManifestConfig = DEFAULT_CONFIG
) -> tuple[Wish, list[Problem]]:
    """Read the pods, gangs, queues and quotas of files and folders; `-` is standard input."""
    return read_wish(documents(names), config)


def documents(names: Iterable[str]) -> Iterator[Document | Problem]:
    """Yield the documents of files, folders and `-`. On a terminal, show progress."""
    tell = progress(0, "document")
    for number, found in enumerate(read_manifest_files(list(names), sys.stdin.buffer), 1):
        if number % TOLD_EVERY == 0:
            tell(number)
        yield found


def read_trace(path: Path, limit: int | None) -> tuple[Wish, list[Problem]]:
    """Read the first `limit` pods of a trace, and report unusable rows."""
    wish, problems = Wish(), list[Problem]()
    try:
        if path.stat().st_size > TRACE_BYTES_MAX:
            problem = f"larger than {TRACE_BYTES_MAX >> 20} MiB; split it"
            return wish, [Problem(str(path), problem)]
        with path.open(encoding="utf-8", newline="") as lines:
            wish.pods.extend(itertools.islice(read_trace_pods(lines), limit))
    except (OSError, UnicodeDecodeError, ManifestError) as error:
        problems.append(Problem(str(path), str(error)))
    return wish, problems


def tell_refused(problems: Iterable[object]) -> None:
    """Print each unusable document with the reason on standard error."""
    for problem in problems:
        say(f"rejected: {problem}", "red", err=True)


def tell_passed_over(wish: Wish) -> None:
    """Print the ignored parts of manifests on standard error."""
    if wish.passed_over:
        warn(passed_over_words(wish.passed_over))
