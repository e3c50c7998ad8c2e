"""Helm installs the chart on a cluster with a real API server, controllers and a real kubelet.

The chart's pods run as containers of an image that is built here, with exactly the chart's rights
and mounts. The pod that Apportion places runs as a process of this machine."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from apportion.runtime.jetstream.server.embedded import ROLES
from apportion_schemas import PodBound, SharesAllocated
from tests.support.compose import build_image
from tests.support.containers import alone, prepare, skip_unless_here
from tests.support.control_plane import ControlPlane, binaries, find_binaries
from tests.support.controllers import controllers
from tests.support.facts import Facts
from tests.support.helm import CHART, helm
from tests.support.nats import Bus, running_bus
from tests.support.nvidia.build import built
from tests.support.nvidia.driver import FakeDriver, fake_driver
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.real_kubelet import RealKubelet, missing

skip_unless_here()
pytestmark = [pytest.mark.containers, pytest.mark.slow, pytest.mark.timeout(1500)]

NODE = "gpu-1"
SPACE = "apportion"
GPU = "nvidia.com/gpu"
SERVICES = ("watcher", "scheduler", "intake", "binder", "gateway")
SAMPLE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train", "namespace": "default"},
    "spec": {
        "schedulerName": "apportion",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "main",
                "image": "test:1",
                "imagePullPolicy": "Never",
                "command": ["sleep", "3600"],
                "resources": {"limits": {GPU: "1", "nvidia.com/gpumem": "4000"}},
            }
        ],
    },
}


@pytest.fixture(scope="module", autouse=True)
def _image() -> Iterator[None]:
    """Build the image of all services, as the documentation describes."""
    with alone():
        podman = prepare()
        build_image(podman)
        yield


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """Provide a cluster on which Apportion was never installed, with the Deployment controllers."""
    found, reason = find_binaries()
    if found is None or (reason := missing()):
        pytest.skip(reason)
    folder = tmp_path / "plane"
    running = ControlPlane(found, folder, whole=True)
    try:
        running.start()
        with controllers(running, folder):
            yield running
    finally:
        running.stop()


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a running NATS server without a stream, because the chart creates the stream."""
    async with running_bus(tmp_path / "nats") as running:
        yield running


@pytest.fixture
def driver(folder: Path) -> Iterator[FakeDriver]:
    """Provide a fake driver with two GPUs. The agent's container mounts its libraries."""
    with fake_driver(folder, "2xT4") as made:
        yield made


@pytest.fixture
async def node(plane: ControlPlane, folder: Path) -> AsyncIterator[RealKubelet]:
    """Provide a node with a kubelet that starts real containers."""
    async with RealKubelet(plane, binaries() / "kubelet", folder, NODE) as running:
        yield running


def values(bus: Bus, plane: ControlPlane, node: RealKubelet, driver: FakeDriver) -> dict[str, Any]:
    """Return the chart's values for this test.

    They set the test's ledger, this machine's network, and the fake driver for the agent."""
    libraries = str(built())
    host, port = plane.url.removeprefix("https://").split(":")
    said: dict[str, Any] = {
        "nats": {"enabled": False, "url": f"nats://127.0.0.1:{bus.server.port}"},
        "passwords": {"create": False},
        "kubernetes": {"host": host, "port": port},
        "networkHost": True,
        "image": {"pullPolicy": "Never"},
        "admission": {"enabled": False},
        "agent": {
            "health": free_port(),
            "cdi": str(node.cdi),
            "state": str(node.folder / "state"),
            "run": str(node.folder / "run"),
            "env": [
                {"name": name, "value": value}
                for name, value in driver.environment.items()
                if name != "PATH"
            ],
            "volumes": [
                {"name": "driver", "hostPath": {"path": libraries}},
                {"name": "cards", "hostPath": {"path": str(driver.path)}},
            ],
            "volumeMounts": [
                {"name": "driver", "mountPath": libraries},
                {"name": "cards", "mountPath": str(driver.path)},
            ],
        },
    }
    said |= {name: {"replicas": 1, "health": free_port()} for name in SERVICES}
    said["gateway"]["replicas"] = 0  # its port is the same on every machine
    return said


