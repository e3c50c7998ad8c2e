"""Why a pod is where it is, or why it is nowhere yet: one sentence, then the evidence.

Everything comes from the events that the scheduler wrote when it decided, and from the state as of
the revision: which nodes could hold the pod if nothing ran there (`room`). Nothing is guessed
afterwards, so the answer next week is the answer of today.
"""

import re
from typing import Final, NamedTuple

from msgspec import structs

from apportion.core.explain import words
from apportion.core.explain.answers import (
    FailedDevice,
    HeldShare,
    RunnerUp,
    Step,
    Why,
    WhyHeldBack,
    WhyPlaced,
    WhyRefused,
    WhyWaiting,
)
from apportion.core.explain.causes import refusal_words, refused_answer, whose
from apportion.core.explain.choice import choice_words
from apportion.core.explain.explained import Explained, Explainer
from apportion.core.explain.gang_places import of_one_sort
from apportion.core.explain.health import (
    consequences,
    failed_devices,
    failed_words,
    moment,
    unready,
)
from apportion.core.explain.lines import listed, rejection_words, room_made
from apportion.core.explain.room import Room
from apportion.core.explain.since import since_words, taken_since
from apportion.core.explain.spared import spared_words
from apportion.core.explain.unlooked import chooser_words, gang_words, gates_words
from apportion.core.explain.views import REJECTED, gang_answer
from apportion.core.ledger.evictions import awaited
from apportion.core.ledger.moments import text_of
from apportion.core.ledger.rationale import rationale_of
from apportion.core.ledger.state import Phase, Placement, PodState, State
from apportion_schemas import (
    PodRefused,
    PodRejected,
    Score,
)

ENDED = "ended"
"""The phase of a pod that is gone."""
_PAST: Final = {"is": " was ", "waits": " waited "}


def why(
    state: State,
    pod: PodState,
    *,
    failed: tuple[FailedDevice, ...] | None = None,
    explainer: Explainer | None = None,
) -> Why:
    """The whole explanation of one live pod, as of the state's revision.

    `failed` are the devices that it holds and that have failed, for whoever knows since when;
    `explainer` is that of this state, for whoever asks for many pods.
    """
    failed = failed_devices(state, pod) if failed is None else failed
    placed = _placed(state, pod, pod.placement) if pod.placement else None
    found = None
    if pod.refusal and not placed:
        found = _refusal(state, pod, pod.refusal, explainer or Explainer(state))
    refused = found.answer if found else None
    waiting = None if placed or refused else _waiting(state, pod)
    group = state.groups.get(pod.submitted.group) if pod.submitted.group else None
    return Why(
        revision=state.revision,
        namespace=pod.submitted.namespace,
        name=pod.submitted.name,
        uid=pod.uid,
        phase=pod.phase.value,
        sentence=_sentence(state, pod, waiting or (found and found.explained), failed)
        + (found.more if found else ""),
        history=_history(pod),
        placed=placed,
        refused=refused,
        waiting=waiting,
        held_back=_held_back(pod),
        gang=gang_answer(state, pod.submitted.group, group) if group else None,
        last_failure=pod.last_failure,
        failed_devices=failed,
        evicted=state.evictions.get(pod.uid),
        evicted_in_vain=_in_vain(state, pod),
        evicts=tuple(awaited(state, pod.uid)),
        unready=unready(state, pod),
    )


class _Refusal(NamedTuple):
    """Why a pod waits: its refusal, the answer on it, and what is said behind the sentence."""

    explained: Explained
    answer: WhyRefused
    more: str


def _refusal(state: State, pod: PodState, refused: PodRefused, explainer: Explainer) -> _Refusal:
    room, explained = explainer.room, explainer.explained(pod, refused)
    unbelieved = explainer.unbelieved(pod, refused)
    answer = refused_answer(state, pod, explained, room, unbelieved)
    more = _unbelieved(unbelieved)
    if explained.never:
        return _Refusal(explained, answer, more)
    spared = spared_words(state, pod, room)
    since = () if explained.of_limits else taken_since(state, pod, explained.refused.nearest, room)
    more += (f". {spared}" if spared else "") + since_words(since)
    return _Refusal(explained, structs.replace(answer, since=since, spared=spared), more)


def why_rejected(state: State, rejected: PodRejected) -> Why:
    """Why nobody looks for a place for a pod: it cannot be read, and this is how to mend it."""
    name = f"{rejected.namespace}/{rejected.name}"
    return Why(
        revision=state.revision,
        namespace=rejected.namespace,
        name=rejected.name,
        uid=rejected.uid,
        phase=REJECTED,
        sentence=f"{name} is rejected: {rejection_words(rejected)}",
        rejected=rejected,
    )


