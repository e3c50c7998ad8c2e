"""`apportion migrate`: how far a cluster has moved to Apportion, and the next safe step."""

from typing import Final, NamedTuple

import click

from apportion.cli.client.connection import Where, asks_gateway
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.render.output import console, print_answer
from apportion.cli.render.rows import Rows
from apportion.cli.usage import VerbGroup
from apportion.core.answers.reads import BackStep, MigrationAnswer, MigrationStep
from apportion.core.explain.text.words import many

STAGES: Final = {
    "shadow": "other schedulers place all pods with devices",
    "both": "Apportion and other schedulers place pods with devices",
    "scheduler": "only Apportion places pods with devices; other plugins allocate some devices",
    "agents": "only Apportion places pods with devices, and its agents allocate the devices",
}
SOURCES: Final = {
    "agent": "Apportion's agent",
    "shadow": "unknown; Apportion's agent only reports them",
    "hami": "HAMi's plugin",
    "volcano": "Volcano's plugin",
    "vendor": "the vendor's plugin",
    "none": "unknown; nothing reports them to Apportion",
}
DOCS: Final = "docs/"
ROWS_SHOWN: Final = 20  # namespaces; `--json` has all


class Advice(NamedTuple):
    """How to take a step: a sentence, a command and the section of the guide.

    `kept` is the section if nodes keep another system's plugin, unless it is the same."""

    words: str
    command: str
    link: str
    kept: str = ""


