"""Convert the devices of a node to ResourceSlices, which publish them in Kubernetes.

A shareable device has consumable capacity (`allowMultipleAllocations`). A GPU in MIG mode has a
partition for each profile and start; each uses up memory slices (`sharedCounters`). Devices have a
taint against kube-schedulers that honor device taints. Invariant: the same devices give the same
slices, except for their generation."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from apportion.core.devices.catalogue import mig_profiles
from apportion.core.devices.demand import Geometries, Place, groups_of, memory_charged_mib, place_at
from apportion.core.devices.shares import MIG_SLICES, DeviceState
from apportion.core.dra.names import DRIVER, FAMILY, PUBLISHED, SHARED, card, partition
from apportion_schemas import Device

DEVICES_MAX: Final = 64  # per slice, if any device has a taint (`ResourceSliceSpec`)
COUNTERS_MAX: Final = 8  # sets of counters per slice
TAINT: Final = {"key": f"{DRIVER}/scheduler", "value": "apportion", "effect": "NoSchedule"}

Json = dict[str, Any]


def pool(node: str, devices: Iterable[DeviceState], known: Geometries = ()) -> list[Json]:
    """Return the specs of a node's slices. The generation of their pool is 0.

    A device that takes no new shares is left out."""
    cards = [each.device for each in devices if each.open and each.device.family == FAMILY]
    cards = sorted((each for each in cards if each.mode in PUBLISHED), key=lambda each: each.index)
    cut = [each for each in cards if each.mode == "mig" and _places(each, known)]
    whole = [_card(each) for each in cards if each.mode != "mig"]
    parts = [each for device in cut for each in _partitions(device, known)]
    counters = {_slice(number): {"value": "1"} for number in range(MIG_SLICES)}
    sets = [{"name": card(each), "counters": counters} for each in cut]
    content: list[Json] = [
        *({"sharedCounters": some} for some in _by(COUNTERS_MAX, sets)),
        *({"devices": some} for some in _by(DEVICES_MAX, [*whole, *parts])),
    ]
    return [
        {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 0, "resourceSliceCount": len(content)},
            **each,
        }
        for each in content
    ]


def _by(most: int, items: Sequence[Any]) -> Iterator[list[Any]]:
    for first in range(0, len(items), most):
        yield list(items[first : first + most])


def _card(device: Device) -> Json:
    found: Json = {
        "name": card(device),
        "attributes": _attributes(device),
        "capacity": {
            "memory": {"value": f"{device.memory_mib}Mi"},
            "cores": {"value": str(device.cores)},
        },
        "taints": [TAINT],
    }
    if device.mode in SHARED:
        found["allowMultipleAllocations"] = True
        found["capacity"]["cores"]["requestPolicy"] = {
            "default": "0",
            "validRange": {"min": "0", "step": "1"},
        }
        found["capacity"]["slots"] = {
            "value": str(device.slots),
            "requestPolicy": {"default": "1", "validValues": ["1"]},
        }
    return found


def _attributes(device: Device, profile: str = "") -> Json:
    """Return the attributes that a claim can compare in CEL (`requests._FIELDS`)."""
    said = {"uuid": device.id, "productName": device.model, "mode": device.mode}
    said |= {"profile": profile} if profile else {}
    return {name: {"string": value[:64]} for name, value in said.items()}


def _places(device: Device, known: Geometries) -> list[Place]:
    groups = groups_of(known, device.family, device.model, device.mig_sizes)
    places = [place for group in groups for place in group] or [
        place_at(profile, start)
        for profile in mig_profiles(device.family, device.model, device.mig_sizes)
        if not profile.by_name
        for start in sorted(profile.starts)
    ]
    return list({(place.profile.name, place.start): place for place in places}.values())


def _partitions(device: Device, known: Geometries) -> Iterator[Json]:
    for place in _places(device, known):
        taken = range(place.start, place.start + place.profile.size)
        yield {
            "name": partition(device, place.profile.name, place.start),
            "attributes": _attributes(device, place.profile.name),
            "capacity": {
                "memory": {"value": f"{memory_charged_mib(place.profile, device)}Mi"},
                "cores": {"value": str(place.profile.cores)},
            },
            "consumesCounters": [
                {
                    "counterSet": card(device),
                    "counters": {_slice(number): {"value": "1"} for number in taken},
                }
            ],
            "taints": [TAINT],
        }


def _slice(number: int) -> str:
    return f"memory-slice-{number}"
