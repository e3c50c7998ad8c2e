"""Which devices a pod will have, and how nodes and devices are preferred: the pod's annotations.

HAMi and Volcano spell several of them differently for the same thing, so both spellings are read in
every NVIDIA dialect. Invariant: an annotation that asks for something we do not do is refused by
name, never passed over.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar, get_args

from apportion.core.devices.chains import CHAINABLE
from apportion.core.dialects import ascend, vcuda
from apportion.core.dialects.dialect import Dialect, Selecting
from apportion.core.dialects.errors import ManifestError, within
from apportion.core.dialects.names import DialectConfig
from apportion_schemas import DeviceConstraints, DeviceWeights, Mode
from apportion_schemas.quantities import COUNT_MAX, NAME_MAX, WHOLE

LIST_MAX = 256
MODES: tuple[Mode, ...] = tuple(
    mode for mode in get_args(Mode) if mode in {"hami-core", "mig", "mps"}
)
POLICIES = ("binpack", "spread")
SCORING_WEIGHTS = "hami.io/device-scoring-weights"
WEIGHT_MAX = 1000
WEIGHT_DIGITS_MAX = 9
LIMIT_DIGITS_MAX = 3
WEIGHTS = {"slot": "slots", "core": "cores", "memory": "memory"}
"""What HAMi calls each weight, and we."""
NODE_POLICY = "hami.io/node-scheduler-policy"
DEVICE_POLICY = "hami.io/gpu-scheduler-policy"
MODE = ("volcano.sh/vgpu-mode", "nvidia.com/vgpu-mode")
USE_TYPES = ("nvidia.com/use-gputype",)
NOUSE_TYPES = ("nvidia.com/nouse-gputype",)
USE_IDS = ("nvidia.com/use-gpuuuid", "volcano.sh/vgpu-use-gpuuuid")
NOUSE_IDS = ("nvidia.com/nouse-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid")
INDEXES = ("volcano.sh/gpu-index",)
NUMA_BIND = ("nvidia.com/numa-bind",)
NVIDIA_ONLY = (
    *MODE, *USE_TYPES, *NOUSE_TYPES, *USE_IDS, *NOUSE_IDS, *INDEXES, *NUMA_BIND,
)  # fmt: skip
NOT_IMPLEMENTED = {
    "huawei.com/vnpu-mode": "remove it; NPUs are cut by templates",
    "volcano.sh/vgpu-podgroup-policy": "remove it; pods of one group may share a card",
}
CORE_LIMIT = "-core-limit"
"""Behind the name of a vcuda dialect: the most of a card that the pod may use while it is idle. The
node's plugin reads it off the pod; it binds no decision.
"""

T = TypeVar("T")


class Selection(NamedTuple):
    """What the annotations say; an empty policy leaves it to the cluster's."""

    devices: DeviceConstraints
    node_policy: str
    device_policy: str
    device_weights: DeviceWeights | None


class _Notes(NamedTuple):
    """The pod's annotations and the path of that field, for errors."""

    values: Mapping[str, str]
    field: str

    def refusal(self, key: str, problem: str, fix: str) -> ManifestError:
        return ManifestError(within(self.field, key), self.values[key], problem, fix)


def selection(
    annotations: Mapping[str, str], *, field: str, dialect: Dialect, config: DialectConfig
) -> Selection:
    """What the annotations of a pod that asks for devices mean.

    Raises:
        ManifestError: a value is malformed, two contradict, or one is not implemented.
    """
    notes = _Notes(annotations, field)
    for key, fix in NOT_IMPLEMENTED.items():
        if key in annotations:
            raise notes.refusal(key, "is not implemented yet", fix)
    for names in config.vcuda:
        _core_limit(notes, dialect, names.cores.partition("/")[0])
    if dialect.selecting is not None:
        devices = _other_constraints(notes, dialect.selecting)
    elif dialect.name == ascend.NAME:
        devices = _npu_constraints(notes, config)
    else:
        devices = _gpu_constraints(notes, config)
    return Selection(
        devices=devices,
        node_policy=_one(notes, (NODE_POLICY,), _policy) or "",
        device_policy=_one(notes, (DEVICE_POLICY,), _chain) or "",
        device_weights=_one(notes, (SCORING_WEIGHTS,), _weights),
    )


