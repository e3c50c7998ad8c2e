"""Report what refused pods wait for now, as `why` does.

A refusal event is not enough. It may name nodes that can never fit, and pods may be evicted after
it. Invariant: no pod is called refused while pods are evicted for it."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from msgspec import structs

from apportion.cli.client.gateway_client import Gateway
from apportion.cli.exits import NotFound, Unreachable
from apportion.cli.pods.append import Submitted
from apportion.cli.pods.decisions import Awaited
from apportion.cli.render.output import say
from apportion.core.answers.reads import GangAnswer, PodAnswer, Why
from apportion.core.explain.not_queued import gates_words
from apportion.core.explain.text import words
from apportion.core.explain.text.event_text import room_made
from apportion.core.explain.text.words import listed
from apportion.core.placement.feasibility.causes import frequent, without_gone
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion_schemas import Shape

ASKED_MAX: Final = 40  # pods that are asked about one by one; of more, as of a trace, none are
GRACE_S: Final = 3.0  # time for a scheduler to evict for a refused pod, and to place it after that


def whys(gateway: Gateway, awaited: Awaited) -> dict[str, Why]:
    """Return the gateway's `why` answer for each refused pod, by uid. Ended pods are left out.

    Empty if more than `ASKED_MAX` pods are refused."""
    found: dict[str, Why] = {}
    if len(awaited.refused) > ASKED_MAX:
        return found
    query = {"at_least": awaited.revision}
    for uid in awaited.refused:
        pod = awaited.pods[uid]
        try:
            why = gateway.ask("pods", pod.namespace, pod.name, "why", answer=Why, query=query)
        except (NotFound, Unreachable):
            continue
        if why.uid == uid:
            found[uid] = why
    return found


def unlooked(
    gateway: Gateway, drafts: Iterable[PodDraft], pods: Iterable[Submitted], *, at_least: int
) -> dict[str, str]:
    """Return, for each pod that no scheduler considers, the reason. Raises the gateway's errors."""
    by_name = {f"{draft.namespace}/{draft.name}": draft for draft in drafts}
    undeclared = set[str]()
    if any(draft.group for draft in by_name.values()):
        _, gangs = gateway.items("gangs", GangAnswer, {"at_least": at_least})
        undeclared = {gang.group for gang in gangs if not gang.declared}
    found: dict[str, str] = {}
    for pod in pods:
        draft = by_name[pod.full_name]
        if draft.gates:
            found[pod.uid] = gates_words(draft.gates)
        elif draft.group in undeclared:
            found[pod.uid] = words.undeclared(draft.group)
    return found


def never_fitting(gateway: Gateway, awaited: Awaited) -> set[str]:
    """Return the uids of refused pods that can never fit; empty if the gateway does not answer."""
    if not awaited.refused:
        return set()
    try:
        _, pods = gateway.items("pods", PodAnswer, {"at_least": awaited.revision})
    except (NotFound, Unreachable):
        return set()
    return never_of(pods).intersection(awaited.refused)


def never_of(pods: Iterable[PodAnswer]) -> set[str]:
    """Return the uids of pods that can never fit."""
    return {pod.uid for pod in pods if pod.never}


def waits_for(awaited: Awaited, uid: str, why: Why | None, shape: Shape | None = None) -> str:
    """Return a text that says what the refused pod waits for."""
    if why is not None and why.refused is not None:
        return why.cause
    refused = awaited.decided[uid].refused
    assert refused is not None  # noqa: S101 - the caller has seen it
    return words.refusal(structs.replace(refused, nearest=()), shape)


def alike(said: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Group pods with equal texts. Yield each group's names, as `NAME and 3 more`, and its text."""
    by_text: dict[str, list[str]] = {}
    for name, text in said.items():
        by_text.setdefault(text, []).append(name)
    for text, names in by_text.items():
        more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        yield f"{names[0]}{more}", text


def causes(
    awaited: Awaited, pods: Iterable[str], shapes: Mapping[str, Shape], never: Collection[str] = ()
) -> dict[str, int]:
    """Count the refused pods by cause, the most frequent first. The keys are short texts.

    `shapes` are by uid; `never` has the uids of pods that can never fit."""
    found = Counter[str]()
    for uid in pods:
        said = awaited.decided.get(uid)
        if said is None:
            found[awaited.unlooked[uid]] += 1
        elif said.refused is not None:
            refused, is_never = said.refused, uid in never
            if limits := words.of_refusal(refused):
                first = limits[0]
            elif refused.gang is not None:
                first = words.gang(refused.gang)
            else:
                codes = [code for code, _ in frequent(without_gone(refused))]
                shape = shapes.get(uid)
                first = (
                    words.named(codes[0], shape, never=is_never) if codes else words.cause(refused)
                )
                first = f"{words.NEVER_LISTED}: {first}" if is_never else first
            found[first] += 1
    return dict(found.most_common())


async def wait_for_room(
    ledger: JetStreamLedger,
    gateway: Gateway,
    awaited: Awaited,
    priorities: Mapping[str, int],
    wait_s: float,
) -> dict[str, Why]:
    """Wait up to `wait_s` for evictions that make room. Return the `why` of pods still refused.

    `priorities` has pods' priorities by `namespace/name`. Raises the errors of `Awaited.wait`."""
    end = time.monotonic() + wait_s
    if not 0 < len(awaited.refused) <= ASKED_MAX:
        return {}
    try:
        _, pods = await asyncio.to_thread(gateway.items, "pods", PodAnswer)
    except Unreachable:
        return {}
    # Pods that may preempt pods of lower priority, and pods nominated to a node already.
    least = min((pod.priority for pod in pods if pod.node), default=math.inf)
    kept = {pod.uid for pod in pods if pod.room_on}
    may = {
        uid for uid in awaited.refused
        if uid in kept or priorities.get(awaited.pods[uid].full_name, -math.inf) > least
    }  # fmt: skip
    hopes = dict.fromkeys(may, time.monotonic() + GRACE_S)
    reported: dict[str, str] = {}
    waiting = set(awaited.refused)
    while True:
        now = await asyncio.to_thread(whys, gateway, awaited)
        at = time.monotonic()
        leaving = {uid for uid, why in now.items() if why.evicts}
        hopes |= dict.fromkeys(leaving, at + GRACE_S)
        if waiting > set(awaited.refused):  # a node makes room for one pod after the other
            waiting = set(awaited.refused)
            hopes |= dict.fromkeys(waiting & may, at + GRACE_S)
        hopeful = {uid for uid in awaited.refused if hopes.get(uid, 0.0) > at}
        if not hopeful or at >= end:
            return now
        for uid, why in now.items():
            names = [f"{each.namespace}/{each.name}" for each in why.evicts]
            node = why.room_on or (why.evicts[0].nominated if names else "")
            said = f"pending: {room_made(node, names)}" if names else ""
            if said and reported.get(uid) != said:
                reported[uid] = said
                say(f"{awaited.pods[uid].full_name} {said}", err=True)
        until = min((hopes[uid] for uid in hopeful - leaving), default=end)
        await awaited.wait_on(ledger, min(until, end) - at)


def evicted_for(gone: list[str]) -> str:
    """Return a text that names the pods evicted for a pod, or "" if there are none."""
    return f"; evicted for it: {listed(gone)}" if gone else ""
