"""Lets gangs in: Volcano's controllers make a job's pods only once its PodGroup is `Inqueue`.

That is its scheduler's part, and so ours where we take its place. A gang waits in the ledger like
any pod, so every gang of an open queue is let in. Invariant: only a PodGroup that waits is changed,
and only its phase.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.core.manifests.gangs import api_of
from apportion.runtime.kube.client import KubeApi, KubeRefused, KubeUnavailable
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import Clock
from apportion_schemas import PodGroupObserved, QueueObserved

PAUSE_S = 1.0
JSON_MERGE_PATCH = "application/merge-patch+json"
WAITS = ("", "Pending")
_LET_IN = msgspec.json.encode({"status": {"phase": "Inqueue"}})

_log = logging.getLogger(__name__)


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class _PodGroup(msgspec.Struct, frozen=True):
    status: _Status = _Status()


_decode = msgspec.json.Decoder(_PodGroup).decode


class Gangs:
    """Gangs that may have to be let in, and the loop that does."""

    def __init__(self, api: KubeApi, state: State, clock: Clock) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        self._waiting: dict[str, None] = {}
        self._news = asyncio.Event()

    def observe(self, change: Change) -> None:
        """Take note of what the fold changed; give this to the reader."""
        data = change.data
        if change.refused:
            return
        if isinstance(data, PodGroupObserved):
            self._note(data.group)
        elif isinstance(data, QueueObserved) and data.open:
            for name, group in self._state.groups.items():
                if group.observed is not None and group.observed.queue == data.queue:
                    self._note(name)

    def _note(self, group: str) -> None:
        if api_of(group):
            return  # nobody waits with the pods of these until they are let in
        self._waiting[group] = None
        self._news.set()

    async def run(self, reader: Reader[Change]) -> None:
        """Let gangs in until cancelled."""
        await reader.caught_up()
        for gang, group in self._state.groups.items():
            if not group.pods:
                self._note(gang)
        while True:
            await self._news.wait()
            self._news.clear()
            waiting, self._waiting = self._waiting, {}
            for name in waiting:
                await self._let_in(name)

    async def _let_in(self, group: str) -> None:
        known = self._state.groups.get(group)
        if known is None or known.observed is None or known.pods:
            return  # unknown by now, or it has pods and so was let in
        queue = self._state.queues.get(known.observed.queue)
        if queue is not None and not queue.open:
            return
        namespace, _, name = group.partition("/")
        path = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups/{name}"
        try:
            if _decode(await self._api.get(path)).status.phase not in WAITS:
                return
            answer = await self._api.request(
                "PATCH", f"{path}/status", body=_LET_IN, content_type=JSON_MERGE_PATCH
            )
        except KubeUnavailable:
            self._note(group)
            await self._clock.pause(PAUSE_S)
        except KubeRefused as error:
            _log.info("gang %s was not let in: %s", group, error)
        else:
            if not answer.ok:
                _log.warning("gang %s was not let in: %s", group, answer.refusal())
