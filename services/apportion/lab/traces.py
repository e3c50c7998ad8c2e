"""Read production traces: pods and nodes of the `openb` family, as CSV files.

Invariant: a file is read as a whole or not at all; errors name file, line and column."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.trace import read_trace_pods
from apportion.runtime.files.fleets import NODES_MAX, SimulatedNode
from apportion_schemas import Device, Host
from apportion_schemas.quantities import COUNT_MAX, CpuMilli, HostMemoryMib, Name

BYTES_MAX: Final = 256 << 20
MEMORY_MIB: Final = 100_000  # of a device: traces have only fractions of it
SLOTS: Final = 100
PODS: Final = 250  # per node


class TraceInvalid(ValueError):
    """Raised if a trace is invalid; names the file, line, column, value and fix."""


class _Node(Struct, frozen=True):
    sn: Name
    cpu_milli: CpuMilli
    memory_mib: HostMemoryMib
    gpu: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0
    model: str = ""


def read_trace(path: str | Path) -> list[PodDraft]:
    """Return the pods of a trace file, in file order. Raises TraceInvalid."""
    path = Path(path)
    _check_size(path)
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return list(read_trace_pods(lines))
    except (OSError, UnicodeDecodeError, ManifestError) as error:
        raise TraceInvalid(f"{path}: {error}") from None


def read_trace_nodes(path: str | Path) -> list[SimulatedNode]:
    """Return the nodes of a trace file, in file order. Raises TraceInvalid.

    Columns: sn, cpu_milli, memory_mib, gpu, model."""
    path = Path(path)
    _check_size(path)
    found: list[SimulatedNode] = []
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            for row in itertools.islice(reader, NODES_MAX + 1):
                filled = {key: value for key, value in row.items() if key and value}
                try:
                    node = msgspec.convert(filled, _Node, strict=False)
                except msgspec.ValidationError as error:
                    raise TraceInvalid(f"{path}: line {reader.line_num}: {error}") from None
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
                host = Host(cpu_milli=node.cpu_milli, memory_mib=node.memory_mib, pods=PODS)
                found.append(SimulatedNode(node.sn, devices, host))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceInvalid(f"{path}: {error}") from None
    if len(found) > NODES_MAX:
        raise TraceInvalid(f"{path}: more than {NODES_MAX} nodes; take fewer")
    return found


def _check_size(path: Path) -> None:
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        raise TraceInvalid(f"{path}: {error.strerror}") from None
    if size_bytes > BYTES_MAX:
        raise TraceInvalid(f"{path}: is larger than {BYTES_MAX >> 20} MiB; split it")
