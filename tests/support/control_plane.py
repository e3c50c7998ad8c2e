"""Run a real Kubernetes API server for a test: etcd and kube-apiserver, on ports of their own.

There is no kubelet and no controller, so tests create nodes and set the status of pods themselves.
Except for the administrator, every client is a service account with the project's RBAC. Invariant:
no process is left running."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from functools import cache, cached_property
from pathlib import Path
from ssl import create_default_context
from typing import Any

import pytest
import yaml

from tests.support.kube_api import KubeApi
from tests.support.polling import wait_until
from tests.support.ports import free_port
from tests.support.volcano_crds import volcano_crds

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "tests" / "support" / "control_plane_build.sh"
GANGS_SINCE = (1, 36)
"""The first version with PodGroups."""
DRA_SINCE = (1, 34)
"""The first version with resource.k8s.io/v1."""
CERTIFICATE_CRDS = ROOT / "tests" / "support" / "certificate_crds.yaml"
RBAC = ROOT / "deploy" / "kubernetes" / "rbac"
REQUIRED = "APPORTION_REQUIRE_KUBERNETES"
NAMESPACE = "apportion"
ADMIN_TOKEN = "test-admin"


@cache
def find_binaries() -> tuple[Path | None, str]:
    """Return the folder with etcd and kube-apiserver, or None and the reason why there is no such
    folder."""
    found = subprocess.run([BUILD, "--find"], capture_output=True, text=True, check=False)
    if found.returncode == 0:
        return Path(found.stdout.strip()), ""
    return None, found.stderr.strip().splitlines()[-1]


def binaries() -> Path:
    """Return the folder with etcd and kube-apiserver. Fail the test if it does not exist."""
    found, reason = find_binaries()
    if found is None:
        pytest.fail(reason, pytrace=False)
    return found


class ControlPlane:
    """A running etcd and kube-apiserver, with their data in one folder."""

    def __init__(
        self, binaries: Path, folder: Path, *, whole: bool = False, options: tuple[str, ...] = ()
    ) -> None:
        """Configure the control plane. `options` are additional options of kube-apiserver.

        With `whole`, the cluster is like a user's: pods get service accounts, and Apportion is not
        installed."""
        self._binaries = binaries
        self._options = options
        self._whole = whole
        self._folder = folder
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._ports = [free_port() for _ in range(3)]
        self.url = f"https://127.0.0.1:{self._ports[2]}"
        self.kubeconfig = folder / "admin.kubeconfig"

    # -------------------------------------------------------------- life

    @property
    def accounts_key(self) -> Path:
        """Return the file of the private key that signs ServiceAccount tokens."""
        return self._folder / "accounts.key"

    def start(self) -> None:
        """Start etcd and the API server, and install the CRDs and the project's RBAC."""
        self._folder.mkdir(parents=True, exist_ok=True)
        openssl = ["openssl", "genpkey", "-algorithm", "RSA", "-out", str(self.accounts_key)]
        subprocess.run(openssl, check=True, capture_output=True)
        tokens = self._folder / "tokens.csv"
        tokens.write_text(f'{ADMIN_TOKEN},admin,admin,"system:masters"\n')
        self.start_etcd()
        self.start_server()
        self._write_kubeconfig(self.kubeconfig, ADMIN_TOKEN)
        if not self._whole:
            self.install(volcano_crds())
            self.kubectl("apply", "-f", str(CERTIFICATE_CRDS))
            self.kubectl("apply", "-k", str(RBAC))

    def start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._ports[:2])
        self._etcd = self._spawn(
            "etcd",
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )

    def start_server(self) -> None:
        """Start the API server, and wait until it serves requests."""
        key = self.accounts_key
        self._server = self._spawn(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._ports[0]}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self._ports[2]}",
            f"--cert-dir={self._folder / 'certificates'}",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--service-account-issuer={self.url}",
            "--service-cluster-ip-range=10.0.0.0/24",
            *self._admission(),
            *self._options,
        )
        server = self._server
        wait_until(
            lambda: self._serves() or server.poll() is not None,
            "kube-apiserver to serve",
            timeout_s=300,
            interval_s=0.1,
        )
        log = (self._folder / "kube-apiserver.log").read_text()[-3000:]
        assert server.poll() is None, f"kube-apiserver ended:\n{log}"

    @property
    def pids(self) -> dict[str, int]:
        """Return the process ids of etcd and the API server, by name."""
        assert self._etcd is not None
        assert self._server is not None
        return {"kube-apiserver": self._server.pid, "etcd": self._etcd.pid}

    def _admission(self) -> list[str]:
        """Return the options of kube-apiserver for admission plugins and PodGroups.

        The plugins that are turned off rely on controllers that do not run here."""
        if self._whole:
            return []
        off = "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition"
        off += ",StorageObjectInUseProtection"
        version = self._binary_version()
        if version < GANGS_SINCE:
            return [off]
        # In 1.37 two versions are served, as during an upgrade: each PodGroup is listed in both.
        served = ("v1alpha2",) if version == GANGS_SINCE else ("v1alpha3", "v1beta1")
        config = ",".join(f"scheduling.k8s.io/{each}=true" for each in served)
        return [
            f"{off},PodGroupProtection",
            "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true",
            f"--runtime-config={config}",
        ]

    def _binary_version(self) -> tuple[int, int]:
        """Return the major and minor version of the kube-apiserver binary."""
        binary = self._binaries / "kube-apiserver"
        said = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True)
        major, minor, *_ = said.stdout.split()[-1].lstrip("v").split(".")
        return int(major), int(minor)

    def kill_server(self) -> None:
        """Kill the API server with SIGKILL."""
        assert self._server is not None
        self._server.kill()
        self._server.wait()

    def back_up(self) -> Path:
        """Copy etcd's current data, and return the copy's path."""
        assert self._etcd is not None
        copy = self._folder / "etcd-copy"
        shutil.rmtree(copy, ignore_errors=True)
        self._etcd.send_signal(signal.SIGSTOP)
        try:
            shutil.copytree(self._folder / "etcd", copy)
        finally:
            self._etcd.send_signal(signal.SIGCONT)
        return copy

    def restore(self, copy: Path) -> None:
        """Kill etcd and the API server with SIGKILL, and restart them on the copy."""
        self.stop()
        shutil.rmtree(self._folder / "etcd")
        copy.rename(self._folder / "etcd")
        self.start_etcd()
        self.start_server()

    def stop(self) -> None:
        """Stop the API server and etcd."""
        if "api" in self.__dict__:
            self.api.close()
        for process in (self._server, self._etcd):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def _spawn(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [self._binaries / name, *arguments], stdout=log, stderr=log, cwd=self._folder
            )

    def _serves(self) -> bool:
        certificate = self._folder / "certificates" / "apiserver.crt"
        if not certificate.exists():
            return False
        request = urllib.request.Request(  # noqa: S310 - our own address
            f"{self.url}/readyz", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}
        )
        try:
            context = create_default_context(cafile=str(certificate))
            with urllib.request.urlopen(request, timeout=2, context=context) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    @cached_property
    def api(self) -> KubeApi:
        """Return a client of the API server that does not use kubectl."""
        certificate = self._folder / "certificates" / "apiserver.crt"
        return KubeApi(self.url, certificate, ADMIN_TOKEN)

    @cached_property
    def version(self) -> tuple[int, int]:
        """Return the major and minor version of the running API server."""
        about = self.api.request("GET", "/version")
        return int(about["major"]), int(about["minor"].rstrip("+"))

    # -------------------------------------------------------------- people and accounts

    def kubeconfig_of(self, account: str) -> Path:
        """Return a kubeconfig with the token of one of the project's service accounts."""
        path = self._folder / f"{account}.kubeconfig"
        if not path.exists():
            request = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": 7200},
            }
            answer = self.kubectl(
                "create",
                "--raw",
                f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token",
                "-f",
                "-",
                stdin=json.dumps(request),
            )
            self._write_kubeconfig(path, json.loads(answer)["status"]["token"])
        return path

    def _write_kubeconfig(self, path: Path, token: str) -> None:
        certificate = self._folder / "certificates" / "apiserver.crt"
        cluster = {"server": self.url, "certificate-authority": str(certificate)}
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": "test", "user": {"token": token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                    "current-context": "test",
                }
            )
        )

    # -------------------------------------------------------------- kubectl

    def install(self, crds: list[dict[str, Any]]) -> None:
        """Apply these CRDs and wait until the API server serves them."""
        listed = {"apiVersion": "v1", "kind": "List", "items": crds}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(listed))
        names = [f"crd/{crd['metadata']['name']}" for crd in crds]
        self.kubectl("wait", "--for=condition=Established", *names)

    def kubectl(self, *arguments: str, stdin: str | None = None, ok: bool | None = True) -> str:
        """Run kubectl as administrator. Return its output, or its error output if `ok` is False.

        With `ok=True` the command must succeed, and with False it must fail. With None it may do
        either."""
        binary = self._binaries / "kubectl"
        done = subprocess.run(
            [
                str(binary) if binary.exists() else "kubectl",
                f"--kubeconfig={self.kubeconfig}",
                *arguments,
            ],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | {"HOME": str(self._folder)},
        )
        assert ok is None or (done.returncode == 0) is ok, (
            f"kubectl {' '.join(arguments)}: {done.stderr}"
        )
        return done.stderr if ok is False else done.stdout

    async def user(self, *arguments: str, stdin: str | None = None, ok: bool | None = True) -> str:
        """Run `kubectl` in a thread, so that the event loop keeps running."""
        return await asyncio.to_thread(self.kubectl, *arguments, stdin=stdin, ok=ok)

    async def apply(self, *documents: dict[str, Any], namespace: str = "default") -> None:
        """Apply these documents as `kubectl apply` does. New objects are created without kubectl,
        which is faster."""
        there = [
            each
            for each in documents
            if not await asyncio.to_thread(self.api.create, each, namespace)
        ]
        if there:
            listed = {"apiVersion": "v1", "kind": "List", "items": there}
            await self.user("apply", "-n", namespace, "-f", "-", stdin=json.dumps(listed))

    async def get(self, kind: str, name: str = "", *, namespace: str = "default") -> Any:
        """Return one object, or all objects of a kind, from the API server."""
        return await asyncio.to_thread(self.api.get, kind, name, namespace)

    def _free_claims(self) -> None:
        """Remove the finalizers of ResourceClaims that still exist after their test."""
        for claim in self.api.get("resourceclaims")["items"]:
            about = claim["metadata"]
            path = self.api.resource("resourceclaims").path(about["namespace"], about["name"])
            self.api.request("PATCH", path, {"metadata": {"finalizers": None}}, merge=True)

    async def remove_everything(self) -> None:
        """Delete all objects that tests leave behind, and wait until they are gone."""
        spaced = ["jobs.batch.volcano.sh", "pods", "resourcequotas", "poddisruptionbudgets"]
        spaced += ["podgroups.scheduling.volcano.sh", "podgroups.scheduling.x-k8s.io"]
        spaced += ["podgroups.scheduling.run.ai"]
        spaced += ["persistentvolumeclaims"]
        if self.version >= GANGS_SINCE:
            spaced += ["podgroups.scheduling.k8s.io"]
        if self.version >= DRA_SINCE:
            spaced += ["resourceclaims", "resourceclaimtemplates"]
            await asyncio.to_thread(self._free_claims)
        await asyncio.to_thread(self.api.remove_all, *spaced)
        of_cluster = ("queues", "nodes", "csinodes", "csidrivers", "persistentvolumes")
        await asyncio.to_thread(self.api.remove_all, *of_cluster, "storageclasses")