async def test_D8_one_command_installs_it_and_a_pod_outlives_it(
    plane: ControlPlane, bus: Bus, node: RealKubelet, driver: FakeDriver, tmp_path: Path
) -> None:
    """One Helm command installs the chart, and then a pod is placed and started.

    The pod keeps running through an upgrade and an uninstall of the chart."""
    said = tmp_path / "values.yaml"
    said.write_text(yaml.safe_dump(values(bus, plane, node, driver)))
    await passwords(plane, bus)
    await plane.user("label", "node", NODE, "gpu=on")
    chart = (str(CHART), "--namespace", SPACE, "-f", str(said), "--timeout", "3m")

    async def run(*words: str) -> str:
        return await asyncio.to_thread(helm, *words, kubeconfig=plane.kubeconfig)

    try:
        notes = await run("install", "apportion", *chart, "--wait")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await everything(plane)}") from None
    assert "NODE gpu=on" in notes
    facts = Facts(bus)
    await facts.open()
    await node.offered(GPU, 20)
    await plane.apply(SAMPLE)
    made = await node.made("train", "main")
    assert made["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4000m"
    assert made["env"]["NVIDIA_VISIBLE_DEVICES"] in driver.ids
    await facts.count(PodBound, 1)
    (held,) = await facts.count(SharesAllocated, 1)
    assert held.node == NODE
    process = await node.pid("train", "main")

    news = "scheduler.args={--snapshot-every=5},agent.metricsAs={hami}"
    await run("upgrade", "apportion", *chart, "--set", news)
    for service in ("deployment/scheduler", "daemonset/agent"):
        await rolled_out(plane, service)
    await run("uninstall", "apportion", "--namespace", SPACE)
    await gone(plane)
    os.kill(process, 0)
    pod = await plane.get("pod", "train")
    assert pod["status"]["phase"] == "Running"
    assert len(node.created("train", "main")) == 1


@pytest.mark.nightly  # the test above is the smoke test of Helm
async def test_one_command_shows_a_placement_where_no_gpu_is(
    plane: ControlPlane, bus: Bus, node: RealKubelet, driver: FakeDriver, tmp_path: Path
) -> None:
    """With `agent.simulate`, a pod runs on simulated GPUs of a node that has no GPU label."""
    said = tmp_path / "values.yaml"
    wanted = values(bus, plane, node, driver)
    wanted["agent"]["simulate"] = "8xH100-80GB"
    said.write_text(yaml.safe_dump(wanted))
    await passwords(plane, bus)
    words = (str(CHART), "--namespace", SPACE, "-f", str(said), "--wait", "--timeout", "3m")
    try:
        await asyncio.to_thread(helm, "install", "apportion", *words, kubeconfig=plane.kubeconfig)
        await node.offered(GPU, 80)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await everything(plane)}") from None
    await plane.apply(SAMPLE)
    made = await node.made("train", "main")
    assert made["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4000m"
    assert made["env"]["NVIDIA_VISIBLE_DEVICES"] not in driver.ids
    pods = (await plane.get("pods", namespace=SPACE))["items"]
    names = {pod["metadata"]["labels"].get("app") for pod in pods}
    assert "agent-simulated" in names
    assert "agent" not in names


async def rolled_out(plane: ControlPlane, service: str) -> None:
    async def done() -> bool:
        said = await plane.user("rollout", "status", service, "-n", SPACE, "--watch=false")
        return "successfully rolled out" in said

    await until(done, f"{service} to be rolled out", timeout_s=240, interval_s=0.5)


async def passwords(plane: ControlPlane, bus: Bus) -> None:
    """Create the Secret with the passwords that services need for an external NATS server."""
    await plane.user("create", "namespace", SPACE)
    words = {
        f"APPORTION_{role.upper()}_PASSWORD": bus.server.url_for(role).split(":")[2].split("@")[0]
        for role in ROLES
    } | {"APPORTION_LEDGER_KEY": "k" * 64}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "nats-passwords"}}
    await plane.apply(secret | {"stringData": words}, namespace=SPACE)


async def gone(plane: ControlPlane) -> None:
    """Wait until the release has no pods left."""

    async def none() -> bool:
        return not (await plane.get("pods", namespace=SPACE))["items"]

    await until(none, "the pods of the release to be gone", timeout_s=240, interval_s=0.5)


async def everything(plane: ControlPlane) -> str:
    """Return the state of all the chart's pods as text, for a failure message."""
    return await plane.user("describe", "pods", "-n", SPACE, ok=None)
