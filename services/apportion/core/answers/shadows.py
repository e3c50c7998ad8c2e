"""The answer of a shadow: where another scheduler put pods, and where we would have.

Structs as in `reads`, with the same rules.
"""

from typing import Literal

from apportion.core.answers.reads import Answer

Verdict = Literal["same", "other-devices", "other-node", "would-wait"]


class Spot(Answer, frozen=True):
    """A place: a node, and the devices held there; no devices where nobody told which.

    `opened` is how many of the devices nothing was on before.
    """

    node: str
    devices: tuple[str, ...] = ()
    opened: int = 0


class ShadowPod(Answer, frozen=True):
    """One pod that another scheduler placed, decided anew at that moment.

    `ours` is None where we would have let it wait: `reason` then says why. Two places of which one
    names no devices are the same if their nodes are.
    """

    revision: int
    time: str
    namespace: str
    name: str
    verdict: Verdict
    theirs: Spot
    ours: Spot | None = None
    reason: str = ""


class ShadowAnswer(Answer, frozen=True):
    """All pods that others placed in a span, and the sums over them.

    `opened_theirs` and `opened_ours` are devices that were taken into use, over the pods of which
    both places name devices. `passed_over` counts events that contradict the state.
    """

    from_revision: int
    to_revision: int
    pods: tuple[ShadowPod, ...]
    same: int
    other_devices: int
    other_node: int
    would_wait: int
    opened_theirs: int
    opened_ours: int
    passed_over: int = 0
