"""Tests of doctor's checks of a cluster, with a real API server."""

import asyncio
import base64
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from apportion.core.doctor.facts import KubeFacts, Unserved
from apportion.runtime.kube.client import open_kube
from apportion.runtime.kube.examining import RIGHTS, examine_kube
from apportion.runtime.process.clock import SystemClock
from tests.support.control_plane import ControlPlane
from tests.support.kube_objects import kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.ports import free_port

BINDERS = {"create pods/binding", "patch pods/status", "delete pods"}
SPACE = "doctor"


async def seen(kubeconfig: Path, now: datetime | None = None) -> KubeFacts:
    """Return the facts about the cluster that doctor finds with this kubeconfig."""
    async with open_kube(kubeconfig, None) as api:
        return await examine_kube(api, now or SystemClock().now())


def webhook(**client: Any) -> dict[str, Any]:
    """Return a webhook configuration that calls the server described by `client`. It applies only
    to a namespace that does not exist."""
    named = {"kubernetes.io/metadata.name": "nowhere"}
    hook = {
        "name": "pods.admission.apportion.dev", "clientConfig": client, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "namespaceSelector": {"matchLabels": named},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
                   "operations": ["CREATE"]}],
    }  # fmt: skip
    return {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "apportion"}, "webhooks": [hook],
    }  # fmt: skip


async def test_who_may_do_what_is_seen_as_it_is(control_plane: ControlPlane) -> None:
    """Run as an admin, doctor finds no missing right. Run as the watcher, it finds that the
    binder's rights and the right to read the webhook are missing."""
    admin = await seen(control_plane.kubeconfig)
    major, minor = control_plane.version
    assert admin.version.startswith(f"v{major}.{minor}.")
    assert (admin.problem, admin.denied, admin.webhook) == ("", (), "")
    watcher = await seen(control_plane.kubeconfig_of("watcher"))
    assert (watcher.problem, set(watcher.denied), watcher.webhook) == ("", BINDERS, None)
    gateway = await seen(control_plane.kubeconfig_of("gateway"))
    assert gateway.denied == tuple(map(str, RIGHTS))


async def test_pods_that_no_scheduler_looks_at(control_plane: ControlPlane) -> None:
    """If pods stay pending because no scheduler serves their scheduler name, doctor reports the
    name.

    Doctor ignores pods with scheduling gates, and new pods."""
    plane = control_plane
    kai = {"schedulerName": "kai-scheduler"}
    gates = [{"name": "example.com/quota"}]
    try:
        await plane.apply(
            kube_pod("b", share(), **kai),
            kube_pod("a", share(), **kai),
            kube_pod("gated", share(), schedulingGates=gates, schedulerName="yunikorn"),
        )
        assert (await seen(plane.kubeconfig)).unserved == ()
        later = (await seen(plane.kubeconfig, datetime(2126, 3, 1, tzinfo=UTC))).unserved
        assert later == (Unserved("kai-scheduler", 2, "default/a"),)
    finally:
        await plane.user("delete", "pods", "--all", "--force", "--grace-period=0")


async def test_a_webhook_is_followed_to_who_answers(control_plane: ControlPlane) -> None:
    """Doctor reports a webhook without a CA, and a webhook whose Service has no ready endpoint.
    With a ready endpoint or an external URL the webhook is reported as ready."""
    plane = control_plane
    service = {"namespace": SPACE, "name": "admission", "path": "/admission"}
    certificate = Path(yaml.safe_load(await asyncio.to_thread(plane.kubeconfig.read_text))[
        "clusters"][0]["cluster"]["certificate-authority"])  # fmt: skip
    trusted = base64.b64encode(await asyncio.to_thread(certificate.read_bytes)).decode()
    await plane.user("create", "namespace", SPACE, ok=None)
    try:
        await plane.apply(webhook(service=service))
        assert "caBundle is empty" in str((await seen(plane.kubeconfig)).webhook)
        await plane.apply(webhook(service=service, caBundle=trusted))
        nobody = f"its Service {SPACE}/admission has no ready endpoint"
        assert (await seen(plane.kubeconfig)).webhook == nobody
        ends = [{"addresses": [{"ip": "10.9.8.7"}], "ports": [{"port": 8443}]}]
        meta = {"name": "admission", "namespace": SPACE}
        await plane.apply(
            {"apiVersion": "v1", "kind": "Service", "metadata": meta,
             "spec": {"ports": [{"port": 443, "targetPort": 8443}]}},
            {"apiVersion": "v1", "kind": "Endpoints", "metadata": meta, "subsets": ends},
            namespace=SPACE,
        )  # fmt: skip
        assert (await seen(plane.kubeconfig)).webhook == "ready"
        await plane.apply(webhook(url="https://127.0.0.1:1/admission", caBundle=trusted))
        assert (await seen(plane.kubeconfig)).webhook == "ready"
    finally:
        await plane.user("delete", "mutatingwebhookconfiguration", "apportion")
        await plane.user("delete", "namespace", SPACE, "--wait=false")


async def test_the_verb(world: KubeWorld, tmp_path: Path) -> None:
    """`apportion doctor` checks the cluster with the binder's rights, and names an unreachable API
    server."""

    async def checks(kubeconfig: Path) -> dict[str, Any]:
        verb = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "apportion.cli.main", "doctor", "--json",
            "--nats", world.bus.server.url_for("operator"), "--gateway", "http://127.0.0.1:1",
            "--kubeconfig", str(kubeconfig), stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await verb.communicate()
        return {check["id"]: check for check in json.loads(out)["checks"]}

    found = await checks(world.plane.kubeconfig_of("binder"))
    assert found["kubernetes"]["state"] == "ok"
    assert world.plane.url in found["kubernetes"]["words"]
    assert (found["rbac"]["state"], "list pods" in found["rbac"]["words"]) == ("warning", True)
    assert "webhook" not in found, "a binder may not see it, and nothing is said of it"
    closed = f"https://127.0.0.1:{free_port()}"
    away = tmp_path / "away.kubeconfig"
    text = await asyncio.to_thread(world.plane.kubeconfig.read_text)
    await asyncio.to_thread(away.write_text, text.replace(world.plane.url, closed))
    found = await checks(away)
    assert found["kubernetes"]["state"] == "broken"
    assert closed in found["kubernetes"]["words"]
    assert "rbac" not in found
