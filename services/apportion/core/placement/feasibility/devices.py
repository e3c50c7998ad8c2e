"""The device rules that ignore current use: each is True if the device could ever serve the ask."""

from collections.abc import Callable

from apportion.core.devices.catalogue import FAMILIES, NVIDIA, registered, type_matches
from apportion.core.placement.feasibility.descriptors import DEVICE, TOLD, Cause, Kind, pairs
from apportion_schemas import Ask, Device, DeviceConstraints, RefusalCode


def family(ask: Ask, constraints: DeviceConstraints, device: Device) -> bool:
    """Require a device of the family that the requested resource name belongs to."""
    del constraints
    return device.family == ask.family


def mode(ask: Ask, constraints: DeviceConstraints, device: Device) -> bool:
    """Require a sharing mode that the pod accepts (`volcano.sh/vgpu-mode`).

    A CUDA process sees only one MIG instance, so an ask for several devices takes MIG devices only
    if the pod names that mode. A softly split NPU is shared only by pods that name its mode
    (`huawei.com/vnpu-mode`)."""
    if constraints.modes:
        return device.mode in constraints.modes
    if device.mode == "hami-core" and not ask.whole:
        family = FAMILIES.get(device.family)
        return family is None or not family.templates
    return device.mode != "mig" or ask.count == 1 or device.family != NVIDIA


def type_name(ask: Ask, constraints: DeviceConstraints, device: Device) -> bool:
    """Require a model allowed by `nvidia.com/use-gputype` and `nvidia.com/nouse-gputype` (HAMi)."""
    del ask
    if any(_means(name, device) for name in constraints.nouse_types):
        return False
    wanted = constraints.use_types
    return not wanted or any(_means(name, device) for name in wanted)


def _means(name: str, device: Device) -> bool:
    """Return True if `name` matches the device's model, as the driver or as the agent calls it."""
    as_registered = registered(device.family, device.model)
    return type_matches(name, device.model) or type_matches(name, as_registered)


def uuid(ask: Ask, constraints: DeviceConstraints, device: Device) -> bool:
    """Require an id that `nvidia.com/use-gpuuuid` and `nvidia.com/nouse-gpuuuid` allow (HAMi)."""
    del ask
    if device.id in constraints.nouse_ids:
        return False
    return not constraints.use_ids or device.id in constraints.use_ids


def index(ask: Ask, constraints: DeviceConstraints, device: Device) -> bool:
    """Require a device whose index on its node is listed in `volcano.sh/gpu-index`."""
    del ask
    return not constraints.indexes or device.index in constraints.indexes


DeviceCheck = Callable[[Ask, DeviceConstraints, Device], bool]
_C = RefusalCode

RULES: tuple[Cause[DeviceCheck], ...] = (
    Cause(_C.NO_SUCH_DEVICE, "node has no device of the requested family",
          "add a node with such a device", TOLD, kind=Kind.LASTING, check=family),
    Cause(_C.MODE_MISMATCH, "no device is in the requested sharing mode",
          "switch a device to that mode, or remove the mode from the pod", TOLD, kind=Kind.LASTING,
          check=mode),
    Cause(_C.TYPE_MISMATCH, "no device is of a type that the pod accepts",
          "add a device of such a type, or change use-gputype or nouse-gputype", TOLD,
          kind=Kind.LASTING, check=type_name),
    # No check, because it depends on the gang's other pods: see `core.placement.gang_models`.
    Cause(_C.GANG_MODEL_MISMATCH, "devices are of another model than the gang's",
          "free devices of one model, or set the annotation apportion.dev/gang-models: any in the "
          "pods of the gang", DEVICE, kind=Kind.LASTING),
    Cause(_C.UUID_MISMATCH, "no device has an id that the pod accepts",
          "change the device ids that the pod lists", TOLD, kind=Kind.LASTING,
          check=uuid),
    Cause(_C.INDEX_MISMATCH, "no device has an index that the pod accepts",
          "use a node with a device at that index, or change gpu-index", TOLD, kind=Kind.LASTING,
          check=index),
)  # fmt: skip
DEVICE_RULES = pairs(RULES)
