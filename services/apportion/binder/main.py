"""The command `apportion binder` and the process that it starts."""

import sys
from functools import partial
from typing import Any

import click

from apportion.binder.binding import ACK_WAIT_S, IN_FLIGHT_MAX, Binding, LocalTarget, Target
from apportion.core.ledger.fold import Change
from apportion.core.workloads.document import ManifestError, dns_subdomain
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import Reader, StateFold
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
from apportion.runtime.service.session import Session, open_session

DURABLE = "binder"
PLACEMENTS = "apportion.v1.placement.>"
# Of all replicas together, because they share the queue's settings. Held pods of a gang may fill
# it. The binder reads the last placement, which releases them, from the ledger and not from here.
QUEUE_IN_FLIGHT_MAX = 4 * IN_FLIGHT_MAX
PROVISIONING = "--provisioning-class"


@click.command(
    name="binder", epilog="Example:  apportion binder --nats nats://binder:secret@localhost:4222"
)
@kubernetes_options
@click.option(
    "--allocatable/--no-allocatable", default=True, show_default=True,
    envvar="APPORTION_ALLOCATABLE", show_envvar=True,
    help="Add GPU memory and cores to the allocatable resources of each node.",
)  # fmt: skip
@dra_option
@click.option(
    PROVISIONING, default="", metavar="NAME",
    envvar="APPORTION_PROVISIONING_CLASS", show_envvar=True,
    help="Create a ProvisioningRequest of this class for each gang that needs new nodes.",
)  # fmt: skip
@service_options
def command(
    *, allocatable: bool, dra: bool, provisioning_class: str, config: ServiceConfig, **given: Any
) -> None:
    """Bind placed pods to their nodes, and record each binding. Several binders share the work."""
    kube = kube_choice(**given)
    if provisioning_class:
        try:
            dns_subdomain(provisioning_class, PROVISIONING)
        except ManifestError as error:
            stop_with(str(error))
    if kube.wanted:
        in_cluster = partial(
            kube_body, kube=kube, show=allocatable, dra=dra, provisioning=provisioning_class
        )
        sys.exit(run_service("binder", in_cluster, config))
    for option, value in (("--dra", "on" if dra else ""), (PROVISIONING, provisioning_class)):
        if value:
            fix = "this option needs a cluster; add --kubernetes"
            stop_with(str(ConfigError(option, value, fix)))
    sys.exit(run_service("binder", body, config))


async def body(service: Service, target: Target | None = None) -> None:
    """Run the binder until cancelled. Without a `target`, it only appends bindings."""
    async with open_session(service) as session:
        cluster = StateFold(await session.restored())
        reader = session.reader(service, cluster, writes="binder")
        await _bind(service, session, cluster, reader, target or LocalTarget())


async def kube_body(
    service: Service, kube: KubeChoice, *, show: bool, dra: bool, provisioning: str = ""
) -> None:
    """Run the binder for a Kubernetes cluster until cancelled.

    `show`: publish amounts in nodes' statuses; see `allocatable`. `dra`: publish devices as
    ResourceSlices and allocate ResourceClaims. `provisioning`: the class of ProvisioningRequests
    for gangs, or empty."""
    from apportion.binder.kubernetes.allocatable import Allocatable  # noqa: PLC0415
    from apportion.binder.kubernetes.claims import ClaimRelease  # noqa: PLC0415
    from apportion.binder.kubernetes.gangs import Gangs  # noqa: PLC0415 - see KubeChoice
    from apportion.binder.kubernetes.pod_events import Telling  # noqa: PLC0415
    from apportion.binder.kubernetes.provisioning import Provisioning  # noqa: PLC0415
    from apportion.binder.kubernetes.slices import Slices  # noqa: PLC0415
    from apportion.binder.kubernetes.target import KubernetesTarget, Pace  # noqa: PLC0415
    from apportion.runtime.kube.client import Reach  # noqa: PLC0415
    from apportion.runtime.kube.examining import require_dra  # noqa: PLC0415

    async with open_session(service) as session, kube.open() as api:
        cluster = StateFold(await session.restored())
        pace = Pace(service.clock)
        gangs = Gangs(api, cluster.state, service.clock)
        allocatable = Allocatable(api, cluster.state, service.clock) if show else None
        reach = Reach(api, service.clock)
        slices = Slices(api, cluster.state, service.clock) if dra else None
        release = ClaimRelease(api, cluster.state, service.clock)
        requests = (
            Provisioning(api, cluster.state, service.clock, provisioning) if provisioning else None
        )
        telling = Telling(
            api, cluster.state, service.clock, service.metrics, pace=pace,
            holds=requests.holds if requests else None,
        )  # fmt: skip
        if slices is not None:
            await require_dra(api, service.clock)
            await slices.require()
        target = KubernetesTarget(api, cluster.state, pace, service.clock, allocatable, dra=dra)
        beside = (
            ("report events", telling),
            ("admit gangs", gangs),
            ("withdraw pods", target.locks),
            *((("publish devices", slices), ("release claims", release)) if slices else ()),
            *((("publish allocatable", allocatable),) if allocatable else ()),
            *((("request nodes", requests),) if requests else ()),
        )
        reader = session.reader(
            service, cluster, *(each.observe for _, each in beside), writes="binder"
        )
        service.metrics.gauge(
            "apportion_binder_pace",
            "Maximum number of concurrent binding requests to the API "
            "server; the binder adapts it to the load.",
        ).set_function(lambda: pace.limit)
        service.ready_when(reach.not_ready)
        if slices is not None:
            service.ready_when(slices.not_ready)
        service.loop("reach the API server", reach.run)
        for name, each in beside:
            service.loop(name, partial(each.run, reader))
        await _bind(service, session, cluster, reader, target)


async def _bind(
    service: Service, session: Session, cluster: StateFold, reader: Reader[Change], target: Target
) -> None:
    publisher = Publisher("binder", service.clock, session.append)
    binding = Binding(
        cluster.state, target, publisher, clock=service.clock, metrics=service.metrics
    )
    service.ready_when(binding.not_ready)
    queue = await session.ledger.work_queue(
        DURABLE, [PLACEMENTS], ack_wait_s=ACK_WAIT_S, max_in_flight=QUEUE_IN_FLIGHT_MAX
    )
    service.loop("hold", binding.hold)
    service.loop("bind", lambda: binding.run(queue, reader))
    await reader.run()
