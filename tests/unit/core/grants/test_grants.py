"""Tests of a container's environment and mounts in each sharing mode.

They must equal those of the device plugins that Apportion replaces."""
# ruff: noqa: S108 - the paths are HAMi-core's and CUDA's own

import pytest
from msgspec import structs

from apportion.core.grants import (
    DeviceNode,
    Edits,
    Grant,
    GrantRefused,
    Held,
    MadeInstance,
    Mount,
    Node,
    grant,
)
from apportion_schemas import Device, Share
from apportion_schemas.placement import MigInstance

FIRST = Device(
    id="GPU-1", index=0, family="nvidia", model="NVIDIA A100", memory_mib=40_960,
    physical_memory_mib=40_960,
)  # fmt: skip
SECOND = structs.replace(FIRST, id="GPU-2", index=1)
NODE = Node(library="/opt/apportion/libvgpu.so", preload="/opt/apportion/ld.so.preload")


def granted(
    *shares: Share, node: Node = NODE, devices: tuple[Device, ...] = (FIRST, SECOND), **more: object
) -> Grant:
    """Return the environment and mounts that the container `train` gets for these shares."""
    known = {device.id: device for device in devices}
    return grant(Held.of("uid-1", "train", shares, known, **more), node)  # type: ignore[arg-type]


def share(device: str = "GPU-1", memory_mib: int = 3000, cores: int = 30, **more: object) -> Share:
    return Share(container="train", device=device, memory_mib=memory_mib, cores=cores, **more)  # type: ignore[arg-type]


def test_hami_core_has_the_environment_of_hamis_plugin() -> None:
    """A container gets the environment that HAMi's plugin (`server.go`) sets. Memory limits are
    numbered by device index; the core limit is the first device's.

    Only the core policy may differ: see
    `test_F18_a_container_declines_hami_core_only_where_it_may`."""
    found = granted(share("GPU-2", 1000, 20), share("GPU-1", 2000, 30))
    assert found.edits.env == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "2000m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "1000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/share.cache",
        "GPU_CORE_UTILIZATION_POLICY": "default",
        "LIBCUDA_LOG_LEVEL": "1",
    }
    assert found.edits.mounts == (
        Mount("/var/lib/apportion/shares/uid-1_train", "/usr/local/vgpu"),
        Mount("/var/lib/apportion/shares/uid-1_train", "/tmp/vgpulock"),
        Mount("/var/lib/apportion/shares/uid-1_train/share.cache", "/tmp/cudevshr.cache"),
        Mount("/opt/apportion/libvgpu.so", "/usr/local/vgpu/libvgpu.so", read_only=True),
        Mount("/opt/apportion/ld.so.preload", "/etc/ld.so.preload", read_only=True),
    )


def test_the_region_has_the_limits_before_the_container_has_a_process() -> None:
    """HAMi-core's usage region contains the limits before the container starts. A container that
    clears its environment therefore keeps its limits."""
    region = granted(share(memory_mib=3000, cores=30)).region
    assert region is not None
    assert region.path == "/var/lib/apportion/shares/uid-1_train/share.cache"
    assert (region.devices, region.memory, region.cores, region.priority) == (
        ("GPU-1",), (3000 << 20,), (30,), 1,
    )  # fmt: skip


def test_D5_what_a_container_says_of_itself_stands() -> None:
    """A container's own HAMi-core settings, such as its core policy, take precedence."""
    said = {
        "GPU_CORE_UTILIZATION_POLICY": "force",
        "ACTIVE_OOM_KILLER": "false",
        "LIBCUDA_LOG_LEVEL": "4",
        "CUDA_TASK_PRIORITY": "0",
    }
    found = granted(share(), controls=said, node=structs.replace(NODE, core_limit=False))
    assert found.edits.env.items() >= said.items()
    assert found.region is not None
    assert found.region.priority == 0


def test_without_core_limits_nobody_is_held_to_cores() -> None:
    """With `disableCoreLimit`, a container has no core limit unless it sets a policy itself."""
    env = granted(share(), node=structs.replace(NODE, core_limit=False)).edits.env
    assert env["GPU_CORE_UTILIZATION_POLICY"] == "disable"


FREEING = {"CUDA_DISABLE_CONTROL": "True", "GPU_CORE_UTILIZATION_POLICY": "disable"}


