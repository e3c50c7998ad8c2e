"""Fill in the sentences of answers, which are made from the answers' other fields.

Invariant: sentences are made after redaction, so they reveal no more than the fields."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import structs

from apportion.core.answers import reads
from apportion.core.answers.past import READY, DiffRow, LogRow, MarkRow, Side
from apportion.core.answers.plans import ManifestChange, PlanAnswer, PlanChange, PlannedPod
from apportion.core.answers.reads import joined
from apportion.core.answers.visibility import OF_OTHERS
from apportion.core.devices.cordons import cordon_words
from apportion.core.devices.worth import DEVICE
from apportion.core.explain.health import consequences, failed_words, moment
from apportion.core.explain.not_queued import chooser_words, gates_words
from apportion.core.explain.text import words
from apportion.core.explain.text.event_text import rejection_words, room_made, shares_words
from apportion.core.explain.text.vocabulary import START_JUDGED_LEAST, START_UNKNOWN
from apportion.core.explain.text.words import device_words, listed
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.ledger.state import DRAINED

HOLDERS_NAMED: Final = 4  # pods that are listed if they use what a limit allows or a node lacks
CHANGES_SAID: Final = 8
_NOW: Final = ("is", "has been")
_THEN: Final = ("was", "had been")


def cause_with_text(row: reads.CauseRow) -> reads.CauseRow:
    """Return the row with the text that says what would unblock the pod."""
    said = row.command + row.cure
    if OF_OTHERS in row.held_by:
        said += "; used by pods of several namespaces"  # and no count
    elif row.held_by:
        more = row.holders - len(row.held_by)
        said += f"; used by {', '.join(row.held_by)}" + (f" and {more:,} more" if more > 0 else "")
    people = [f"{each.device or each.node}: {cordon_words(each.cordons)}" for each in row.cordoned]
    if row.cordoned_more != 0:
        people.append(
            "and more" if row.cordoned_more is None else f"and {row.cordoned_more:,} more"
        )
    named = ", ".join(people)
    said += f" ({named})" if named else ""
    return structs.replace(row, unblocked_by=said, people=named)


def refused_with_text(refused: reads.WhyRefused) -> reads.WhyRefused:
    """Fill in the text of what became unavailable after the refusal, cordons first."""
    cordoned = [_off_words(each) for each in refused.since if each.state == "cordoned"]
    cordoned += [f"{refused.since_more:,} more are cordoned"] if refused.since_more else []
    out = [_off_words(each) for each in refused.since if each.state != "cordoned"]
    return structs.replace(refused, since_text="; ".join((*cordoned, *out)))


def _off_words(off: reads.OffOffer) -> str:
    name = f"{device_words(off.device)} of {off.node}" if off.device else off.node
    if off.state == "cordoned":
        return f"{name} is cordoned: {cordon_words(off.cordons)}"
    return f"{name} is not ready" + (
        ", its agent is not reporting" if off.state == "silent" else ""
    )


def node_with_text(node: reads.NodeAnswer) -> reads.NodeAnswer:
    """Fill in the text of why the node takes no new pods."""
    return structs.replace(
        node, cordon=_node_cordon(node.cordons, unschedulable=node.unschedulable)
    )


def _node_cordon(cordons: Sequence[reads.CordonAnswer], *, unschedulable: bool) -> str:
    return cordon_words(cordons) or (DRAINED if unschedulable else "")


def device_with_text(device: reads.DeviceAnswer) -> reads.DeviceAnswer:
    """Fill in the texts of why the device, and its node, take no new pods."""
    return structs.replace(
        device,
        cordon=cordon_words(device.cordons),
        node_cordon=_node_cordon(device.node_cordons, unschedulable=device.node_unschedulable),
    )


def closed_with_text(device: reads.ClosedDevice) -> reads.ClosedDevice:
    """Fill in why the device takes no new pods, as in `has failed (XID 79)`."""
    causes = [f"has failed ({device.failed.reason})"] if device.failed is not None else []
    causes += [f"is cordoned: {cordon_words(device.cordons)}"] if device.cordons else []
    return structs.replace(device, cause=" and ".join(causes))


def queued_with_text(pod: reads.QueuedPod) -> reads.QueuedPod:
    """Fill in the text of where pods are evicted for the pod, and how many must still end."""
    if not pod.nominated:
        return pod
    if not pod.leaving_names:
        return structs.replace(
            pod, room=f"{pod.nominated} is reserved for it; the evicted pods have left"
        )
    return structs.replace(pod, room=f"{room_made(pod.nominated, list(pod.leaving_names))}")


def eviction_with_text(eviction: reads.Eviction) -> reads.Eviction:
    """Fill in the sentence about an eviction."""
    if eviction.event is None:
        return eviction
    return structs.replace(eviction, sentence=words.eviction(eviction.event))


def plan_with_text(plan: PlanAnswer) -> PlanAnswer:
    """Fill in the plan's sentence: its summary, and the gangs that a drain would move."""
    said = plan.summary
    if plan.moved_whole:
        more = words.many(plan.moved_along, "more pod")
        said += f"; a drain would move all of {listed(list(plan.moved_whole))}, {more}"
    return structs.replace(plan, sentence=said)