_SET_NAME = (
    "kubectl -n {target} patch deployment NAME -p "
    '\'{{"spec":{{"template":{{"spec":{{"schedulerName":"{scheduler}"{tolerations}}}}}}}}}\''
)
_ALONE: Final = (
    "the pods of namespace {target} that are still to be moved have no controller: {pods}; delete "
    "them, and create them again with schedulerName: {scheduler}{tolerate}, or wait until they end"
)
_SAVE: Final = "kubectl -n {target} get pod {pod} -o yaml > {pod}.yaml"
STEPS: Final[dict[MigrationStep, Advice]] = {
    "conflict": Advice(
        "another scheduler binds pods that name one of Apportion's schedulers ({names}): "
        "{overtaken}; stop that scheduler, or remove the names that it serves from schedulerNames",
        "apportion config show",
        "tasks/migrate.md#3-apply-the-configuration",
    ),
    "shadow": Advice(
        "compare the placements, then apply the configuration",
        "apportion shadow --from -1d",
        "tasks/migrate.md#2-run-in-shadow-mode",
    ),
    "label-node": Advice(
        "with shadow mode off and Apportion's agents removed, keep the other scheduler off node "
        "{target} with a taint; once no pod there is starting, label the node "
        "apportion.dev/device-plugin={plugin}, so that Apportion places pods there",
        "kubectl taint node {target} scheduler=apportion:NoSchedule --overwrite",
        "tasks/keep-plugins.md#set-it-up",
    ),
    "repair-plugin": Advice(
        "the devices that the plugin on node {target} registered cannot be read; start that "
        "plugin, or replace it",
        "apportion get nodes {target}",
        "tasks/take-over-nodes.md#to-apportion",
    ),
    "take-over-node": Advice(
        "let Apportion's agent allocate the devices of node {target}",
        "kubectl drain {target} --ignore-daemonsets --delete-emptydir-data",
        "tasks/take-over-nodes.md#to-apportion",
    ),
    "move-namespace": Advice(
        "set schedulerName: {scheduler}{tolerate} for the pods of one namespace, such as {target}; "
        "still to be moved: {pods}; delete and recreate pods without a controller",
        _SET_NAME,
        "tasks/migrate.md#5-move-the-namespace",
        "tasks/keep-plugins.md#set-it-up",
    ),
    "move-more": Advice(
        "set schedulerName: {scheduler}{tolerate} for the pods of the next namespace, such as "
        "{target}; still to be moved: {pods}; delete and recreate pods without a controller",
        _SET_NAME,
        "tasks/migrate.md#6-move-the-rest",
        "tasks/keep-plugins.md#set-it-up",
    ),
    "stop-old-scheduler": Advice(
        "no other scheduler has placed a live pod with devices; stop the old scheduler and its "
        "webhook, then remove schedulerNames from the configuration",
        "{stop}",
        "tasks/migrate.md#6-move-the-rest",
        "tasks/keep-plugins.md#set-it-up",
    ),
    "replace-plugins": Advice(
        "optionally, replace the device plugin of node {target} with Apportion's agent",
        "kubectl drain {target} --ignore-daemonsets --delete-emptydir-data",
        "tasks/take-over-nodes.md#to-apportion",
    ),
    "done": Advice("nothing is left to move", "apportion doctor", "tasks/operate.md"),
}
BACK: Final[dict[BackStep, Advice]] = {
    "conflict": STEPS["conflict"],
    "restore-names": Advice(
        "disable Apportion's webhook, and apply the configuration with schedulerNames: "
        "[apportion], so that Apportion leaves pods with other names to the old scheduler; before "
        "you start that scheduler and its webhook, keep it off the nodes that Apportion uses",
        "apportion config apply cluster.json --reason 'back to the old scheduler'",
        "tasks/migrate.md#how-to-go-back",
        "tasks/keep-plugins.md#back-to-the-old-scheduler",
    ),
    "bind-pods": Advice(
        "wait until Apportion has bound its pods on node {target}; until then, the old scheduler "
        "does not count their devices: {unbound}",
        "apportion get pods --node {target} --phase placed",
        "tasks/keep-plugins.md#back-to-the-old-scheduler",
    ),
    "untaint-node": Advice(
        "let the old scheduler place pods on node {target} again",
        "kubectl taint node {target} scheduler=apportion:NoSchedule-",
        "tasks/keep-plugins.md#back-to-the-old-scheduler",
    ),
    "return-node": Advice(
        "with the old scheduler running, stop placing pods on node {target}, so that the old "
        "scheduler can use it",
        "kubectl label node {target} apportion.dev/device-plugin-",
        "tasks/keep-plugins.md#back-to-the-old-scheduler",
    ),
    "return-agent": Advice(
        "give node {target} back to the other device plugin",
        "kubectl drain {target} --ignore-daemonsets --delete-emptydir-data",
        "tasks/take-over-nodes.md#back-to-hami-or-volcano",
    ),
    "return-namespace": Advice(
        "with the old scheduler running, let the pods of namespace {target} name it{untolerate}; "
        "otherwise, the pods that replace them stay pending once Apportion is gone; still to be "
        "moved: {back_pods}; if only running pods without a controller are left, take the next "
        "step of the guide: they keep their devices",
        _SET_NAME,
        "tasks/migrate.md#move-the-namespace-back",
        "tasks/keep-plugins.md#back-to-the-old-scheduler",
    ),
    "uninstall": Advice(
        "no pod and no node needs Apportion; uninstall it, or keep it in shadow mode",
        "helm uninstall apportion --namespace apportion",
        "tasks/migrate.md#remove-apportion",
    ),
}
_TOLERATION: Final = '{"key":"scheduler","value":"apportion","effect":"NoSchedule"}'
_STOP_HAMI: Final = "kubectl -n kube-system scale deployment hami-scheduler --replicas=0"
_STOP_VOLCANO: Final = "kubectl -n volcano-system scale deployment volcano-scheduler --replicas=0"


@click.group(cls=VerbGroup, epilog="Example:  apportion migrate status")
def command() -> None:
    """Move a cluster from HAMi, Volcano or another system to Apportion.

    Exit codes: 0 done; 3 gateway unreachable."""


@command.command(epilog="Example:  apportion migrate status --back")
@click.option("--back", is_flag=True, help="Show the next step away from Apportion.")
@asks_gateway
def status(*, where: Where, as_json: bool, back: bool) -> None:
    """Show how far the cluster has moved to Apportion, and the next safe step.

    Lists what allocates the devices of nodes, and which schedulers placed the live pods with
    devices. With --back, lists the pods that need Apportion. Nothing is changed.

    Exit codes: 0 shown; 3 gateway unreachable."""
    answer = Gateway(where.gateway_url()).ask("migration", answer=MigrationAnswer)
    print_answer(answer, lambda: _show(answer, back=back), as_json=as_json)


