"""Convert the state into answers, with one function for each struct of `answers.reads`.

Invariant: the functions never change the state, and each answer describes one revision."""

from collections import Counter
from collections.abc import Iterator

from msgspec import structs

from apportion.core.answers import reads
from apportion.core.answers.reads import fields_of
from apportion.core.devices.catalogue import mig_profiles
from apportion.core.explain.causes import cordon_answers
from apportion.core.explain.explainer import Explainer
from apportion.core.explain.health import failed_devices, failure, unready
from apportion.core.explain.not_queued import unlooked
from apportion.core.explain.text import words
from apportion.core.explain.text.answer_text import (
    closed_with_text,
    device_with_text,
    node_with_text,
)
from apportion.core.explain.text.event_text import families_of, rejection_words
from apportion.core.ledger.rationale import rationale_of
from apportion.core.ledger.state import GroupState, NodeState, Phase, PodState, State, spec_digest
from apportion.core.placement.feasibility.causes import ranked
from apportion.core.placement.feasibility.evaluator import facts_refusal
from apportion.core.placement.index.labels import domain_of
from apportion_schemas import (
    Ask,
    DeviceConstraints,
    GangPart,
    NodeConstraints,
    PodGroupObserved,
    PodRejected,
    Shape,
    Toleration,
)

REFUSED = "refused"  # the displayed phase of a pending pod that was refused
REJECTED = "rejected"  # the displayed phase of a pod that cannot be read


def shown_phase(pod: PodState) -> str:
    """Return the pod's phase; a pending pod that was refused has the phase `refused`."""
    if pod.phase is Phase.PENDING and pod.refusal is not None:
        return REFUSED
    return pod.phase.value


def summary_answer(state: State) -> reads.SummaryAnswer:
    """Return the summary of the cluster."""
    phases = Counter(map(shown_phase, state.pods.values()))
    if state.rejected:
        phases[REJECTED] = len(state.rejected)
    there = [node for node in state.nodes.values() if not node.gone]
    devices = [device for node in there for device in node.devices if device.present]
    return reads.SummaryAnswer(
        revision=state.revision,
        policy=state.policy,
        phases=dict(sorted(phases.items())),
        nodes=len(there),
        nodes_ready=sum(node.ready for node in there),
        devices=len(devices),
        devices_open=sum(map(_devices_open, there)),
        memory_mib=sum(device.device.memory_mib for device in devices),
        memory_free_mib=sum(device.memory_free_mib for device in devices),
        refused_events=state.refused_count,
    )


def configuration_answer(state: State) -> reads.ConfigurationAnswer:
    """Return the current configuration, with the revision that set it."""
    names = "revision configuration_revision configuration"
    return reads.ConfigurationAnswer(**fields_of(state, names))


def pod_answer(state: State, pod: PodState, explainer: Explainer | None = None) -> reads.PodAnswer:
    """Return the answer about one pod. To convert many pods, pass an `explainer` of this state."""
    submitted, placed = pod.submitted, pod.placement
    explainer = explainer or Explainer(state)
    explained = explainer.explained(pod, pod.refusal, brief=True) if pod.refusal else None
    evicted = state.evictions.get(pod.uid)
    return reads.PodAnswer(
        namespace=submitted.namespace,
        name=submitted.name,
        uid=submitted.uid,
        phase=pod.phase.value,
        submitted_revision=pod.submitted_revision,
        submitted_time=pod.submitted_time,
        dialect=submitted.dialect,
        priority=submitted.priority,
        group=submitted.group,
        owner=submitted.owner,
        attempt=pod.attempt,
        asks=submitted.shape.asks,
        spec=spec_digest(pod.shape_key, submitted),
        node=placed.node if placed else "",
        shares=placed.shares if placed else (),
        placed_revision=pod.placed_revision,
        placed_time=pod.placed_time,
        bound_revision=pod.bound_revision,
        allocated_revision=pod.allocated_revision,
        refused_revision=pod.refused_revision,
        reasons=dict(ranked(explained.refused)) if explained else {},
        cause=words.cause_words(explained) if explained else unlooked(state, pod),
        never=explained is not None and explained.never,
        last_failure=pod.last_failure,
        failed_devices=failed_devices(state, pod),
        evicted_for=evicted.beneficiary_name if evicted else "",
        room_on=state.nominated.get(pod.uid, "") if placed is None else "",
        unready=unready(state, pod),
        cpu_milli=submitted.shape.node.cpu_milli,
        memory_mib=submitted.shape.node.memory_mib,
        deadline_s=submitted.deadline_s,
    )


def rejected_answer(rejected: PodRejected) -> reads.PodAnswer:
    """Return the answer about a pod whose manifest cannot be read."""
    return reads.PodAnswer(
        **fields_of(rejected, "namespace name uid"),
        phase=REJECTED,
        rejection=rejection_words(rejected),
    )


def placement_answer(pod: PodState) -> reads.PlacementAnswer:
    """Return where a placed pod is. Raises `ValueError` for a pod that is not placed."""
    placed = pod.placement
    if placed is None:
        raise ValueError(f"pod {pod.full_name} has no placement")
    return reads.PlacementAnswer(
        namespace=pod.submitted.namespace,
        name=pod.submitted.name,
        uid=pod.uid,
        node=placed.node,
        phase=pod.phase.value,
        attempt=placed.attempt,
        placed_revision=pod.placed_revision,
        placed_time=pod.placed_time,
        shares=placed.shares,
        families=families_of(pod.submitted.shape.asks),
        score=rationale_of(placed).score,
        bound_revision=pod.bound_revision,
        allocated_revision=pod.allocated_revision,
    )