def change_with_text(change: PlanChange) -> PlanChange:
    """Fill in the description of the change, as in `without node-3`."""
    of = f"{device_words(change.device)} of {change.node}" if change.device else change.node
    limit = f"quota {change.quota}" if change.quota else f"queue {change.queue}"
    words_of = {
        "lose": f"without {of}",
        "drain": f"{of} drained",
        "add": f"with {change.value} more",
        "policy": f"with policy {change.value}",
        "limit": f"with {limit} from the manifest",
    }
    return structs.replace(change, words=words_of[change.kind])


def differing(changes: Sequence[ManifestChange]) -> list[str]:
    """Return the first fields that differ, as in `path: old → new`."""
    said = [f"{each.path}: {each.was} → {each.wanted}" for each in changes[:CHANGES_SAID]]
    return [*said, *(["and more"] if len(changes) > CHANGES_SAID else [])]


def planned_with_text(pod: PlannedPod) -> PlannedPod:
    """Fill in the pod's cause and its sentence."""
    refused, cause = pod.refused, pod.awaits
    if pod.outcome == "unchanged":
        cause = f"{pod.phase} on {pod.node}"
        if pod.differs:
            wanted = "; ".join(differing(pod.differs))
            cause += f"; it differs from the manifest: {wanted}"
        failed = failed_words(pod.failed_devices)
        cause += f". {failed[:1].upper()}{failed[1:]}" if failed else ""
        cause += consequences(pod.unready, pod.phase, pod.failed_devices)
    elif refused is not None:
        cause = refused.text + (f". {refused.spared}" if refused.spared else "")
    pod = structs.replace(pod, cause=cause)
    text, waits = _planned(pod), ""
    if pod.pending_since:
        whose = "replacing a pod that has been pending" if pod.replaces else "pending"
        waits = f", {whose} since revision {pod.pending_since},"
    sentence = f"{pod.namespace}/{pod.name}{waits} {text}"
    return structs.replace(pod, text=text, sentence=sentence)


def _planned(pod: PlannedPod) -> str:
    if pod.evicted is not None:
        return f"will be evicted from {pod.was}{words.evicted_for(pod.evicted)}"
    if pod.outcome == "unchanged":
        return f"is already {pod.cause}"
    if pod.outcome == "fits":
        would = "would restart on" if pod.was == pod.node else "would move to"
        place = placed_words(pod.placed) if pod.placed is not None else pod.node
        said = f"{would if pod.was else 'fits on'} {place}"
        return said + (
            f", once {listed(list(pod.evicts))} {'has' if len(pod.evicts) == 1 else 'have'} left"
            if pod.evicts
            else ""
        )
    if pod.ends:
        return "would be evicted for another pod"
    if pod.outcome == "never":
        limited = pod.refused is not None and not pod.refused.never
        return f"{'can never be placed' if limited else words.NEVER}: {pod.cause}"
    waits = "would stay pending" if pod.pending_since else "would be pending"
    waits += f" while {listed(list(pod.while_cordoned))} is cordoned" if pod.while_cordoned else ""
    return f"{waits}: {pod.cause}"


