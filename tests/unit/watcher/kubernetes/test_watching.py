"""Tests, in virtual time, of how the watcher finds and repairs differences between cluster and
ledger that no watch event reports."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import Phase
from apportion.runtime.kube.client import Answer, KubeUnavailable
from apportion.runtime.kube.watch import LOOK_S
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.port import Draft
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.metrics import Metrics
from apportion.watcher.kubernetes.doubts import AGAIN_S
from apportion.watcher.kubernetes.ineffective import REASON
from apportion.watcher.kubernetes.view import ClusterView
from apportion.watcher.kubernetes.watching import PROBE_S, kubernetes_watching
from apportion_schemas import (
    PodAdopted,
    PodBound,
    PodGone,
    PodPlaced,
    PodSubmitted,
    Score,
    encode,
    subject_of,
)
from apportion_schemas.quantities import Payload
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.ledger_of import event_of
from tests.support.memory_kube import MemoryKube
from tests.support.memory_kube_api import MemoryKubeApi, PerfectKubeLink
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer
from tests.support.pods import ask, pod

COMPARE_EVERY_S = 30.0
PODS = "/api/v1/namespaces/default/pods"
HELD = {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,1000,0:;"}


class LateLink(PerfectKubeLink):
    """A network to the API server. Requests succeed only while `up` is set. Watch events arrive
    only once `clear` is set."""

    up = True

    def __init__(self) -> None:
        self.clear = asyncio.Event()
        self.clear.set()

    async def ask(self, method: str, act: Callable[[], Answer]) -> Answer:
        """Pass the request on, or fail if `up` is not set."""
        if not self.up:
            raise KubeUnavailable("connection refused")
        return await super().ask(method, act)

    async def carry(self, lines: list[bytes], idle_s: float) -> tuple[list[bytes], bool]:
        """Hold watch events back until `clear` is set, then pass them on."""
        await self.clear.wait()
        return await super().carry(lines, idle_s)


class Watched:
    """An in-memory cluster with one node, an in-memory ledger, and a watcher between the two."""

    def __init__(self) -> None:
        self.kube, self.link = MemoryKube(), LateLink()
        self.server = MemoryServer()
        ledger, cluster = MemoryLedger(self.server, role="watcher"), StateFold()
        self.state = cluster.state
        self._ledger = ledger
        self._commit = GroupCommit(ledger)
        clock = SkewedClock(random.Random(7), skew_s=0.0)
        self.watching = kubernetes_watching(
            MemoryKubeApi(self.kube, self.link),
            cluster.state,
            Publisher("watcher/test", clock, self._commit.append),
            self._commit.append,
            schedulers=frozenset(("apportion",)),
            clock=clock,
        )
        self._reader: Reader[Change] = Reader(
            ledger, cluster, metrics=Metrics(), on_change=self._observe
        )
        self.changes: list[Change] = []
        self.ask("POST", "/api/v1/nodes", kube_node("n1"))

    def _observe(self, change: Change) -> None:
        self.changes.append(change)
        self.watching.observe(change)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        raw = json.dumps(body or {}).encode()
        answer = self.kube.handle(
            method, path, query=None, body=raw, content_type="application/json"
        )
        assert answer.ok, answer.refusal()
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def write(self, data: Payload, role: str = "watcher") -> None:
        """Append an event as a service with this role would."""
        identity = f"other-{self.server.last_revision}"
        draft = Draft(subject_of(data), identity, encode(event_of(data)))
        self.server.append([draft], {}, role=role, writer="other")

    def place(self, uid: str) -> None:
        """Place the pod on node n1 without a device and bind it, as scheduler and binder do."""
        known = self.state.pods[uid]
        chain = self.state.nodes["n1"].chain
        placed = PodPlaced(
            pod=uid,
            namespace="default",
            name=known.submitted.name,
            attempt=known.attempt,
            node="n1",
            shares=(),
            score=Score(node="n1", total=0.0),
            previous=chain,
        )
        self.write(placed, "scheduler")
        self.write(PodBound(pod=uid, node="n1", attempt=known.attempt), "binder")

    async def run(self) -> None:
        """Run the ledger reader and the watcher until the task is cancelled."""
        async with self._commit, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reader.run())
            tasks.create_task(
                self.watching.run(self._reader, self._ledger, compare_every_s=COMPARE_EVERY_S)
            )


def watched(check: Callable[[Watched], Awaitable[None]]) -> None:
    """Run the check in virtual time, after the watcher has reported the whole cluster."""

    async def main() -> None:
        cluster = Watched()
        running = asyncio.create_task(cluster.run())
        await rest(5.0)
        assert not running.done()
        await check(cluster)
        running.cancel()

    run_virtually(main())


def test_a_comparison_finds_what_no_watch_has_told() -> None:
    """If a pod is in the ledger but not in the cluster, the watcher's periodic comparison finds the
    pod and ends it in the ledger."""

    async def check(cluster: Watched) -> None:
        cluster.ask("POST", PODS, kube_pod("a", share()))
        await rest(1.0)
        assert [each.submitted.name for each in cluster.state.pods.values()] == ["a"]
        cluster.write(pod("ghost", ask(1000)))
        await rest(1.0)
        assert "ghost" in cluster.state.pods
        await rest(2 * COMPARE_EVERY_S)
        assert "ghost" not in cluster.state.pods
        assert cluster.watching.repairs["pod"] == 1

    watched(check)


def test_a_pod_of_which_the_api_server_says_nothing_is_not_taken_to_be_gone() -> None:
    """While the API server is unreachable, the watcher does not end a pod that seems to be
    missing."""

    async def check(cluster: Watched) -> None:
        cluster.write(pod("ghost", ask(1000)))
        cluster.link.up = False
        await rest(2 * COMPARE_EVERY_S)
        assert "ghost" in cluster.state.pods
        cluster.link.up = True
        await rest(2 * COMPARE_EVERY_S)
        assert "ghost" not in cluster.state.pods

    watched(check)


def test_a_pod_that_another_watcher_saw_end_is_not_taken_back_unasked() -> None:
    """If one watcher has reported a pod as gone, another watcher with a stale watch does not adopt
    the pod."""

    async def check(cluster: Watched) -> None:
        running = kube_pod("a", share(), schedulerName="someone-else")
        uid = cluster.ask("POST", PODS, running)["metadata"]["uid"]
        target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
        binding = {"metadata": {"name": "a", "annotations": HELD}, "target": target}
        cluster.ask("POST", f"{PODS}/a/binding", binding)
        await rest(1.0)
        assert cluster.state.pods[uid].adopted
        cluster.link.clear.clear()
        cluster.ask("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0})
        cluster.write(PodGone(uid=uid))
        await rest(10.0)
        assert uid not in cluster.state.pods
        taken = [change for change in cluster.changes if isinstance(change.data, PodAdopted)]
        assert len(taken) == 1

    watched(check)


def test_a_pod_that_another_scheduler_bound_is_not_rejected_by_a_late_watcher() -> None:
    """If another scheduler has bound a pod, a watcher whose watch is late does not reject it."""

    async def check(cluster: Watched) -> None:
        uid = cluster.ask("POST", PODS, kube_pod("a", share() | {"nvidia.com/gpumem": "much"}))[
            "metadata"
        ]["uid"]
        await rest(1.0)
        assert uid in cluster.state.rejected
        cluster.link.clear.clear()
        target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
        cluster.ask("POST", f"{PODS}/a/binding", {"metadata": {"name": "a"}, "target": target})
        cluster.write(PodGone(uid=uid))
        await rest(AGAIN_S + 2 * PROBE_S)
        assert uid not in cluster.state.rejected
        cluster.link.clear.set()
        await rest(1.0)
        assert uid not in cluster.state.rejected

    watched(check)


def test_a_pod_that_is_being_deleted_is_not_compared_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a finalizer keeps a deleted pod, the watcher does not compare the pod with the ledger over
    and over."""

    async def check(cluster: Watched) -> None:
        body = kube_pod("a", share() | {"nvidia.com/gpumem": "much"})
        body["metadata"]["finalizers"] = ["example.com/slow"]
        uid = cluster.ask("POST", PODS, body)["metadata"]["uid"]
        await rest(1.0)
        cluster.write(PodGone(uid=uid))
        await rest(AGAIN_S / 2)
        cluster.ask("DELETE", f"{PODS}/a", {})
        await rest(AGAIN_S)
        marked: list[str] = []
        monkeypatch.setattr(ClusterView, "mark_pod", lambda _view, name: marked.append(name))
        await rest(10 * PROBE_S)
        assert marked == []
        assert uid not in cluster.state.pods

    watched(check)


