"""Run the other programs of a control plane: kube-controller-manager and an unmodified
kube-scheduler.

Invariant: both processes end with the test, and their logs are next to the API server's."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.control_plane import ControlPlane, binaries
from tests.support.ports import free_port


@contextmanager
def controllers(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Run kube-controller-manager and kube-scheduler until the block ends.

    Skips the test if this Kubernetes version was built without them."""
    with ExitStack() as stack:
        alone = ("--leader-elect=false", "--bind-address=127.0.0.1")
        stack.enter_context(_running(plane, folder, "kube-scheduler", *alone))
        certificates = folder / "certificates" / "apiserver.crt"
        manager = (
            f"--root-ca-file={certificates}",
            f"--service-account-private-key-file={folder / 'accounts.key'}",
        )
        stack.enter_context(_running(plane, folder, "kube-controller-manager", *alone, *manager))
        yield


@contextmanager
def claim_controller(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Run kube-scheduler and the controller of ResourceClaims until the block ends.

    The controller creates claims from templates, and releases them. No other controllers run,
    because they would interfere with what a test does to nodes and pods."""
    alone = ("--leader-elect=false", "--bind-address=127.0.0.1")
    only = "--controllers=resourceclaim-controller,garbage-collector-controller"
    with (
        _running(plane, folder, "kube-scheduler", *alone),
        _running(plane, folder, "kube-controller-manager", *alone, only),
    ):
        yield


@contextmanager
def workload_controllers(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Run the controllers that create and delete the pods of Jobs and StatefulSets."""
    names = "job-controller,statefulset-controller,garbage-collector-controller"
    arguments = ("--leader-elect=false", "--bind-address=127.0.0.1", f"--controllers={names}")
    with _running(plane, folder, "kube-controller-manager", *arguments):
        yield


@contextmanager
def _running(plane: ControlPlane, folder: Path, name: str, *arguments: str) -> Iterator[None]:
    binary = binaries() / name
    if not binary.exists():
        pytest.skip(f"{binary.parent} has no {name}")
    command = [str(binary), f"--kubeconfig={plane.kubeconfig}", f"--secure-port={free_port()}"]
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen([*command, *arguments], stdout=log, stderr=log, cwd=folder)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)