def log_with_text(row: LogRow) -> LogRow:
    """Fill in the row's sentence, made from `parts` and `clauses`."""
    return structs.replace(row, sentence=joined(row.parts) + "; ".join(row.clauses))


def mark_with_text(row: MarkRow) -> MarkRow:
    """Fill in the row's sentence, made from `parts`."""
    return structs.replace(row, sentence=joined(row.parts))


def diff_with_text(row: DiffRow) -> DiffRow:
    """Fill in both sides of a difference as text, and the sentence of the event behind it."""
    return structs.replace(
        row,
        before=side_words(row.was),
        after=side_words(row.now),
        sentence=joined(row.parts) + "; ".join(row.clauses),
    )


def side_words(side: Side) -> str:
    """Return one side of a difference as text, as in `n1: GPU-1a2b3c4d 3,000 MiB`."""
    if side.node:
        return f"{side.node}: {shares_words(side.shares, side.families)}"
    if side.cards is not None:
        state = "" if side.state == READY else f", {side.state}"
        return f"joined, {words.many(side.cards, 'device')}{state}"
    if side.state and side.reason:
        return f"{side.state}: {side.reason}"
    return side.state or side.reason or side.value


def why_with_text(why: reads.Why) -> reads.Why:
    """Fill in the explanation's sentence and its cause."""
    cause, end = _cause(why), why.end
    awaits = (
        "" if why.placed or why.refused or why.rejected else _awaits(why) + _while_it_waits(why)
    )
    if end is None:
        said = _at_its_revision(why, cause, _NOW)
    else:
        before = structs.replace(why, phase=end.phase, failed_devices=end.failed_before)
        because = f": {end.reason}" if end.reason else ""
        said = (
            f"{why.namespace}/{why.name} ended at revision {end.revision}, {moment(end.time)}"
            f"{because}. At revision {end.before_revision} "
            f"{_at_its_revision(before, cause, _THEN)}"
        )
        late = tuple(each for each in why.failed_devices if each.revision > end.revision)
        said += f". Since then: {failed_words(late)}" if late else ""
    return structs.replace(why, sentence=said, cause=cause, awaits=awaits)


def start_words(start: reads.StartForecast, now_s: float) -> str:
    """Return when a pending pod should start, and how reliable this is; "" if that is clear."""
    if start.unknown:
        because = START_UNKNOWN.get(start.unknown)
        return f"Start not predictable: {because}" if because else ""
    _, median, latest = start_seconds(start, now_s)
    if latest < 0:
        said = f"The start is overdue: it was expected at least {words.span(-latest)} ago"
    else:
        said = (
            f"Expected to start {f'in {words.span(median)}' if median >= 1 else 'now'}; with a "
            f"probability of {100 * start.probability:.0f} % {start_band(start, now_s)}"
        )
    said += f". Based on {words.many(start.similar, 'similar start')}"
    if start.judged >= START_JUDGED_LEAST:
        held = f"{100 * start.within / start.judged:.0f} %"
        said += f"; {held} of the last {start.judged} forecasts were right"
    return said


def start_band(start: reads.StartForecast, now_s: float) -> str:
    """Return a known start, as in `in 40 s to 2 h`, `in about 2 min`, `within 2 h`, `overdue`."""
    earliest, _, latest = start_seconds(start, now_s)
    if latest < 0:
        return "overdue"
    if earliest < 1:
        return f"within {words.span(latest)}"
    low, high = words.span(earliest), words.span(latest)
    return f"in about {low}" if low == high else f"in {low} to {high}"


def start_seconds(start: reads.StartForecast, now_s: float) -> tuple[float, ...]:
    """Return in how many seconds a known start should be: earliest, median and latest.

    `now_s` is in seconds since 1970; the time of the forecast counts if it is later. Past times
    are negative."""
    as_of, *times = (
        (micros_of(each) or 0) / SECOND
        for each in (start.as_of, start.earliest, start.median, start.latest)
    )
    return tuple(each - max(now_s, as_of) for each in times)


