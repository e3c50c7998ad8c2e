"""How far a cluster has moved from HAMi, Volcano or another system, and the next safe step.

Invariant: the answer uses only facts of the state. So a step that leaves no event, such as stopping
a scheduler, is suggested until the configuration shows it."""

from collections import Counter
from typing import Final, Literal, NamedTuple

from msgspec import structs

from apportion.core.answers.reads import (
    BackStep,
    MigrationAnswer,
    MigrationStep,
    PlacedRow,
    SourceRow,
)
from apportion.core.explain.text.words import LISTED
from apportion.core.ledger.state import PLACED, NodeState, PodState, State
from apportion.core.names import natural
from apportion.core.workloads.dialects.listing import domains
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.schedulers import OURS

# A second scheduler counts as stopped once Apportion placed this many live pods after the last pod
# that the other one bound.
QUIET_PODS: Final = 10
RESERVED: Final = ("scheduler", "apportion")  # the taint in docs/tasks/keep-plugins.md
PLUGINS: Final = ("hami", "volcano", "vendor")
_DOMAINS: Final = domains(DialectConfig())


def has_devices(node: NodeState) -> bool:
    """Return True if the node has devices: in the ledger, or as resources in Kubernetes."""
    extended = node.observed.extended if node.observed else {}
    return bool(node.devices) or any(
        count and name.startswith(_DOMAINS) for name, count in extended.items()
    )


def overtaken_pods(state: State) -> list[PodState]:
    """Return live pods that name our scheduler but were bound by another one, newest first.

    Empty if the configuration changed, or Apportion placed `QUIET_PODS` pods, after that."""
    found = [
        state.pods[uid]
        for uid, said in state.differing.items()
        if said.kind == "overtaken"
        and state.pods[uid].submitted_revision > state.configuration_revision
    ]
    if not found:
        return []
    found.sort(key=lambda pod: -pod.submitted_revision)
    newest = found[0].submitted_revision
    since = sum(not pod.adopted and pod.placed_revision > newest for pod in state.pods.values())
    return found if since < QUIET_PODS else []


def migration_answer(state: State) -> MigrationAnswer:
    """Return the sources of devices, the pods by scheduler, the stage and the next steps.

    `back` is the next step for a cluster that is to leave Apportion."""
    sources, rows = _sources(state), _placed(state)
    ours, others = sum(row.ours for row in rows), sum(row.others for row in rows)
    overtaken = overtaken_pods(state)
    unbound = _unbound(state)
    pods = state.pods.values()
    step = _step(state, sources, rows) if not overtaken else _Step("conflict")
    back = _back(state, sources, rows) if not overtaken else _Back("conflict")
    moved: list[PodState] = []
    back_moved: tuple[str, ...] = ()
    if step.code in {"move-namespace", "move-more"}:
        moved = [
            pod
            for pod in pods
            if pod.submitted.namespace == step.target
            if pod.submitted.shape.asks and _by_others(pod)
        ]
    if back.code == "return-namespace":
        back_moved = tuple(
            pod.full_name
            for pod in pods
            if pod.submitted.namespace == back.target and not _by_others(pod)
        )
    foreign = any(row.source in PLUGINS for row in sources)
    stage: Literal["shadow", "both", "scheduler", "agents"]
    if not ours and (others or foreign):
        stage = "shadow"
    elif others:
        stage = "both"
    else:
        stage = "scheduler" if foreign else "agents"
    return MigrationAnswer(
        revision=state.revision,
        stage=stage,
        step=step.code,
        target=step.target,
        back=back.code,
        back_target=back.target,
        pods=tuple(pod.full_name for pod in moved[:LISTED]),
        pods_count=len(moved),
        pods_alone=bool(moved) and not any(pod.submitted.owner for pod in moved),
        back_pods=back_moved[:LISTED],
        back_pods_count=len(back_moved),
        tainted=any(_reserved(node) for node in state.nodes.values()),
        unbound=tuple(pod.full_name for pod in unbound[:LISTED]),
        unbound_count=len(unbound),
        sources=sources,
        namespaces=rows,
        scheduler_names=state.configuration.scheduler_names or OURS,
        overtaken=tuple(pod.full_name for pod in overtaken[:LISTED]),
        overtaken_count=len(overtaken),
    )


class _Step(NamedTuple):
    code: MigrationStep
    target: str = ""


