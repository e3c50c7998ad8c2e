"""What a state says that a doctor wants to know."""

from collections.abc import Collection, Iterator
from typing import Final

from apportion.core.devices.cordons import cordon_words
from apportion.core.doctor.facts import ClusterFacts, Cordoned, FailedDevices, SilentAgent
from apportion.core.explain.health import failure, pods_on
from apportion.core.ledger.state import DRAINED, NodeState, State
from apportion.core.workloads.dialects.listing import domains
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import (
    AllocationFailed,
    BindFailed,
    Event,
    PodBound,
    ShareBreached,
    SharesAllocated,
)

WORDS_OF_PLACES: Final = (SharesAllocated, AllocationFailed, ShareBreached, PodBound, BindFailed)
"""What an agent and a binder say of a pod's place, which they do while the pod may end."""


def came_late(said: Event, revision: int, gone: int) -> bool:
    """Whether this word at `revision` is about a pod of which its writer could not know the end.

    `gone` is the revision at which the pod ended, 0 where it has not.
    """
    return isinstance(said.data, WORDS_OF_PLACES) and said.basis < gone < revision


def cluster_facts(state: State, *, late: Collection[int] = ()) -> ClusterFacts:
    """Nodes, agents and drivers, as of the state's revision.

    `late` are the revisions of refused events that came late, see `came_late`.
    """
    there = [node for _, node in sorted(state.nodes.items()) if node.present]
    simulated = [node for node in there if node.reported and node.reported.simulated]
    drivers: dict[str, list[str]] = {}
    for node in there:
        if node.reported is not None and node.reported.driver and not node.reported.simulated:
            drivers.setdefault(node.reported.driver, []).append(node.name)
    wrong = [each for each in state.refused_events if each.revision not in late]
    known = domains(DialectConfig())
    extended = {node.name: node.observed.extended if node.observed else {} for node in there}
    return ClusterFacts(
        revision=state.revision,
        nodes=len(there),
        devices=sum(len(node.devices) for node in there),
        failed=tuple(failed for node in there if (failed := _failed(node)) is not None),
        cordoned=tuple(cordoned for node in there for cordoned in _cordoned(node)),
        silent=tuple(
            SilentAgent(node.name, node.silent, len(node.pods)) for node in there if node.silent
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
            if not node.reported
            if any(count and name.startswith(known) for name, count in extended[node.name].items())
        ),
        without_node=tuple(
            name
            for name, node in sorted(state.nodes.items())
            if state.of_kubernetes and node.reported is not None and node.observed is None
        ),
        drivers={version: tuple(names) for version, names in sorted(drivers.items())},
        refused_events=state.refused_count,
        late_events=len(state.refused_events) - len(wrong),
        last_refusal=f"revision {wrong[-1].revision}: {wrong[-1].reason}" if wrong else "",
    )


def models_of(state: State) -> tuple[str, ...]:
    """The models of all devices that are there now, by name."""
    there = (node for node in state.nodes.values() if node.present)
    return tuple(
        sorted({each.device.model for node in there for each in node.devices if each.present})
    )


def _failed(node: NodeState) -> FailedDevices | None:
    """Its devices that are no good, and who is on them; None where all are well."""
    bad = [each.device.id for each in node.devices if failure(each) is not None]
    on = {device: {pod.uid for pod in pods_on(node, device)} for device in bad}
    held = tuple(device for device, pods in on.items() if pods)
    if not bad:
        return None
    shut = tuple(each.device.id for each in node.devices if each.device.id in on and each.cordon)
    cordoned = (node.name,) if node.cordon else shut
    return FailedDevices(node.name, len(bad), len(set().union(*on.values())), held, cordoned)


def _cordoned(node: NodeState) -> Iterator[Cordoned]:
    """The node, and those of its devices that have a cordon of their own."""
    if node.cordoned:
        words = [cordon_words(node.cordons)] if node.cordons else []
        words += [DRAINED] if node.drained else []
        yield Cordoned(node.name, "; ".join(words))
    for each in node.devices:
        if each.cordons:
            yield Cordoned(each.device.id, cordon_words(each.cordons))
