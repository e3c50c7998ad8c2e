"""The options that name the files of TLS as a client, for services and verbs alike.

An option is its environment variable, set for this process and those that it starts: whatever
connects, wherever in the process, takes the same files. See `runtime.process.tls`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., None]

_FILES = (
    ("ca", "CA of {whose} server (PEM).", "  [default: the system's CAs]"),
    ("cert", "Our certificate for {whose} server (PEM).", ""),
    ("cert-key", "Its key (PEM).", ""),
)


def _tell(context: click.Context, parameter: click.Parameter, value: Path | None) -> None:  # noqa: ARG001 - click's signature
    if value is not None and isinstance(parameter.envvar, str):
        os.environ[parameter.envvar] = str(value)


def client_tls_options(flag: str, setting: str, whose: str) -> Callable[[Command], Command]:
    """`--<flag>-ca`, `-cert` and `-cert-key`, which `files_of(setting)` finds."""

    def add(command: Command) -> Command:
        for name, meaning, default in reversed(_FILES):
            variable = f"{setting}_{name.replace('-', '_').upper()}"
            option: Callable[[Any], Any] = click.option(
                f"--{flag}-{name}",
                type=click.Path(dir_okay=False, path_type=Path),
                envvar=variable,
                metavar="FILE",
                help=f"{meaning.format(whose=whose)}  [{variable}]{default}",
                callback=_tell,
                expose_value=False,
            )
            command = option(command)
        return command

    return add
