"""Read production traces from CSV files, also compressed ones (`.gz`).

A trace has the pods and nodes of the `openb` family, or jobs with arrival, duration and queue.
Invariant: a file is read as a whole or not at all; errors name file, line and column."""

from __future__ import annotations

import gzip
import io
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from msgspec import Meta, Struct, structs

from apportion.core.ledger.state import DEFAULT_QUEUE
from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.trace import WHOLE_MILLI, no_share, read_rows, read_trace_pods
from apportion.runtime.files.fleets import NODES_MAX, SimulatedNode
from apportion_schemas import Device, Host
from apportion_schemas.quantities import COUNT_MAX, CpuMilli, HostMemoryMib, Name, Priority

BYTES_MAX: Final = 256 << 20  # after decompression
MEMORY_MIB: Final = 100_000  # of a device: traces have only fractions of it
SLOTS: Final = 100
PODS: Final = 250  # per node
RACK: Final = "rack"  # the column, and the label of the nodes
JOBS_MAX: Final = 1_000_000
GANG_MAX: Final = 10_000  # pods
QUEUES_MAX: Final = 10_000
WEIGHT_MAX: Final = 1_000_000
SECONDS_MAX: Final = 1_000_000_000  # some 30 years

Seconds = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]
T = TypeVar("T", bound=Struct)


class TraceInvalid(ValueError):
    """Raised if a trace is invalid; names the file, line, column, value and fix."""


class _Node(Struct, frozen=True):
    sn: Name
    cpu_milli: CpuMilli
    memory_mib: HostMemoryMib
    gpu: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0
    model: str = ""
    rack: Annotated[str, Meta(max_length=63)] = ""  # as a label's value


class Job(Struct, frozen=True):
    """A row of a trace with ends: the pods of a job start together, and run equally long."""

    job: Name
    arrival_s: Seconds  # from the start of the trace
    duration_s: Seconds
    gang: Annotated[int, Meta(ge=1, le=GANG_MAX)] = 1  # pods
    gpus: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0  # of each pod
    milli: Annotated[int, Meta(ge=0, le=WHOLE_MILLI)] = WHOLE_MILLI  # of the GPU, if it is one
    cpu_milli: CpuMilli = 0  # of each pod; 0 if unknown
    mem_mib: HostMemoryMib = 0
    model: Annotated[str, Meta(max_length=1024)] = ""  # the allowed ones, with `|` between them
    user: Annotated[str, Meta(max_length=253)] = ""
    queue: Name = DEFAULT_QUEUE
    prio: Priority = 0
    estimate_s: Seconds = 0.0  # what the user expected; 0 if unknown

    @property
    def gpu_milli(self) -> int:
        """Return the thousandths of GPUs that all pods of the job request."""
        return self.gang * self.gpus * self.milli


class Queue(Struct, frozen=True):
    """A row of a trace's queues. A parent without a row of its own is the root of the tree."""

    queue: Name
    parent: Name | Literal[""] = ""
    weight: Annotated[int, Meta(ge=1, le=WEIGHT_MAX)] = 1
    guarantee_gpus: Annotated[float, Meta(ge=0, le=NODES_MAX * COUNT_MAX)] = 0.0


def read_trace(path: str | Path) -> list[PodDraft]:
    """Return the pods of a trace file, in file order. Raises TraceInvalid."""
    path = Path(path)
    try:
        return list(read_trace_pods(_lines(path)))
    except ManifestError as error:
        raise TraceInvalid(f"{path}: {error}") from None


def read_trace_nodes(path: str | Path) -> list[SimulatedNode]:
    """Return the nodes of a trace file, in file order. Raises TraceInvalid.

    Columns: sn, cpu_milli, memory_mib, gpu, model, and rack, which becomes a label of the node."""
    found = []
    for _, node in _read(Path(path), _Node, NODES_MAX):
        devices = tuple(
            Device(
                id=f"{node.sn}-{index}",
                index=index,
                family="nvidia",
                model=node.model,
                memory_mib=MEMORY_MIB,
                physical_memory_mib=MEMORY_MIB,
                slots=SLOTS,
            )
            for index in range(node.gpu)
        )
        labels = {RACK: node.rack} if node.rack else {}
        host = Host(cpu_milli=node.cpu_milli, memory_mib=node.memory_mib, pods=PODS, labels=labels)
        found.append(SimulatedNode(node.sn, devices, host))
    return found


def read_trace_jobs(path: str | Path) -> list[Job]:
    """Return the jobs of a trace with ends, by arrival. Raises TraceInvalid.

    The columns are the fields of `Job`."""
    path, found = Path(path), dict[str, Job]()
    for line, job in _read(path, Job, JOBS_MAX):
        if job.job in found:
            raise TraceInvalid(f"{path}: {line}.job: {job.job!r} is there twice; rename one")
        if job.gpus and not job.milli:
            raise TraceInvalid(f"{path}: {no_share(f'{line}.milli')}")
        found[job.job] = structs.replace(job, milli=WHOLE_MILLI) if job.gpus > 1 else job
    if not found:
        raise TraceInvalid(f"{path}: has no jobs; write one per line below the names of columns")
    return sorted(found.values(), key=lambda job: job.arrival_s)


def read_trace_queues(path: str | Path) -> list[Queue]:
    """Return the queues of a trace, in file order. Raises TraceInvalid.

    Columns: queue, parent, weight, guarantee_gpus."""
    path, found = Path(path), dict[str, Queue]()
    for line, queue in _read(path, Queue, QUEUES_MAX):
        if queue.queue in found:
            raise TraceInvalid(f"{path}: {line}.queue: {queue.queue!r} is there twice; rename one")
        found[queue.queue] = queue
    return list(found.values())


def _read(path: Path, row: type[T], most: int) -> Iterator[tuple[str, T]]:
    rows = read_rows(_lines(path), row)
    try:
        yield from itertools.islice(rows, most)
        if next(rows, None) is not None:
            raise TraceInvalid(f"{path}: has more than {most:,} rows; take fewer")
    except ManifestError as error:
        raise TraceInvalid(f"{path}: {error}") from None


def _lines(path: Path) -> Iterator[str]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
        if len(content) > BYTES_MAX:
            raise TraceInvalid(f"{path}: is larger than {BYTES_MAX >> 20} MiB; split it")
        return io.StringIO(content.decode("utf-8"), newline="")
    except OSError as error:
        raise TraceInvalid(f"{path}: {error.strerror or error}") from None
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceInvalid(f"{path}: {error}") from None
