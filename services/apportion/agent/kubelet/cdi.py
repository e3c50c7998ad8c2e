"""What a slot means, as a CDI specification that container runtimes read when a container is made.

One file per slot (`containerEdits` of CDI 0.5.0), because a device may stand in one file only. What
NVIDIA's own specification of the node says of a card (device nodes, the driver's libraries, hooks)
is taken over into ours, since a runtime that is shown our device is not shown NVIDIA's. Invariant:
a file is there whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from apportion.core.grants import Edits
from apportion.runtime.files.atomic import write_whole
from apportion.runtime.files.safe_yaml import TEXT_BYTES_MAX, parse

VERSION: Final = "0.5.0"
KIND: Final = "apportion.dev/share"
VENDORS: Final = "nvidia.com/gpu"
_PARTS: Final = ("env", "deviceNodes", "mounts", "hooks")
_encode = msgspec.json.Encoder().encode

Json = dict[str, Any]


def device_name(slot: str) -> str:
    """The slot's name as runtimes are given it."""
    return f"{KIND}={slot}"


class Specifications:
    """The files of our slots in one folder, and what others say of the cards there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, slots: Sequence[str], edits: Edits) -> None:
        """Give the slots of one container their meaning; the first has all of it.

        Raises:
            OSError: the disk is full, or the folder cannot be written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        whole = _merged([*self._foreign(edits.cards), _own(edits)])
        env = [line for line in whole["env"] if line.startswith("NVIDIA_VISIBLE_DEVICES=")]
        for slot in slots:
            # A device without any edit is refused by runtimes, so the others say what is visible.
            said = whole if slot == slots[0] else {"env": env or [f"APPORTION_SLOT={slot}"]}
            device = {"name": slot, "containerEdits": {k: v for k, v in said.items() if v}}
            document = {"cdiVersion": VERSION, "kind": KIND, "devices": [device]}
            write_whole(self._path(slot), _encode(document))

    def remove(self, slot: str) -> None:
        """Let a slot mean nothing any more. Raises OSError."""
        self._path(slot).unlink(missing_ok=True)

    def knows_cards(self) -> bool:
        """Whether a specification of NVIDIA's cards is there."""
        return self._vendors() is not None

    def _path(self, slot: str) -> Path:
        return self._folder / f"apportion-{slot}.json"

    def _foreign(self, cards: Sequence[str]) -> list[Json]:
        """The edits of these cards in NVIDIA's specification; see nvidia-ctk.

        A card in MIG mode does not stand there by its own name: it has what all of them have.
        """
        said = self._vendors() if cards else None
        if said is None:
            return []
        by_name = {each.get("name"): each for each in said.get("devices") or ()}
        each = [by_name[card].get("containerEdits") or {} for card in cards if card in by_name]
        return [said.get("containerEdits") or {}, *each]

    def _vendors(self) -> Json | None:
        for path in sorted(self._folder.glob("*")):
            if path.name.startswith("apportion-") or path.suffix not in {".json", ".yaml"}:
                continue
            said = _read(path)
            if said.get("kind") == VENDORS:
                return said
        return None


def _read(path: Path) -> Json:
    """A specification of somebody else; one that cannot be read is none."""
    try:
        with path.open("rb") as file:
            text = file.read(TEXT_BYTES_MAX).decode()
    except (OSError, UnicodeDecodeError):
        return {}
    first = next(iter(parse(text)), None)
    content = first.content if first is not None and first.error is None else None
    return content if isinstance(content, dict) else {}


def _own(edits: Edits) -> Json:
    return {
        "env": [f"{name}={value}" for name, value in edits.env.items()],
        "deviceNodes": [
            {"path": node.path, "type": "c", "major": node.major, "minor": node.minor}
            for node in edits.device_nodes
        ],
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "bind"],
            }
            for mount in edits.mounts
        ],
    }


def _merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """One after the other; the last word on a variable is ours."""
    whole: dict[str, list[Any]] = {name: [] for name in _PARTS}
    for part in parts:
        for name in _PARTS:
            whole[name] += [each for each in part.get(name) or () if each not in whole[name]]
    return whole
