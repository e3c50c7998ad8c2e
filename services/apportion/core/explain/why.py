"""Explain why a pod is on its node, or why it is pending.

Invariant: only events and the state at the revision are used, so an explanation never changes."""

from msgspec import structs

from apportion.core.answers import reads
from apportion.core.answers.reads import fields_of
from apportion.core.explain.causes import refused_answer, spared_words, with_taken
from apportion.core.explain.explainer import Explainer
from apportion.core.explain.health import failed_devices, idle_of, unready
from apportion.core.explain.not_queued import gang_words
from apportion.core.explain.queue_entitlement import entitlement_of
from apportion.core.explain.text import words
from apportion.core.explain.text.answer_text import why_with_text
from apportion.core.explain.views import REJECTED, gang_answer
from apportion.core.ledger.handlers.departures import awaited
from apportion.core.ledger.handlers.gangs import is_held
from apportion.core.ledger.moments import SECOND, micros_of, text_of
from apportion.core.ledger.rationale import rationale_of
from apportion.core.ledger.state import Phase, Placement, PodState, State
from apportion.core.placement.limits.queues import Queues
from apportion.core.placement.queueing.shape_queue import place_of
from apportion_schemas import NodesReserved, PodRefused, PodRejected, RefusalCode, Score
from apportion_schemas.operations import POLICIES

ENDED = "ended"  # the displayed phase of a pod that is gone


def why(
    state: State, pod: PodState, *, failed: tuple[reads.FailedDevice, ...] | None = None,
    start: reads.StartForecast | None = None,
) -> reads.Why:  # fmt: skip
    """Return the explanation of one live pod, as of the state's revision.

    `failed` are the pod's failed devices, with the time of each failure. If it is None, they are
    read from the state, which lacks these times. `start` is a forecast from the events, if any."""
    refused = None
    if pod.refusal and not pod.placement:
        refused = _refused(Explainer(state), pod, pod.refusal)
    placed = _placed(state, pod, pod.placement) if pod.placement else None
    failed = failed_devices(state, pod) if failed is None else failed
    waiting = None if placed or refused else _waiting(state, pod)
    group = state.groups.get(pod.submitted.group) if pod.submitted.group else None
    evicts, evicted = awaited(state, pod.uid), state.evictions.get(pod.uid)
    start = with_never(start, refused is not None and refused.never)
    held_back, again = None, pod.backoff
    if pod.placement is None and again is not None:  # agents refused its placements
        until = text_of(again.until)
        held_back = reads.WhyHeldBack(failures=again.failures, node=again.node, until=until)
    steps = (
        reads.Step(phase="submitted", revision=pod.submitted_revision, time=pod.submitted_time),
        reads.Step(phase="refused", revision=pod.refused_revision),
        reads.Step(phase=Phase.PLACED.value, revision=pod.placed_revision, time=pod.placed_time),
        reads.Step(phase=Phase.BOUND.value, revision=pod.bound_revision),
        reads.Step(phase=Phase.ALLOCATED.value, revision=pod.allocated_revision),
    )
    answer = reads.Why(
        revision=state.revision,
        **fields_of(pod.submitted, "namespace name uid group chooser"),
        phase=pod.phase.value,
        gates=tuple(pod.submitted.gates),
        of_kubernetes=state.of_kubernetes,
        history=tuple(step for step in steps if step.revision),
        placed=placed,
        refused=refused,
        waiting=waiting,
        held_back=held_back,
        gang=gang_answer(state, pod.submitted.group, group) if group else None,
        last_failure=pod.last_failure,
        failed_devices=failed,
        idle=idle_of(state, pod),
        evicted=evicted,
        evicted_in_vain=evicted is not None and evicted.beneficiary not in state.pods,
        evicts=tuple(evicts),
        leaving=tuple(f"{each.namespace}/{each.name}" for each in evicts),
        room_on=state.nominated.get(pod.uid, ""),
        reserved=_reserved(state, pod),
        unready=unready(state, pod),
        start=start,
    )
    return why_with_text(answer)


def _reserved(state: State, pod: PodState) -> NodesReserved | None:
    # The reservation that a pending pod has, or that keeps it from nodes.
    reserved, refused = state.reserved, pod.refusal
    if reserved is None or pod.placement is not None:
        return None
    own = any(each.pod == pod.uid for each in reserved.kept)
    kept_out = refused is not None and RefusalCode.NODE_RESERVED in refused.reasons
    return reserved if own or kept_out else None


def with_never(start: reads.StartForecast | None, never: bool) -> reads.StartForecast | None:  # noqa: FBT001 - a fact
    """Return the forecast; without its times if no node could ever run the pod."""
    return start if start is None or not never else without_times(start, "never")


def without_times(start: reads.StartForecast, unknown: reads.StartUnknown) -> reads.StartForecast:
    """Return the forecast without its times, because the start is unknown for this reason."""
    return reads.StartForecast(**fields_of(start, "as_of since judged within"), unknown=unknown)


