"""Deliberately broken variants of the code between ledger and cluster; see `planted`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import msgspec

from apportion.binder.binding import Binding, Bound, Failed, Outcome
from apportion.binder.kubernetes import target as kubernetes_target
from apportion.binder.kubernetes.target import KubernetesTarget
from apportion.core.devices.demand import Geometries
from apportion.core.ledger.handlers.unattributed_devices import taken
from apportion.core.ledger.state import NodeState
from apportion.core.workloads.adoption.claims import Claim
from apportion.runtime.kube import watch as kube_watch
from apportion.runtime.kube.client import Answer, KubeApi
from apportion.runtime.kube.watch import Kind, Watch
from apportion.runtime.ledger.port import Delivery
from apportion.watcher.kubernetes import facts as kubernetes_facts
from apportion.watcher.kubernetes import objects as kubernetes_objects
from apportion.watcher.kubernetes.doubts import Doubts
from apportion.watcher.kubernetes.facts import Fact, Facts, FactWriting
from apportion.watcher.kubernetes.view import ClusterView
from apportion.watcher.kubernetes.watching import KubernetesWatching
from apportion_schemas import NodeGone, PodAdopted, PodPlaced
from tests.simulation.planted import Patch, Planted

_CONFLICT = 409
_encode = msgspec.json.Encoder().encode


def _conflict_is_success(patch: Patch) -> None:
    """If the API server reports a conflict, let a binder assume that it has bound the pod."""
    real = KubernetesTarget._refused

    async def refused(self: KubernetesTarget, placed: PodPlaced, answer: Answer) -> Any:
        return Bound() if answer.status == _CONFLICT else await real(self, placed, answer)

    patch.setattr(KubernetesTarget, "_refused", refused)


def _no_answer_is_failure(patch: Patch) -> None:
    """Make a binder treat an unanswered request as failed for good.

    The API server may nevertheless have bound the pod."""
    real = KubernetesTarget._try

    async def attempt(self: KubernetesTarget, placed: PodPlaced, binding: bytes) -> Any:
        found = await real(self, placed, binding)
        known = isinstance(found, Bound | Failed)
        return found if known else Failed("no answer", final=True)

    patch.setattr(KubernetesTarget, "_try", attempt)


def _given_up_with_its_node(patch: Patch) -> None:
    """If a pod's node is removed, make a binder give up the binding.

    A late request may still bind the pod."""
    real = KubernetesTarget._gone

    async def gone(self: KubernetesTarget, placed: PodPlaced) -> Outcome:
        found = await real(self, placed)
        given_up = isinstance(found, Failed) and not found.unknown
        return msgspec.structs.replace(found, final=True) if given_up else found

    patch.setattr(KubernetesTarget, "_gone", gone)


def _binding_without(patch: Patch, field: str) -> None:
    real = KubernetesTarget._binding

    def binding(self: KubernetesTarget, *arguments: Any) -> bytes:
        said = msgspec.json.decode(real(self, *arguments))
        del said["metadata"][field]
        return _encode(said)

    patch.setattr(KubernetesTarget, "_binding", binding)


def _uid_not_checked(patch: Patch) -> None:
    """Make a binder bind any pod with the right name, whatever its uid."""
    _binding_without(patch, "uid")


def _bound_without_annotations(patch: Patch) -> None:
    """Make a binder bind a pod without its annotations."""
    _binding_without(patch, "annotations")


def _bound_by_whomever(patch: Patch) -> None:
    """Let a binder assume that a bound pod is on the node of its placement."""
    real = kubernetes_target._found

    def found(placed: PodPlaced, pod: Any, refusal: Any) -> Any:
        return Bound() if pod.spec.node_name else real(placed, pod, refusal)

    patch.setattr(kubernetes_target, "_found", found)


def _said_before_done(patch: Patch) -> None:
    """Make a binder record a binding before it binds the pod."""
    real = Binding._bind

    async def bind(self: Binding, placed: PodPlaced) -> Outcome:
        waiting.add(task := asyncio.ensure_future(real(self, placed)))
        task.add_done_callback(waiting.discard)
        return Bound()

    waiting: set[asyncio.Future[Outcome]] = set()
    patch.setattr(Binding, "_bind", bind)


def _acknowledged_before_done(patch: Patch) -> None:
    """Make a binder acknowledge a placement before it binds the pod, so that a crash loses the
    binding."""
    real = Binding.settle

    async def settle(self: Binding, delivery: Delivery) -> None:
        await delivery.ack()
        await real(self, delivery)

    patch.setattr(Binding, "settle", settle)


def _missed_deletions(patch: Patch) -> None:
    """Make a watcher keep objects that are missing from a newly fetched list."""

    def listed(self: Kind[Any], version: int) -> None:
        self._missing.clear()
        self.version = version

    patch.setattr(Kind, "listed", listed)
    patch.setattr(ClusterView, "unseen", lambda _self: [])


def _resumes_too_far_on(patch: Patch) -> None:
    """Make a broken watch resume from a version that is too high, so that it misses changes."""
    real = Watch._rest

    async def rest(self: Watch, problem: str) -> None:
        if self._version:
            self._version = str(int(self._version) + 5)
        await real(self, problem)

    patch.setattr(Watch, "_rest", rest)


def _goes_on_after_410(patch: Patch) -> None:
    """Make a watcher keep its old objects after the API server answers 410 Gone.

    A correct watcher lists the objects again."""
    real = Watch._take

    def take(self: Watch, event: Any) -> None:
        try:
            real(self, event)
        except kube_watch._Expired:
            self._version = str(int(self._version) + 10)

    patch.setattr(Watch, "_take", take)


def _first_page_only(patch: Patch) -> None:
    """Make a watcher read only the first page of a list."""
    real = kube_watch.pages

    async def pages(api: KubeApi, path: str) -> AsyncIterator[Any]:
        async for page in real(api, path):
            yield page
            return

    patch.setattr(kube_watch, "pages", pages)


def _ended_pods_hold(patch: Patch) -> None:
    """Make a watcher treat an ended pod as running until it is deleted."""
    patch.setattr(kubernetes_objects, "ENDED", ())


def _nodes_stay(patch: Patch) -> None:
    """Make a watcher ignore that a node has left the cluster."""
    real = Facts.nodes

    def nodes(self: Facts, names: Iterable[str]) -> Iterator[Fact]:
        return (fact for fact in real(self, names) if not isinstance(fact.data, NodeGone))

    patch.setattr(Facts, "nodes", nodes)


def _spent_ids_believed(patch: Patch) -> None:
    """Make a watcher assume that an event is stored if its id was used before."""

    class Unasked:
        def __init__(self, ledger: Any) -> None:
            self.first_revision = ledger.first_revision

        async def last_on_subject(self, _subject: str) -> int:
            return -1

    real, real_write = FactWriting._overtaken, FactWriting._write

    async def overtaken(self: FactWriting, data: Any, refused: Any, ledger: Any) -> None:
        if refused.found != -1:
            await real(self, data, refused, ledger)

    async def write(self: FactWriting, ledger: Any, fact: Any, basis: int) -> int:
        unasked: Any = Unasked(ledger)
        return await real_write(self, unasked, fact, basis)

    patch.setattr(FactWriting, "_write", write)
    patch.setattr(FactWriting, "_overtaken", overtaken)


def _taken_back_unasked(patch: Patch) -> None:
    """Let a watcher adopt a released pod again without asking the API server.

    If the watcher has missed the pod's end, it adopts an ended pod."""
    patch.setattr(Doubts, "note", lambda _self, _uid, _revision: None)


