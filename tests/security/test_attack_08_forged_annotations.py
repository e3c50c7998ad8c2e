"""Attack 8: a tenant writes the annotations that record a pod's devices."""

import json
from typing import Any

import pytest

from apportion.core.admission import OF_USERS
from tests.support.control_plane import ControlPlane
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.policies import holding, without

TENANT = "system:serviceaccount:team:tenant"
ACCOUNTS = {
    "binder": "system:serviceaccount:apportion:binder",
    "hami": "system:serviceaccount:kube-system:hami-scheduler",
}
OURS, THEIRS = "apportion.dev/shares", "hami.io/vgpu-devices-allocated"
MESSAGES = {OURS: "only by Apportion", THEIRS: "only by schedulers and device plugins"}
HELD = "GPU-00000000-0000-0000-0000-000000000000,NVIDIA,16000,100:;"


async def ask(plane: ControlPlane, who: str, verb: str, path: str, body: Any, *, ok: bool) -> str:
    """Send this request to the API server as the user `who`, with an administrator's rights."""
    text = json.dumps(body)
    if verb == "create":
        words = ("create", "--raw", path, "-f", "-")
    else:
        name, _, part = path.partition("/")
        sub = (f"--subresource={part}",) if part else ()
        words = ("patch", "pod", name, "--type=merge", *sub, "-p", text)
    as_him = (f"--as={who}", "--as-group=system:masters")
    return await plane.user(*words, *as_him, stdin=text, ok=ok)


def binding(name: str, key: str) -> dict[str, Any]:
    """Return a Binding of this pod to a node, with the annotation `key`."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": {key: HELD}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }


WAYS = ("pod", "change", "status", "binding", "bindings")


async def forge(plane: ControlPlane, who: str, way: str, key: str, *, ok: bool) -> str:
    """Try to set the annotation `key` on a pod as `who`, by the kind of request in `way`."""
    pods, name = "/api/v1/namespaces/default/pods", f"p-{way}"
    notes = {"metadata": {"annotations": {key: HELD}}}
    if way == "pod":
        made = kube_pod(name, share(), annotations={key: HELD})
        return await ask(plane, who, "create", pods, made, ok=ok)
    await plane.apply(kube_pod(name, share()))
    if way in {"change", "status"}:
        path = name if way == "change" else f"{name}/status"
        return await ask(plane, who, "patch", path, notes, ok=ok)
    path = f"{pods}/{name}/binding" if way == "binding" else pods.replace("/pods", "/bindings")
    return await ask(plane, who, "create", path, binding(name, key), ok=ok)


@pytest.mark.parametrize("key", [OURS, THEIRS])
@pytest.mark.parametrize("guard", ["weak", "guarded"])
async def test_an_annotation_that_says_what_a_pod_holds(
    world: KubeWorld, guard: str, key: str
) -> None:
    """A tenant cannot set the annotations that record a pod's devices.

    The API server refuses every kind of request that would do so: create, update, status and
    binding."""
    plane = world.plane
    await plane.apply(kube_node("n1"))
    weakened = without(MESSAGES[key]) if guard == "weak" else without()
    async with holding(plane, weakened):
        for way in WAYS:
            said = await forge(plane, TENANT, way, key, ok=guard == "weak")
            if guard == "guarded":
                assert MESSAGES[key] in said, (way, said)
                assert f'metadata.annotations["{key}"]' in said


async def test_those_whose_job_it_is_go_on(world: KubeWorld) -> None:
    """Apportion's binder may set Apportion's and HAMi's annotations; HAMi's scheduler only HAMi's.

    Other changes to pods are allowed."""
    plane = world.plane
    await plane.apply(kube_node("n1"))
    async with holding(plane, without()):
        await forge(plane, ACCOUNTS["binder"], "binding", OURS, ok=True)
        await forge(plane, ACCOUNTS["binder"], "change", THEIRS, ok=True)
        await forge(plane, ACCOUNTS["hami"], "status", THEIRS, ok=True)
        assert MESSAGES[OURS] in await forge(plane, ACCOUNTS["hami"], "bindings", OURS, ok=False)
        await plane.user("annotate", "pod", "p-change", "team=blue")
        await plane.user("label", "pod", "p-change", "team=blue")
        wishes = {"volcano.sh/gpu-index": "0", **dict.fromkeys(OF_USERS, "any")}
        wish = kube_pod("wish", share(), annotations=wishes)
        await plane.apply(wish)
        # No one else may remove an existing one either, not even by removing all annotations.
        said = await plane.user("annotate", "pod", "p-binding", f"{OURS}-", ok=False)
        assert MESSAGES[OURS] in said
