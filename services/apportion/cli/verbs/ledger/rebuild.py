"""`apportion rebuild`: a lost ledger, written anew from what the pods of the cluster say they hold.

Placements go onto pods as annotations in the write that binds them, so the cluster itself is the
copy. Invariants: a ledger that has pods is not lost, and nothing is written to it; each pod is
taken once, also beside a watcher that does the same, for both write the same event.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

import click
import msgspec

from apportion.cli.client.connection import Where, asks_ledger
from apportion.cli.client.ledger import appending, by_whom, open_ledger, person, run
from apportion.cli.exits import NotFound, Unreachable
from apportion.cli.render.output import console, plain, print_json
from apportion.core.configuration import manifest_config
from apportion.core.ledger.audit import Auditor
from apportion.core.ledger.state import State
from apportion.core.workloads.adoption.claims import Claim, bound_claim
from apportion.core.workloads.schedulers import OURS, scheduler_names
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.port import FenceRefused, Record
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.config import ConfigError
from apportion.runtime.process.reach import Reach
from apportion.runtime.service.kube_options import KubeChoice, kube_choice, kubernetes_options
from apportion_schemas import LedgerRebuilt, PodAdopted
from apportion_schemas.quantities import TEXT_MAX

TOGETHER_MAX = 2_000
SHOWN = 10
PODS = "/api/v1/pods"


class Rebuilt(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `--json` prints: bound pods found, those adopted, and those of which nobody can tell."""

    cluster: str
    pods: int
    adopted: int
    revision: int = 0
    unread: tuple[str, ...] = ()


class _Found(msgspec.Struct, frozen=True):
    """The bound pods of a cluster: what they hold and where; `unread` cannot be told."""

    cluster: str
    adoptions: tuple[PodAdopted, ...]
    unread: tuple[str, ...]

    @property
    def pods(self) -> int:
        """How many hold devices, or were bound by us."""
        return len(self.adoptions) + len(self.unread)


class _Done(Exception):
    """All that the ledger holds has been folded."""


