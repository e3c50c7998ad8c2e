"""NVIDIA: what the dialects of its cards have in common beside amounts, the annotations.

HAMi and Volcano spell several of them differently for the same thing, so both spellings are read in
every NVIDIA dialect. Invariant: two spellings of one thing agree, or the pod is refused.
"""

from typing import Final, get_args

from apportion.core.devices.geometries import NVIDIA as FAMILY
from apportion.core.workloads.dialects.notes import Notes, flag, indexes, names, one, some_left
from apportion_schemas import DeviceConstraints, Mode

__all__ = ["DEVICES", "FAMILY", "RESERVED", "choose"]

DEVICES: Final = "GPUs"
MODES: tuple[Mode, ...] = tuple(
    mode for mode in get_args(Mode) if mode in {"hami-core", "mig", "mps"}
)
MODE = ("volcano.sh/vgpu-mode", "nvidia.com/vgpu-mode")
USE_TYPES = ("nvidia.com/use-gputype",)
NOUSE_TYPES = ("nvidia.com/nouse-gputype",)
USE_IDS = ("nvidia.com/use-gpuuuid", "volcano.sh/vgpu-use-gpuuuid")
NOUSE_IDS = ("nvidia.com/nouse-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid")
INDEXES = ("volcano.sh/gpu-index",)
NUMA_BIND = ("nvidia.com/numa-bind",)
RESERVED = dict.fromkeys(
    (*MODE, *USE_TYPES, *NOUSE_TYPES, *USE_IDS, *NOUSE_IDS, *INDEXES, *NUMA_BIND),
    "selects GPUs in a pod that asks for {devices}",
)
"""The annotations that only pods which ask for GPUs may have."""


def choose(notes: Notes) -> DeviceConstraints:
    """Among which cards a pod chooses.

    Raises:
        ManifestError: a value is malformed, or two contradict.
    """
    use_types = one(notes, USE_TYPES, names) or ()
    nouse_types = one(notes, NOUSE_TYPES, names) or ()
    use_ids = one(notes, USE_IDS, names) or ()
    nouse_ids = one(notes, NOUSE_IDS, names) or ()
    some_left(notes, NOUSE_TYPES, use_types, nouse_types)
    some_left(notes, NOUSE_IDS, use_ids, nouse_ids)
    return DeviceConstraints(
        modes=one(notes, MODE, _modes) or (),
        use_types=use_types,
        nouse_types=nouse_types,
        use_ids=use_ids,
        nouse_ids=nouse_ids,
        indexes=one(notes, INDEXES, indexes) or (),
        numa_bind=one(notes, NUMA_BIND, flag) or False,
    )


def _modes(notes: Notes, key: str) -> tuple[Mode, ...]:
    found = names(notes, key)
    if not set(found) <= set(MODES):
        raise notes.refusal(key, "is no sharing mode", f"write one of {', '.join(MODES)}")
    return tuple(mode for mode in MODES if mode in found)
