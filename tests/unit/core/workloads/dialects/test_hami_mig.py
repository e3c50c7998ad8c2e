"""Tests of pods with MIG instances of GPUs that HAMi's plugin divides."""

import json
from typing import Any

import pytest

from apportion.core.configuration.reading import read_configuration
from apportion.core.workloads.adoption.recovery import recover, shares_of
from apportion.core.workloads.dialects import DialectConfig
from apportion.core.workloads.dialects.dialect import BoundPod
from apportion.core.workloads.dialects.hami import ALLOCATED, MIG_ALLOCATIONS, REGISTER, TO_ALLOCATE
from apportion.core.workloads.dialects.inventory import NodeFacts
from apportion.core.workloads.dialects.names import dialect_config
from apportion.core.workloads.dialects.node_annotations import registration
from apportion.core.workloads.dialects.nvidia import NO_GROUPS
from apportion_schemas import ConfigurationChanged, Device
from tests.support.ledger_of import Ledger
from tests.support.manifests import pod
from tests.support.vendor_placements import ledger, place, written

MODEL = "NVIDIA A100-SXM4-40GB"
GPU = {
    "id": "GPU-a", "count": 7, "devmem": 40960, "devcore": 100, "type": MODEL, "mode": "mig",
    "health": True,
}  # fmt: skip
PLACES = {
    "1g.5gb": (4864, 1, range(7)), "2g.10gb": (9856, 2, (0, 2, 4)), "3g.20gb": (20096, 4, (0, 4)),
    "7g.40gb": (40192, 8, (0,)),
}  # fmt: skip
PROFILES = [
    {
        "name": name, "memoryMB": memory_mib, "core": 15, "sliceCount": 1,
        "placements": [{"start": start, "size": size} for start in starts],
    }
    for name, (memory_mib, size, starts) in PLACES.items()
]  # fmt: skip
GEOMETRIES = {
    "nvidia": {
        "knownMigGeometries": [
            {
                "models": ["A100-SXM4-40GB"],
                "allowedGeometries": [
                    [{"name": "1g.5gb", "memory": 5120, "count": 7}],
                    [
                        {"name": "2g.10gb", "memory": 10240, "count": 3},
                        {"name": "1g.5gb", "memory": 5120, "count": 1},
                    ],
                ],
            }
        ]
    }
}
CONFIGURATION = read_configuration(GEOMETRIES)
CONFIG = dialect_config(CONFIGURATION)


def facts(config: DialectConfig | None = None, **changes: Any) -> NodeFacts:
    """Return a node on which HAMi's plugin registers one A100 in MIG mode."""
    notes, offered = {REGISTER: json.dumps([GPU | changes])}, {"nvidia.com/gpu": 7}
    return NodeFacts("n1", notes, {}, offered, config or DialectConfig(), offered)


def offered(config: DialectConfig | None = None, **changes: Any) -> Device:
    """Return the A100 that the node offers."""
    (found,) = registration(facts(config, **changes)).devices
    return found


def asking(memory_mib: int, count: int = 1) -> dict[str, Any]:
    """Return a pod that requests this number of instances with this much memory."""
    limits = {"nvidia.com/gpu": count, "nvidia.com/gpumem": memory_mib}
    return pod(limits, {"nvidia.com/vgpu-mode": "mig"})


def divided(here: Ledger, uid: str) -> list[tuple[str, int, int]]:
    """Return the instances that the pod's annotation names."""
    found = json.loads(written(here, uid)[MIG_ALLOCATIONS])
    return [(e["profile"], e["placement"]["start"], e["placement"]["size"]) for e in found]


def test_F20_instances_are_placed_where_the_driver_can_have_them() -> None:
    """Since HAMi 2.10, the plugin creates a MIG instance at the position that the pod's annotation
    names. The scheduler chooses the smallest profile with enough memory, and a free position that
    the driver allows."""
    here = ledger(facts(migProfiles=PROFILES))
    for uid, memory_mib in (("p0", 15000), ("p1", 9000), ("p2", 4000), ("p3", 9000)):
        place(here, uid, asking(memory_mib))
    taken: list[int] = []
    for uid, profile in (("p0", "3g.20gb"), ("p1", "2g.10gb"), ("p2", "1g.5gb")):
        ((name, start, size),) = divided(here, uid)
        assert name == profile
        assert start in PLACES[name][2]
        taken += range(start, start + size)
    assert len(taken) == len(set(taken))
    assert [each["gpuUUID"] for each in json.loads(written(here, "p0")[MIG_ALLOCATIONS])] == [
        "GPU-a"
    ]
    assert written(here, "p1")[TO_ALLOCATE] == "GPU-a,NVIDIA,9856,28:;"


def test_F20_an_instance_has_the_memory_that_the_driver_reports() -> None:
    """The memory of a profile is what the plugin registers, not what its name says."""
    here = ledger(facts(migProfiles=PROFILES))
    assert divided(place(here, "p0", asking(4864)), "p0")[0][0] == "1g.5gb"
    assert divided(place(here, "p1", asking(4865)), "p1")[0][0] == "2g.10gb"
    # In the catalogue, two profiles have 9984 MiB, but the plugin offers only one, of 9856 MiB.
    here = ledger(facts(migProfiles=PROFILES))
    assert divided(place(here, "p2", asking(9857)), "p2")[0][0] == "3g.20gb"


