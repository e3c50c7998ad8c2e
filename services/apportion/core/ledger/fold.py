"""The fold: the only code that changes a `State`.

All readers apply the same events in revision order, so they all have the same state. Some events
contradict the state: a second placement of a pod, a share of a missing device, an oversold GPU.
Every reader skips such an event, logs it and adds it to `State.refused_events`. So a faulty writer
cannot allocate a device twice, even if the server's fences do not stop it.

Invariant: `apply` applies an event as a whole, or changes nothing but the revision."""

from copy import copy
from itertools import chain
from typing import Any, Final, get_args

import msgspec
from msgspec.structs import force_setattr

from apportion.core.devices import chains
from apportion.core.devices.cordons import reasons
from apportion.core.devices.shares import DeviceState, Oversold, occupy, release, template_cpu_of
from apportion.core.ledger.handlers import cluster_facts, gangs, idle, past_use, resizing  # noqa: F401 - imported, some register handlers
from apportion.core.ledger.handlers.adoption import charged, hold, settle
from apportion.core.ledger.handlers.change import HANDLERS, Change, folds
from apportion.core.ledger.handlers.change import Context as _Context
from apportion.core.ledger.handlers.change import Refused as _Refused
from apportion.core.ledger.handlers.departures import (
    evict,
    follow_reservation,
    give_up,
    leave,
    node_of,
    note_left,
)
from apportion.core.ledger.host_usage import charge_host, release_host, resize_host
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.ledger.rationale import placement_of
from apportion.core.ledger.state import (
    ALLOCATED,
    BOUND,
    NO_HOST,
    PENDING,
    PLACED,
    REFUSED_EVENTS_KEPT,
    Backoff,
    NodeState,
    Placement,
    PodState,
    RefusedEvent,
    RefusedReport,
    State,
    other_owner,
    reshape,
    shape_key,
)
from apportion_schemas import (
    AllocationFailed,
    BindFailed,
    Device,
    DeviceHealthChanged,
    DevicesRegistered,
    Event,
    Host,
    NodeGone,
    NodeHeard,
    NodeObserved,
    NodeReported,
    NodeSilent,
    PlacementVoided,
    PodAdopted,
    PodBound,
    PodChanged,
    PodEvicted,
    PodGone,
    PodPlaced,
    PodRefused,
    PodRejected,
    PodResized,
    PodSubmitted,
    Policy,
    ReportRefused,
    Share,
    ShareBreached,
    SharesAllocated,
    UsageRecorded,
)
from apportion_schemas.catalogue import SUBJECTS, untoken

__all__ = ["HANDLERS", "Change", "apply", "refuse"]

POLICIES = frozenset(("", *get_args(Policy)))
MARKED_UNHEALTHY = "the node's annotation volcano.sh/gpu-unhealthy-ids names it"
# Events that move the fence and the chain of their node.
CHAINED = frozenset((PodPlaced, PlacementVoided, PodEvicted, PodResized))
UNNAMED = "pods of another scheduler hold devices of this family here, and nobody names which"
LONGEST_PAUSE_S: Final = 300
DOUBLINGS_MAX: Final = 16
PLACEMENT_SUBJECTS = f"{SUBJECTS}.placement."


def apply(state: State, revision: int, event: Event, *, digest: str = "") -> Change:
    """Apply the event at this revision to the state, unless it was applied before.

    `digest` is the SHA-256 of the message's bytes; only placements need it. Raises Superseded if
    the state was folded by outdated rules and must not be used."""
    data = event.data
    if revision <= state.revision:
        return Change(data)
    handler = HANDLERS[type(data)]
    try:
        change = handler(_Context(state, revision, event.time), data)
    except (_Refused, Oversold) as error:
        _note_refusal(state, revision, type(data).__name__, str(error))
        pod = state.pods.get(data.pod) if isinstance(data, PodPlaced) else None
        if pod is not None and pod.phase is PENDING and pod.attempt == data.attempt:
            pod.attempt += 1  # the attempt's message id can never be appended again
        name = getattr(data, "node", None)
        node = state.nodes.get(name) if name else None
        change = Change(data, node=node, refused=str(error))
    if state.past_use is not None:
        past_use.follow(state, state.past_use, change, event.time)
    if state.idle is not None and not change.refused:
        idle.follow(state, state.idle, change, event.time)
    if state.reserved is not None and not change.refused:
        follow_reservation(state, state.reserved, change)
    if digest and type(data) in CHAINED:
        node = node_of(state, data.node)
        node.fence, node.chain = revision, digest
        if change.refused:
            forgotten = note_left(state, node) if node.gone else ()
            change = Change(data, node=node, refused=change.refused, forgotten=forgotten)
    state.revision = revision
    return change


