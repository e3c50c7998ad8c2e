"""The agent is the DRA plugin of a fake kubelet. It prepares each claim with the devices that the
ledger gives, whatever process is killed."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apportion.agent.boot_book import BootBook
from apportion.agent.kubelet.holders import CLAIMS
from apportion.core.dra.names import DRIVER, container_of, share_id
from apportion.runtime.ledger.starting import command_subject
from apportion_schemas import (
    Device,
    NodeReported,
    PodBound,
    PodPlaced,
    Score,
    Share,
    SharesAllocated,
)
from apportion_schemas.catalogue import token
from tests.support.facts import Facts
from tests.support.fake_kubelet import FakeKubelet, environment
from tests.support.nats import Bus
from tests.support.processes import ServiceProcess

NODE = "n1"


@pytest.fixture
async def agent(bus: Bus, kubelet: FakeKubelet, facts: Facts) -> AsyncIterator[ServiceProcess]:
    """Provide the node's agent, with two GPUs and DRA."""
    options = ["--node", NODE, "--simulate", "2xT4", "--kubelet", str(kubelet.folder), "--dra"]
    options += ["--cdi", str(kubelet.cdi), "--state", str(kubelet.folder / "state")]
    async with ServiceProcess("agent", bus.server.url_for("agent"), *options) as running:
        await facts.count(NodeReported, 1)
        info = await kubelet.plugin()
        assert (info.type, info.name) == ("DRAPlugin", DRIVER)
        assert list(info.supported_versions) == ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
        await running.ready()
        yield running


async def place(facts: Facts, pod: str, *claims: tuple[str, Device, int]) -> None:
    """Place and bind a pod. Each claim is a tuple of its name, its GPU and the memory in MiB."""
    shares = [
        Share(container=container_of(claim), device=card.id, memory_mib=memory, cores=20)
        for claim, card, memory in claims
    ]
    placed = PodPlaced(
        pod=pod, namespace="team", name=pod, attempt=1, node=NODE, shares=tuple(shares),
        score=Score(node=NODE, total=1.0), previous=facts.chain(NODE),
    )  # fmt: skip
    await facts.submit_unless_there(pod)
    await facts.write(placed)
    await facts.write(PodBound(pod=pod, node=NODE, attempt=1))


def cards(facts: Facts) -> tuple[Device, ...]:
    report: NodeReported = facts.of(NodeReported)[0]
    return report.devices


def seen(kubelet: FakeKubelet, answer: Any) -> dict[str, str]:
    """Return the environment that a container gets from a prepared claim."""
    assert answer.error == ""
    (name,) = [name for device in answer.devices for name in device.cdi_device_ids]
    return environment(kubelet.edits((name.partition("=")[2],)))


async def test_each_claim_is_prepared_as_the_ledger_has_it_whatever_dies(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """Preparing a claim again returns the same answer, even after the agent was killed. The ledger
    records the allocation once."""
    first, second = cards(facts)
    await place(facts, "a", ("c-1", first, 700), ("c-2", second, 1300))
    asked = (("c-1", "team"), ("c-2", "team"))
    answers = await kubelet.prepare(*asked)
    assert seen(kubelet, answers["c-1"])["CUDA_DEVICE_MEMORY_LIMIT_0"] == "700m"
    env = seen(kubelet, answers["c-2"])
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_DEVICE_MEMORY_LIMIT_0"]) == (
        second.id,
        "1300m",
    )
    (device,) = answers["c-2"].devices
    assert (device.pool_name, device.device_name) == (NODE, "gpu-1")
    assert device.share_id == share_id("c-2", 1, 0)
    await agent.kill()
    await agent.start()
    await kubelet.plugin()
    await agent.ready()
    assert await kubelet.prepare(*asked) == answers
    assert [event.pod for event in await facts.count(SharesAllocated, 1)] == ["a"]


async def test_a_claim_that_is_taken_back_leaves_the_books_and_the_next_one_does_not(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """When the kubelet unprepares a claim, even repeatedly, the agent forgets only that claim.
    Another pod's claim stays prepared."""
    assert agent.running
    first, _ = cards(facts)
    await place(facts, "a", ("c-1", first, 700))
    await place(facts, "b", ("c-2", first, 900))
    await kubelet.prepare(("c-1", "team"))
    kept = (await kubelet.prepare(("c-2", "team")))["c-2"]
    region = f"{token('b')}_{token(container_of('c-2'))}/share.cache"
    assert (kubelet.folder / "state" / "shares" / region).exists()
    for _ in range(2):
        answers = await kubelet.unprepare(("c-1", "team"), ("never", "team"))
        assert {uid: answer.error for uid, answer in answers.items()} == {"c-1": "", "never": ""}
    prepared = BootBook(kubelet.folder / "state" / CLAIMS, Path("/proc"), str)
    assert set(prepared.entries.values()) == {"b"}
    assert not (kubelet.cdi / "apportion-claim-c-1.json").exists()
    assert seen(kubelet, kept)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "900m"


async def test_a_claim_of_another_namespace_is_not_prepared(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts
) -> None:
    """The agent refuses a claim whose namespace differs from its pod's, and prepares the other
    claims."""
    assert agent.running
    first, _ = cards(facts)
    await place(facts, "a", ("c-1", first, 700), ("c-2", first, 800))
    answers = await kubelet.prepare(("c-1", "other"), ("c-2", "team"))
    assert "namespace team" in answers["c-1"].error
    assert not answers["c-1"].devices
    assert seen(kubelet, answers["c-2"])["CUDA_DEVICE_MEMORY_LIMIT_0"] == "800m"


async def test_the_kubelet_hears_how_devices_are(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts, bus: Bus
) -> None:
    """The agent reports the health of all devices to the kubelet, with a reason for each failed
    device."""
    assert agent.running
    await kubelet.healths({"gpu-0": 1, "gpu-1": 1})
    order = json.dumps({"verb": "fail", "device": cards(facts)[1].id, "reason": "fan"}).encode()
    await (await bus.connect("operator")).request(command_subject(NODE), order, 30)
    said = await kubelet.healths({"gpu-0": 1, "gpu-1": 2})
    assert said == {"gpu-0": "", "gpu-1": "fan"}
