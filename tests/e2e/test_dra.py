"""DRA on a real API server and a real kubelet: claims are allocated, prepared and released."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apportion.core.dra.names import DRIVER, container_of
from apportion_schemas import PodGone, PodPlaced, SharesAllocated
from tests.support.control_plane import DRA_SINCE, ROOT
from tests.support.controllers import claim_controller
from tests.support.kube_claims import claiming_pod, request, resource_claim
from tests.support.kube_world import KubeWorld
from tests.support.kubelet_fixtures import agent_options
from tests.support.polling import until
from tests.support.processes import ServiceProcess
from tests.support.real_kubelet import RealKubelet

RIGHTS = str(ROOT / "deploy" / "kubernetes" / "dra")


@pytest.fixture
async def dra(world: KubeWorld) -> AsyncIterator[KubeWorld]:
    """Provide a cluster with our DeviceClass. Our service accounts have the rights for DRA."""
    if world.plane.version < DRA_SINCE:
        pytest.skip(f"Kubernetes {world.plane.version} has no resource.k8s.io/v1")
    await world.plane.user("apply", "-k", RIGHTS)
    yield world
    await world.plane.user("delete", "-k", RIGHTS)


async def begin(world: KubeWorld, kubelet: RealKubelet, devices: str) -> ServiceProcess:
    """Start all services with DRA enabled, and return the node's agent."""
    agent = await world.start("agent", *agent_options(kubelet, devices), "--dra")
    for verb in ("watcher", "binder"):
        await world.start(verb, "--dra")
    await world.start("scheduler")
    return agent


async def claim(world: KubeWorld, name: str) -> Any:
    return await world.plane.get("resourceclaim", name)


async def freed(world: KubeWorld, name: str) -> None:
    """Wait until the claim is not allocated, and is reserved for no pod."""

    async def seen() -> bool:
        found = await claim(world, name)
        status = found.get("status") or {}
        return not (status.get("allocation") or status.get("reservedFor")) and not found[
            "metadata"
        ].get("finalizers")

    await until(seen, f"claim {name} to be free", interval_s=0.3)


def placed(world: KubeWorld, name: str) -> PodPlaced:
    return [event for event in world.facts.of(PodPlaced) if event.name == name][-1]


async def slices(world: KubeWorld) -> list[Any]:
    items: list[Any] = (await world.plane.get("resourceslices"))["items"]
    return [item for item in items if item["spec"]["driver"] == DRIVER]


async def test_H14_two_claims_have_parts_of_one_card_whatever_dies(
    dra: KubeWorld, kubelet: RealKubelet
) -> None:
    """Two claims share one GPU, and each container gets the share of its own claim.

    This holds even if the agent is killed in between."""
    agent = await begin(dra, kubelet, "1xA100-80GB")
    small = resource_claim("small", request(memory="2Gi", cores="30"))
    large = resource_claim("large", request(memory="5000Mi"))
    await dra.plane.apply(small, large, claiming_pod("one", "small"))
    await dra.facts.count(SharesAllocated, 1)
    made = await kubelet.made("one", "main")
    await agent.kill()
    await dra.plane.apply(claiming_pod("two", "large"))
    await dra.bound("two")
    await agent.start()
    other = await kubelet.made("two", "main")
    for name, memory, cores, container in (
        ("small", "2048m", "30", made),
        ("large", "5000m", "0", other),
    ):
        env, told = container["env"], await claim(dra, name)
        (result,) = told["status"]["allocation"]["devices"]["results"]
        assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == memory
        assert env["CUDA_DEVICE_SM_LIMIT"] == cores
        assert "/usr/local/vgpu" in container["mounts"]
        assert result["consumedCapacity"]["cores"] == cores
        assert (result["pool"], result["device"]) == (kubelet.node, "gpu-0")
        (share,) = placed(dra, "one" if name == "small" else "two").shares
        assert share.container == container_of(told["metadata"]["uid"])
        assert env["NVIDIA_VISIBLE_DEVICES"] == share.device
    first, second = [
        (await claim(dra, name))["status"]["allocation"]["devices"]["results"][0]["shareID"]
        for name in ("small", "large")
    ]
    assert first != second
    await healthy(dra, "two")
    await let_go(dra, kubelet)


async def healthy(dra: KubeWorld, pod: str) -> None:
    """Wait until the pod's status shows its device as healthy, as the agent reported to the
    kubelet."""

    async def said() -> bool:
        containers = (await dra.pod(pod))["status"].get("containerStatuses") or [{}]
        devices = containers[0].get("allocatedResourcesStatus") or ()
        return [each["health"] for part in devices for each in part["resources"]] == ["Healthy"]

    await until(said, f"pod {pod} to have a healthy device", interval_s=0.3)


