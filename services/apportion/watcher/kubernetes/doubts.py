"""Pods that the ledger let go of and that are still on a node, as far as this watcher has heard.

They may run on all the same, and then what they hold must be held again. Or another watcher was
told of their end before this one was: so the API server is asked before one is taken back.
Invariant: no pod is taken back of which the server does not say, after it was let go, that it runs.
"""

import logging
from collections.abc import Iterable

import msgspec

from apportion.core.ledger.state import State
from apportion.core.workloads.adoption.claims import ENDED
from apportion.runtime.kube.client import KubeApi, KubeRefused, KubeUnavailable, pod_path
from apportion.runtime.process.clock import Clock
from apportion.watcher.kubernetes.facts import Revisions
from apportion.watcher.kubernetes.objects import PodView
from apportion.watcher.kubernetes.view import ClusterView
from apportion_schemas import PodGone, subject_of
from apportion_schemas.decoding import from_outside

DOUBTED_MAX = 50_000
"""So many ends a watcher remembers; of older ones its watch has told by then."""

DOUBT_PAUSE_S = 1.0
AGAIN_S = 130.0
"""A pod that ended waits that long before it is submitted again: its placement has the same id, and
the ledger takes an id once in two minutes."""

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


read_pod = from_outside(msgspec.json.Decoder(_Pod).decode)
"""A pod as the API server has it now, as far as it is asked for."""


class Doubts:
    """The pods that were let go since this watcher began, and are to be asked for."""

    def __init__(
        self, api: KubeApi, view: ClusterView, state: State, revisions: Revisions, clock: Clock
    ) -> None:
        self._api = api
        self._view = view
        self._state = state
        self._revisions = revisions
        self._clock = clock
        self._later: dict[str, float] = {}
        self._uids: dict[str, int] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids

    def note(self, uid: str, revision: int) -> None:
        """The ledger let go of the pod at that revision."""
        self._uids.pop(uid, None)
        self._uids[uid] = revision
        if len(self._uids) > DOUBTED_MAX:
            del self._uids[next(iter(self._uids))]

    async def resolve(self, uids: Iterable[str]) -> None:
        """Ask for pods that are to be taken back, or to wait again."""
        for uid in [uid for uid in uids if uid in self._uids and uid not in self._state.pods]:
            pod = self._view.pods.get(uid)
            if pod is None or pod.ended or not (pod.node or self._may_wait_again(pod)):
                continue
            ended = self._uids[uid]
            if not await self._ask(pod):
                await self._clock.pause(DOUBT_PAUSE_S)
                self._view.mark_pod(uid)
            elif uid not in self._uids:
                self._revisions.note(subject_of(PodGone(uid=uid)), ended)

    def _may_wait_again(self, pod: PodView) -> bool:
        """Whether a pod without a node that ended may be submitted again; if not yet, later."""
        if pod.deleting:
            return False
        due_s = self._later.setdefault(pod.uid, self._clock.monotonic() + AGAIN_S)
        if due_s > self._clock.monotonic():
            return False
        del self._later[pod.uid]
        return True

    def mark_due(self) -> None:
        """Compare pods again whose time to be submitted again has come."""
        now_s = self._clock.monotonic()
        for uid in [uid for uid, due_s in self._later.items() if due_s <= now_s]:
            pod = self._view.pods.get(uid)
            waits = pod is not None and not (pod.ended or pod.node or pod.deleting)
            if waits and uid in self._uids and uid not in self._state.pods:
                self._view.mark_pod(uid)
            else:
                del self._later[uid]

    async def _ask(self, pod: PodView) -> bool:
        """Ask whether the pod runs on; False where nobody answers, so that it must be asked again.

        One that runs is doubted no longer, unless its watch has yet to tell of its node."""
        try:
            found = read_pod(await self._api.get(pod_path(pod.namespace, pod.name)))
        except KubeRefused as error:
            _log.info("pod %s/%s is not taken back: %s", pod.namespace, pod.name, error)
        except KubeUnavailable:
            return False
        else:
            same = (found.metadata.uid, found.spec.node_name) == (pod.uid, pod.node)
            if same and found.status.phase not in ENDED:
                self._uids.pop(pod.uid, None)
        return True