def node_answer(node: NodeState) -> reads.NodeAnswer:
    """Return one node with its usage, cordons and closed devices."""
    host, report = node.host, node.refused
    present = [device for device in node.devices if device.present]
    answer = reads.NodeAnswer(
        node=node.name,
        ready=node.ready,
        gone=node.gone,
        cordons=cordon_answers(node.cordons),
        unschedulable=node.drained,
        silent=node.silent,
        refused=(
            reads.RefusedReportAnswer(**fields_of(report, "cause message revision time"))
            if report
            else None
        ),
        simulated=node.reported.simulated if node.reported else False,
        driver=node.reported.driver if node.reported else "",
        plugin=node.foreign_plugin,
        plugin_problem=node.registered.problem if node.registered else "",
        devices=len(present),
        devices_open=_devices_open(node),
        # Devices that are closed themselves, whatever the state of their node.
        closed=tuple(
            closed_with_text(
                reads.ClosedDevice(
                    device=each.device.id, failed=failed, cordons=cordon_answers(each.cordons)
                )
            )
            for each in present
            if (failed := failure(each)) is not None or each.cordons
        ),
        models=tuple(dict.fromkeys(device.device.model for device in present)),
        pods=len(node.pods),
        pods_max=host.pods,
        cpu_milli=host.cpu_milli,
        cpu_used_milli=node.cpu_used_milli,
        memory_mib=host.memory_mib,
        memory_used_mib=node.memory_used_mib,
        labels=host.labels,
        placement_revision=node.fence,
        of_kubernetes=node.observed is not None and node.observed.version > 0,
    )
    return node_with_text(answer)


# it requests a device and tolerates all taints: what refuses it closes the node's devices
_ALL = NodeConstraints(tolerations=(Toleration(operator="Exists"),))
_ANY = Shape(asks=(Ask(container="main", family="nvidia"),), node=_ALL)


def _devices_open(node: NodeState) -> int:
    any_pod = structs.replace(_ANY, devices=DeviceConstraints(plugin=node.foreign_plugin))
    offered = not node.cordoned and facts_refusal(any_pod, node) is None
    return sum(device.open for device in node.devices) if offered else 0


def device_answers(node: NodeState) -> Iterator[reads.DeviceAnswer]:
    """Yield the devices of a node, in the order of their index, with the pods on them."""
    holders: dict[str, list[reads.Holder]] = {}
    for pod in node.pods.values():
        for share in pod.placement.shares if pod.placement else ():
            holders.setdefault(share.device, []).append(
                reads.Holder(
                    namespace=pod.submitted.namespace,
                    pod=pod.submitted.name,
                    container=share.container,
                    memory_mib=share.memory_mib,
                    cores=share.cores,
                    instance=share.instance,
                    template=share.template,
                )
            )
    for state in node.devices:
        device, slots_free = state.device, state.slots_free
        if device.mode == "mig":
            # Count the instances that fit into the free slices: otherwise a card that a single
            # instance fills would look free.
            room = (
                sum(not state.taken & ((1 << each.size) - 1) << start for start in each.starts)
                for each in mig_profiles(device.family, device.model)
            )
            slots_free = min(slots_free, max(room, default=slots_free))
        answer = reads.DeviceAnswer(
            device=device.id,
            node=node.name,
            index=device.index,
            model=device.model,
            family=device.family,
            mode=device.mode,
            memory_mib=device.memory_mib,
            memory_free_mib=state.memory_free_mib,
            cores=device.cores,
            cores_free=state.cores_free,
            slots=device.slots,
            slots_free=slots_free,
            present=state.present,
            healthy=state.healthy,
            health_reason=state.health_reason,
            cordons=cordon_answers(state.cordons),
            node_cordons=cordon_answers(node.cordons),
            node_unschedulable=node.drained,
            node_ready=node.ready,
            node_silent=node.silent,
            numa=device.numa,
            holders=tuple(holders.get(device.id, ())),
        )
        yield device_with_text(answer)


def gang_answer(state: State, name: str, group: GroupState) -> reads.GangAnswer:
    """Return one gang: its pods by phase, and those on nodes that are not ready."""
    phases = Counter(pod.phase.value for pod in group.pods.values())
    nodes = Counter(pod.placement.node for pod in group.pods.values() if pod.placement)
    return reads.GangAnswer(
        group=name,
        declared=group.observed is not None,
        min_available=group.min_available,
        pods=len(group.pods),
        phases=dict(sorted(phases.items())),
        queue=group.observed.queue if group.observed else "",
        namespace=name.partition("/")[0],
        unready={node: nodes[node] for node in sorted(nodes) if not state.nodes[node].ready},
        models=gang_models(state, group),
        domains=gang_domains(state, group),
    )


def gang_domains(state: State, group: GroupState) -> dict[str, dict[str, int]]:
    """Return by topology level how many placed pods of the gang are in each domain."""
    said = group.observed
    if said is None:
        return {}
    parts: list[PodGroupObserved | GangPart] = [said, *said.parts]
    levels = [level for part in parts for level in (part.required_level, part.preferred_level)]
    nodes = [pod.placement.node for pod in group.pods.values() if pod.placement]
    found = {
        level: Counter(domain_of(state.nodes[node], level) or "" for node in nodes)
        for level in dict.fromkeys(filter(None, levels))
    }
    return {level: dict(sorted(counts.items())) for level, counts in found.items() if counts}


def gang_models(state: State, group: GroupState) -> dict[str, int]:
    """Return how many pods of the gang use devices of each model, by model."""
    found: Counter[str] = Counter()
    for pod in group.pods.values():
        if pod.placement is not None:
            by_id = state.nodes[pod.placement.node].by_id
            held = {share.device for share in pod.placement.shares} & by_id.keys()
            found.update({by_id[device].device.model for device in held})
    return dict(sorted(found.items()))