def _step(state: State, sources: tuple[SourceRow, ...], rows: tuple[PlacedRow, ...]) -> _Step:
    ours = any(row.ours for row in rows)
    smallest = min((row for row in rows if row.others), key=lambda row: row.others, default=None)

    def first(*codes: str, placeable: bool = False, unread: bool = False) -> str:
        return next(
            (
                row.first[0]
                for row in sources
                if (row.source in codes, row.placeable, bool(row.problem))
                == (True, placeable, unread)
            ),
            "",
        )

    served = any(row.placeable for row in sources)
    closed = first(*PLUGINS)
    unread = first(*PLUGINS, unread=True)
    bare = first("none", "shadow")
    shut = (
        _Step("label-node", closed) if closed
        else _Step("repair-plugin", unread) if unread
        else _Step("take-over-node", bare) if bare
        else None
    )  # fmt: skip
    if not served and shut is not None:
        new = not ours and not state.configuration_revision
        return _Step("shadow") if new else shut
    if smallest is not None:
        return _Step("move-more" if ours else "move-namespace", smallest.namespace)
    if closed:
        return _Step("label-node", closed)
    names = state.configuration.scheduler_names
    if names and not set(names) & set(OURS[1:]):
        return _Step("stop-old-scheduler")
    if kept := first(*PLUGINS, placeable=True):
        return _Step("replace-plugins", kept)
    return shut or _Step("done")


class _Back(NamedTuple):
    code: BackStep
    target: str = ""


def _back(state: State, sources: tuple[SourceRow, ...], rows: tuple[PlacedRow, ...]) -> _Back:
    """Return the next step away from Apportion.

    The old scheduler gets nodes first, and pods after that."""
    mine = [row for row in sources if row.placeable and row.source in {"hami", "volcano", "agent"}]
    mine.sort(key=lambda row: row.source == "agent")  # which takes longer to give back
    left = sorted((row for row in rows if row.left), key=lambda row: row.left)
    reserved = (
        node.name for node in state.nodes.values() if _reserved(node) and not node.keeps_plugin
    )
    closed = min(reserved, key=natural, default="")
    if not (mine or left or closed):
        return _Back("uninstall")
    names = state.configuration.scheduler_names
    if not names or set(names) & set(OURS[1:]):
        return _Back("restore-names")
    if closed:
        waits = any(pod.placement.node == closed for pod in _unbound(state) if pod.placement)
        return _Back("bind-pods" if waits else "untaint-node", closed)
    theirs = any(row.source in {"hami", "volcano"} and not row.placeable for row in sources)
    if left and (theirs or not mine):
        return _Back("return-namespace", left[0].namespace)
    return _Back("return-agent" if mine[0].source == "agent" else "return-node", mine[0].first[0])


def _reserved(node: NodeState) -> bool:
    """Return True if the node has another system's plugin and the taint of the guide."""
    return (
        node.foreign_plugin in {"hami", "volcano"}
        and node.observed is not None
        and any((taint.key, taint.value) == RESERVED for taint in node.observed.taints)
    )


def _by_others(pod: PodState) -> bool:
    """Return True if another scheduler placed the pod.

    Our binder writes the attempt, 1 or more, on each pod; a lost ledger reads it again."""
    return pod.placement is not None and pod.adopted and not pod.placement.attempt


def _unbound(state: State) -> list[PodState]:
    """Return pods that Apportion placed on another plugin's devices, and has not bound yet.

    The binder writes the devices into the pod's annotations when it binds the pod. Only then does
    the other scheduler count them."""
    return [
        pod
        for pod in state.pods.values()
        if pod.phase is PLACED
        and pod.placement is not None
        and pod.submitted.shape.asks
        and state.nodes[pod.placement.node].foreign_plugin
    ]


def _sources(state: State) -> tuple[SourceRow, ...]:
    found: dict[SourceRow, list[NodeState]] = {}
    for node in state.nodes.values():
        plugin, said = node.foreign_plugin, node.registered
        if not node.present or not (plugin or has_devices(node)):
            continue
        if node.silent and said is not None:  # our agent has left the node to the plugin
            plugin = plugin or said.plugin
        if plugin:
            problem = said.problem if said else ""
            row = SourceRow(plugin, placeable=node.keeps_plugin and not problem, problem=problem)
        elif node.hands_out:
            row = SourceRow("agent", placeable=True)
        else:
            row = SourceRow("shadow" if node.reported else "none", placeable=False)
        found.setdefault(row, []).append(node)
    rows = [
        structs.replace(
            row,
            nodes=len(nodes),
            devices=sum(each.present for node in nodes for each in node.devices),
            first=tuple(sorted((node.name for node in nodes), key=natural)[:LISTED]),
        )
        for row, nodes in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (row.source, not row.placeable, row.problem)))


def _placed(state: State) -> tuple[PlacedRow, ...]:
    ours, others, left, pending = (Counter[str]() for _ in range(4))
    for pod in state.pods.values():
        namespace, by_others = pod.submitted.namespace, _by_others(pod)
        left[namespace] += not by_others
        if pod.submitted.shape.asks:
            count = pending if pod.placement is None else others if by_others else ours
            count[namespace] += 1
    rows = [
        PlacedRow(
            name, ours=ours[name], others=others[name], left=left[name], pending=pending[name]
        )
        for name in sorted(ours.keys() | others.keys() | left.keys())
    ]
    return tuple(sorted(rows, key=lambda row: -row.others))
