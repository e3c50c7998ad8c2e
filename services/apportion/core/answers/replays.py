"""The answers of a replay and of a shadow: what happened, and what would have, side by side.

Structs as in `reads`, with the same rules. GPU is short for a whole device of any family; a share
counts as the part of a device of which it takes most, memory or cores."""

from typing import Literal

from apportion.core.answers.reads import Answer


class Span(Answer, frozen=True):
    """From one moment to another, by revision and by the times of the events there."""

    from_revision: int
    from_time: str
    to_revision: int
    to_time: str
    seconds: float


class Slice(Answer, frozen=True):
    """The means of a part of the span: devices that are held, and devices that pods wait for."""

    seconds: float
    used: float
    waiting: float
    devices: float


class Measured(Answer, frozen=True):
    """One course of the span in figures.

    `arrived` pods wanted a place, among them those that waited at the beginning; `placed` of them
    had one before the end and `unplaced` wait then. `gpu_hours` are what the fleet had, `used` what
    pods held of that, `waited` what pods that waited asked for. Waits are seconds from submission
    (or the beginning) to the first place, or to the end of those that never had one.
    `fragmented_percent` is the mean part of the fleet that is idle on devices that are partly held.
    `devices_peak` is the most devices that were held, wholly or in part, at one time."""

    arrived: int
    placed: int
    unplaced: int
    evicted: int
    gpu_hours: float
    gpu_hours_used: float
    gpu_hours_waited: float
    wait_mean_s: float
    wait_median_s: float
    wait_p95_s: float
    wait_max_s: float
    used_percent: float
    fragmented_percent: float
    devices: int
    devices_peak: int
    slices: tuple[Slice, ...] = ()


class ReplayAnswer(Answer, frozen=True):
    """What happened in a span, and what would have with these changes.

    `gpus_saved` is by how many fewer devices were held at the peak; `gpu_hours_waited_saved` by how
    much less was waited for. `passed_over` counts facts that made no sense in the other course, as
    a resize of a pod that does not run there; `passed_over_types` by the names of their events."""

    span: Span
    changes: tuple[str, ...]
    happened: Measured
    replayed: Measured
    gpus_saved: int
    gpu_hours_waited_saved: float
    passed_over: int = 0
    passed_over_types: dict[str, int] = {}


Verdict = Literal["same", "other-devices", "other-node", "would-wait"]


class Spot(Answer, frozen=True):
    """A place: a node, and the devices held there; no devices where nobody told which.

    `opened` is how many of the devices nothing was on before."""

    node: str
    devices: tuple[str, ...] = ()
    opened: int = 0


class ShadowPod(Answer, frozen=True):
    """One pod that another scheduler placed, decided anew at that moment.

    `ours` is None where we would have let it wait: `reason` then says why. Two places of which one
    names no devices are the same if their nodes are."""

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
    both places name devices. `passed_over` counts events that contradict the state."""

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
