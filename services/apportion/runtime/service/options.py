"""Command line options that all services share, and the options of Kubernetes clients.

A wrong setting ends the command with one line and exit code 78. Commands without a cluster do not
import the Kubernetes client, which takes a second. Options for client TLS files set environment
variables, so all connections of this process and its children use the files."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args

import click
import msgspec

from apportion.runtime.process.config import (
    ENVIRONMENT,
    ConfigError,
    LogFormat,
    LogLevel,
    read_config,
)
from apportion.runtime.process.tls import NATS_TLS

if TYPE_CHECKING:
    from apportion.runtime.kube.client import KubeApi

Command = Callable[..., None]
_FILES = (
    ("ca", "CA certificate of {whose} server (PEM).", "  [default: the system's CAs]"),
    ("cert", "Client certificate for {whose} server (PEM).", ""),
    ("cert-key", "Key of the client certificate (PEM).", ""),
)


def keep(context: click.Context, parameter: click.Parameter, value: Path | None) -> None:  # noqa: ARG001 - click's signature
    """Put an option's value into its environment variable, where the client reads it."""
    if value is not None and isinstance(parameter.envvar, str):
        os.environ[parameter.envvar] = str(value)


Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def with_options(command: Command, *options: Option) -> Command:
    """Add options to a command; its help shows them in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def folder(flag: str, default: str | None, meaning: str, **more: Any) -> Option:
    """Return an option that takes a folder."""
    kind = click.Path(file_okay=False, path_type=Path, **more)
    return click.option(flag, type=kind, default=default, show_default=bool(default), help=meaning)


def switch(flag: str, meaning: str, *names: str, **more: Any) -> Option:
    """Return an on/off option that is off by default."""
    return click.option(flag, *names, is_flag=True, help=meaning, **more)


def seconds(
    flag: str, name: str, bounds: tuple[float, float], default: float | None, meaning: str
) -> Option:
    """Return an option that takes a time in seconds."""
    return click.option(
        flag, name, type=click.FloatRange(*bounds), default=default, show_default=True,
        metavar="SECONDS", help=meaning,
    )  # fmt: skip


def many(flag: str, name: str, metavar: str, meaning: str, **more: Any) -> Option:
    """Return an option that may be repeated."""
    return click.option(flag, name, multiple=True, metavar=metavar, help=meaning, **more)


def file(flag: str, variable: str, meaning: str, *names: str, **more: Any) -> Option:
    """Return an option that takes a file, which an environment variable can name instead."""
    return click.option(
        flag, *names, type=click.Path(dir_okay=False, path_type=Path), envvar=variable,
        show_envvar=True, help=meaning, **more,
    )  # fmt: skip


def client_tls_options(flag: str, setting: str, whose: str) -> Callable[[Command], Command]:
    """Add `--<flag>-ca`, `-cert` and `-cert-key`, which `files_of(setting)` reads."""

    def add(command: Command) -> Command:
        for name, meaning, default in reversed(_FILES):
            variable = f"{setting}_{name.replace('-', '_').upper()}"
            option: Callable[[Any], Any] = click.option(
                f"--{flag}-{name}", type=click.Path(dir_okay=False, path_type=Path),
                help=f"{meaning.format(whose=whose)}  [{variable}]{default}",
                envvar=variable, metavar="FILE", callback=keep, expose_value=False,
            )  # fmt: skip
            command = option(command)
        return command

    return add


def _option(name: str, meaning: str, *also: str, **more: Any) -> Callable[[Command], Command]:
    flags = (*also, f"--{name.replace('_', '-')}")
    return click.option(name, *flags, help=f"{meaning}  [{ENVIRONMENT[name]}]", **more)


_OPTIONS = (
    _option("nats_url", "URL of the NATS server that stores the ledger.", "--nats", metavar="URL"),
    _option(
        "nats_key", "File with the nkey seed for the login to the NATS server.", metavar="FILE"
    ),
    _option("nats_token", "File with the token for the login to the NATS server.", metavar="FILE"),
    _option(
        "ledger_key",
        "File with the key that all writers of the ledger share. Services compute event ids from "
        "it, so that other clients cannot guess them.",
        metavar="FILE",
    ),
    client_tls_options("nats", NATS_TLS, "the ledger's"),
    _option("health", "Address that serves /healthz, /readyz and /metrics.", metavar="HOST:PORT"),
    _option(
        "metrics_token",
        "File with a token. Clients on other machines must send this token to read /metrics.",
        metavar="FILE",
    ),
    _option("log_level", "Log level.", type=click.Choice(get_args(LogLevel))),
    _option("log_format", "Log format.", type=click.Choice(get_args(LogFormat))),
    _option("stop_timeout_s", "Time limit for a graceful stop.", metavar="SECONDS"),
)


def service_options(command: Command) -> Command:
    """Add the options of every service; the command gets the checked settings as `config`."""

    def run(**given: Any) -> None:
        try:
            config = read_config({name: given.pop(name) for name in ENVIRONMENT})
        except ConfigError as error:
            stop_with(str(error))
        command(config=config, **given)

    return with_options(functools.update_wrapper(run, command), *_OPTIONS)


def stop_with(error: str) -> NoReturn:
    """Print the error and exit with code 78 before anything has started."""
    click.echo(f"error: {error}", err=True)
    # Imported late: verbs that share an option start no service and need no HTTP.
    from apportion.runtime.service.lifecycle import EXIT_CONFIG  # noqa: PLC0415

    sys.exit(EXIT_CONFIG)


class KubeChoice(msgspec.Struct, frozen=True):
    """The chosen cluster, if any, and the credentials for it."""

    wanted: bool
    kubeconfig: Path | None = None
    context: str | None = None

    def open(self) -> AbstractAsyncContextManager[KubeApi]:
        """Connect to the API server for a `with` block. Raises ConfigError."""
        from apportion.runtime.kube.client import open_kube  # noqa: PLC0415 - see above

        return open_kube(self.kubeconfig, self.context)


def kubernetes_options(command: Command) -> Command:
    """Add `--kubernetes`, `--kubeconfig` and `--context`; see `kube_choice`."""
    reached = (
        "Kubeconfig of the cluster.  [default: the pod's service account, else ~/.kube/config]"
    )
    for option in (
        click.option("--context", metavar="NAME", help="Context in the kubeconfig."),
        file("--kubeconfig", "APPORTION_KUBECONFIG", reached),
        switch(
            "--kubernetes", "Use a Kubernetes cluster.",
            envvar="APPORTION_KUBERNETES", show_envvar=True,
        ),
    ):  # fmt: skip
        command = option(command)
    return command


dra_option = switch(
    "--dra", "Support ResourceClaims of the DeviceClass gpu.apportion.dev (Kubernetes 1.34 or "
    "newer).",
    envvar="APPORTION_DRA", show_envvar=True,
)  # fmt: skip


def kube_choice(*, kubernetes: bool, kubeconfig: Path | None, context: str | None) -> KubeChoice:
    """Return the cluster chosen by the options. A kubeconfig or context implies a cluster."""
    wanted = kubernetes or kubeconfig is not None or context is not None
    return KubeChoice(wanted, kubeconfig, context)
