"""Which queue a manifest names, and where it stands: a slip there lifts every limit.

Invariant: only what has an effect is found: a queue of which some pod or gang of the manifest is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from apportion.core.workloads.dialects.errors import below
from apportion.core.workloads.kinds.drafts import Manifest
from apportion.core.workloads.lint.typo_checks import DEPTH_MAX
from apportion.core.workloads.pods.template import QUEUES

DEFAULT: Final = "default"
"""The queue of whoever names none; it needs no declaration."""
KEYS: Final = frozenset((*QUEUES, "queue"))


def queues_named(document: object, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Each queue that the manifest of this document names, and the field that does."""
    queues = {pod.queue for pod in manifest.pods}
    queues |= {manifest.group.queue} if manifest.group is not None else set()
    for queue in sorted(queues - {"", DEFAULT}):
        yield queue, next(_places(document, queue, "", 0), "")


def _places(value: object, queue: str, field: str, depth: int) -> Iterator[str]:
    if depth > DEPTH_MAX:
        return
    if isinstance(value, list):
        for place, each in enumerate(value):
            yield from _places(each, queue, f"{field}[{place}]", depth + 1)
    elif isinstance(value, dict):
        for key, each in value.items():
            at = below(field, str(key))
            if key in KEYS and each == queue:
                yield at
            yield from _places(each, queue, at, depth + 1)
