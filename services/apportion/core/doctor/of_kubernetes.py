"""Checks of the Kubernetes cluster, as the person who asks sees it."""

import re
from typing import Final

from apportion.core.doctor.facts import Facts
from apportion.core.doctor.found import Found, broken, counted, ok, soon

OLDEST: Final = (1, 20)
"""The oldest API server that the nightly tests run on."""


def api_server(facts: Facts) -> Found | None:
    """Whether it answers, and is of a version that we work with."""
    kube = facts.kube
    if kube is None:
        return None
    if kube.problem:
        return broken(kube.problem, "look at the kubeconfig: `kubectl version` must answer")
    match = re.match(r"v?(\d+)\.(\d+)", kube.version)
    oldest = ".".join(map(str, OLDEST))
    if match is None:
        return soon(
            f"{kube.url} is of version {kube.version!r}", f"use Kubernetes {oldest} or newer"
        )
    if (int(match[1]), int(match[2])) < OLDEST:
        return broken(
            f"{kube.url} is of version {kube.version}", f"use Kubernetes {oldest} or newer"
        )
    return ok(f"{kube.url} is of version {kube.version}")


def rights(facts: Facts) -> Found | None:
    """Whether the user of the kubeconfig may do what the services do."""
    kube = facts.kube
    if kube is None or kube.problem:
        return None
    if kube.denied:
        return soon(
            f"this user may not {counted(kube.denied, 'request')}",
            "the services need it; apply deploy/kubernetes/rbac, or ask as their accounts: a "
            "kubeconfig with their token",
        )
    return ok("this user may do all that watcher and binder do")


def webhook(facts: Facts) -> Found | None:
    """Whether a webhook that is set up is there to answer."""
    kube = facts.kube
    if kube is None or kube.problem or kube.webhook is None:
        return None
    if not kube.webhook:
        return ok("no webhook is set up")
    if kube.webhook == "ready":
        return ok("the webhook has a certificate and somebody who answers")
    return broken(
        f"the webhook is set up, and {kube.webhook}",
        "start `apportion admission` with its Service, or delete the webhook configuration",
    )
