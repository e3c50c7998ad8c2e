"""Tests of grants for a process on the host, where nothing can be mounted."""

import pytest
from msgspec import structs

from apportion.core.grants import Edits, Grant, GrantRefused, Held, MadeInstance, Node, grant
from apportion.core.grants.on_host import on_host, unheld
from apportion_schemas import Device, Share
from apportion_schemas.placement import MigInstance

FIRST = Device(
    id="GPU-1", index=0, family="nvidia", model="NVIDIA A100", memory_mib=40_960,
    physical_memory_mib=40_960,
)  # fmt: skip
SECOND = structs.replace(FIRST, id="GPU-2", index=1)
BOTH = {FIRST.id: FIRST, SECOND.id: SECOND}
NODE = Node(library="/opt/apportion/libvgpu.so", preload="/opt/apportion/ld.so.preload")
BARE = Node()


def granted(*devices: str, cores: int = 30, node: Node = NODE) -> Grant:
    """Return the environment that a host process gets for these devices. Its share is 1000 MiB of
    the first device and 2000 MiB of the second."""
    shares = [
        Share(container="run", device=device, memory_mib=1000 * number, cores=cores)
        for number, device in enumerate(devices, 1)
    ]
    return on_host(grant(Held.of("uid-1", "run", shares, BOTH), node))


def test_paths_are_those_of_the_node_and_the_loader_has_the_library() -> None:
    """A process on the host gets host paths and HAMi-core's library, and CUDA sees only its own
    device."""
    found = granted("GPU-1")
    assert found.edits == Edits(
        {
            "CUDA_DEVICE_MEMORY_LIMIT_0": "1000m",
            "CUDA_DEVICE_SM_LIMIT": "30",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/var/lib/apportion/shares/uid-1_run/share.cache",
            "GPU_CORE_UTILIZATION_POLICY": "default",
            "LIBCUDA_LOG_LEVEL": "1",
            "CUDA_VISIBLE_DEVICES": "GPU-1",
            "LD_PRELOAD": "/opt/apportion/libvgpu.so",
        }
    )
    assert found.region is not None
    assert (found.region.devices, found.region.memory) == (("GPU-1",), (1000 << 20,))


def test_limits_stand_where_cuda_counts_the_cards() -> None:
    """HAMi-core's limits are numbered from 0, as CUDA numbers the devices that a process sees."""
    alone, two = granted("GPU-2"), granted("GPU-1", "GPU-2")
    assert alone.edits.env["CUDA_VISIBLE_DEVICES"] == "GPU-2"
    assert alone.edits.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
    assert two.edits.env["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2,-1"
    assert two.edits.env["CUDA_DEVICE_MEMORY_LIMIT_1"] == "2000m"
    assert two.region is not None
    assert two.region.memory == (1000 << 20, 2000 << 20)


def test_instances_and_whole_cards_are_shown_by_their_ids() -> None:
    """A process on the host sees MIG instances and whole devices by id. It gets neither HAMi-core's
    library nor a usage region."""
    instance = MigInstance(profile="1g.5gb", start=0, size=1)
    card = structs.replace(FIRST, mode="mig")
    part = Share("run", card.id, 5000, 0, instance=instance)
    made = {part: MadeInstance("MIG-7")}
    cut = grant(Held.of("uid-1", "run", [part], {card.id: card}, instances=made), NODE)
    assert on_host(cut) == Grant(Edits({"CUDA_VISIBLE_DEVICES": "MIG-7"}))
    whole = {each.id: structs.replace(each, mode="exclusive") for each in (FIRST, SECOND)}
    both = [Share("run", device, 40_960, 0) for device in whole]
    shown = on_host(grant(Held.of("uid-1", "run", both, whole), NODE)).edits.env
    assert shown == {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}


def test_what_only_containers_can_have_is_refused_by_name() -> None:
    """Shares by vNPU template or MPS are refused for a process on the host, because they need a
    container."""
    npu = structs.replace(FIRST, id="NPU-1", family="ascend", mode="vnpu")
    share = Share("run", "NPU-1", 1000, 0, template="vir02")
    with pytest.raises(GrantRefused, match="vNPU works only in a container"):
        on_host(grant(Held.of("uid-1", "run", [share], {npu.id: npu}), NODE))
    card = structs.replace(FIRST, mode="mps")
    share = Share("run", card.id, 1000, 20)
    with pytest.raises(GrantRefused, match="MPS works only in a container"):
        on_host(grant(Held.of("uid-1", "run", [share], {card.id: card}), NODE))


@pytest.mark.parametrize("library", ["/opt/my own/libvgpu.so", "/opt/a:b/libvgpu.so"])
def test_a_library_that_the_loader_would_not_find_is_refused(library: str) -> None:
    """A library path that the dynamic loader would not find is refused, because the process would
    run without limits."""
    with pytest.raises(GrantRefused, match="--library"):
        granted("GPU-1", node=structs.replace(NODE, library=library))


def test_who_is_not_held_is_told() -> None:
    """The caller is warned about every limit of a host process that cannot be enforced.

    Without HAMi-core's library, no limit can be enforced. With the library, a core limit can be
    enforced only on the node's first device."""
    assert unheld(granted("GPU-1").edits, BOTH) == ""
    assert unheld(granted("GPU-1", "GPU-2").edits, BOTH) == ""
    assert "--library" in unheld(granted("GPU-1", node=BARE).edits, BOTH)
    assert "cores" in unheld(granted("GPU-2").edits, BOTH)
    assert unheld(granted("GPU-2", cores=0).edits, BOTH) == ""
    assert unheld(Edits({"CUDA_VISIBLE_DEVICES": "MIG-7"}), BOTH) == ""


def test_so_is_who_starts_a_container() -> None:
    """A container's core limit works on every device, because its devices are numbered from 0.

    The caller is therefore warned only if HAMi-core's library is missing."""
    share = Share("run", "GPU-2", 1000, 30)
    held = Held.of("uid-1", "run", [share], BOTH)
    assert unheld(grant(held, NODE).edits, BOTH) == ""
    assert "--library" in unheld(grant(held, BARE).edits, BOTH)