def _awaits(why: reads.Why) -> str:
    if why.gates:
        return gates_words(why.gates)
    if why.chooser:
        return chooser_words(why.chooser)
    if why.waiting is None:
        return ""
    said = (
        f"for a decision: number {why.waiting.position:,} of {why.waiting.pending:,} in the queue, "
        "by priority and then by age"
    )
    return said + (f"; {why.waiting.gang}" if why.waiting.gang else "")


def _cause(why: reads.Why) -> str:
    refused = why.refused
    if refused is None:
        return ""
    said = (words.IT_NEVER if refused.never else "") + refused.text + _while_it_waits(why)
    if refused.unbelieved:
        whose = (
            "the report of that node's agent was"
            if len(refused.unbelieved) == 1
            else "the reports of those nodes' agents were"
        )
        said += (
            f". It might fit on {listed(list(refused.unbelieved))}, but {whose} "
            "rejected; see `apportion get nodes`"
        )
    said += f". {refused.spared}" if refused.spared else ""
    entitlement = refused.entitlement
    said += f". {entitlement_words(entitlement)}" if entitlement and entitlement.parts else ""
    return said + (f". Since then: {refused.since_text}" if refused.since_text else "")


def entitlement_words(entitlement: reads.QueueEntitlement) -> str:
    """Return what the pod's queue uses and is entitled to, and which queues use more than that."""
    parts = entitlement.parts
    used = " and ".join(part_words(part, part.used) for part in parts)
    entitled = " and ".join(map(_entitled_words, parts))
    sentence = f"Its queue {entitlement.queue} uses {used} and is entitled to {entitled}"
    if entitlement.takes_back and entitlement.borrowers:
        beyond = [
            f"{each.queue} ({part_words(parts[0], each.much)})" for each in entitlement.borrowers
        ]
        return f"{sentence}; other queues use more than they are entitled to: {listed(beyond)}"
    return sentence


def _entitled_words(part: reads.QueuePart) -> str:
    said = part_words(part, part.entitled)
    if part.plain in (None, part.entitled):
        return said
    return f"{said} ({part_words(part, part.plain or 0)} if past use did not count)"


def part_words(part: reads.QueuePart, much: int) -> str:
    """Return an amount with its unit, as in `2.5 GPUs` or `16 CPU`."""
    if not part.devices:
        return words.of_resource(part.of, much)
    noun = "GPU" if part.of == "nvidia" else f"{part.of} device"
    return f"{part_number(part, much)} {noun}" + ("" if much == DEVICE else "s")


def part_number(part: reads.QueuePart, much: int) -> str:
    """Return an amount without its unit, as in `2.5`."""
    return f"{much / DEVICE:,g}" if part.devices else words.number_of_resource(part.of, much)


def _at_its_revision(why: reads.Why, cause: str, tense: tuple[str, str]) -> str:
    is_, been = tense
    if why.rejected is not None:
        full_name = f"{why.namespace}/{why.name}"
        return f"{full_name} {is_} rejected: {rejection_words(why.rejected)}"
    name = f"{why.namespace}/{why.name}"
    name += f" (gang {why.group})" if why.group else ""
    if why.placed is not None:
        return f"{name} {is_} {why.phase} on {_place(why, why.placed)}"
    if why.refused is not None:
        # The submission, because no event records when it lost its node.
        lost = "again since it lost its node"
        since = lost if why.last_failure else f"since revision {why.history[0].revision}"
        return f"{name} {been} pending {since}. {cause[:1].upper()}{cause[1:]}"
    awaits = _awaits(why)
    said = f"{name} {is_} pending, waiting {awaits}" if awaits else f"{name} {is_} {why.phase}"
    return said + _while_it_waits(why)