def refuse(state: State, revision: int, subject: str, reason: str, *, digest: str = "") -> Change:
    """Skip a message that is not a valid event, and record the reason.

    A message on a placement subject moves the node's fence and chain even if it is invalid."""
    if revision <= state.revision:
        return Change(None)
    _note_refusal(state, revision, subject, reason)
    node = None
    forgotten: tuple[NodeState, ...] = ()
    if subject.startswith(PLACEMENT_SUBJECTS):
        node = node_of(state, untoken(subject.removeprefix(PLACEMENT_SUBJECTS)))
        node.fence, node.chain = revision, digest
        forgotten = note_left(state, node) if node.gone else ()
    state.revision = revision
    return Change(None, node=node, refused=reason, forgotten=forgotten)


def _note_refusal(state: State, revision: int, subject: str, reason: str) -> None:
    state.refused_count += 1
    state.refused_events.append(RefusedEvent(revision, subject, reason))
    if len(state.refused_events) > REFUSED_EVENTS_KEPT:
        del state.refused_events[0]


# ------------------------------------------------------------------ inventory


@folds(NodeReported)
def _node_reported(context: _Context, data: NodeReported) -> Change:
    state = context.state
    _check_devices(state, data)
    node = node_of(state, data.node)
    node.reported, node.reported_revision = data, context.revision
    node.refused = None
    node.gone = state.of_kubernetes and node.observed is None
    node.host = host_of(node)
    _take_inventory(state, node)
    forgotten = note_left(state, node) if node.gone or state.left else ()
    return Change(data, node=node, forgotten=forgotten)


@folds(DevicesRegistered)
def _devices_registered(context: _Context, data: DevicesRegistered) -> Change:
    state = context.state
    _check_devices(state, data)
    node = node_of(state, data.node)
    plugin = node.foreign_plugin
    node.registered = data
    if plugin or node.foreign_plugin:
        _take_inventory(state, node)
    return Change(data, node=node, forgotten=note_left(state, node) if node.gone else ())


def _check_devices(state: State, data: NodeReported | DevicesRegistered) -> None:
    if len({device.id for device in data.devices}) != len(data.devices):
        raise _Refused(f"node {data.node} reports a device id twice")
    known = state.nodes.get(data.node)
    for device in data.devices:
        owner = other_owner(state, data.node, device.id)
        if owner is not None:
            raise _Refused(
                f"device {device.id} of node {data.node} is reported by node {owner.name}"
            )
        old = known.by_id.get(device.id) if known else None
        if old is not None and not old.idle and old.device.family != device.family:
            raise _Refused(
                f"device {device.id} is in use as {old.device.family} and is reported as "
                f"{device.family}"
            )


def _take_inventory(state: State, node: NodeState) -> None:
    """Set the node's devices: those that another plugin registers, and others from our agent.

    A device that is no longer there stays in the list, as not present, while a pod uses it."""
    offered = node.registered.devices if node.registered and node.foreign_plugin else ()
    families = {device.family for device in offered}
    reported = node.reported.devices if node.reported else ()
    offered = (*offered, *(each for each in reported if each.family not in families))
    offered = tuple(each for each in offered if other_owner(state, node.name, each.id) is None)
    ids = {device.id for device in offered}
    devices = [_merged(state, node.by_id.get(device.id), device) for device in offered]
    for old in node.devices:
        if old.device.id not in ids:
            if not old.idle:
                old.present = False
                devices.append(old)
            elif state.node_of_device.get(old.device.id) == node.name:
                del state.node_of_device[old.device.id]
    node.devices = sorted(devices, key=lambda d: (d.device.index, d.device.id))
    node.by_id = {d.device.id: d for d in node.devices}
    judge(node)
    for device_id in sorted(ids):
        name = state.node_of_device.get(device_id, node.name)
        if name != node.name:
            state.nodes[name].by_id[device_id].present = False
        state.node_of_device[device_id] = node.name


