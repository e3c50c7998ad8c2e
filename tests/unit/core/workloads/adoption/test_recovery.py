"""Tests of reading the shares of a bound pod from the annotations that another scheduler wrote."""

import msgspec
import pytest

from apportion.core.workloads.adoption.recovery import recover, shares_of
from apportion.core.workloads.dialects.dialect import BoundPod, Held, records
from apportion.core.workloads.dialects.names import DialectConfig, dialect_config
from apportion_schemas import Ask, MigInstance
from apportion_schemas.configuration import MigCount, MigGeometries, MigGroup
from tests.golden.test_annotations import NAMES, VECTORS, Vector
from tests.support.fleet import A100_40, gpu
from tests.support.pods import ask

UNTOLD = {"plain-under-nvidias-own-plugin": "that plugin is told nothing"}

COUNTS = (("2g.10gb", 10_240, 3), ("1g.5gb", 5120, 1))
GROUP = MigGroup(
    group="mixed",
    geometries=tuple(MigCount(name=name, memory=mib, count=n) for name, mib, n in COUNTS),
)
MIXED = (MigGeometries(models=("A100-SXM4-40GB",), allowed_geometries=(GROUP,)),)


def bound(
    annotations: dict[str, str], *asks: Ask, containers: tuple[str, ...] = ("main",)
) -> BoundPod:
    """Return a pod that another scheduler has bound, with these annotations and device requests."""
    return BoundPod(annotations, (), containers, asks, DialectConfig())


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(UNTOLD)))
def test_what_was_rendered_is_read_back(name: str) -> None:
    """For every dialect, the shares of a placement can be read back from the annotations that were
    written for it."""
    vector = msgspec.json.decode((VECTORS / f"{name}.json").read_bytes(), type=Vector)
    pod = vector.pod
    names = tuple(dict.fromkeys(each.container for each in pod.shape.asks if not each.init))
    init = tuple(dict.fromkeys(each.container for each in pod.shape.asks if each.init))
    found = recover(
        BoundPod(
            vector.annotations, pod.init_containers or init, pod.containers or names,
            pod.shape.asks, dialect_config(vector.configuration),
        )
    )  # fmt: skip
    assert found is not None
    devices = {device.id: device for device in vector.devices}
    known = MIXED if "configured-group" in name else ()
    shares = shares_of(found.held, pod.shape.asks, devices, known) or ()
    borrowers = {ask.container for ask in pod.borrowing}
    own = tuple(share for share in shares if share.container not in borrowers)
    assert own == vector.placed.shares


def test_mig_instances_are_read_with_their_slices() -> None:
    """Recovery reads MIG instances with their slices, which HAMi writes in a separate
    annotation."""
    vector = msgspec.json.decode((VECTORS / "hami-mig.json").read_bytes(), type=Vector)
    found = recover(bound(vector.annotations, containers=("side", "main")))
    assert found is not None
    shares = shares_of(found.held, (), {}) or ()
    assert [share.instance for share in shares] == [s.instance for s in vector.placed.shares]
    assert [share.device for share in shares] == ["GPU-a", "GPU-b"]


@pytest.mark.parametrize("written_mib", [10_240, 9984])
@pytest.mark.parametrize(
    "ids", [{}, {"migUUID": "MIG-1", "gpuInstanceID": 3, "computeInstanceID": 0}]
)
def test_F17_an_instance_is_charged_what_the_driver_makes(
    written_mib: int, ids: dict[str, object]
) -> None:
    """An adopted MIG instance counts with the memory that the driver gives it, even if HAMi's
    annotation has another size."""
    cut = {"containerIndex": 0, "deviceIndex": 0, "gpuUUID": "GPU-a", "profile": "2g.10gb"}
    place = {"placement": {"start": 4, "size": 2}}
    notes = {
        "hami.io/vgpu-devices-allocated": f"GPU-a,NVIDIA,{written_mib},28:;",
        "hami.io/vgpu-mig-allocations": msgspec.json.encode([cut | place | ids]).decode(),
    }
    found = recover(bound(notes, ask(8000)))
    assert found is not None
    card = gpu("GPU-a", model=A100_40, memory_mib=40_960, mode="mig", slots=7)
    (share,) = shares_of(found.held, (ask(8000),), {"GPU-a": card}) or ()
    assert share.memory_mib == 9984
    assert share.instance == MigInstance(profile="2g.10gb", start=4, size=2)


@pytest.mark.parametrize(
    ("containers", "asks", "text", "expected"),
    [
        (("app", "proxy"), "app", "GPU-a,NVIDIA,1000,10:;;", "app"),  # up to 2.8
        (("a", "b"), "b", ";GPU-a,NVIDIA,1000,10:;", "b"),
        (("app", "proxy"), "app", ";GPU-a,NVIDIA,1000,10:;;", "app"),  # 2.9
        (("a", "b"), "b", ";;GPU-a,NVIDIA,1000,10:;", "b"),
        (("a", "b"), "b", "GPU-a,NVIDIA,1000,10:;", "b"),  # 2.10
    ],
)
def test_F17_a_pod_with_an_init_container_in_each_version_of_hami(
    containers: tuple[str, ...], asks: str, text: str, expected: str
) -> None:
    """A share belongs to the container that requests it, even if the annotation leaves out init
    containers or containers without devices."""
    notes = {"hami.io/vgpu-devices-allocated": text}
    made = bound(notes, ask(1000, container=asks), containers=containers)
    found = recover(made._replace(init_containers=("istio-init",)))
    assert found is not None
    assert [each.container for each in found.held] == [expected]


