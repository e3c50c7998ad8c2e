"""A container gets what the ledger decided, in whatever order pods start and whatever is killed."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from msgspec import structs

from apportion.agent.kubelet import kubelet_pb2 as pb
from apportion.agent.shares.regions import SharedFile
from apportion.core.grants.region import Region
from apportion_schemas import (
    AllocationFailed,
    Device,
    DeviceHealthChanged,
    NodeReported,
    PlacementVoided,
    PodBound,
    PodPlaced,
    Score,
    Share,
    SharesAllocated,
)
from tests.support.facts import Facts
from tests.support.fake_kubelet import FakeKubelet, Refused, environment
from tests.support.nats import Bus
from tests.support.polling import until
from tests.support.processes import ServiceProcess

NODE = "n1"
GPU = "nvidia.com/gpu"


@pytest.fixture
async def agent(bus: Bus, kubelet: FakeKubelet, facts: Facts) -> AsyncIterator[ServiceProcess]:
    """Yield an agent with two GPUs that is registered with the kubelet."""
    options = ["--node", NODE, "--simulate", "2xT4", "--kubelet", str(kubelet.folder)]
    options += ["--cdi", str(kubelet.cdi), "--state", str(kubelet.folder / "state")]
    async with ServiceProcess("agent", bus.server.url_for("agent"), *options) as running:
        await running.ready()
        await facts.count(NodeReported, 1)
        await kubelet.offered(GPU, 20)
        yield running


def cards(facts: Facts) -> tuple[Device, ...]:
    report: NodeReported = facts.of(NodeReported)[0]
    return report.devices


def share(device: Device, memory_mib: int, container: str = "main", cores: int = 30) -> Share:
    return Share(container=container, device=device.id, memory_mib=memory_mib, cores=cores)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
async def test_B1_each_gets_its_own_share_in_either_order(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts, order: tuple[str, str]
) -> None:
    """Two pods that the kubelet cannot tell apart get their own shares when they start, in either
    order."""
    assert agent.running
    first, second = cards(facts)
    await facts.hold("a", NODE, share(first, 700))
    await facts.hold("b", NODE, share(second, 1300))
    assert facts.of(SharesAllocated) == []
    for pod in order:
        answers = await kubelet.admit(pod, pod, GPU, {"main": 1})
        (slot,) = kubelet.ids(pod, "main")
        assert dict(answers["main"].env) == {
            "NVIDIA_VISIBLE_DEVICES": f"apportion.dev/share={slot}"
        }
    envs = {pod: await kubelet.begin(pod, "main") for pod in reversed(order)}
    assert envs["a"]["NVIDIA_VISIBLE_DEVICES"] == first.id
    assert envs["a"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "700m"
    assert envs["b"]["NVIDIA_VISIBLE_DEVICES"] == second.id
    assert envs["b"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1300m"
    allocated = await facts.count(SharesAllocated, 2)
    assert {event.pod: event.devices for event in allocated} == {
        "a": (first.id,), "b": (second.id,),
    }  # fmt: skip


async def test_the_file_of_a_slot_is_removed_when_its_pod_has_ended(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """When a pod ends, the agent removes the CDI file of the pod's device slot. Otherwise another
    container could mount the pod's HAMi-core region."""
    assert agent.running
    for pod, card in zip("ab", cards(facts), strict=True):
        await facts.hold(pod, NODE, share(card, 700))
        await kubelet.admit(pod, pod, GPU, {"main": 1})
        await kubelet.begin(pod, "main")
    files = {pod: f"apportion-{kubelet.ids(pod, 'main')[0]}.json" for pod in "ab"}
    assert {path.name for path in kubelet.cdi.iterdir()} == set(files.values())
    kubelet.end("a")

    async def removed() -> bool:
        return {path.name for path in kubelet.cdi.iterdir()} == {files["b"]}

    await until(removed, "the file of the ended pod's slot to be removed")


