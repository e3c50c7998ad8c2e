"""Tests of the annotations that we write for other systems' device plugins.

Each test vector has a placement, and the annotations that the other system's scheduler would have
written for that placement. The expected values were worked out by hand from that system's encoding.
"""

from pathlib import Path

import msgspec
import pytest

from apportion.core.workloads.adoption.placement_annotations import annotations_for
from apportion_schemas import Configuration, Device, PodPlaced, PodSubmitted

VECTORS = Path(__file__).parent / "annotations"
NAMES = sorted(path.stem for path in VECTORS.glob("*.json"))
NOW_NS = 1_772_357_400_123_456_789
OURS = "apportion.dev/"


class Vector(msgspec.Struct, forbid_unknown_fields=True):
    """A test vector: a pod, its placement, and the annotations that we must write."""

    pod: PodSubmitted
    placed: PodPlaced
    devices: tuple[Device, ...]
    annotations: dict[str, str]
    configuration: Configuration = Configuration()


def rendered(name: str, *, served: bool = False) -> tuple[Vector, dict[str, str]]:
    """Return the vector `name`, and the annotations that we write for its placement."""
    vector = msgspec.json.decode((VECTORS / f"{name}.json").read_bytes(), type=Vector)
    notes = annotations_for(
        vector.pod,
        vector.placed,
        revision=42,
        devices={device.id: device for device in vector.devices},
        now_ns=NOW_NS,
        configuration=vector.configuration,
        served=served,
    )
    return vector, notes


@pytest.mark.parametrize("name", NAMES)
def test_the_plugin_finds_what_its_scheduler_would_have_written(name: str) -> None:
    """We write the same annotations as the other system's scheduler, byte for byte.

    All our other annotations have our own prefix."""
    vector, notes = rendered(name)
    theirs = {key: text for key, text in notes.items() if not key.startswith(OURS)}
    assert theirs == vector.annotations


@pytest.mark.parametrize("name", NAMES)
def test_our_annotations_identify_the_placement(name: str) -> None:
    """Our own annotations contain the placement's ledger revision, dialect and shares."""
    vector, notes = rendered(name)
    assert notes["apportion.dev/placement-revision"] == "42"
    assert notes["apportion.dev/dialect"] == vector.pod.dialect
    shares = msgspec.json.decode(notes["apportion.dev/shares"], type=list[msgspec.Raw])
    assert len(shares) == len(vector.placed.shares)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        (
            "hami-init-and-empty-containers",
            {"hami.io/vgpu-devices-to-allocate": "", "hami.io/bind-phase": "success"},
        ),
        (
            "volcano-vgpu-two-containers",
            {
                "volcano.sh/devices-to-allocate": "", "volcano.sh/bind-phase": "success",
                "volcano.sh/vgpu-time": "18446744073709551615",
            },
        ),
    ],
)  # fmt: skip
def test_a_pod_of_our_agent_looks_served(name: str, changed: dict[str, str]) -> None:
    """A pod of our agent has annotations as if the other plugin had already given it its devices.

    Otherwise Volcano's plugin would allocate devices to the pod once it returns to the node."""
    _, before = rendered(name)
    _, after = rendered(name, served=True)
    assert after == before | changed
