"""The answers of reports, as structs: what the gateway sends and `apportion report` prints.

Hours of cards are by the part of a card's memory that a share holds; hours of memory are GiB times
hours. Invariant: in whatever has a capacity, granted, free, cordoned and broken come to it, but for
the rounding of each to six digits.
"""

import msgspec

from apportion.core.explain.answers import Answer


class ReportRow(Answer, frozen=True):
    """The figures of one row, of one row in one step (`from`), or of all (`key` empty).

    Of `reported_gpu_hours` the nodes tell how much work there was, which is `used_gpu_hours`. The
    capacity is what of the fleet's the row had: of a node and of the total all parts of it, of
    others what was granted, for what nobody held belongs to no namespace. So those of all rows
    come to the total's, with what nobody held where rows are not nodes.
    `cost` is of what was granted. It is None where no prices were given.
    """

    key: str
    start: str = msgspec.field(default="", name="from")
    granted_gpu_hours: float = 0.0
    granted_gib_hours: float = 0.0
    reported_gpu_hours: float = 0.0
    used_gpu_hours: float = 0.0
    used_gib_hours: float = 0.0
    cost: float | None = None
    free_gpu_hours: float | None = None
    free_gib_hours: float | None = None
    cordoned_gpu_hours: float | None = None
    cordoned_gib_hours: float | None = None
    broken_gpu_hours: float | None = None
    broken_gib_hours: float | None = None
    capacity_gpu_hours: float = 0.0
    capacity_gib_hours: float = 0.0
    capacity_cost: float | None = None


class ReportAnswer(Answer, frozen=True):
    """What was granted, used and worth from one moment to another, as of a revision.

    `rows` have the most hours first. `steps` are in the order of time, empty unless steps were
    asked for. `unpriced` are the models for whose lack of a price there is no money in it.
    `begins` is when the ledger does, where that is after `from`.
    """

    revision: int
    report: str
    by: str
    start: str = msgspec.field(name="from")
    end: str = msgspec.field(name="to")
    rows: tuple[ReportRow, ...]
    total: ReportRow
    step_s: int = 0
    steps: tuple[ReportRow, ...] = ()
    currency: str = ""
    unpriced: tuple[str, ...] = ()
    begins: str = ""


class IdleRow(Answer, frozen=True):
    """How many stretches of an hour or more there were in which a share did nothing."""

    key: str
    shares: int
    gpu_hours: float
    gib_hours: float
    cost: float | None = None


class IdleShare(Answer, frozen=True):
    """One stretch in which one share did nothing; `idle_now`: it was not over when last told."""

    key: str
    namespace: str
    pod: str
    uid: str
    container: str
    node: str
    device: str
    model: str
    start: str = msgspec.field(name="from")
    end: str = msgspec.field(name="to")
    hours: float
    gpu_hours: float
    gib_hours: float
    idle_now: bool
    cost: float | None = None


class IdleAnswer(Answer, frozen=True):
    """Shares that did nothing for an hour or more; `shares` are the first, of `found` in all.

    `reported`: some node said in that time what was used; else nobody knows what did nothing.
    `unpriced` and `begins` as in `ReportAnswer`.
    """

    revision: int
    by: str
    start: str = msgspec.field(name="from")
    end: str = msgspec.field(name="to")
    rows: tuple[IdleRow, ...]
    shares: tuple[IdleShare, ...]
    found: int
    total: IdleRow
    currency: str = ""
    reported: bool = True
    unpriced: tuple[str, ...] = ()
    begins: str = ""
