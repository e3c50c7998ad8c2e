"""Run the project's admission webhook for a test, from its own manifests but on a local address.

Invariant: after a test the API server calls no webhook."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tests.support.certificates import HOST, given_certificate
from tests.support.control_plane import ROOT, ControlPlane
from tests.support.kube_objects import kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.processes import ServiceProcess

MANIFESTS = ROOT / "deploy" / "kubernetes" / "admission"


Change = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def _as_they_are(webhooks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return webhooks


class Webhook:
    """The admission webhook in a test's cluster. Its certificate is signed by the test's own CA."""

    def __init__(self, world: KubeWorld, folder: Path) -> None:
        self.world = world
        self.port = free_port()
        self.authority, self._files = given_certificate(folder)

    async def install(self, change: Change = _as_they_are) -> None:
        """Apply the manifests with this machine's address and the test's CA.

        `change` may edit the webhooks first."""
        plane = self.world.plane
        trusted = base64.b64encode(self.authority.ca.read_bytes()).decode()
        documents = []
        for text in (await plane.user("kustomize", str(MANIFESTS))).split("\n---\n"):
            document = yaml.safe_load(text)
            for webhook in document.get("webhooks", ()):
                path = webhook["clientConfig"].pop("service")["path"]
                webhook["clientConfig"]["url"] = f"https://{HOST}:{self.port}{path}"
                webhook["clientConfig"]["caBundle"] = trusted
            if "webhooks" in document:
                document["webhooks"] = change(document["webhooks"])
            documents.append(document)
        await plane.apply(*documents, namespace="apportion")

    async def start(self, *options: str, first: str = "") -> ServiceProcess:
        """Start the webhook's service, and wait until it is ready. `first` is Python code that the
        process runs before the verb."""
        told = ("--listen", f"{HOST}:{self.port}", *self._files, *options)
        return await self.world.start("admission", *told, first=first)

    async def in_force(self) -> None:
        """Wait until the API server calls the webhook at its current address and accepts its
        current certificate."""
        pod = kube_pod("probe", share())
        del pod["spec"]["schedulerName"]
        told = ("--dry-run=server", "-o", "jsonpath={.spec.schedulerName}", "-f", "-")

        async def taken() -> bool:
            said = await self.world.plane.user("create", *told, stdin=json.dumps(pod), ok=None)
            return said == "apportion"

        await until(taken, "the API server to ask the webhook", interval_s=0.2)

    def certificate(self) -> str:
        """Return the certificate that the service presents, in PEM."""
        return ssl.get_server_certificate((HOST, self.port))


@asynccontextmanager
async def running_webhook(
    world: KubeWorld, *options: str, change: Change = _as_they_are, first: str = ""
) -> AsyncIterator[Webhook]:
    """Run the webhook until the block ends. Yield it once the API server calls it.

    `change` edits the webhook's configuration. `first` is Python code for its process to run first.
    """
    with TemporaryDirectory() as folder:
        webhook = Webhook(world, Path(folder))
        try:
            await webhook.install(change)
            await webhook.start(*options, first=first)
            await webhook.in_force()
            yield webhook
        finally:
            await remove(world.plane)


async def remove(plane: ControlPlane) -> None:
    """Remove the webhook configuration and the webhook's certificates from the cluster."""
    await plane.user("delete", "-k", str(MANIFESTS), "--ignore-not-found")
