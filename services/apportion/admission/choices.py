"""What the webhook is asked to be: where it answers, for whom, and with whose certificate.

Invariant: a combination that could not work is named before anything is started.
"""

from __future__ import annotations

from typing import Any

import click
from msgspec import Struct

from apportion.core.manifests.schedulers import OURS
from apportion.runtime.process.config import Address, ConfigError, parse_address
from apportion.runtime.service.kube_options import KubeChoice
from apportion.runtime.service.options import Command
from apportion.runtime.service.serving_tls import (
    CERTIFICATE,
    KEY,
    ServedFiles,
    served_files,
    serving_tls_options,
)

LISTEN = "127.0.0.1:8443"
HOST = "admission.apportion.svc"
NAMESPACE = "apportion"
SCHEDULERS_MAX = 32
DAY_S = 86_400.0


class AdmissionChoice(Struct, frozen=True, kw_only=True):
    """How the webhook is served: where, under which names, with whose certificate.

    `schedulers` are all names of ours, and `scheduler` is filled in; `namespace` is our services'.
    Without `files` the certificate is made here, for `life_s` seconds, and kept in the cluster.
    """

    listen: Address
    hosts: tuple[str, ...]
    scheduler: str
    schedulers: tuple[str, ...]
    namespace: str
    kube: KubeChoice
    files: ServedFiles | None = None
    life_s: float
    dra: bool = False


_OPTIONS = (
    click.option(
        "--listen",
        default=LISTEN,
        envvar="APPORTION_LISTEN",
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        help="Where the webhook answers, over HTTPS.",
    ),
    click.option(
        "--host",
        "hosts",
        multiple=True,
        default=(HOST,),
        show_default=True,
        metavar="NAME",
        help="Name or IP address by which the API server calls it; for the certificate.",
    ),
    click.option(
        "--fill-in",
        "scheduler",
        default=OURS[0],
        show_default=True,
        metavar="NAME",
        help="The schedulerName of pods that ask for a device and name none.",
    ),
    click.option(
        "--scheduler-name",
        "schedulers",
        multiple=True,
        default=OURS,
        show_default=True,
        metavar="NAME",
        help="Pods with this schedulerName are ours, as for the watcher.",
    ),
    click.option(
        "--namespace",
        default=NAMESPACE,
        envvar="APPORTION_NAMESPACE",
        show_default=True,
        show_envvar=True,
        metavar="NAME",
        help="Where our services run; the binder's account there may write our annotations.",
    ),
    serving_tls_options,
    click.option(
        "--certificate-days",
        type=click.FloatRange(min=0.0001, max=3650),
        default=90.0,
        show_default=True,
        help="How long a certificate lives that is made here.",
    ),
)


def webhook_options(command: Command) -> Command:
    """Add the options of `admission_choice`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def admission_choice(given: dict[str, Any], kube: KubeChoice) -> AdmissionChoice:
    """How the webhook is served.

    Raises:
        ConfigError: the options do not go together.
    """
    files = served_files(given["tls_cert"], given["tls_key"], given["tls_client_ca"])
    if files is None and not kube.wanted:
        raise ConfigError(
            "--kubernetes",
            "not given",
            "give it, or --kubeconfig: a certificate that is made here is kept and published in "
            f"the cluster; or give one with {CERTIFICATE} and {KEY}",
        )
    if len(given["schedulers"]) > SCHEDULERS_MAX:
        raise ConfigError(
            "--scheduler-name", len(given["schedulers"]), f"name at most {SCHEDULERS_MAX}"
        )
    if given["scheduler"] not in given["schedulers"]:
        raise ConfigError(
            "--fill-in",
            given["scheduler"],
            f"name one of --scheduler-name, whose pods are taken: {', '.join(given['schedulers'])}",
        )
    return AdmissionChoice(
        listen=parse_address("--listen", given["listen"]),
        hosts=tuple(dict.fromkeys(given["hosts"])),
        scheduler=given["scheduler"],
        schedulers=given["schedulers"],
        namespace=given["namespace"],
        kube=kube,
        files=files,
        life_s=given["certificate_days"] * DAY_S,
        dra=given["dra"],
    )
