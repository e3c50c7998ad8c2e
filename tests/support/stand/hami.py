"""Install the stand-in for HAMi's chart with Helm, as an operator installs the real chart."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.control_plane import ControlPlane
from tests.support.helm import helm

CHART: Final = Path(__file__).parent / "hami_chart"
VALUES: Final[dict[str, Any]] = {
    "resourceName": "nvidia.com/gpu",
    "resourceMem": "nvidia.com/gpumem",
    "schedulerName": "hami-scheduler",
    "scheduler": {
        "defaultSchedulerPolicy": {
            "nodeSchedulerPolicy": "binpack",
            "gpuSchedulerPolicy": "spread",
        },
        "replicas": 1,
    },
    "devicePlugin": {
        "deviceSplitCount": 10,
        "deviceMemoryScaling": 1,
        "nvidiaNodeSelector": {"gpu": "on"},
        "tolerations": [],
    },
}
"""The Helm values that the operator of this cluster set for HAMi's chart."""


def install_hami(
    plane: ControlPlane, folder: Path, cards: Mapping[str, str] | None = None, paths: str = ""
) -> None:
    """Install HAMi's doubles in the namespace kube-system, with files in this folder.

    `cards` maps each node to the ids of its GPUs, separated by commas. The doubles import their
    code from `paths`."""
    chart = folder / "hami"
    (chart / "templates").mkdir(parents=True)
    for path in ("Chart.yaml", "templates/hami.yaml"):
        (chart / path).write_text((CHART / path).read_text())
    # not among the values, so that `helm get values --all` shows only HAMi's keys
    double = {"python": sys.executable, "kubeconfig": str(plane.kubeconfig), "path": paths}
    (chart / "double.yaml").write_text(yaml.safe_dump({**double, "cards": dict(cards or {})}))
    values = folder / "hami.yaml"
    values.write_text(yaml.safe_dump(VALUES))
    words = ("install", "hami", str(chart), "--namespace", "kube-system", "-f", str(values))
    helm(*words, kubeconfig=plane.kubeconfig)