def _place(why: reads.Why, placed: reads.WhyPlaced) -> str:
    where = f"{placed.node}, chosen by {why.chooser}" if why.chooser else placed_words(placed)
    failed = why.failed_devices
    if failed:
        said = f"{placed.node}, but {failed_words(failed)}"
        said += f"{consequences(why.unready, why.phase, failed)}. It was placed on {where}"
    else:
        said = where + consequences(why.unready, why.phase, ())
    if placed.held and why.gang is not None:
        there = why.gang.pods - why.gang.phases.get("pending", 0)
        said += (
            f". It is bound once the rest of its gang is placed: {there:,} of "
            f"{why.gang.min_available:,} pods are placed"
        )
    if why.evicted is None:
        said += f". {words.idle(why.idle)}" if why.idle is not None else ""
        if placed.ends_by and why.end is None:
            said += f". Its deadline is {moment(placed.ends_by)} (`activeDeadlineSeconds`)"
        return said
    going = words.evicted_for(why.evicted, in_vain=why.evicted_in_vain)
    return f"{said}. It is being evicted{going}{_who_ends(why, 1)}"


def _while_it_waits(why: reads.Why) -> str:
    said = ""
    if why.leaving:
        room = room_made(why.room_on or "another node", list(why.leaving))
        said += f". {room[:1].upper()}{room[1:]}{_who_ends(why, len(why.leaving))}"
    if why.reserved is not None:
        reserved = words.reserved(why.reserved)
        said += f". {reserved[:1].upper()}{reserved[1:]}"
    held = why.held_back
    if held is not None:
        times = words.many(held.failures, "placement")
        said += f". Agents rejected {times} in a row, most recently on {held.node}"
        said += f"; next attempt after {held.until}"
    if why.last_failure:
        said += f". Its last placement failed: {why.last_failure}"
    return said


def _who_ends(why: reads.Why, pods: int) -> str:
    if why.of_kubernetes:
        return ""
    whom, they = ("it", "it returns") if pods == 1 else ("them", "they return")
    return f". Without Kubernetes, the watcher stops {whom}, and {they} to the queue"


def placed_words(placed: reads.WhyPlaced) -> str:
    """Return where the pod is and its score, as in `node-3 (score 91.0), ahead of node-7 …`."""
    if placed.found_there:
        return f"{placed.node}, where it already ran before it was adopted"
    score, nodes = placed.score, placed.nodes
    said = f"{placed.node} (score {score.total:.1f})"
    if not placed.runners_up:
        only = f"only one of {words.nodes(nodes)} that fits" if nodes > 1 else "only node"
        return f"{said}, the {only}" if nodes else said
    second = placed.runners_up[0]
    said += f", ahead of {second.node} ({second.total:.1f})"
    leads = {
        part: value - second.parts[part]
        for part, value in score.parts.items()
        if part in second.parts
    }
    part = max(leads, key=lambda name: (leads[name], name), default="")
    part = part if part and leads[part] > 0 else ""
    of, against = (f"{parts.get(part, 0.0):.1f}" for parts in (score.parts, second.parts))
    if of != against:
        said += f" because of {part} ({of} vs. {against})"
    elif part:
        said += f" because of {part} (by less than 0.1)"
    elif second.total == score.total:
        said += " by name, as scores are equal"
    return f"{said}; {placed.fitting:,} of {words.nodes(nodes)} fit"


# Functions that make an answer's sentences again from the fields that are left
WITH_TEXT: Final[Mapping[type, Callable[[Any], Any]]] = {
    reads.CauseRow: cause_with_text,
    reads.ClosedDevice: closed_with_text,
    reads.DeviceAnswer: device_with_text,
    DiffRow: diff_with_text,
    reads.Eviction: eviction_with_text,
    LogRow: log_with_text,
    MarkRow: mark_with_text,
    reads.NodeAnswer: node_with_text,
    PlanAnswer: plan_with_text,
    PlanChange: change_with_text,
    PlannedPod: planned_with_text,
    reads.QueuedPod: queued_with_text,
    reads.Why: why_with_text,
    reads.WhyRefused: refused_with_text,
}