def why_ended(before: Why, step: Step, reason: str, failed: tuple[FailedDevice, ...]) -> Why:
    """Why a pod was where it was: `before` is as of just before the event of its end, `step`.

    `failed` are devices that it held and that have failed since it got them.
    """
    because = f": {reason}" if reason else ""
    said = f"{before.namespace}/{before.name} ended at revision {step.revision}, "
    said += f"{moment(step.time)}{because}. At revision {before.revision} "
    said += _past(before.sentence)
    late = tuple(each for each in failed if each.revision > step.revision)
    said += f". Since then: {failed_words(late)}" if late else ""
    return structs.replace(
        before,
        phase=ENDED,
        sentence=said,
        history=(*before.history, step),
        failed_devices=failed,
    )


def _sentence(
    state: State,
    pod: PodState,
    stands: WhyWaiting | Explained | None,
    failed: tuple[FailedDevice, ...],
) -> str:
    name = _name(pod)
    chooser = pod.submitted.chooser
    if pod.placement is not None:
        where = f"{pod.placement.node}, which {chooser} chose" if chooser else ""
        where = where or placed_words(pod.placement)
        said = f"{name} is {pod.phase.value} on "
        if failed:
            said += f"{pod.placement.node}, but {failed_words(failed)}"
            said += f"{consequences(state, pod, failed)}. It was placed on {where}"
        else:
            said += where + consequences(state, pod, ())
        evicted = state.evictions.get(pod.uid)
        if evicted is None:
            return said
        going = words.eviction(evicted, in_vain=_in_vain(state, pod))
        return f"{said}. It is to go: {going}{_who_ends(state, 1)}"
    if isinstance(stands, Explained):
        said = f"{name} is waiting {_since(pod)}: "
        said += ("it " if stands.never else "") + refusal_words(stands)
    elif pod.submitted.gates:
        said = f"{name} waits {gates_words(pod.submitted.gates)}"
    elif chooser:
        said = f"{name} waits {chooser_words(chooser)}"
    elif stands is not None:
        said = (
            f"{name} waits for a decision: number {stands.position:,} of "
            f"{stands.pending:,} waiting pods, by priority and then by revision"
        )
        gang = gang_words(state, pod)
        said += f"; {gang}" if gang else ""
    else:
        said = f"{name} is {pod.phase.value}"
    leaving = [f"{each.namespace}/{each.name}" for each in awaited(state, pod.uid)]
    if leaving:
        node = state.nominated.get(pod.uid, "another node")
        said += f". Room {room_made(node, leaving)}" + _who_ends(state, len(leaving))
    held = _held_back(pod)
    if held is not None:
        times = words.many(held.failures, "placement")
        said += f". Agents refused {times} in a row, the last one on {held.node}"
        said += f"; it is not placed again before {held.until}"
    if pod.last_failure:
        said += f". Its last placement came to nothing: {pod.last_failure}"
    return said


def _held_back(pod: PodState) -> WhyHeldBack | None:
    """That agents refused its placements; None while it has a placement or none was refused."""
    if pod.placement is not None or pod.backoff is None:
        return None
    return WhyHeldBack(
        failures=pod.backoff.failures, node=pod.backoff.node, until=text_of(pod.backoff.until)
    )


def _since(pod: PodState) -> str:
    """Since its submission, whenever it was decided last; nobody keeps when it lost a place."""
    lost = "again since it lost its place"
    return lost if pod.last_failure else f"since revision {pod.submitted_revision}"


def _past(sentence: str) -> str:
    """What was said of a pod as it was: its verb is the first after its name, which has no blanks
    but before its gang's.
    """
    return re.sub(r" (is|waits) ", lambda verb: _PAST[verb[1]], sentence, count=1)


def _name(pod: PodState) -> str:
    group = pod.submitted.group
    return f"{pod.full_name} of the gang {group}" if group else pod.full_name


def _in_vain(state: State, pod: PodState) -> bool:
    """Whether the pod is to go for one that is not there any more."""
    evicted = state.evictions.get(pod.uid)
    return evicted is not None and evicted.beneficiary not in state.pods


def _unbelieved(nodes: tuple[str, ...]) -> str:
    """That more may fit there than is known; empty where all agents are believed."""
    if not nodes:
        return ""
    whose = (
        "the agent of that node says of its devices"
        if len(nodes) == 1
        else "the agents of those nodes say of their devices"
    )
    return (
        f". It might fit on {listed(list(nodes))}, but what {whose} is refused: "
        "`apportion get nodes` shows why"
    )