def _refused(explainer: Explainer, pod: PodState, refusal: PodRefused) -> reads.WhyRefused:
    explained = explainer.explained(pod, refusal)
    unbelieved = explainer.room.unbelieved(pod, refusal)
    refused = refused_answer(explainer, pod, explained, unbelieved)
    if not explained.never:
        queues = explainer.once(("queues", b""), lambda: Queues(explainer.state))
        refused = structs.replace(
            refused,
            spared=spared_words(explainer, pod),
            entitlement=entitlement_of(explainer.state, queues, pod),
        )
    if not explained.never and not explained.of_limits:
        refused = with_taken(explainer, pod, refused)
    return refused


def why_rejected(state: State, rejected: PodRejected) -> reads.Why:
    """Explain why a pod's manifest cannot be read, and how to correct it."""
    answer = reads.Why(
        revision=state.revision,
        **fields_of(rejected, "namespace name uid"),
        phase=REJECTED,
        rejected=rejected,
    )
    return why_with_text(answer)


def why_ended(
    before: reads.Why, step: reads.Step, reason: str, failed: tuple[reads.FailedDevice, ...]
) -> reads.Why:
    """Return the explanation of an ended pod, made from its explanation just before its end."""
    end = reads.PodEnd(
        revision=step.revision,
        time=step.time,
        reason=reason,
        before_revision=before.revision,
        phase=before.phase,
        failed_before=before.failed_devices,
    )
    history, refused = (*before.history, step), before.refused
    if refused is not None and refused.never and refused.reason_parts[0] == words.IT_NEVER:
        parts = (words.IT_NEVER_COULD, *refused.reason_parts[1:])
        refused = structs.replace(refused, reason_parts=parts)
    return why_with_text(
        structs.replace(
            before, phase=ENDED, history=history, failed_devices=failed, end=end, refused=refused
        )
    )


def _waiting(state: State, pod: PodState) -> reads.WhyWaiting | None:
    if pod.submitted.gates:
        return None
    mine = place_of(state, pod)
    ahead = pending = 0
    for other in state.pods.values():
        if other.phase is Phase.PENDING and not other.submitted.gates:
            pending += 1
            ahead += place_of(state, other)[:2] < mine[:2]
    return reads.WhyWaiting(position=ahead + 1, pending=pending, gang=gang_words(state, pod))


def event_words(state: State, pod: PodState, refused: PodRefused) -> str:
    """Return the text of a refusal from the nodes that its event names.

    Nodes that could not run the pod even when empty are left out, unless no node could."""
    explainer, shape = Explainer(state), pod.submitted.shape
    if explainer.wishes(pod) is None:
        return words.whose(refused, None) + words.event_causes(refused).sentence
    possible = explainer.room.possible(pod, refused)
    if possible or not refused.nearest:
        said = words.event_causes(structs.replace(refused, nearest=possible), shape).sentence
        near = (state.nodes[miss.node] for miss in possible)
        spared = spared_words(explainer, pod, nodes=near)
        return f"{said}. {spared}" if spared else said
    return words.event_causes(refused, shape, even_when_empty=True).sentence


def _placed(state: State, pod: PodState, placement: Placement) -> reads.WhyPlaced:
    rationale, by_id = rationale_of(placement), state.nodes[placement.node].by_id
    placed, deadline_s, ends_by = micros_of(pod.placed_time), pod.submitted.deadline_s, ""
    starts = placement.rationale and not is_held(state, pod)  # otherwise not at its placement
    if placed is not None and deadline_s and starts:
        ends_by = text_of(placed + deadline_s * SECOND)
    held = (
        reads.HeldShare(share=share, index=by_id[share.device].device.index,
                  model=by_id[share.device].device.model, family=by_id[share.device].device.family)
        if share.device in by_id else reads.HeldShare(share=share)
        for share in placement.shares
    )  # fmt: skip
    return reads.WhyPlaced(
        **fields_of(placement, "node attempt"),
        **fields_of(rationale, "score fitting nodes"),
        revision=pod.placed_revision,
        time=pod.placed_time,
        runners_up=tuple(
            reads.RunnerUp(
                **fields_of(other, "node total parts"),
                behind={
                    part: round(value - other.parts.get(part, 0.0), 6)
                    for part, value in rationale.score.parts.items()
                },
            )
            for other in rationale.runners_up
        ),
        shares=tuple(held),
        choice=choice_words(state, pod, placement, rationale.score),
        found_there=not placement.rationale,
        held=is_held(state, pod),
        ends_by=ends_by,
    )


def choice_words(state: State, pod: PodState, placement: Placement, score: Score) -> str:
    """Return how the policy chose the devices, as in `within n1, bestfit prefers …`, or ""."""
    submitted = pod.submitted
    elsewhere = submitted.chooser or not placement.rationale or not placement.shares
    if elsewhere or submitted.shape.device_weights is not None:
        return ""
    if state.policy_revision > pod.placed_revision:
        return ""
    policy = submitted.shape.device_policy or state.policy.device_policy
    names = [each for each in POLICIES if each == policy]
    if names and POLICIES[names[0]].with_node:
        names = [each for each, text in POLICIES.items() if text.with_node and each in score.parts]
    if not names:
        return ""
    which = POLICIES[names[0]].of_devices
    return f"within {placement.node}, {names[0]} prefers the device {which}"
