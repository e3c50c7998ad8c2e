"""The process of a pod of HAMi's chart: the double of its scheduler, or of its device plugin.

    python -m tests.support.stand.hami_process scheduler|plugin

It acts as the ServiceAccount that HAMi's chart gives to it. Because the pod is a local process
without mounts, it requests the account's token with the kubeconfig of the administrator."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.support.foreign_plugins import ForeignPlugin
from tests.support.foreign_schedulers import ForeignScheduler
from tests.support.kube_api import KubeApi
from tests.support.real_kubelet import HOME

ACCOUNTS = {"scheduler": "hami-scheduler", "plugin": "hami-device-plugin"}
TOKENS = "/api/v1/namespaces/kube-system/serviceaccounts/{}/token"


def administrator(kubeconfig: Path) -> KubeApi:
    """Return a client with the rights of a test's kubeconfig."""
    return _client(kubeconfig, "")


def _client(kubeconfig: Path, token: str) -> KubeApi:
    """Return a client with this token, or else with the token of the kubeconfig."""
    about = yaml.safe_load(kubeconfig.read_text())
    cluster = about["clusters"][0]["cluster"]
    own = about["users"][0]["user"]["token"]
    return KubeApi(cluster["server"], Path(cluster["certificate-authority"]), token or own)


def _as(account: str) -> KubeApi:
    kubeconfig = Path(os.environ["KUBECONFIG"])
    asked: dict[str, Any] = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 86_400},
    }
    answer = administrator(kubeconfig).request("POST", TOKENS.format(account), asked)
    return _client(kubeconfig, answer["status"]["token"])


async def main(part: str) -> None:
    """Run until the kubelet kills the process. If an error ends it, the kubelet restarts it."""
    api = await asyncio.to_thread(_as, ACCOUNTS[part])
    if part == "scheduler":
        await ForeignScheduler(api, "hami").run()
        return
    node = os.environ["NODE_NAME"]
    cards = json.loads(os.environ["CARDS"])[node]
    await ForeignPlugin(api, node, "hami", ids=cards.split(",")).register(HOME / "device-plugins")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
