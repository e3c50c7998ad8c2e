"""What a person hands to `submit` and `delete`: manifests and traces, read into one wish.

Invariant: what cannot be used is named, one problem each, and the rest is used.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from apportion.cli.submitting import Wish
from apportion.core.dialects import ManifestError
from apportion.core.manifests import Manifest, ManifestConfig, read_documents
from apportion.core.manifests.limits import limit_of
from apportion.core.manifests.suspects import suspects
from apportion.core.manifests.template import DEFAULT_CONFIG
from apportion.core.manifests.trace import read_trace_pods
from apportion.runtime.files.manifests import Document, Problem, read_manifest_files

TRACE_BYTES_MAX = 256 << 20


def read_manifests(
    names: Sequence[str], config: ManifestConfig = DEFAULT_CONFIG
) -> tuple[Wish, list[Problem]]:
    """The pods, gangs, queues and quotas of files, folders and `-`."""
    wish, problems, seen = Wish(), list[Problem](), set[str]()
    for found in read_manifest_files(names, sys.stdin.buffer):
        if isinstance(found, Problem):
            problems.append(found)
        else:
            try:
                limit = limit_of(found.content)
            except ManifestError as error:
                problems.append(found.problem(error))
                continue
            if limit is not None:
                wish.limits.append(limit)
                continue
            wish.slips += [
                str(Problem(found.source, f"{each.field}: {each.why}", line=found.parsed.line))
                for each in suspects(found.content, config.dialects)
            ]
            for outcome in read_documents([found.content], config):
                if outcome.error is not None:
                    problems.append(found.problem(outcome.error))
                elif outcome.manifest is not None:
                    problems += _add(wish, seen, found, outcome.manifest)
    return wish, problems


def _add(wish: Wish, seen: set[str], document: Document, manifest: Manifest) -> Iterable[Problem]:
    if manifest.kind == "Deployment":
        wish.deployments.add((manifest.namespace, f"Deployment/{manifest.name}"))
    if manifest.group is not None:
        wish.groups[manifest.group.group] = manifest.group
    for pod in manifest.pods:
        name = f"{pod.namespace}/{pod.name}"
        if name in seen:
            yield document.problem(
                ManifestError("metadata.name", name, "comes twice", "give each pod its own name")
            )
            continue
        seen.add(name)
        wish.pods.append(pod)


def read_trace(path: Path, limit: int | None) -> tuple[Wish, list[Problem]]:
    """The first `limit` pods of a trace."""
    wish, problems = Wish(), list[Problem]()
    try:
        size_bytes = path.stat().st_size
        if size_bytes > TRACE_BYTES_MAX:
            problem = f"is larger than {TRACE_BYTES_MAX >> 20} MiB: split it"
            return wish, [Problem(str(path), problem)]
        with path.open(encoding="utf-8", newline="") as lines:
            wish.pods.extend(itertools.islice(read_trace_pods(lines), limit))
    except (OSError, UnicodeDecodeError, ManifestError) as error:
        problems.append(Problem(str(path), str(error)))
    return wish, problems
