"""The options of the webhook: where it listens, for which schedulers, with which certificate.

Invariant: a combination that could not work is named before anything is started.
"""

from __future__ import annotations

from typing import Any

import click
from msgspec import Struct

from apportion.core.workloads.schedulers import OURS
from apportion.runtime.process.config import Address, ConfigError, parse_address
from apportion.runtime.service.options import Command
from apportion.runtime.service.serving_tls import (
    CERTIFICATE,
    KEY,
    ServedFiles,
    served_files,
    serving_tls_options,
)

LISTEN = "127.0.0.1:8443"
NAMESPACE = "apportion"
SCHEDULERS_MAX = 32


class AdmissionChoice(Struct, frozen=True, kw_only=True):
    """How the webhook is served.

    `schedulers` are all names of our scheduler, `scheduler` is the one that it fills in, and
    `namespace` is where our services run.
    """

    listen: Address
    scheduler: str
    schedulers: tuple[str, ...]
    namespace: str
    files: ServedFiles
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
)


def webhook_options(command: Command) -> Command:
    """Add the options of `admission_choice`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def admission_choice(given: dict[str, Any]) -> AdmissionChoice:
    """Validate the options.

    Raises:
        ConfigError: the options do not go together.
    """
    files = served_files(given["tls_cert"], given["tls_key"], given["tls_client_ca"])
    if files is None:
        raise ConfigError(
            CERTIFICATE,
            "not given",
            f"give it and {KEY}: API servers call a webhook over HTTPS only",
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
        scheduler=given["scheduler"],
        schedulers=given["schedulers"],
        namespace=given["namespace"],
        files=files,
        dra=given["dra"],
    )
