"""Run a whole system for a test: a real API server, a real ledger, and the services between them.

Each service uses the account that the project's manifests give it. Invariant: a test leaves neither
processes nor objects behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.control_plane import ControlPlane
from tests.support.facts import Facts
from tests.support.kube_api import NOW
from tests.support.nats import Bus, running_bus
from tests.support.polling import until
from tests.support.processes import ServiceProcess


class KubeWorld:
    """The system under test in one test: a control plane, a ledger, and Apportion's services."""

    def __init__(self, plane: ControlPlane, bus: Bus, facts: Facts, stack: AsyncExitStack) -> None:
        self.plane = plane
        self.bus = bus
        self.facts = facts
        self._stack = stack
        self._running: list[ServiceProcess] = []

    def service(self, verb: str, *options: str, first: str = "") -> ServiceProcess:
        """Return a service without starting it. A service that uses the cluster gets access to it.

        `first` is Python code that the service's process runs first."""
        kube: tuple[str, ...] = ()
        if verb in {"watcher", "binder"}:
            kube = ("--kubeconfig", str(self.plane.kubeconfig_of(verb)))
        return ServiceProcess(verb, self.bus.server.url_for(verb), *kube, *options, first=first)

    async def start(self, verb: str, *options: str, first: str = "") -> ServiceProcess:
        """Start a service, and wait until it is ready. The service runs until the test ends.

        `first` is Python code that the service's process runs before the verb."""
        service = self.service(verb, *options, first=first)
        process = await self._stack.enter_async_context(service)
        self._running.append(process)
        await process.ready()
        return process

    async def stop(self, *verbs: str) -> None:
        """Stop the services that run these verbs, with SIGTERM. Each must exit with 0."""
        for process in self._running:
            if process.verb in verbs:
                assert await process.stop() == 0

    async def agents(self, *fleet: tuple[str, str]) -> None:
        """Start an agent for each node and its simulated devices, such as `("n1", "2xT4")`."""
        for node, devices in fleet:
            await self.start("agent", "--simulate", devices, "--node", node)

    async def bind(
        self, name: str, node: str, annotations: dict[str, str], *, namespace: str = "default"
    ) -> None:
        """Bind a pod as another scheduler does."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
        await asyncio.to_thread(self.plane.api.request, "POST", path, binding)

    async def delete(self, name: str, *, namespace: str = "default") -> None:
        """Delete a pod at once, as its kubelet does after the pod has ended."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        await asyncio.to_thread(self.plane.api.request, "DELETE", path, NOW)

    async def pod(self, name: str, *, namespace: str = "default") -> Any:
        return await self.plane.get("pod", name, namespace=namespace)

    async def bound(self, name: str, *, namespace: str = "default") -> Any:
        """Wait until the pod is bound, and return the pod."""

        async def found() -> Any:
            pod = await self.pod(name, namespace=namespace)
            return pod if pod["spec"].get("nodeName") else None

        return await until(found, f"pod {name} to be bound", interval_s=0.1)

    async def described(self, name: str, *words: str, namespace: str = "default") -> str:
        """Wait until `kubectl describe pod` shows all of these words, and return its output."""
        text = ""

        async def shown() -> bool:
            nonlocal text
            text = await self.plane.user("describe", "pod", name, "-n", namespace)
            return all(word in text for word in words)

        what = f"describe pod {name} to show {words}"
        try:
            await until(shown, what, interval_s=0.3)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows:\n{text}") from None
        return text


@asynccontextmanager
async def running_world(plane: ControlPlane, folder: Path) -> AsyncIterator[KubeWorld]:
    """Yield a running system with an empty ledger and an empty cluster."""
    async with running_bus(folder / "nats") as bus, AsyncExitStack() as stack:
        facts = Facts(bus)
        await facts.open()
        try:
            yield KubeWorld(plane, bus, facts, stack)
        finally:
            await stack.aclose()
            await plane.remove_everything()
