"""`apportion drain`: cordon a node or device, and move its pods elsewhere."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from apportion.cli.client.completion import TARGETS
from apportion.cli.client.connection import Where, asks_both
from apportion.cli.client.cordons import stands_now
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.ledger import by_whom, open_ledger, person, run, to_its_end, write
from apportion.cli.client.lookup import find
from apportion.cli.client.plans import ask
from apportion.cli.exits import INTERRUPTED, NOT_NOW, REFUSED, NotFound, Unreachable
from apportion.cli.pods.decisions import Awaited
from apportion.cli.pods.moving import (
    BY_HAND,
    NAMED_MAX,
    REASON_MAX,
    UNDECIDED,
    Moving,
    Outcome,
    evict_units,
    how_far,
    move_units,
    note_decisions,
)
from apportion.cli.pods.pending import alike, evicted_for, wait_for_room
from apportion.cli.pods.resubmit import UNIT_MAX, Unit
from apportion.cli.render.output import console, doubtful, plain, print_answer, warn
from apportion.cli.usage import SAY_WHY, Verb
from apportion.core.answers.plans import PlanRequest
from apportion.core.answers.reads import GangAnswer, NodeDetail, PodAnswer, Why
from apportion.core.devices.cordons import cordoning
from apportion.core.explain.text import words
from apportion.core.explain.text.words import listed
from apportion.runtime.service.options import KubeChoice

DRAINING = "drain: "  # prefix of the reasons of this verb's cordons


class Report(Outcome, kw_only=True):
    """The document that `--json` prints. The keys of its maps are pods, as `namespace/name`.

    In a dry run, `left` has all pods with what would become of them."""

    target: str
    revision: int = 0  # the cordon's; 0 in a dry run
    planned: dict[str, str] = {}  # node in a dry run; "" if the pod would be pending
    with_gang: list[str] = []  # pods on other nodes that move with their gang
    unready: str = ""  # why the target's pods may not be running
    instead: dict[str, str] = {}  # pending pods placed before a moved one
    estimate: bool = False  # True if controllers recreate pods in an unknown order
    mixed_gangs: dict[str, dict[str, int]] = {}  # pods per device model
    seconds: float = 0.0


class Order(msgspec.Struct, frozen=True):
    """The request for a drain: its target, its reason, and how to move the pods."""

    node: str
    device: str
    reason: str
    moving: Moving

    def covers(self, pod: PodAnswer) -> bool:
        """Return True if the pod is on the target."""
        devices = {share.device for share in pod.shares}
        return pod.node == self.node and (not self.device or self.device in devices)


@click.command(
    cls=Verb,
    epilog="Example:  apportion drain gpu-1 --reason 'firmware'     apportion uncordon gpu-1",
)
@click.argument("target", metavar="NODE|DEVICE", shell_complete=TARGETS)
@click.option("--reason", default="",
              help="Reason, for the audit trail.  [required, except with --dry-run]")  # fmt: skip
@click.option("--timeout", "timeout_s", type=click.FloatRange(1, 86_400), default=600.0,
              show_default=True, metavar="SECONDS", help="Time limit for moving pods.")  # fmt: skip
@click.option(
    "--dry-run", is_flag=True, help="Show what would be moved and where, without changing anything."
)
@click.option("--force", is_flag=True,
              help="In Kubernetes, also evict pods without a controller.")  # fmt: skip
@click.option("--kubeconfig", type=click.Path(dir_okay=False, path_type=Path),
              envvar="APPORTION_KUBECONFIG", show_envvar=True,
              help="Kubeconfig of the cluster.  [default: ~/.kube/config]")  # fmt: skip
@click.option("--context", metavar="NAME", help="Context in the kubeconfig.")
@by_whom
@asks_both
def command(
    *, where: Where, as_json: bool, target: str, reason: str, timeout_s: float, dry_run: bool,
    force: bool, kubeconfig: Path | None, context: str | None, by: str,
) -> None:  # fmt: skip
    """Cordon a node or device and move its pods, gangs as a whole, within disruption budgets.

    In Kubernetes, `drain` evicts the pods, and their controllers recreate them. It retries while a
    disruption budget blocks a pod, and does not wait for the new pods. Without Kubernetes, `drain`
    ends and resubmits each pod in one step.

    Progress is printed on standard error. Ctrl-C stops between two pods and reports what was done;
    the cordon stays. `apportion uncordon` removes the cordon, and does not move pods back. If the
    agent of a node is not reporting, its pods may still run there, so they may run twice after a
    drain.

    With --dry-run, exit codes are those of the predicted outcome.

    Exit codes: 0 no pods are left; 1 pods are left, or no such node or device; 3 ledger, gateway or
    API server unreachable; 5 no pods are left, but a moved pod is pending; 130 stopped with
    Ctrl-C."""
    if not (reason.strip() or dry_run):
        raise click.UsageError(SAY_WHY)
    kube = KubeChoice(wanted=True, kubeconfig=kubeconfig, context=context)
    report = Report(target=target)
    began = time.monotonic()
    try:
        basis, node, device = find(where, target)
        report.target = device or node
        who = person(by)
        why = f"drained from {device or node} by {who}: {reason}"
        moving = Moving(
            what=f"node {node}", who=who, why=why, timeout_s=timeout_s, kube=kube, force=force
        )
        order = Order(node, device, reason, moving)
        run(_drain(where, order, report, basis=basis, dry_run=dry_run))
    except KeyboardInterrupt:
        report.stopped = BY_HAND
    report.seconds = round(time.monotonic() - began, 3)
    _end(report, as_json=as_json, dry_run=dry_run)


def _end(report: Report, *, as_json: bool, dry_run: bool) -> None:
    # Ctrl-C must not cut the report of what was done.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        print_answer(report, lambda: _tell(report, dry_run=dry_run), as_json=as_json)
    finally:
        signal.signal(signal.SIGINT, before)
    if report.stopped == BY_HAND:
        sys.exit(INTERRUPTED)
    stays = report.left.keys() - report.planned.keys()  # in a dry run, the planned ones would move
    if stays or report.stopped:
        sys.exit(REFUSED)
    if report.waiting or "" in report.planned.values():
        sys.exit(NOT_NOW)


async def _drain(where: Where, order: Order, report: Report, *, basis: int, dry_run: bool) -> None:
    """Drain, and fill the report. Raises NotFound before any change if pods cannot be moved."""
    gateway = Gateway(where.gateway_url())
    if not dry_run:
        await asyncio.to_thread(_units, gateway, order, at_least=basis)
        # A cordon by the same user for the same reason is reused.
        reason = (DRAINING + order.reason)[:REASON_MAX]
        data = cordoning(order.node, order.device, by=order.moving.who, reason=reason)
        report.revision = await stands_now(where, order.node, data)
        if not report.revision:

            async def cordon() -> None:
                report.revision = (await write(where.reach(), data, basis=basis)).revision or 0

            await to_its_end(cordon())
        basis = max(basis, report.revision)
    units = await asyncio.to_thread(_units, gateway, order, at_least=basis)
    report.left = {name: "not moved yet" for unit in units for name in unit.names}
    _note_before(report, order, units)
    if dry_run:
        await asyncio.to_thread(_plan, gateway, where.gateway_url(), order, report)
        return
    if not units:
        return
    if report.unready:
        warn(unknown_words(report))
    deadline = time.monotonic() + order.moving.timeout_s
    # From the gateway's state, because the ledger's beginning may have been trimmed.
    detail = await asyncio.to_thread(gateway.ask, "nodes", order.node, answer=NodeDetail)
    if detail.node.of_kubernetes:
        await evict_units(gateway, order.moving, report, units, deadline)
        return
    async with open_ledger(where.reach()) as ledger:
        awaited = await move_units(ledger, order.moving, report, units, deadline, basis=basis)
        left, now = max(deadline - time.monotonic(), 0.0), dict[str, Why]()
        # Of all pods: their schedulers decide whether to preempt.
        priorities = {
            name: pod.priority
            for unit in units
            for name, pod in zip(unit.names, unit.pods, strict=True)
        }
        try:
            now = await wait_for_room(ledger, gateway, awaited, priorities, left)
        finally:
            note_decisions(report, awaited, now)
    if report.waiting:
        await asyncio.to_thread(_note_instead, gateway, report, awaited, basis=basis)


def _note_before(report: Report, order: Order, units: Iterable[Unit]) -> None:
    for unit in units:
        for pod, name in zip(unit.pods, unit.names, strict=True):
            report.was[name] = pod.node
            if order.covers(pod):
                report.unready = report.unready or pod.unready
            else:
                report.with_gang.append(name)


def _plan(gateway: Gateway, url: str, order: Order, report: Report) -> None:
    report.left = dict.fromkeys(report.left, "would not be moved")
    if not report.left:
        return
    answer = ask(url, PlanRequest(drain=(order.device or order.node,)))
    for pod in answer.moved:
        name = f"{pod.namespace}/{pod.name}"
        if name in report.left:
            report.left[name] = pod.text
            report.planned[name] = pod.node
            report.evicted |= {name: list(pod.evicts)} if pod.evicts else {}
    report.mixed_gangs = {gang.group: gang.models for gang in answer.mixed_gangs}
    if "" in report.planned.values():
        report.instead = {f"{pod.namespace}/{pod.name}": pod.node for pod in answer.helped}
    detail = gateway.ask("nodes", order.node, answer=NodeDetail)
    report.estimate = bool(report.planned) and detail.node.of_kubernetes


def _units(gateway: Gateway, order: Order, *, at_least: int) -> list[Unit]:
    """Return the target's pods, grouped into units, in scheduling order. Raises NotFound."""
    query = {"node": order.node, "at_least": at_least, "wait_s": 30}
    _, there = gateway.items("pods", PodAnswer, query)
    there = sorted(filter(order.covers, there), key=_turn)
    # The pods of gangs that run all or none.
    together: dict[str, list[PodAnswer]] = {}
    if groups := {pod.group for pod in there if pod.group}:
        _, gangs = gateway.items("gangs", GangAnswer)
        together = {
            gang.group: [] for gang in gangs if gang.group in groups and gang.min_available > 1
        }
    for namespace in sorted({group.partition("/")[0] for group in together}):
        _, pods = gateway.items("pods", PodAnswer, {"namespace": namespace})
        for pod in pods:
            if pod.group in together and pod.node:
                together[pod.group].append(pod)
    units: dict[str, Unit] = {}
    for pod in there:
        if pod.group in together:
            units[pod.group] = Unit(tuple(sorted(together[pod.group], key=_turn)), pod.group)
        else:
            units[pod.uid] = Unit((pod,))
    for unit in units.values():
        if len(unit.pods) > UNIT_MAX:
            raise NotFound(
                f"gang {unit.gang} has {len(unit.pods)} pods, and at most {UNIT_MAX} can be moved "
                "together; delete and resubmit it"
            )
    return list(units.values())