def test_F18_a_container_declines_hami_core_only_where_it_may() -> None:
    """A container can switch HAMi-core off only with permission. Otherwise the library stays
    mounted, and the policy `disable` is replaced."""
    found = granted(share(), controls=FREEING)
    assert "/etc/ld.so.preload" in {mount.container_path for mount in found.edits.mounts}
    assert found.edits.env["GPU_CORE_UTILIZATION_POLICY"] == "default"
    assert found.edits.env == granted(share()).edits.env
    free = granted(share(), controls=FREEING, may_be_unheld=True)
    assert "/etc/ld.so.preload" not in {mount.container_path for mount in free.edits.mounts}
    assert free.edits.env["GPU_CORE_UTILIZATION_POLICY"] == "disable"
    force = granted(share(), controls={"GPU_CORE_UTILIZATION_POLICY": "force"})
    assert force.edits.env["GPU_CORE_UTILIZATION_POLICY"] == "force"


def test_a_container_that_declines_hami_core_does_not_load_it() -> None:
    """If a container with permission sets `CUDA_DISABLE_CONTROL=true`, HAMi-core's library is not
    mounted or preloaded."""
    found = granted(share(), controls={"CUDA_DISABLE_CONTROL": "true"}, may_be_unheld=True)
    assert [mount.container_path for mount in found.edits.mounts] == [
        "/usr/local/vgpu", "/tmp/vgpulock",
    ]  # fmt: skip
    assert "CUDA_DISABLE_CONTROL" not in found.edits.env


def test_a_card_that_is_offered_larger_than_it_is_is_said_to_be() -> None:
    """If a device is offered with more memory than it physically has, its containers get
    `CUDA_OVERSUBSCRIBE`."""
    larger = structs.replace(FIRST, memory_mib=2 * FIRST.physical_memory_mib)
    assert granted(share(), devices=(larger,)).edits.env["CUDA_OVERSUBSCRIBE"] == "true"
    assert "CUDA_OVERSUBSCRIBE" not in granted(share()).edits.env


def test_mps_gives_each_client_its_own_part() -> None:
    """Under MPS, a container is limited to the memory and the percentage of threads of its own
    share. NVIDIA's plugin supports only equal shares."""
    card = structs.replace(FIRST, mode="mps")
    found = granted(share(memory_mib=8000, cores=60), devices=(card,))
    assert found.edits.env == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-1",
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8000M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "60",
    }
    assert (found.daemons, found.region) == (("GPU-1",), None)


def test_a_process_has_one_mps_daemon() -> None:
    """A container with two devices under MPS is refused, because a process can use only one MPS
    daemon."""
    cards = (structs.replace(FIRST, mode="mps"), structs.replace(SECOND, mode="mps"))
    with pytest.raises(GrantRefused, match="has 2 GPUs under MPS"):
        granted(share("GPU-1"), share("GPU-2"), devices=cards)


def test_mig_shows_the_instances_that_were_made() -> None:
    """A container sees its MIG instances, in the order of their slices. A share whose instance does
    not exist yet is refused."""
    card = structs.replace(FIRST, mode="mig")
    low = share(instance=MigInstance(profile="1g.5gb", start=0, size=1))
    high = share(instance=MigInstance(profile="1g.5gb", start=4, size=1))
    node, first, second = (DeviceNode(f"/dev/{name}", 1, at) for at, name in enumerate("nab"))
    made = {low: MadeInstance("MIG-a", (node, first)), high: MadeInstance("MIG-b", (node, second))}
    assert granted(high, low, devices=(card,), instances=made) == Grant(
        Edits(
            {"NVIDIA_VISIBLE_DEVICES": "MIG-a,MIG-b"},
            device_nodes=(node, first, second),
            cards=(card.id,),
        )
    )
    with pytest.raises(GrantRefused, match="does not exist yet"):
        granted(low, devices=(card,))


def test_a_whole_card_is_only_shown() -> None:
    """A container sees its whole device, without limits."""
    card = structs.replace(FIRST, mode="exclusive")
    assert granted(share(), devices=(card,)).edits.env == {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}