def host_of(node: NodeState) -> Host:
    """Return the node's CPU, memory, pods and labels, from Kubernetes or else from the agent."""
    seen = node.observed
    if seen is None:
        return node.reported.host if node.reported else NO_HOST
    return Host(
        cpu_milli=seen.cpu_milli, memory_mib=seen.memory_mib, pods=seen.pods, labels=seen.labels
    )


def _merged(state: State, old: DeviceState | None, device: Device) -> DeviceState:
    if old is not None and old.device is device and old.present:
        return old  # the event is not about this device
    fresh = DeviceState(
        device=device,
        memory_free_mib=device.memory_mib,
        cores_free=device.cores,
        slots_free=device.slots,
        template_cpu_free=template_cpu_of(device),
        agent_health=(device.healthy, device.health_reason),
        cordon=reasons(state.device_cordons.get(device.id, ())),
        cordons=state.device_cordons.get(device.id, ()),
    )
    if old is not None:
        fresh.memory_free_mib -= old.device.memory_mib - old.memory_free_mib
        fresh.cores_free -= old.device.cores - old.cores_free
        fresh.slots_free -= old.device.slots - old.slots_free
        fresh.template_cpu_free -= template_cpu_of(old.device) - old.template_cpu_free
        fresh.slices, fresh.group = old.slices, old.group
    return fresh


def judge(node: NodeState) -> None:
    """Set which devices are healthy, by the agent's report and the marks in Kubernetes.

    A MIG device is unhealthy while a pod uses it without a known MIG instance. Such a pod was
    adopted before the device was reported in MIG mode."""
    marked = node.observed.unhealthy_indexes if node.observed else ()
    unnamed = node.observed.unnamed_families if node.observed else ()
    cut = {state.device.id for state in node.devices if state.device.mode == "mig"}
    unreported = {
        share.device
        for pod in (node.pods.values() if cut else ())
        if pod.adopted
        for share in shares_of(pod)
        if share.instance is None and share.device in cut
    }
    for state in node.devices:
        state.healthy, state.health_reason = state.agent_health
        if state.device.index in marked:
            state.healthy, state.health_reason = False, MARKED_UNHEALTHY
        elif state.device.family in unnamed or state.device.id in unreported:
            state.healthy, state.health_reason = False, UNNAMED


@folds(DeviceHealthChanged)
def _health_changed(context: _Context, data: DeviceHealthChanged) -> Change:
    node = context.state.nodes.get(data.node)
    device = node.by_id.get(data.device) if node else None
    if node is None or device is None:
        raise _Refused(f"device {data.device} is not one of node {data.node}")
    device.agent_health = (data.healthy, data.reason)
    node.refused = None
    judge(node)
    return Change(data, node=node)


# ------------------------------------------------------------------ cluster


@folds(NodeObserved)
def _node_observed(context: _Context, data: NodeObserved) -> Change:
    state = context.state
    node = node_of(state, data.node)
    forgotten: tuple[NodeState, ...] = ()
    if data.version and not state.of_kubernetes:  # from now on only observed nodes exist
        state.of_kubernetes = True
        for other in state.nodes.values():
            other.gone = other.observed is None
        left = [other for other in state.nodes.values() if other.gone and other is not node]
        forgotten = tuple(chain.from_iterable(note_left(state, other) for other in left))
    plugin = node.foreign_plugin
    node.observed, node.gone = data, False
    if state.left:
        state.left.pop(data.node, None)
    node.host = host_of(node)
    if node.foreign_plugin != plugin:
        _take_inventory(state, node)
    judge(node)
    return Change(data, node=node, forgotten=forgotten)


@folds(NodeGone)
def _node_gone(context: _Context, data: NodeGone) -> Change:
    node = node_of(context.state, data.node)
    plugin = node.foreign_plugin
    node.observed, node.gone, node.refused, node.registered = None, True, None, None
    node.host = host_of(node)
    if plugin:
        _take_inventory(context.state, node)
    judge(node)
    return Change(data, node=node, forgotten=note_left(context.state, node))