def test_F17_hami_2_5_names_no_device_of_a_container_without_one() -> None:
    """HAMi 2.5 writes an empty record for a container without devices, such as a sidecar."""
    assert list(records("GPU-a,NVIDIA,1000,10:")) == [("GPU-a", 1000, 10)]
    assert list(records(",,0,0:")) == []


def test_F17_our_annotations_name_no_instance_by_half() -> None:
    """Apportion's annotations contain none of HAMi's three ids of a MIG instance, because HAMi
    refuses an instance with only some of them."""
    vector = msgspec.json.decode((VECTORS / "hami-mig.json").read_bytes(), type=Vector)
    for entry in msgspec.json.decode(vector.annotations["hami.io/vgpu-mig-allocations"]):
        assert entry.keys() == {
            "containerIndex", "deviceIndex", "gpuUUID", "profile", "placement",
        }  # fmt: skip


def test_an_instance_in_a_group_needs_the_cards_model() -> None:
    """Volcano names a MIG instance by group and position. It can be read only if the device's model
    is known and the group has that position."""
    written = "GPU-a[group1-{}],NVIDIA,3000,0:"
    card = gpu("GPU-a", model=A100_40, memory_mib=40960, mode="mig", slots=7)
    held = Held("main", "nvidia", "GPU-a", -1, 3000, 0, place=("group1", 0))
    assert shares_of((held,), (), {"GPU-a": card}, MIXED) is None
    for position, start in ((0, 0), (6, 6), (7, None)):
        found = recover(bound({"volcano.sh/vgpu-ids-new": written.format(position)}, ask(3000)))
        assert found is not None
        assert shares_of(found.held, (), {}) is None
        shares = shares_of(found.held, (), {"GPU-a": card})
        if start is None:
            assert shares is None
            continue
        (share,) = shares or ()
        assert share.memory_mib == 4864
        assert share.instance == MigInstance(profile="1g.5gb", start=start, size=1)


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"hami.io/vgpu-devices-allocated": ""},
        {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,many,50:;"},
        {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,50:;"},
        {"hami.io/vgpu-devices-allocated": "GPU-a[1-0],NVIDIA,5,50:;"},
        {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,5,5:;GPU-b,NVIDIA,5,5:;"},
        {"hami.io/vgpu-devices-allocated": "a,NVIDIA,5,5:;", "hami.io/vgpu-mig-allocations": "{"},
        {"volcano.sh/vgpu-ids-new": "GPU-a,NVIDIA,5,5:;GPU-b,NVIDIA,5,5:"},
        {"volcano.sh/vgpu-ids-new": "GPU-a[group1-x],NVIDIA,5,5:"},
        {"volcano.sh/vgpu-ids-new": "GPU-a[group1],NVIDIA,5,5:"},
        {"volcano.sh/vgpu-ids-new": "GPU-a[group1-0,NVIDIA,5,5:"},
        {"volcano.sh/vgpu-ids-new": "[group1-0],NVIDIA,5,5:"},
        {"volcano.sh/gpu-index": "0"},
        {"volcano.sh/gpu-index": "0,1", "volcano.sh/predicate-time": "1"},
        {"docker.com/predicate-node": "n1"},
    ],
)  # fmt: skip
def test_what_cannot_be_understood_whole_is_not_understood(annotations: dict[str, str]) -> None:
    """A pod's shares cannot be read (the result is None) if any part of its annotations is
    incomplete or malformed.

    The result is also None if a device is requested but not yet allocated."""
    assert recover(bound(annotations, ask(5))) is None


def test_each_container_of_a_vcuda_pod_is_read_without_a_node() -> None:
    """gpu-manager alone writes no node. The GPUs of each container are read, up to the largest
    number of containers."""
    notes = {"tencent.com/predicate-gpu-idx-17": "1"}
    asking = msgspec.structs.replace(ask(5), container="c17")
    found = recover(bound(notes, asking, containers=tuple(f"c{at}" for at in range(18))))
    assert found is not None
    assert [(each.container, each.number) for each in found.held] == [("c17", 1)]


def test_a_number_needs_the_nodes_devices() -> None:
    """A share that names its device by number can be read only after the node has reported its
    devices."""
    held = (Held("main", "nvidia", number=3),)
    assert shares_of(held, (ask(100),), {}) is None
    shares = shares_of(held, (ask(100),), {"g3": gpu("g3")})
    assert [(share.device, share.memory_mib) for share in shares or ()] == [("g3", 100)]


def test_an_id_is_enough_where_the_amounts_are_written() -> None:
    """A share with a device id and amounts can be read even before the node has reported its
    devices."""
    shares = shares_of((Held("main", "nvidia", "g9", -1, 500, 20),), (), {})
    assert [(share.device, share.memory_mib, share.cores) for share in shares or ()] == [
        ("g9", 500, 20)
    ]
