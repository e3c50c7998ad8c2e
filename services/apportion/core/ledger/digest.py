"""Compute a digest of the state, to check that two readers of a ledger have equal states.

Invariant: the digest depends only on the events, not on map order, hash seed or machine."""

import hashlib
from typing import Any

import msgspec

from apportion.core.devices.cordons import reasons
from apportion.core.ledger.rationale import placed_of
from apportion.core.ledger.state import NodeState, PodState, State

_encode = msgspec.json.Encoder(order="sorted").encode


def digest(state: State) -> str:
    """Return the SHA-256 of the state, as 64 hexadecimal digits."""
    return hashlib.sha256(canonical(state)).hexdigest()


def canonical(state: State) -> bytes:
    """Return the state as JSON with sorted keys."""
    return _encode(
        {
            "revision": state.revision,
            "nodes": {name: _node(node) for name, node in state.nodes.items()},
            "pods": {uid: _pod(pod) for uid, pod in state.pods.items()},
            "groups": {
                name: {"observed": group.observed, "pods": sorted(group.pods)}
                for name, group in state.groups.items()
            },
            "queues": state.queues,
            "failing": state.failing,
            "rejected": state.rejected,
            "node_of_device": state.node_of_device,
            "device_cordons": {
                name: reasons(cordons) for name, cordons in state.device_cordons.items()
            },
            "policy": [state.policy_revision, state.policy],
            "prices": [state.prices_revision, state.prices],
            "configuration": [state.configuration_revision, state.configuration],
            "refused": [state.refused_count, state.released_count],
            "refused_events": [[e.revision, e.subject, e.reason] for e in state.refused_events],
            **_optional(state),
        }
    )


def _optional(state: State) -> dict[str, Any]:
    """Return the fields that a digest includes only if they are not empty.

    They are newer than the first digests, which must stay valid."""
    found: dict[str, Any] = {}
    if state.differences:
        found["differences"] = [state.differences, state.differing]
    if state.quotas:
        found["quotas"] = state.quotas
    if state.evictions or state.nominated:
        found["evictions"] = [state.evictions, state.nominated]
    for name in ("budgets", "volume_claims", "namespaces", "limits_checked", "idle", "reserved"):
        if getattr(state, name):
            found[name] = getattr(state, name)
    cordons = {f"device {name}": each for name, each in state.device_cordons.items()}
    cordons |= {f"node {name}": node.cordons for name, node in state.nodes.items()}
    shared = {name: each for name, each in cordons.items() if len(each) > 1}
    if shared:  # a single cordon is already in the entry of its device or node
        found["cordons"] = shared
    if state.resizes:
        found["resizes"] = {uid: [each.revision, each.asked] for uid, each in state.resizes.items()}
    if state.departed:
        found["departed"] = [state.departed, list(state.left)]
    found |= _gangs(state)
    if state.of_kubernetes:
        found["of_kubernetes"] = True
    if state.past_use is not None:
        found["past_use"] = state.past_use.kept()
    rules = state.rules.upto(state.revision)
    if rules.enabled or rules.aside:
        found["rules"] = [rules.enabled, {str(at): why for at, why in rules.aside.items()}]
    return found


def _gangs(state: State) -> dict[str, Any]:
    found: dict[str, Any] = {}
    places: dict[str, list[int]] = {}
    for name, group in state.groups.items():
        # The place that the gang has by its live pods alone is left out.
        first = min((pod.submitted_revision for pod in group.pods.values()), default=0)
        highest = max((pod.submitted.priority for pod in group.pods.values()), default=0)
        if group.pods and (group.since, group.priority) != (first, highest):
            places[name] = [group.since, group.priority]
    if places or state.gangs_left:
        found["gangs"] = [places, list(state.gangs_left.items())]
    held = {name: sorted(group.held) for name, group in state.groups.items() if group.held}
    if held:
        found["held"] = held
    return found


def _node(node: NodeState) -> dict[str, Any]:
    presence = {"presence": [node.presence, node.silent]} if node.presence else {}
    registered = {"registered": node.registered} if node.registered else {}
    refused = {"refused": node.refused} if node.refused else {}
    return {
        "devices": [
            {
                "device": state.device,
                "memory_free_mib": state.memory_free_mib,
                "cores_free": state.cores_free,
                "slots_free": state.slots_free,
                "template_cpu_free": state.template_cpu_free,
                "slices": [state.slices, state.group],
                "present": state.present,
                "healthy": [state.healthy, state.health_reason, *state.agent_health],
                "cordon": state.cordon,
            }
            for state in node.devices
        ],
        "pods": sorted(node.pods),
        "reported": [node.reported_revision, node.reported],
        "observed": node.observed,
        "gone": node.gone,
        "cordon": node.cordon,
        "used": [node.cpu_used_milli, node.memory_used_mib, node.extended_used],
        "fence": [node.fence, node.chain],
        **registered,
        **presence,
        **refused,
    }


def _pod(pod: PodState) -> dict[str, Any]:
    placed = placed_of(pod, pod.placement) if pod.placement else None
    backoff = {"backoff": pod.backoff} if pod.backoff is not None else {}
    return {
        "submitted": [pod.submitted_revision, pod.submitted_time, pod.submitted],
        "attempt": pod.attempt,
        "phase": pod.phase.value,
        "placement": [pod.placed_revision, pod.placed_time, placed],
        "bound": [pod.bound_revision, pod.allocated_revision],
        "refusal": [pod.refused_revision, pod.refusal],
        "last_failure": pod.last_failure,
        **backoff,
    }