def _turn(pod: PodAnswer) -> tuple[int, int]:
    return -pod.priority, pod.submitted_revision


def _note_instead(gateway: Gateway, report: Report, awaited: Awaited, *, basis: int) -> None:
    query = {"at_least": awaited.revision, "wait_s": 30}
    try:
        _, pods = gateway.items("pods", PodAnswer, query)
        groups = {pod.group for pod in pods if f"{pod.namespace}/{pod.name}" in report.moved}
        gangs = gateway.items("gangs", GangAnswer, query)[1] if any(groups) else []
    except Unreachable:
        return
    report.mixed_gangs = {
        gang.group: gang.models for gang in gangs if gang.group in groups and len(gang.models) > 1
    }
    report.instead = {
        f"{pod.namespace}/{pod.name}": pod.node for pod in pods
        if pod.node and pod.submitted_revision <= basis < pod.placed_revision
    }  # fmt: skip


def _tell(report: Report, *, dry_run: bool) -> None:
    out = console()
    doubtful(words.mixed_gang(*gang) for gang in report.mixed_gangs.items())
    if report.stopped == BY_HAND and (dry_run or not report.revision):
        said = f"{report.target} was not cordoned, and no pod was moved"
        out.say(f"stopped {BY_HAND}: {said}")
        return
    if dry_run:
        _tell_plan(report)
        return
    out.print(plain(f"{report.target} cordoned at revision {report.revision}"))
    for name, node in report.moved.items():
        went = "restarted on" if node == report.was.get(name) else "moved to"
        said = f"{name} {went} {node}" if node else f"{name} ended"
        out.say(said + evicted_for(report.evicted.get(name, [])))
    for name, why in alike(report.waiting):
        said = why if why == UNDECIDED else f"pending: {why}"
        out.say(f"{name} {said}")
    for name, why in report.left.items():
        out.say(f"{name} not moved: {why}")
    if report.stopped:
        for line in (f"stopped {report.stopped}:", *how_far(report)):
            out.print(plain(line))
    gone = len(report.moved) + len(report.waiting)
    if not report.left and (gone or not report.stopped):
        known = f"; some may still run, because {report.unready}" if report.unready else ""
        out.say(f"no pods are left on {report.target}{known}")
    elif report.stopped:
        out.print("run the command again to continue")
    if report.waiting and not report.stopped:
        out.print(plain(f"{len(report.waiting)} of {gone + len(report.left)} pods pending"))
    if report.instead:
        verb = "was" if len(report.instead) == 1 else "were"
        said = f"{words.many(len(report.instead), 'pending pod')} {verb} placed instead"
        out.say(f"{said}: {listed(list(report.instead), NAMED_MAX)}")
    out.say(f"to remove the cordon: apportion uncordon {report.target} (moved pods stay)")


