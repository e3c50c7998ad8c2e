"""The documentation's `kubectl` and `helm` commands run against a real API server.

There is no kubelet and no controller, so commands that wait for a pod are left out."""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.control_plane import CERTIFICATE_CRDS, ControlPlane, find_binaries
from tests.support.documented import blocks, calls, commands, pages, text_of
from tests.support.helm import find_helm
from tests.support.kube_objects import kube_node
from tests.support.stand.hami import install_hami
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.nightly
TOOLS = {"kubectl", "helm"}
PAGES = [
    page
    for page in pages()
    if TOOLS & {program for each in commands(text_of(page)) for program, *_ in calls(each)}
]
LEFT_OUT = re.compile(
    r"^(?:sudo |export |alias )?(?:docker |kind |apportion|nvidia-\w+|curl|APPORTION\w+).*\n"
    r"|^kubectl.*(?:port-forward|rollout status).*\n"
    r"| --wait --timeout \w+",
    re.MULTILINE,
)
"""Commands for an image, a kind cluster or the gateway, and those that need a running pod."""
INSTALL = "helm install apportion deploy/helm/apportion --namespace apportion --create-namespace"
BY_HAND = "kubectl create namespace apportion"
NAMESPACES = ("team-a", "research", "monitoring")
ACCOUNTS = (("default", "default"), ("mei", "team-a"))  # a controller would make the first
KINDS = ("PodMonitor", "PrometheusRule")


def crd(kind: str) -> dict[str, Any]:
    """Return a CustomResourceDefinition for a kind of the Prometheus Operator. It accepts any
    object."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


@contextmanager
def cluster(folder: Path) -> Iterator[ControlPlane]:
    """Run a cluster with one node, some namespaces, a Deployment, HAMi's chart, and the CRDs of the
    Prometheus Operator."""
    found, reason = find_binaries()
    if found is None:
        pytest.skip(reason)
    running = ControlPlane(found, folder, whole=True)
    try:
        running.start()
        for name in NAMESPACES:
            running.kubectl("create", "namespace", name)
        for account, space in ACCOUNTS:
            running.kubectl("create", "serviceaccount", account, "--namespace", space)
        running.kubectl("create", "deployment", "chat", "--image=app", "--namespace", "research")
        install_hami(running, folder)
        made = {
            "kind": "List",
            "apiVersion": "v1",
            "items": [kube_node("node-1"), *map(crd, KINDS)],
        }
        running.kubectl("create", "-f", "-", stdin=json.dumps(made))
        running.kubectl("create", "-f", str(CERTIFICATE_CRDS))
        running.kubectl("wait", "--for=condition=established", "crd", "--all")
        yield running
    finally:
        running.stop()


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    """All command blocks of a page run in order."""
    for name in ("examples", "deploy"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "POD.yaml").symlink_to(ROOT / "examples/pods/hami.yaml")
    installs: list[list[str]] = [[] if "helm install" in text_of(page) else [INSTALL]]
    for block in blocks(text_of(page), "sh", "console"):
        shown = re.findall(r"^\$ (.*\n)", block, re.MULTILINE)
        script = LEFT_OUT.sub("", "".join(shown) or block.replace("\\\n", " "))
        if BY_HAND in script:  # instead of Helm, so in another cluster
            installs.append([])
        if any(re.search(rf"\b{tool} ", script) for tool in TOOLS):
            installs[-1].append(script)
    for number, scripts in enumerate(installs):
        with cluster(tmp_path / f"plane-{number}") as plane:
            for script in scripts:
                shell(plane, tmp_path, script)
                # no pod serves the webhook here
                plane.kubectl("delete", "mutatingwebhookconfigurations", "--all")


def shell(plane: ControlPlane, folder: Path, script: str) -> None:
    """Run a bash script whose `kubectl` and `helm` use this cluster."""
    helm, kubernetes = find_helm()[0], find_binaries()[0]
    assert helm is not None
    assert kubernetes is not None
    named = re.sub(r"\bPOD$", "gpu-pod", script.replace("NODE", "node-1"), flags=re.MULTILINE)
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", named],
        cwd=folder,
        env={
            "PATH": f"{helm.parent}:{kubernetes}:/usr/bin:/bin",
            "KUBECONFIG": str(plane.kubeconfig),
            "HOME": str(folder),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
