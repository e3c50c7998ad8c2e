"""Tests of `kubectl apportion`, which reaches the gateway through a real API server."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from apportion.cli.client.through_cluster import ROLE
from apportion.gateway.access.kube_login import AUDIENCE
from tests.support.control_plane import NAMESPACE, ROOT, ControlPlane
from tests.support.fleet import rack
from tests.support.kube_world import KubeWorld
from tests.support.pods import ask, pod

SLICES_SINCE = (1, 21)
"""The first version with discovery.k8s.io/v1."""
PLUGIN = f"""#!{sys.executable}
from apportion.cli.main import kubectl
kubectl()
"""


class User(NamedTuple):
    """A user with a kubeconfig, a token for the gateway, and the plugin on the PATH."""

    plane: ControlPlane
    kubeconfig: Path
    environment: dict[str, str]

    def run(self, *words: str, more: dict[str, str] | None = None) -> tuple[int, str, str]:
        """Run `kubectl apportion`. Return the exit code, the output and the errors."""
        own = self.plane._binaries / "kubectl"
        done = subprocess.run(
            [str(own) if own.exists() else "kubectl", "apportion", *words],
            env=self.environment | (more or {}), capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    async def __call__(self, *words: str, **more: str) -> tuple[int, str, str]:
        """Run `kubectl apportion` in a thread, so that the event loop keeps running."""
        return await asyncio.to_thread(self.run, *words, more=more)


def own_address() -> str:
    """Return an address of this machine that an EndpointSlice accepts: not a loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        try:
            unsent.connect(("192.0.2.1", 9))  # sends nothing
        except OSError as error:
            pytest.skip(f"this machine has no address but loopback ones: {error}")
        return str(unsent.getsockname()[0])


def endpoints(address: str, port: int) -> list[dict[str, Any]]:
    """Return the pod of the gateway, and its endpoint for old and for new API servers."""
    of = {"kind": "Pod", "name": "gateway", "namespace": NAMESPACE}
    about = {"name": "gateway", "namespace": NAMESPACE}
    container = {"name": "gateway", "image": "apportion"}
    ports = [{"name": "http", "port": port}]
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": {"containers": [container]}},
        {
            "apiVersion": "v1", "kind": "Endpoints", "metadata": about,
            "subsets": [{"addresses": [{"ip": address, "targetRef": of}], "ports": ports}],
        },
        {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": about | {"labels": {"kubernetes.io/service-name": "gateway"}},
            "addressType": "IPv4", "ports": ports,
            "endpoints": [
                {"addresses": [address], "conditions": {"ready": True}, "targetRef": of}
            ],
        },
    ]  # fmt: skip


