"""Read pods from the CSV files of the `openb` production traces, row by row.

`gpu_milli` is the share of one GPU in thousandths if `num_gpu` is 1; a pod with more GPUs gets
whole GPUs. The trace has no GPU memory, so a share gets the same fraction of the memory, rounded up
to a percentage. Invariant: a row is read exactly, or refused with line, column and value."""

import csv
import math
from collections.abc import Iterable, Iterator
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from apportion.core.workloads.dialects import NO_DIALECT, ManifestError, hami
from apportion.core.workloads.dialects.nvidia import FAMILY
from apportion.core.workloads.document import refusal
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion_schemas import Ask, DeviceConstraints, NodeConstraints, Shape
from apportion_schemas.quantities import COUNT_MAX, WHOLE, CpuMilli, HostMemoryMib, Name

T = TypeVar("T", bound=Struct)
NAMESPACE = "trace"
CONTAINER = "main"
WHOLE_MILLI = 1000


class _Row(Struct, frozen=True):
    """The columns of `pods_*.csv` that are used."""

    name: Name
    cpu_milli: CpuMilli
    memory_mib: HostMemoryMib
    num_gpu: Annotated[int, Meta(ge=0, le=COUNT_MAX)]
    gpu_milli: Annotated[int, Meta(ge=0, le=WHOLE_MILLI)]
    gpu_spec: Annotated[str, Meta(max_length=1024)] = ""


def read_trace_pods(lines: Iterable[str]) -> Iterator[PodDraft]:
    """Yield the pods of a trace, in its order. Raises ManifestError with line and column."""
    for field, row in read_rows(lines, _Row):
        if row.num_gpu and not row.gpu_milli:
            raise no_share(f"{field}.gpu_milli")
        yield PodDraft(
            namespace=NAMESPACE,
            name=row.name,
            shape=Shape(
                asks=asks_of(row.num_gpu, row.gpu_milli),
                devices=models_of(row.gpu_spec),
                node=NodeConstraints(cpu_milli=row.cpu_milli, memory_mib=row.memory_mib),
            ),
            dialect=dialect_of(row.num_gpu),
        )


def no_share(field: str) -> ManifestError:
    """Return the error of a row that requests GPUs, but no share of them."""
    return ManifestError(field, 0, "is not a share of a GPU", "write 1 to 1000")


def asks_of(gpus: int, milli: int) -> tuple[Ask, ...]:
    """Return the request for `gpus` whole GPUs, or for thousandths of a single one."""
    percent = math.ceil(milli * 100 / WHOLE_MILLI)
    if gpus > 1 or (gpus and percent == WHOLE):
        return (Ask(container=CONTAINER, family=FAMILY, count=gpus, cores=WHOLE),)
    if gpus:
        return (Ask(container=CONTAINER, family=FAMILY, memory_percent=percent, cores=percent),)
    return ()


def models_of(text: str) -> DeviceConstraints:
    """Return the constraint for models with `|` between them; an empty text allows all models."""
    return DeviceConstraints(use_types=tuple(sorted({name for name in text.split("|") if name})))


def dialect_of(gpus: int) -> str:
    """Return the dialect of a pod that requests this many GPUs."""
    return hami.NAME if gpus else NO_DIALECT


def read_rows(lines: Iterable[str], row: type[T]) -> Iterator[tuple[str, T]]:
    """Yield a pair for each row: its place, such as `line 2`, and its struct.

    Empty values count as missing. Raises ManifestError with line and column."""
    reader = csv.DictReader(lines)
    try:
        for record in reader:
            field = f"line {reader.line_num}"
            filled = {key: value for key, value in record.items() if key and value}
            try:
                yield field, msgspec.convert(filled, row, strict=False)
            except msgspec.ValidationError as error:
                raise refusal(filled, str(error), field) from None
    except csv.Error as error:
        fix = "correct the line"
        raise ManifestError(f"line {reader.line_num}", None, f"is not CSV ({error})", fix) from None
