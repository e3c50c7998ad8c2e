"""Pods with volumes wait for their claims, and are placed where their volumes can be used.

The test itself acts as volume controller and provisioner: it binds claims as they would."""

import json
from typing import Any

from apportion_schemas import BindFailed, PlacementVoided
from tests.e2e.test_life import system
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.polling import until

FREE = json.dumps({"status": {"phase": "Available"}})
DRIVER = "csi.example.com"
SELECTED = "volume.kubernetes.io/selected-node"


def claim(name: str = "data", class_: str = "", **spec: Any) -> dict[str, Any]:
    """Return a PersistentVolumeClaim for 1 GiB, ReadWriteOnce by default."""
    wanted = {"accessModes": ["ReadWriteOnce"], "storageClassName": class_, **spec}
    wanted["resources"] = {"requests": {"storage": "1Gi"}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": wanted,
    }


def volume(name: str, node: str, class_: str = "", **spec: Any) -> dict[str, Any]:
    """Return a PersistentVolume that only pods on the node `node` can use."""
    there = {"key": "disk", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class_,
            "hostPath": {"path": "/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}},
            **spec,
        },
    }


def storage_class(name: str, provisioner: str) -> dict[str, Any]:
    """Return a StorageClass whose claims are bound only when a pod uses them."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def mounting(name: str, *claims: str, memory_mib: int = 1_000) -> dict[str, Any]:
    """Return a pod that has a GPU share and mounts these claims."""
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
    return kube_pod(name, share(memory_mib), volumes=volumes)


async def bind(world: KubeWorld, name: str, to: str) -> None:
    """Bind the claim to the volume, as the volume controller does."""
    spec = {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": to}}  # fmt: skip
    await world.plane.user("patch", "pvc", name, "-p", json.dumps(spec))
    phase = json.dumps({"status": {"phase": "Bound"}})
    await world.plane.user("patch", "pvc", name, "--subresource=status", "-p", phase)


async def two_nodes(world: KubeWorld) -> None:
    """Start two nodes with one GPU each, labelled so that a volume can be tied to one of them."""
    await system(world)
    await world.plane.user("label", "node", "n1", "disk=n1")
    await world.plane.apply(kube_node("n2", labels={"disk": "n2"}))
    await world.agents(("n2", "1xT4"))


async def test_H11_a_pod_goes_where_its_volume_is_and_waits_for_its_claim(world: KubeWorld) -> None:
    """A pod stays pending until its claim exists and is bound. The pod is then placed on the
    volume's node."""
    await two_nodes(world)
    await world.plane.apply(mounting("p", "data"))
    await world.described("p", "FailedScheduling", "PersistentVolumeClaim data does not exist")
    await world.plane.apply(claim(), volume("v", "n2"))
    await world.described("p", "PersistentVolumeClaim data is not bound yet")
    (condition,) = (await world.pod("p"))["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "VolumeClaimNotReady")
    await bind(world, "data", "v")
    assert (await world.bound("p"))["spec"]["nodeName"] == "n2"


async def test_H11_a_volume_is_kept_for_the_first_pod_of_a_claim(world: KubeWorld) -> None:
    """When a claim's first pod is placed on a volume's node, the volume is reserved for that claim.

    The pod is bound only after the claim is bound."""
    await two_nodes(world)
    await world.plane.apply(storage_class("local", "kubernetes.io/no-provisioner"))
    await world.plane.apply(volume("v", "n2", "local"), claim("data", "local"))
    await world.plane.user("patch", "pv", "v", "--subresource=status", "-p", FREE)
    await world.plane.apply(mounting("p", "data"))

    async def kept() -> Any:
        return (await world.plane.get("pv", "v"))["spec"].get("claimRef")

    ref = await until(kept, "the volume to be kept")
    assert (ref["namespace"], ref["name"]) == ("default", "data")
    assert "nodeName" not in (await world.pod("p"))["spec"]
    await bind(world, "data", "v")
    assert (await world.bound("p"))["spec"]["nodeName"] == "n2"


async def test_a_volume_is_made_where_the_pod_goes_and_a_failure_is_decided_anew(
    world: KubeWorld,
) -> None:
    """Apportion selects a pod's node, and the provisioner creates the volume there.

    If the provisioner gives up, the pod is placed again."""
    await two_nodes(world)
    await world.plane.apply(storage_class("made", "example.com/disks"), claim("data", "made"))
    await world.plane.apply(mounting("p", "data"))

    async def selected() -> str:
        notes = (await world.plane.get("pvc", "data"))["metadata"].get("annotations", {})
        return str(notes.get(SELECTED, ""))

    await until(selected, "a node to be selected")
    await world.plane.user("annotate", "pvc", "data", f"{SELECTED}-")
    (failed, *_) = await world.facts.count(BindFailed, 1)
    assert "claim data" in failed.message
    await world.facts.count(PlacementVoided, 1)
    node = await until(selected, "a node to be selected again")
    await world.plane.apply(volume("v", node, "made"))
    await bind(world, "data", "v")
    assert (await world.bound("p"))["spec"]["nodeName"] == node


async def test_only_one_pod_has_a_claim_that_is_for_one(world: KubeWorld) -> None:
    """A pod stays pending while another pod uses its ReadWriteOncePod claim."""
    await two_nodes(world)
    alone: dict[str, Any] = {"accessModes": ["ReadWriteOncePod"]}
    await world.plane.apply(claim(**alone), volume("v", "n2", **alone))
    await bind(world, "data", "v")
    await world.plane.apply(mounting("p", "data"))
    await world.bound("p")
    await world.plane.apply(mounting("q", "data"))
    await world.described(
        "q", "PersistentVolumeClaim data is in use by another pod (ReadWriteOncePod)"
    )
    await world.delete("p")
    await world.bound("q")


async def test_H13_a_node_has_so_many_volumes_of_a_driver(world: KubeWorld) -> None:
    """A CSI driver limits the number of volumes on a node, across the pods of all schedulers.

    A pod that would exceed the limit stays pending, and its message names the limit."""
    await two_nodes(world)
    driver = {"name": DRIVER, "nodeID": "n", "allocatable": {"count": 1}}
    csi = {"driver": DRIVER, "volumeHandle": "v"}
    for node in ("n1", "n2"):
        await world.plane.apply(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "CSINode",
                "metadata": {"name": node},
                "spec": {"drivers": [driver]},
            }
        )
    for name in "xyz":
        made = volume(f"v-{name}", "n1", csi=csi)
        del made["spec"]["hostPath"], made["spec"]["nodeAffinity"]
        await world.plane.apply(made, claim(name))
        await bind(world, name, f"v-{name}")
    theirs = mounting("theirs", "x")
    theirs["spec"] |= {"nodeName": "n1", "schedulerName": "default-scheduler"}
    del theirs["spec"]["containers"][0]["resources"]
    await world.plane.apply(theirs)
    await world.plane.apply(mounting("p", "y"))
    assert (await world.bound("p"))["spec"]["nodeName"] == "n2"
    await world.plane.apply(mounting("q", "z"))
    await world.described(
        "q", "FailedScheduling", "node has reached its volume limit for this CSI driver"
    )
    await world.delete("theirs")
    assert (await world.bound("q"))["spec"]["nodeName"] == "n1"
