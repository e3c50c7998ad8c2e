"""`apportion drain`: a node or a device off offer, and what runs there somewhere else."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import click
import msgspec

from apportion.cli.asking import Gateway
from apportion.cli.awaiting import Awaited
from apportion.cli.completing import TARGETS
from apportion.cli.connection import Where, asks_both
from apportion.cli.cordon import cordoning, find, stands_now
from apportion.cli.exits import INTERRUPTED, NOT_NOW, REFUSED, NotFound, Unreachable
from apportion.cli.moving import UNIT_MAX, Anew, Blocked, Unit
from apportion.cli.output import console, plain, print_json
from apportion.cli.plan import ask
from apportion.cli.submitting import Submitted
from apportion.cli.usage import SAY_WHY
from apportion.cli.waiting import waits_for, whys
from apportion.cli.writing import (
    appending,
    by_whom,
    open_ledger,
    person,
    run,
    to_its_end,
    write,
)
from apportion.core.explain import words
from apportion.core.explain.answers import GangAnswer, NodeDetail, PodAnswer, Why
from apportion.core.explain.plans import PlanRequest
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.process.config import ConfigError
from apportion.runtime.service.kube_options import KubeChoice
from apportion_schemas.quantities import Payload

LOOK_EVERY_S = 1.0
AGAIN_AFTER_S = 5.0
"""As kubectl: a budget that allows nothing now may allow something soon."""
REASON_MAX = 1024
DRAINING = "drain: "
"""What the reason of a cordon begins with that this verb wrote."""
BY_HAND = "by Ctrl-C"
UNDECIDED = "not decided yet"
LEAVING = "evicted, and has not ended yet"


class Report(msgspec.Struct, kw_only=True):
    """What `--json` prints, by `namespace/name`.

    `moved`: where the pods are now; empty for those that ended, or whose controllers make new ones.
    `waiting`: off the target, and why they have no new place yet. `left`: there still, and why;
    in a dry run what would become of them, and `planned` has the node where each would go, empty
    for one that would wait. `estimate`: controllers in Kubernetes make them anew, in an order of
    their own. `revision` is that of the cordon, also of one that stood already for the same reason;
    0 for a dry run.
    """

    target: str
    revision: int = 0
    moved: dict[str, str] = {}
    waiting: dict[str, str] = {}
    left: dict[str, str] = {}
    planned: dict[str, str] = {}
    estimate: bool = False
    seconds: float = 0.0
    stopped: str = ""


class Order(msgspec.Struct, frozen=True):
    """What is to be drained, by whom and why, and within which time."""

    node: str
    device: str
    who: str
    reason: str
    timeout_s: float
    force: bool
    kube: KubeChoice


@click.command(epilog="Example:  apportion drain gpu-1 --reason 'firmware'     then: apportion "
               "uncordon gpu-1")  # fmt: skip
@click.argument("target", metavar="NODE|DEVICE", shell_complete=TARGETS)
@click.option("--reason", default="",
              help="Why, for whoever asks later; not needed with --dry-run.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=click.FloatRange(1, 86_400), default=600.0,
              show_default=True, metavar="SECONDS", help="How long to try.")  # fmt: skip
@click.option(
    "--dry-run", is_flag=True, help="Say what would be moved, and where to, and change nothing."
)
@click.option("--force", is_flag=True,
              help="In Kubernetes, also pods that no controller makes again.")  # fmt: skip
@click.option("--kubeconfig", type=click.Path(dir_okay=False, path_type=Path),
              envvar="APPORTION_KUBECONFIG", show_envvar=True,
              help="How to reach the cluster of the node.  [default: ~/.kube/config]")  # fmt: skip
@click.option("--context", metavar="NAME", help="Context of the kubeconfig.")
@by_whom
@asks_both
def command(
    *, where: Where, as_json: bool, target: str, reason: str, timeout_s: float, dry_run: bool,
    force: bool, kubeconfig: Path | None, context: str | None, by: str,
) -> None:  # fmt: skip
    """Cordon a node or device, and move what runs there: gangs whole, within disruption budgets.

    In Kubernetes pods are evicted, and their controllers make new ones; a pod whose budget does not
    allow it is waited for, and named. Without Kubernetes a pod ends and is submitted anew in the
    same moment. Ctrl-C stops between two pods and says what was done, what goes on by itself and
    what was not done; the cordon stays. `apportion uncordon` lifts the cordon; pods that moved stay
    where they are. Of a device's id the beginning will do: four characters after GPU-, if no other
    begins so.

    Exit codes: 0 nothing runs there any more; 1 something does, or there is no such node or device;
    3 the ledger, gateway or API server cannot be reached; 5 nothing runs there any more, and a pod
    that ran there waits for a place (with --dry-run: would wait). What controllers in Kubernetes
    make anew is not waited for; 130 it was stopped by Ctrl-C.
    """
    if not (reason.strip() or dry_run):
        raise click.UsageError(SAY_WHY)
    kube = KubeChoice(wanted=True, kubeconfig=kubeconfig, context=context)
    asked = Order("", "", person(by), reason, timeout_s, force, kube)
    report = Report(target=target)
    began = time.monotonic()
    try:
        basis, node, device = find(where, target)
        report.target = device or node
        order = msgspec.structs.replace(asked, node=node, device=device)
        run(_drain(where, order, report, basis=basis, dry_run=dry_run))
    except KeyboardInterrupt:
        report.stopped = BY_HAND
    report.seconds = round(time.monotonic() - began, 3)
    _end(report, as_json=as_json, dry_run=dry_run)


def _end(report: Report, *, as_json: bool, dry_run: bool) -> None:
    """Show the report, and end with its exit code."""
    if as_json:
        print_json(report)
    else:
        _tell(report, dry_run=dry_run)
    if report.stopped == BY_HAND:
        sys.exit(INTERRUPTED)
    if (report.left and not dry_run) or report.stopped:
        sys.exit(REFUSED)
    if report.waiting or "" in report.planned.values():
        sys.exit(NOT_NOW)


async def _drain(where: Where, order: Order, report: Report, *, basis: int, dry_run: bool) -> None:
    """Fill the report. Raises NotFound, before anything is done, for what cannot be moved."""
    gateway = Gateway(where.gateway_url())
    if not dry_run:
        await asyncio.to_thread(_units, gateway, order, at_least=basis)
        await _cordon(where, order, report, basis=basis)
        basis = max(basis, report.revision)
    units = await asyncio.to_thread(_units, gateway, order, at_least=basis)
    report.left = {name: "not moved yet" for unit in units for name in unit.names}
    if dry_run:
        await asyncio.to_thread(_plan, gateway, where.gateway_url(), order, report)
        return
    if not units:
        return
    deadline = time.monotonic() + order.timeout_s
    # By its fold: of what the ledger's beginning said, the ledger itself may have nothing any more.
    detail = await asyncio.to_thread(gateway.ask, "nodes", order.node, answer=NodeDetail)
    if detail.node.of_kubernetes:
        await _through_kubernetes(gateway, order, report, units, deadline)
        return
    async with open_ledger(where.reach()) as ledger:
        awaited = await _anew(ledger, order, report, units, deadline, basis=basis)
        now = await asyncio.to_thread(whys, gateway, awaited)
        _note_decisions(report, awaited, now)


async def _cordon(where: Where, order: Order, report: Report, *, basis: int) -> None:
    """Cordon it, unless the same person has for the same reason: then that one counts."""
    reason = (DRAINING + order.reason)[:REASON_MAX]
    data = cordoning(order.node, order.device, by=order.who, reason=reason)
    report.revision = await stands_now(where, order.node, data)
    if not report.revision:
        await to_its_end(_append(where, data, report, basis=basis))


async def _append(where: Where, data: Payload, report: Report, *, basis: int) -> None:
    report.revision = (await write(where.reach(), data, basis=basis)).revision or 0


def _plan(gateway: Gateway, url: str, order: Order, report: Report) -> None:
    """Note where each pod would go; the gateway plays the drain as it would happen."""
    report.left = dict.fromkeys(report.left, "would end where it is, and not be moved")
    drain = (order.device or order.node,)
    for pod in ask(url, PlanRequest(drain=drain)).moved if report.left else ():
        name = f"{pod.namespace}/{pod.name}"
        if name in report.left:
            report.left[name] = pod.sentence.removeprefix(f"{name} ")
            report.planned[name] = pod.node
    detail = gateway.ask("nodes", order.node, answer=NodeDetail)
    report.estimate = bool(report.planned) and detail.node.of_kubernetes


def _units(gateway: Gateway, order: Order, *, at_least: int) -> list[Unit]:
    """What runs there, gangs with all of their pods wherever these are, in the order of turns: so
    they are decided, however many are submitted before the first decision.

    Raises:
        NotFound: a gang is larger than can be moved in one piece.
    """
    query = {"node": order.node, "at_least": at_least, "wait_s": 30}
    _, there = gateway.items("pods", PodAnswer, query)
    if order.device:
        there = [pod for pod in there if any(s.device == order.device for s in pod.shares)]
    there.sort(key=_turn)
    together = _together(gateway, {pod.group for pod in there if pod.group})
    units: dict[str, Unit] = {}
    for pod in there:
        if pod.group in together:
            units[pod.group] = Unit(together[pod.group], pod.group)
        else:
            units[pod.uid] = Unit((pod,))
    for unit in units.values():
        if len(unit.pods) > UNIT_MAX:
            raise NotFound(
                f"gang {unit.gang} has {len(unit.pods)} pods, and {UNIT_MAX} can be moved in one "
                "piece; end it and submit it anew"
            )
    return list(units.values())


def _together(gateway: Gateway, groups: set[str]) -> dict[str, tuple[PodAnswer, ...]]:
    """The pods of those groups whose pods hold places together or not at all."""
    if not groups:
        return {}
    _, gangs = gateway.items("gangs", GangAnswer)
    found: dict[str, list[PodAnswer]] = {
        gang.group: [] for gang in gangs if gang.group in groups and gang.min_available > 1
    }
    for namespace in sorted({group.partition("/")[0] for group in found}):
        _, pods = gateway.items("pods", PodAnswer, {"namespace": namespace})
        for pod in pods:
            if pod.group in found and pod.node:
                found[pod.group].append(pod)
    return {group: tuple(sorted(pods, key=_turn)) for group, pods in found.items()}


def _turn(pod: PodAnswer) -> tuple[int, int]:
    return -pod.priority, pod.submitted_revision


async def _anew(
    ledger: JetStreamLedger, order: Order, report: Report, units: list[Unit], deadline: float, *,
    basis: int,
) -> Awaited:  # fmt: skip
    """Each unit ends and is submitted anew; then all have their time to be placed."""
    why = f"drained from {order.device or order.node} by {order.who}: {order.reason}"
    submitted = list[Submitted]()
    async with appending(ledger) as commit:
        anew = Anew(ledger, commit, order.who, why)
        for number, unit in enumerate(units, 1):
            if time.monotonic() > deadline:
                report.stopped = f"after {order.timeout_s:g} s"
                break
            submitted += await to_its_end(_move(anew, unit, report, basis=basis))
            _progress(unit, number, len(units))
    awaited = Awaited(submitted, lambda: None)
    try:
        await awaited.wait(ledger, max(deadline - time.monotonic(), LOOK_EVERY_S))
    finally:
        _note_decisions(report, awaited, {})
    return awaited


def _note_decisions(report: Report, awaited: Awaited, now: Mapping[str, Why]) -> None:
    for uid, said in awaited.decided.items():
        name, why = awaited.pods[uid].full_name, now.get(uid)
        placed = said.placed or (why.placed if why is not None else None)
        if placed is not None:
            report.waiting.pop(name, None)
            report.moved[name] = placed.node
        elif said.refused is not None:
            report.waiting[name] = waits_for(awaited, uid, why)


async def _move(anew: Anew, unit: Unit, report: Report, *, basis: int) -> tuple[Submitted, ...]:
    """The unit's pods under their new uids; none where it stays. The report says which."""
    try:
        moved = await anew.move(unit, basis=basis)
    except Blocked as error:
        report.left |= dict.fromkeys(unit.names, str(error))
        return ()
    for name in unit.names:
        report.left.pop(name, None)
        if name in moved.ended:
            report.moved[name] = ""
        else:
            report.waiting[name] = UNDECIDED
    return moved.submitted


