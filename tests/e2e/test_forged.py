"""Forged annotations on a pod give it no devices on a node, because the ledger decides."""

import json
from typing import Any

from apportion_schemas import NodeReported, PodPlaced, SharesAllocated
from tests.support.kube_objects import kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.kubelet_fixtures import agent_options
from tests.support.real_kubelet import RealKubelet

LOOKS = {"image": "test:1", "imagePullPolicy": "Never", "command": ["sleep", "600"]}
ASKED_MIB, FORGED_MIB = 1_000, 9_000


def forged(name: str, uid: str, limits: dict[str, str], **spec: Any) -> dict[str, Any]:
    """Return a pod whose forged annotations claim most of the GPU."""
    held = f"{uid},NVIDIA,{FORGED_MIB},0:;"
    own = [{"container": "main", "device": uid, "memory_mib": FORGED_MIB, "cores": 0}]
    notes = {
        "hami.io/vgpu-devices-allocated": held,
        "hami.io/vgpu-devices-to-allocate": held,
        "hami.io/vgpu-node": "gpu-1",
        "hami.io/bind-phase": "success",
        "volcano.sh/vgpu-ids-new": held,
        "apportion.dev/shares": json.dumps(own),
        "apportion.dev/attempt": "1",
    }
    pod = kube_pod(name, limits, annotations=notes, **spec)
    pod["spec"]["containers"][0] |= LOOKS
    return pod


async def test_a_forged_annotation_gets_a_pod_nothing(
    world: KubeWorld, kubelet: RealKubelet
) -> None:
    """Without the webhook, a pod with forged annotations gets only the share that was placed for
    it.

    A pod that a user put onto the node by hand does not start."""
    await world.start("agent", *agent_options(kubelet, "1xT4"))
    await kubelet.offered("nvidia.com/gpu", 10)
    (report,) = await world.facts.count(NodeReported, 1)
    (card,) = report.devices
    for verb in ("watcher", "scheduler", "binder"):
        await world.start(verb)
    await world.plane.apply(forged("asks", card.id, share(ASKED_MIB)))
    made = await kubelet.made("asks", "main")
    assert made["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{ASKED_MIB}m"
    names = [f"sneaks-{each}" for each in ("apportion", "hami-scheduler", "someone-else")]
    for name in names:
        by_hand = {"nodeName": kubelet.node, "schedulerName": name.removeprefix("sneaks-")}
        await world.plane.apply(forged(name, card.id, share(ASKED_MIB), **by_hand))
        await world.described(name, "the ledger has no placement of pod")
        assert kubelet.created(name, "main") == []
        await world.delete(name)
    assert [event.name for event in world.facts.of(PodPlaced)] == ["asks"]
    assert len(world.facts.of(SharesAllocated)) == 1