def _core_limit(notes: _Notes, dialect: Dialect, prefix: str) -> None:
    """Check the limit of gpu-manager, which is for its own pods."""
    key = f"{prefix}/{vcuda.NAME}{CORE_LIMIT}"
    value = notes.values.get(key)
    if value is None:
        return
    if dialect.name != f"{prefix}/{vcuda.NAME}":
        raise notes.refusal(key, f"limits the cores of {prefix}/{vcuda.NAME} alone", "remove it")
    digits = value.isascii() and value.isdecimal() and len(value) <= LIMIT_DIGITS_MAX
    if not digits or not 0 < int(value) <= WHOLE:
        raise notes.refusal(
            key, "is no percent of a card", f"write a whole number from 1 to {WHOLE}"
        )


def _gpu_constraints(notes: _Notes, config: DialectConfig) -> DeviceConstraints:
    for npu in config.ascend:
        for key in _npu_keys(npu.word):
            if key in notes.values:
                raise notes.refusal(key, "selects NPUs in a pod that asks for GPUs", "remove it")
    use_types = _one(notes, USE_TYPES, _names) or ()
    nouse_types = _one(notes, NOUSE_TYPES, _names) or ()
    use_ids = _one(notes, USE_IDS, _names) or ()
    nouse_ids = _one(notes, NOUSE_IDS, _names) or ()
    _disjoint(notes, NOUSE_TYPES, use_types, nouse_types)
    _disjoint(notes, NOUSE_IDS, use_ids, nouse_ids)
    return DeviceConstraints(
        modes=_one(notes, MODE, _modes) or (),
        use_types=use_types,
        nouse_types=nouse_types,
        use_ids=use_ids,
        nouse_ids=nouse_ids,
        indexes=_one(notes, INDEXES, _indexes) or (),
        numa_bind=_one(notes, NUMA_BIND, _flag) or False,
    )


def _npu_constraints(notes: _Notes, config: DialectConfig) -> DeviceConstraints:
    for key in NVIDIA_ONLY:
        if key in notes.values:
            raise notes.refusal(key, "selects GPUs in a pod that asks for NPUs", "remove it")
    use_ids: dict[str, None] = {}
    nouse_ids: dict[str, None] = {}
    for npu in config.ascend:
        use, nouse = _npu_keys(npu.word)
        use_ids |= dict.fromkeys(_one(notes, (use,), _names) or ())
        nouse_ids |= dict.fromkeys(_one(notes, (nouse,), _names) or ())
        _disjoint(notes, (nouse,), tuple(use_ids), tuple(nouse_ids))
    return DeviceConstraints(use_ids=tuple(use_ids), nouse_ids=tuple(nouse_ids))


def _other_constraints(notes: _Notes, names: Selecting) -> DeviceConstraints:
    """Those of another vendor, which are the same four everywhere."""
    for key in NVIDIA_ONLY:
        if key in notes.values:
            raise notes.refusal(key, "selects NVIDIA GPUs in a pod that asks for none", "remove it")
    use_types, nouse_types, use_ids, nouse_ids = (
        _one(notes, (key,), _names) or () for key in names
    )
    _disjoint(notes, (names.nouse_types,), use_types, nouse_types)
    _disjoint(notes, (names.nouse_ids,), use_ids, nouse_ids)
    return DeviceConstraints(
        use_types=use_types, nouse_types=nouse_types, use_ids=use_ids, nouse_ids=nouse_ids
    )


def _npu_keys(word: str) -> tuple[str, str]:
    return f"hami.io/use-{word}-uuid", f"hami.io/no-use-{word}-uuid"


