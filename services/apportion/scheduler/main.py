"""The command `apportion scheduler`, which runs `cycle` as a process."""

import gc
import secrets
import socket
import sys
from collections.abc import Callable

import click

from apportion.core.ledger.state import State
from apportion.runtime.ledger.membership import Membership
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import StateFold
from apportion.runtime.process.config import ServiceConfig
from apportion.runtime.service.lifecycle import Service, run_service
from apportion.runtime.service.options import service_options, stop_with
from apportion.runtime.service.session import Session, open_session
from apportion.scheduler.cycle import Cycle, DecisionMetrics
from apportion.scheduler.device_metrics import NAMES, Names, expose
from apportion.scheduler.learning import Learning
from apportion.scheduler.presence import GRACE_MIN_S, GRACE_S, Presence
from apportion.scheduler.snapshotting import EVERY_EVENTS, Snapshotting


@click.command(
    name="scheduler",
    epilog="Example:  apportion scheduler --nats nats://scheduler:secret@localhost:4222",
)
@click.option(
    "--name",
    default=socket.gethostname,
    help="Name of this scheduler in the events of its decisions.",
)
@click.option(
    "--snapshot-every", type=click.IntRange(min=0), default=EVERY_EVENTS, show_default=True,
    metavar="EVENTS",
    help="Write a snapshot each time the ledger has this many new events, for faster restarts. 0: "
    "never.",
)  # fmt: skip
@click.option(
    "--device-metrics", type=click.Choice(NAMES), multiple=True,
    help="Export metrics of each device's allocation, under the metric names of this system.",
)  # fmt: skip
@click.option(
    "--agent-grace", "agent_grace_s", type=click.IntRange(min=0, max=86_400), default=GRACE_S,
    show_default=True, metavar="SECONDS",
    help="Place no pods on a node if its agent has not reported for this long. 0: never check.",
)  # fmt: skip
@service_options
def command(
    *,
    name: str,
    snapshot_every: int,
    device_metrics: tuple[Names, ...],
    agent_grace_s: int,
    config: ServiceConfig,
) -> None:
    """Choose a node for each pod, and record why. Several schedulers share the pods."""
    if 0 < agent_grace_s < GRACE_MIN_S:
        stop_with(f"--agent-grace is {agent_grace_s}; write 0, or {GRACE_MIN_S} or more seconds")
    life = secrets.token_hex(4)

    async def live(service: Service) -> None:
        await body(
            service,
            name,
            snapshot_every,
            life=life,
            on_joined=leave_alone,
            device_metrics=device_metrics,
            agent_grace_s=agent_grace_s,
        )

    sys.exit(run_service("scheduler", live, config))


def leave_alone() -> None:
    """Exclude all objects that exist now from Python's garbage collection.

    The folded state is long-lived, and each scan of it would block decisions for 0.1 s."""
    gc.collect()
    gc.freeze()


async def body(
    service: Service,
    name: str,
    snapshot_every: int = EVERY_EVENTS,
    *,
    life: str = "",
    on_joined: Callable[[], None] | None = None,
    device_metrics: tuple[Names, ...] = (),
    agent_grace_s: int = GRACE_S,
) -> None:
    """Run the scheduler until cancelled.

    `life` distinguishes processes of the same name. `on_joined` is called when the whole ledger is
    folded, before the first decision."""
    async with open_session(service) as session:
        cluster = StateFold(await session.restored())
        expose(service.metrics, cluster.state, device_metrics)
        publisher = Publisher(f"scheduler/{name}", service.clock, session.append)
        cycle = Cycle(
            cluster.state,
            session.ledger,
            clock=service.clock,
            publisher=publisher,
            sound=service.soundness.sound,
        )
        membership = Membership(
            session.ledger,
            "scheduler",
            f"{name}/{life}",
            clock=service.clock,
            metrics=service.metrics,
            on_change=lambda members: cycle.share(membership.member, members),
            frozen=service.frozen,
        )
        learning = Learning(cluster.state, session.ledger, publisher)
        snapshotting = _snapshotting(service, session, cluster.state, snapshot_every)
        observers = [cycle.observe, learning.observe]
        observers += [snapshotting.observe] if snapshotting is not None else []

        async def joined() -> None:
            await membership.joined()
            if on_joined is not None:
                on_joined()

        reader = session.reader(service, cluster, *observers, writes="scheduler")
        service.ready_when(membership.not_ready)
        metrics = DecisionMetrics(service.metrics, cycle.engine)
        service.loop("members", lambda: membership.run(reader))
        service.loop("decide", lambda: cycle.run(reader, metrics, joined))
        service.loop("learn prices", lambda: learning.run(reader))
        presence = Presence(
            cluster.state,
            session.ledger,
            clock=service.clock,
            publisher=publisher,
            metrics=service.metrics,
            # All schedulers receive the agents' beats; only the first one writes.
            leads=lambda: membership.members[:1] == (membership.member,),
        )
        if agent_grace_s:
            service.loop("watch agents", lambda: presence.run(reader, grace_s=agent_grace_s))
        if snapshotting is not None and snapshot_every:
            service.loop("write snapshots", lambda: snapshotting.run(reader))
        await reader.run()


def _snapshotting(
    service: Service, session: Session, state: State, every_events: int
) -> Snapshotting | None:
    if session.snapshots is None:
        return None
    return Snapshotting(
        state,
        session.snapshots,
        clock=service.clock,
        metrics=service.metrics,
        every_events=every_events,
    )
