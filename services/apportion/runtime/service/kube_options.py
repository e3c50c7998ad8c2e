"""The options of every service that talks to Kubernetes.

Invariant: the client library, which takes a second to import, is imported only where a cluster is
asked for.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from apportion.runtime.service.options import Command

if TYPE_CHECKING:
    from apportion.runtime.kube.client import KubeApi


class KubeChoice(msgspec.Struct, frozen=True):
    """Which cluster, if any, and as whom."""

    wanted: bool
    kubeconfig: Path | None = None
    context: str | None = None

    def open(self) -> AbstractAsyncContextManager[KubeApi]:
        """Its API server, until the context is left; raises ConfigError where it has no address."""
        from apportion.runtime.kube.client import open_kube  # noqa: PLC0415 - see above

        return open_kube(self.kubeconfig, self.context)


def kubernetes_options(command: Command) -> Command:
    """Add `--kubernetes`, `--kubeconfig` and `--context`; see `kube_choice`."""
    for option in (
        click.option("--context", metavar="NAME", help="Context of the kubeconfig."),
        click.option(
            "--kubeconfig",
            type=click.Path(dir_okay=False, path_type=Path),
            envvar="APPORTION_KUBECONFIG",
            show_envvar=True,
            help="How to reach the cluster.  [default: the pod's own, else ~/.kube/config]",
        ),
        click.option(
            "--kubernetes",
            is_flag=True,
            envvar="APPORTION_KUBERNETES",
            show_envvar=True,
            help="Work for a Kubernetes cluster.",
        ),
    ):
        command = option(command)
    return command


dra_option = click.option(
    "--dra",
    is_flag=True,
    envvar="APPORTION_DRA",
    show_envvar=True,
    help="Pods may have ResourceClaims of our class (Kubernetes 1.34 and newer).",
)


def kube_choice(*, kubernetes: bool, kubeconfig: Path | None, context: str | None) -> KubeChoice:
    """The options together; naming a kubeconfig or a context asks for a cluster."""
    wanted = kubernetes or kubeconfig is not None or context is not None
    return KubeChoice(wanted, kubeconfig, context)
