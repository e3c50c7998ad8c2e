"""A simulated cluster: an in-memory API server, its users, kubelets and controllers, and faults.

Only Apportion's services use a simulated network. Invariant: kubelets end deleted pods, and a
garbage collector ends pods whose node is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from apportion.binder import main as binder
from apportion.core.devices.catalogue import mig_profiles
from apportion.core.ledger.state import State
from apportion.runtime.kube.client import JSON, MERGE_PATCH, Answer
from apportion.runtime.kube.watch import IDLE_S
from apportion.runtime.service.lifecycle import Service
from apportion.watcher import main as watcher
from tests.simulation.books import Books
from tests.simulation.kube_judge import CARDS, SLICES, Judge, limits_of
from tests.simulation.kube_network import Front, KubeAccess, SimulatedCluster
from tests.simulation.kube_users import OURS, PODS, Users
from tests.simulation.processes import Body
from tests.simulation.weather import Weather
from tests.support.kube_objects import kube_node
from tests.support.memory_kube import ENDED, MemoryKube
from tests.support.memory_kube_store import Write
from tests.support.memory_server import Stored

SCHEDULERS = frozenset({"apportion", "volcano"})
HAMI = "hami-scheduler"
SHRUNK = "500m"
COMPARE_EVERY_S = 30.0
START_S = (0.1, 3.0)
END_S = (0.1, 6.0)
COLLECT_S = (2.0, 15.0)
BACK_S = (2.0, 20.0)
AWAY_S = (0.2, 12.0)
_encode = msgspec.json.Encoder().encode


class Cluster:
    """A simulated cluster, in which the services find pods and bind them."""

    quiet_s = IDLE_S + 10.0

    def __init__(
        self, weather: Weather, nodes: list[str], books: Books, complain: Callable[[str], None]
    ) -> None:
        self._weather = weather
        self._chance = weather.stream("cluster")
        self._slices = weather.stream("slices")
        self._resizes = weather.stream("resizes")
        self._books = books
        self.server = MemoryKube()
        self.judge = Judge(self.server, books, complain)
        self._front = Front(self.server, weather)
        self._accesses: list[KubeAccess] = []
        self._nodes = nodes
        self._leaver = self._chance.choice([*nodes[1:], ""])
        self._users = Users(self.server, weather.stream("users"))
        self.server.store.listen(self._wrote)
        for name in nodes:
            self._join(name)
        self.deeds: dict[str, Callable[[], object]] = {
            "api away": self._leave,
            "api partition": self._partition,
            "past forgotten": self.server.store.forget,
            "node left": self._node_left,
            "node unready": self._node_unready,
            "pod ended": self._end,
            "pod force-deleted": lambda: self._users.delete(grace_s=0),
            "pod made again": self._users.make_again,
            "pod held by a finalizer": self._users.hold,
            "bound by another": self._bind_one,
            "slice of another scheduler": self._take_slice,
            "pod shrunk": self._shrink,
        }

    def access(self, name: str) -> KubeAccess:
        access = KubeAccess(self._front, name)
        self._accesses.append(access)
        return access

    def watcher(self, access: KubeAccess | None) -> Body:
        choice = SimulatedCluster(wanted=True, access=access)

        async def body(service: Service) -> None:
            reading = watcher.PodReading(SCHEDULERS)
            await watcher.kube_body(service, choice, reading, COMPARE_EVERY_S)

        return body

    def binder(self, access: KubeAccess | None) -> Body:
        choice = SimulatedCluster(wanted=True, access=access)
        # No kubelet counts here; tests/unit/binder covers what nodes show, in virtual time.
        return lambda service: binder.kube_body(service, choice, show=False, dra=False)

    def stir(self) -> None:
        self._users.stir()

    def mend(self) -> None:
        self._front.come_back()
        for access in self._accesses:
            access.mend()
        for name in self._nodes:
            if name != self._leaver:
                self._join(name)
        self._users.let_go()

    def differences(self, state: State) -> Iterator[str]:
        return self.judge.differences(state)

    # ------------------------------------------------------------------ the API server

    def _leave(self) -> None:
        self._front.leave()
        self._later(AWAY_S, self._front.come_back)

    def _partition(self) -> None:
        access = self._chance.choice(self._accesses)
        access.cut()
        self._later((0.2, 30.0), access.mend)

    def _later(self, when_s: tuple[float, float], call: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(self._chance.uniform(*when_s), call)

    def _do(self, method: str, path: str, body: Any, content_type: str = JSON) -> Answer:
        return self.server.handle(method, path, body=_encode(body), content_type=content_type)

    # ------------------------------------------------------------------ nodes

    def _join(self, name: str) -> None:
        """Add the node, or mark it ready if it exists.

        Its kubelet then ends the pods that were deleted while the node was away."""
        node = kube_node(name, allocatable={"cpu": "64", "memory": "256Gi", "pods": "110"})
        if not self._do("POST", "/api/v1/nodes", node).ok:
            self._say_ready(name, "True")
        for pod in self.server.store.all("pods"):
            if pod["spec"].get("nodeName") == name and pod["metadata"].get("deletionTimestamp"):
                self._remove(pod, END_S)

    def _say_ready(self, name: str, status: str) -> None:
        patch = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
        self._do("PATCH", f"/api/v1/nodes/{name}/status", patch, MERGE_PATCH)

    def _node_left(self) -> None:
        name = self._chance.choice(self._nodes)
        if self._do("DELETE", f"/api/v1/nodes/{name}", {}).ok:
            if name != self._leaver:
                self._later(BACK_S, lambda: self._join(name))
            for pod in self.server.store.all("pods"):
                if pod["spec"].get("nodeName") == name:
                    self._collect(pod)

    def _node_unready(self) -> None:
        name = self._chance.choice(self._nodes)
        self._say_ready(name, "False")
        self._later(BACK_S, lambda: self._say_ready(name, "True"))

    # ------------------------------------------------------------------ pods on nodes

    def _wrote(self, write: Write) -> None:
        """React to a changed pod: bind it, start it, or delete it."""
        if write.resource != "pods" or write.type == "DELETED":
            return
        pod = write.object
        node = pod["spec"].get("nodeName")
        if not node:
            if pod["spec"]["schedulerName"] not in (*OURS, HAMI) and write.type == "ADDED":
                self._later(START_S, partial(self._bind, pod["metadata"]["name"]))
            return
        if self.server.store.get("nodes", node) is None:
            self._collect(pod)
        elif pod["metadata"].get("deletionTimestamp"):
            self._remove(pod, END_S)
        elif pod["status"]["phase"] == "Pending":
            meta = pod["metadata"]
            self._later(START_S, partial(self._say_phase, meta["name"], meta["uid"], "Running"))

    def _say_phase(self, name: str, uid: str, phase: str, reason: str = "") -> None:
        """Report a pod's phase as its kubelet does, unless the pod has ended."""
        found = self.server.store.get("pods", f"sim/{name}")
        if found is None or found["status"]["phase"] in ENDED:
            return
        patch = {"metadata": {"uid": uid}, "status": {"phase": phase, "reason": reason}}
        self._do("PATCH", f"{PODS}/{name}/status", patch, MERGE_PATCH)

    def _remove(self, pod: dict[str, Any], when_s: tuple[float, float]) -> None:
        path = f"{PODS}/{pod['metadata']['name']}"
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self._later(when_s, lambda: self._do("DELETE", path, options))

    def _collect(self, pod: dict[str, Any]) -> None:
        """Remove the pod after a while, if its node is still missing then."""
        node, name = pod["spec"]["nodeName"], pod["metadata"]["name"]
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}

        def end() -> None:
            if self.server.store.get("nodes", node) is None:
                self._do("DELETE", f"{PODS}/{name}", options)

        self._later(COLLECT_S, end)

    def _end(self) -> None:
        """Let a random pod succeed or fail."""
        running = [
            pod["metadata"]
            for pod in self.server.store.all("pods")
            if pod["spec"].get("nodeName") and pod["status"]["phase"] not in ENDED
        ]
        if running:
            chosen = self._chance.choice(running)
            phase = self._chance.choice(ENDED)
            self._say_phase(chosen["name"], chosen["uid"], phase, "Evicted")

    def heed(self, stored: Stored) -> None:
        """Fail each pod for which an agent has recorded AllocationFailed, as a kubelet would."""
        for record in stored.records:
            if ".allocation." not in record.subject:
                continue
            data = msgspec.json.decode(record.payload)
            if str(data.get("type", "")).endswith("AllocationFailed"):
                uid = data["data"]["pod"]
                for pod in self.server.store.all("pods"):
                    if pod["metadata"]["uid"] == uid and pod["spec"].get("nodeName"):
                        self._fail(pod["metadata"]["name"], uid)

    def _fail(self, name: str, uid: str) -> None:
        why = "UnexpectedAdmissionError"
        self._later(START_S, partial(self._say_phase, name, uid, "Failed", why))

    def _bind_one(self) -> None:
        """Let another scheduler bind one of Apportion's pods."""
        pending = self._users.pending()
        if pending:
            self._bind(self._chance.choice(pending))

    def _take_slice(self) -> None:
        """Bind a HAMi pod to a slice of a MIG device.

        The pod does not always record which slice it uses, as with HAMi up to 2.9."""
        chance, devices = self._slices, self._books.devices
        cut = sorted(
            name
            for name, node in self._books.node_of.items()
            if devices[name].mode == "mig" and node in self._nodes
        )
        if not cut or not (pod := self._users.make_for(HAMI)):
            return
        card = devices[chance.choice(cut)]
        least = mig_profiles(card.family, card.model)[0]
        used = self.judge.slices(card.id)
        free = [start for start in least.starts if start not in used]
        place = chance.choice(("", "", "[0-0]")) if free else ""
        notes = {CARDS: f"{card.id}{place},NVIDIA,{least.memory_mib},0:;"}
        if free and not place and chance.random() < 0.6:
            placement = {"start": chance.choice(free), "size": least.size}
            one = {
                "containerIndex": 0, "deviceIndex": 0, "gpuUUID": card.id, "profile": least.name,
                "placement": placement,
            }  # fmt: skip
            notes[SLICES] = _encode([one]).decode()
        about = {"metadata": {"name": pod, "annotations": notes}}
        target = {"apiVersion": "v1", "kind": "Node", "name": self._books.node_of[card.id]}
        self._do("POST", f"{PODS}/{pod}/binding", about | {"target": target})

    def _shrink(self) -> None:
        """Reduce the resource requests of another scheduler's pod.

        In half of the cases, the pod's kubelet never applies the change."""
        found = [
            pod
            for pod in self.server.store.all("pods")
            if pod["status"]["phase"] == "Running" and limits_of(pod).get("cpu", SHRUNK) != SHRUNK
        ]
        if not found:
            return
        pod = self._resizes.choice(found)
        meta, before = pod["metadata"], limits_of(pod)
        less = before | {"cpu": SHRUNK}
        self._say_given(meta["name"], meta["uid"], before)
        (container,) = pod["spec"]["containers"]
        patch = {"spec": {"containers": [container | {"resources": {"limits": less}}]}}
        self._do("PATCH", f"{PODS}/{meta['name']}", patch, MERGE_PATCH)
        if self._resizes.random() < 0.5:
            delay_s = self._resizes.uniform(*END_S)
            said = partial(self._say_given, meta["name"], meta["uid"], less)
            asyncio.get_running_loop().call_later(delay_s, said)

    def _say_given(self, name: str, uid: str, limits: dict[str, str]) -> None:
        """Report, as a kubelet does, which resources a pod's container has been given."""
        given = {"name": "main", "resources": {"requests": limits}, "allocatedResources": limits}
        patch = {"metadata": {"uid": uid}, "status": {"containerStatuses": [given]}}
        self._do("PATCH", f"{PODS}/{name}/status", patch, MERGE_PATCH)

    def _bind(self, name: str) -> None:
        """Bind a pod as another scheduler does, without naming its devices."""
        target = {"apiVersion": "v1", "kind": "Node", "name": self._chance.choice(self._nodes)}
        self._do("POST", f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": target})