@click.command(epilog="Example:  apportion rebuild --kubernetes --reason 'disk of nats-0 lost'")
@click.option("--reason", required=True, help="What became of the old one, for whoever asks later.")
@by_whom
@click.option("--scheduler-name", "schedulers", multiple=True, default=OURS, show_default=True,
              metavar="NAME", help="Pods with this schedulerName are ours.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
@kubernetes_options
@asks_ledger
def command(*, where: Where, as_json: bool, reason: str, by: str, **given: Any) -> None:
    """Write a lost ledger anew from the annotations of the cluster's bound pods.

    Stop the schedulers first, make the stream (`apportion ledger create`), put your configuration
    back (`apportion config apply`), rebuild, and start everything. Running pods are not touched.

    Exit codes: 0 done; 1 the ledger has pods and so is not lost; 3 the ledger or the cluster cannot
    be reached; 4 the ledger holds events of a newer build.
    """
    if not reason.strip():
        raise click.UsageError("--reason is empty; say what became of the old ledger")
    kube = kube_choice(**{name: given[name] for name in ("kubernetes", "kubeconfig", "context")})
    rebuilt = LedgerRebuilt(by=person(by), reason=reason[:TEXT_MAX], cluster="")
    schedulers = frozenset(given["schedulers"])
    work = _rebuild(where.reach(), kube, rebuilt, schedulers, dry_run=given["dry_run"])
    _say(run(work), as_json=as_json, dry_run=given["dry_run"])


async def _rebuild(
    reach: Reach,
    kube: KubeChoice,
    rebuilt: LedgerRebuilt,
    schedulers: frozenset[str],
    *,
    dry_run: bool,
) -> Rebuilt:
    async with open_ledger(reach) as ledger:
        state = await _folded(ledger)
        if state.pods:
            raise NotFound(
                f"the ledger has {len(state.pods):,} pods and so is not lost; to begin with "
                "another one, give the server an empty store"
            )
        found = await _fit_query(kube, state, schedulers)
        if dry_run:
            return Rebuilt(found.cluster, found.pods, len(found.adoptions), 0, found.unread)
        rebuilt = msgspec.structs.replace(
            rebuilt, cluster=found.cluster, pods=found.pods, unread=len(found.unread)
        )
        adopted, revision = await _write(ledger, rebuilt, found.adoptions, basis=state.revision)
        return Rebuilt(found.cluster, found.pods, adopted, revision, found.unread)


async def _folded(ledger: JetStreamLedger) -> State:
    """What a new ledger holds already: perhaps devices and a configuration. Raises UnknownEvent."""
    last = await ledger.last_revision()
    auditor = Auditor(State(rules=await stream.read_rules(ledger.wire)))

    def deliver(record: Record) -> None:
        auditor.take(record.revision, record.subject, record.payload)
        if record.revision >= last:
            raise _Done

    if last:
        subscription = await ledger.follow(deliver)
        with contextlib.suppress(_Done):
            await subscription.join()
    return auditor.state


async def _fit_query(kube: KubeChoice, state: State, schedulers: frozenset[str]) -> _Found:
    """Ask the cluster for all pods.

    Raises:
        Unreachable: it does not answer, or does not let us.
    """
    from apportion.runtime.kube.client import KubeRefused, KubeUnavailable, open_kube
    from apportion.runtime.kube.watch import pages

    ours = scheduler_names(state.configuration, schedulers).ours
    config = manifest_config(state.configuration)
    found: list[tuple[str, Claim]] = []
    try:
        async with open_kube(kube.kubeconfig, kube.context) as api:
            async for items, _ in pages(api, PODS):
                for item in items:
                    pod = msgspec.json.decode(item)
                    claim = bound_claim(pod, config, schedulers=ours)
                    if claim is not None:
                        found.append((pod["spec"]["nodeName"], claim))
            return _sorted_out(api.url, found, state)
    except (KubeUnavailable, KubeRefused, ConfigError) as error:
        raise Unreachable(str(error)) from None


def _sorted_out(cluster: str, found: Iterable[tuple[str, Claim]], state: State) -> _Found:
    """Claims whose shares can be told, and the names of the others."""
    adoptions, unread = list[PodAdopted](), list[str]()
    for name, claim in found:
        node = state.nodes.get(name)
        devices = {each: held.device for each, held in node.by_id.items()} if node else {}
        known = state.configuration.nvidia.known_mig_geometries
        adoption = claim.on(name, devices, known)
        if adoption is None:
            unread.append(f"{claim.submitted.namespace}/{claim.submitted.name}")
        else:
            adoptions.append(adoption)
    return _Found(cluster, tuple(adoptions), tuple(unread))


async def _write(
    ledger: JetStreamLedger,
    rebuilt: LedgerRebuilt,
    adoptions: tuple[PodAdopted, ...],
    *,
    basis: int,
) -> tuple[int, int]:
    """Say what this is, then hold every pod; how many, and the last revision."""
    async with appending(ledger) as commit:
        publisher = Publisher(f"cli/{rebuilt.by}", SystemClock(), commit.append)
        first = await publisher.publish(rebuilt, event_id=f"LedgerRebuilt/{uuid4()}", basis=basis)
        basis = first.revision or basis
        revisions = [basis]

        async def hold(data: PodAdopted) -> None:
            draft = publisher.draft(data, event_id=f"{data.pod}/adopted/0", basis=basis)
            with contextlib.suppress(FenceRefused):  # a watcher has told of it
                done = await commit.append(msgspec.structs.replace(draft, expect=0))
                revisions.append(done.revision or basis)

        for first_of in range(0, len(adoptions), TOGETHER_MAX):
            batch = adoptions[first_of : first_of + TOGETHER_MAX]
            await asyncio.gather(*(hold(data) for data in batch))
        return len(adoptions), max(revisions)


def _say(done: Rebuilt, *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        print_json(done)
        return
    out = console()
    verb = "would be held" if dry_run else "are held"
    out.print(f"{done.adopted:,} of {done.pods:,} bound pods of {done.cluster} {verb}")
    if done.unread:
        names = ", ".join(done.unread[:SHOWN])
        more = len(done.unread) - SHOWN
        console(stderr=True).print(
            plain(
                f"{names}{f' and {more:,} more' if more > 0 else ''}: no annotation tells which "
                "devices these hold, or it gives numbers (of cards, of places in MIG groups) and "
                "the node's agent has not reported; devices of that family are off offer there "
                "until it is known or the pod ends"
            ),
            style="yellow", soft_wrap=True,
        )  # fmt: skip
