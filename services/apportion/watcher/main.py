"""`apportion watcher`: the process around `watching`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from apportion.runtime.clock import SystemClock
from apportion.runtime.config import ServiceConfig
from apportion.runtime.lifecycle import Service, run_service
from apportion.runtime.options import service_options
from apportion.runtime.publisher import Publisher
from apportion.runtime.reader import Reader, StateFold
from apportion.runtime.session import open_session
from apportion.watcher.manifest_folder import ManifestFolder
from apportion.watcher.watching import Watching


@click.command(
    name="watcher", epilog="Example:  apportion watcher --manifests /etc/apportion/manifests"
)
@click.option(
    "--manifests",
    "folder",
    required=True,
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="Folder whose manifests are wanted.",
)
@click.option(
    "--name", help="What tells this folder's pods from others'.  [default: the folder's path]"
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.05, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between two looks at the folder.",
)
@service_options
def command(*, folder: Path, name: str | None, interval_s: float, config: ServiceConfig) -> None:
    """Submit the pods of a folder of manifests, and let go of those whose manifest is removed.

    Several watchers may share a folder; where they see it under different paths, give them one
    --name.
    """
    source = ManifestFolder(
        folder, name=name or str(folder), interval_s=interval_s, clock=SystemClock()
    )
    sys.exit(run_service("watcher", lambda service: body(service, source), config))


async def body(service: Service, source: ManifestFolder) -> None:
    """One life of the watcher, until cancelled. The source remembers what was readable before."""
    async with open_session(service) as session:
        cluster = StateFold()
        publisher = Publisher("watcher", service.clock, session.append)
        watching = Watching(source, cluster.state, publisher)
        reader = Reader(
            session.ledger, cluster, metrics=service.metrics, on_change=watching.observe
        )
        service.ready_when(reader.not_ready)
        service.ready_when(watching.not_ready)
        service.metrics.gauge(
            "apportion_watcher_problems", "Manifests that cannot be used at present."
        ).set_function(lambda: source.problems)
        service.loop("watch", lambda: watching.run(reader, session.ledger))
        await reader.run()
