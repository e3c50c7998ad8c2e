"""NPUs are shared in software, by a library in each container. Before a container starts, the agent
creates the files that the library needs."""

from pathlib import Path

from apportion_schemas import NodeReported, Share
from tests.support.facts import Facts
from tests.support.fake_kubelet import FakeKubelet
from tests.support.nats import Bus
from tests.support.processes import ServiceProcess

NODE = "n1"
NPU = "huawei.com/Ascend310P"


async def test_a_container_has_its_part_of_an_npu_and_its_folders(
    bus: Bus, kubelet: FakeKubelet, facts: Facts, tmp_path: Path
) -> None:
    """A container gets its part of an NPU, two folders that any user may write, and a read-only
    library."""
    options = ["--node", NODE, "--simulate", "1xAscend310P:hami-core"]
    options += ["--kubelet", str(kubelet.folder), "--cdi", str(kubelet.cdi)]
    options += ["--state", str(kubelet.folder / "state"), "--run", str(kubelet.folder / "run")]
    options += ["--npu-library", str(tmp_path)]
    async with ServiceProcess("agent", bus.server.url_for("agent"), *options) as agent:
        await agent.ready()
        (report, *_) = await facts.count(NodeReported, 1)
        await kubelet.offered(NPU, report.devices[0].slots)
        share = Share(container="main", device=report.devices[0].id, memory_mib=5000, cores=40)
        await facts.hold("a", NODE, share)
        await kubelet.admit("a", "a", NPU, {"main": 1})
        env = await kubelet.begin("a", "main")
        (edits,) = kubelet.edits(kubelet.ids("a", "main"))
    assert {name: value for name, value in env.items() if "NPU" in name} == {
        "NPU_MEM_QUOTA": "5000",
        "NPU_PRIORITY": "40",
        "NPU_GLOBAL_SHM_PATH": "/hami-shared-region/0_global_registry",
        "NPU_LOCAL_SHM_PATH": "/hami-vnpu-shmem/vnpu_local_shmem",
    }
    assert env["ASCEND_VISIBLE_DEVICES"] == "0"
    homes = {each["containerPath"]: Path(each["hostPath"]) for each in edits["mounts"]}
    for folder in ("/hami-shared-region", "/hami-vnpu-shmem"):
        assert homes[folder].stat().st_mode & 0o777 == 0o777
    assert homes["/hami-vnpu-core"] == tmp_path
