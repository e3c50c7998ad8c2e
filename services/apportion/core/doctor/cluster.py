"""Gather the doctor's facts about nodes, agents and pending pods from a state.

Invariant: a pod counts as never fitting only if `apportion why` comes to the same result."""

from collections.abc import Collection, Iterator
from typing import Final

import apportion_schemas as schemas
from apportion.core.devices.cordons import cordon_words
from apportion.core.doctor import facts
from apportion.core.explain.explainer import Explainer
from apportion.core.explain.health import failure, pods_on
from apportion.core.explain.migration import has_devices, overtaken_pods
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.ledger.state import DRAINED, NodeState, Phase, PodState, State

# Events about a pod's placement, which may be written while the pod ends
WORDS_OF_PLACES: Final = (
    schemas.SharesAllocated,
    schemas.AllocationFailed,
    schemas.ShareBreached,
    schemas.PodBound,
    schemas.BindFailed,
)
STARVING_S: Final = 600  # a gang is reported if its newest pod has been pending for longer


def came_late(said: schemas.Event, revision: int, gone: int) -> bool:
    """Return True if the event's writer could not know yet that the pod had ended.

    The pod ended at revision `gone`; the event is at `revision`."""
    return isinstance(said.data, WORDS_OF_PLACES) and said.basis < gone < revision


def cluster_facts(state: State, *, late: Collection[int] = ()) -> facts.ClusterFacts:
    """Return facts about nodes, agents and drivers.

    `late` has the revisions of events that were refused only because they came too late. They are
    counted separately."""
    there = [node for _, node in sorted(state.nodes.items()) if node.present]
    simulated = [node for node in there if node.reported and node.reported.simulated]
    drivers: dict[str, list[str]] = {}
    for node in there:
        if node.reported is not None and node.reported.driver and not node.reported.simulated:
            drivers.setdefault(node.reported.driver, []).append(node.name)
    wrong = [each for each in state.refused_events if each.revision not in late]
    overtaken = overtaken_pods(state)
    return facts.ClusterFacts(
        revision=state.revision,
        nodes=len(there),
        devices=sum(len(node.devices) for node in there),
        failed=tuple(failed for node in there if (failed := _failed(node)) is not None),
        cordoned=tuple(cordoned for node in there for cordoned in _cordoned(node)),
        silent=tuple(
            facts.SilentAgent(node.name, node.silent, len(node.pods))
            for node in there
            if node.silent and not node.foreign_plugin
        ),
        simulated=tuple(node.name for node in simulated if node.silent),
        simulated_nodes=len(simulated),
        refused=tuple(
            (name, node.refused.cause)
            for name, node in sorted(state.nodes.items())
            if node.refused is not None
        ),
        without_agent=tuple(
            node.name
            for node in there
            if not node.reported and not node.foreign_plugin and has_devices(node)
        ),
        without_node=tuple(
            name
            for name, node in sorted(state.nodes.items())
            if state.of_kubernetes and node.reported is not None and node.observed is None
        ),
        plugins=tuple(
            (node.name, node.foreign_plugin, node.registered.problem if node.registered else "")
            for node in there
            if node.foreign_plugin
        ),
        overtaken=tuple((pod.full_name, pod.placement.node) for pod in overtaken if pod.placement),
        drivers={version: tuple(names) for version, names in sorted(drivers.items())},
        refused_events=state.refused_count,
        late_events=len(state.refused_events) - len(wrong),
        last_refusal=f"revision {wrong[-1].revision}: {wrong[-1].reason}" if wrong else "",
    )


def models_of(state: State) -> tuple[str, ...]:
    """Return the names of the models of all present devices, sorted."""
    there = (node for node in state.nodes.values() if node.present)
    return tuple(
        sorted({each.device.model for node in there for each in node.devices if each.present})
    )


def _failed(node: NodeState) -> facts.FailedDevices | None:
    bad = [each.device.id for each in node.devices if failure(each) is not None]
    on = {device: {pod.uid for pod in pods_on(node, device)} for device in bad}
    held = tuple(device for device, pods in on.items() if pods)
    if not bad:
        return None
    shut = tuple(each.device.id for each in node.devices if each.device.id in on and each.cordon)
    cordoned = (node.name,) if node.cordon else shut
    return facts.FailedDevices(node.name, len(bad), len(set().union(*on.values())), held, cordoned)


def _cordoned(node: NodeState) -> Iterator[facts.Cordoned]:
    if node.cordoned:
        words = [cordon_words(node.cordons)] if node.cordons else []
        words += [DRAINED] if node.drained else []
        yield facts.Cordoned(node.name, "; ".join(words))
    for each in node.devices:
        if each.cordons:
            yield facts.Cordoned(each.device.id, cordon_words(each.cordons))


def waiting_facts(state: State, *, now: str) -> facts.WaitingFacts:
    """Return which pending pods can never fit, and which gangs starve. `now` is in RFC 3339."""
    waiting = [
        pod for pod in state.pods.values() if pod.phase is Phase.PENDING and not pod.submitted.gates
    ]
    explainer = Explainer(state)
    never = []
    for pod in waiting:
        if pod.refusal is not None:
            explained = explainer.explained(pod, pod.refusal, brief=True)
            if explained.never or explained.limit:
                never.append(pod)
    hopeless = {pod.submitted.group for pod in never}
    gangs = [
        gang
        for gang in _waiting_longest(state, waiting, micros_of(now) or 0)
        if gang.group not in hopeless
    ]
    return facts.WaitingFacts(
        waiting=len(waiting),
        never=tuple(sorted(pod.full_name for pod in never)),
        starving=tuple(gangs),
    )


def _waiting_longest(
    state: State, waiting: list[PodState], now_micros: int
) -> Iterator[facts.StarvingGang]:
    gangs: dict[str, list[PodState]] = {}
    for pod in waiting:
        if pod.submitted.group:
            gangs.setdefault(pod.submitted.group, []).append(pod)
    found = []
    for name, pods in gangs.items():
        newest = max(pods, key=lambda pod: pod.submitted_revision)
        since = micros_of(newest.submitted_time)
        waits_s = (now_micros - since) / SECOND if since is not None else 0.0
        group = state.groups[name]
        placed = sum(pod.placement is not None for pod in group.pods.values())
        is_started = group.observed is not None and placed >= group.min_available
        if waits_s > STARVING_S and not is_started:
            found.append((waits_s, name, pods, newest))
    for waits_s, name, pods, newest in sorted(found, key=lambda each: (-each[0], each[1])):
        group = state.groups[name]
        priority = max(pod.submitted.priority for pod in pods)
        overtaken = sum(  # by pods of no higher priority that were submitted after its newest
            each.placement is not None
            and not each.adopted
            and each.submitted_revision > newest.submitted_revision
            and each.submitted.priority <= priority
            and bool(each.submitted.shape.asks)
            for each in state.pods.values()
        )
        yield facts.StarvingGang(
            group=name,
            pod=newest.full_name,
            waits_s=waits_s,
            needed=group.min_available if group.observed else 0,
            present=len(group.pods),
            overtaken=overtaken,
        )
