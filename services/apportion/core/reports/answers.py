"""The answers of reports, which the gateway sends and `apportion report` prints.

The device hours of a share are its hours times the fraction of the device's memory that it has.
Memory hours are GiB times hours. Invariant: the parts add up to the capacity: in a report of lost
hours exactly, in others within rounding."""

from typing import Final, NamedTuple

import msgspec

from apportion.core.answers.reads import Answer
from apportion.core.answers.visibility import Everyone, Namespace


class ReportRow(Answer, frozen=True):
    """The figures of one row of a report, in the whole period or in one step.

    The row with an empty `key` is the total. In a row of a namespace, queue, user or label, the
    capacity is what was allocated, because free devices belong to none of these."""

    key: Everyone[str]
    start: Everyone[str] = msgspec.field(default="", name="from")
    allocated_gpu_hours: Everyone[float] = 0.0
    allocated_gib_hours: Everyone[float] = 0.0
    reported_gpu_hours: Everyone[float] = 0.0  # with reported usage
    used_gpu_hours: Everyone[float] = 0.0
    used_gib_hours: Everyone[float] = 0.0
    cost: Everyone[float | None] = None  # of allocated hours; None without prices
    free_gpu_hours: Everyone[float | None] = None
    free_gib_hours: Everyone[float | None] = None
    cordoned_gpu_hours: Everyone[float | None] = None
    cordoned_gib_hours: Everyone[float | None] = None
    unhealthy_gpu_hours: Everyone[float | None] = None
    unhealthy_gib_hours: Everyone[float | None] = None
    capacity_gpu_hours: Everyone[float] = 0.0
    capacity_gib_hours: Everyone[float] = 0.0
    capacity_cost: Everyone[float | None] = None


class ReportAnswer(Answer, frozen=True):
    """How much device time was allocated and used in a period, and its cost, as of a revision."""

    revision: Everyone[int]
    report: Everyone[str]
    by: Everyone[str]
    start: Everyone[str] = msgspec.field(name="from")
    end: Everyone[str] = msgspec.field(name="to")
    rows: Everyone[tuple[ReportRow, ...]]  # the most hours first
    total: Everyone[ReportRow]
    step_s: Everyone[int] = 0
    steps: Everyone[tuple[ReportRow, ...]] = ()
    currency: Everyone[str] = ""
    unpriced: Everyone[tuple[str, ...]] = ()  # models without a price
    begins: Everyone[str] = ""  # the ledger's start, if after `from`


class IdleRow(Answer, frozen=True):
    """How many idle periods of at least an hour a row has, and their total hours."""

    key: Everyone[str]
    shares: Everyone[int]
    gpu_hours: Everyone[float]
    gib_hours: Everyone[float]
    cost: Everyone[float | None] = None


class IdleShare(Answer, frozen=True):
    """A period in which a share was idle. If `idle_now`, the share was idle at the last report."""

    key: str
    namespace: Namespace
    pod: str
    uid: str
    container: str
    node: Everyone[str]
    device: Everyone[str]
    model: Everyone[str]
    start: Everyone[str] = msgspec.field(name="from")
    end: Everyone[str] = msgspec.field(name="to")
    hours: Everyone[float]
    gpu_hours: Everyone[float]
    gib_hours: Everyone[float]
    idle_now: Everyone[bool]
    cost: Everyone[float | None] = None


class IdleAnswer(Answer, frozen=True):
    """Which shares were idle for an hour or more; `shares` lists the first of `found`.

    Without `reported`, no node reported usage in the period, so idle shares are unknown."""

    revision: Everyone[int]
    by: Everyone[str]
    start: Everyone[str] = msgspec.field(name="from")
    end: Everyone[str] = msgspec.field(name="to")
    rows: Everyone[tuple[IdleRow, ...]]
    shares: Everyone[tuple[IdleShare, ...]]
    found: Everyone[int]
    total: Everyone[IdleRow]
    currency: Everyone[str] = ""
    reported: Everyone[bool] = True
    unpriced: Everyone[tuple[str, ...]] = ()
    begins: Everyone[str] = ""


class LostCause(NamedTuple):
    """The name of a cause of lost hours, and what it means."""

    name: str
    meaning: str