def _show(answer: MigrationAnswer, *, back: bool) -> None:
    out = console()
    sources = Rows(
        "DEVICES ALLOCATED BY", "APPORTION PLACES PODS", "NODES", "DEVICES", "SUCH AS",
        right=("NODES", "DEVICES"), wraps=("APPORTION PLACES PODS", "SUCH AS"),
    )  # fmt: skip
    for row in answer.sources:
        devices = f"{row.devices:,}" if row.devices else "-"
        placeable = "yes" if row.placeable else "no"
        if row.problem:
            placeable = f"no: {row.problem}"
        elif not row.placeable and row.source in {"hami", "volcano"}:
            placeable = "no: the label is missing"
        sources.add_row(
            SOURCES[row.source], placeable, f"{row.nodes:,}", devices, ", ".join(row.first)
        )
    numbers = (
        ("PODS THAT NEED APPORTION",) if back
        else ("PODS BY APPORTION", "PODS BY OTHERS", "PENDING")
    )  # fmt: skip
    pods = Rows("NAMESPACE", *numbers, right=numbers)
    counted = [
        (row.namespace, (row.left,) if back else (row.ours, row.others, row.pending))
        for row in answer.namespaces
    ]
    counted = [(namespace, counts) for namespace, counts in counted if any(counts)]
    for namespace, counts in counted[:ROWS_SHOWN]:
        pods.add_row(namespace, *(f"{count:,}" for count in counts))
    for table in (sources, pods):
        if table.row_count:
            out.print(table)
            out.print()
    if len(counted) > ROWS_SHOWN:
        out.say(f"and {many(len(counted) - ROWS_SHOWN, 'more namespace')}; see --json")
    out.say(f"stage: {STAGES[answer.stage]}")
    advice = back_advice_for(answer) if back else advice_for(answer)
    out.say(f"next:  {advice.words}", "bold", folds=True)
    out.say(f"       {advice.command}")
    out.say(f"       see {DOCS}{advice.link}", "dim")


def advice_for(answer: MigrationAnswer) -> Advice:
    """Return the advice for the answer's step, with its names filled in."""
    advice = STEPS[answer.step]
    if answer.pods_alone:
        advice = advice._replace(words=_ALONE, command=_SAVE)
    return _filled(advice, answer, answer.target)


def back_advice_for(answer: MigrationAnswer) -> Advice:
    """Return the advice for the answer's next step away from Apportion."""
    return _filled(BACK[answer.back], answer, answer.back_target)


def _filled(advice: Advice, answer: MigrationAnswer, target: str) -> Advice:
    known = {row.source for row in answer.sources}
    row = next((row for row in answer.sources if target in row.first), None)
    volcano = "volcano" in known and "hami" not in known
    scheduler = next(iter(answer.scheduler_names), "")
    if advice is BACK["return-namespace"]:
        scheduler = "volcano" if volcano else "hami-scheduler"
    # A node that was given back has no label any more.
    returned = advice is BACK["return-namespace"] and "agent" not in known
    kept = answer.tainted or any(
        (row.placeable or returned) and row.source in {"hami", "volcano"} for row in answer.sources
    )
    tolerations, untolerate = "", ""
    if answer.tainted and advice is BACK["return-namespace"]:
        tolerations, untolerate = ',"tolerations":null', ", and remove the toleration of the taint"
    elif answer.tainted:
        tolerations = f',"tolerations":[{_TOLERATION}]'
    names = {
        "tolerations": tolerations,
        "tolerate": " and a toleration of the taint" if answer.tainted else "",
        "untolerate": untolerate,
        "back_pods": _first(answer.back_pods, answer.back_pods_count),
        "target": target,
        "plugin": row.source if row else "",
        "overtaken": _first(answer.overtaken, answer.overtaken_count),
        "pods": _first(answer.pods, answer.pods_count),
        "pod": next(iter(answer.pods), "").rpartition("/")[2],
        "unbound": _first(answer.unbound, answer.unbound_count),
        "names": ", ".join(answer.scheduler_names),
        "scheduler": scheduler,
        "stop": _STOP_VOLCANO if volcano else _STOP_HAMI,
    }
    chosen = advice._replace(link=advice.kept) if kept and advice.kept else advice
    return Advice(*(text.format(**names) for text in chosen))


def _first(names: tuple[str, ...], count: int) -> str:
    more = count - len(names)
    return ", ".join(names) + (f" and {more:,} more" if more > 0 else "")
