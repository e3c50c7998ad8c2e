"""The answers of a replay and of a shadow run: recorded figures next to simulated ones.

"GPU" is short for a whole device of any family. A share counts as a fraction of a device: its part
of the memory or of the cores, whichever is larger."""

from typing import Literal

from apportion.core.answers.reads import Answer


class Span(Answer, frozen=True):
    """The part of the ledger that was replayed, by revision and by the times of its events."""

    from_revision: int
    from_time: str
    to_revision: int
    to_time: str
    seconds: float


class Slice(Answer, frozen=True):
    """Averages over one time interval: devices in use, and devices that pending pods requested."""

    seconds: float
    used: float
    waiting: float
    devices: float


class Measured(Answer, frozen=True):
    """The figures of a replayed span, either as it happened or as simulated."""

    arrived: int  # pods to place, with those pending at the start
    placed: int  # before the end
    unplaced: int  # pending at the end
    evicted: int
    gpu_hours: float  # capacity of the fleet
    gpu_hours_used: float  # used by pods
    gpu_hours_waited: float  # requested by pending pods
    wait_mean_s: float  # to the first placement, or to the end
    wait_median_s: float
    wait_p95_s: float
    wait_max_s: float
    used_percent: float
    fragmented_percent: float  # mean idle part on partly used devices
    devices: int
    devices_peak: int  # most in use at once, in whole or in part
    slices: tuple[Slice, ...] = ()


TeamKind = Literal["queue", "namespace"]


class TeamFigures(Answer, frozen=True):
    """The figures of one queue or namespace in a replayed span.

    The figures of a queue include those of the queues below it."""

    arrived: int  # pods to place, with those pending at the start
    placed: int  # before the end
    unplaced: int  # pending at the end
    evicted: int
    wait_mean_s: float  # to the first placement, or to the end
    wait_p95_s: float
    wait_max_s: float
    gpu_hours_waited: float  # requested by pending pods
    gpu_hours_used: float
    gpu_hours_evicted: float  # used by evicted pods until their eviction
    gpus: float  # in use, on average
    gpus_entitled: float | None = None  # mean of samples; None for a namespace or without queues
    cost: float | None = None  # of `gpu_hours_used`; None without prices


class Team(Answer, frozen=True):
    """A queue or namespace with pods or limits in the span, as it happened and as simulated."""

    kind: TeamKind
    name: str
    happened: TeamFigures
    replayed: TeamFigures


class Gate(Answer, frozen=True):
    """A bound on a figure of one team, and whether the replay keeps it.

    `bound`, `happened` and `measured` are in seconds for waits, in GPU-hours or in pods. The
    verdict is `no-pods` if the team has no pods in the replay."""

    text: str  # as given, such as queue/ml:wait-p95<=30m
    kind: TeamKind
    name: str
    measure: str
    bound: float
    happened: float
    measured: float
    verdict: Literal["kept", "exceeded", "no-pods"]


class ReplayAnswer(Answer, frozen=True):
    """A span of the ledger as it happened, and as simulated with the assumed changes."""

    span: Span
    changes: tuple[str, ...]
    happened: Measured
    replayed: Measured
    gpus_saved: int  # fewer devices in use at the peak
    gpu_hours_waited_saved: float
    passed_over: int = 0  # events that do not apply in the replay
    passed_over_types: dict[str, int] = {}
    teams: tuple[Team, ...] = ()  # queues, then namespaces
    gates: tuple[Gate, ...] = ()
    currency: str = ""  # of costs; empty without prices


Verdict = Literal["same", "other-devices", "other-node", "would-wait"]


class Spot(Answer, frozen=True):
    """The node of a pod and, if recorded, its devices."""

    node: str
    devices: tuple[str, ...] = ()
    opened: int = 0  # how many of the devices were empty before


class ShadowPod(Answer, frozen=True):
    """A pod that another scheduler placed, and where we would have placed it at that revision."""

    revision: int
    time: str
    namespace: str
    name: str
    verdict: Verdict
    theirs: Spot
    ours: Spot | None = None  # None if it would be left pending
    reason: str = ""  # why it would be left pending


class ShadowAnswer(Answer, frozen=True):
    """All pods that other schedulers placed in a span, compared with our decisions."""

    from_revision: int
    to_revision: int
    pods: tuple[ShadowPod, ...]
    same: int
    other_devices: int
    other_node: int
    would_wait: int
    opened_theirs: int  # devices that were empty before
    opened_ours: int
    passed_over: int = 0  # events that contradict the state
