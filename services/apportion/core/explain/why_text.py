"""The sentence of a `Why`, made from its fields as the last step.

Invariant: it reads the answer alone, so a tenant's sentence is made from the answer after redaction
and cannot name what the fields do not.
"""

from typing import Final

from msgspec import structs

from apportion.core.explain import words
from apportion.core.explain.answers import RunnerUp, Why, WhyPlaced
from apportion.core.explain.health import consequences, failed_words, moment
from apportion.core.explain.lines import listed, rejection_words, room_made
from apportion.core.explain.since import since_words
from apportion.core.explain.unlooked import chooser_words, gates_words
from apportion_schemas import Score

_NOW: Final = ("is", "waits")
_THEN: Final = ("was", "waited")


def with_text(why: Why) -> Why:
    """The answer with its sentence and its cause, made from the other fields."""
    cause = cause_text(why)
    return structs.replace(why, sentence=_sentence(why, cause), cause=cause)


def cause_text(why: Why) -> str:
    """What a refused pod waits for, without its name and since when; empty for any other pod."""
    refused = why.refused
    if refused is None:
        return ""
    said = ("it " if refused.never else "") + refused.text + _while_it_waits(why)
    said += _unbelieved(refused.unbelieved)
    said += f". {refused.spared}" if refused.spared else ""
    return said + since_words(refused.since)


def _sentence(why: Why, cause: str) -> str:
    end = why.end
    if end is None:
        return _at_its_revision(why, cause, _NOW)
    full_name, because = f"{why.namespace}/{why.name}", f": {end.reason}" if end.reason else ""
    before = structs.replace(why, phase=end.phase, failed_devices=end.failed_before)
    said = f"{full_name} ended at revision {end.revision}, {moment(end.time)}{because}. "
    said += f"At revision {end.before_revision} {_at_its_revision(before, cause, _THEN)}"
    late = tuple(each for each in why.failed_devices if each.revision > end.revision)
    return said + (f". Since then: {failed_words(late)}" if late else "")


def _at_its_revision(why: Why, cause: str, tense: tuple[str, str]) -> str:
    is_, waits = tense
    if why.rejected is not None:
        full_name = f"{why.namespace}/{why.name}"
        return f"{full_name} {is_} rejected: {rejection_words(why.rejected)}"
    name = f"{why.namespace}/{why.name}"
    name += f" of the gang {why.group}" if why.group else ""
    if why.placed is not None:
        return f"{name} {is_} {why.phase} on {_place(why, why.placed)}"
    if why.refused is not None:
        # Its submission, whenever it was decided last: no event says when it lost a place.
        lost = "again since it lost its place"
        since = lost if why.last_failure else f"since revision {why.history[0].revision}"
        return f"{name} {is_} waiting {since}: {cause}"
    if why.gates:
        said = f"{name} {waits} {gates_words(why.gates)}"
    elif why.chooser:
        said = f"{name} {waits} {chooser_words(why.chooser)}"
    elif why.waiting is not None:
        said = (
            f"{name} {waits} for a decision: number {why.waiting.position:,} of "
            f"{why.waiting.pending:,} waiting pods, by priority and then by revision"
        )
        said += f"; {why.waiting.gang}" if why.waiting.gang else ""
    else:
        said = f"{name} {is_} {why.phase}"
    return said + _while_it_waits(why)


def _place(why: Why, placed: WhyPlaced) -> str:
    where = f"{placed.node}, which {why.chooser} chose" if why.chooser else placed_words(placed)
    failed = why.failed_devices
    if failed:
        said = f"{placed.node}, but {failed_words(failed)}"
        said += f"{consequences(why.unready, why.phase, failed)}. It was placed on {where}"
    else:
        said = where + consequences(why.unready, why.phase, ())
    if why.evicted is None:
        return said
    going = words.eviction(why.evicted, in_vain=why.evicted_in_vain)
    return f"{said}. It is to go: {going}{_who_ends(why, 1)}"


def _while_it_waits(why: Why) -> str:
    """The pods that leave for it, and the placements that failed, as sentences behind another."""
    said = ""
    if why.leaving:
        room = room_made(why.room_on or "another node", list(why.leaving))
        said += f". Room {room}{_who_ends(why, len(why.leaving))}"
    held = why.held_back
    if held is not None:
        times = words.many(held.failures, "placement")
        said += f". Agents refused {times} in a row, the last one on {held.node}"
        said += f"; it is not placed again before {held.until}"
    if why.last_failure:
        said += f". Its last placement came to nothing: {why.last_failure}"
    return said


def _who_ends(why: Why, pods: int) -> str:
    """Who ends so many evicted pods where no API server does."""
    if why.of_kubernetes:
        return ""
    whom, they = ("it", "it waits") if pods == 1 else ("them", "they wait")
    return f". Without Kubernetes a watcher ends {whom}, and {they} for another place"


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


def placed_words(placed: WhyPlaced) -> str:
    """Where, and what decided it, as in `node-3 (score 91.0), ahead of node-7 (88.0) by …`."""
    if placed.found_there:
        return f"{placed.node}, where it ran before this ledger held it"
    score, nodes = placed.score, placed.nodes
    said = f"{placed.node} (score {score.total:.1f})"
    if not placed.runners_up:
        return f"{said}, the only node of {nodes:,} that fits" if nodes else said
    second = placed.runners_up[0]
    said += f", ahead of {second.node} ({second.total:.1f})"
    part = _deciding(score, second)
    of, against = (f"{parts.get(part, 0.0):.1f}" for parts in (score.parts, second.parts))
    if of != against:
        said += f" by {part}: {of} against {against}"
    elif part:
        said += f" by {part}, less than 0.1"
    elif second.total == score.total:
        said += " by name, at equal scores"
    return f"{said}; {placed.fitting:,} of {words.nodes(nodes)} fit"


def _deciding(first: Score, second: RunnerUp) -> str:
    """The part of the score by which the first leads most; empty where it leads by none."""
    leads = {
        part: value - second.parts[part]
        for part, value in first.parts.items()
        if part in second.parts
    }
    part = max(leads, key=lambda name: (leads[name], name), default="")
    return part if part and leads[part] > 0 else ""
