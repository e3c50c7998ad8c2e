"""One interface to two kinds of node, so that tests run the same code on a fake and on a real
kubelet."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.support.control_plane import ControlPlane
from tests.support.fake_kubelet import FakeKubelet
from tests.support.real_kubelet import RealKubelet

GPU = "nvidia.com/gpu"


class KubeletNode(Protocol):
    """The interface through which a test runs pods on one node, with a fake or a real kubelet."""

    async def run(
        self, name: str, containers: dict[str, int], *, init: str = "", annotations: Any = None
    ) -> str:
        """Create a pod and bind it to this node. Return the pod's uid.

        `containers` maps each container's name to the number of GPUs that it requests. `init` is
        the name of the container that is an init container, if any."""

    async def got(self, name: str, container: str) -> dict[str, str]:
        """Wait until the container starts, and return its environment."""

    async def restart(self, name: str, container: str) -> dict[str, str]:
        """Crash the container, and return its environment after the restart."""

    async def restart_kubelet(self) -> None:
        """Kill and restart the kubelet, and wait until the device plugins have registered again."""

    async def offered(self, count: int) -> None:
        """Wait until the node reports `count` GPUs as allocatable."""


@dataclass
class FakeNode:
    """A node with the fake kubelet."""

    kubelet: FakeKubelet

    async def run(
        self,
        name: str,
        containers: dict[str, int],
        *,
        init: str = "",
        annotations: Any = None,  # noqa: ARG002 - a kubelet does not show a plugin any
    ) -> str:
        await self.kubelet.admit(f"uid-{name}", name, GPU, containers, init=init)
        return f"uid-{name}"

    async def got(self, name: str, container: str) -> dict[str, str]:
        return await self.kubelet.begin(f"uid-{name}", container)

    async def restart(self, name: str, container: str) -> dict[str, str]:
        return await self.got(name, container)

    async def restart_kubelet(self) -> None:
        await self.kubelet.stop()
        await self.kubelet.start()
        await self.offered(20)

    async def offered(self, count: int) -> None:
        await self.kubelet.offered(GPU, count)


@dataclass
class RealNode:
    """A node with the real kubelet and its API server."""

    kubelet: RealKubelet
    plane: ControlPlane
    seen: dict[tuple[str, str], int] = field(default_factory=dict)

    async def run(
        self, name: str, containers: dict[str, int], *, init: str = "", annotations: Any = None
    ) -> str:
        made = [_container(each, count, init) for each, count in containers.items()]
        spec = {
            "nodeName": self.kubelet.node,
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "initContainers": [each for each in made if each["name"] == init],
            "containers": [each for each in made if each["name"] != init],
            "tolerations": [{"operator": "Exists"}],
        }
        metadata = {"name": name, "namespace": "default", "annotations": annotations or {}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        said = await asyncio.to_thread(
            self.plane.kubectl, "create", "-f", "-", "-o", "json", stdin=json.dumps(pod)
        )
        return str(json.loads(said)["metadata"]["uid"])

    async def got(self, name: str, container: str) -> dict[str, str]:
        times = self.seen[name, container] = self.seen.get((name, container), 0) + 1
        created = await self.kubelet.made(name, container, times)
        return dict(created["env"])

    async def restart(self, name: str, container: str) -> dict[str, str]:
        await self.kubelet.end_process(name, container)
        return await self.got(name, container)

    async def restart_kubelet(self) -> None:
        await self.kubelet.kill()
        await self.kubelet.start()
        await self.offered(20)

    async def offered(self, count: int) -> None:
        await self.kubelet.offered(GPU, count)


def _container(name: str, count: int, init: str) -> dict[str, Any]:
    command = ["true"] if name == init else ["sleep", "600"]
    limits = {"limits": {GPU: count}} if count else {}
    return {
        "name": name, "image": "test:1", "imagePullPolicy": "Never", "command": command,
        "resources": limits,
    }  # fmt: skip