async def let_go(dra: KubeWorld, kubelet: RealKubelet) -> None:
    """Delete pod `one`. Check that its claim's CDI file is removed and the next pod can use the
    claim."""
    uid = (await claim(dra, "small"))["metadata"]["uid"]
    file = kubelet.cdi / f"apportion-claim-{uid}.json"
    assert file.exists()
    await dra.plane.user("delete", "pod", "one", "--wait=false")
    await freed(dra, "small")

    async def removed() -> bool:
        return not file.exists()

    await until(removed, f"{file.name} to be removed")
    await dra.plane.apply(claiming_pod("three", "small"))
    again = await kubelet.made("three", "main")
    assert again["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2048m"
    reserved = (await claim(dra, "small"))["status"]["reservedFor"]
    assert [each["name"] for each in reserved] == ["three"]


async def test_H14_a_claim_for_a_partition_gets_one_at_a_place_of_its_own(
    dra: KubeWorld, kubelet: RealKubelet
) -> None:
    """Two claims for the same MIG profile on one GPU get different MIG instances.

    The published ResourceSlices list these instances."""
    await begin(dra, kubelet, "1xA100-80GB:mig")
    cel = f'device.attributes["{DRIVER}"].profile == "2g.20gb"'
    await dra.plane.apply(
        resource_claim("a", request(cel=cel)),
        resource_claim("b", request(cel=cel)),
        claiming_pod("one", "a"),
        claiming_pod("two", "b"),
    )
    await dra.facts.count(SharesAllocated, 2)
    names = set()
    for name, pod in (("a", "one"), ("b", "two")):
        made = await kubelet.made(pod, "main")
        assert made["env"]["NVIDIA_VISIBLE_DEVICES"].startswith("MIG-")
        (result,) = (await claim(dra, name))["status"]["allocation"]["devices"]["results"]
        assert "consumedCapacity" not in result
        names.add(result["device"])
    assert len(names) == 2
    published = [d for each in await slices(dra) for d in each["spec"].get("devices", ())]
    assert names <= {device["name"] for device in published}
    assert {each["spec"]["pool"]["generation"] for each in await slices(dra)} == {1}


async def test_H14_a_claim_that_cannot_be_read_is_refused_by_the_name_of_its_field(
    dra: KubeWorld, kubelet: RealKubelet
) -> None:
    """A pod is refused if its claim is missing, invalid, or in use by another pod.

    The refusal has the reason. The pod starts once its claim exists and is free."""
    await begin(dra, kubelet, "1xA100-80GB")
    await dra.plane.apply(claiming_pod("early", "late"))
    await dra.described("early", "Rejected", "late", "does not exist")
    await dra.plane.apply(resource_claim("late", request(memory="1Gi")))
    await kubelet.made("early", "main")
    await dra.plane.apply(claiming_pod("second", "late"))
    await dra.described("second", "Rejected", "is used by")
    cel = resource_claim("cel", request(cel='device.driver.startsWith("gpu")'))
    await dra.plane.apply(cel, claiming_pod("strange", "cel"))
    await dra.described("strange", "Rejected", "is not a supported comparison")
    await dra.plane.user("delete", "pod", "early", "--wait=false")
    await kubelet.made("second", "main")
    said = json.dumps((await dra.pod("second"))["metadata"]["annotations"])
    assert "apportion.dev/shares" in said


async def test_H14_a_claim_of_a_template_comes_and_goes_with_its_pod(
    dra: KubeWorld, kubelet: RealKubelet, tmp_path: Path
) -> None:
    """A claim from a template is created with its pod, and released when the pod ends.

    It is released even if the binder is down at that time. Kubernetes' own controller creates and
    deletes the claim. kube-scheduler allocates none of our devices."""
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "part"},
        "spec": {"spec": resource_claim("", request(memory="3Gi"))["spec"]},
    }
    with claim_controller(dra.plane, tmp_path):
        await begin(dra, kubelet, "1xA100-80GB")
        foreign = claiming_pod("foreign", "theirs")
        foreign["spec"]["schedulerName"] = "default-scheduler"
        theirs = resource_claim("theirs", request(memory="1Gi"))
        await dra.plane.apply(template, theirs, foreign, claiming_pod("one", "part", template=True))
        made = await kubelet.made("one", "main")
        assert made["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3072m"
        pod = await dra.pod("one")
        (status,) = pod["status"]["resourceClaimStatuses"]
        name = status["resourceClaimName"]
        assert (await claim(dra, name))["status"]["allocation"]
        await dra.described("foreign", "FailedScheduling", "cannot allocate all claims")
        assert not (await claim(dra, "theirs")).get("status", {}).get("allocation")
        await dra.stop("binder")
        await dra.plane.user("delete", "pod", "one", "--wait=false")
        await dra.facts.count(PodGone, 1)
        await dra.start("binder", "--dra")

        async def gone() -> bool:
            listed = await dra.plane.get("resourceclaims")
            return [each["metadata"]["name"] for each in listed["items"]] == ["theirs"]

        await until(gone, f"claim {name} to be gone", interval_s=0.3)


async def test_H14_a_kubelet_that_was_killed_finds_everything_again(
    dra: KubeWorld, kubelet: RealKubelet
) -> None:
    """After the kubelet was killed and restarted, containers still get the devices of their claims.

    The agent publishes the node's ResourceSlices again."""
    await begin(dra, kubelet, "1xA100-80GB")
    await dra.plane.apply(
        *(resource_claim(name, request(memory="2Gi")) for name in ("a", "b")),
        claiming_pod("one", "a"),
    )
    await kubelet.made("one", "main")
    await kubelet.pid("one", "main")
    before = {each["metadata"]["uid"] for each in await slices(dra)}
    assert before
    await kubelet.kill()
    await kubelet.start()
    await kubelet.end_process("one", "main")
    again = await kubelet.made("one", "main", times=2)
    assert again["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2048m"

    async def anew() -> bool:
        now = {each["metadata"]["uid"] for each in await slices(dra)}
        return bool(now) and not now & before

    await until(anew, "the slices to be made again", interval_s=0.3)
    await dra.plane.apply(claiming_pod("two", "b"))
    assert (await kubelet.made("two", "main"))["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2048m"
    assert len(await dra.facts.count(SharesAllocated, 2)) == 2
