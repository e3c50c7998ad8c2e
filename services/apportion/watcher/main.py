"""`apportion watcher`: the process around `local.watching` and `kubernetes.watching`."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import click

from apportion.core.workloads.adoption.claims import WRITERS
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import StateFold
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.config import ConfigError, ServiceConfig
from apportion.runtime.service.lifecycle import Service, run_service
from apportion.runtime.service.options import (
    KubeChoice,
    dra_option,
    kube_choice,
    kubernetes_options,
    service_options,
    stop_with,
)
from apportion.runtime.service.session import open_session
from apportion.watcher.local.manifest_folder import ManifestFolder
from apportion.watcher.local.reconcile import Source
from apportion.watcher.local.watching import Watching

SCHEDULERS = ("apportion", "volcano", "hami-scheduler")
SCHEDULERS_MAX = 32


@click.command(
    name="watcher", epilog="Example:  apportion watcher --manifests /etc/apportion/manifests"
)
@click.option(
    "--manifests",
    "folder",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="Folder whose manifests are wanted.",
)
@click.option(
    "--name", help="What tells this folder's pods from others'.  [default: the folder's path]"
)
@click.option(
    "--by-hand",
    is_flag=True,
    help="No folder: pods are submitted by hand, and those that are evicted wait anew.",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.05, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between two looks at the folder.",
)
@kubernetes_options
@click.option(
    "--scheduler-name",
    "schedulers",
    multiple=True,
    default=SCHEDULERS,
    show_default=True,
    metavar="NAME",
    help="Pods with this schedulerName are ours; may be given several times.",
)
@click.option(
    "--annotation-writer",
    "writers",
    multiple=True,
    default=sorted(WRITERS),
    metavar="NAME",
    help="What pods hold that others bound is believed of this field manager, as the API server "
    "has it; may be given several times.  [default: programs of HAMi, Volcano and gpu-manager]",
)
@click.option(
    "--compare-every",
    "compare_every_s",
    type=click.FloatRange(1, 86_400),
    default=300.0,
    show_default=True,
    help="Seconds between two comparisons of the whole cluster with the ledger.",
)
@dra_option
@service_options
def command(*, folder: Path | None, by_hand: bool, config: ServiceConfig, **given: Any) -> None:
    """Submit pods, and release those that are gone.

    Pods come from a Kubernetes cluster, or from a folder of manifests where there is none, or they
    are submitted by hand. Several watchers may share either; where they see a folder under
    different paths, give them one --name. Without Kubernetes a pod that is evicted ends here and
    waits for another place."""
    kube = kube_choice(**{name: given[name] for name in ("kubernetes", "kubeconfig", "context")})
    given_ones = [kube.wanted, folder is not None, by_hand].count(True)
    if given_ones != 1:
        found = "several" if given_ones else None
        fix = "name the one that there is"
        stop_with(str(ConfigError("--kubernetes, --manifests or --by-hand", found, fix)))
    if not kube.wanted and given["dra"]:
        stop_with(str(ConfigError("--dra", None, "is about a cluster: give --kubernetes as well")))
    if by_hand:
        sys.exit(run_service("watcher", lambda service: body(service, Source()), config))
    if folder is not None:
        name, interval_s = given["name"] or str(folder), given["interval_s"]
        clock = SystemClock()
        source = ManifestFolder(folder, name=name, interval_s=interval_s, clock=clock)
        sys.exit(run_service("watcher", lambda service: body(service, source), config))
    schedulers = frozenset(given["schedulers"])
    if len(schedulers) > SCHEDULERS_MAX:
        fix = f"name at most {SCHEDULERS_MAX}"
        stop_with(str(ConfigError("--scheduler-name", len(schedulers), fix)))
    reading = PodReading(schedulers, frozenset(given["writers"]), dra=given["dra"])
    every_s = given["compare_every_s"]
    sys.exit(
        run_service("watcher", lambda service: kube_body(service, kube, reading, every_s), config)
    )


class PodReading(NamedTuple):
    """Whose pods are ours, whose annotations count, and whether ResourceClaims are read."""

    schedulers: frozenset[str]
    writers: frozenset[str] = WRITERS
    dra: bool = False


async def body(service: Service, source: Source) -> None:
    """Run the watcher of a folder, or of pods submitted by hand, until cancelled."""
    async with open_session(service) as session:
        cluster = StateFold(await session.restored())
        publisher = Publisher("watcher", service.clock, session.append)
        watching = Watching(source, cluster.state, publisher)
        reader = session.reader(service, cluster, watching.observe, writes="watcher")
        service.ready_when(watching.not_ready)
        service.metrics.gauge(
            "apportion_watcher_problems", "Manifests that cannot be used at present."
        ).set_function(lambda: source.problems)
        service.loop("watch", lambda: watching.run(reader, session.ledger))
        await reader.run()


async def kube_body(
    service: Service, kube: KubeChoice, reading: PodReading, compare_every_s: float
) -> None:
    """Run the watcher of a cluster until cancelled."""
    from apportion.runtime.kube.examining import require_dra  # noqa: PLC0415 - see KubeChoice
    from apportion.watcher.kubernetes.watching import kubernetes_watching  # noqa: PLC0415

    async with open_session(service) as session, kube.open() as api:
        if reading.dra:
            await require_dra(api, service.clock)
        cluster = StateFold(await session.restored())
        publisher = Publisher("watcher", service.clock, session.append)
        watching = kubernetes_watching(
            api, cluster.state, publisher, session.append, **reading._asdict(), clock=service.clock
        )
        reader = session.reader(service, cluster, watching.observe, writes="watcher")
        service.ready_when(watching.not_ready)
        watching.measure(service.metrics)
        service.loop(
            "watch", lambda: watching.run(reader, session.ledger, compare_every_s=compare_every_s)
        )
        await reader.run()
