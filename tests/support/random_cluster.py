"""Create a random cluster from a seed: nodes, placed pods, and pending pods.

There are no devices; the nodes and pods have the fields by which kube-scheduler filters. Amounts
are few and small, so that most pods fit some nodes and not others."""

from __future__ import annotations

import random
from typing import Any

from tests.support.kube_objects import kube_node, kube_pod
from tests.support.random_storage import RandomStorage

NAMESPACES = ("default", "other")
TEAM = "team=one"
"""The label of the second namespace."""
TEAMS: tuple[dict[str, Any], ...] = (
    {},
    {"matchLabels": {"team": "one"}},
    {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
    {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["one"]}]},
    {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]},
)
HOST, ZONE, RACK = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "rack"
APPS = ("web", "db", "job")
NIC = "example.com/nic"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TAINTS = (
    {"key": "team", "value": "red", "effect": "NoSchedule"},
    {"key": "team", "value": "blue", "effect": "NoExecute"},
    {"key": "old", "value": "", "effect": "PreferNoSchedule"},
)

UNREADY = {"key": "node.kubernetes.io/not-ready", "value": "", "effect": "NoSchedule"}


class RandomCluster:
    """The objects of a random cluster. The same seed always gives the same cluster."""

    def __init__(self, seed: int, *, nodes: int = 30, there: int = 100, waiting: int = 300) -> None:
        self._chance = random.Random(seed)
        self.nodes = [self._node(f"n{at:02}") for at in range(nodes)]
        names = [node["metadata"]["name"] for node in self.nodes]
        self.storage = RandomStorage(self._chance, NAMESPACES, names)
        self.there = [self._bound(f"there-{at:03}") for at in range(there)]
        self.waiting = [self._waiting(f"waits-{at:03}") for at in range(waiting)]
        self.leaving = [pod for pod in self.there if self._seldom(4)]
        """Pods of `there` that are being deleted and still run."""

    def _seldom(self, one_in: int) -> bool:
        return self._chance.randrange(one_in) == 0

    def _node(self, name: str) -> dict[str, Any]:
        chance = self._chance
        labels = {HOST: name, "size": str(chance.choice((1, 2, 4)))}
        if not self._seldom(6):
            labels[ZONE] = chance.choice(("a", "b", "c"))
        if self._seldom(2):
            labels[RACK] = chance.choice(("1", "2"))
        allocatable = {
            "cpu": chance.choice(("2", "4", "8")),
            "memory": chance.choice(("2Gi", "8Gi")),
            "pods": chance.choice(("5", "9", "110")),
        }
        if self._seldom(3):
            allocatable[NIC] = "2"
        taints = [taint for taint in TAINTS if self._seldom(6)]
        ready = not self._seldom(6)
        if not ready and not self._seldom(4):
            taints.append(UNREADY)
        fields = {"labels": labels, "taints": taints, "allocatable": allocatable, "ready": ready}
        found = kube_node(name, **fields)
        if self._seldom(10):
            found["spec"]["unschedulable"] = True
        return found

    def _bound(self, name: str) -> dict[str, Any]:
        found = self._pod(name, anti=6)
        found["spec"]["nodeName"] = self._chance.choice(self.nodes)["metadata"]["name"]
        return found

    def _waiting(self, name: str) -> dict[str, Any]:
        chance = self._chance
        found = self._pod(name, anti=5)
        spec = found["spec"]
        if self._seldom(5):
            key, values = chance.choice(((ZONE, "abc"), (RACK, "12"), ("size", "124")))
            spec["nodeSelector"] = {key: chance.choice(values)}
        if self._seldom(4):
            spec.setdefault("affinity", {})["nodeAffinity"] = {
                REQUIRED: {
                    "nodeSelectorTerms": [self._node_term() for _ in range(chance.choice((1, 2)))]
                }
            }
        if self._seldom(5):
            terms = [self._pod_term() for _ in range(chance.choice((1, 1, 2)))]
            for each in terms:  # combined terms over several namespaces are refused by name
                each["namespaces"] = list(NAMESPACES)
                each.pop("namespaceSelector", None)
            spec.setdefault("affinity", {})["podAffinity"] = {REQUIRED: terms}
        if self._seldom(4):
            keys = chance.sample((HOST, ZONE, RACK), chance.choice((1, 1, 2)))
            spec["topologySpreadConstraints"] = [self._spread(key) for key in keys]
        tolerations = [each for each in self._tolerations() if self._seldom(4)]
        if tolerations:
            spec["tolerations"] = tolerations
        return found

    def _pod(self, name: str, *, anti: int) -> dict[str, Any]:
        chance = self._chance
        labels = {"app": chance.choice(APPS)} if not self._seldom(5) else {}
        if self._seldom(3):
            labels["version"] = chance.choice(("1", "2"))
        found = kube_pod(name, labels=labels, schedulerName="default-scheduler")
        found["metadata"]["namespace"] = chance.choice(NAMESPACES)
        container = found["spec"]["containers"][0]
        requests = {"cpu": chance.choice(("0", "100m", "500m", "1500m"))}
        requests["memory"] = chance.choice(("0", "64Mi", "512Mi", "3Gi"))
        container["resources"] = {"requests": requests}
        if self._seldom(8):
            container["resources"]["limits"] = {NIC: "1"}
        if self._seldom(5):
            port: dict[str, Any] = {"containerPort": 80, "hostPort": chance.choice((80, 81))}
            port["protocol"] = chance.choice(("TCP", "TCP", "UDP"))
            port["hostIP"] = chance.choice(("", "", "10.0.0.1", "10.0.0.2"))
            container["ports"] = [port]
        volumes = self.storage.mounts() if self._seldom(5) else []
        if self._seldom(12):
            volumes.append(self.storage.disk())
        if volumes:
            found["spec"]["volumes"] = volumes
        if self._seldom(anti):
            found["spec"]["affinity"] = {"podAntiAffinity": {REQUIRED: [self._pod_term()]}}
        return found

    def _tolerations(self) -> list[dict[str, str]]:
        return [
            {"key": "team", "operator": "Equal", "value": "red", "effect": "NoSchedule"},
            {"key": "team", "operator": "Exists"},
            {"operator": "Exists", "effect": "NoExecute"},
            {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
            {"key": UNREADY["key"], "operator": "Exists"},
            {"operator": "Exists"},
        ]

    def _node_term(self) -> dict[str, Any]:
        chance = self._chance
        if self._seldom(8):
            return {}
        kinds: list[dict[str, Any]] = [
            {"key": ZONE, "operator": chance.choice(("In", "NotIn")), "values": ["a", "b"]},
            {"key": RACK, "operator": chance.choice(("Exists", "DoesNotExist"))},
            {"key": "size", "operator": chance.choice(("Gt", "Lt")), "values": ["2"]},
        ]
        term: dict[str, Any] = {"matchExpressions": chance.sample(kinds, chance.choice((1, 2)))}
        if self._seldom(3):
            name = chance.choice(self.nodes)["metadata"]["name"]
            operator = chance.choice(("In", "NotIn"))
            term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [name]}]
        return term

    def _selector(self) -> dict[str, Any]:
        """Return a random label selector of one of three kinds."""
        chance = self._chance
        app = chance.choice(APPS)
        kinds: list[dict[str, Any]] = [
            {"matchLabels": {"app": app}},
            {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [app]}]},
            {"matchExpressions": [{"key": "version", "operator": "Exists"}]},
        ]
        return chance.choice(kinds)

    def _pod_term(self) -> dict[str, Any]:
        chance = self._chance
        key = chance.choice((HOST, HOST, ZONE, RACK))
        term: dict[str, Any] = {"labelSelector": self._selector(), "topologyKey": key}
        if self._seldom(8):
            term["labelSelector"] = {}
        elif self._seldom(8):
            del term["labelSelector"]
        if self._seldom(3):
            term["namespaces"] = [chance.choice(NAMESPACES)]
        if self._seldom(2):
            term["namespaceSelector"] = chance.choice(TEAMS)
        if self._seldom(5) and _may_have_keys(term):
            term[chance.choice(("matchLabelKeys", "mismatchLabelKeys"))] = ["version"]
        return term

    def _spread(self, key: str) -> dict[str, Any]:
        chance = self._chance
        found: dict[str, Any] = {
            "labelSelector": self._selector(),
            "topologyKey": key,
            "maxSkew": chance.choice((1, 2, 4)),
            "whenUnsatisfiable": chance.choice(
                ("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")
            ),
        }
        if found["whenUnsatisfiable"] == "DoNotSchedule" and self._seldom(4):
            found["minDomains"] = chance.choice((2, 4))
        if self._seldom(3):
            found["nodeAffinityPolicy"] = chance.choice(("Honor", "Ignore"))
        if self._seldom(3):
            found["nodeTaintsPolicy"] = chance.choice(("Honor", "Ignore"))
        if self._seldom(6):
            found["labelSelector"] = {}
        elif self._seldom(6):
            del found["labelSelector"]
        if self._seldom(4) and _may_have_keys(found):
            found["matchLabelKeys"] = ["version"]
        return found


def _may_have_keys(term: dict[str, Any]) -> bool:
    """Return True if Kubernetes accepts `matchLabelKeys: [version]` in the term."""
    return "labelSelector" in term and "version" not in str(term["labelSelector"])