# By the field of `LostRow`, in the order in which reports show them
LOST_CAUSES: Final[dict[str, LostCause]] = {
    "idle": LostCause("idle in a share", "allocated, but usage reports show no work"),
    "no_demand": LostCause("no demand", "no pending pod requests it"),
    "quota": LostCause("quota", "pending pods exceed a limit, or their queue is closed"),
    "gang_assembly": LostCause("gang assembly", "kept for a gang, or free while a gang lacks pods"),
    "topology": LostCause(
        "topology", "pending pods need devices on other nodes, or closer together"
    ),
    "fragmentation": LostCause("fragmentation", "too scattered for a pending pod, or a whole gang"),
    "scheduler_delay": LostCause(
        "scheduler delay", "pending pods are undecided, or placed pods are not bound"
    ),
    "draining": LostCause("draining", "cordoned, while pods still use the node or device"),
    "cordoned": LostCause("cordoned", "cordoned, and not in use"),
    "unhealthy": LostCause("unhealthy", "the device is unhealthy or its node not ready"),
}


class LostRow(Answer, frozen=True):
    """Where the device hours of one row went, in the whole period or in one step.

    `worked` and the hours of each cause add up to `capacity` exactly. In a report by namespace,
    queue, user or label, the row with an empty `key` has the hours that no pod requested."""

    key: Everyone[str]
    start: Everyone[str] = msgspec.field(default="", name="from")
    capacity_gpu_hours: Everyone[float] = 0.0
    worked_gpu_hours: Everyone[float] = 0.0  # allocated, and not known to be idle
    unmeasured_gpu_hours: Everyone[float] = 0.0  # of `worked`: without a usage report
    lost_gpu_hours: Everyone[float] = 0.0  # the sum of all causes
    no_demand_gpu_hours: Everyone[float] = 0.0
    quota_gpu_hours: Everyone[float] = 0.0
    fragmentation_gpu_hours: Everyone[float] = 0.0
    gang_assembly_gpu_hours: Everyone[float] = 0.0
    topology_gpu_hours: Everyone[float] = 0.0
    unhealthy_gpu_hours: Everyone[float] = 0.0
    cordoned_gpu_hours: Everyone[float] = 0.0
    draining_gpu_hours: Everyone[float] = 0.0
    idle_gpu_hours: Everyone[float] = 0.0
    scheduler_delay_gpu_hours: Everyone[float] = 0.0
    lost_cost: Everyone[float | None] = None  # None without prices


class LostAnswer(Answer, frozen=True):
    """Why devices did no work in a period: each device hour has exactly one cause."""

    revision: Everyone[int]
    by: Everyone[str]
    start: Everyone[str] = msgspec.field(name="from")
    end: Everyone[str] = msgspec.field(name="to")
    rows: Everyone[tuple[LostRow, ...]]  # the most lost hours first
    total: Everyone[LostRow]
    step_s: Everyone[int] = 0
    steps: Everyone[tuple[LostRow, ...]] = ()
    currency: Everyone[str] = ""
    unpriced: Everyone[tuple[str, ...]] = ()  # models without a price
    begins: Everyone[str] = ""  # the ledger's start, if after `from`


class CapacityRow(Answer, frozen=True):
    """The effect of additional nodes of one type on a replayed period."""

    node: Everyone[str]  # its devices, such as 8 x NVIDIA H100 80GB HBM3
    in_fleet: Everyone[bool]  # the fleet has nodes of this type
    saved_gpu_hours: Everyone[float]  # of waiting; negative if pods waited longer
    waited_gpu_hours: Everyone[float]  # GPUs requested by pending pods x time
    wait_mean_s: Everyone[float]
    wait_p95_s: Everyone[float]
    unplaced: Everyone[int]  # pods pending at the end
    cost: Everyone[float | None] = None  # of the additional nodes over the period
    saved_per_unit: Everyone[float | None] = None  # GPU-hours per unit of the currency


class CapacityAnswer(Answer, frozen=True):
    """Which types of node would have saved waiting in a period, by replays of it.

    The figures of the answer are those of a replay without additional nodes. `rows` is empty if no
    pod waited."""

    start: Everyone[str] = msgspec.field(name="from")
    end: Everyone[str] = msgspec.field(name="to")
    count: Everyone[int]  # additional nodes in each row
    waited_gpu_hours: Everyone[float]
    wait_mean_s: Everyone[float]
    wait_p95_s: Everyone[float]
    unplaced: Everyone[int]
    rows: Everyone[tuple[CapacityRow, ...]]  # the most saved hours per unit of money first
    currency: Everyone[str] = ""
    unpriced: Everyone[tuple[str, ...]] = ()  # models without a price