def test_ascend_is_shown_by_index_and_cut_by_template() -> None:
    """A container sees Ascend NPUs by index. A container with a vNPU template may have only one
    NPU; without a template it may have several."""
    npus = tuple(
        structs.replace(FIRST, id=f"NPU-{at}", index=at, mode="vnpu", family="ascend310p")
        for at in (3, 5)
    )
    cut = granted(share("NPU-5", template="vir02"), devices=npus)
    assert cut.edits.env == {"ASCEND_VISIBLE_DEVICES": "5", "ASCEND_VNPU_SPECS": "vir02"}
    whole = granted(share("NPU-3"), share("NPU-5"), devices=npus)
    assert whole.edits.env == {"ASCEND_VISIBLE_DEVICES": "3,5"}
    with pytest.raises(GrantRefused, match=r"a part of one \(vir02\)"):
        granted(share("NPU-3"), share("NPU-5", template="vir02"), devices=npus)


def soft_npus(*indexes: int) -> tuple[Device, ...]:
    return tuple(
        structs.replace(FIRST, id=f"NPU-{at}", index=at, family="ascend910b3") for at in indexes
    )


def test_C4_an_npu_that_is_split_softly_has_the_environment_of_hamis_plugin() -> None:
    """A container with part of a soft-split NPU gets the environment and mounts of HAMi's
    `hami-vnpu-core`."""
    node = structs.replace(NODE, npu_library="/usr/local/hami-vnpu-core")
    found = granted(share("NPU-3", 28_672, 40), devices=soft_npus(3), node=node)
    assert found.edits == Edits(
        {
            "ASCEND_VISIBLE_DEVICES": "3",
            "NPU_MEM_QUOTA": "28672",
            "NPU_PRIORITY": "40",
            "NPU_GLOBAL_SHM_PATH": "/hami-shared-region/3_global_registry",
            "NPU_LOCAL_SHM_PATH": "/hami-vnpu-shmem/vnpu_local_shmem",
        },
        (
            Mount("/run/apportion/npus", "/hami-shared-region"),
            Mount("/var/lib/apportion/shares/uid-1_train", "/hami-vnpu-shmem"),
            Mount("/usr/local/hami-vnpu-core", "/hami-vnpu-core", read_only=True),
            Mount("/usr/local/hami-vnpu-core/ld.so.preload", "/etc/ld.so.preload", read_only=True),
        ),
    )
    assert found.folders == ("/run/apportion/npus", "/var/lib/apportion/shares/uid-1_train")
    assert (found.region, found.daemons) == (None, ())


def test_several_npus_have_the_part_of_the_first() -> None:
    """If a container has parts of several NPUs, the first NPU's amounts apply to all, as in HAMi.

    If the container's share has no cores, `NPU_PRIORITY` is not set."""
    found = granted(share("NPU-5", 1000, 0), share("NPU-3", 2000, 0), devices=soft_npus(3, 5))
    assert found.edits.env == {
        "ASCEND_VISIBLE_DEVICES": "3,5",
        "NPU_MEM_QUOTA": "2000",
        "NPU_GLOBAL_SHM_PATH": "/hami-shared-region/3_global_registry",
        "NPU_LOCAL_SHM_PATH": "/hami-vnpu-shmem/vnpu_local_shmem",
    }
    assert [mount.container_path for mount in found.edits.mounts] == [
        "/hami-shared-region", "/hami-vnpu-shmem",
    ]  # fmt: skip


def test_a_whole_npu_is_shown_by_its_index() -> None:
    """A container sees a whole NPU (mode `exclusive`) by its index."""
    npus = tuple(structs.replace(npu, mode="exclusive") for npu in soft_npus(3))
    assert granted(share("NPU-3"), devices=npus).edits == Edits({"ASCEND_VISIBLE_DEVICES": "3"})


def test_what_is_not_there_is_refused_by_name() -> None:
    """A grant fails if the container has no share, or if a device is missing.

    It also fails if the container's devices have different modes."""
    with pytest.raises(GrantRefused, match="has no share on this node"):
        grant(Held.of("uid-1", "other", [share()], {"GPU-1": FIRST}), NODE)
    with pytest.raises(GrantRefused, match="GPU-9, which is not on this node"):
        granted(share("GPU-9"))
    with pytest.raises(GrantRefused, match="hami-core, mps"):
        granted(
            share("GPU-1"), share("GPU-2"), devices=(FIRST, structs.replace(SECOND, mode="mps"))
        )
