"""`apportion defrag`: move running pods so that pending pods fit, or that nodes become empty."""

from __future__ import annotations

import asyncio
import math
import secrets
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from apportion.cli.client.completion import PODS
from apportion.cli.client.connection import Where, asks_both
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.ledger import (
    appending,
    by_end,
    by_whom,
    open_ledger,
    person,
    publish,
    run,
    to_its_end,
    write,
)
from apportion.cli.client.lookup import split_name
from apportion.cli.client.plans import ask_moves
from apportion.cli.exits import INTERRUPTED, NOT_NOW, REFUSED, NotFound
from apportion.cli.pods.moving import (
    BY_HAND,
    LEAVING,
    LOOK_EVERY_S,
    NAMED_MAX,
    REASON_MAX,
    Moving,
    Outcome,
    evict_units,
    how_far,
    move_units,
    try_units,
)
from apportion.cli.pods.pending import alike
from apportion.cli.pods.resubmit import Unit
from apportion.cli.render.output import Screen, console, plain, print_answer, warn
from apportion.cli.render.rows import Rows
from apportion.cli.usage import SAY_WHY, Verb
from apportion.core.answers.plans import MOVES_MAX, DefragAnswer, DefragRequest, DefragStep, NoMove
from apportion.core.answers.reads import CordonAnswer, NodeAnswer, PodAnswer
from apportion.core.devices.cordons import cordoning, lifting, spoken
from apportion.core.explain.text import words
from apportion.core.explain.text.words import listed
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.port import LedgerError
from apportion.runtime.process.clock import BackOff
from apportion.runtime.service.options import KubeChoice
from apportion_schemas.quantities import NAME_MAX, Payload

DEFRAG = "defrag: "  # prefix of the reasons of this verb's cordons
AUTHOR = " (defrag "  # their author: who runs it, this, and a word of each run
LIFT_S = 240.0  # time to remove cordons; the chart's job gets more before it is killed
BACK_OFF = BackOff(0.5, 10.0)
PLACED_WITHIN_S = 60.0  # time for the scheduler to place a pod for which room was made
BY_SIGNAL = "by a signal"
CHANGED = "because the cluster changed after the plan"
NOT_PLACED = (
    "because the scheduler did not place the pods in the freed capacity within "
    f"{PLACED_WITHIN_S:g} s"
)
NOT_ALLOWED = "because a pod cannot be moved"
FAILED = "by an error"
NOT_AGAIN = "because a moved pod is pending"


class Report(Outcome, kw_only=True):
    """The document that `--apply --json` prints: the plan, and what was done of it."""

    plan: DefragAnswer = DefragAnswer(revision=0)
    placed: dict[str, str] = {}  # pods for which room was made: their new nodes
    freed: list[str] = []  # nodes that were emptied
    cordoned: list[str] = []  # nodes that are still cordoned
    author: str = ""  # of these cordons
    seconds: float = 0.0

    @property
    def began(self) -> bool:
        """Return True if the verb changed something: it cordoned a node, or a pod was moved."""
        return bool(self.cordoned or self.moved or self.waiting or LEAVING in self.left.values())

    def exit_code(self, request: DefragRequest, *, ignore_blocked: bool = False) -> int:
        """Return the exit code of the verb for this outcome."""
        if self.stopped in {BY_HAND, BY_SIGNAL}:
            return INTERRUPTED
        if self.waiting or self.stopped == NOT_PLACED:
            return NOT_NOW
        if self.stopped or self.left:
            return REFUSED
        if request.free_nodes and len(self.freed) < len(self.plan.steps):
            return NOT_NOW
        return NOT_NOW if _short(self.plan, request) and not ignore_blocked else 0


@click.command(
    cls=Verb,
    epilog="Examples:  apportion defrag     apportion defrag team/train --max-lost 4\n\n"
    "  apportion defrag --free-nodes 1 --apply --reason 'room for a large job'",
)
@click.argument("names", metavar="[POD|GANG]...", nargs=-1, shell_complete=PODS)
@click.option("--free-nodes", type=click.IntRange(1, MOVES_MAX), metavar="COUNT",
              help="Empty nodes until this many are empty, instead of making room for pending "
              "pods.")  # fmt: skip
@click.option("--budget", type=click.IntRange(1, MOVES_MAX), default=10, show_default=True,
              metavar="PODS", help="Maximum number of pods to move.")  # fmt: skip
