"""The agent gives a running pod a share only if this node gave the pod that share before.

In these tests the ledger was lost and rebuilt from the pods in Kubernetes, which a tenant may have
forged."""

import json

import pytest

from apportion_schemas import (
    NodeReported,
    PodAdopted,
    PodBound,
    PodGone,
    PodPlaced,
    PodSubmitted,
    Score,
    Shape,
    Share,
    SharesAllocated,
)
from apportion_schemas.workload import Ask
from tests.security.weakened import without
from tests.support.facts import Facts
from tests.support.fake_kubelet import FakeKubelet, Refused
from tests.support.nats import Bus
from tests.support.processes import ServiceProcess

NODE, GPU = "n1", "nvidia.com/gpu"


def agent_of(bus: Bus, kubelet: FakeKubelet, guard: str = "") -> ServiceProcess:
    """Return an agent of the kubelet's node with two simulated GPUs. If `guard` names a safety
    check, the agent runs without that check."""
    options = ["--node", NODE, "--simulate", "2xT4", "--kubelet", str(kubelet.folder)]
    options += ["--cdi", str(kubelet.cdi), "--state", str(kubelet.folder / "state")]
    return ServiceProcess("agent", bus.server.url_for("agent"), *options, first=without(guard))


def adopted(name: str, *shares: Share) -> PodAdopted:
    """Return a PodAdopted event as the watcher derives it from a running pod's annotations."""
    asks = tuple(Ask(container=each.container, family="nvidia") for each in shares)
    about = PodSubmitted(
        uid=f"uid-{name}", namespace="default", name=name, shape=Shape(asks=asks), dialect="hami"
    )
    return PodAdopted(
        pod=about.uid, node=NODE, submitted=about, attempt=1, shares=shares, running=True,
        evidence="apportion.dev/shares",
    )  # fmt: skip


async def placed(facts: Facts, kubelet: FakeKubelet, share: Share) -> None:
    """Place the pod `a` with this share in the ledger, and start its container."""
    await kubelet.admit("uid-a", "a", GPU, {"main": 1})
    score = Score(node=NODE, total=1.0)
    event = PodPlaced(
        pod="uid-a", namespace="default", name="a", attempt=1, node=NODE, shares=(share,),
        score=score,
    )  # fmt: skip
    await facts.write(adopted("a", share).submitted)
    await facts.write(event)
    await facts.write(PodBound(pod="uid-a", node=NODE, attempt=1))
    await kubelet.begin("uid-a", "main")
    await facts.count(SharesAllocated, 1)


@pytest.mark.parametrize("rebooted", [False, True], ids=["killed", "rebooted"])
async def test_what_was_handed_out_is_handed_out_again(
    bus: Bus, kubelet: FakeKubelet, facts: Facts, *, rebooted: bool
) -> None:
    """After a kill of the agent or a reboot, the agent gives a pod its share again. This holds even
    if the ledger knows the pod only by its annotations."""
    async with agent_of(bus, kubelet) as agent:
        await agent.ready()
        (report,) = await facts.count(NodeReported, 1)
        await kubelet.offered(GPU, 20)
        held = Share(container="main", device=report.devices[0].id, memory_mib=700, cores=30)
        await placed(facts, kubelet, held)
        await facts.write(PodGone(uid="uid-a"))
        await facts.write(adopted("a", held))
        await agent.kill()
        if rebooted:
            book = kubelet.folder / "state" / "handed.json"
            noted = json.loads(book.read_text())
            assert noted["entries"]
            book.write_text(json.dumps(noted | {"boot": "the one before"}))
        await agent.start()
        await agent.ready()
        again = await kubelet.begin("uid-a", "main")
        assert again["CUDA_DEVICE_MEMORY_LIMIT_0"] == "700m"


@pytest.mark.parametrize("guard", ["asks its book", ""], ids=["weak", "guarded"])
async def test_who_only_says_that_it_runs_gets_nothing(
    bus: Bus, kubelet: FakeKubelet, facts: Facts, guard: str
) -> None:
    """A pod whose forged status claims that it runs gets no devices from its annotation."""
    async with agent_of(bus, kubelet, guard) as agent:
        await agent.ready()
        (report,) = await facts.count(NodeReported, 1)
        await kubelet.offered(GPU, 20)
        most = Share(container="main", device=report.devices[0].id, memory_mib=9000, cores=30)
        await kubelet.admit("uid-b", "b", GPU, {"main": 1})
        await facts.write(adopted("b", most))
        if guard:
            got = await kubelet.begin("uid-b", "main")
            assert got["CUDA_DEVICE_MEMORY_LIMIT_0"] == "9000m"
            return
        with pytest.raises(Refused, match="this node never provided"):
            await kubelet.begin("uid-b", "main")
        await agent.logged("this node never provided")