def _compares_what_moved_on(patch: Patch) -> None:
    """Make a watcher compare pods with the ledger even if the ledger has changed since."""
    patch.setattr(KubernetesWatching, "_unchanged", lambda _self, uids: list(uids))


def _untold_slices_offered(patch: Patch) -> None:
    """If a pod runs on an unknown slice of a MIG device, make a watcher adopt the pod
    without recording a share."""

    def without_shares(claim: Claim, node: NodeState, known: Geometries = ()) -> PodAdopted | None:
        found = taken(claim, node, known)
        if found is not None or not any(each.device.mode == "mig" for each in node.devices):
            return found
        return PodAdopted(
            pod=claim.submitted.uid, node=node.name, submitted=claim.submitted, running=True
        )

    patch.setattr(kubernetes_facts, "taken", without_shares)


def _shrunk_at_once(patch: Patch) -> None:
    """Make a watcher count a pod's smaller size before the kubelet has applied the resize."""
    patch.setattr(kubernetes_objects._Given, "parts", kubernetes_objects._NOT_GIVEN)


RESIZES = {"pod shrunk": 1.0}
SLICES = {"slice of another scheduler": 0.5, "pod ended": 0.3}
SILENT = {"api answer lost": 0.2, "api failed, done": 0.2}
LEFT = {"node left": 1.0, "api done late": 0.5}
TAKEN = {"bound by another": 1.0, "api slow": 0.2}
DEAF = {"watch dropped": 0.3, "past forgotten": 0.3, "api away": 0.2}
BROKEN = {"watch dropped": 0.5, "watch event late": 0.2}
AGAIN = {"pod made again": 1.0, "api partition": 0.3, "watch event late": 0.3}
BEHIND = {
    "let go by hand": 1.0,
    "api partition": 0.5,
    "watch event late": 0.2,
    "pod force-deleted": 1.0,
}
LATE = {"delayed delivery": 0.5, "dropped connection": 0.5}
RESTARTED = {"crash": 0.5, "node unready": 0.5}


PLANTED_IN_A_CLUSTER = (
    Planted("conflict is success", _conflict_is_success, 40, AGAIN, cluster=True),
    Planted("no answer is failure", _no_answer_is_failure, 20, SILENT, cluster=True, first=10),
    Planted("given up with its node", _given_up_with_its_node, 60, LEFT, cluster=True, first=41),
    Planted("uid not checked", _uid_not_checked, 40, AGAIN, cluster=True),
    Planted("bound without annotations", _bound_without_annotations, 5, cluster=True),
    Planted("bound by whomever", _bound_by_whomever, 20, TAKEN, cluster=True),
    Planted("said before done", _said_before_done, 5, cluster=True),
    Planted(
        "acknowledged before done", _acknowledged_before_done, 20, RESTARTED, cluster=True, first=30
    ),
    Planted("missed deletions", _missed_deletions, 20, DEAF, cluster=True),
    Planted("resumes too far on", _resumes_too_far_on, 20, BROKEN, cluster=True, first=30),
    Planted("goes on after 410", _goes_on_after_410, 40, DEAF, cluster=True),
    Planted("first page only", _first_page_only, 20, cluster=True),
    Planted("ended pods hold", _ended_pods_hold, 20, {"pod ended": 0.5}, cluster=True, first=3),
    Planted("nodes stay", _nodes_stay, 20, {"node left": 0.5}, cluster=True),
    Planted("spent ids believed", _spent_ids_believed, 40, RESTARTED, cluster=True, first=14),
    Planted("taken back unasked", _taken_back_unasked, 60, BEHIND, cluster=True, first=150),
    Planted("untold slices offered", _untold_slices_offered, 20, SLICES, cluster=True),
    Planted("shrunk at once", _shrunk_at_once, 20, RESIZES, cluster=True),
    Planted("compares what moved on", _compares_what_moved_on, 100, LATE, cluster=True),
)