def _who_ends(state: State, pods: int) -> str:
    """Who ends so many evicted pods where no API server does."""
    if state.of_kubernetes:
        return ""
    whom, they = ("it", "it waits") if pods == 1 else ("them", "they wait")
    return f". Without Kubernetes a watcher ends {whom}, and {they} for another place"


def placed_words(placement: Placement) -> str:
    """Where, and what decided it, as in `node-3 (score 91.0), ahead of node-7 (88.0) by …`."""
    if not placement.rationale:
        return f"{placement.node}, where it ran before this ledger held it"
    rationale = rationale_of(placement)
    score, nodes = rationale.score, rationale.nodes
    said = f"{placement.node} (score {score.total:.1f})"
    if not rationale.runners_up:
        return f"{said}, the only node of {nodes:,} that fits" if nodes else said
    second = rationale.runners_up[0]
    said += f", ahead of {second.node} ({second.total:.1f})"
    part = _deciding(score, second)
    of, against = (f"{each.parts.get(part, 0.0):.1f}" for each in (score, second))
    if of != against:
        said += f" by {part}: {of} against {against}"
    elif part:
        said += f" by {part}, less than 0.1"
    elif second.total == score.total:
        said += " by name, at equal scores"
    return f"{said}; {rationale.fitting:,} of {words.nodes(nodes)} fit"


def _deciding(first: Score, second: Score) -> str:
    """The part of the score by which the first leads most; empty where it leads by none."""
    leads = {
        part: value - second.parts[part]
        for part, value in first.parts.items()
        if part in second.parts
    }
    part = max(leads, key=lambda name: (leads[name], name), default="")
    return part if part and leads[part] > 0 else ""


def _history(pod: PodState) -> tuple[Step, ...]:
    steps = (
        Step(phase="submitted", revision=pod.submitted_revision, time=pod.submitted_time),
        Step(phase="refused", revision=pod.refused_revision),
        Step(phase=Phase.PLACED.value, revision=pod.placed_revision, time=pod.placed_time),
        Step(phase=Phase.BOUND.value, revision=pod.bound_revision),
        Step(phase=Phase.ALLOCATED.value, revision=pod.allocated_revision),
    )
    return tuple(step for step in steps if step.revision)


def _waiting(state: State, pod: PodState) -> WhyWaiting | None:
    """Its turn; None for a pod with gates, which stands in no line."""
    if pod.submitted.gates:
        return None
    mine = (-pod.submitted.priority, pod.submitted_revision)
    ahead = pending = 0
    for other in state.pods.values():
        if other.phase is Phase.PENDING and not other.submitted.gates:
            pending += 1
            ahead += (-other.submitted.priority, other.submitted_revision) < mine
    return WhyWaiting(position=ahead + 1, pending=pending)


def event_words(state: State, pod: PodState, refused: PodRefused) -> str:
    """A refusal for whoever hears of it as it happens, from the nodes that its event names alone.

    A near node that could not hold the pod if nothing ran there gives way to one that could; of
    none such it is said. That no node of the fleet ever could is for `why`, which looks at all.
    It ends with the pods of lower priority there that were not evicted, and the rule.
    """
    room, shape = Room(state), pod.submitted.shape
    if not of_one_sort(room, state, pod):
        return whose(refused, None) + words.event(refused)
    possible = room.possible(pod, refused)
    if possible or not refused.nearest:
        said = words.event(structs.replace(refused, nearest=possible), shape)
        near = (state.nodes[miss.node] for miss in possible)
        spared = spared_words(state, pod, room, nodes=near)
        return f"{said}. {spared}" if spared else said
    return words.event(refused, shape, even_when_empty=True)


def _placed(state: State, pod: PodState, placement: Placement) -> WhyPlaced:
    rationale, by_id = rationale_of(placement), state.nodes[placement.node].by_id
    held = (
        HeldShare(share=share, index=by_id[share.device].device.index,
                  model=by_id[share.device].device.model)
        if share.device in by_id else HeldShare(share=share)
        for share in placement.shares
    )  # fmt: skip
    return WhyPlaced(
        node=placement.node,
        revision=pod.placed_revision,
        time=pod.placed_time,
        attempt=placement.attempt,
        score=rationale.score,
        runners_up=tuple(_runner_up(rationale.score, other) for other in rationale.runners_up),
        fitting=rationale.fitting,
        nodes=rationale.nodes,
        shares=tuple(held),
        choice=choice_words(state, pod, placement, rationale.score),
    )


def _runner_up(first: Score, other: Score) -> RunnerUp:
    behind = {
        part: round(value - other.parts.get(part, 0.0), 6) for part, value in first.parts.items()
    }
    return RunnerUp(node=other.node, total=other.total, parts=other.parts, behind=behind)