@pytest.fixture
def service(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Provide the Service of the chart, without endpoints, and a user who may use the proxy."""
    manifest = (ROOT / "deploy/kubernetes/services/gateway.yaml").read_text().split("---")[0]
    control_plane.kubectl("apply", "-f", "-", stdin=manifest)
    bind = ("rolebinding", "mei", "-n", NAMESPACE)
    control_plane.kubectl(
        "create", *bind, "--role", ROLE, f"--serviceaccount={NAMESPACE}:watcher"
    )  # fmt: skip
    control_plane.kubectl(
        "create", "clusterrolebinding", "mei-viewer", "--clusterrole", "apportion-viewer",
        f"--serviceaccount={NAMESPACE}:watcher",
    )  # fmt: skip
    yield control_plane
    control_plane.kubectl("delete", "clusterrolebinding", "mei-viewer")
    control_plane.kubectl("delete", *bind)
    for kind in ("service", "endpoints", "endpointslice"):
        control_plane.kubectl("delete", kind, "gateway", "-n", NAMESPACE, ok=None)


@pytest.fixture
async def user(world: KubeWorld, service: ControlPlane, tmp_path: Path) -> User:
    """Provide a user of `kubectl apportion`."""
    (tmp_path / "bin").mkdir()
    plugin = tmp_path / "bin" / "kubectl-apportion"
    plugin.write_text(PLUGIN)
    plugin.chmod(0o755)
    spec = {"expirationSeconds": 3600, "audiences": [AUDIENCE]}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/watcher/token"
    said = await service.user("create", "--raw", path, "-f", "-", stdin=json.dumps(request))
    token = tmp_path / "mei.token"
    token.write_text(json.loads(said)["status"]["token"])
    kubeconfig = service.kubeconfig_of("watcher")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("APPORTION_")
    }
    environment |= {
        "PATH": f"{plugin.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("services", "schemas")),
        "HOME": str(tmp_path), "COLUMNS": "200", "KUBECONFIG": str(kubeconfig),
        "APPORTION_TOKEN": str(token), "APPORTION_GATEWAY": "http://127.0.0.1:1",
    }  # fmt: skip
    return User(service, kubeconfig, environment)


async def serve(world: KubeWorld) -> None:
    """Start a gateway with a login, on a ledger with two pods, behind the Service."""
    await world.facts.write(rack("n1", 2))
    await world.facts.write(
        pod("u1", ask(), name="mine"), pod("u2", ask(), namespace="team-b", name="theirs"),
        role="operator",
    )  # fmt: skip
    address = own_address()
    kubeconfig = str(world.plane.kubeconfig_of("gateway"))
    options = ("--listen", f"{address}:0", "--kubeconfig", kubeconfig)
    gateway = await world.start("gateway", *options)
    url = str((await gateway.logged("answering"))["url"])
    documents = endpoints(address, urlsplit(url).port or 0)
    if world.plane.version < SLICES_SINCE:
        documents = [each for each in documents if each["kind"] != "EndpointSlice"]
    await world.plane.apply(*documents, namespace=NAMESPACE)
    status = {"status": {"podIP": address, "podIPs": [{"ip": address}], "phase": "Running"}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/gateway/status"
    await asyncio.to_thread(lambda: world.plane.api.request("PATCH", path, status, merge=True))


async def test_verbs_answer_without_a_port_forward(world: KubeWorld, user: User) -> None:
    """The plugin lists, explains and plans through the API server. It shows pods of the context's
    namespace unless -n or -A is given."""
    await serve(world)

    async def names(*words: str) -> list[str]:
        code, out, err = await user("get", "pods", "-o", "name", *words)
        assert code == 0, err
        return out.split()

    assert await names() == ["default/mine"]
    assert await names("-n", "team-b") == ["team-b/theirs"]
    assert await names("-A", "--context", "test") == ["default/mine", "team-b/theirs"]
    code, out, err = await user("why", "mine", "--json")
    assert (code, json.loads(out)["name"]) == (0, "mine"), err
    manifest = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "next"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {
            "nvidia.com/gpu": 1}}}]},
    }  # fmt: skip
    file = user.kubeconfig.parent / "next.json"
    file.write_text(json.dumps(manifest))
    code, out, err = await user("plan", "-f", str(file), "--json")
    assert (code in {0, 5}, "next" in out) == (True, True), err
    code, _, err = await user("get", "pods", APPORTION_TOKEN=str(file))
    assert (code, "--token" in err) == (2, True)
    code, _, err = await user("get", "pods", APPORTION_TOKEN="")
    assert (code, "login" in err) == (3, True)
    code, _, err = await user("delete", "mine")
    assert (code, "APPORTION_NATS_URL" in err) == (3, True)


async def test_errors_of_the_api_server_name_the_fix(world: KubeWorld, user: User) -> None:
    """If the Service is missing, has no endpoints or is forbidden to the user, the plugin's error
    names the fix."""
    code, _, err = await user("get", "nodes")
    assert (code, f"{NAMESPACE}/gateway" in err, "get pods -l app=gateway" in err) == (
        3,
        True,
        True,
    )
    other = user.plane.kubeconfig_of("binder")
    code, _, err = await user("get", "nodes", "--kubeconfig", str(other))
    assert (code, "services/proxy" in err, "http:gateway:8470" in err, ROLE in err) == (
        3, True, True, True,
    )  # fmt: skip
    admin = str(user.plane.kubeconfig)
    code, _, err = await user("--kubeconfig", admin, "get", "nodes", "--gateway-service", "team/gw")
    assert (code, "team/gw" in err, "--gateway-service" in err) == (3, True, True)


async def test_a_gateway_in_another_namespace_is_named_but_not_asked(
    world: KubeWorld, user: User
) -> None:
    """If the chart's namespace has no gateway, the error names the Services with its labels.

    The plugin sends them no token, because any tenant may label a Service."""
    about = await user.plane.get("service", "gateway", namespace=NAMESPACE)
    await user.plane.user("delete", "service", "gateway", "-n", NAMESPACE)
    metadata = {"name": "gpus", "labels": about["metadata"]["labels"]}
    ports = [{"name": "http", "port": 80, "appProtocol": "https"}]
    spec = {"selector": {"app": "gateway"}, "ports": ports}
    await user.plane.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
                            "spec": spec})  # fmt: skip
    try:
        code, _, err = await user("get", "nodes", KUBECONFIG=str(user.plane.kubeconfig))
        assert (code, "default/https:gpus:80" in err) == (3, True), err
    finally:
        await user.plane.user("delete", "service", "gpus", "-n", "default")
