"""Creates thousands of simulated nodes, from command line options or from a file.

Invariant: a fleet is read completely or not at all; all errors are reported together."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from apportion.core.devices.catalogue import NVIDIA
from apportion.core.devices.simulating import SimulationInvalid, simulated_devices
from apportion.core.explain.text.names import did_you_mean
from apportion.runtime.files.safe_yaml import TEXT_BYTES_MAX, parse
from apportion_schemas import HOSTNAME, Device, Host
from apportion_schemas.quantities import NAME_MAX, CpuMilli, HostMemoryMib, Labels, Name, Natural

NODES_MAX = 20_000
_PATTERN_CHARS_MAX = NAME_MAX - len(f"-{NODES_MAX}")
CPU_MILLI_PER_DEVICE = 16_000
MEMORY_MIB_PER_DEVICE = 131_072
WRONG_MAX = 20  # errors shown; the rest are only counted
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_AT = re.compile(r"`\$\.(\w+)")
Judge = Callable[[str], str]
PLACE = "{}"  # replaced by the node's number in a name pattern


class FleetInvalid(ValueError):
    """Error: the fleet is invalid. Each line of the message has location, value and fix."""


class SimulatedNode(msgspec.Struct, frozen=True):
    """One node to simulate: its name, its devices and its host's capacity."""

    name: str
    devices: tuple[Device, ...]
    host: Host


