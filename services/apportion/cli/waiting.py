"""What became of pods that found no place at first: in the words of `why`, as of now.

The event that refused a pod names the nodes that were nearest when it was decided, among them such
as could never hold the pod. `why` looks at the fleet. Invariant: what is said is true now, or it
names causes alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import structs

from apportion.cli.asking import Gateway
from apportion.cli.awaiting import Awaited
from apportion.cli.exits import NotFound, Unreachable
from apportion.core.explain import limit_words, words
from apportion.core.explain.answers import Why
from apportion_schemas import PodRefused, Shape

ASKED_MAX: Final = 40
"""Of so many pods each is asked about; of more, as of a trace, none."""


def whys(gateway: Gateway, awaited: Awaited) -> dict[str, Why]:
    """By uid: how those stand now that were refused when the waiting ended, as far as it is known.

    One that somebody ended meanwhile has none.
    """
    found: dict[str, Why] = {}
    if len(awaited.refused) > ASKED_MAX:
        return found
    query = {"at_least": awaited.revision}
    for uid in awaited.refused:
        pod = awaited.pods[uid]
        try:
            why = gateway.ask("pods", pod.namespace, pod.name, "why", answer=Why, query=query)
        except (NotFound, Unreachable):
            continue
        if why.uid == uid:
            found[uid] = why
    return found


def waits_for(awaited: Awaited, uid: str, why: Why | None, shape: Shape | None = None) -> str:
    """What the refused pod waits for; of `why` without its name and since when."""
    if why is not None and why.refused is not None:
        return why.sentence.partition(": ")[2]
    refused = awaited.decided[uid].refused
    assert refused is not None  # noqa: S101 - who asks has seen it
    return words.refusal(structs.replace(refused, nearest=()), shape)


def causes(awaited: Awaited, pods: Iterable[str]) -> dict[str, int]:
    """How many of these pods, by uid, wait for what, the most first.

    In as few words as are the same for pods that were refused while the fleet was another.
    """
    refusals = (awaited.decided[uid].refused for uid in pods)
    found = Counter(_first_cause(refused) for refused in refusals if refused is not None)
    return dict(found.most_common())


def _first_cause(refused: PodRefused) -> str:
    if limits := limit_words.of_refusal(refused):
        return limits[0]
    if refused.gang is not None:
        return words.gang(refused.gang)
    ranked = words.ranked(words.without_gone(refused))
    return words.phrase(ranked[0][0]) if ranked else words.cause(refused)
