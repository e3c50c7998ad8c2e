"""Store the fleet of an `apportion up` in the ledger's folder.

Invariant: every later `up` with this folder simulates the same nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from apportion.cli.exits import Unreachable
from apportion.runtime.files.atomic import write_whole

if TYPE_CHECKING:
    from apportion.runtime.files.fleets import SimulatedNode

# our own folder, because users keep files such as `fleet.yaml` in the data folder
KEPT: Final = "kept-fleet"
PRICES_ENV: Final = "APPORTION_PRICES"  # the gateway's variable; `up` checks its price file too
_NAME: Final = "name"
_NODES: Final = "nodes.yaml"
_NO_SAMPLES: Final = "no-samples"


class Fleet(msgspec.Struct, frozen=True):
    """A fleet's name, and its nodes as YAML or JSON; no text means this machine's own GPUs."""

    name: str
    text: bytes = b""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one `apportion up`."""

    data: Path
    ephemeral: bool
    nats_port: int
    port: int
    agent: tuple[str, ...]
    fleet: Fleet
    samples: bool
    advice: tuple[str, ...]
    exit_after_samples: bool
    max_bytes: int | None = None  # None: keep the size of the ledger
    began_s: float  # monotonic time of the start


def nodes_file(data: Path) -> Path:
    """Return the path of the file from which the agent reads its nodes."""
    return data / KEPT / _NODES


def of_file(path: Path, name: str) -> Fleet:
    """Read a fleet from a file. Raises OSError, FleetInvalid."""
    if path.suffix.lower() != ".csv":
        return Fleet(name, path.read_bytes())
    from apportion.runtime.files import fleets  # see _nodes

    return Fleet(name, fleets.as_json(path, path.read_text("utf-8")))


def of_nodes(nodes: Iterable[tuple[str, str]], name: str) -> Fleet:
    """Return the fleet of these nodes, given as pairs of name and device description."""
    rows = [{"node": node, "devices": devices} for node, devices in nodes]
    return Fleet(name, msgspec.json.encode({"nodes": rows}))


def kept(data: Path) -> Fleet | None:
    """Return the fleet with which the folder's ledger began, or None. Raises Unreachable."""
    nodes = nodes_file(data)
    try:
        name = (data / KEPT / _NAME).read_text("utf-8")
        return Fleet(name, nodes.read_bytes() if nodes.exists() else b"")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Unreachable(
            f"cannot start: cannot read the stored fleet of the ledger in {data / KEPT} ({error}); "
            "restore that folder, choose another --data, or use --ephemeral"
        ) from None


def without_samples(data: Path) -> bool:
    """Return True if the folder's ledger was first started without sample pods."""
    return (data / KEPT / _NO_SAMPLES).exists()


def keep(data: Path, fleet: Fleet, *, samples: bool = True) -> None:
    """Store the fleet for later runs, and whether the ledger starts with `samples`.

    Writes the fleet's name last. Raises OSError, Unreachable."""
    before = kept(data)
    (data / KEPT).mkdir(exist_ok=True)
    if fleet.text and not (before and before.text):
        write_whole(nodes_file(data), fleet.text)
    if before is None:
        if samples:
            (data / KEPT / _NO_SAMPLES).unlink(missing_ok=True)  # left by a run that was killed
        else:
            write_whole(data / KEPT / _NO_SAMPLES, b"")
        write_whole(data / KEPT / _NAME, fleet.name.encode())


def refusal(data: Path, fleet: Fleet) -> str:
    """Return why the folder's ledger does not match this fleet, or "". Raises Unreachable."""
    before = kept(data)
    if before is None:
        return ""
    known = bool(before.text and fleet.text)
    differs = ""
    if known and before.text != fleet.text:
        from apportion.core.explain.text.words import listed  # see _nodes

        try:
            then, now = ({each.name: each for each in _nodes(one)} for one in (before, fleet))
        except ValueError as error:  # someone edited the folder
            differs = f"the stored fleet cannot be read: {error}"
        else:
            changes = (
                ("missing", [name for name in then if name not in now]),
                ("new", [name for name in now if name not in then]),
                ("changed", [name for name in then if name in now and then[name] != now[name]]),
            )
            differs = ", ".join(f"{what}: {listed(names)}" for what, names in changes if names)
    if not differs and (known or before.name == fleet.name):
        return ""
    begun = before.name + (" as it was before" if before.name == fleet.name else "")
    wanted = f"{fleet.name}: {differs}" if differs else fleet.name
    go_on = "omit --fleet and --gpus" if before.text else "give that fleet, or --gpus local,"
    return (
        f"the ledger in {data} belongs to {begun}, not to {wanted}; {go_on} to continue with its "
        "fleet, choose another --data, use --ephemeral, or delete that folder and its ledger"
    )


def _nodes(fleet: Fleet) -> Sequence[SimulatedNode]:
    from apportion.runtime.files import fleets  # slow: needs YAML

    return fleets.fleet_of(Path(KEPT, _NODES), fleet.text.decode())