@folds(NodeSilent, NodeHeard)
def _presence_changed(context: _Context, data: NodeSilent | NodeHeard) -> Change:
    node = node_of(context.state, data.node)
    node.presence = context.revision  # the fence of the next event about its presence
    if isinstance(data, NodeHeard):
        node.silent = ""
    elif not node.silent:  # the first event counts
        node.silent = context.time
    forgotten = note_left(context.state, node) if node.gone else ()
    return Change(data, node=node, forgotten=forgotten)


@folds(ReportRefused)
def _report_refused(context: _Context, data: ReportRefused) -> Change:
    state = context.state
    node = node_of(state, data.node)
    node.refused = RefusedReport(data.cause, data.message, context.revision, context.time)
    forgotten = note_left(state, node) if node.gone else ()
    return Change(data, node=node, forgotten=forgotten)


# ------------------------------------------------------------------ workload


@folds(PodSubmitted)
def _pod_submitted(context: _Context, data: PodSubmitted) -> Change:
    return Change(data, pod=_submit(context, data))


def _submit(context: _Context, data: PodSubmitted) -> PodState:
    state = context.state
    if data.uid in state.pods:
        raise _Refused(f"pod {data.uid} was submitted already")
    key = shape_key(data.shape)
    shape = state.shapes.get(key)
    if shape is None:
        for policy, known in (
            (data.shape.node_policy, data.shape.node_policy in POLICIES),
            (data.shape.device_policy, chains.known(data.shape.device_policy)),
        ):
            if not known:
                raise _Refused(f"pod {data.uid} names the policy {policy!r}, which nobody knows")
        state.shapes[key] = data.shape
    else:  # pods of one shape share the object
        force_setattr(data, "shape", shape)
    pod = PodState(data, key, context.revision, context.time)
    state.pods[data.uid] = pod
    if state.rejected:
        state.rejected.pop(data.uid, None)
    if data.group:
        gangs.join(state, pod)
    return pod


@folds(PodChanged)
def _pod_changed(context: _Context, data: PodChanged) -> Change:
    state = context.state
    pod = state.pods.get(data.uid)
    if pod is None:
        raise _Refused(f"pod {data.uid} is not live")
    before, shape = copy(pod), pod.submitted.shape
    sized = msgspec.structs.replace(
        shape.node, cpu_milli=data.cpu_milli, memory_mib=data.memory_mib
    )
    node = None
    if sized != shape.node:
        reshape(state, pod, msgspec.structs.replace(shape, node=sized))
        node = state.nodes[pod.placement.node] if pod.placement is not None else None
    pod.submitted = msgspec.structs.replace(pod.submitted, labels=data.labels, gates=data.gates)
    pod.terminating = data.terminating
    pod.changed_revision = context.revision
    if node is not None:
        resize_host(before, pod, node)
    return Change(data, node=node, pod=pod, shares=(), before=before)


@folds(PodRejected)
def _pod_rejected(context: _Context, data: PodRejected) -> Change:
    if data.uid in context.state.pods:
        raise _Refused(f"pod {data.uid} was submitted already")
    context.state.rejected[data.uid] = data
    return Change(data)


@folds(PodGone)
def _pod_gone(context: _Context, data: PodGone) -> Change:
    state = context.state
    if state.rejected and state.rejected.pop(data.uid, None) is not None:
        return Change(data)
    pod = state.pods.pop(data.uid, None)
    if pod is None:
        raise _Refused(f"pod {data.uid} is not live")
    shares = shares_of(pod)
    node = unplace(state, pod)
    if state.failing:
        state.failing.pop(data.uid, None)
    if state.resizes or state.evictions or state.nominated:
        leave(state, data.uid)
    if state.differing:
        state.differing.pop(data.uid, None)
    state.released_count += 1
    if pod.submitted.group:
        gangs.part(state, pod)
    forgotten = note_left(state, node) if node is not None and node.gone else ()
    return Change(data, node=node, pod=pod, shares=shares, forgotten=forgotten)


