"""What the project's accounts may do, asked of the API server itself."""

import pytest

from tests.support.control_plane import ControlPlane

ALLOWED = [
    ("watcher", "list", "pods"),
    ("watcher", "watch", "nodes"),
    ("watcher", "watch", "podgroups.scheduling.volcano.sh"),
    ("watcher", "list", "queues.scheduling.volcano.sh"),
    ("watcher", "watch", "resourcequotas"),
    ("binder", "create", "pods/binding"),
    ("binder", "get", "pods"),
    ("binder", "patch", "pods/status"),
    ("binder", "create", "events"),
    ("binder", "patch", "events"),
    ("binder", "patch", "podgroups.scheduling.volcano.sh/status"),
]
FORBIDDEN = [
    ("watcher", "create", "pods/binding"),
    ("watcher", "patch", "nodes"),
    ("watcher", "get", "secrets"),
    ("watcher", "patch", "resourcequotas"),
    ("watcher", "get", "resourcequotas/status"),
    ("scheduler", "list", "resourcequotas"),
    ("binder", "list", "pods"),
    ("binder", "delete", "events"),
    ("binder", "delete", "pods"),
    ("binder", "patch", "pods"),
    ("binder", "get", "nodes"),
    ("binder", "get", "secrets"),
    ("binder", "patch", "podgroups.scheduling.volcano.sh"),
    ("scheduler", "get", "pods"),
    ("scheduler", "list", "nodes"),
    ("gateway", "get", "pods"),
    ("gateway", "get", "secrets"),
    ("gateway", "create", "secrets"),
    ("gateway", "patch", "mutatingwebhookconfigurations"),
    ("agent", "list", "pods"),
    ("agent", "patch", "nodes/status"),
]


def may(plane: ControlPlane, account: str, verb: str, resource: str) -> str:
    """What `kubectl auth can-i` answers for the account."""
    whom = f"--as=system:serviceaccount:apportion:{account}"
    kind, _, part = resource.partition("/")
    asked = ("auth", "can-i", verb, kind, f"--subresource={part}", "-A", whom)
    return plane.kubectl(*asked, ok=None).strip()


@pytest.mark.parametrize(("account", "verb", "resource"), ALLOWED)
def test_what_a_service_needs_is_allowed(
    control_plane: ControlPlane, account: str, verb: str, resource: str
) -> None:
    """By the manifests that are applied, and by nothing else."""
    assert may(control_plane, account, verb, resource) == "yes"


@pytest.mark.parametrize(("account", "verb", "resource"), FORBIDDEN)
def test_nothing_else_is(
    control_plane: ControlPlane, account: str, verb: str, resource: str
) -> None:
    """Least privilege: the scheduler and the agents have no right at all."""
    assert may(control_plane, account, verb, resource) == "no"