def test_a_changed_pod_changes_and_ends_after_the_ledgers_beginning_was_dropped() -> None:
    """If a pod's newest record was trimmed from the ledger, the watcher can still report the pod's
    changes and its end."""

    async def check(cluster: Watched) -> None:
        uid = cluster.ask("POST", PODS, kube_pod("a", share()))["metadata"]["uid"]
        await rest(1.0)
        bind(cluster, "a")
        for label in ("x", "y"):
            cluster.ask("PATCH", f"{PODS}/a", {"metadata": {"labels": {"app": label}}})
            await rest(1.0)
            assert cluster.state.pods[uid].submitted.labels == {"app": label}
            cluster.server.drop(cluster.server.last_revision)
        cluster.ask("DELETE", f"{PODS}/a", {})
        await rest(1.0)
        assert cluster.state.pods[uid].terminating
        cluster.server.drop(cluster.server.last_revision)
        cluster.ask("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0})
        await rest(1.0)
        assert uid not in cluster.state.pods

    watched(check)


def test_a_missing_record_of_a_pod_says_nothing_of_older_ones() -> None:
    """If the ledger has lost a record of one pod, the watcher can still report changes and ends of
    this pod and of older pods."""

    async def check(cluster: Watched) -> None:
        for name in ("old", "new"):
            cluster.ask("POST", PODS, kube_pod(name, share()))
            await rest(1.0)
            bind(cluster, name)
            await rest(1.0)
        uids = {pod.submitted.name: uid for uid, pod in cluster.state.pods.items()}
        cluster.server.lose_subject(subject_of(PodGone(uid=uids["new"])))
        for name in ("new", "old"):
            cluster.ask("PATCH", f"{PODS}/{name}", {"metadata": {"labels": {"app": "x"}}})
            await rest(1.0)
            assert cluster.state.pods[uids[name]].submitted.labels == {"app": "x"}
            cluster.ask("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
            await rest(1.0)
            assert uids[name] not in cluster.state.pods

    watched(check)


def test_a_pod_changes_after_an_event_on_its_subject_that_the_fold_refused() -> None:
    """After the fold has refused an event on a pod's subject, the watcher can still report changes
    of the pod."""

    async def check(cluster: Watched) -> None:
        uid = cluster.ask("POST", PODS, kube_pod("a", share()))["metadata"]["uid"]
        await rest(1.0)
        cluster.write(cluster.state.pods[uid].submitted)
        await rest(1.0)
        assert cluster.changes[-1].refused
        cluster.ask("PATCH", f"{PODS}/a", {"metadata": {"labels": {"app": "x"}}})
        await rest(1.0)
        assert cluster.state.pods[uid].submitted.labels == {"app": "x"}
        cluster.ask("DELETE", f"{PODS}/a", {})
        await rest(1.0)
        assert uid not in cluster.state.pods

    watched(check)


def test_a_pod_deleted_while_it_is_submitted_ends_at_once() -> None:
    """If a pod is deleted while the watcher submits it, the watcher ends the pod in the ledger
    without waiting for the periodic comparison."""

    async def check(cluster: Watched) -> None:
        for steps in range(60):
            body = kube_pod("same", share() if steps % 2 else {"nvidia.com/gpumem": "much"})
            cluster.ask("POST", PODS, body)
            for _ in range(steps):
                await asyncio.sleep(0)
            cluster.ask("DELETE", f"{PODS}/same", {})
        await rest(COMPARE_EVERY_S / 6)
        assert not cluster.state.pods
        assert not cluster.state.rejected
        submitted = [each for each in cluster.changes if isinstance(each.data, PodSubmitted)]
        assert submitted
        assert not cluster.watching.repairs

    watched(check)


def bind(cluster: Watched, name: str) -> None:
    """Bind the pod to node n1 in the cluster and in the ledger, as scheduler and binder do."""
    (uid,) = [uid for uid, pod in cluster.state.pods.items() if pod.submitted.name == name]
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    notes = {"apportion.dev/attempt": str(cluster.state.pods[uid].attempt)}
    cluster.ask(
        "POST",
        f"{PODS}/{name}/binding",
        {"metadata": {"name": name, "annotations": notes}, "target": target},
    )
    cluster.place(uid)


def names(cluster: Watched) -> list[str]:
    return sorted(pod.submitted.name for pod in cluster.state.pods.values())


@pytest.mark.parametrize("cut", ["silent", "broken", "away"])
def test_a_restored_api_server_is_compared_at_once_and_the_watcher_is_not_ready(cut: str) -> None:
    """If the API server is restored from a backup, the watcher is not ready until ledger and
    cluster match again.

    In the ledger, the watcher ends pods that are younger than the backup. Pods that were deleted
    since the backup return, and bindings that were lost are undone."""

    async def check(cluster: Watched) -> None:
        for name in ("stays", "waits", "deleted", "was-bound"):
            cluster.ask("POST", PODS, kube_pod(name, {"cpu": "1"}))
        await rest(1.0)
        bind(cluster, "was-bound")
        await rest(1.0)
        copy = cluster.kube.store.backup()
        bind(cluster, "waits")
        for number in range(30):
            cluster.ask("POST", PODS, kube_pod(f"new-{number}", {"cpu": "1"}))
        cluster.ask("DELETE", f"{PODS}/deleted", {})
        cluster.ask("DELETE", f"{PODS}/was-bound", {"gracePeriodSeconds": 0})
        await rest(70.0)  # until bookmarks
        assert len(names(cluster)) == 32
        assert not cluster.watching.not_ready()

        if cut == "away":
            cluster.link.up = False
        cluster.kube.store.restore(copy)
        if cut != "silent":
            cluster.kube.store.hang_up()
        await rest(0.5)
        cluster.link.up = True
        for _ in range(120):
            await rest(0.1)
            if cluster.watching.not_ready():
                break
            assert cut != "away"
        assert cluster.watching.not_ready()
        for _ in range(60):
            await rest(0.1)
            if not cluster.watching.not_ready():
                break
        assert not cluster.watching.not_ready()
        assert names(cluster) == ["stays", "was-bound"]
        # until the ledger has forgotten the ids of their placements
        await rest(AGAIN_S + 2 * PROBE_S)
        assert names(cluster) == ["deleted", "stays", "waits", "was-bound"]
        phases = {pod.submitted.name: pod.phase for pod in cluster.state.pods.values()}
        assert phases.pop("was-bound") is not Phase.PENDING
        assert {*phases.values()} == {Phase.PENDING}

    watched(check)


VOLCANO = "scheduling.volcano.sh/v1beta1"
KUBERNETES = "scheduling.k8s.io"


@pytest.mark.parametrize("served", [(), ("v1",)])
def test_a_pod_whose_podgroup_is_never_read_is_rejected(served: tuple[str, ...]) -> None:
    """If the API server does not serve the kind or version of a pod's PodGroup, the watcher rejects
    the pod."""

    async def check(cluster: Watched) -> None:
        cluster.kube.more_kinds |= {(f"{KUBERNETES}/{version}", "podgroups") for version in served}
        await rest(2 * LOOK_S)
        made = kube_pod("a", share(), schedulingGroup={"podGroupName": "g"})
        cluster.ask("POST", PODS, made)
        await rest(1.0)
        assert not cluster.state.pods
        (rejected,) = cluster.state.rejected.values()
        assert rejected.field == "spec.schedulingGroup.podGroupName"
        assert all(version in rejected.problem for version in served)
        await rest(2 * COMPARE_EVERY_S)
        assert cluster.watching.repairs["ledger"] == 0

    watched(check)


def test_a_pod_waits_for_its_podgroup_once_the_api_server_has_the_kind() -> None:
    """The watcher rejects a gang's pod while the API server has no PodGroup kind. It submits the
    pod once the kind is installed."""

    async def check(cluster: Watched) -> None:
        for kind in ("podgroups", "queues"):
            cluster.kube.fewer_kinds.add((VOLCANO, kind))
        await rest(2 * LOOK_S)
        notes = {"scheduling.k8s.io/group-name": "g"}
        cluster.ask("POST", PODS, kube_pod("a", share(), annotations=notes))
        await rest(1.0)
        assert len(cluster.state.rejected) == 1
        cluster.kube.fewer_kinds.clear()
        await rest(2 * LOOK_S)
        assert not cluster.state.rejected
        (waiting,) = cluster.state.pods.values()
        assert waiting.submitted.group == "default/g"
        group = {"metadata": {"name": "g"}, "spec": {"minMember": 1}}
        cluster.ask("POST", f"/apis/{VOLCANO}/namespaces/default/podgroups", group)
        await rest(1.0)
        assert cluster.state.groups["default/g"].observed is not None

    watched(check)


QUEUES = f"/apis/{VOLCANO}/queues"


def told(cluster: Watched) -> list[tuple[str, str]]:
    """Return the kind and name of each object that has a Kubernetes event about ignored fields."""
    events = cluster.kube.store.all("events")
    about = [each["involvedObject"] for each in events if each["reason"] == REASON]
    return sorted((each["kind"], each["name"]) for each in about)


def test_the_owner_is_told_once_what_has_no_effect() -> None:
    """The watcher reports all ignored fields of a Queue, PodGroup or pod in one Kubernetes event.
    It writes another only if these fields change."""

    async def check(cluster: Watched) -> None:
        queue: dict[str, Any] = {"metadata": {"name": "ml"}, "spec": {"weight": 1, "type": "x"}}
        cluster.ask("POST", QUEUES, queue)
        notes = {"volcano.sh/jdb-min-available": "1"}
        group = {"metadata": {"name": "g", "annotations": notes}, "spec": {"minMember": 1}}
        cluster.ask("POST", f"/apis/{VOLCANO}/namespaces/default/podgroups", group)
        alone = {"scheduling.volcano.sh/group-name": "g"}
        cluster.ask("POST", PODS, kube_pod("a", share(), annotations=alone))
        cluster.ask("POST", PODS, kube_pod("b", share(), annotations={"example.com/x": "1"}))
        await rest(3.0)
        first = [("Pod", "a"), ("PodGroup", "g"), ("Queue", "ml")]
        assert told(cluster) == first
        cluster.ask("PUT", f"{QUEUES}/ml", queue | {"spec": {**queue["spec"], "weight": 7}})
        await rest(3.0)
        assert told(cluster) == first
        cluster.ask(
            "PUT",
            f"{QUEUES}/ml",
            queue | {"spec": {"weight": 7, "type": "y", "extendClusters": [{}]}},
        )
        await rest(3.0)
        assert told(cluster) == [*first, ("Queue", "ml")]

    watched(check)


def test_what_has_no_effect_is_told_once_the_api_server_answers() -> None:
    """Kubernetes events about ignored fields are written at a limited rate. If the API server is
    unreachable, the watcher retries."""

    async def check(cluster: Watched) -> None:
        made = []
        for number in range(20):
            queue = {"metadata": {"name": f"q{number}"}, "spec": {"type": "x"}}
            made.append(("Queue", f"q{number}"))
            cluster.ask("POST", QUEUES, queue)
        await rest(0.5)
        cluster.link.up = False
        assert 0 < len(told(cluster)) < len(made)
        await rest(2.0)
        cluster.link.up = True
        await rest(60.0)
        assert told(cluster) == sorted(made)

    watched(check)
