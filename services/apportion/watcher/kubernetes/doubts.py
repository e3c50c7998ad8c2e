"""Pods that the ledger let go of and that are still on a node, as far as this watcher has heard.

They may run on all the same, and then what they hold must be held again. Or another watcher was
told of their end before this one was: so the API server is asked before one is taken back.
Invariant: no pod is taken back of which the server does not say, after it was let go, that it runs.
"""

from __future__ import annotations

import logging

import msgspec

from apportion.core.workloads.adoption.claims import ENDED
from apportion.runtime.kube.client import KubeApi, KubeRefused, KubeUnavailable
from apportion.watcher.kubernetes.objects import PodView
from apportion_schemas.decoding import from_outside

DOUBTED_MAX = 50_000
"""So many ends a watcher remembers; of older ones its watch has told by then."""

_log = logging.getLogger(__name__)


class _Meta(msgspec.Struct, frozen=True):
    uid: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _Spec = _Spec()
    status: _Status = _Status()


_decode = from_outside(msgspec.json.Decoder(_Pod).decode)


class Doubts:
    """The pods that were let go since this watcher began, and are to be asked for."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._uids: dict[str, int] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids

    def revision(self, uid: str) -> int:
        """The revision of the pod's end."""
        return self._uids[uid]

    def note(self, uid: str, revision: int) -> None:
        """The ledger let go of the pod at that revision."""
        self._uids.pop(uid, None)
        self._uids[uid] = revision
        if len(self._uids) > DOUBTED_MAX:
            del self._uids[next(iter(self._uids))]

    async def ask(self, pod: PodView, path: str) -> bool:
        """Ask whether the pod runs on; False where nobody answers, so that it must be asked again.

        One that runs is doubted no longer, unless its watch has yet to tell of its node.
        """
        try:
            found = _decode(await self._api.get(path))
        except KubeRefused as error:
            _log.info("pod %s/%s is not taken back: %s", pod.namespace, pod.name, error)
        except KubeUnavailable:
            return False
        else:
            same = (found.metadata.uid, found.spec.node_name) == (pod.uid, pod.node)
            if same and found.status.phase not in ENDED:
                self._uids.pop(pod.uid, None)
        return True
