"""Attack 13: a tenant's pod requests a share, and also privileges that give it the whole node."""

import json
from typing import Any

import pytest

from tests.support.control_plane import ControlPlane
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.policies import holding, without

PRIVILEGED = {"securityContext": {"privileged": True}}


def pod(name: str, *, limits: Any = None, main: Any = None, **spec: Any) -> dict[str, Any]:
    """Return a pod with a share, with additional fields in its container."""
    made = kube_pod(name, share() if limits is None else limits, **spec)
    made["spec"]["containers"][0] |= main or {}
    return made


def mounting(path: str) -> dict[str, Any]:
    """Return a pod that has a share, and that mounts this folder of its node."""
    return pod("mounts", volumes=[{"name": "v", "hostPath": {"path": path}}])


def secured(**context: Any) -> dict[str, Any]:
    """Return a pod with a share, whose container has this security context."""
    return pod("p", main={"securityContext": context})


APPARMOR = "container.apparmor.security.beta.kubernetes.io/main"
ATTACKS = {
    "privileged": (secured(privileged=True), "securityContext.privileged"),
    "claim": (
        pod(
            "p",
            limits={},
            main=PRIVILEGED,
            resourceClaims=[{"name": "c", "resourceClaimName": "c"}],
        ),
        "securityContext.privileged",
    ),
    "init": (
        pod("p", initContainers=[{"name": "i", "image": "i", **PRIVILEGED}]),
        "securityContext.privileged",
    ),
    "pids": (pod("p", hostPID=True), "spec.hostPID"),
    "ipc": (pod("p", hostIPC=True), "spec.hostPID"),
    "network": (pod("p", hostNetwork=True), "spec.hostPID"),
    **{
        name: (secured(capabilities={"add": [name]}), "capabilities.add")
        for name in ("SYS_ADMIN", "CAP_BPF", "DAC_READ_SEARCH", "NET_ADMIN", "PERFMON", "ALL")
    },
    "seccomp": (secured(seccompProfile={"type": "Unconfined"}), "seccompProfile"),
    "pod's seccomp": (
        pod("p", securityContext={"seccompProfile": {"type": "Unconfined"}}),
        "seccompProfile",
    ),
    "apparmor": (secured(appArmorProfile={"type": "Unconfined"}), "appArmorProfile"),
    "older apparmor": (
        kube_pod("p", share(), annotations={APPARMOR: "unconfined"}),
        "appArmorProfile",
    ),
    "sysctl": (
        pod("p", securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
        "securityContext.sysctls",
    ),
    "selinux": (secured(seLinuxOptions={"type": "spc_t"}), "seLinuxOptions"),
    "proc": (
        pod("p", hostUsers=False, main={"securityContext": {"procMount": "Unmasked"}}),
        "procMount",
    ),
    "environment": (
        pod("p", main={"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}),
        "NVIDIA_VISIBLE_DEVICES",
    ),
    "node": (pod("p", nodeName="n1"), "spec.nodeName"),
}
REACHING = (
    "/", "//", "/.", "/dev", "/dev/nvidia0", "//dev/", "/./dev/nvidiactl", "/proc",
    "/sys/fs/cgroup", "/run/containerd", "/var/run", "/var/.//run/cdi", "/var", "/var/lib",
    "/var/lib/", "/var/lib/kubelet/device-plugins", "/var/lib/apportion", "/etc", "/etc/cdi",
    "/etc/cron.d", "/etc/systemd/system", "/usr/local/bin", "/lib/systemd",
    "/var/lib/rancher", "/database", "/etc/localtime.d",
)  # fmt: skip
FOLDERS = "guards.hostPaths"
HARMLESS = ("/data", "/data/", "//mnt/./dev", "/mnt/models/v1", "/etc/localtime")
CONFINED = {
    "capabilities": {"add": ["NET_BIND_SERVICE", "CAP_IPC_LOCK"], "drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
    "appArmorProfile": {"type": "RuntimeDefault"},
    "seLinuxOptions": {"type": "container_t", "level": "s0:c1"},
    "procMount": "Default",
}


async def create(
    plane: ControlPlane, made: dict[str, Any], *, ok: bool, space: str = "default"
) -> str:
    """Run `kubectl create` as a dry run, and return the output."""
    words = ("create", "--dry-run=server", "-n", space, "-f", "-")
    return await plane.user(*words, stdin=json.dumps(made), ok=ok)


@pytest.mark.parametrize("guard", ["weak", "guarded"])
async def test_a_share_and_the_rest_of_the_node(world: KubeWorld, guard: str) -> None:
    """A pod with a share cannot be privileged, use host namespaces, add capabilities, mount host
    folders or request all GPUs by an environment variable. Any of these would give the pod every
    device of its node."""
    plane = world.plane
    weak = guard == "weak"
    markers = {marker for _, marker in ATTACKS.values()} | {FOLDERS}
    await plane.apply(kube_node("n1"))
    async with holding(plane, without(*markers) if weak else without()):
        for name, (made, marker) in ATTACKS.items():
            said = await create(plane, made, ok=weak)
            assert weak or marker in said, (name, said)
        for path in REACHING:
            said = await create(plane, mounting(path), ok=weak)
            assert weak or FOLDERS in said, (path, said)


async def test_all_others_go_on(world: KubeWorld) -> None:
    """The admission policies accept harmless pods, and all pods in an exempted namespace."""
    plane = world.plane
    labels = {"apportion.dev/unconfined": "allowed"}
    metadata = {"name": "let-off", "labels": labels}
    await plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    async with holding(plane, without()):
        for path in HARMLESS:
            await create(plane, mounting(path), ok=True)
        await create(plane, pod("p", limits={}, main=PRIVILEGED, hostPID=True), ok=True)
        await create(plane, secured(**CONFINED), ok=True)
        safe = {"sysctls": [{"name": "net.ipv4.tcp_keepalive_time", "value": "60"}]}
        await create(plane, pod("p", securityContext=safe), ok=True)
        hidden = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]}
        await create(plane, pod("p", main=hidden), ok=True)
        for made, _ in ATTACKS.values():
            await create(plane, made, ok=True, space="let-off")


async def test_a_container_that_comes_later(world: KubeWorld) -> None:
    """A tenant cannot add a privileged debug container to a pod with a share."""
    plane = world.plane
    await plane.apply(pod("p"))
    later = {"name": "d", "image": "i", **PRIVILEGED}
    body = json.dumps({"spec": {"ephemeralContainers": [later]}})
    told = ("--subresource=ephemeralcontainers", "--dry-run=server")
    words = ("patch", "pod", "p", *told, "-p", body)
    async with holding(plane, without("securityContext.privileged")):
        await plane.user(*words)
    async with holding(plane, without()):
        assert "securityContext.privileged" in await plane.user(*words, ok=False)
