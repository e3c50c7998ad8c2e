"""The fleet of a ledger, kept in its folder: known by its nodes, not by the name of a file.

Invariant: an `up` simulates the nodes that its ledger was begun with, or begins nothing. A node of
the ledger that nobody simulates any more would stand there as ready, without an agent.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from apportion.runtime.files.fleets import SimulatedNode

RECORD: Final = "fleet"
"""The fleet in words; beside it, under the same name with a suffix, its nodes as a fleet file."""
FORMS: Final = (".csv", ".yaml")


class Fleet(msgspec.Struct, frozen=True):
    """What it is called, and the fleet file of its nodes with its suffix.

    The GPUs of the machine itself have no such file.
    """

    name: str
    text: bytes = b""
    form: str = ""

    def file_in(self, data: Path) -> Path:
        """Where an agent of this folder finds its nodes."""
        return data / f"{RECORD}{self.form}"


def of_file(path: Path, name: str) -> Fleet:
    """The fleet of this file as it is now. Raises OSError."""
    form = ".csv" if path.suffix.lower() == ".csv" else ".yaml"
    return Fleet(name, path.read_bytes(), form)


def of_nodes(nodes: Iterable[tuple[str, str]], name: str) -> Fleet:
    """The fleet of these nodes, each with the description of its devices."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((("node", "devices"), *nodes))
    return Fleet(name, text.getvalue().encode(), ".csv")


def kept(data: Path) -> Fleet | None:
    """The fleet with which the ledger of this folder was begun, None where there is none.

    Of one that was begun by an older build there is only the name. Raises OSError.
    """
    record = data / RECORD
    if not record.exists():
        return None
    name = record.read_text("utf-8")
    there = (Fleet(name, form=form) for form in FORMS)
    found = next((each for each in there if each.file_in(data).exists()), Fleet(name))
    text = found.file_in(data).read_bytes() if found.form else b""
    return msgspec.structs.replace(found, text=text)


def keep(data: Path, fleet: Fleet) -> None:
    """Keep it for the next run; the name last, without which there is none. Raises OSError."""
    for form in FORMS:
        if form != fleet.form:
            (data / f"{RECORD}{form}").unlink(missing_ok=True)
    if fleet.form:
        _write(fleet.file_in(data), fleet.text)
    _write(data / RECORD, fleet.name.encode())


def _write(path: Path, content: bytes) -> None:
    """All of it or nothing: we may be killed at any moment."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(content)
    draft.replace(path)


def refusal(data: Path, fleet: Fleet) -> str:
    """Why the ledger of this folder cannot go on with this fleet, and what to do; empty if it can.

    Raises OSError.
    """
    before = kept(data)
    if before is None:
        return ""
    known = bool(before.text and fleet.text)
    differs = _differing(before, fleet) if known else ""
    if not differs and (known or before.name == fleet.name):
        return ""
    then = before.name + (" as it was then" if before.name == fleet.name else "")
    now = f"{fleet.name}: {differs}" if differs else fleet.name
    go_on = "leave --fleet and --gpus out" if before.text else "give that fleet, or --gpus local,"
    return (
        f"the ledger in {data} was begun with {then}, and now the fleet is {now}; {go_on} to go on "
        "with the fleet of then, choose another --data, use --ephemeral, or remove that folder to "
        "forget its ledger"
    )


def _differing(before: Fleet, fleet: Fleet) -> str:
    """Which nodes are not as they were; a file's remarks and the order in it count for nothing."""
    if before.text == fleet.text and before.form == fleet.form:
        return ""
    from apportion.core.explain.lines import listed  # see _nodes

    try:
        then, now = ({each.name: each for each in _nodes(one)} for one in (before, fleet))
    except ValueError as error:  # somebody wrote into the folder
        return f"what was kept of it cannot be read: {error}"
    changes = (
        ("missing", [name for name in then if name not in now]),
        ("new", [name for name in now if name not in then]),
        ("changed", [name for name in then if name in now and then[name] != now[name]]),
    )
    return ", ".join(f"{what}: {listed(names)}" for what, names in changes if names)


def _nodes(fleet: Fleet) -> Sequence[SimulatedNode]:
    from apportion.runtime.files import fleets  # with YAML, which the samples' fleet does not cost

    return fleets.fleet_of(Path(f"{RECORD}{fleet.form}"), fleet.text.decode())
