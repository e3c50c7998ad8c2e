"""Read the objects that `kubectl apply -k` creates, and the pod templates in them.

Invariant: manifests are read from the working tree, so freshly rendered files are checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from tests.support.control_plane import ROOT

MANIFESTS = ROOT / "deploy" / "kubernetes"
_RUNNING = ("Deployment", "DaemonSet", "StatefulSet", "Job")


def objects(pattern: str = "*.yaml") -> Iterator[dict[str, Any]]:
    """Yield every object that kustomize would apply from the files that match `pattern`."""
    for path in sorted(MANIFESTS.rglob(pattern)):
        yield from filter(None, yaml.safe_load_all(path.read_text("utf-8")))


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each object with a pod template, and the template."""
    for each in objects():
        made = each["spec"]["jobTemplate"] if each["kind"] == "CronJob" else each
        if each["kind"] in (*_RUNNING, "CronJob"):
            yield each["metadata"]["name"], made["spec"]["template"]
