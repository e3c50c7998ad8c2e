"""The rights of the project's service accounts, according to the API server itself."""

from collections.abc import Iterator

import pytest

from tests.support.control_plane import ROOT, ControlPlane

ADMISSION = ROOT / "deploy" / "kubernetes" / "admission"
ALLOWED = [
    ("watcher", "list", "pods"),
    ("watcher", "watch", "nodes"),
    ("watcher", "watch", "podgroups.scheduling.volcano.sh"),
    ("watcher", "watch", "podgroups.scheduling.x-k8s.io"),
    ("watcher", "list", "podgroups.scheduling.k8s.io"),
    ("watcher", "watch", "podgroups.scheduling.run.ai"),
    ("watcher", "list", "queues.scheduling.volcano.sh"),
    ("watcher", "watch", "resourcequotas"),
    ("watcher", "watch", "poddisruptionbudgets.policy"),
    ("watcher", "watch", "namespaces"),
    ("watcher", "list", "persistentvolumeclaims"),
    ("watcher", "watch", "persistentvolumes"),
    ("watcher", "watch", "storageclasses.storage.k8s.io"),
    ("watcher", "watch", "csinodes.storage.k8s.io"),
    ("watcher", "watch", "csidrivers.storage.k8s.io"),
    ("watcher", "list", "csistoragecapacities.storage.k8s.io"),
    ("binder", "get", "persistentvolumeclaims"),
    ("binder", "patch", "persistentvolumeclaims"),
    ("binder", "list", "persistentvolumes"),
    ("binder", "patch", "persistentvolumes"),
    ("binder", "get", "storageclasses.storage.k8s.io"),
    ("binder", "create", "pods/binding"),
    ("binder", "get", "pods"),
    ("binder", "delete", "pods"),
    ("binder", "patch", "pods/status"),
    ("binder", "create", "events"),
    ("binder", "patch", "events"),
    ("binder", "patch", "podgroups.scheduling.volcano.sh"),
    ("binder", "patch", "podgroups.scheduling.volcano.sh/status"),
    ("binder", "create", "queues.scheduling.volcano.sh"),
    ("binder", "patch", "nodes/status"),
    ("binder", "get", "nodes"),
    ("gateway", "create", "tokenreviews.authentication.k8s.io"),
    ("gateway", "create", "subjectaccessreviews.authorization.k8s.io"),
]
FORBIDDEN = [
    ("watcher", "create", "pods/binding"),
    ("watcher", "patch", "nodes"),
    ("watcher", "get", "secrets"),
    ("watcher", "patch", "resourcequotas"),
    ("watcher", "patch", "poddisruptionbudgets.policy"),
    ("watcher", "patch", "persistentvolumeclaims"),
    ("binder", "delete", "persistentvolumeclaims"),
    ("binder", "create", "persistentvolumes"),
    ("watcher", "get", "resourcequotas/status"),
    ("scheduler", "list", "resourcequotas"),
    ("binder", "list", "pods"),
    ("binder", "delete", "events"),
    ("binder", "create", "pods"),
    ("binder", "patch", "pods"),
    ("binder", "patch", "nodes"),
    ("binder", "get", "secrets"),
    ("binder", "patch", "queues.scheduling.volcano.sh"),
    ("scheduler", "get", "pods"),
    ("scheduler", "list", "nodes"),
    ("gateway", "get", "pods"),
    ("gateway", "get", "secrets"),
    ("gateway", "create", "secrets"),
    ("gateway", "patch", "mutatingwebhookconfigurations"),
    ("admission", "get", "pods"),
    ("admission", "list", "secrets"),
    ("admission", "create", "secrets"),
    ("admission", "get", "secrets"),
    ("admission", "delete", "mutatingwebhookconfigurations"),
    ("admission", "patch", "validatingwebhookconfigurations"),
    ("agent", "list", "pods"),
    ("agent", "patch", "nodes/status"),
]


def may(plane: ControlPlane, account: str, verb: str, resource: str) -> str:
    """Return the answer of `kubectl auth can-i` for the account."""
    whom = f"--as=system:serviceaccount:apportion:{account}"
    kind, _, part = resource.partition("/")
    asked = ("auth", "can-i", verb, kind, f"--subresource={part}", "-A", whom)
    return plane.kubectl(*asked, ok=None).strip()


@pytest.mark.parametrize(("account", "verb", "resource"), ALLOWED)
def test_what_a_service_needs_is_allowed(
    control_plane: ControlPlane, account: str, verb: str, resource: str
) -> None:
    """The applied manifests give each service every right that it needs."""
    assert may(control_plane, account, verb, resource) == "yes"


@pytest.mark.parametrize(("account", "verb", "resource"), FORBIDDEN)
def test_nothing_else_is(
    control_plane: ControlPlane, account: str, verb: str, resource: str
) -> None:
    """The API server refuses each service account the rights that `FORBIDDEN` lists for that
    account."""
    assert may(control_plane, account, verb, resource) == "no"


@pytest.fixture
def webhook(control_plane: ControlPlane) -> Iterator[None]:
    """Apply the webhook's objects, and delete them after the test because no webhook runs here."""
    control_plane.kubectl("apply", "-k", str(ADMISSION))
    yield
    control_plane.kubectl("delete", "-k", str(ADMISSION), "--ignore-not-found")


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize("verb", ["get", "patch"])
@pytest.mark.parametrize(
    "account", ["admission", "gateway", "watcher", "binder", "scheduler", "intake", "agent"]
)
def test_no_account_of_ours_may_touch_the_webhook(
    control_plane: ControlPlane, account: str, verb: str
) -> None:
    """No service account may read or patch the webhook's configuration. With such a patch a service
    could redirect every write of the cluster."""
    asked = ("mutatingwebhookconfigurations", "apportion")
    command = [verb, *asked] if verb == "get" else [verb, *asked, "--patch", "{}"]
    whom = f"--kubeconfig={control_plane.kubeconfig_of(account)}"
    assert "is forbidden" in control_plane.kubectl(*command, whom, ok=False)