async def _through_kubernetes(
    gateway: Gateway, order: Order, report: Report, units: list[Unit], deadline: float
) -> None:
    """Each unit is evicted; then all have the grace of their specs to leave.

    Raises:
        NotFound, Unreachable: the API server does not let us, or does not answer.
    """
    from apportion.cli.evicting import Evicting, evict_all
    from apportion.runtime.kube.client import KubeRefused

    evicted: dict[str, PodAnswer] = {}

    def asked(unit: Unit) -> None:
        for pod, name in zip(unit.pods, unit.names, strict=True):
            evicted[name] = pod
            report.left[name] = LEAVING
        _progress(unit, len(evicted), len(report.left) + len(report.moved))

    def blocked(unit: Unit, why: str) -> None:
        report.left |= dict.fromkeys(unit.names, why)

    try:
        async with asyncio.timeout(max(deadline - time.monotonic(), 0)), order.kube.open() as api:
            evicting = Evicting(api, force=order.force)
            work = asyncio.create_task(
                evict_all(evicting, units, pause_s=AGAIN_AFTER_S, asked=asked, blocked=blocked)
            )
            try:
                while not work.done() or (evicted and work.exception() is None):
                    await asyncio.sleep(LOOK_EVERY_S)
                    await asyncio.to_thread(_note_gone, gateway, evicted, report)
                await work
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
    except TimeoutError:
        report.stopped = f"after {order.timeout_s:g} s"
    except ConfigError as error:
        raise Unreachable(f"the API server of {order.node}: {error}") from None
    except KubeRefused as error:
        raise NotFound(f"the API server refuses: {error}") from None