class _Row(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    node: Name
    devices: Annotated[str, Meta(max_length=1024)] = ""
    cpu_milli: CpuMilli | None = None
    memory_mib: HostMemoryMib | None = None
    pods: Natural = 110
    labels: Labels = {}


class _Entry(NamedTuple):
    """One node of a fleet file."""

    where: Callable[[str], str]  # returns the location of a field
    name: str
    row: _Row | None  # None if invalid


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: Annotated[tuple[object, ...], Meta(max_length=NODES_MAX)]


def numbered_nodes(
    pattern: str, count: int, specs: Sequence[str], *, option: str = "--simulate"
) -> list[SimulatedNode]:
    """Return `count` nodes named after `pattern`, which get the device `specs` in rotation.

    `{}` in the pattern becomes 1, 2, ...; a pattern without `{}` is the name of a single node, or
    the prefix of several names. `option` names the source in errors. Raises FleetInvalid."""
    if not 1 <= len(pattern) <= _PATTERN_CHARS_MAX:
        raise FleetInvalid(
            f"node: the name has {len(pattern)} characters; use 1 to {_PATTERN_CHARS_MAX}"
        )
    if not 1 <= count <= NODES_MAX:
        raise FleetInvalid(
            f"nodes: {count} is not between 1 and {NODES_MAX}; for more, start more agents"
        )
    if PLACE not in pattern and count > 1:
        pattern += f"-{PLACE}"
    names = [pattern.replace(PLACE, str(i + 1)) for i in range(count if specs else 0)]
    rows = [
        _Entry(lambda _: option, name, _Row(node=name, devices=specs[i % len(specs)]))
        for i, name in enumerate(names)
    ]
    wrong: list[str] = []
    _nodes(rows[: len(specs)], wrong)  # each description once
    _refuse(wrong)
    return _nodes(rows, wrong)


def read_fleet(path: str | Path, *, misnamed: Judge | None = None) -> list[SimulatedNode]:
    """Read a fleet file: CSV with a header, or YAML with a list `nodes`.

    CSV columns: `node` (or `sn`), then `devices` or both of `gpu` (a count) and `model`;
    `cpu_milli` and `memory_mib` are optional. `misnamed` returns why a node's name is not allowed,
    or "". Raises FleetInvalid with the location, value and fix of each error."""
    path = Path(path)
    try:
        size_bytes = path.stat().st_size
        if size_bytes > TEXT_BYTES_MAX:
            raise FleetInvalid(
                f"{path}: {size_bytes} bytes exceed the limit of {TEXT_BYTES_MAX}; split the file"
            )
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FleetInvalid(f"{path}: cannot read it as UTF-8 text: {error}") from None
    return fleet_of(path, text, misnamed=misnamed)


def fleet_of(path: Path, text: str, *, misnamed: Judge | None = None) -> list[SimulatedNode]:
    """Parse the text of a fleet file; see `read_fleet`. Raises FleetInvalid."""
    wrong: list[str] = []
    nodes = _nodes(_entries(path, text, wrong), wrong, misnamed)
    _refuse(wrong)
    if not nodes:
        raise FleetInvalid(f"{path}: the file has no nodes; add one, or omit --fleet")
    return nodes


def as_json(path: Path, text: str) -> bytes:
    """Convert a fleet file's text to JSON with the same nodes. Raises FleetInvalid."""
    wrong: list[str] = []
    rows = [entry.row for entry in _entries(path, text, wrong)]
    _refuse(wrong)
    return msgspec.json.encode({"nodes": rows})


def _refuse(wrong: Sequence[str]) -> None:
    if wrong:
        more = len(wrong) - WRONG_MAX
        counted = [f"and {more} more errors"] if more > 0 else []
        raise FleetInvalid("\n".join((*wrong[:WRONG_MAX], *counted)))


def _entry(
    where: Callable[[str], str], written: object, wrong: list[str], *, strict: bool
) -> _Entry:
    name = written.get("node") if isinstance(written, dict) else None
    name = name if isinstance(name, str) else ""
    try:
        row = msgspec.convert(written, _Row, strict=strict)
    except msgspec.ValidationError as error:
        field, words = _mistake(str(error))
        of = f"node {name!r}: " if name else ""
        wrong.append(f"{where(field)}: {of}{words}")
        row = None
    return _Entry(where, name, row)


def _mistake(said: str) -> tuple[str, str]:
    if (unknown := _UNKNOWN.search(said)) is None:
        at = _AT.search(said)
        return at[1] if at else "", said
    field, known = unknown[1], _Row.__struct_fields__
    meant = [f"did you mean {each}?" for each in known if each.startswith(field)]
    hint = meant[0] if field and meant else did_you_mean(field, known)
    fields = f"the fields of a node are {', '.join(known)}"
    return field, f"unknown field {field!r}; {hint or fields}"


def _entries(path: Path, text: str, wrong: list[str]) -> Iterator[_Entry]:
    if path.suffix.lower() == ".csv":
        yield from _csv_entries(path, text, wrong)
        return
    documents = list(parse(text))
    if len(documents) != 1:
        raise FleetInvalid(f"{path}: {len(documents)} documents; write one, with a list `nodes`")
    (document,) = documents
    if document.error is not None:
        raise FleetInvalid(f"{path}: {document.error}")
    try:
        file = msgspec.convert(document.content, _File)
    except msgspec.ValidationError as error:
        raise FleetInvalid(f"{path}: {error}") from None
    for number, row in enumerate(file.nodes):

        def where(field: str, at: str = f"nodes[{number}]") -> str:
            # Finding the line is slow, so it is done only for fields with errors.
            return f"{path}: line {document.line_of(f'{at}.{field}')}: {at}"

        yield _entry(where, row, wrong, strict=True)


def _csv_entries(path: Path, text: str, wrong: list[str]) -> Iterator[_Entry]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    named = set(reader.fieldnames or ())
    if not ({"node", "sn"} & named and ({"devices"} <= named or {"gpu", "model"} <= named)):
        raise FleetInvalid(
            f"{path}: line 1: wrong columns: {', '.join(sorted(named)) or 'none'}; "
            "write node (or sn), and either devices, or gpu and model"
        )
    for record in reader:

        def where(_field: str, line: int = reader.line_num) -> str:
            return f"{path}: line {line}"  # all fields are on one line

        filled = {key: value for key, value in record.items() if key and value}
        devices = filled.get("devices", "")
        if not devices and filled.get("gpu", "0").strip("0"):
            devices = f"{filled['gpu']}x{filled.get('model', '')}"
        row = {"node": filled.get("node") or filled.get("sn", ""), "devices": devices}
        row |= {key: filled[key] for key in ("cpu_milli", "memory_mib") if key in filled}
        yield _entry(where, row, wrong, strict=False)


def _nodes(
    entries: Iterable[_Entry], wrong: list[str], misnamed: Judge | None = None
) -> list[SimulatedNode]:
    nodes: list[SimulatedNode] = []
    seen: set[str] = set()
    for where, name, row in entries:
        if name and name in seen:
            wrong.append(f"{where('node')}: duplicate node {name!r}; list each node once")
            continue
        seen.add(name)
        if row is None:
            continue
        if misnamed is not None and (why := misnamed(name)):
            wrong.append(f"{where('node')}: node: {why}")
        if len(nodes) == NODES_MAX:
            wrong.append(f"{where('node')}: more than {NODES_MAX} nodes; start more agents")
            break
        try:
            devices = simulated_devices(name, row.devices) if row.devices else ()
        except SimulationInvalid as error:
            wrong.append(f"{where('devices')}: node {name!r}: {error}")
            continue
        labels = {HOSTNAME: row.node}  # as a kubelet labels it
        if gpus := [device for device in devices if device.family == NVIDIA]:
            # As NVIDIA's GPU feature discovery labels it, for the first GPU. NVML calls GPUs before
            # Ampere "Tesla T4", without the maker.
            product = gpus[0].model.replace("NVIDIA Tesla", "Tesla").replace(" ", "-")
            labels |= {
                "nvidia.com/gpu.product": product,
                "nvidia.com/gpu.memory": str(gpus[0].memory_mib),
                "nvidia.com/gpu.count": str(len(gpus)),
            }
        shares = max(1, len(devices))
        host = Host(
            cpu_milli=CPU_MILLI_PER_DEVICE * shares if row.cpu_milli is None else row.cpu_milli,
            memory_mib=MEMORY_MIB_PER_DEVICE * shares if row.memory_mib is None else row.memory_mib,
            pods=row.pods,
            labels=labels | row.labels,
        )
        nodes.append(SimulatedNode(name, devices, host))
    return nodes
