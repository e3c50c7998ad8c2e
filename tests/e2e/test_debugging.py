"""`kubectl debug` and the restore of a backup work under our admission policies.

The guide docs/tasks/pod-policies.md describes these cases."""

import json

import pytest

from tests.support.control_plane import ControlPlane
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.policies import holding, without

BOUND = {"apportion.dev/shares": "[]", "hami.io/vgpu-devices-allocated": ";"}
"""What a binding has written on a pod."""
PROFILES = {
    "baseline": "", "restricted": "", "netadmin": "capabilities.add",
    "general": "capabilities.add", "sysadmin": "securityContext.privileged",
}  # fmt: skip
"""`kubectl debug` options that are refused in a pod with a device request."""


async def debug(plane: ControlPlane, *words: str, ok: bool) -> str:
    """Run `kubectl debug` without attaching to the container, and return the output."""
    return await plane.user("debug", *words, "--image=busybox", "--attach=false", ok=ok)


@pytest.mark.parametrize("profile", PROFILES)
async def test_a_container_to_look_with(world: KubeWorld, profile: str) -> None:
    """A policy refuses `kubectl debug` on a GPU pod if the profile is privileged or adds
    capabilities.

    Other profiles, and other pods, are not affected."""
    plane, refused = world.plane, PROFILES[profile]
    await plane.apply(kube_pod("shared", share()), kube_pod("other", {}))
    async with holding(plane, without()):
        await debug(plane, "other", f"--profile={profile}", ok=True)
        said = await debug(plane, "shared", f"--profile={profile}", ok=not refused)
        assert refused in said


async def test_a_copy_is_placed_as_any_pod(world: KubeWorld) -> None:
    """`kubectl debug` may copy a pod without its node and our annotations. The copy is placed as
    usual.

    A copy that keeps the annotations or the node is refused."""
    plane = world.plane
    made = kube_pod("shared", share(), annotations=BOUND, nodeName="n1")
    await plane.apply(kube_node("n1"), made)
    words = ("shared", "--profile=restricted")
    async with holding(plane, without()):
        kept = await debug(plane, *words, "--copy-to=kept", "--keep-annotations", ok=False)
        assert "apportion.dev/shares" in kept
        same = await debug(plane, *words, "--copy-to=same", "--same-node", ok=False)
        assert "spec.nodeName" in same
        await debug(plane, *words, "--copy-to=copy", ok=True)
        copy = await plane.get("pod", "copy")
        assert not copy["spec"].get("nodeName")
        assert not BOUND.keys() & copy["metadata"].get("annotations", {}).keys()
        await debug(plane, "node/n1", "--profile=sysadmin", ok=True)


@pytest.mark.parametrize("annotation", BOUND)
async def test_a_restore_brings_back_no_binding(world: KubeWorld, annotation: str) -> None:
    """A pod is refused if it is restored with one of Apportion's annotations.

    Without the annotations the API server accepts the pod, so that it can be placed again."""
    plane = world.plane
    made = kube_pod("back", share(), annotations={annotation: BOUND[annotation]})
    async with holding(plane, without()):
        said = await plane.user("create", "-f", "-", stdin=json.dumps(made), ok=False)
        assert annotation in said
        await plane.user("create", "-f", "-", stdin=json.dumps(kube_pod("back", share())))
