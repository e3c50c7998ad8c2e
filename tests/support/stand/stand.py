"""A cluster with HAMi: a control plane, three nodes with real kubelets, HAMi's doubles, and pods.

`helm install` of a chart works as on any cluster: the controllers create its pods, and the kubelets
run them with podman, with the chart's arguments, users, mounts, probes and service accounts. Each
pod has its own address, and Services and their names work (`network`).

Some parts are not real:

- Images are local.
- NetworkPolicies, limits of CPU and memory, and `kubectl logs` and `exec` have no effect.
- `kubectl port-forward` is a relay (`forward`).
- All nodes are this machine.
- HAMi's scheduler and device plugin are doubles (`foreign_schedulers`, `foreign_plugins`), without
  HAMi's webhook.
- The GPUs are a fake driver's, and containers of users are processes."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.support.compose import IMAGE, build_image
from tests.support.containers import BASE, NATS, ROOT, Podman, prepare
from tests.support.control_plane import ControlPlane, binaries
from tests.support.controllers import controllers
from tests.support.cri.podman import Machine
from tests.support.helm import find_helm
from tests.support.nvidia.build import built
from tests.support.nvidia.driver import FakeDriver
from tests.support.polling import until
from tests.support.real_kubelet import CDI, RealKubelet
from tests.support.stand.hami import install_hami
from tests.support.stand.network import DOMAIN, HOST, NETWORK, PODS, SERVICES, Network

CPU_NODE: Final = "cpu-1"
GPU_NODES: Final = ("gpu-1", "gpu-2")
GPUS: Final = "2xT4"
LIBRARY: Final = "localhost/apportion-hami-core:stand"
SERVER: Final = "localhost/apportion-nats:stand"
LIBRARY_PATH: Final = "/k8s-vgpu/lib/nvidia"
DISKS: Final = 5
START_S: Final = 180
OF_AGENT: Final = (CDI, *map(Path, ("/etc/cdi", "/var/lib/apportion", "/run/apportion")))
"""Folders of a node that the chart's agent mounts."""
PATHS: Final = f"{ROOT}:{ROOT / 'services'}:{ROOT / 'schemas'}"
KUBECTL: Final = """#!/bin/bash
for word; do
  [[ $word == port-forward ]] && exec {python} -m tests.support.stand.forward "$@"
done
exec {kubectl} "$@"
"""


def workload(kind: str, namespace: str, name: str, **limits: int) -> dict[str, Any]:
    """Return a Deployment or StatefulSet of one pod that HAMi's scheduler places."""
    labels = {"app": name}
    resources = {"limits": {f"nvidia.com/{key}": str(value) for key, value in limits.items()}}
    container = {
        "name": "main", "image": "test:1", "imagePullPolicy": "Never",
        "command": ["sleep", "infinity"], "resources": resources,
    }  # fmt: skip
    spec = {
        "schedulerName": "hami-scheduler", "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }  # fmt: skip
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}, "template": template}
        | ({"serviceName": name} if kind == "StatefulSet" else {}),
    }  # fmt: skip


WORKLOADS: Final = (
    workload("Deployment", "research", "chat", gpu=1, gpumem=4000),
    workload("StatefulSet", "research", "nb", gpu=1, gpumem=2000, gpucores=30),
    workload("Deployment", "web", "site", gpu=1, gpumem=3000),
)


