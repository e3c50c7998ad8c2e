"""Each sample manifest is created with kubectl, and its pods are bound as expected."""

import json
from collections import Counter
from typing import Any, NamedTuple

import yaml

from apportion.core.workloads.adoption.placement_annotations import ATTEMPT, DIALECT, SHARES, UID
from apportion_schemas import NodeReported, PodBound, PodPlaced
from tests.support.control_plane import ROOT
from tests.support.kube_objects import kube_node
from tests.support.kube_world import KubeWorld
from tests.support.polling import until
from tests.support.volcano_controller import make_pods

PODS = ROOT / "examples" / "pods"
FLEET = ROOT / "services" / "apportion" / "cli" / "up" / "fleet.yaml"
HAMI = ("hami.io/vgpu-devices-allocated", "hami.io/vgpu-node", "hami.io/vgpu-time")
VOLCANO = ("volcano.sh/vgpu-ids-new", "volcano.sh/vgpu-node", "volcano.sh/vgpu-time")
CARD = ("volcano.sh/gpu-index", "volcano.sh/predicate-time")
VCUDA = ("tencent.com/predicate-gpu-idx-0", "tencent.com/predicate-node")
DOCKER = ("docker.com/predicate-gpu-idx-0", "docker.com/predicate-node")
ASCEND = ("hami.io/Ascend310P-devices-allocated", "huawei.com/Ascend310P")
MIG_NODE, MPS_NODE, NPU_NODE = "a100-mig-1", "l40s-mps-1", "ascend-1"


class Expected(NamedTuple):
    """The expected result of a manifest: its number of pods, and the keys of their annotations.

    `node` is set if the pods fit only that node."""

    pods: int
    keys: tuple[str, ...] = ()
    node: str = ""


EXPECTED = {
    "volcano-vgpu-hami-core": Expected(1, VOLCANO),
    "dynamic-mig": Expected(1, VOLCANO, MIG_NODE),
    "volcano-vgpu-percentage": Expected(1, VOLCANO),
    "volcano-vgpu-any-mode": Expected(1, VOLCANO),
    "vcuda-exclusive": Expected(1, VCUDA),
    "vcuda-shared": Expected(1, DOCKER),
    "volcano-gpu-sharing-job": Expected(2, CARD),
    "volcano-gpu-number": Expected(1, CARD),
    "volcano-vgpu-job": Expected(1, VOLCANO),
    "volcano-vgpu-mps": Expected(1, VOLCANO, MPS_NODE),
    "ascend-310p": Expected(1, ASCEND, NPU_NODE),
    "distributed-job": Expected(4),
    "multi-gpu-job": Expected(1),
    "gpu-types": Expected(3),
    "hami-percentage-priority": Expected(1, HAMI),
    "hami": Expected(1, HAMI),
    "hami-defaults": Expected(1, HAMI),
    "hami-two-containers": Expected(1, HAMI),
    "volcano-two-vgpus": Expected(1, VOLCANO),
    "whole-gpus": Expected(1),
}


def test_every_manifest_is_expected_here() -> None:
    """Every sample manifest has an expected result in this module, so each new sample is tested
    too."""
    assert sorted(EXPECTED) == sorted(path.stem for path in PODS.glob("*.yaml"))


async def create(world: KubeWorld, manifest: str) -> None:
    """Create the manifest with kubectl in its own namespace. For a Volcano Job, create its pods
    too."""
    namespace = manifest.lower()
    await world.plane.user("create", "namespace", namespace, ok=None)
    await world.plane.user("create", "-n", namespace, "-f", str(PODS / f"{manifest}.yaml"))
    await make_pods(world, namespace)


async def bound(world: KubeWorld, count: int) -> list[Any]:
    """Wait until at least `count` pods are bound. Return all pods of the cluster."""

    async def there() -> list[Any]:
        pods = json.loads(await world.plane.user("get", "pods", "-A", "-o", "json"))["items"]
        nodes = [pod["spec"].get("nodeName") for pod in pods]
        return pods if sum(map(bool, nodes)) >= count else []

    return await until(there, f"{count} pods to be bound", interval_s=0.5)


async def test_every_manifest_is_bound_and_says_so(world: KubeWorld) -> None:
    """Each sample's pods are bound exactly once, to the node of their placement.

    They get the placement's shares, the annotations of their dialect, and an Event."""
    fleet = yaml.safe_load(FLEET.read_text())["nodes"]
    resources = {"cpu": "256", "memory": "2000Gi", "pods": "110"}
    await world.plane.apply(*(kube_node(row["node"], allocatable=resources) for row in fleet))
    await world.start("agent", "--fleet", str(FLEET))
    for verb in ("watcher", "scheduler", "binder"):
        await world.start(verb)
    for manifest in EXPECTED:
        await create(world, manifest)
    pods = await bound(world, sum(row.pods for row in EXPECTED.values()))
    devices = {
        node.node: {device.id for device in node.devices} for node in world.facts.of(NodeReported)
    }
    placed = {event.pod: event for event in world.facts.of(PodPlaced)}
    seen: Counter[str] = Counter()
    for pod in pods:
        meta, node = pod["metadata"], pod["spec"]["nodeName"]
        (manifest,) = (name for name in EXPECTED if name.lower() == meta["namespace"])
        expected, notes = EXPECTED[manifest], meta["annotations"]
        seen[manifest] += 1
        assert node == placed[meta["uid"]].node, meta["name"]
        assert node == (expected.node or node), meta["name"]
        shares = json.loads(notes[SHARES])
        assert {share["device"] for share in shares} <= devices[node], meta["name"]
        assert (notes[ATTEMPT], notes[UID]) == ("1", meta["uid"])
        missing = [key for key in expected.keys if not notes.get(key)]
        assert not missing, f"{manifest} ({notes[DIALECT]}) lacks {missing}: {sorted(notes)}"
    assert seen == {name: row.pods for name, row in EXPECTED.items()}
    assert len(await world.facts.count(PodBound, len(pods))) == len(pods)
    for manifest in ("volcano-vgpu-hami-core", "ascend-310p"):
        (pod,) = (pod for pod in pods if pod["metadata"]["namespace"] == manifest.lower())
        meta = pod["metadata"]
        words = ("Scheduled", f"bound to {pod['spec']['nodeName']}")
        await world.described(meta["name"], *words, namespace=meta["namespace"])
