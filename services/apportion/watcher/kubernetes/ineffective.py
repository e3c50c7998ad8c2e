"""Reports which Volcano settings of pods, PodGroups and Queues Apportion ignores.

The watcher writes one Kubernetes event per object and change. A refused event is not retried."""

import asyncio
import logging
from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from apportion.core.workloads.lint.typo_checks import Suspect
from apportion.runtime.kube.client import KubeApi, KubeUnavailable
from apportion.runtime.process.clock import Clock

REASON = "WithoutEffect"
COMPONENT = "apportion"
PACE_S = 0.2  # between two events
AGAIN_S = 5.0  # before a retry if the API server was too busy
OBJECTS_MAX = 10_000
MESSAGE_MAX = 1000
NAME_MAX = 253 - 1 - 16
_BUSY, _CONFLICT, _SERVER_ERROR = 429, 409, 500

_log = logging.getLogger(__name__)


class Subject(NamedTuple):
    """The Kubernetes object that an event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class Ineffective:
    """Reports settings that have no effect, as Kubernetes events about their objects."""

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._known: dict[str, str] = {}
        self._waiting: dict[str, tuple[Subject, str]] = {}
        self._news = asyncio.Event()

    def note(self, about: Subject, found: Iterable[Suspect]) -> None:
        """Queue the ignored settings of an object, unless they were reported already."""
        said = "; ".join(f"{each.field} {each.said}" for each in found)
        if self._known.get(about.uid, "") == said:
            return
        self._known.pop(about.uid, None)
        self._waiting.pop(about.uid, None)
        if not said:
            return
        self._known[about.uid] = said
        self._waiting[about.uid] = (about, said)
        if len(self._known) > OBJECTS_MAX:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._waiting.pop(oldest, None)
        self._news.set()

    async def run(self) -> None:
        """Write the queued Kubernetes events until cancelled."""
        while True:
            if not self._waiting:
                self._news.clear()
                await self._news.wait()
            uid, (about, said) = next(iter(self._waiting.items()))
            done = await self._tell(about, said)
            if done and self._waiting.get(uid) == (about, said):
                del self._waiting[uid]
            await self._clock.pause(PACE_S if done else AGAIN_S)

    async def _tell(self, about: Subject, said: str) -> bool:
        namespace = about.namespace or "default"
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/events"
        same = sha256(f"{about.uid}/{REASON}/{said}".encode()).hexdigest()[:16]
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{about.name[:NAME_MAX]}.{same}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
            "type": "Warning",
            "reason": REASON,
            "message": said.encode()[:MESSAGE_MAX].decode(errors="ignore"),
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            answer = await self._api.request("POST", path, body=msgspec.json.encode(event))
        except KubeUnavailable:
            return False
        if answer.status == _BUSY or answer.status >= _SERVER_ERROR:
            return False
        if not answer.ok and answer.status != _CONFLICT:  # another watcher was first
            _log.info("no event created for %s %s: %s", about.kind, about.name, answer.refusal())
        return True