class Stand:
    """The cluster. `async with` starts and ends it."""

    def __init__(self, folder: Path) -> None:
        """Configure the cluster. The folder's path must be short: sockets are below it."""
        self._folder = folder
        self.home = folder / "home"
        self._bin = folder / "bin"
        self.plane = ControlPlane(
            binaries(), folder / "plane", whole=True,
            options=(f"--service-cluster-ip-range={SERVICES}",),
        )  # fmt: skip
        self.nodes: dict[str, RealKubelet] = {}
        self.drivers: dict[str, FakeDriver] = {}
        self._stack = AsyncExitStack()

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables with which commands use this cluster."""
        return {
            "PATH": f"{self._bin}:/usr/local/bin:/usr/bin:/bin",
            "KUBECONFIG": str(self.plane.kubeconfig),
            "HOME": str(self.home),
            "PYTHONPATH": PATHS,
        }

    def about(self) -> dict[str, str]:
        """Return what a person must know to use the cluster."""
        return {
            "repository": IMAGE.rpartition(":")[0],
            "library": LIBRARY,
            "nodes": ", ".join(GPU_NODES),
            "environment": str(self._folder / "environment"),
            "logs": str(self._folder / "*/containers/*.out"),
        }

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        podman = await asyncio.to_thread(prepare)
        await asyncio.to_thread(_build, podman)
        self._stack.callback(_remove_empty, [path for path in OF_AGENT if not path.exists()])
        self._stack.callback(self.plane.stop)
        await asyncio.to_thread(self.plane.start)
        self._stack.enter_context(controllers(self.plane, self.plane.kubeconfig.parent))
        port = int(self.plane.url.rpartition(":")[2])
        await self._stack.enter_async_context(Network(self.plane.api, port))
        self._write_home()
        await self._add_disks()
        for at, name in enumerate((CPU_NODE, *GPU_NODES)):
            await self._add_node(at + 1, name)
        await self._install_hami()
        for namespace in sorted({each["metadata"]["namespace"] for each in WORKLOADS}):
            await self.plane.user("create", "namespace", namespace)
        await self.plane.apply(*WORKLOADS)
        await self.running(*(each["metadata"]["namespace"] for each in WORKLOADS))

    async def running(self, *namespaces: str) -> None:
        """Wait until all pods of these namespaces run."""

        async def all_run() -> bool:
            pods = (await self.plane.get("pods", namespace=""))["items"]
            found = [each for each in pods if each["metadata"]["namespace"] in namespaces]
            names = {each["metadata"]["namespace"] for each in found}
            return names == set(namespaces) and all(
                each["status"]["phase"] == "Running" for each in found
            )

        await until(all_run, f"pods of {namespaces} to run", timeout_s=START_S, interval_s=0.5)

    def _write_home(self) -> None:
        self._bin.mkdir()
        self.home.mkdir()
        for name in ("deploy", "examples", "docs"):
            (self.home / name).symlink_to(ROOT / name)
        (self.home / ".kube").mkdir()
        (self.home / ".kube/config").symlink_to(self.plane.kubeconfig)
        kubectl = self._bin / "kubectl"
        kubectl.write_text(KUBECTL.format(python=sys.executable, kubectl=binaries() / "kubectl"))
        kubectl.chmod(0o755)
        for name in ("apportion", "kubectl-apportion"):
            (self._bin / name).symlink_to(Path(sys.executable).parent / name)
        binary, reason = find_helm()
        assert binary is not None, reason
        (self._bin / "helm").symlink_to(binary)
        exports = (f"export {key}={shlex.quote(said)}" for key, said in self.environment.items())
        (self._folder / "environment").write_text("\n".join([*exports, f"cd {self.home}", ""]))

    async def _add_disks(self) -> None:
        """Add a default StorageClass with disks, which are folders."""
        note = {"storageclass.kubernetes.io/is-default-class": "true"}
        made: list[dict[str, Any]] = [
            {
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
                "metadata": {"name": "standard", "annotations": note},
                "provisioner": "kubernetes.io/no-provisioner",
                "volumeBindingMode": "WaitForFirstConsumer",
            }
        ]  # fmt: skip
        for at in range(DISKS):
            disk = self._folder / f"disk-{at}"
            disk.mkdir()
            disk.chmod(0o777)  # a hostPath is not given to the pod's fsGroup
            spec = {
                "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"],
                "storageClassName": "standard", "hostPath": {"path": str(disk)},
            }  # fmt: skip
            about = {"name": f"disk-{at}"}
            made.append(
                {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": about, "spec": spec}
            )
        await self.plane.apply(*made)

    async def _add_node(self, number: int, name: str) -> None:
        folder = self._folder / name
        folder.mkdir()
        options = [f"--node-ip={HOST}", f"--address={HOST}"]
        options += [f"--cluster-dns={HOST}", f"--cluster-domain={DOMAIN}"]
        machine = Machine(NETWORK, f"{PODS}.{number}", images={"nats:": SERVER})
        if name in GPU_NODES:
            driver = self.drivers[name] = FakeDriver(folder, GPUS, host=name)
            self._stack.callback(driver.close)
            options.append("--node-labels=gpu=on")
            variables = {key: value for key, value in driver.environment.items() if key != "PATH"}
            folders = (str(built()), str(driver.path))
            machine = Machine(
                NETWORK, machine.addresses, machine.images, driver=variables, folders=folders
            )
        node = RealKubelet(
            self.plane, binaries() / "kubelet", folder, name,
            options=tuple(options), machine=machine, own=OF_AGENT,
        )  # fmt: skip
        self.nodes[name] = await self._stack.enter_async_context(node)

    async def _install_hami(self) -> None:
        cards = {name: ",".join(driver.ids) for name, driver in self.drivers.items()}
        await asyncio.to_thread(install_hami, self.plane, self._folder, cards, PATHS)
        for name in GPU_NODES:
            await self.nodes[name].offered("nvidia.com/gpu", 20)


def _remove_empty(folders: list[Path]) -> None:
    """Remove these folders of this machine if they are empty: the nodes mounted their own over
    them."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _build(podman: Podman) -> None:
    """Build the services' image, and stand-ins for other images that the chart and the guide name.

    The stand-in for `nats` has the entry point of the image on Docker Hub. HAMi-core's library is
    only a text file."""
    build_image(podman)
    library = f"{LIBRARY_PATH}/libvgpu.so"
    for name, recipe in (
        (LIBRARY, f"FROM {BASE}\nRUN mkdir -p {LIBRARY_PATH} && echo library > {library}\n"),
        (SERVER, f'FROM {NATS}\nENTRYPOINT ["nats-server"]\n'),
    ):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "Dockerfile").write_text(recipe)
            podman.run("build", "--pull=never", "--tag", name, folder, timeout_s=300)