@click.option("--max-lost", type=click.FloatRange(0), metavar="GPU-HOURS",
              help="Maximum work to lose, since the start or last checkpoint of moved pods.  "
              "[default: no limit]")  # fmt: skip
@click.option("--apply/--plan", "apply", help="Make the moves, or only show them.  [default: plan]")
@click.option("--reason", default="",
              help="Reason, for the audit trail.  [required with --apply]")  # fmt: skip
@click.option("--timeout", "timeout_s", type=click.FloatRange(1, 86_400), default=600.0,
              show_default=True, metavar="SECONDS", help="Time limit for moving pods, after the "
              "search for moves.")  # fmt: skip
@click.option("--stale-after", "stale_s", type=click.FloatRange(1), metavar="SECONDS",
              help="At the start, remove older cordons of earlier runs by the same author, because "
              "those runs were killed.  [default: such a cordon is an error]")  # fmt: skip
@click.option("--ignore-blocked", is_flag=True, help="Exit with 0 also if no moves can make room "
              "for a pod, or empty enough nodes.")  # fmt: skip
@click.option("--kubeconfig", type=click.Path(dir_okay=False, path_type=Path),
              envvar="APPORTION_KUBECONFIG", show_envvar=True,
              help="Kubeconfig of the cluster.  [default: ~/.kube/config]")  # fmt: skip
@click.option("--context", metavar="NAME", help="Context in the kubeconfig.")
@by_whom
@asks_both
def command(
    *, where: Where, as_json: bool, names: tuple[str, ...], free_nodes: int | None, budget: int,
    max_lost: float | None, apply: bool, reason: str, timeout_s: float, stale_s: float | None,
    ignore_blocked: bool, kubeconfig: Path | None, context: str | None, by: str,
) -> None:  # fmt: skip
    """Find moves of running pods that let pending pods and gangs fit, or that empty nodes.

    A pending pod is considered if enough is free in total, but not on one node or in one topology
    domain. Each move is simulated with the scheduler's engine: every moved pod has a new node, no
    pod is evicted, and fewer GPUs are moved than become free. The moves that lose the least work
    come first. Nothing changes without --apply.

    With --apply, the moves are made as `drain` makes them, within disruption budgets. The nodes
    that are cleared are cordoned in the meantime. Ctrl-C, SIGTERM or SIGHUP stops between two pods,
    removes these cordons, and reports what was done.

    Exit codes: 0 done, or nothing to do; 1 the moves stopped early, or no such pending pod; 3
    ledger, gateway or API server unreachable; 5 a pod stays pending, or fewer nodes become empty;
    130 stopped with Ctrl-C or by a signal."""
    if apply and not reason.strip():
        raise click.UsageError(SAY_WHY)
    if names and free_nodes:
        raise click.UsageError("--free-nodes makes no room for a certain pod; leave out the names")
    if max_lost is not None and not math.isfinite(max_lost):
        raise click.BadParameter(
            f"{max_lost} is no number of GPU-hours; write one such as 4.5, or leave the option out",
            param_hint="--max-lost",
        )
    if stale_s is not None and stale_s < timeout_s + LIFT_S:
        least = f"{timeout_s + LIFT_S:g}, because a run can take so long"
        raise click.BadParameter(f"{stale_s:g} is less than {least}", param_hint="--stale-after")
    request = DefragRequest(
        pods=tuple("/".join(split_name(name, None)) for name in names),
        free_nodes=free_nodes or 0, moves_max=budget, lost_gpu_hours_max=max_lost,
    )  # fmt: skip
    if not apply:
        answer = ask_moves(where.gateway_url(), request, {})
        print_answer(answer, lambda: _show(answer, request), as_json=as_json)
        sys.exit(NOT_NOW if _short(answer, request) and not ignore_blocked else 0)
    kube = KubeChoice(wanted=True, kubeconfig=kubeconfig, context=context)
    who, began = person(by), time.monotonic()
    # An author has one cordon per node, and the user or another run may cordon it, too.
    run_id = f"{secrets.token_hex(3)})"
    report = Report(author=who[: NAME_MAX - len(AUTHOR + run_id)] + AUTHOR + run_id)
    failed: click.ClickException | None = None
    moving = Moving(
        what="its moves", who=who, why=f"moved by {who} to end fragmentation: {reason}",
        timeout_s=timeout_s, kube=kube,
    )  # fmt: skip
    try:
        making = _Making(where, moving, reason, report, stale_s=stale_s or math.inf)
        run(making.make(request))
    except KeyboardInterrupt:
        report.stopped = BY_HAND
    except asyncio.CancelledError:
        report.stopped = BY_SIGNAL
    except click.ClickException as error:
        if not report.began:
            raise
        failed, report.stopped = error, FAILED
    report.seconds = round(time.monotonic() - began, 3)
    # Ctrl-C must not cut the report of what was done.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        print_answer(report, lambda: _tell(report, request), as_json=as_json)
    finally:
        signal.signal(signal.SIGINT, before)
    if failed is not None:
        raise failed
    sys.exit(report.exit_code(request, ignore_blocked=ignore_blocked))


