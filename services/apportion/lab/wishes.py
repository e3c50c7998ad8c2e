"""What people wish to try, read into a plan: a request, or manifests on disk.

Invariant: a document that cannot be used is named with its field, value and fix, and the others
count; each name counts once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import chain

from apportion.core.configuration import manifest_config
from apportion.core.dialects import ManifestError
from apportion.core.explain.plans import PlanRequest
from apportion.core.ledger.state import State
from apportion.core.manifests import ManifestConfig, PodDraft, read_documents
from apportion.core.manifests.template import DEFAULT_CONFIG
from apportion.lab.changes import Changes, WishInvalid
from apportion.lab.planning import PODS_MAX, Plan
from apportion.runtime.files.manifests import Document, Problem, read_manifest_text
from apportion_schemas import PodGroupObserved


def plan_of(request: PlanRequest, state: State) -> Plan:
    """The plan that somebody sent, read as the cluster of this state reads manifests.

    Raises:
        WishInvalid: it has too many pods; a few lines may ask for millions.
    """
    texts = {**({"manifest": request.manifest} if request.manifest else {}), **request.files}
    found = chain.from_iterable(read_manifest_text(text, name) for name, text in texts.items())
    pods, groups, problems = read_pods(found, manifest_config(state.configuration), most=PODS_MAX)
    return Plan(
        pods=tuple(pods),
        groups=tuple(groups),
        changes=Changes(lose=request.lose, add=request.add, policy=request.policy),
        problems=tuple(problems),
    )


def read_pods(
    found: Iterable[Document | Problem],
    config: ManifestConfig = DEFAULT_CONFIG,
    *,
    most: int = sys.maxsize,
) -> tuple[list[PodDraft], list[PodGroupObserved], list[str]]:
    """Pods, gangs and problems of these documents. Raises WishInvalid for more than `most`."""
    left = most
    pods: dict[str, PodDraft] = {}
    groups: dict[str, PodGroupObserved] = {}
    problems: list[str] = []
    for document in found:
        if isinstance(document, Problem):
            problems.append(str(document))
            continue
        for outcome in read_documents([document.content], config):
            if outcome.error is not None:
                problems.append(str(document.problem(outcome.error)))
            elif outcome.manifest is not None:
                if outcome.manifest.group is not None:
                    groups[outcome.manifest.group.group] = outcome.manifest.group
                left -= len(outcome.manifest.pods)
                if left < 0:
                    raise WishInvalid("manifest", f"more than {most} pods", "plan for fewer")
                for pod in outcome.manifest.pods:
                    name = f"{pod.namespace}/{pod.name}"
                    if name in pods:
                        problems.append(str(document.problem(_twice(name))))
                    pods.setdefault(name, pod)
    return list(pods.values()), list(groups.values()), problems


def _twice(name: str) -> ManifestError:
    return ManifestError("metadata.name", name, "comes twice", "give each pod its own name")