@folds(PodAdopted)
def _pod_adopted(context: _Context, data: PodAdopted) -> Change:
    state = context.state
    devices = charged(state, data)
    pod = _submit(context, data.submitted)
    node = node_of(state, data.node)
    hold(state, node, devices)
    settle(pod, node, data)
    if data.submitted.group:
        gangs.release_if_whole(state.groups[data.submitted.group])
    judge(node)
    return Change(data, node=node, pod=pod)


# ------------------------------------------------------------------ decisions


@folds(PodPlaced)
def _pod_placed(context: _Context, data: PodPlaced) -> Change:
    state = context.state
    pod = state.pods.get(data.pod)
    if pod is None:
        raise _Refused(f"pod {data.pod} is not live")
    if pod.phase is not PENDING:
        raise _Refused(f"pod {data.pod} is {pod.phase.value} already")
    if pod.submitted.gates:
        raise _Refused(f"pod {data.pod} waits for its gates: {', '.join(pod.submitted.gates)}")
    if data.attempt != pod.attempt:
        raise _Refused(f"pod {data.pod}: attempt {data.attempt}, expected {pod.attempt}")
    node = state.nodes.get(data.node)
    if node is None:
        raise _Refused(f"node {data.node} is not known")
    if data.previous != node.chain:
        raise _Refused(
            f"node {data.node}: chain broken: previous {data.previous!r}, expected {node.chain!r}"
        )
    place(pod, node, placement_of(data))
    if state.nominated:
        state.nominated.pop(data.pod, None)
    pod.placed_revision, pod.placed_time = context.revision, context.time
    pod.refusal, pod.refused_revision, pod.last_failure = None, 0, ""
    if pod.submitted.group:
        gangs.hold(state, pod, more_follow=data.held)
    return Change(data, node=node, pod=pod, shares=data.shares)


@folds(PlacementVoided)
def _placement_voided(context: _Context, data: PlacementVoided) -> Change:
    pod = _placed_pod(context.state, data)
    if pod.phase is ALLOCATED:
        raise _Refused(f"pod {data.pod} is allocated already: only its end frees its shares")
    shares, lived_until = shares_of(pod), pod.submitted_revision if pod.adopted else 0
    node = unplace(context.state, pod)
    context.state.failing.pop(data.pod, None)
    leave(context.state, data.pod)
    gangs.release(context.state, pod)
    pod.attempt = max(pod.attempt, lived_until) + 1  # above all attempts of an earlier life
    pod.last_failure = data.reason
    if pod.backoff is not None:
        # One second, doubled by each failure in a row, measured by the scheduler's clock. The count
        # restarts when the pod's shares are allocated.
        failures, moment = pod.backoff.failures, micros_of(context.time)
        pause_s = min(1 << min(failures - 1, DOUBLINGS_MAX), LONGEST_PAUSE_S)
        until = 0 if moment is None else moment + pause_s * SECOND
        pod.backoff = Backoff(failures, pod.backoff.node, until)
    forgotten = note_left(context.state, node) if node is not None and node.gone else ()
    return Change(data, node=node, pod=pod, shares=shares, forgotten=forgotten)


@folds(PodRefused)
def _pod_refused(context: _Context, data: PodRefused) -> Change:
    pod = context.state.pods.get(data.pod)
    if pod is None:
        raise _Refused(f"pod {data.pod} is not live")
    if pod.phase is not PENDING:
        raise _Refused(f"pod {data.pod} is not pending")
    pod.refusal, pod.refused_revision = data, context.revision
    give_up(context.state, data.pod)
    return Change(data, pod=pod)


@folds(PodEvicted)
def _pod_evicted(context: _Context, data: PodEvicted) -> Change:
    return evict(context, data, _placed_pod(context.state, data))


@folds(PodResized)
def _pod_resized(context: _Context, data: PodResized) -> Change:
    return resizing.resized(context, data, _placed_pod(context.state, data))


def shares_of(pod: PodState) -> tuple[Share, ...]:
    """Return the pod's shares; empty while the pod is not placed."""
    return pod.placement.shares if pod.placement is not None else ()