def test_F20_large_and_small_instances_fit_next_to_each_other() -> None:
    """Two-slice instances fill the GPU from the start, four-slice instances from the end, as in
    HAMi. So a four-slice instance leaves room for a later two-slice one."""
    here = ledger(facts(migProfiles=PROFILES))
    for uid, memory_mib in (("p0", 9000), ("p1", 20000), ("p2", 9000)):
        place(here, uid, asking(memory_mib))
    starts = [start for uid in ("p0", "p1", "p2") for _, start, _ in divided(here, uid)]
    assert starts == [0, 4, 2]


def test_F20_a_count_means_instances() -> None:
    """A pod that requests two GPUs in the mode `mig` gets two instances of one GPU, as in HAMi."""
    here = place(ledger(facts(migProfiles=PROFILES)), "p", asking(4000, 2))
    assert [name for name, *_ in divided(here, "p")] == ["1g.5gb", "1g.5gb"]


@pytest.mark.parametrize(
    ("profiles", "reason"),
    [
        (PROFILES[:3], "7g.40gb"),
        ([PROFILES[0] | {"placements": [{"start": 0, "size": 1}]}, *PROFILES[1:]], "1g.5gb"),
    ],
)
def test_F20_a_plugin_with_fewer_profiles_is_refused(profiles: list[Any], reason: str) -> None:
    """If the plugin registers fewer profiles or start positions than the catalogue has, the GPU is
    unhealthy, and the reason names the profile."""
    found = offered(migProfiles=profiles)
    assert not found.healthy
    assert reason in found.health_reason


def test_F20_a_model_without_known_profiles_is_refused() -> None:
    """A GPU whose profiles the catalogue lacks is unhealthy, and the reason names its model."""
    found = offered(migProfiles=PROFILES, type="NVIDIA X1")
    assert not found.healthy
    assert "NVIDIA X1" in found.health_reason


def test_F20_a_suffix_of_a_profile_is_another_profiles_name() -> None:
    """Drivers round gigabytes differently. A registered profile is therefore found by the first
    part of its name, as in HAMi."""
    renamed = [*PROFILES[:3], PROFILES[3] | {"name": "7g.39gb"}]
    assert list(PLACES) == [
        each.profile
        for each in offered(migProfiles=renamed).mig_sizes
        if each.profile not in ("1g.10gb", "4g.20gb")
    ]


def test_F20_up_to_2_9_an_instance_is_a_position_in_a_group() -> None:
    """HAMi's plugin up to version 2.9 divides a GPU into the MIG instances of one group of
    `knownMigGeometries`. The pod's annotation has the group and the instance's position in it. A
    GPU keeps its group while pods use it."""
    here = ledger(facts(CONFIG))
    here.play(ConfigurationChanged(by="ada", configuration=CONFIGURATION))
    place(here, "p0", asking(9000))
    place(here, "p1", asking(4000))
    place(here, "p2", asking(9000))
    assert written(here, "p0")[ALLOCATED].startswith("GPU-a[1-0],NVIDIA,")
    assert written(here, "p1")[ALLOCATED].startswith("GPU-a[1-3],NVIDIA,")
    assert written(here, "p2")[ALLOCATED].startswith("GPU-a[1-1],NVIDIA,")


def test_F20_without_groups_a_gpu_of_2_9_is_refused() -> None:
    """On a node with HAMi's plugin 2.9 or older, a MIG GPU is unhealthy until MIG groups
    (`knownMigGeometries`) are configured for it."""
    found = offered()
    assert (found.healthy, found.health_reason) == (False, NO_GROUPS)
    assert offered(CONFIG).healthy


def test_F20_instances_of_2_9_are_read_back() -> None:
    """The devices of a pod that HAMi up to 2.9 placed are found by group and position."""
    notes = {ALLOCATED: "GPU-a[1-3],NVIDIA,5120,14:;"}
    bound = BoundPod(notes, (), ("main",), (), CONFIG)
    found = recover(bound)
    assert found is not None
    card = {"GPU-a": offered(CONFIG)}
    shares = shares_of(found.held, (), card, CONFIG.geometries)
    assert shares is not None
    instance = shares[0].instance
    assert instance is not None
    assert (instance.profile, instance.group, instance.position) == ("1g.5gb", "group2", 3)
    assert recover(bound._replace(config=DialectConfig())) is None  # no groups are configured


@pytest.mark.parametrize("written_id", ["GPU-a[1]", "GPU-a[1-3", "[1-3]", "GPU-a[x-3]"])
def test_F20_an_unreadable_instance_is_none(written_id: str) -> None:
    """If the MIG instance in a device id cannot be read, the pod's shares cannot be read either."""
    notes = {ALLOCATED: f"{written_id},NVIDIA,5120,14:;"}
    assert recover(BoundPod(notes, (), ("main",), (), CONFIG)) is None
