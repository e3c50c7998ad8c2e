"""Simulated nodes by the thousand: from the command line's words, or from a file.

Invariant: a fleet is read whole or not at all; all that is wrong is named at once, each by file,
line, field, value and fix, and no node name comes twice.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from apportion.core.devices.simulating import SimulationInvalid, simulated_devices
from apportion.runtime.files.safe_yaml import TEXT_BYTES_MAX, parse
from apportion_schemas import HOSTNAME, Device, Host
from apportion_schemas.quantities import NAME_MAX, CpuMilli, HostMemoryMib, Labels, Name, Natural

NODES_MAX = 20_000
_PATTERN_CHARS_MAX = NAME_MAX - len(f"-{NODES_MAX}")
CPU_MILLI_PER_DEVICE = 16_000
MEMORY_MIB_PER_DEVICE = 131_072
WRONG_MAX = 20
"""So many mistakes are named, and more are counted."""
PLACE = "{}"
"""Stands for the number of the node in a name pattern."""


class FleetInvalid(ValueError):
    """The fleet cannot be made; the message names where, the value and the fix, a line for each."""


class SimulatedNode(msgspec.Struct, frozen=True):
    """One node to simulate: its name, its devices and what its host has."""

    name: str
    devices: tuple[Device, ...]
    host: Host


class _Row(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """One node of a fleet file."""

    node: Name
    devices: Annotated[str, Meta(max_length=1024)] = ""
    cpu_milli: CpuMilli | None = None
    memory_mib: HostMemoryMib | None = None
    pods: Natural = 110
    labels: Labels = {}


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: Annotated[tuple[object, ...], Meta(max_length=NODES_MAX)]


def numbered_nodes(pattern: str, count: int, specs: Sequence[str]) -> list[SimulatedNode]:
    """`count` nodes named after `pattern`, which take the descriptions in turn; none without any.

    `{}` in the pattern becomes 1, 2, ...; a pattern without it is the name of a single node, and
    the stem of several.

    Raises:
        FleetInvalid: a name, a description or the number of nodes is out of bounds.
    """
    if not 1 <= len(pattern) <= _PATTERN_CHARS_MAX:
        raise FleetInvalid(f"node: {len(pattern)} characters; write from 1 to {_PATTERN_CHARS_MAX}")
    if not 1 <= count <= NODES_MAX:
        raise FleetInvalid(f"nodes: {count} is not from 1 to {NODES_MAX}; start more agents")
    if PLACE not in pattern and count > 1:
        pattern += f"-{PLACE}"
    rows = [
        ("--simulate", _Row(node=pattern.replace(PLACE, str(i + 1)), devices=specs[i % len(specs)]))
        for i in range(count if specs else 0)
    ]
    wrong: list[str] = []
    _nodes(rows[: len(specs)], wrong)  # each description once
    _refuse(wrong)
    return _nodes(rows, wrong)


def read_fleet(path: str | Path) -> list[SimulatedNode]:
    """The nodes of a fleet file: CSV with a header, or YAML with a list `nodes`.

    CSV columns: `node` (or `sn`), then `devices` or both of `gpu` (a count) and `model`;
    `cpu_milli` and `memory_mib` of the host may be left out.

    Raises:
        FleetInvalid: names file, line or entry, field, value and fix of all that is wrong.
    """
    path = Path(path)
    try:
        size_bytes = path.stat().st_size
        if size_bytes > TEXT_BYTES_MAX:
            raise FleetInvalid(f"{path}: {size_bytes} bytes; at most {TEXT_BYTES_MAX}: split it")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FleetInvalid(f"{path}: cannot be read as UTF-8 text: {error}") from None
    return fleet_of(path, text)


def fleet_of(path: Path, text: str) -> list[SimulatedNode]:
    """The nodes of a fleet file with this text; see `read_fleet`. Raises FleetInvalid."""
    wrong: list[str] = []
    nodes = _nodes(_rows(path, text, wrong), wrong)
    _refuse(wrong)
    if not nodes:
        raise FleetInvalid(f"{path}: no node; write one, or leave --fleet out")
    return nodes


def as_json(path: Path, text: str) -> bytes:
    """A fleet file with this text as one in JSON, of the same nodes. Raises FleetInvalid."""
    wrong: list[str] = []
    rows = [row for _, row in _rows(path, text, wrong)]
    _refuse(wrong)
    return msgspec.json.encode({"nodes": rows})


def _rows(path: Path, text: str, wrong: list[str]) -> Iterator[tuple[str, _Row]]:
    read = _csv_rows if path.suffix.lower() == ".csv" else _yaml_rows
    return read(path, text, wrong)


def _refuse(wrong: Sequence[str]) -> None:
    """Raises FleetInvalid where anything is."""
    if wrong:
        more = len(wrong) - WRONG_MAX
        counted = [f"and {more} more mistakes"] if more > 0 else []
        raise FleetInvalid("\n".join((*wrong[:WRONG_MAX], *counted)))


def _csv_rows(path: Path, text: str, wrong: list[str]) -> Iterator[tuple[str, _Row]]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    named = set(reader.fieldnames or ())
    if not ({"node", "sn"} & named and ({"devices"} <= named or {"gpu", "model"} <= named)):
        raise FleetInvalid(
            f"{path}: line 1: columns are {', '.join(sorted(named)) or 'missing'}; "
            "name node (or sn), and devices, or gpu and model"
        )
    for record in reader:
        where = f"{path}: line {reader.line_num}"
        filled = {key: value for key, value in record.items() if key and value}
        devices = filled.get("devices", "")
        if not devices and filled.get("gpu", "0").strip("0"):
            devices = f"{filled['gpu']}x{filled.get('model', '')}"
        row = {"node": filled.get("node") or filled.get("sn", ""), "devices": devices}
        row |= {key: filled[key] for key in ("cpu_milli", "memory_mib") if key in filled}
        try:
            yield where, msgspec.convert(row, _Row, strict=False)
        except msgspec.ValidationError as error:
            wrong.append(f"{where}: {error}")


def _yaml_rows(path: Path, text: str, wrong: list[str]) -> Iterator[tuple[str, _Row]]:
    documents = list(parse(text))
    if len(documents) != 1:
        raise FleetInvalid(f"{path}: {len(documents)} documents; write one, with a list nodes")
    (document,) = documents
    if document.error is not None:
        raise FleetInvalid(f"{path}: {document.error}")
    try:
        file = msgspec.convert(document.content, _File)
    except msgspec.ValidationError as error:
        raise FleetInvalid(f"{path}: {error}") from None
    for number, row in enumerate(file.nodes):
        where = f"{path}: nodes[{number}]"
        try:
            yield where, msgspec.convert(row, _Row)
        except msgspec.ValidationError as error:
            wrong.append(f"{where}: {error}")


def _nodes(rows: Iterable[tuple[str, _Row]], wrong: list[str]) -> list[SimulatedNode]:
    """Those that can be made; of the others, what is wrong with them."""
    nodes: dict[str, SimulatedNode] = {}
    for where, row in rows:
        if row.node in nodes:
            wrong.append(f"{where}: node {row.node!r} comes twice; name each node once")
            continue
        if len(nodes) == NODES_MAX:
            wrong.append(f"{where}: more than {NODES_MAX} nodes; start more agents")
            break
        try:
            devices = simulated_devices(row.node, row.devices) if row.devices else ()
        except SimulationInvalid as error:
            wrong.append(f"{where}: node {row.node!r}: {error}")
            continue
        nodes[row.node] = SimulatedNode(row.node, devices, _host(row, len(devices)))
    return list(nodes.values())


def _host(row: _Row, devices: int) -> Host:
    shares = max(1, devices)
    return Host(
        cpu_milli=CPU_MILLI_PER_DEVICE * shares if row.cpu_milli is None else row.cpu_milli,
        memory_mib=MEMORY_MIB_PER_DEVICE * shares if row.memory_mib is None else row.memory_mib,
        pods=row.pods,
        labels={HOSTNAME: row.node} | row.labels,  # as a kubelet labels its node
    )
