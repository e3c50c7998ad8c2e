"""What manifests ask for, all documents together: what is submitted, planned or tried.

Invariant: a document that cannot be used is one problem, with field, value and fix, and the others
count; each name counts once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from apportion.core.explain.text.event_text import listed
from apportion.core.explain.text.natural import natural
from apportion.core.explain.text.suggestions import did_you_mean
from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.document import items_of
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.kinds.limits import limit_of
from apportion.core.workloads.lint.typo_checks import left_elsewhere, queues_named, suspects
from apportion.core.workloads.pods.template import DEFAULT_CONFIG, ManifestConfig
from apportion.core.workloads.reading import (
    errors_below,
    found_as,
    is_other,
    nothing_taken_words,
    others_in,
    read_document,
    with_classes,
)
from apportion.runtime.files.manifests import Document, Problem
from apportion_schemas import PodGroupObserved, QueueObserved, QuotaObserved


class TooManyPods(ValueError):
    """The documents stand for more pods than were to be read."""


@dataclass(slots=True)
class Wish:
    """What was read: pods and gangs, in the order in which they came; queues and quotas.

    `deployments` are the namespaces and owners of pods of which there may be fewer than before.
    `podless` are workloads that stand for no pods as they are written, by name.
    `queues` are those that pods and gangs name, each with the first document and field that does.
    `slips` are names in it that are probably not meant so, have no effect here, or are of another
    scheduler, each with where it stands.
    `passed_over` are documents that are neither workloads nor limits, by name.
    """

    pods: list[PodDraft] = field(default_factory=list)
    groups: dict[str, PodGroupObserved] = field(default_factory=dict)
    limits: list[QueueObserved | QuotaObserved] = field(default_factory=list)
    deployments: set[tuple[str, str]] = field(default_factory=set)
    podless: list[str] = field(default_factory=list)
    queues: dict[str, tuple[Document, str]] = field(default_factory=dict)
    slips: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)


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
    documents = list(found)
    contents = [each.content for each in documents if isinstance(each, Document)]
    reader = _Reader(with_classes(config, contents), most)
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
    """Each queue that the wish names and that neither it nor anybody has `declared`, where a slip
    would lift every limit. Nothing where no queue is declared at all: nobody limits by them there.
    """
    known = {*declared, *(each.queue for each in wish.limits if isinstance(each, QueueObserved))}
    said: list[str] = []
    for queue, (document, at) in wish.queues.items() if known else ():
        if queue not in known:
            hint = did_you_mean(queue, known)
            why = f"no queue {queue} is declared, so none limits it; declared are "
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
        """Add what the document says, which is one problem for each part that cannot be used."""
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
        self._left -= len(manifest.pods)
        if self._left < 0:
            raise TooManyPods(f"more than {self._most} pods")
        wish = self.wish
        if manifest.kind == "Deployment":
            wish.deployments.add((manifest.namespace, f"Deployment/{manifest.name}"))
        if manifest.group is not None:
            wish.groups[manifest.group.group] = manifest.group
        elif not manifest.pods:
            wish.podless.append(f"{manifest.kind} {manifest.namespace}/{manifest.name}")
        for pod in manifest.pods:
            name = f"{pod.namespace}/{pod.name}"
            if name in self._seen:
                twice = ManifestError(
                    "metadata.name", name, "comes twice", "give each pod its own name"
                )
                self.problems.append(document.problem(twice))
                continue
            self._seen.add(name)
            wish.pods.append(pod)
        for queue, at in queues_named(item, manifest):
            self.wish.queues.setdefault(queue, (document, f"{prefix}{at}"))
