"""The users of a simulated cluster. They create, delete and recreate pods and gangs of every kind.

Invariant: the number of pods is limited, and a pod that a user deletes stays deleted."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from apportion.runtime.kube.client import JSON, Answer
from tests.support.kube_objects import kube_pod
from tests.support.memory_kube import ENDED, MemoryKube
from tests.support.memory_kube_store import VOLCANO

NAMESPACE = "sim"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
GROUPS = f"/apis/{VOLCANO}/namespaces/{NAMESPACE}/podgroups"
PODS_MAX = 20
MEMORY_MIB = (1024, 2048, 4096, 8000, 12_000, 15_360)
CORES = (0, 0, 10, 25, 30, 50, 100)
OURS = ("apportion", "apportion", "apportion", "volcano")
SLICE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "5000"}
FINALIZER = "example.com/wait"
UNREADABLE = {"volcano.sh/vgpu-mode": "teleport"}
JSON_MERGE_PATCH = "application/merge-patch+json"
_encode = msgspec.json.Encoder().encode


class Users:
    """All users of the simulated cluster."""

    def __init__(self, server: MemoryKube, chance: random.Random) -> None:
        self._server = server
        self._chance = chance
        self._number = 0
        self._pods: dict[str, dict[str, Any]] = {}
        self._members: dict[str, list[str]] = {}

    def stir(self) -> None:
        """Simulate a few actions of users."""
        self._pods = {name: pod for name, pod in self._pods.items() if self._there(name)}
        for _ in range(self._chance.choice((1, 1, 2, 4))):
            deed = self._chance.random()
            if deed < 0.45 or not self._pods:
                self._make(self._pod(self._limits()))
            elif deed < 0.57:
                self._make_gang()
            elif deed < 0.85:
                self.delete()
            elif deed < 0.92:
                self._make_foreign()
            else:
                self._make_unreadable()

    def pending(self) -> list[str]:
        """Return the names of Apportion's pods that are not bound yet."""
        found = ((name, self._there(name)) for name in self._pods)
        return [name for name, pod in found if pod and _is_ours(pod) and not _node(pod)]

    # ------------------------------------------------------------------ deeds

    def delete(self, grace_s: int | None = None) -> None:
        """Delete a random pod, or a whole gang."""
        name = self._any()
        if not name:
            return
        group = (self._pods[name]["metadata"].get("annotations") or {}).get(
            "scheduling.k8s.io/group-name", ""
        )
        names = [name]
        if group and self._chance.random() < 0.7:
            names = self._members.pop(group, names)
            self._do("DELETE", f"{GROUPS}/{group}", {})
        for each in names:
            self._delete(each, grace_s)

    def _delete(self, name: str, grace_s: int | None) -> None:
        options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        self._do("DELETE", f"{PODS}/{name}", options)
        self._pods.pop(name, None)

    def make_again(self) -> None:
        """Delete a random pod and create it again under the same name at once, as a controller
        does."""
        name = self._any()
        if name:
            again = self._pods[name]
            if self._chance.random() < 0.5 and "annotations" not in again["metadata"]:
                again = self._pod(self._limits(), name=name)
            self._delete(name, 0)
            self._make(again)

    def hold(self) -> None:
        """Add a finalizer to a random pod and delete the pod, so that it stays terminating for a
        while."""
        name = self._any()
        if name:
            patch = {"metadata": {"finalizers": [FINALIZER]}}
            self._do("PATCH", f"{PODS}/{name}", patch, JSON_MERGE_PATCH)
            self._delete(name, None)

    def make_for(self, scheduler: str) -> str:
        """Create a pod for another scheduler. Return its name, or "" if there are too many pods."""
        pod = self._pod(SLICE, schedulerName=scheduler)
        self._make(pod)
        name = str(pod["metadata"]["name"])
        return name if name in self._pods else ""

    def let_go(self) -> None:
        """Remove the finalizers of all pods."""
        for pod in self._server.store.all("pods"):
            if pod["metadata"].get("finalizers"):
                path = f"{PODS}/{pod['metadata']['name']}"
                self._do("PATCH", path, {"metadata": {"finalizers": None}}, JSON_MERGE_PATCH)

    def _make_gang(self) -> None:
        size = self._chance.randint(2, 4)
        self._number += 1
        name = f"gang{self._number}"
        least = size if self._chance.random() < 0.7 else size - 1
        limits = self._limits()
        note = {"scheduling.k8s.io/group-name": name}
        pods = [self._pod(limits, annotations=note) for _ in range(size)]
        group = {"metadata": {"name": name}, "spec": {"minMember": least}}
        if len(self._pods) + size <= PODS_MAX:
            self._do("POST", GROUPS, group)
            self._members[name] = [pod["metadata"]["name"] for pod in pods]
            for pod in pods:
                self._make(pod)

    def _make_foreign(self) -> None:
        """Create a pod without devices for another scheduler, which binds it at once."""
        pod = self._pod({"cpu": self._chance.choice(("1", "4"))}, schedulerName="default-scheduler")
        self._make(pod)

    def _make_unreadable(self) -> None:
        """Create a pod that Apportion cannot read. If there already is one, repair it instead."""
        for name, pod in self._pods.items():
            if pod["metadata"].get("annotations") == UNREADABLE:
                notes = dict.fromkeys(UNREADABLE)
                patch = {"metadata": {"annotations": notes}}
                self._do("PATCH", f"{PODS}/{name}", patch, JSON_MERGE_PATCH)
                self._pods[name] = pod | {"metadata": {"name": name}}
                return
        self._make(self._pod(self._limits(), annotations=UNREADABLE))

    # ------------------------------------------------------------------ pods

    def _any(self) -> str:
        return self._chance.choice(list(self._pods)) if self._pods else ""

    def _there(self, name: str) -> dict[str, Any] | None:
        """Return the pod, or None if it is deleted, is terminating or has ended."""
        pod = self._server.store.get("pods", f"{NAMESPACE}/{name}")
        if pod is None or pod["metadata"].get("deletionTimestamp"):
            return None
        return None if pod["status"]["phase"] in ENDED else pod

    def _make(self, pod: dict[str, Any]) -> None:
        if len(self._pods) < PODS_MAX and self._do("POST", PODS, pod).ok:
            self._pods[pod["metadata"]["name"]] = pod

    def _pod(self, limits: dict[str, str], *, name: str = "", **more: Any) -> dict[str, Any]:
        self._number += 1
        fields: dict[str, Any] = {"schedulerName": self._chance.choice(OURS)}
        priority = self._chance.choice((0, 0, 0, 10))
        if priority:
            fields["priority"] = priority
        return kube_pod(name or f"pod{self._number}", limits, **(fields | more))

    def _limits(self) -> dict[str, str]:
        chance = self._chance
        limits = {"nvidia.com/gpu": str(chance.choice((1, 1, 1, 2)))}
        if chance.random() < 0.1:
            return limits | {"nvidia.com/gpucores": "100"}
        limits["nvidia.com/gpumem"] = str(chance.choice(MEMORY_MIB))
        cores = chance.choice(CORES)
        return limits | {"nvidia.com/gpucores": str(cores)} if cores else limits

    def _do(self, method: str, path: str, body: Any, content_type: str = JSON) -> Answer:
        return self._server.handle(method, path, body=_encode(body), content_type=content_type)


def _node(pod: dict[str, Any]) -> str:
    return str(pod["spec"].get("nodeName", ""))


def _is_ours(pod: dict[str, Any]) -> bool:
    return pod["spec"]["schedulerName"] in OURS