def _tell_plan(report: Report) -> None:
    out = console()
    along = len(report.planned.keys() & set(report.with_gang))  # on other nodes
    here = len(report.planned) - along
    waits = sum(not node for node in report.planned.values())
    said = f"{words.many(here, 'pod')} would be moved from {report.target}"
    if along:
        whose = "its gang" if here == 1 else "their gangs"
        said += f", with {words.many(along, 'pod')} of {whose} on other nodes"
    out.say(said + (f"; {waits} of {len(report.left)} would be pending" if waits else ""))
    if report.instead:
        said = f"{words.many(len(report.instead), 'pending pod')} would be placed instead"
        out.say(f"{said}: {listed(list(report.instead), NAMED_MAX)}")
    if report.unready:
        out.say(unknown_words(report))
    finds = {name: what for name, what in report.left.items() if report.planned.get(name)}
    others = {name: what for name, what in report.left.items() if name not in finds}
    for name, what in (*finds.items(), *alike(others)):
        along = name in finds and name in report.with_gang
        elsewhere = f", on {report.was[name]}," if along else ""
        out.say(f"{name}{elsewhere} {what}")
    if report.estimate:
        out.say("estimate: controllers recreate the pods in an unknown order, so nodes may differ")


def unknown_words(report: Report) -> str:
    """Return a warning that moved pods may still be running."""
    return (
        f"pods on {report.target} may still be running: {report.unready}; once moved, they may run "
        "twice"
    )