def place(pod: PodState, node: NodeState, placement: Placement) -> None:
    """Allocate the placement's shares and the pod's host resources on the node.

    Raises Oversold if a device has too little free for its share; then nothing changes."""
    charged: list[tuple[DeviceState, Any]] = []
    try:
        for share in placement.shares:
            device = node.by_id.get(share.device)
            if device is None or not device.present:
                raise Oversold(f"node {node.name} has no device {share.device}")
            occupy(device, share)
            charged.append((device, share))
    except Oversold:
        for device, share in reversed(charged):
            release(device, share)
        raise
    charge_host(pod, node, placement)


def unplace(state: State, pod: PodState) -> NodeState | None:
    """Undo `place` and make the pod pending. Return the pod's previous node, or None."""
    placed = pod.placement
    if placed is None:
        return None
    node = state.nodes[placed.node]
    for share in placed.shares:
        release(node.by_id[share.device], share)
    adopted = pod.adopted
    release_host(pod, node)
    if adopted:
        judge(node)
    return node


# ------------------------------------------------------------------ effects


def _placed_pod(state: State, data: Any) -> PodState:
    pod = state.pods.get(data.pod)
    if pod is None:
        raise _Refused(f"pod {data.pod} is not live")
    if pod.placement is None:
        raise _Refused(f"pod {data.pod} has no placement")
    if (pod.placement.node, pod.placement.attempt) != (data.node, data.attempt):
        raise _Refused(
            f"pod {data.pod} is placed on {pod.placement.node} by attempt "
            f"{pod.placement.attempt}, not on {data.node} by {data.attempt}"
        )
    return pod


def _check_not_held(state: State, pod: PodState) -> None:
    if gangs.is_held(state, pod):
        raise _Refused(f"pod {pod.uid} waits for the rest of its gang")


@folds(PodBound)
def _pod_bound(context: _Context, data: PodBound) -> Change:
    pod = _placed_pod(context.state, data)
    if pod.bound_revision:
        raise _Refused(f"pod {data.pod} is bound already")
    _check_not_held(context.state, pod)
    pod.bound_revision = context.revision
    if pod.phase is PLACED:  # the agent may have reported the allocation first
        pod.phase = BOUND
    return Change(data, pod=pod)


@folds(BindFailed)
def _bind_failed(context: _Context, data: BindFailed) -> Change:
    pod = _placed_pod(context.state, data)
    if pod.phase is not PLACED:
        raise _Refused(f"pod {data.pod} is {pod.phase.value} already")
    pod.last_failure = data.message
    if data.final:
        context.state.failing[data.pod] = data.message
    return Change(data, pod=pod)


@folds(SharesAllocated)
def _shares_allocated(context: _Context, data: SharesAllocated) -> Change:
    pod = _placed_pod(context.state, data)
    if pod.phase is ALLOCATED:
        raise _Refused(f"pod {data.pod} is allocated already")
    _check_not_held(context.state, pod)
    pod.phase, pod.allocated_revision = ALLOCATED, context.revision
    pod.backoff = None
    context.state.failing.pop(data.pod, None)  # a bind may have failed before
    return Change(data, pod=pod)


@folds(AllocationFailed)
def _allocation_failed(context: _Context, data: AllocationFailed) -> Change:
    pod = _placed_pod(context.state, data)
    if pod.phase is ALLOCATED:
        raise _Refused(f"pod {data.pod} is allocated already")
    pod.last_failure = data.message
    failures = pod.backoff.failures if pod.backoff is not None else 0
    pod.backoff = Backoff(failures + 1, data.node, 0)  # starts when the placement is voided
    context.state.failing[data.pod] = data.message
    return Change(data, pod=pod)


@folds(ShareBreached)
def _share_breached(context: _Context, data: ShareBreached) -> Change:
    pod = _placed_pod(context.state, data)
    if all(share.device != data.device for share in shares_of(pod)):
        raise _Refused(f"pod {data.pod} holds nothing of {data.device}")
    return Change(data, pod=pod)


# ------------------------------------------------------------------ operations


@folds(UsageRecorded)
def _noted(context: _Context, data: UsageRecorded) -> Change:  # noqa: ARG001 - see `handlers.idle`
    return Change(data)
