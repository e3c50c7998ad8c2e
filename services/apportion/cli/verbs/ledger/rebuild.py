"""`apportion rebuild`: restore a lost ledger from the annotations of running pods.

Invariants: a ledger with pods is not changed. If a watcher adopts a pod at the same time, `rebuild`
does not adopt it again."""

import asyncio
import contextlib
from typing import Any

import click
import msgspec

from apportion.cli.client.connection import Where, asks_ledger
from apportion.cli.client.ledger import appending, by_whom, open_ledger, person, publish, run
from apportion.cli.exits import NotFound, Unreachable
from apportion.cli.render.output import console, print_json, warn
from apportion.cli.usage import Verb
from apportion.core.audit import Auditor
from apportion.core.configuration import manifest_config
from apportion.core.explain.text.words import listed
from apportion.core.ledger.state import State
from apportion.core.workloads.adoption.claims import bound_claim
from apportion.core.workloads.schedulers import OURS, scheduler_names
from apportion.runtime.jetstream import stream
from apportion.runtime.ledger.port import FenceRefused
from apportion.runtime.ledger.reading import read_to
from apportion.runtime.process.config import ConfigError
from apportion.runtime.process.reach import Reach
from apportion.runtime.service.options import KubeChoice, kube_choice, kubernetes_options
from apportion_schemas import LedgerRebuilt, PodAdopted
from apportion_schemas.quantities import TEXT_MAX

TOGETHER_MAX = 2_000
SHOWN = 10
PODS = "/api/v1/pods"


class Rebuilt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The document that `--json` prints."""

    cluster: str
    pods: int  # number of bound pods
    adopted: int
    revision: int = 0
    unread: tuple[str, ...] = ()  # pods whose shares are unreadable


@click.command(
    cls=Verb, epilog="Example:  apportion rebuild --kubernetes --reason 'disk of nats-0 lost'"
)
@click.option("--reason", required=True, help="Why the old ledger was lost, for the audit trail.")
@by_whom
@click.option("--scheduler-name", "schedulers", multiple=True, default=OURS, show_default=True,
              metavar="NAME", help="Adopt pods with this schedulerName.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be written, without writing it.")
@kubernetes_options
@asks_ledger
def command(*, where: Where, as_json: bool, reason: str, by: str, **given: Any) -> None:
    """Rebuild a lost ledger from the annotations of bound pods; running pods are not touched.

    First stop the schedulers, create the stream (`apportion ledger create`) and apply your
    configuration (`apportion config apply`). Then rebuild, and start all services.

    Exit codes: 0 done; 1 the ledger has pods, so it is not lost; 3 ledger or cluster unreachable; 4
    the ledger has events of a newer build."""
    if not reason.strip():
        raise click.UsageError("--reason is empty; say why the old ledger was lost")
    kube = kube_choice(**{name: given[name] for name in ("kubernetes", "kubeconfig", "context")})
    rebuilt = LedgerRebuilt(by=person(by), reason=reason[:TEXT_MAX], cluster="")
    schedulers = frozenset(given["schedulers"])
    done = run(_rebuild(where.reach(), kube, rebuilt, schedulers, dry_run=given["dry_run"]))
    if as_json:
        print_json(done)
        return
    verb = "would be adopted" if given["dry_run"] else "adopted"
    console().print(f"{done.adopted:,} of {done.pods:,} bound pods of {done.cluster} {verb}")
    if done.unread:
        warn(
            f"the devices of {listed(list(done.unread), SHOWN)} are unknown: the annotations name "
            "none or only indexes, and the node's agent is not reporting. Until the devices are "
            "known or the pods end, no other pods that request devices of the same family are "
            "placed on these nodes"
        )


async def _rebuild(
    reach: Reach,
    kube: KubeChoice,
    rebuilt: LedgerRebuilt,
    schedulers: frozenset[str],
    *,
    dry_run: bool,
) -> Rebuilt:
    async with open_ledger(reach) as ledger:
        # A new ledger may have devices and a configuration already.
        auditor = Auditor(State(rules=await stream.read_rules(ledger.wire)))
        await read_to(
            ledger,
            await ledger.last_revision(),
            lambda record: auditor.take(record.revision, record.subject, record.payload),
        )
        state = auditor.state
        if state.pods:
            raise NotFound(
                f"the ledger has {len(state.pods):,} pods, so it is not lost; to start a new one, "
                "give the server an empty store"
            )
        cluster, held, unread = await _found_in(kube, state, schedulers)
        pods = len(held) + len(unread)
        if dry_run:
            return Rebuilt(cluster, pods, len(held), 0, unread)
        rebuilt = msgspec.structs.replace(rebuilt, cluster=cluster, pods=pods, unread=len(unread))
        async with appending(ledger, rebuilt.by) as (commit, publisher):
            basis = await publish(publisher, rebuilt, basis=state.revision) or state.revision
            revisions = [basis]

            async def hold(data: PodAdopted) -> None:
                draft = publisher.draft(data, event_id=f"{data.pod}/adopted/0", basis=basis)
                with contextlib.suppress(FenceRefused):  # a watcher adopted it
                    done = await commit.append(msgspec.structs.replace(draft, expect=0))
                    revisions.append(done.revision or basis)

            for first_of in range(0, len(held), TOGETHER_MAX):
                batch = held[first_of : first_of + TOGETHER_MAX]
                await asyncio.gather(*(hold(data) for data in batch))
            return Rebuilt(cluster, pods, len(held), max(revisions), unread)


async def _found_in(
    kube: KubeChoice, state: State, schedulers: frozenset[str]
) -> tuple[str, tuple[PodAdopted, ...], tuple[str, ...]]:
    """Return the cluster's URL, the pods to adopt, and the names of pods with unreadable shares."""
    from apportion.runtime.kube.client import KubeRefused, KubeUnavailable, open_kube
    from apportion.runtime.kube.watch import pages

    ours = scheduler_names(state.configuration, schedulers).ours
    config = manifest_config(state.configuration)
    known = state.configuration.nvidia.known_mig_geometries
    adoptions, unread = list[PodAdopted](), list[str]()
    try:
        async with open_kube(kube.kubeconfig, kube.context) as api:
            async for items, _ in pages(api, PODS):
                for item in items:
                    pod = msgspec.json.decode(item)
                    claim = bound_claim(pod, config, schedulers=ours)
                    if claim is None:
                        continue
                    name = pod["spec"]["nodeName"]
                    node = state.nodes.get(name)
                    devices = (
                        {each: held.device for each, held in node.by_id.items()} if node else {}
                    )
                    adoption = claim.on(name, devices, known)
                    if adoption is None:
                        unread.append(f"{claim.submitted.namespace}/{claim.submitted.name}")
                    else:
                        adoptions.append(adoption)
            return api.url, tuple(adoptions), tuple(unread)
    except (KubeUnavailable, KubeRefused, ConfigError) as error:
        raise Unreachable(str(error)) from None
