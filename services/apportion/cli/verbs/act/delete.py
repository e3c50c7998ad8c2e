"""`apportion delete`: end pods, and release their shares."""

import asyncio
import sys
from collections.abc import Iterable
from contextlib import suppress

import click
import msgspec

from apportion.cli.client.completion import PODS
from apportion.cli.client.configuration import manifest_config_now
from apportion.cli.client.connection import Where, asks_both
from apportion.cli.client.gateway_client import WAIT_S, Gateway
from apportion.cli.client.ledger import appending, by_now, publish, run, with_ledger
from apportion.cli.client.lookup import find, pods_meant, split_name
from apportion.cli.exits import REFUSED, NotFound
from apportion.cli.pods.append import end, stands
from apportion.cli.pods.manifest_files import read_manifests, tell_passed_over, tell_refused
from apportion.cli.render.output import print_json, say, warn
from apportion.cli.usage import Verb
from apportion.core.answers.reads import GangAnswer, PodAnswer, PodDetail
from apportion.core.explain.health import moving
from apportion.core.explain.text.event_text import limit_name
from apportion.core.explain.text.words import listed, many
from apportion.runtime.files.manifests import Problem, Wish
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion_schemas import PodGroupGone, QueueObserved, QuotaGone, QuotaObserved


class Report(msgspec.Struct, kw_only=True):
    """The document that `--json` prints: what was ended, with revisions, and problems."""

    deleted: dict[str, int] = {}
    limits: dict[str, int] = {}
    gangs: dict[str, int] = {}
    problems: list[str] = []


@click.command(cls=Verb, epilog="Example:  apportion delete default/hami-pod")
@click.argument("pods", nargs=-1, metavar="[NAMESPACE/]POD...", shell_complete=PODS)
@click.option(
    "-n", "--namespace", metavar="NAMESPACE", help="Namespace of the pods.  [default: `default`]"
)
@click.option("-f", "--file", "files", multiple=True, metavar="FILE|DIR|-",
              help="Delete the pods, quotas and gangs of these manifests.")  # fmt: skip
@asks_both
def command(
    *, where: Where, as_json: bool, pods: tuple[str, ...], namespace: str | None,
    files: tuple[str, ...],
) -> None:  # fmt: skip
    """Delete pods and free their shares; with -f, also delete quotas and gangs.

    A gang is deleted with its last pod; a gang without pods, with its PodGroup. Queues cannot be
    deleted; submit the queue without limits instead. `delete` prints what it does not delete, and
    why.

    Exit codes: 0 all deleted; 1 not found, not deleted, or an invalid document; 2 wrong usage; 3
    ledger or gateway unreachable."""
    if not pods and not files:
        raise click.UsageError("name pods, or give their manifests with -f")
    report = Report()
    names = [split_name(pod, namespace) for pod in pods]
    wish, problems = Wish(), list[Problem]()
    if files:
        wish, problems = read_manifests(files, manifest_config_now(where))
        report.problems += map(str, problems)
        tell_passed_over(wish)
        tell_refused(problems)
        names += [(pod.namespace, pod.name) for pod in wish.pods]
        report.problems += (f"{each} has no pods, so none was deleted" for each in wish.podless)
        if wish.limits:
            with_ledger(where.reach(), lambda ledger: _lift(ledger, wish.limits, report))
    typed = frozenset(pod for pod in pods if "/" not in pod)
    found = _find(where, list(dict.fromkeys(names)), report, typed)
    if found:
        report.deleted = with_ledger(where.reach(), lambda ledger: end(ledger, found, "deleted"))
    if wish.groups:
        gateway = Gateway(where.gateway_url())
        with_ledger(where.reach(), lambda ledger: _disband(ledger, gateway, wish, report))
    if as_json:
        print_json(report)
    else:
        for name, revision in (report.limits | report.deleted | report.gangs).items():
            say(f"{name} deleted at revision {revision}")
    for problem in report.problems[len(problems) :]:
        warn(problem, style="red")
    if report.problems:
        sys.exit(REFUSED)


def _find(
    where: Where, names: list[tuple[str, str]], report: Report, typed: frozenset[str]
) -> list[tuple[int, PodAnswer]]:
    gateway, now = Gateway(where.gateway_url()), run(by_now(where.reach()))
    found: list[tuple[int, PodAnswer]] = []
    live: list[PodAnswer] = []
    for namespace, name in names:
        try:
            detail = gateway.ask("pods", namespace, name, answer=PodDetail, query=now)
        except NotFound as error:
            live = live or gateway.items("pods", PodAnswer)[1]
            meant = pods_meant(name, live)
            if not meant and name in typed:
                with suppress(NotFound):
                    kind = "device" if find(where, name)[2] else "node"
                    meant = f"; it is a {kind}, and `delete` ends only pods: {moving(name)}"
            report.problems.append(f"{error.message}{meant}")
        else:
            found.append((detail.revision, detail.pod))
    return found


async def _lift(
    ledger: JetStreamLedger, limits: Iterable[QueueObserved | QuotaObserved], report: Report
) -> None:
    async with appending(ledger) as (_, publisher):
        for limit in limits:
            name, there = limit_name(limit), await stands(ledger, limit)
            if isinstance(limit, QueueObserved):
                report.problems.append(
                    f"{name} was not deleted: queues cannot be deleted; to remove its limits, "
                    "submit it with only its name"
                )
            elif not isinstance(there, QuotaObserved):
                report.problems.append(
                    f"{name} does not exist; list quotas with `apportion get quotas`"
                )
            elif there.version:
                report.problems.append(f"{name} belongs to Kubernetes; delete it there")
            else:
                gone = QuotaGone(namespace=limit.namespace, quota=limit.quota)
                basis = await ledger.last_revision()
                report.limits[name] = await publish(publisher, gone, basis=basis)


async def _disband(ledger: JetStreamLedger, gateway: Gateway, wish: Wish, report: Report) -> None:
    of_pods = {pod.group for pod in wish.pods}
    async with appending(ledger) as (_, publisher):
        query = {"at_least": await ledger.last_revision(), "wait_s": WAIT_S}
        basis, there = await asyncio.to_thread(gateway.items, "gangs", GangAnswer, query)
        gangs = {gang.group: gang for gang in there}
        for group in wish.groups:
            gang = gangs.get(group)
            if gang is not None and gang.pods:
                space = {"namespace": gang.namespace}
                _, pods = await asyncio.to_thread(gateway.items, "pods", PodAnswer, space)
                left = [f"{pod.namespace}/{pod.name}" for pod in pods if pod.group == group]
                still = f"the gang still has {many(len(left), 'pod')}: {listed(left)}"
                report.problems.append(f"gang {group} was not deleted: {still}")
            elif gang is not None:
                gone = PodGroupGone(group=group)
                report.gangs[f"gang {group}"] = await publish(publisher, gone, basis=basis)
            elif group not in of_pods:
                problem = f"gang {group} does not exist; list gangs with `apportion get gangs`"
                report.problems.append(problem)
