"""Create random storage for a random cluster: claims in every state, volumes, and limits on the
volumes of nodes.

Every namespace has several claims of each kind, with the same names. So several pods share some of
the claims, and other claims have a single user."""

from __future__ import annotations

import random
from typing import Any

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
DRIVER = "csi.example.com"
CLASSES = ("local", "made", "zonal", "roomy", "now")
BOUND = "pv.kubernetes.io/bind-completed"
GONE = "gone"
"""A claim that does not exist."""


class RandomStorage:
    """The storage objects of a random cluster, drawn from a seed."""

    def __init__(
        self, chance: random.Random, namespaces: tuple[str, ...], nodes: list[str]
    ) -> None:
        self._chance = chance
        self._nodes = nodes
        self.objects: list[dict[str, Any]] = [*_classes(), *self._limits(), *self._rooms()]
        self.free = [f"free-{at}" for at in range(4)]
        self.objects += [self._volume(name, "local", on=chance.choice(nodes)) for name in self.free]
        self.claims: list[str] = [GONE]
        kinds = (("bound", 6), ("alone", 3), *((name, 2) for name in CLASSES))
        for kind, count in kinds:
            for at in range(count):
                name = f"{kind}-{at}"
                self.claims.append(name)
                for namespace in namespaces:
                    self.objects += self._claim(namespace, name, kind)

    def mounts(self) -> list[dict[str, Any]]:
        """Return the volumes of one pod, with at most one claim for a free local volume."""
        chance = self._chance
        names = chance.sample(self.claims, chance.choice((1, 1, 2)))
        if sum(name.startswith("local") for name in names) > 1:
            names = names[:1]
        found: list[dict[str, Any]] = [
            {"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names
        ]
        return found

    def disk(self) -> dict[str, Any]:
        """Return a volume that names its disk directly, without a claim."""
        chance = self._chance
        read = chance.choice((True, False))
        kinds: tuple[dict[str, Any], ...] = (
            {"gcePersistentDisk": {"pdName": chance.choice("ab"), "readOnly": read}},
            {"awsElasticBlockStore": {"volumeID": "v", "readOnly": read}},
            {"iscsi": {"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 0, "readOnly": read}},
            {"rbd": {"monitors": chance.sample("mno", 2), "image": "i", "readOnly": read}},
        )
        return {"name": "disk", **chance.choice(kinds)}

    def _claim(self, namespace: str, name: str, kind: str) -> list[dict[str, Any]]:
        spec: dict[str, Any] = {
            "accessModes": ["ReadWriteOncePod" if kind == "alone" else "ReadWriteOnce"],
            "storageClassName": kind if kind in CLASSES else "",
            "resources": {"requests": {"storage": "1Gi"}},
        }
        meta: dict[str, Any] = {"name": name, "namespace": namespace}
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": meta,
            "spec": spec,
        }
        if kind in CLASSES:
            return [claim]
        volume = f"{namespace}-{name}"
        spec["volumeName"] = volume
        meta["annotations"] = {BOUND: "yes"}
        return [claim, self._volume(volume, "", on="" if self._seldom(2) else self._some_node())]

    def _volume(self, name: str, class_: str, on: str) -> dict[str, Any]:
        source = {"csi": {"driver": DRIVER, "volumeHandle": name}}
        spec: dict[str, Any] = {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class_,
            **(source if self._seldom(2) else {"hostPath": {"path": "/disk"}}),
        }
        labels = {ZONE: self._chance.choice(("a", "b", "a__c"))} if self._seldom(3) else {}
        if on:
            there = {"key": HOST, "operator": "In", "values": [on, self._some_node()]}
            terms = [{"matchExpressions": [there]}]
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        meta = {"name": name, "labels": labels}
        return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": spec}

    def _limits(self) -> list[dict[str, Any]]:
        """Return CSINode objects, some of which limit how many volumes a node can attach."""
        found = []
        for node in self._nodes:
            driver: dict[str, Any] = {"name": DRIVER, "nodeID": node}
            if not self._seldom(3):
                driver["allocatable"] = {"count": self._chance.choice((1, 2, 3))}
            drivers = [] if self._seldom(8) else [driver]
            about = _of("CSINode", node, spec={"drivers": drivers})
            found += [about] if not self._seldom(5) else []
        return found

    def _rooms(self) -> list[dict[str, Any]]:
        """Return the CSIDrivers and the CSIStorageCapacity objects of some nodes."""
        drivers = [
            _of("CSIDriver", "room.example.com", spec={"storageCapacity": True}),
            _of("CSIDriver", DRIVER, spec={"preventPodSchedulingIfMissing": True}),
        ]
        rooms = [
            _of(
                "CSIStorageCapacity",
                f"room-{node}",
                namespace="default",
                storageClassName="roomy",
                nodeTopology={"matchLabels": {HOST: node}},
                capacity=self._chance.choice(("512Mi", "1Gi", "9Gi")),
            )
            for node in self._nodes
            if not self._seldom(4)
        ]
        return [*drivers, *rooms]

    def _some_node(self) -> str:
        return self._chance.choice(self._nodes)

    def _seldom(self, one_in: int) -> bool:
        return self._chance.randrange(one_in) == 0


IQN = "iqn.2026-01.org.example:disk"


def _of(kind: str, name: str, *, namespace: str = "", **fields: Any) -> dict[str, Any]:
    """Return an object of the storage API with these fields."""
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "storage.k8s.io/v1", "kind": kind, "metadata": meta, **fields}


def _classes() -> list[dict[str, Any]]:
    """Return storage classes of every kind."""
    waits = {"volumeBindingMode": "WaitForFirstConsumer"}
    zones = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}]}]
    return [
        _of("StorageClass", "local", provisioner="kubernetes.io/no-provisioner", **waits),
        _of("StorageClass", "made", provisioner=DRIVER, **waits),
        _of("StorageClass", "zonal", provisioner=DRIVER, allowedTopologies=zones, **waits),
        _of("StorageClass", "roomy", provisioner="room.example.com", **waits),
        _of("StorageClass", "now", provisioner=DRIVER, volumeBindingMode="Immediate"),
    ]