def _short(answer: DefragAnswer, request: DefragRequest) -> bool:
    if request.free_nodes:
        return answer.empty_after < request.free_nodes
    return bool(answer.blocked)


class _Making:
    """Makes the moves of one plan, step by step, and fills the report."""

    def __init__(
        self, where: Where, moving: Moving, reason: str, report: Report, *,
        stale_s: float = math.inf,
    ) -> None:  # fmt: skip
        self._where = where
        self._gateway = Gateway(where.gateway_url())
        self._moving = moving
        self._stale_s = stale_s
        self._reason = (DEFRAG + reason)[:REASON_MAX]
        self._report = report
        self._deadline = math.inf  # until the moves are known
        self._known: set[str] = set()  # pods that earlier steps placed, or their controllers
        self._ledger: JetStreamLedger  # one connection, because a login can be deleted during a run

    async def make(self, request: DefragRequest) -> None:
        """Plan at the newest revision, and make the steps.

        The cordons are removed in any case, also after Ctrl-C, SIGTERM or SIGHUP. Raises
        CancelledError after a signal."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if task is not None and signal.getsignal(number) is not signal.SIG_IGN:  # as by nohup
                loop.add_signal_handler(number, task.cancel)
        report = self._report
        async with open_ledger(self._where.reach()) as self._ledger:
            await self.clear()
            now, url = await self._now(), self._where.gateway_url()
            report.plan = await asyncio.to_thread(ask_moves, url, request, now)
            report.left = {
                f"{each.namespace}/{each.pod}": "the moves stopped before it"
                for step in report.plan.steps for each in step.moves
            }  # fmt: skip
            self._deadline = time.monotonic() + self._moving.timeout_s
            try:
                for step in report.plan.steps:
                    if self._moving.is_late(self._deadline, report):
                        return
                    console(stderr=True).say(f"{_headline(step)}:")
                    await self._step(step)
                    if report.stopped:
                        return
            finally:
                for number in (signal.SIGTERM, signal.SIGHUP):  # must not cut the removal
                    loop.remove_signal_handler(number)
                    signal.signal(number, signal.SIG_IGN)
                await to_its_end(self._lift())

    async def clear(self) -> None:
        """Refuse to start while a node has a cordon of another run. Raises NotFound.

        Cordons that are so old that their run was killed are removed instead."""
        for node, each in self.others(await self.nodes(await self._now())):
            age_s = time.time() - (micros_of(each.time) or math.inf) / SECOND
            if _person(each.by) == _person(self._report.author) and age_s > self._stale_s:
                warn(f"removing {spoken([each])} from {node}: its run was killed")
                data = lifting(node, "", of=each.by, by=each.by, reason=self._reason)
                await to_its_end(self._write(data))
                continue
            raise NotFound(
                f"{node} has a cordon of another defrag: {spoken([each])}; wait until it ends, or "
                f"if it has ended: {lift_words(node, each.by)}"
            )

    def others(self, nodes: Mapping[str, NodeAnswer]) -> list[tuple[str, CordonAnswer]]:
        """Return the nodes with cordons that another run has written, and these cordons."""
        return [
            (node.node, each) for node in nodes.values() for each in node.cordons
            if AUTHOR in each.by and each.by != self._report.author
        ]  # fmt: skip

    async def _step(self, step: DefragStep) -> None:
        report = self._report
        now = await self._now()
        pods = await self._pods(step, now)
        mine = [
            name for name, pod in pods.items()
            if step.kind != "node" and step.name in {name, pod.group} and name in step.pods
        ]  # fmt: skip
        if step.kind != "node" and all(pods[name].node for name in mine):
            console(stderr=True).say(f"{step.name} is placed or gone already")
            for each in step.moves:
                report.left.pop(f"{each.namespace}/{each.pod}", None)
            return
        nodes = await self.nodes(now)
        units = self._units(step, pods, nodes)
        if not units or self.others(nodes):
            report.stopped = CHANGED
            return
        if report.plan.of_kubernetes and (why := await try_units(self._moving, units)):
            report.left |= why
            report.stopped = NOT_ALLOWED
            return
        for node in step.nodes:
            report.cordoned.append(node)
            data = cordoning(node, "", by=report.author, reason=self._reason)
            await to_its_end(self._write(data))
        # Two runs may have looked at the same time. The one that cordons later sees both cordons.
        now = await self._now()
        if self.others(await self.nodes(now)) or await self.came(step, now):
            report.stopped = CHANGED
            return
        await self.move(units)
        if report.plan.of_kubernetes and not report.stopped:
            # Until then, the cordons keep recreated pods away.
            await self.until_again(step, units, pods)
        if report.stopped:
            return
        self._known |= {*step.pods, *(name for unit in units for name in unit.names)}
        self._known |= {"/".join(_owner(p)) for unit in units for p in unit.pods if p.owner}
        if step.kind == "node":  # stays cordoned until all nodes are empty
            now = await self._now()
            report.freed += [node for node in step.nodes if not await self._using(node, now)]
            return
        await to_its_end(self._lift())

        def placed(now: Mapping[str, PodAnswer]) -> bool:
            nodes = {name: pod.node for name, pod in now.items() if pod.node}
            report.placed |= {name: nodes[name] for name in mine if name in nodes}
            return all(name in nodes for name in mine)

        if not await self._until(step, placed):
            report.stopped = NOT_PLACED

    async def came(self, step: DefragStep, query: Mapping[str, object]) -> bool:
        """Return True if a pod came onto the nodes of the step that is not in the plan.

        A node to be emptied may have only pods that are moved. On other nodes, pods may stay, so
        only those that were placed after the plan count."""
        moved, since = {each.uid for each in step.moves}, self._report.plan.revision
        pods = [pod for node in step.nodes for pod in await self._using(node, query)]
        return any(
            pod.uid not in moved and (
                step.kind == "node" or (
                    pod.placed_revision > since
                    and not self._known & {f"{pod.namespace}/{pod.name}", "/".join(_owner(pod))}
                )
            )
            for pod in pods
        )  # fmt: skip

    async def move(self, units: list[Unit]) -> None:
        """Move the units one by one, until one cannot be moved, or has no new node."""
        report = self._report
        for unit in units:
            # In time: an eviction that has begun runs to its end.
            if self._moving.is_late(self._deadline, report):
                return
            if report.plan.of_kubernetes:
                await evict_units(self._gateway, self._moving, report, [unit], self._deadline)
            else:
                await move_units(
                    self._ledger, self._moving, report, [unit], self._deadline,
                    basis=report.plan.revision,
                )  # fmt: skip
            if not report.stopped and report.left.keys() & set(unit.names):
                report.stopped = NOT_ALLOWED
            if not report.stopped and report.waiting:
                report.stopped = NOT_AGAIN
            if report.stopped:
                return

    async def until_again(
        self, step: DefragStep, units: list[Unit], before: Mapping[str, PodAnswer]
    ) -> None:
        """Wait until the controllers have a new placed pod for each evicted one.

        After a timeout, note the pods that lack as pending, and stop. Recreated pods have other
        names, so of each controller that lacks pods, those evicted last are noted."""
        report, known = self._report, {pod.uid for pod in before.values()}
        evicted = Counter(_owner(pod) for unit in units for pod in unit.pods)
        missing = Counter[tuple[str, str]]()

        def again(now: Mapping[str, PodAnswer]) -> bool:
            # Other pods of a controller may end in the meantime, so only new ones are counted.
            new = Counter(_owner(p) for p in now.values() if p.node and p.uid not in known)
            missing.clear()
            missing.update(evicted - new)
            return not missing

        if await self._until(step, again):
            return
        report.stopped = NOT_AGAIN
        for name in reversed([name for unit in units for name in unit.names]):
            if missing[_owner(before[name])] > 0:
                missing[_owner(before[name])] -= 1
                report.moved.pop(name, None)
                report.waiting[name] = "its controller's new pod is not placed"

    async def _now(self) -> dict[str, int]:
        return await by_end(self._ledger)

    async def nodes(self, query: Mapping[str, object]) -> dict[str, NodeAnswer]:
        """Return all nodes by name. Raises Unreachable."""
        _, nodes = await asyncio.to_thread(self._gateway.items, "nodes", NodeAnswer, query)
        return {node.node: node for node in nodes}

    def _units(
        self, step: DefragStep, pods: Mapping[str, PodAnswer], nodes: Mapping[str, NodeAnswer]
    ) -> list[Unit]:
        # The pods to move, in the order of the plan. None if one of them is not where it was, a
        # gang has other placed pods, or a node of the step takes no pods.
        units: dict[str, list[PodAnswer]] = {}
        for each in step.moves:
            name = f"{each.namespace}/{each.pod}"
            pod = pods.get(name)
            if pod is None or (pod.uid, pod.node) != (each.uid, each.node):
                return []
            self._report.was[name] = each.node
            units.setdefault(each.gang or each.uid, []).append(pod)
        gangs = Counter(pod.group for pod in pods.values() if pod.node)
        if any(gangs[each.gang] != len(units[each.gang]) for each in step.moves if each.gang):
            return []
        for name in {*step.nodes, *(each.to for each in step.moves)}:
            node = nodes.get(name)
            if node is None or not node.ready or node.cordons or node.unschedulable:
                return []
        return [Unit(tuple(unit), name if len(unit) > 1 else "") for name, unit in units.items()]

    async def _until(
        self, step: DefragStep, done: Callable[[Mapping[str, PodAnswer]], bool]
    ) -> bool:
        # Wait until `done` for the pods of the step's namespaces; False after a timeout.
        end = min(time.monotonic() + PLACED_WITHIN_S, self._deadline)
        while not done(await self._pods(step, {})):
            if time.monotonic() > end:
                return False
            await asyncio.sleep(LOOK_EVERY_S)
        return True

    async def _using(self, node: str, query: Mapping[str, object]) -> list[PodAnswer]:
        # The pods with shares of the node's devices.
        asked = {"node": node, **query}
        _, pods = await asyncio.to_thread(self._gateway.items, "pods", PodAnswer, asked)
        return [pod for pod in pods if pod.shares]

    async def _pods(self, step: DefragStep, query: Mapping[str, object]) -> dict[str, PodAnswer]:
        spaces = {each.namespace for each in step.moves}
        spaces |= {name.partition("/")[0] for name in step.pods}
        found: dict[str, PodAnswer] = {}
        for namespace in sorted(spaces):
            asked = {"namespace": namespace, **query}
            _, pods = await asyncio.to_thread(self._gateway.items, "pods", PodAnswer, asked)
            found |= {f"{pod.namespace}/{pod.name}": pod for pod in pods}
        return found

    async def _write(self, data: Payload, *, again: bool = False) -> None:
        basis = self._report.plan.revision
        if again:  # the server may have closed the connection for good
            await write(self._where.reach(), data, basis=basis)
            return
        async with appending(self._ledger) as (_, publisher):
            await publish(publisher, data, basis=basis)

    async def _lift(self) -> None:
        # Retries, because a cordon that stays keeps pods away from its node. Raises LedgerError,
        # Unreachable.
        by, failures, end = self._report.author, 0, time.monotonic() + LIFT_S
        while self._report.cordoned:
            failed: LedgerError | None = None
            for node in list(self._report.cordoned):
                data = lifting(node, "", of=by, by=by, reason=self._reason)
                try:
                    await self._write(data, again=bool(failures))
                except LedgerError as error:
                    failed = error
                    if time.monotonic() > end:
                        raise
                else:
                    self._report.cordoned.remove(node)
            if failed is None:
                return
            if not failures:
                warn(f"cannot remove cordons, retrying for up to {LIFT_S:g} s: {failed}")
            failures += 1
            await asyncio.sleep(BACK_OFF.after(failures))


def _person(author: str) -> str:
    return author.rpartition(AUTHOR)[0]


def _owner(pod: PodAnswer) -> tuple[str, str]:
    return pod.namespace, pod.owner


def _gpus(count: float) -> str:
    return f"{count:g} GPU" if count == 1 else f"{count:g} GPUs"


def _headline(step: DefragStep) -> str:
    what = f"empty {step.name}" if step.kind == "node" else f"room for {step.kind} {step.name}"
    pods = "pod loses" if len(step.moves) == 1 else "pods lose"
    return (
        f"{what}: move {words.many(len(step.moves), 'pod')} with {_gpus(step.gpus_moved)}; frees "
        f"{_gpus(step.gpus_freed)}; the moved {pods} {step.lost_gpu_hours:g} GPU-hours of work"
    )


def _show(answer: DefragAnswer, request: DefragRequest) -> None:
    out = console()
    for step in answer.steps:
        out.say(_headline(step), "bold", folds=True)
        made = Rows("MOVED POD", "FROM", "TO", "GPUS", "LOST GPU-HOURS", "GANG",
                    right=("GPUS", "LOST GPU-HOURS"), optional=("GANG",))  # fmt: skip
        for each in step.moves:
            made.add_row(
                f"{each.namespace}/{each.pod}", each.node, each.to, f"{each.gpus:g}",
                f"{each.lost_gpu_hours:g}", each.gang,
            )  # fmt: skip
        out.print(made)
        others = [name for name in step.pods if step.kind == "node" or name != step.name]
        if step.kind != "gang" and others:
            out.say(f"also placed then: {listed(others, NAMED_MAX)}", folds=True)
    _show_blocked(out, answer, request)
    if answer.steps and answer.of_kubernetes:
        out.say("estimate: controllers recreate the pods in an unknown order, so nodes may differ")
    if answer.steps:
        out.say("nothing was moved; to make these moves, add --apply --reason TEXT")


def _show_blocked(out: Screen, answer: DefragAnswer, request: DefragRequest) -> None:
    said: dict[str, str] = {}
    texts: dict[NoMove, str] = {
        "pods-stay": "it would not fit even if all pods that may move were moved",
        "no-place": "pods that would have to move find no other node",
        "frees-less": "the moves would not free more GPUs than they move",
        "moves-max": f"it takes more than the {request.moves_max} moves of --budget",
        "lost-max": f"it loses more than the {request.lost_gpu_hours_max} GPU-hours of --max-lost",
        "disruption-budget": "a PodDisruptionBudget does not allow the moves",
        "search-limit": "not tried, because the tries and the time are limited; name it to try it",
        "other-cause": "it is pending for a cause that no move removes; see `apportion why`",
    }
    for each in answer.blocked:
        more = f" and {each.alike - 1:,} pods like it" if each.alike > 1 else ""
        why = texts.get(each.reason) or (
            f"it needs {_gpus(each.gpus)}, and in total {each.free_gpus:g} are free"
        )
        if each.kind == "node" and each.reason == "pods-stay":
            why = "it has pods that may not be moved"
        said[f"{each.name}{more}"] = why + (f": {listed(list(each.pods))}" if each.pods else "")
    for name, why in alike(said):
        out.say(f"no move for {name}: {why}", folds=True)
    if not (answer.steps or answer.blocked):
        what = "no pod is pending because of fragmentation"
        if request.free_nodes:
            what = "no node in use can be emptied"
            if not _short(answer, request):
                what = f"{words.many(answer.empty_nodes, 'node')} empty already"
        out.say(what)
    if answer.other_causes and not request.pods and not request.free_nodes:
        count = words.many(answer.other_causes, "pod")
        verb = "is" if answer.other_causes == 1 else "are"
        out.say(f"{count} {verb} pending for other causes; see `apportion why POD`")


def lift_words(node: str, author: str) -> str:
    """Return the command that removes this author's cordon from the node."""
    return f"apportion uncordon {shlex.quote(node)} --of {shlex.quote(author)}"


def _tell(report: Report, request: DefragRequest) -> None:
    out = console()
    for name, node in report.moved.items():
        out.say(f"{name} moved to {node}" if node else f"{name} ended")
    for name, why in alike(report.waiting):
        out.say(f"{name} pending: {why}")
    for name, node in report.placed.items():
        out.say(f"{name} placed on {node}")
    if report.freed:
        out.say(f"empty: {listed(report.freed, NAMED_MAX)}")
    if report.stopped:
        for line in (f"stopped {report.stopped}:", *how_far(report)):
            out.print(plain(line))
        for name, why in alike(report.left):
            out.say(f"{name} not moved: {why}")
    _show_blocked(out, report.plan, request)
    for node in report.cordoned:
        how = lift_words(node, report.author)
        out.say(f"{node} is still cordoned; to remove the cordon: {how}")
