"""Run controllers of other projects with their webhooks, and simulate kubelets for their pods.

Invariant: after a test, the API server calls none of their webhooks."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.authority import Authority
from tests.support.certificates import HOST
from tests.support.control_plane import ControlPlane
from tests.support.kube_world import KubeWorld
from tests.support.polling import until, wait_until
from tests.support.ports import free_port

RUN_S = 280.0
OWN_ETC = """
mount -t tmpfs tmpfs /etc
mkdir -p /etc/kueue/metrics/certs
cp "$0"/tls.* /etc/kueue/metrics/certs
exec "$@"
"""
"""Kueue reads its metrics certificate from this path, which no option changes."""


def needs(variable: str, what: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test unless the environment variable `variable` is set."""
    reason = f"{variable} does not name {what}"
    return pytest.mark.skipif(not os.environ.get(variable), reason=reason)


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block ends. Fail if the program ends earlier."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
        assert process.poll() is None, f"{command[0]} ended:\n{log.read_text()[-3000:]}"
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextmanager
def running_manager(
    plane: ControlPlane, variable: str, folder: Path, api: str, **settings: Any
) -> Iterator[None]:
    """Run another project's controller manager with its CRDs and webhooks until the block ends.

    The environment variable `variable` has the program's folder. `api` and `settings` are the
    apiVersion and the fields of its configuration file."""
    built, name = Path(os.environ[variable]), api.split(".")[1]
    port = free_port()
    authority = Authority(folder)
    authority.issue("tls", HOST)
    configuration = {
        "apiVersion": api,
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{HOST}:{free_port()}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": HOST, "port": port, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }
    file = folder / "configuration.yaml"
    file.write_text(yaml.safe_dump(configuration | settings))
    for crds in built.glob("config/**/crd/bases"):
        _install(plane, crds)
    hooks = {"apiVersion": "v1", "kind": "List", "items": _webhooks(built, name, port, authority)}
    command = [str(built / "manager"), f"--kubeconfig={plane.kubeconfig}", f"--config={file}"]
    if name == "kueue":
        own = ["unshare", "--map-root-user", "--mount", "sh", "-ec", OWN_ETC, str(folder)]
        command = [*own, *command]
    log = folder / "manager.log"
    with running(command, log) as process:
        wait_until(lambda: process.poll() is not None or _listens(port), f"the webhooks of {name}")
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            plane.kubectl("apply", "-f", "-", stdin=json.dumps(hooks))
            yield
        finally:
            kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
            plane.kubectl("delete", kinds, "-l", f"test={name}")


@contextmanager
def running_operator(
    plane: ControlPlane, variable: str, folder: Path, crds: str, *options: str
) -> Iterator[None]:
    """Run another project's operator, which has no webhooks, until the block ends.

    The environment variable `variable` has the program's folder, and `crds` is the folder of its
    CRDs there. `options` are the operator's command-line options."""
    built = Path(os.environ[variable])
    _install(plane, built / crds)
    probes = f"--health-probe-bind-address={HOST}:{free_port()}"
    command = [str(built / "manager"), f"--kubeconfig={plane.kubeconfig}", probes, *options]
    with running(command, folder / "operator.log"):
        yield


def _install(plane: ControlPlane, crds: Path) -> None:
    """Install the custom resources of a folder, and wait until the API server serves them."""
    plane.kubectl("apply", "--server-side", "-f", str(crds))
    number = len(list(crds.glob("*.yaml")))
    wait = ("wait", "--for=condition=Established", "--timeout=5s", "-f", str(crds))
    wait_until(  # kubectl fails while a condition does not exist yet
        lambda: plane.kubectl(*wait, ok=None).count("condition met") == number,
        f"the API server to serve {crds}",
        interval_s=0.2,
    )


def _webhooks(built: Path, name: str, port: int, authority: Authority) -> list[dict[str, Any]]:
    """Return the manager's webhook configurations, changed to the address of the manager on this
    machine."""
    (manifests,) = built.glob("config/**/webhook/manifests.yaml")
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(manifests.read_text()))
    trusted = base64.b64encode(authority.ca.read_bytes()).decode()
    for document in documents:
        document["metadata"] = {
            "name": f"{name}-{document['metadata']['name']}",
            "labels": {"test": name},
        }
        for webhook in document["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            url = f"https://{HOST}:{port}{path}"
            webhook["clientConfig"] = {"url": url, "caBundle": trusted}
    return documents


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


@asynccontextmanager
async def running_kubelets(world: KubeWorld) -> AsyncIterator[None]:
    """Act as the kubelets until the block ends: start and end pods in `default`."""

    async def look() -> bool:
        for pod in (await world.plane.get("pods"))["items"]:
            meta, name = pod["metadata"], pod["metadata"]["name"]
            if meta.get("deletionGracePeriodSeconds"):
                path = f"/api/v1/namespaces/default/pods/{name}"
                now = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
                now["preconditions"] = {"uid": meta["uid"]}
                arguments = ("delete", "--raw", path, "-f", "-")
                await world.plane.user(*arguments, stdin=json.dumps(now), ok=None)
            elif pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending":
                await become(world, pod, "Running")
        return False

    task = asyncio.create_task(until(look, "the test to end", timeout_s=RUN_S, interval_s=0.5))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def become(world: KubeWorld, pod: dict[str, Any], phase: str) -> None:
    """Set the phase of a pod as the pod's kubelet does. Do nothing if the pod is gone or was
    replaced."""
    ready = "True" if phase == "Running" else "False"
    change = {
        "metadata": {"uid": pod["metadata"]["uid"]},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
    }
    name, patch = pod["metadata"]["name"], json.dumps(change)
    await world.plane.user("patch", "pod", name, "--subresource=status", "-p", patch, ok=None)
