"""Waiting on for pods that are refused and for which others go.

A pod that takes the place of others is refused at first; then these are to go, and when they have
gone it is placed. Invariant: nobody is called refused while room is made for it, as long as there
is time; and what is waited for is said once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Final

from apportion.cli.client.gateway_client import Gateway
from apportion.cli.exits import Unreachable
from apportion.cli.pods.decisions import Awaited
from apportion.cli.pods.pending import ASKED_MAX, whys
from apportion.cli.render.output import console, plain
from apportion.core.answers.reads import PodAnswer, Why
from apportion.core.explain.text.event_text import listed, room_made
from apportion.runtime.jetstream.client import JetStreamLedger

GRACE_S: Final = 3.0
"""So long a scheduler may take to say who goes for a pod that it refused, and to place the pod when
these have gone."""


async def wait_for_room(
    ledger: JetStreamLedger,
    gateway: Gateway,
    awaited: Awaited,
    priorities: Mapping[str, int],
    wait_s: float,
) -> dict[str, Why]:
    """How those stand that are refused, once nobody goes for them or `wait_s` is over; see `whys`.

    `priorities` has those for which others may go, by `namespace/name`. Raises as `Awaited.wait`.
    """
    end = time.monotonic() + wait_s
    if not 0 < len(awaited.refused) <= ASKED_MAX:
        return {}
    try:
        may = await asyncio.to_thread(_may_preempt, gateway, awaited, priorities)
    except Unreachable:
        return {}
    hopes = dict.fromkeys(may, time.monotonic() + GRACE_S)
    reported: dict[str, str] = {}
    waiting = set(awaited.refused)
    while True:
        now = await asyncio.to_thread(whys, gateway, awaited)
        at = time.monotonic()
        leaving = {uid for uid, why in now.items() if why.evicts}
        hopes |= dict.fromkeys(leaving, at + GRACE_S)
        if waiting > set(awaited.refused):  # room on a node is made for one after the other
            waiting = set(awaited.refused)
            hopes |= dict.fromkeys(waiting & may, at + GRACE_S)
        hopeful = {uid for uid in awaited.refused if hopes.get(uid, 0.0) > at}
        if not hopeful or at >= end:
            return now
        _tell(awaited, now, reported)
        until = min((hopes[uid] for uid in hopeful - leaving), default=end)
        await awaited.wait_on(ledger, min(until, end) - at)


def evicted_for(gone: list[str]) -> str:
    """What is said after the place of a pod for which these had to go; empty where nobody had."""
    return f"; evicted for it: {listed(gone)}" if gone else ""


def _may_preempt(gateway: Gateway, awaited: Awaited, priorities: Mapping[str, int]) -> set[str]:
    """The refused pods for which others may have to go: such as hold places, of less priority; and
    those for which room is kept, for others have left already.
    """
    _, pods = gateway.items("pods", PodAnswer)
    least = min((pod.priority for pod in pods if pod.node), default=math.inf)
    kept = {pod.uid for pod in pods if pod.room_on}
    return {
        uid for uid in awaited.refused
        if uid in kept or priorities.get(awaited.pods[uid].full_name, -math.inf) > least
    }  # fmt: skip


def _tell(awaited: Awaited, now: Mapping[str, Why], reported: dict[str, str]) -> None:
    for uid, why in now.items():
        if not why.evicts:
            continue
        names = [f"{each.namespace}/{each.name}" for each in why.evicts]
        said = f"waits: room {room_made(why.evicts[0].nominated, names)}"
        if reported.get(uid) != said:
            reported[uid] = said
            text = f"{awaited.pods[uid].full_name} {said}"
            console(stderr=True).print(plain(text), soft_wrap=True)