async def test_the_region_is_there_before_the_container(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """HAMi-core's region file, with the ledger's limits, exists before the container starts. The
    folder with that file is mounted into the container."""
    assert agent.running
    await facts.hold("a", NODE, share(cards(facts)[0], 700))
    await kubelet.admit("a", "a", GPU, {"main": 1})
    await kubelet.begin("a", "main")
    (edits,) = kubelet.edits(kubelet.ids("a", "main"))
    home = next(m for m in edits["mounts"] if m["containerPath"] == "/usr/local/vgpu")
    with SharedFile(Path(home["hostPath"]) / "share.cache") as file:
        assert Region(file).memory == (700 << 20,)


async def test_a_running_container_is_held_to_what_its_pod_was_resized_to(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """A resize changes the limits of a running container at once, or when the agent returns. A
    restarted container gets the new limits too."""
    card = cards(facts)[0]
    await facts.hold("a", NODE, share(card, 700))
    await kubelet.admit("a", "a", GPU, {"main": 1})
    await kubelet.begin("a", "main")
    (edits,) = kubelet.edits(kubelet.ids("a", "main"))
    home = next(m for m in edits["mounts"] if m["containerPath"] == "/usr/local/vgpu")

    async def held_to(memory_mib: int, cores: int) -> None:
        def held() -> bool:
            region = Region(file)
            return (region.memory, region.cores) == ((memory_mib << 20,), (cores,))

        with SharedFile(Path(home["hostPath"]) / "share.cache") as file:
            await facts.until(held, f"the region to say {memory_mib} MiB and {cores} %")

    await held_to(700, 30)
    await facts.resize("a", NODE, share(card, 1300, cores=60))
    await held_to(1300, 60)
    await agent.kill()
    await facts.resize("a", NODE, share(card, 500, cores=60))
    await agent.start()
    await agent.ready()
    await held_to(500, 60)
    await kubelet.offered(GPU, 20)
    assert (await kubelet.begin("a", "main"))["CUDA_DEVICE_MEMORY_LIMIT_0"] == "500m"


async def test_a_start_waits_for_its_binding(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """A container start waits for the pod's binding in the ledger instead of failing."""
    assert agent.running
    card = cards(facts)[0]
    await facts.hold("a", NODE, share(card, 700), bound=False)
    await kubelet.admit("a", "a", GPU, {"main": 1})
    start = asyncio.create_task(kubelet.begin("a", "main"))
    done, _ = await asyncio.wait([start], timeout=0.3)
    assert not done
    await facts.write(PodBound(pod="a", node=NODE, attempt=1))
    assert (await start)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "700m"


async def test_a_container_starts_again_after_anything_was_killed(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """After a kill of the container, the agent or the kubelet, the container gets the same share,
    recorded once."""
    card = cards(facts)[1]
    await facts.hold("a", NODE, share(card, 700))
    await kubelet.admit("a", "a", GPU, {"main": 1})
    before = await kubelet.begin("a", "main")
    assert await kubelet.begin("a", "main") == before
    await agent.kill()
    await agent.start()
    await agent.ready()
    await kubelet.offered(GPU, 20)
    assert await kubelet.begin("a", "main") == before
    await kubelet.stop()
    await kubelet.start()
    await kubelet.offered(GPU, 20)
    assert await kubelet.begin("a", "main") == before
    assert len(await facts.count(SharesAllocated, 1)) == 1


async def test_init_containers_have_what_the_next_one_has(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """An init container gets the share of the main container, because the kubelet gives both
    containers the same device slot."""
    assert agent.running
    card = cards(facts)[0]
    await facts.hold("a", NODE, share(card, 2000), borrowed=(share(card, 500, "fetch"),))
    await kubelet.admit("a", "a", GPU, {"fetch": 1, "main": 1}, init="fetch")
    assert kubelet.ids("a", "fetch") == kubelet.ids("a", "main")
    for container in ("fetch", "main"):
        env = await kubelet.begin("a", container)
        assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2000m"


async def test_containers_of_one_pod_have_each_their_own(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """Each container of a pod gets its own devices and limits."""
    assert agent.running
    first, second = cards(facts)
    await facts.hold(
        "a", NODE, share(first, 500, "one"), share(first, 900, "two"), share(second, 901, "two")
    )
    await kubelet.admit("a", "a", GPU, {"one": 1, "two": 2})
    one = await kubelet.begin("a", "one")
    two = await kubelet.begin("a", "two")
    assert one["NVIDIA_VISIBLE_DEVICES"] == first.id
    assert two["NVIDIA_VISIBLE_DEVICES"] == f"{first.id},{second.id}"
    assert (two["CUDA_DEVICE_MEMORY_LIMIT_0"], two["CUDA_DEVICE_MEMORY_LIMIT_1"]) == (
        "900m", "901m",
    )  # fmt: skip
    assert environment(kubelet.edits(kubelet.ids("a", "two"))) == two


async def test_what_cannot_be_given_is_told_once_and_given_later(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """If a share's device is missing, every start of the container fails. The ledger records the
    failure only once."""
    assert agent.running
    gone = Device(
        id="GPU-gone", index=9, family="nvidia", model="T", memory_mib=900, physical_memory_mib=900
    )
    (report,) = facts.of(NodeReported)
    anothers = structs.replace(report, devices=(*report.devices, gone))
    await facts.write(anothers, basis=facts.revision)  # an earlier life's would be answered
    await facts.hold("a", NODE, share(gone, 700))
    await kubelet.admit("a", "a", GPU, {"main": 1})
    for _ in range(2):
        with pytest.raises(Refused, match="GPU-gone is not on node n1"):
            await kubelet.begin("a", "main")
    (failed,) = await facts.count(AllocationFailed, 1)
    assert "GPU-gone" in failed.message
    assert facts.of(SharesAllocated) == []


async def test_a_card_that_fails_under_a_pod_takes_nothing_back(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts, bus: Bus
) -> None:
    """The agent does not start a container on a failed GPU. A pod that was allocated the GPU before
    it failed stays allocated in the ledger."""
    assert agent.running
    card = cards(facts)[0]
    await facts.hold("a", NODE, share(card, 700))
    await kubelet.admit("a", "a", GPU, {"main": 1})
    await kubelet.begin("a", "main")
    await facts.count(SharesAllocated, 1)
    order = json.dumps({"verb": "fail", "device": card.id, "reason": "fan"}).encode()
    await (await bus.connect("operator")).request(f"apportion.command.agent.{NODE}", order, 30)
    await facts.count(DeviceHealthChanged, 1)
    with pytest.raises(Refused, match="is unhealthy: fan"):
        await kubelet.begin("a", "main")
    assert facts.of(AllocationFailed) == []


async def test_what_the_ledger_took_back_is_not_given(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """The agent starts no container for a placement that the ledger withdrew. Once the pod is
    placed again, its container gets the new share."""
    assert agent.running
    first, second = cards(facts)
    await facts.hold("a", NODE, share(first, 700))
    await facts.write(
        PlacementVoided(pod="a", attempt=1, node=NODE, reason="test", previous=facts.chain(NODE))
    )
    await kubelet.admit("a", "a", GPU, {"main": 1})
    start = asyncio.create_task(kubelet.begin("a", "main"))
    placed = PodPlaced(
        pod="a", namespace="default", name="a", attempt=2, node=NODE,
        shares=(share(second, 1300),), score=Score(node=NODE, total=1.0),
        previous=facts.chain(NODE),
    )  # fmt: skip
    await facts.write(placed)
    await facts.write(PodBound(pod="a", node=NODE, attempt=2))
    assert (await start)["NVIDIA_VISIBLE_DEVICES"] == second.id


async def test_another_pods_name_on_a_slot_is_refused(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """The agent refuses a device slot if the kubelet and the ledger assign it to different pods."""
    assert agent.running
    await facts.hold("a", NODE, share(cards(facts)[0], 700))
    await kubelet.admit("a", "someone-else", GPU, {"main": 1})
    with pytest.raises(Refused, match=r"default/someone-else in the kubelet, but default/a"):
        await kubelet.begin("a", "main")


async def test_a_kubelet_that_comes_later_is_found(bus: Bus, facts: Facts, folder: Path) -> None:
    """While no kubelet runs, the agent is not ready and reports why. It registers once the kubelet
    starts."""
    kubelet = FakeKubelet(folder)
    options = ["--node", NODE, "--simulate", "1xT4", "--kubelet", str(kubelet.folder)]
    options += ["--cdi", str(kubelet.cdi), "--state", str(folder / "state")]
    async with ServiceProcess("agent", bus.server.url_for("agent"), *options) as agent:
        await facts.count(NodeReported, 1)
        with contextlib.suppress(AssertionError):
            await agent.ready(timeout_s=1)
            pytest.fail("ready without a kubelet")
        async with kubelet:
            await kubelet.offered(GPU, 10)
            await agent.ready()
        assert await agent.stop() == 0


class StartingKubelet(FakeKubelet):
    """A kubelet that is just starting: it removes the GPU plugin's socket at the plugin's first
    registration.

    It answers that registration with success."""

    removed = False

    async def _register(self, request: Any, context: Any) -> Any:
        if request.resource_name == GPU and not self.removed:
            (self._plugins / request.endpoint).unlink()
            self.removed = True
            return pb.Empty()
        return await super()._register(request, context)


class RacingKubelet(FakeKubelet):
    """A kubelet that refuses to register a plugin at a path at which it has refused one before.

    Kubelets 1.36 and 1.37 do this if a plugin registers again at a path before the kubelet has
    noticed that the old socket is closed (`PluginConnected`)."""

    _refused: frozenset[str] = frozenset()

    async def _register(self, request: Any, context: Any) -> Any:
        known = self._refused
        if request.resource_name == GPU and (not known or request.endpoint in known):
            self._refused = known | {request.endpoint}
            await context.abort(grpc.StatusCode.UNKNOWN, "device plugin already connected")
        return await super()._register(request, context)


async def test_a_plugin_registers_again_at_another_path(
    bus: Bus, facts: Facts, folder: Path
) -> None:
    """If the kubelet refuses a device plugin, the agent registers it again at another path."""
    async with RacingKubelet(folder) as kubelet:
        options = ["--node", NODE, "--simulate", "1xT4", "--kubelet", str(kubelet.folder)]
        options += ["--cdi", str(kubelet.cdi), "--state", str(folder / "state")]
        async with ServiceProcess("agent", bus.server.url_for("agent"), *options):
            await facts.count(NodeReported, 1)
            await kubelet.offered(GPU, 10)
            assert len(list(kubelet.folder.glob("device-plugins/apportion-nvidia.com.gpu.*"))) == 1


async def test_a_socket_that_a_starting_kubelet_removes_is_made_again(
    bus: Bus, facts: Facts, folder: Path
) -> None:
    """If a starting kubelet removes the agent's socket, the agent creates a new socket and
    registers again. Otherwise no pod would get a GPU until the agent restarts."""
    async with StartingKubelet(folder) as kubelet:
        options = ["--node", NODE, "--simulate", "1xT4", "--kubelet", str(kubelet.folder)]
        options += ["--cdi", str(kubelet.cdi), "--state", str(folder / "state")]
        async with ServiceProcess("agent", bus.server.url_for("agent"), *options):
            await facts.count(NodeReported, 1)
            await kubelet.offered(GPU, 10)


async def test_a_folder_with_too_long_a_name_is_named(
    bus: Bus, facts: Facts, tmp_path: Path
) -> None:
    """If the path of the kubelet's folder is too long for a socket, the agent exits with an error
    that names a fix."""
    long = tmp_path / ("x" * 90)
    kubelet = FakeKubelet(long)
    (long / "device-plugins" / "kubelet.sock").touch()
    options = ["--node", NODE, "--simulate", "1xT4", "--kubelet", str(kubelet.folder)]
    options += ["--cdi", str(kubelet.cdi), "--state", str(tmp_path / "state")]
    async with ServiceProcess("agent", bus.server.url_for("agent"), *options) as agent:
        await facts.count(NodeReported, 1)
        assert await agent.ended() != 0
    assert any("a shorter one" in str(line) for line in agent.log)
