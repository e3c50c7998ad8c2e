"""What manifests ask for, all documents together: what is submitted, planned or tried.

Invariant: a document that cannot be used is one problem, with field, value and fix, and the others
count; each name counts once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from apportion.core.dialects import ManifestError
from apportion.core.manifests import Manifest, ManifestConfig, PodDraft, read_documents
from apportion.core.manifests.limits import limit_of
from apportion.core.manifests.suspects import suspects
from apportion.core.manifests.template import DEFAULT_CONFIG
from apportion.runtime.files.manifests import Document, Problem
from apportion_schemas import PodGroupObserved, QueueObserved, QuotaObserved


class TooManyPods(ValueError):
    """The documents stand for more pods than were to be read."""


@dataclass(slots=True)
class Wish:
    """What was read: pods and gangs, in the order in which they came; queues and quotas.

    `deployments` are the namespaces and owners of pods of which there may be fewer than before.
    `slips` are names in it that are probably not meant so, each with where it stands.
    """

    pods: list[PodDraft] = field(default_factory=list)
    groups: dict[str, PodGroupObserved] = field(default_factory=dict)
    limits: list[QueueObserved | QuotaObserved] = field(default_factory=list)
    deployments: set[tuple[str, str]] = field(default_factory=set)
    slips: list[str] = field(default_factory=list)


def read_wish(
    found: Iterable[Document | Problem],
    config: ManifestConfig = DEFAULT_CONFIG,
    *,
    most: int = sys.maxsize,
) -> tuple[Wish, list[Problem]]:
    """The pods, gangs, queues and quotas of these documents, and what is wrong with the others.

    Raises:
        TooManyPods: there are more than `most`; a few lines may ask for millions.
    """
    wish, problems, seen, left = Wish(), list[Problem](), set[str](), most
    for document in found:
        if isinstance(document, Problem):
            problems.append(document)
            continue
        try:
            limit = limit_of(document.content)
        except ManifestError as error:
            problems.append(document.problem(error))
            continue
        if limit is not None:
            wish.limits.append(limit)
            continue
        wish.slips += [
            str(Problem(document.source, f"{each.field}: {each.why}", line=document.parsed.line))
            for each in suspects(document.content, config.dialects)
        ]
        for outcome in read_documents([document.content], config):
            if outcome.error is not None:
                problems.append(document.problem(outcome.error))
            elif outcome.manifest is not None:
                left -= len(outcome.manifest.pods)
                if left < 0:
                    raise TooManyPods(f"more than {most} pods")
                problems += _add(wish, seen, document, outcome.manifest)
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
