"""Run a real kubelet on this machine as a node of the tests' API server, with the runtime in `cri`.

It needs root and the binaries of a control plane. The kubelet and its runtime have their own mount
namespace, because the path of the device plugins' folder is hard-coded. Invariant: the kubelet
leaves no process, no mount, and no file outside its folder."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml

from tests.support.control_plane import ROOT, ControlPlane
from tests.support.cri.podman import HERE, Machine
from tests.support.polling import WAIT_S, until
from tests.support.ports import free_port

HOME: Final = Path("/var/lib/kubelet")
"""The hard-coded folder of a kubelet's device plugins, whatever its root folder is."""
CDI: Final = Path("/var/run/cdi")
"""The default folder of CDI files, which the runtime reads."""
END_S: Final = 150
"""A runtime ends its containers one after the other, with up to ten seconds for each."""


def missing() -> str:
    """Return the reason why no kubelet can run here, or "" if one can."""
    if os.geteuid() != 0:
        return "the kubelet runs as root only"
    tried = subprocess.run(
        ["/usr/bin/unshare", "--mount", "true"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else "no mount namespace can be made here"


class RealKubelet:
    """A real kubelet with its container runtime. `async with` starts and ends both."""

    def __init__(
        self, plane: ControlPlane, binary: Path, folder: Path, node: str, *,
        options: tuple[str, ...] = (), machine: Machine = HERE, own: tuple[Path, ...] = (),
    ) -> None:  # fmt: skip
        """Configure the node. `options` are additional options of the kubelet.

        For each path in `own`, the node's containers see the node's own folder instead of this
        machine's."""
        self.folder = folder
        self.node = node
        self.cdi = folder / "cdi"
        self.containers = folder / "containers"
        self._plane = plane
        self._binary = binary
        self._options = options
        self._machine = machine
        self._mounts = {HOME: folder} | {path: self._of(path) for path in own}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    async def __aenter__(self) -> Self:
        for each in (self.cdi, self.containers, self.folder / "device-plugins"):
            each.mkdir(parents=True)
        for there, here in self._mounts.items():
            there.mkdir(parents=True, exist_ok=True)
            here.mkdir(parents=True, exist_ok=True)
        (self.folder / "config.yaml").write_text(yaml.safe_dump(self._config()))
        binds = [f"mount --bind {here} {there}" for there, here in self._mounts.items()]
        mount = " && ".join(["mount --make-rprivate /", *binds, 'exec "$@"'])
        runtime = ["/usr/bin/unshare", "--mount", "sh", "-c", mount, "sh", sys.executable]
        runtime += ["-m", "tests.support.cri.runtime", str(self._socket)]
        try:
            runtime += [str(self.containers), str(self.cdi), json.dumps(asdict(self._machine))]
            self._spawn("runtime", runtime)
            await until(self._listens, "the runtime to listen")
            await self.start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    @property
    def log(self) -> str:
        """Return the end of the kubelet's log."""
        return (self.folder / "kubelet.log").read_text(errors="replace")[-4000:]

    async def start(self) -> None:
        """Mark the node as not ready, start the kubelet, and wait until the node is ready."""
        kubelet = [
            *("/usr/bin/nsenter", f"--target={self._running['runtime'].pid}", "--mount"),
            f"--wd={ROOT}",
            str(self._binary),
            f"--config={self.folder / 'config.yaml'}",
            f"--kubeconfig={self._plane.kubeconfig}",
            f"--hostname-override={self.node}",
            f"--root-dir={HOME}",
            f"--cert-dir={self.folder / 'pki'}",
            *self._options,
        ]
        unknown = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        patch = ("patch", "node", self.node, "--subresource=status", "-p", json.dumps(unknown))
        await self._plane.user(*patch, ok=None)
        self._spawn("kubelet", kubelet)
        await until(self._ready, f"node {self.node} to be ready", interval_s=0.25)

    async def kill(self) -> None:
        """Kill the kubelet with SIGKILL. Its containers continue to run."""
        await self._end("kubelet", signal.SIGKILL)

    def created(self, pod: str, container: str) -> list[dict[str, Any]]:
        """Return the environment, mounts and CDI devices of each creation of the container."""
        path = self.containers / "created.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        # the last line may be incomplete
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [each for each in found if (each["pod"], each["container"]) == (pod, container)]

    async def made(
        self, pod: str, container: str, times: int = 1, *, timeout_s: float = WAIT_S
    ) -> dict[str, Any]:
        """Wait until the container was created `times` times, and return the record of the last
        creation."""

        async def there() -> bool:
            return len(self.created(pod, container)) >= times

        await until(there, f"{pod}/{container} to be made {times} times", timeout_s=timeout_s)
        return self.created(pod, container)[-1]

    async def offered(self, resource: str, count: int) -> None:
        """Wait until the node reports `count` devices of the resource."""
        key = resource.replace(".", "\\.")

        async def there() -> bool:
            path = f"jsonpath={{.status.allocatable.{key}}}"
            return self._plane.kubectl("get", "node", self.node, "-o", path) == str(count)

        await until(there, f"{count} of {resource}", interval_s=0.25)

    async def end_process(self, pod: str, container: str) -> None:
        """Kill the container's process once it runs, as in a crash."""
        os.kill(await self.pid(pod, container), signal.SIGKILL)

    async def pid(self, pod: str, container: str) -> int:
        """Return the process id of the pod's container, once the container runs.

        Each attempt checks the newest container, because the kubelet may have created it again."""

        async def there() -> int:
            attempt = self.created(pod, container)[-1]["attempt"]
            file = self.containers / f"{pod}-{container}-{attempt}.pid"
            return int(file.read_text() or 0) if file.exists() else 0

        return await until(there, f"{pod}/{container} to run")

    def _of(self, path: Path) -> Path:
        """Return the node's own folder, which its containers see at `path`."""
        return self.cdi if path == CDI else self.folder / "own" / path.relative_to("/")

    @property
    def _socket(self) -> Path:
        return self.folder / "cri.sock"

    async def _close(self) -> None:
        force = ("--all", "--force", "--grace-period=0", "--wait=false")
        await self._plane.user("delete", "pods", *force)
        for name in ("kubelet", "runtime"):
            await self._end(name, signal.SIGTERM)
        await self._plane.user("delete", "node", self.node, "--ignore-not-found")

    async def _listens(self) -> bool:
        return self._socket.exists()

    async def _ready(self) -> bool:
        running = self._running["kubelet"]
        assert running.poll() is None, f"the kubelet ended:\n{self.log}"
        said = self._plane.kubectl(
            "get", "node", self.node, "--ignore-not-found", "-o",
            "jsonpath={.status.conditions[?(@.type=='Ready')].status}",
        )  # fmt: skip
        return said.strip() == "True"

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)

    async def _end(self, name: str, how: signal.Signals) -> None:
        process = self._running.pop(name, None)
        if process is not None and process.poll() is None:
            process.send_signal(how)
            await asyncio.to_thread(process.wait, END_S)

    def _config(self) -> dict[str, Any]:
        """Return the configuration of a kubelet without cgroups, garbage collection or eviction."""
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "address": "127.0.0.1",
            "port": free_port(),
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "failSwapOn": False,
            "failCgroupV1": False,
            "cgroupsPerQOS": False,
            "cgroupDriver": "cgroupfs",
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "protectKernelDefaults": False,
            "registerNode": True,
            "syncFrequency": "5s",
            "resolvConf": "",
            "volumePluginDir": str(self.folder / "volume-plugins"),
        }