def _one(notes: _Notes, keys: tuple[str, ...], read: Callable[[_Notes, str], T]) -> T | None:
    """The value under any of the keys, which are spellings of one thing and must agree."""
    found = [(key, read(notes, key)) for key in keys if key in notes.values]
    for key, value in found[1:]:
        if value != found[0][1]:
            raise notes.refusal(key, f"differs from {found[0][0]}", "keep one of the two")
    return found[0][1] if found else None


def _disjoint(
    notes: _Notes, keys: tuple[str, ...], use: tuple[str, ...], nouse: tuple[str, ...]
) -> None:
    wanted = {name.lower() for name in use}
    both = next((name for name in nouse if name.lower() in wanted), None)
    if both is not None:
        key = next(key for key in keys if key in notes.values)
        raise notes.refusal(key, f"rules out {both!r}, which is asked for as well", "keep one")


def _names(notes: _Notes, key: str) -> tuple[str, ...]:
    """A comma list of names, without doubles, in a fixed order."""
    names = {part for raw in notes.values[key].split(",") if (part := raw.strip())}
    if not names:
        raise notes.refusal(key, "names nothing", "write a comma list, or remove it")
    if len(names) > LIST_MAX or any(len(name) > NAME_MAX for name in names):
        raise notes.refusal(key, "is too long", f"name at most {LIST_MAX}")
    return tuple(sorted(names))


def _modes(notes: _Notes, key: str) -> tuple[Mode, ...]:
    names = _names(notes, key)
    if not set(names) <= set(MODES):
        raise notes.refusal(key, "is no sharing mode", f"write one of {', '.join(MODES)}")
    return tuple(mode for mode in MODES if mode in names)


def _indexes(notes: _Notes, key: str) -> tuple[int, ...]:
    names = _names(notes, key)
    indexes = {int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 4}  # noqa: PLR2004
    if len(indexes) != len(names) or max(indexes) >= COUNT_MAX:
        raise notes.refusal(
            key, "is no list of card numbers", f'write numbers below {COUNT_MAX}, as in "0,2"'
        )
    return tuple(sorted(indexes))


def _flag(notes: _Notes, key: str) -> bool:
    value = notes.values[key]
    if value not in {"true", "false"}:
        raise notes.refusal(key, "is neither true nor false", 'write "true", or remove it')
    return value == "true"


def _policy(notes: _Notes, key: str) -> str:
    value = notes.values[key].strip()
    if value not in POLICIES:
        raise notes.refusal(
            key, "is not implemented", f"write one of {', '.join(POLICIES)}, or remove it"
        )
    return value


def _chain(notes: _Notes, key: str) -> str:
    """A chain of device policies; a name that comes twice counts once."""
    names = tuple(dict.fromkeys(name.strip() for name in notes.values[key].split(",")))
    if not set(names) <= set(CHAINABLE):
        raise notes.refusal(
            key,
            "is no policy for devices",
            f"write one of {', '.join(CHAINABLE)}, or several with commas, or remove it",
        )
    return ",".join(names)


def _weights(notes: _Notes, key: str) -> DeviceWeights:
    """Three weights, as in `slot=1,core=1,memory=3`, in any order."""
    pairs = [part.partition("=") for part in notes.values[key].split(",")]
    found = {name.strip(): value.strip() for name, _, value in pairs}
    if len(pairs) != len(WEIGHTS) or set(found) != set(WEIGHTS):
        raise notes.refusal(
            key, "does not name slot, core and memory once each", 'write "slot=1,core=1,memory=3"'
        )
    if not all(value.isascii() and value.isdecimal() for value in found.values()) or any(
        len(value) > WEIGHT_DIGITS_MAX or int(value) > WEIGHT_MAX for value in found.values()
    ):
        raise notes.refusal(
            key, "has a weight that is no whole number", f"write numbers from 0 to {WEIGHT_MAX}"
        )
    weights = {ours: int(found[theirs]) for theirs, ours in WEIGHTS.items()}
    if not any(weights.values()):
        raise notes.refusal(key, "weighs nothing", "let at least one be more than 0")
    return DeviceWeights(**weights)
