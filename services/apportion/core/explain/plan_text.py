"""The sentence of a `PlannedPod`, made from its fields as the last step.

Invariant: it reads the answer alone, so a tenant's sentence is made from the answer after redaction
and cannot name what the fields do not.
"""

from msgspec import structs

from apportion.core.explain import words
from apportion.core.explain.lines import listed
from apportion.core.explain.plans import PlannedPod
from apportion.core.explain.why_text import placed_words


def with_text(pod: PlannedPod) -> PlannedPod:
    """The answer with its sentence, and what it says of the pod without its name."""
    text, waits = _text(pod), ""
    if pod.pending_since:
        whose = "in place of the one that" if pod.replaces else "which"
        waits = f", {whose} waits since revision {pod.pending_since},"
    sentence = f"{pod.namespace}/{pod.name}{waits} {text}"
    return structs.replace(pod, text=text, sentence=sentence)


def _text(pod: PlannedPod) -> str:
    if pod.evicted is not None:
        return f"is to leave {pod.was}: {words.eviction(pod.evicted)}"
    if pod.outcome == "unchanged":
        return f"has its place already: {pod.cause}"
    if pod.outcome == "fits":
        would = "would begin anew on" if pod.was == pod.node else "would move to"
        place = placed_words(pod.placed) if pod.placed is not None else pod.node
        said = f"{would if pod.was else 'fits on'} {place}"
        return said + (f", once {listed(list(pod.evicts))} left" if pod.evicts else "")
    if not pod.cause:
        return "would be evicted for another pod"
    if pod.outcome == "never":
        limited = pod.refused is not None and not pod.refused.never
        return f"{'can never have a place' if limited else words.NEVER}: {pod.cause}"
    waits = "would go on waiting" if pod.pending_since else "would wait"
    waits += f" while {listed(list(pod.while_cordoned))} is cordoned" if pod.while_cordoned else ""
    return f"{waits}: {pod.cause}"
