"""Run Helm on the project's chart, as a user does.

Invariant: Helm has its own home folder, so it neither reads nor writes files of the user that runs
the tests. It uses only the cluster that a test names."""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.control_plane import BUILD, ROOT

CHART = ROOT / "deploy" / "helm" / "apportion"
REQUIRED = "APPORTION_REQUIRE_KUBERNETES"
TIMEOUT_S = 300


@cache
def find_helm() -> tuple[Path | None, str]:
    """Return the helm binary, or the reason why there is none."""
    command = [str(BUILD), "--helm", "--find"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode == 0:
        return Path(found.stdout.strip()) / "helm", ""
    return None, found.stderr.strip().splitlines()[-1]


def helm(*words: str, kubeconfig: Path | None = None, ok: bool = True) -> str:
    """Run helm and return its output, or its error if `ok` is False."""
    binary, reason = find_helm()
    if binary is None:
        (pytest.fail if REQUIRED in os.environ else pytest.skip)(reason)
    with tempfile.TemporaryDirectory(prefix="helm") as home:
        named = {"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}
        done = subprocess.run(
            [str(binary), *words],
            env=os.environ | {"HOME": home, "XDG_CACHE_HOME": home} | named,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert (done.returncode == 0) is ok, f"helm {' '.join(words)}: {done.stderr}{done.stdout}"
    return done.stdout if ok else done.stderr


def rendered(*words: str) -> str:
    """Return the chart's manifests, rendered with these options for namespace `apportion`."""
    return helm("template", "apportion", str(CHART), "--namespace", "apportion", *words)


def documents(text: str) -> dict[tuple[str, str], Any]:
    """Parse rendered manifests, and return them by kind and name."""
    found = (each for each in yaml.safe_load_all(text) if each)
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def pod_templates(found: dict[tuple[str, str], Any]) -> dict[str, Any]:
    """Return the pod templates of rendered manifests, by the name of their object."""
    pods = {}
    for (_, name), each in found.items():
        spec = each.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template", {})
        if isinstance(template, dict) and "spec" in template:
            pods[name] = template
    return pods
