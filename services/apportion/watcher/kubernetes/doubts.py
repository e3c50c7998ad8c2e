"""Rechecks pods that the ledger has released but that this watcher still sees on a node.

Invariant: a released pod is adopted again only after the API server has confirmed that the pod
runs. The watch is no proof, because it may be behind."""

import logging
from collections.abc import Iterable

from apportion.core.bounded import remember
from apportion.core.ledger.state import State
from apportion.core.workloads.adoption.claims import ENDED
from apportion.runtime.kube.client import KubeApi, KubeRefused, KubeUnavailable, pod_path
from apportion.runtime.kube.pods import read_pod
from apportion.runtime.process.clock import Clock
from apportion.watcher.kubernetes.facts import Revisions
from apportion.watcher.kubernetes.objects import PodView
from apportion.watcher.kubernetes.view import ClusterView
from apportion_schemas import PodGone, subject_of

DOUBTED_MAX = 50_000  # ends that a watcher remembers; the watch has long reported older ones

DOUBT_PAUSE_S = 1.0
# Delay before a pod is submitted again; the ledger accepts its placement's id once in 2 minutes.
AGAIN_S = 130.0

_log = logging.getLogger(__name__)


class Doubts:
    """The pods to recheck, because the ledger released them after this watcher started."""

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
        """Record that the ledger released the pod at this revision."""
        remember(self._uids, uid, revision, most=DOUBTED_MAX)

    async def resolve(self, uids: Iterable[str]) -> None:
        """Ask the API server about released pods, then adopt them or submit them again."""
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
        if pod.deleting:
            return False
        due_s = self._later.setdefault(pod.uid, self._clock.monotonic() + AGAIN_S)
        if due_s > self._clock.monotonic():
            return False
        del self._later[pod.uid]
        return True

    def mark_due(self) -> None:
        """Mark each released pod for comparison with the ledger once it may be submitted again."""
        now_s = self._clock.monotonic()
        for uid in [uid for uid, due_s in self._later.items() if due_s <= now_s]:
            pod = self._view.pods.get(uid)
            waits = pod is not None and not (pod.ended or pod.node or pod.deleting)
            if waits and uid in self._uids and uid not in self._state.pods:
                self._view.mark_pod(uid)
            else:
                del self._later[uid]

    async def _ask(self, pod: PodView) -> bool:
        try:
            found = read_pod(await self._api.get(pod_path(pod.namespace, pod.name)))
        except KubeRefused as error:
            _log.info("pod %s/%s not adopted again: %s", pod.namespace, pod.name, error)
        except KubeUnavailable:
            return False
        else:
            # A running pod is no longer doubted, unless the watch has not reported its node yet.
            same = (found.metadata.uid, found.spec.node_name) == (pod.uid, pod.node)
            if same and found.status.phase not in ENDED:
                self._uids.pop(pod.uid, None)
        return True
