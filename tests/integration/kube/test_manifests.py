"""A real API server accepts the manifests in deploy/kubernetes, and they have the intended
content."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from apportion.core.workloads.dialects import DialectConfig
from apportion.core.workloads.dialects.listing import claimed
from apportion.core.workloads.dialects.vcuda import DIALECTS as VCUDA
from tests.support.control_plane import ROOT, ControlPlane

DEPLOY = ROOT / "deploy" / "kubernetes"
EXTENDER = ROOT / "deploy" / "extender"
SERVICES = ("watcher", "scheduler", "intake", "binder", "gateway", "admission")


@pytest.fixture(autouse=True)
def _no_webhook_is_left(control_plane: ControlPlane) -> Iterator[None]:
    """Remove the webhook and the policies after each test, because they would block later pods."""
    yield
    for folder in ("admission", "policies"):
        control_plane.kubectl("delete", "-k", str(DEPLOY / folder), "--ignore-not-found")


def test_everything_is_applied_and_again(control_plane: ControlPlane) -> None:
    """`kubectl apply -k` succeeds twice in a row. Each service runs under the service account that
    has its name."""
    control_plane.kubectl("apply", "-k", str(DEPLOY))
    again = control_plane.kubectl("apply", "-k", str(DEPLOY))
    assert "deployment.apps/watcher unchanged" in again
    assert "created" not in again
    found = control_plane.kubectl("get", "deployments", "-n", "apportion", "-o", "json")
    pods = {
        item["metadata"]["name"]: item["spec"]["template"]["spec"]
        for item in json.loads(found)["items"]
    }
    assert {name: pod["serviceAccountName"] for name, pod in pods.items()} == {
        name: name for name in SERVICES
    }


def test_the_webhook_is_answered_by_its_own_service(control_plane: ControlPlane) -> None:
    """The webhook's Service leads only to the admission pods. Deleting the `admission` folder's
    manifests removes the webhook's Deployment and Service, but not the gateway."""
    control_plane.kubectl("apply", "-k", str(DEPLOY))

    def found(kind: str, *where: str) -> Any:
        return json.loads(control_plane.kubectl("get", kind, *where, "-o", "json"))

    webhooks = found("mutatingwebhookconfiguration", "apportion")["webhooks"]
    (called,) = {each["clientConfig"]["service"]["name"] for each in webhooks}
    service = found("service", called, "-n", "apportion")["spec"]
    template = found("deployment", "admission", "-n", "apportion")["spec"]["template"]
    assert service["selector"]["app"] == "admission"
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports[service["ports"][0]["targetPort"]] == 8443
    control_plane.kubectl("delete", "-k", str(DEPLOY / "admission"))
    left = control_plane.kubectl("get", "deployments,services", "-n", "apportion", "-o", "name")
    assert "admission" not in left
    assert "deployment.apps/gateway" in left


def test_nothing_runs_with_more_than_it_needs(control_plane: ControlPlane) -> None:
    """Containers run without privileges and with a read-only root file system. Only the agent may
    inspect other processes."""
    control_plane.kubectl("apply", "-k", str(DEPLOY))
    kinds = "deployments,daemonsets,jobs"
    found = json.loads(control_plane.kubectl("get", kinds, "-n", "apportion", "-o", "json"))
    for item in found["items"]:
        pod = item["spec"]["template"]["spec"]
        for container in pod["containers"]:
            allowed = container["securityContext"]
            more = {"add": ["SYS_PTRACE"]} if item["metadata"]["name"] == "agent" else {}
            assert allowed["capabilities"] == {"drop": ["ALL"]} | more
            assert allowed["readOnlyRootFilesystem"]
            assert not allowed["allowPrivilegeEscalation"]


def test_the_extender_is_applied_and_asks_for_every_dialect(control_plane: ControlPlane) -> None:
    """The extender's overlay applies, and kube-scheduler's configuration lists every device
    resource."""
    control_plane.kubectl("apply", "-k", str(EXTENDER))
    found = control_plane.kubectl("get", "deployment", "extender", "-n", "apportion", "-o", "json")
    (container,) = json.loads(found)["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["extender", "--listen", "0.0.0.0:3456"]
    assert "APPORTION_KUBERNETES" not in {each["name"] for each in container["env"]}
    (extender,) = yaml.safe_load((EXTENDER / "kube-scheduler.yaml").read_text())["extenders"]
    managed = {each["name"] for each in extender["managedResources"]}
    assert managed == claimed(DialectConfig())
    (legacy,) = json.loads((EXTENDER / "vcuda-policy.json").read_text())["extenders"]
    names = {each["name"] for each in legacy["managedResources"]}
    assert names == {name for vcuda in VCUDA for name in vcuda.resources(DialectConfig())}