def _note_gone(gateway: Gateway, evicted: dict[str, PodAnswer], report: Report) -> None:
    """Which of the evicted the ledger has not any more."""
    namespaces = sorted({pod.namespace for pod in evicted.values()})
    live: set[str] = set()
    for namespace in namespaces:
        _, pods = gateway.items("pods", PodAnswer, {"namespace": namespace})
        live |= {pod.uid for pod in pods}
    for name, pod in list(evicted.items()):
        if pod.uid not in live:
            del evicted[name]
            report.left.pop(name, None)
            report.moved[name] = ""


def _progress(unit: Unit, number: int, total: int) -> None:
    """One line for each unit, on a terminal."""
    out = console(stderr=True)
    if out.is_terminal:
        what = (
            f"gang {unit.gang}, {words.many(len(unit.pods), 'pod')}" if unit.gang else unit.names[0]
        )
        out.print(f"{number} of {total}:", plain(what))


def _tell(report: Report, *, dry_run: bool) -> None:
    out = console()
    if report.stopped == BY_HAND and (dry_run or not report.revision):
        said = f"nothing was done: {report.target} is not cordoned by this, and no pod was moved"
        out.print(plain(f"stopped {BY_HAND}; {said}"), soft_wrap=True)
        return
    if dry_run:
        _tell_plan(report)
        return
    out.print(plain(f"{report.target} is cordoned since revision {report.revision}"))
    for name, node in report.moved.items():
        out.print(plain(f"{name} moved to {node}" if node else f"{name} left"))
    _list(report.waiting.items(), " waits: ")
    _list(report.left.items(), " is there still: ")
    if report.stopped:
        out.print(plain(f"stopped {report.stopped}: {how_far(report)}"), soft_wrap=True)
        out.print("the same again goes on where this stopped")
    elif not report.left:
        out.print(plain(f"nothing runs on {report.target} any more"))
    if report.waiting and not report.stopped:
        total = len(report.moved) + len(report.waiting) + len(report.left)
        verb = "has" if len(report.waiting) == 1 else "have"
        out.print(plain(f"{len(report.waiting)} of {total} {verb} no place"))
    lifts = f"`apportion uncordon {report.target}` lifts the cordon"
    out.print(plain(f"{lifts}; pods that moved stay where they are"), soft_wrap=True)


def _tell_plan(report: Report) -> None:
    out = console()
    out.print(plain(f"{words.many(len(report.left), 'pod')} would be moved from {report.target}"))
    _list(report.left.items(), " ")
    waits = sum(not node for node in report.planned.values())
    if waits:
        out.print(plain(f"{waits} of {len(report.left)} would have no place"))
    if report.estimate:
        out.print("their controllers make them anew in an order of their own: where each goes "
                  "may differ", soft_wrap=True)  # fmt: skip


def how_far(report: Report) -> str:
    """What of the work is done, what goes on though nobody drives it, and what is left."""
    leaving = sum(why == LEAVING for why in report.left.values())
    parts = (
        ("moved", len(report.moved)),
        ("without a place yet, for which this verb is not needed", len(report.waiting)),
        ("will end without this verb", leaving),
        ("not moved, and running on", len(report.left) - leaving),
    )
    said = [f"{words.many(count, 'pod')} {what}" for what, count in parts if count]
    return ", ".join(said) or "no pod was to be moved"


def _list(items: Iterable[tuple[str, str]], said: str) -> None:
    for name, what in items:
        console().print(plain(f"{name}{said}{what}"), soft_wrap=True)
