"""Run a real kube-scheduler that calls a test's extender, configured with the project's files.

Invariant: kube-scheduler acts as `system:kube-scheduler`, with exactly the rights that Kubernetes
grants, and ends with the test."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.control_plane import ROOT, ControlPlane, binaries

CONFIGURATION = ROOT / "deploy" / "extender" / "kube-scheduler.yaml"
POLICY = ROOT / "deploy" / "extender" / "vcuda-policy.json"
USER = "system:kube-scheduler"
FIRST_V1 = (1, 25)
"""The first version that reads the project's configuration unchanged."""
LAST_INSECURE = (1, 22)
"""The last version that listens without TLS by default."""
LAST_POLICY = (1, 22)
"""The last version that reads a policy file."""


def binary() -> Path:
    """Return the path of kube-scheduler. Skip the test if it is missing, because envtest does not
    include it."""
    found = binaries() / "kube-scheduler"
    if not found.exists():
        pytest.skip(f"{found.parent} has no kube-scheduler")
    return found


def configuration(
    version: tuple[int, int], kubeconfig: Path, url: str, **extender: Any
) -> dict[str, Any]:
    """Return the project's configuration of kube-scheduler for this Kubernetes version, with the
    URL of the test's extender."""
    made: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text())
    if version < FIRST_V1:
        made["apiVersion"] = "kubescheduler.config.k8s.io/v1beta1"
    made["clientConnection"] = {"kubeconfig": str(kubeconfig)}
    made["leaderElection"] = {"leaderElect": False}
    made["podInitialBackoffSeconds"] = made["podMaxBackoffSeconds"] = 1
    made["extenders"][0] |= {"urlPrefix": f"{url}/scheduler"} | extender
    return made


@contextmanager
def kube_scheduler(plane: ControlPlane, folder: Path, url: str, **extender: Any) -> Iterator[Path]:
    """Run a kube-scheduler that calls our extender at `url` until the block ends. Yield its log."""
    kubeconfig = _as_itself(plane, folder)
    path = folder / "kube-scheduler.yaml"
    path.write_text(yaml.safe_dump(configuration(plane.version, kubeconfig, url, **extender)))
    insecure = ["--port=0"] if plane.version <= LAST_INSECURE else []
    with _running(folder, "--config", str(path), *insecure) as log:
        yield log


@contextmanager
def policy_scheduler(plane: ControlPlane, folder: Path, url: str) -> Iterator[Path]:
    """Run a kube-scheduler that is configured by a policy file, as the gpu-manager project
    documents.

    Skips the test if this kube-scheduler no longer supports policy files."""
    if plane.version > LAST_POLICY:
        pytest.skip("kube-scheduler reads policy files up to {}.{}".format(*LAST_POLICY))
    policy = json.loads(POLICY.read_text())
    policy["extenders"][0]["urlPrefix"] = f"{url}/scheduler"
    path = folder / "policy.json"
    path.write_text(json.dumps(policy))
    told = ("--policy-config-file", str(path), "--use-legacy-policy-config=true")
    alone = ("--kubeconfig", str(_as_itself(plane, folder)), "--leader-elect=false", "--port=0")
    with _running(folder, *told, *alone) as log:
        yield log


@contextmanager
def plain_scheduler(plane: ControlPlane, folder: Path, requests_per_s: int) -> Iterator[int]:
    """Run a kube-scheduler without extenders until the block ends. Yield its process id.

    `requests_per_s` replaces its default limit of 50 API requests per second."""
    made = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": str(_as_itself(plane, folder)),
            "qps": requests_per_s,
            "burst": requests_per_s,
        },
    }
    path = folder / "kube-scheduler.yaml"
    path.write_text(yaml.safe_dump(made))
    with _process(folder, "--config", str(path)) as process:
        yield process.pid


@contextmanager
def _running(folder: Path, *arguments: str) -> Iterator[Path]:
    with _process(folder, *arguments):
        yield _log(folder)


@contextmanager
def _process(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    path = _log(folder)
    with path.open("ab") as log:
        process = subprocess.Popen(
            [binary(), *arguments, "--secure-port=0", "-v=2"], stdout=log, stderr=log
        )
    try:
        yield process
        assert process.poll() is None, path.read_text()[-3000:]
    finally:
        process.kill()
        process.wait()


def _log(folder: Path) -> Path:
    return folder / "kube-scheduler.log"


def _as_itself(plane: ControlPlane, folder: Path) -> Path:
    """Return a kubeconfig for the test's API server, with the user that Kubernetes defines for
    kube-scheduler."""
    made = yaml.safe_load(plane.kubeconfig.read_text())
    made["users"][0]["user"]["as"] = USER
    path = folder / "kube-scheduler.kubeconfig"
    path.write_text(yaml.safe_dump(made))
    return path
