"""The command `apportion watcher`, which runs `local.watching` or `kubernetes.watching`."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import click

from apportion.core.workloads.adoption.claims import WRITERS
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import StateFold
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.config import ServiceConfig
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
    "--manifests", "folder", help="Folder of manifests to submit.",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
)  # fmt: skip
@click.option(
    "--name",
    help="Name of this folder in the ledger. Watchers that read the same folder need the "
    "same name.  [default: the folder's path]",
)
@click.option(
    "--by-hand",
    is_flag=True,
    help="Read no folder and no cluster. Only resubmit evicted pods of `apportion submit`.",
)
@click.option(
    "--interval", "interval_s", type=click.FloatRange(0.05, 3600), default=1.0, show_default=True,
    help="Seconds between checks of the folder.",
)  # fmt: skip
@kubernetes_options
@click.option(
    "--scheduler-name", "schedulers", multiple=True, default=SCHEDULERS, show_default=True,
    metavar="NAME", help="Manage pods with this schedulerName. Repeatable.",
)  # fmt: skip
@click.option(
    "--annotation-writer", "writers", multiple=True, default=sorted(WRITERS), metavar="NAME",
    help="Trust the device annotations of other schedulers' pods if this field manager wrote "
    "them. Repeatable.  [default: programs of HAMi, Volcano and gpu-manager]",
)  # fmt: skip
@click.option(
    "--compare-every", "compare_every_s", type=click.FloatRange(1, 86_400), default=300.0,
    show_default=True, help="Seconds between full comparisons of the cluster with the ledger.",
)  # fmt: skip
@dra_option
@service_options
def command(*, folder: Path | None, by_hand: bool, config: ServiceConfig, **given: Any) -> None:
    """Submit pods to the ledger, and release pods that are gone.

    Pods come from a Kubernetes cluster, from a folder of manifests, or from users (--by-hand).
    Several watchers may watch the same source; if they see a folder under different paths, give
    them the same --name. Without Kubernetes, the watcher ends evicted pods and submits them again.
    """
    kube = kube_choice(**{name: given[name] for name in ("kubernetes", "kubeconfig", "context")})
    if [kube.wanted, folder is not None, by_hand].count(True) != 1:
        stop_with("give exactly one of --kubernetes, --manifests and --by-hand")
    if not kube.wanted and given["dra"]:
        stop_with("--dra requires --kubernetes")
    if by_hand:
        sys.exit(run_service("watcher", lambda service: body(service, Source()), config))
    if folder is not None:
        name, interval_s = given["name"] or str(folder), given["interval_s"]
        clock = SystemClock()
        source = ManifestFolder(folder, name=name, interval_s=interval_s, clock=clock)
        sys.exit(run_service("watcher", lambda service: body(service, source), config))
    schedulers = frozenset(given["schedulers"])
    if len(schedulers) > SCHEDULERS_MAX:
        stop_with(f"--scheduler-name: {len(schedulers)} names; give at most {SCHEDULERS_MAX}")
    reading = PodReading(schedulers, frozenset(given["writers"]), dra=given["dra"])
    every_s = given["compare_every_s"]
    sys.exit(
        run_service("watcher", lambda service: kube_body(service, kube, reading, every_s), config)
    )


class PodReading(NamedTuple):
    """Settings that decide which pods the watcher reads, and how."""

    schedulers: frozenset[str]  # the names of our schedulers
    writers: frozenset[str] = WRITERS  # of annotations
    dra: bool = False


async def body(service: Service, source: Source) -> None:
    """Run the watcher of a folder, or of pods that users submit, until cancelled."""
    async with open_session(service) as session:
        cluster = StateFold(await session.restored())
        publisher = Publisher("watcher", service.clock, session.append)
        watching = Watching(source, cluster.state, publisher)
        reader = session.reader(service, cluster, watching.observe, writes="watcher")
        service.ready_when(watching.not_ready)
        service.metrics.gauge(
            "apportion_watcher_problems", "Manifests that are currently invalid."
        ).set_function(lambda: source.problems)
        service.loop("watch", lambda: watching.run(reader, session.ledger))
        await reader.run()


async def kube_body(
    service: Service, kube: KubeChoice, reading: PodReading, compare_every_s: float
) -> None:
    """Run the watcher of a Kubernetes cluster until cancelled."""
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
