"""Admits gangs: Volcano's controllers create a job's pods once its PodGroup is `Inqueue`.

The binder admits every gang of an open queue, as a gang can wait in the ledger like a pod.
Invariant: it changes only the phase of a waiting PodGroup that has not changed since the read."""

import asyncio
import contextlib
import logging
from http import HTTPStatus
from typing import Final

import msgspec

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.core.workloads.pods.gangs import VOLCANO, api_of
from apportion.runtime.kube.client import KubeApi, KubeRefused, KubeUnavailable
from apportion.runtime.kube.watch import Discovery
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import Clock
from apportion_schemas import PodGroupObserved, QueueObserved
from apportion_schemas.decoding import from_outside

PAUSE_S = 1.0
LOOK_AGAIN_S = 20.0  # interval of checks of every gang without pods
JSON_MERGE_PATCH = "application/merge-patch+json"
QUEUE_S = 60.0  # interval of checks for Volcano's API and its Queue `default`
QUEUES = f"/apis/{VOLCANO}/v1beta1/queues"
DEFAULT = "default"
_DEFAULT_QUEUE = msgspec.json.encode(
    {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": DEFAULT},
        "spec": {"weight": 1, "reclaimable": True},
    }
)
WAITS = ("", "Pending")
IN: Final = "Inqueue"

_log = logging.getLogger(__name__)


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _PodGroup(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()
    status: _Status = _Status()


_decode = from_outside(msgspec.json.Decoder(_PodGroup).decode)


class Gangs:
    """Admits the gangs whose PodGroup is pending."""

    def __init__(self, api: KubeApi, state: State, clock: Clock) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        self._discovery = Discovery(api, clock, (VOLCANO,))
        self._waiting: dict[str, None] = {}
        self._news = asyncio.Event()

    def observe(self, change: Change) -> None:
        """Record a change of the fold. Pass this method to the reader."""
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
            return  # groups of other APIs get their pods without being admitted
        self._waiting[group] = None
        self._news.set()

    async def run(self, reader: Reader[Change]) -> None:
        """Admit waiting gangs of open queues until cancelled."""
        await reader.caught_up()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look())
            tasks.create_task(self._have_default_queue())
            while True:
                await self._news.wait()
                self._news.clear()
                waiting, self._waiting = self._waiting, {}
                for name in waiting:
                    await self._let_in(name)

    async def _look(self) -> None:
        while True:  # retries refused gangs, and finds PodGroups that equal ones replaced
            for gang, group in self._state.groups.items():
                if group.observed is not None and not group.pods:
                    self._note(gang)
            await self._clock.pause(LOOK_AGAIN_S)

    async def _have_default_queue(self) -> None:
        """Create Volcano's Queue `default` if it is missing and Volcano's API is served.

        Without this Queue, which Volcano's scheduler creates, a Job without a queue gets no
        pods."""
        while DEFAULT not in self._state.queues:
            await self._discovery.look()
            if self._discovery.has(QUEUES):
                with contextlib.suppress(KubeUnavailable):
                    try:
                        await self._api.get(f"{QUEUES}/{DEFAULT}")
                    except KubeRefused as error:
                        if error.status == HTTPStatus.NOT_FOUND and f'"{DEFAULT}"' in error.message:
                            answer = await self._api.request("POST", QUEUES, body=_DEFAULT_QUEUE)
                            said = "created" if answer.ok else answer.refusal()
                            _log.info("Volcano's Queue %s: %s", DEFAULT, said)
            await self._clock.pause(QUEUE_S)

    async def _let_in(self, group: str) -> None:
        known = self._state.groups.get(group)
        if known is None or known.observed is None or known.pods:
            return  # gone, or admitted already because it has pods
        queue = self._state.queues.get(known.observed.queue)
        if queue is not None and not queue.open:
            return
        namespace, _, name = group.partition("/")
        path = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups/{name}"
        try:
            found = _decode(await self._api.get(path))
            if found.status.phase not in WAITS:
                return
            # Volcano's own CRD has no status subresource, so the status is written with the
            # object. A CRD that has one ignores the status there silently: patch it next.
            version = {"resourceVersion": found.metadata.resource_version}
            change = {"metadata": version, "status": {"phase": IN}}
            for where in (path, f"{path}/status"):
                answer = await self._api.change(
                    "PATCH", where, change, content_type=JSON_MERGE_PATCH
                )
                if _decode(answer).status.phase == IN:
                    return
        except KubeUnavailable:
            self._note(group)
            await self._clock.pause(PAUSE_S)
        except KubeRefused as error:
            if error.status == HTTPStatus.CONFLICT:
                self._note(group)
                return
            _log.warning("gang %s not admitted, retrying: %s", group, error)
