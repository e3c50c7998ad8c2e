"""Contract tests of how the agent gives containers their devices, on nodes with a fake and with a
real kubelet."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from apportion_schemas import (
    Ask,
    Device,
    NodeReported,
    PodBound,
    PodPlaced,
    PodSubmitted,
    Score,
    Shape,
    Share,
    SharesAllocated,
)
from tests.contracts.kube.kubelet_nodes import FakeNode, KubeletNode, RealNode
from tests.support.control_plane import ControlPlane, binaries
from tests.support.facts import Facts
from tests.support.fake_kubelet import FakeKubelet
from tests.support.nats import Bus
from tests.support.processes import ServiceProcess
from tests.support.real_kubelet import RealKubelet, missing

NODE = "n1"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Provide a folder with a short path, because a Unix socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="kubelet", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(params=["fake", "real"])
async def node(
    request: pytest.FixtureRequest, folder: Path, control_plane: ControlPlane
) -> AsyncIterator[KubeletNode]:
    """Provide a node with a kubelet. No agent is registered with it yet."""
    async with AsyncExitStack() as stack:
        if request.param == "fake":
            yield FakeNode(await stack.enter_async_context(FakeKubelet(folder)))
            return
        binary = binaries() / "kubelet"
        if reason := missing() or (
            "" if binary.exists() else "there is no kubelet of this version"
        ):
            pytest.skip(reason)
        kubelet = RealKubelet(control_plane, binary, folder, NODE)
        yield RealNode(await stack.enter_async_context(kubelet), control_plane)


@pytest.fixture
async def agent(bus: Bus, node: FakeNode | RealNode, facts: Facts) -> AsyncIterator[ServiceProcess]:
    """Provide the node's running agent, which has two GPUs and is registered with the kubelet."""
    kubelet = node.kubelet
    options = ["--node", NODE, "--simulate", "2xT4", "--kubelet", str(kubelet.folder)]
    options += ["--cdi", str(kubelet.cdi), "--state", str(kubelet.folder / "state")]
    async with ServiceProcess("agent", bus.server.url_for("agent"), *options) as running:
        await running.ready()
        await facts.count(NodeReported, 1)
        await node.offered(20)
        yield running


def cards(facts: Facts) -> tuple[Device, ...]:
    report: NodeReported = facts.of(NodeReported)[0]
    return report.devices


async def place(
    facts: Facts, uid: str, name: str, *shares: Share, borrowed: tuple[Share, ...] = ()
) -> None:
    """Append the submission, placement and binding of a pod to the ledger.

    Leave the pod's object in the cluster unchanged."""
    asks = tuple(Ask(container=each.container, family="nvidia") for each in shares)
    shape = Shape(asks=asks)
    await facts.write(
        PodSubmitted(uid=uid, namespace="default", name=name, shape=shape, dialect="hami")
    )
    placed = PodPlaced(
        pod=uid, namespace="default", name=name, attempt=1, node=NODE, shares=shares,
        score=Score(node=NODE, total=1.0), borrowed=borrowed, previous=facts.chain(NODE),
    )  # fmt: skip
    await facts.write(placed)
    await facts.write(PodBound(pod=uid, node=NODE, attempt=1))


def share(device: Device, memory_mib: int, container: str = "main") -> Share:
    return Share(container=container, device=device.id, memory_mib=memory_mib, cores=30)


def seen(env: dict[str, str]) -> tuple[str, str]:
    """Return the GPU that a container sees, and the container's memory limit, from its
    environment."""
    return env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_DEVICE_MEMORY_LIMIT_0"]


@pytest.mark.parametrize("turned", [False, True], ids=["in order", "the other way round"])
async def test_identical_pods_get_their_own_shares(
    agent: ServiceProcess, node: KubeletNode, facts: Facts, *, turned: bool
) -> None:
    """Each of several identical pods gets the share that the ledger records for it, although the
    kubelet's requests name no pod."""
    assert agent.running
    first, second = cards(facts)
    a = await node.run("a", {"main": 1})
    b = await node.run("b", {"main": 1})
    wanted = [(a, "a", share(first, 700)), (b, "b", share(second, 1300))]
    for uid, name, own in reversed(wanted) if turned else wanted:
        await place(facts, uid, name, own)
    assert seen(await node.got("a", "main")) == (first.id, "700m")
    assert seen(await node.got("b", "main")) == (second.id, "1300m")
    allocated = await facts.count(SharesAllocated, 2)
    assert {event.pod: event.devices for event in allocated} == {a: (first.id,), b: (second.id,)}


async def test_init_containers_have_what_the_next_one_has(
    agent: ServiceProcess, node: KubeletNode, facts: Facts
) -> None:
    """An init container uses the main container's share while it runs. The main container then gets
    the same share."""
    assert agent.running
    card = cards(facts)[1]
    uid = await node.run("a", {"fetch": 1, "main": 1}, init="fetch")
    borrowed = (share(card, 500, "fetch"),)
    await place(facts, uid, "a", share(card, 2000), borrowed=borrowed)
    assert seen(await node.got("a", "fetch")) == (card.id, "2000m")
    assert seen(await node.got("a", "main")) == (card.id, "2000m")


async def test_containers_of_one_pod_have_each_their_own(
    agent: ServiceProcess, node: KubeletNode, facts: Facts
) -> None:
    """Each container of a pod gets its own shares, even if one has one GPU and the other has
    two."""
    assert agent.running
    first, second = cards(facts)
    uid = await node.run("a", {"one": 1, "two": 2})
    shares = (share(second, 500, "one"), share(first, 900, "two"), share(second, 901, "two"))
    await place(facts, uid, "a", *shares)
    assert seen(await node.got("a", "one")) == (second.id, "500m")
    two = await node.got("a", "two")
    assert seen(two) == (f"{first.id},{second.id}", "900m")
    assert two["CUDA_DEVICE_MEMORY_LIMIT_1"] == "901m"


async def test_a_container_keeps_its_share_after_a_crash(
    agent: ServiceProcess, node: KubeletNode, facts: Facts
) -> None:
    """A container keeps its share after the container, the agent or the kubelet has crashed.

    The agent records only one allocation per pod."""
    card = cards(facts)[1]
    uid = await node.run("a", {"main": 1})
    await place(facts, uid, "a", share(card, 700))
    before = seen(await node.got("a", "main"))
    assert seen(await node.restart("a", "main")) == before
    await agent.kill()
    await agent.start()
    await agent.ready()
    assert seen(await node.restart("a", "main")) == before
    await node.restart_kubelet()
    other = await node.run("b", {"main": 1})
    await place(facts, other, "b", share(card, 300))
    assert seen(await node.got("b", "main")) == (card.id, "300m")
    await facts.count(SharesAllocated, 2)
    assert [event.pod for event in facts.of(SharesAllocated)] == [uid, other]


async def test_an_annotation_gets_a_pod_nothing(
    agent: ServiceProcess, node: KubeletNode, facts: Facts
) -> None:
    """If a pod's annotations name one GPU and the ledger another, the pod gets the ledger's GPU."""
    assert agent.running
    first, second = cards(facts)
    forged = {
        "hami.io/vgpu-devices-allocated": f"{first.id},NVIDIA,9000,100:;",
        "hami.io/bind-phase": "allocating",
        "apportion.dev/shares": f"{first.id}",
    }
    uid = await node.run("a", {"main": 1}, annotations=forged)
    await place(facts, uid, "a", share(second, 300))
    assert seen(await node.got("a", "main")) == (second.id, "300m")
