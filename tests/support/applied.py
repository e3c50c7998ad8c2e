"""What `kubectl apply -k` brings of ours: each object, and the pods that come of it.

Invariant: read from the tree as it stands, so what is rendered anew is looked at anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from tests.support.control_plane import ROOT

MANIFESTS = ROOT / "deploy" / "kubernetes"
_RUNNING = ("Deployment", "DaemonSet", "StatefulSet", "Job")


def objects(pattern: str = "*.yaml") -> Iterator[dict[str, Any]]:
    """Everything of files of this name that kustomize would apply."""
    for path in sorted(MANIFESTS.rglob(pattern)):
        yield from filter(None, yaml.safe_load_all(path.read_text("utf-8")))


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """The template of a pod, by the name of what makes it."""
    for each in objects():
        made = each["spec"]["jobTemplate"] if each["kind"] == "CronJob" else each
        if each["kind"] in (*_RUNNING, "CronJob"):
            yield each["metadata"]["name"], made["spec"]["template"]
