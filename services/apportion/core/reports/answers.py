"""The answers of reports, as structs: what the gateway sends and `apportion report` prints.

Hours of cards are by the part of a card's memory that a share holds; hours of memory are GiB times
hours. Invariant: in whatever has a capacity, granted, free, cordoned and broken come to it, but for
the rounding of each to six digits."""

import msgspec

from apportion.core.answers.reads import Answer
from apportion.core.answers.visibility import Everyone, Namespace


class ReportRow(Answer, frozen=True):
    """The figures of one row, of one row in one step (`from`), or of all (`key` empty).

    Of `reported_gpu_hours` the nodes tell how much work there was, which is `used_gpu_hours`. The
    capacity is what of the fleet's the row had: of a node and of the total all parts of it, of
    others what was granted, for what nobody held belongs to no namespace. So those of all rows come
    to the total's, with what nobody held where rows are not nodes. `cost` is of what was granted.
    It is None where no prices were given."""

    key: Everyone[str]
    start: Everyone[str] = msgspec.field(default="", name="from")
    granted_gpu_hours: Everyone[float] = 0.0
    granted_gib_hours: Everyone[float] = 0.0
    reported_gpu_hours: Everyone[float] = 0.0
    used_gpu_hours: Everyone[float] = 0.0
    used_gib_hours: Everyone[float] = 0.0
    cost: Everyone[float | None] = None
    free_gpu_hours: Everyone[float | None] = None
    free_gib_hours: Everyone[float | None] = None
    cordoned_gpu_hours: Everyone[float | None] = None
    cordoned_gib_hours: Everyone[float | None] = None
    broken_gpu_hours: Everyone[float | None] = None
    broken_gib_hours: Everyone[float | None] = None
    capacity_gpu_hours: Everyone[float] = 0.0
    capacity_gib_hours: Everyone[float] = 0.0
    capacity_cost: Everyone[float | None] = None


class ReportAnswer(Answer, frozen=True):
    """What was granted, used and worth from one moment to another, as of a revision.

    `rows` have the most hours first. `steps` are in the order of time, empty unless steps were
    asked for. `unpriced` are the models for whose lack of a price there is no money in it. `begins`
    is when the ledger does, where that is after `from`."""

    revision: Everyone[int]
    report: Everyone[str]
    by: Everyone[str]
    start: Everyone[str] = msgspec.field(name="from")
    end: Everyone[str] = msgspec.field(name="to")
    rows: Everyone[tuple[ReportRow, ...]]
    total: Everyone[ReportRow]
    step_s: Everyone[int] = 0
    steps: Everyone[tuple[ReportRow, ...]] = ()
    currency: Everyone[str] = ""
    unpriced: Everyone[tuple[str, ...]] = ()
    begins: Everyone[str] = ""


class IdleRow(Answer, frozen=True):
    """How many stretches of an hour or more there were in which a share did nothing."""

    key: Everyone[str]
    shares: Everyone[int]
    gpu_hours: Everyone[float]
    gib_hours: Everyone[float]
    cost: Everyone[float | None] = None


class IdleShare(Answer, frozen=True):
    """One stretch in which one share did nothing; `idle_now`: it was not over when last told."""

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
    """Shares that did nothing for an hour or more; `shares` are the first, of `found` in all.

    `reported`: some node said in that time what was used; else nobody knows what did nothing.
    `unpriced` and `begins` as in `ReportAnswer`."""

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
