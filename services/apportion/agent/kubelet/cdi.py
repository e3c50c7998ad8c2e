"""Writes CDI specifications, from which container runtimes read the content of a slot.

Each slot has one file. The file contains a copy of NVIDIA's edits for the device (nodes, driver
libraries, hooks), because the runtime does not apply NVIDIA's own specification. Invariant: a file
is complete or absent, and exists only while its slot is in use."""

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from apportion.core.grants import Edits
from apportion.runtime.files.atomic import write_whole
from apportion.runtime.files.safe_yaml import TEXT_BYTES_MAX, parse

OLDEST: Final = (0, 5, 0)  # the CDI version that our own edits need; NVIDIA's may need a newer one
KIND: Final = "apportion.dev/share"
VENDORS: Final = "nvidia.com/gpu"
_PARTS: Final = ("env", "deviceNodes", "mounts", "hooks", "additionalGids", "netDevices")
_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES="
_PREFIX: Final = "apportion-"
_CARD: Final = re.compile(r"/dev/nvidia[0-9]+")
_NUMBERS: Final = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}")
_INFORMATION: Final = re.compile(r"^([\w ]+):\s*(\S+)\s*$", re.MULTILINE)
_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

Json = dict[str, Any]


def device_name(slot: str) -> str:
    """Return the fully qualified CDI name of a slot."""
    return f"{KIND}={slot}"


class Specifications:
    """Writes one CDI file per slot to `folder`.

    NVIDIA's own CDI file is in `folder` or in one of the folders in `others`."""

    def __init__(
        self, folder: Path, others: Sequence[Path] = (), proc: Path = Path("/proc")
    ) -> None:
        self._folder = folder
        self._others = (folder, *others)
        self._proc = proc
        self._lock = threading.Lock()

    def write(self, slots: Sequence[str], edits: Edits) -> None:
        """Write a CDI file per slot of a container; only the first has the container's edits.

        Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        version, foreign = self._foreign(edits.cards)
        # In order: our edits are last, so that our variables win.
        whole: dict[str, list[Any]] = {name: [] for name in _PARTS}
        own: Json = {
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
        for part in (*foreign, own):
            for name in _PARTS:
                whole[name] += [each for each in part.get(name) or () if each not in whole[name]]
        env = whole["env"]
        if len(foreign) > len(edits.cards) and f"{_VISIBLE}void" in env:
            # NVIDIA's edits have every device: its runtime must not add them a second time.
            env[:] = [line for line in env if not line.startswith(_VISIBLE)] + [f"{_VISIBLE}void"]
        visible = [line for line in env if line.startswith(_VISIBLE)]
        with self._lock:
            for slot in slots:
                # Runtimes refuse a device without any edit, so the other slots set what is visible.
                said = whole if slot == slots[0] else {"env": visible or [f"APPORTION_SLOT={slot}"]}
                device = {"name": slot, "containerEdits": {k: v for k, v in said.items() if v}}
                document = {"cdiVersion": version, "kind": KIND, "devices": [device]}
                write_whole(self._path(slot), _encode(document))

    def remove(self, slot: str) -> None:
        """Remove the CDI file of a slot. Raises OSError."""
        self._path(slot).unlink(missing_ok=True)

    def sweep(self, in_use: Callable[[], Collection[str]]) -> None:
        """Remove the CDI files of slots that `in_use` does not return. Raises OSError."""
        with self._lock:
            # A slot is in use before its file is written, and nothing is written during a sweep.
            kept = {self._path(slot) for slot in in_use()}
            for path in self._folder.glob(f"{_PREFIX}*.json"):
                if path not in kept:
                    path.unlink(missing_ok=True)

    def _path(self, slot: str) -> Path:
        return self._folder / f"{_PREFIX}{slot}.json"

    def _foreign(self, cards: Sequence[str]) -> tuple[str, list[Json]]:
        """Return the CDI version and NVIDIA's edits: first for all devices, then for each GPU.

        With `--device-name-strategy=uuid`, nvidia-ctk names each device by its UUID. With other
        strategies, the path of the device node identifies it. A device in MIG mode gets only the
        edits for all devices."""
        said = self.vendors() if cards else None
        if said is None:
            return _text(OLDEST), []
        devices = [each for each in said.get("devices") or () if isinstance(each, dict)]
        by_name = {each.get("name"): each for each in devices}
        by_node = {}
        for each in devices:
            nodes = (each.get("containerEdits") or {}).get("deviceNodes") or ()
            paths = (node.get("path") for node in nodes if isinstance(node, dict))
            cards_of = (path for path in paths if isinstance(path, str) and _CARD.fullmatch(path))
            by_node[tuple(cards_of)] = each
        minors = {}
        for path in self._proc.glob("driver/nvidia/gpus/*/information"):
            with suppress(OSError, UnicodeDecodeError):
                rows = dict(_INFORMATION.findall(path.read_text("ascii")))
                minors[rows.get("GPU UUID", "")] = rows.get("Device Minor", "")
        found = [said.get("containerEdits") or {}]
        for card in cards:
            one = by_name.get(card) or by_node.get((f"/dev/nvidia{minors.get(card)}",))
            if one is None:
                _log.warning("the CDI specification of %s lacks device %s", VENDORS, card)
            else:
                found.append(one.get("containerEdits") or {})
        version = str(said.get("cdiVersion", ""))
        if _NUMBERS.fullmatch(version):
            return _text(max(OLDEST, tuple(map(int, version.split("."))))), found
        return _text(OLDEST), found

    def vendors(self) -> Json | None:
        """Return NVIDIA's CDI specification, or None if there is none."""
        for path in (path for folder in self._others for path in sorted(folder.glob("*"))):
            if path.name.startswith(_PREFIX) or path.suffix not in {".json", ".yaml"}:
                continue
            try:
                with path.open("rb") as file:
                    text = file.read(TEXT_BYTES_MAX).decode()
            except (OSError, UnicodeDecodeError):
                continue
            first = next(iter(parse(text)), None)
            said = first.content if first is not None and first.error is None else None
            if isinstance(said, dict) and said.get("kind") == VENDORS:
                return said
        return None


def _text(version: Iterable[int]) -> str:
    return ".".join(map(str, version))
