"""The webhook of a test: the project's own manifests, with the address of a service that runs here.

Invariant: after a test the API server asks nobody any more.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import yaml

from tests.support.control_plane import ROOT, ControlPlane
from tests.support.kube_objects import kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.processes import ServiceProcess

MANIFESTS = ROOT / "deploy" / "kubernetes" / "admission"
HOST = "127.0.0.1"
CONFIGURATION = ("mutatingwebhookconfiguration", "apportion")


Change = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def _as_they_are(webhooks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return webhooks


class Webhook:
    """One webhook of a cluster; `port` is where the API server finds it."""

    def __init__(self, world: KubeWorld) -> None:
        self.world = world
        self.port = free_port()

    async def install(self, change: Change = _as_they_are) -> None:
        """Apply the manifests, but for the address, which is ours instead of a Service's, and what
        `change` makes of the webhooks.
        """
        plane = self.world.plane
        documents = []
        for text in (await plane.user("kustomize", str(MANIFESTS))).split("\n---\n"):
            document = yaml.safe_load(text)
            for webhook in document.get("webhooks", ()):
                path = webhook["clientConfig"].pop("service")["path"]
                webhook["clientConfig"]["url"] = f"https://{HOST}:{self.port}{path}"
            if "webhooks" in document:
                document["webhooks"] = change(document["webhooks"])
            documents.append(document)
        await plane.apply(*documents, namespace="apportion")

    async def start(
        self, *options: str, port: int | None = None, first: str = ""
    ) -> ServiceProcess:
        """A service that answers, ready; `first` is code that it runs before."""
        kubeconfig = str(self.world.plane.kubeconfig_of("admission"))
        address = f"{HOST}:{port or self.port}"
        told = ("--listen", address, "--host", HOST)
        options = ("--kubeconfig", kubeconfig, *told, *options)
        return await self.world.start("admission", *options, first=first)

    async def in_force(self) -> None:
        """Wait until the API server has learnt of the webhook, its address and its certificate."""
        pod = kube_pod("probe", share())
        del pod["spec"]["schedulerName"]
        told = ("--dry-run=server", "-o", "jsonpath={.spec.schedulerName}", "-f", "-")

        async def taken() -> bool:
            said = await self.world.plane.user("create", *told, stdin=json.dumps(pod), ok=None)
            return said == "apportion"

        await until(taken, "the API server to ask the webhook", interval_s=0.2)

    def certificate(self, port: int | None = None) -> str:
        """The certificate that is served, in PEM."""
        return ssl.get_server_certificate((HOST, port or self.port))

    async def trusted(self) -> str:
        """The caBundle that the API server goes by, as it stands in the configuration."""
        found: Any = await self.world.plane.get(*CONFIGURATION)
        (bundle,) = {each["clientConfig"].get("caBundle", "") for each in found["webhooks"]}
        return str(bundle)


@asynccontextmanager
async def running_webhook(
    world: KubeWorld, *options: str, change: Change = _as_they_are, first: str = ""
) -> AsyncIterator[Webhook]:
    """The webhook of the world, in force; `change` changes its configuration, and `first` is code
    that the service runs before.
    """
    webhook = Webhook(world)
    try:
        await webhook.install(change)
        await webhook.start(*options, first=first)
        await webhook.in_force()
        yield webhook
    finally:
        await remove(world.plane)


async def remove(plane: ControlPlane) -> None:
    """Take the webhook and its certificates out of the cluster."""
    await plane.user("delete", "-k", str(MANIFESTS), "--ignore-not-found")
