"""Serve the kubelet as a container runtime.

    python -m tests.support.cri.runtime SOCKET FOLDER CDI

A container runs under podman if podman has its image, and as a local process otherwise. Its
environment includes the edits of its CDI devices, as in containerd. `FOLDER/created.jsonl` lists
the mounts and device nodes of each created container. Invariant: a container is not created unless
each of its CDI devices is in exactly one CDI file."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from apportion.agent.kubelet.calls import OPTIONS, Call, serve
from tests.support.containers import Podman
from tests.support.cri import cri_pb2 as pb
from tests.support.cri.podman import HERE, NODE, Machine, command_of, end, execute

READY, STOPPED = 0, 1
CREATED, RUNNING, EXITED = 0, 1, 2
IMAGE: Final = "sha256:test"
PLAIN: Final = "test:1"
"""The image whose containers run as local processes."""
KILLED = 137
FIRST, ADDRESSES = 10, 240
"""The last bytes of the addresses of pods."""
PATH = "/usr/local/bin:/usr/bin:/bin"
_numbers = itertools.count(1)


class Refused(Exception):
    """Raised if a container cannot be created; the message has the reason."""


class Sandbox(NamedTuple):
    """A pod's sandbox, which here is only a name, an address and the settings of its DNS."""

    state: Any
    dns: Any


@dataclass
class Kept:
    """The runtime's record of a container."""

    sandbox: str
    config: Any
    env: dict[str, str]
    output: Path
    state: Any
    process: asyncio.subprocess.Process | None = None
    waiting: asyncio.Task[None] | None = None

    @property
    def plain(self) -> bool:
        """Return True if the container is a local process and not a podman container."""
        return bool(self.config.image.user_specified_image == PLAIN)


@dataclass
class Runtime:
    """The runtime's handlers, with all sandboxes and containers of one kubelet."""

    folder: Path
    cdi: Path
    machine: Machine = HERE
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    containers: dict[str, Kept] = field(default_factory=dict)

    # -------------------------------------------------------------- sandboxes

    async def run_sandbox(self, request: Any, _: Any) -> Any:
        """Create a pod's sandbox, which here is only a name and an address."""
        config = request.config
        name = f"sandbox-{next(_numbers)}"
        own = self.machine.network and config.linux.security.options.network != NODE
        ip = self._free_address() if own else "127.0.0.1"
        state = pb.SandboxState(
            id=name,
            metadata=config.metadata,
            state=READY,
            created_at=time.time_ns(),
            network=pb.Network(ip=ip),
            linux=pb.LinuxStatus(namespaces=pb.Namespaces(options=config.linux.security.options)),
            labels=config.labels,
            annotations=config.annotations,
        )
        self.sandboxes[name] = Sandbox(state, config.dns)
        return pb.SandboxId(id=name)

    def _free_address(self) -> str:
        """Return an address that no pod has. Addresses of previous pods are used last."""
        taken = {each.state.network.ip for each in self.sandboxes.values()}
        first = next(_numbers)
        ends = (FIRST + (first + at) % ADDRESSES for at in range(ADDRESSES))
        return next(ip for end in ends if (ip := f"{self.machine.addresses}.{end}") not in taken)

    async def stop_sandbox(self, request: Any, _: Any) -> Any:
        """Stop the sandbox and its containers."""
        for name, kept in self.containers.items():
            if kept.sandbox == request.id:
                await self._stop(name)
        if request.id in self.sandboxes:
            self.sandboxes[request.id].state.state = STOPPED
        return pb.Empty()

    async def remove_sandbox(self, request: Any, _: Any) -> Any:
        self.sandboxes.pop(request.id, None)
        return pb.Empty()

    async def sandbox_status(self, request: Any, context: Any) -> Any:
        if request.id not in self.sandboxes:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no sandbox {request.id}")
        return pb.SandboxStatus(status=self.sandboxes[request.id].state)

    async def list_sandboxes(self, request: Any, _: Any) -> Any:
        """List the sandboxes that pass the filter."""
        said = request.filter
        return pb.Sandboxes(
            items=[
                pb.Sandbox(
                    id=each.id, metadata=each.metadata, state=each.state,
                    created_at=each.created_at, labels=each.labels, annotations=each.annotations,
                )
                for each, _ in self.sandboxes.values()
                if _passes(each, said, each.id)
            ]
        )  # fmt: skip

    # -------------------------------------------------------------- containers

    async def create(self, request: Any, context: Any) -> Any:
        """Create a container. Its CDI devices must exist."""
        config, pod = request.config, request.sandbox_config.metadata
        name = f"container-{next(_numbers)}"
        edits: list[dict[str, Any]] = []
        try:
            edits = self._edits([device.name for device in config.cdi_devices])
        except Refused as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        own = {each.key: each.value for each in config.envs}
        env = own | dict(line.split("=", 1) for each in edits for line in each.get("env", ()))
        mounts = [mount.container_path for mount in config.mounts]
        mounts += [mount["containerPath"] for each in edits for mount in each.get("mounts", ())]
        meta = config.metadata
        self._write(
            pod=pod.name, uid=pod.uid, container=meta.name, attempt=meta.attempt, env=env,
            mounts=mounts, devices=[device.name for device in config.cdi_devices],
        )  # fmt: skip
        state = pb.ContainerState(
            id=name, metadata=meta, state=CREATED, created_at=time.time_ns(), image=config.image,
            image_ref=IMAGE, image_id=IMAGE, labels=config.labels, annotations=config.annotations,
        )  # fmt: skip
        output = self.folder / f"{pod.name}-{meta.name}-{meta.attempt}.out"
        self.containers[name] = Kept(request.sandbox, config, env, output, state)
        return pb.ContainerId(id=name)

    async def start(self, request: Any, _: Any) -> Any:
        kept = self.containers[request.id]
        env = {"PATH": PATH} | kept.env
        command = [*kept.config.command, *kept.config.args]
        if not kept.plain:
            env = Podman().environment()
            sandbox = self.sandboxes[kept.sandbox]
            name = self._named(request.id)
            command = command_of(kept.config, sandbox, kept.env, name, self.machine)
        with kept.output.open("wb") as output:
            kept.process = await asyncio.create_subprocess_exec(
                *command, env=env, stdout=output, stderr=output
            )
        kept.output.with_suffix(".pid").write_text(str(kept.process.pid))
        kept.state.state = RUNNING
        kept.state.started_at = time.time_ns()
        kept.waiting = asyncio.create_task(self._wait(kept, kept.process))
        return pb.Empty()

    async def stop(self, request: Any, _: Any) -> Any:
        await self._stop(request.id)
        return pb.Empty()

    async def remove(self, request: Any, _: Any) -> Any:
        await self._stop(request.id)
        self.containers.pop(request.id, None)
        return pb.Empty()

    async def status(self, request: Any, context: Any) -> Any:
        if request.id not in self.containers:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no container {request.id}")
        return pb.ContainerStatus(status=self.containers[request.id].state)

    async def list_containers(self, request: Any, _: Any) -> Any:
        """List the containers that pass the filter."""
        said = request.filter
        return pb.Containers(
            containers=[
                pb.Container(
                    id=name, sandbox=kept.sandbox, metadata=kept.state.metadata,
                    image=kept.state.image, image_ref=IMAGE, image_id=IMAGE,
                    state=kept.state.state, created_at=kept.state.created_at,
                    labels=kept.state.labels, annotations=kept.state.annotations,
                )
                for name, kept in self.containers.items()
                if _passes(kept.state, said, name)
                and (not said.sandbox or said.sandbox == kept.sandbox)
            ]
        )  # fmt: skip

    async def execute(self, request: Any, _: Any) -> Any:
        """Run a command in a container, as a probe does."""
        name = self._named(request.container)
        code, out, error = await execute(name, list(request.command))
        return pb.Executed(stdout=out, stderr=error, exit_code=code)

    async def end(self) -> None:
        """End all processes of all containers."""
        for name in list(self.containers):
            await self._stop(name)

    async def _stop(self, name: str) -> None:
        kept = self.containers.get(name)
        if kept is None or kept.waiting is None or kept.process is None:
            return
        if kept.process.returncode is None and not kept.plain:
            await end(self._named(name))
        elif kept.process.returncode is None:
            kept.process.send_signal(signal.SIGKILL)
        await kept.waiting

    def _named(self, name: str) -> str:
        """Return the container's name in podman, which is unique to this runtime."""
        return f"{self.folder.parent.name}-{name}"

    @staticmethod
    async def _wait(kept: Kept, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        kept.state.exit_code = code if code >= 0 else KILLED
        kept.state.reason = "Completed" if code == 0 else "Error"
        kept.state.finished_at = time.time_ns()
        kept.state.state = EXITED

    def _edits(self, devices: list[str]) -> list[dict[str, Any]]:
        """Return the CDI edits for these devices. Raises Refused unless each device is in exactly
        one CDI file."""
        found: dict[str, list[dict[str, Any]]] = {}
        for path in sorted(self.cdi.glob("*.json")):
            said = json.loads(path.read_bytes())
            for device in said["devices"]:
                name = f"{said['kind']}={device['name']}"
                found.setdefault(name, []).append(device["containerEdits"])
        for name in devices:
            if len(found.get(name, ())) != 1:
                raise Refused(f"CDI device {name} stands in {len(found.get(name, ()))} files")
        return [found[name][0] for name in devices]

    def _write(self, **what: Any) -> None:
        with (self.folder / "created.jsonl").open("a") as file:
            file.write(json.dumps(what) + "\n")


def _passes(state: Any, said: Any, name: str) -> bool:
    """Return True if a sandbox or container matches every field that the filter sets."""
    labels = all(state.labels.get(key) == value for key, value in said.labels.items())
    stands = not said.HasField("state") or said.state.state == state.state
    return labels and stands and (not said.id or said.id == name)


async def _nothing(request: Any, context: Any) -> Any:
    return pb.Empty()


async def _version(request: Any, context: Any) -> Any:
    return pb.Version(
        version="0.1.0", runtime_name="test", runtime_version="1.0.0", runtime_api_version="v1"
    )


async def _ready(request: Any, context: Any) -> Any:
    names = ("RuntimeReady", "NetworkReady")
    said = [pb.Condition(type=name, status=True) for name in names]
    return pb.Status(status=pb.Conditions(conditions=said))


async def _config(request: Any, context: Any) -> Any:
    return pb.RuntimeConfig(linux=pb.Linux(cgroup_driver=1))


async def _images(request: Any, context: Any) -> Any:
    return pb.Images(images=[pb.Image(id=IMAGE, repo_tags=["test:1"], size=1)])


async def _image(request: Any, context: Any) -> Any:
    return pb.ImageStatus(image=pb.Image(id=IMAGE, repo_tags=[request.image.image], size=1))


async def _pulled(request: Any, context: Any) -> Any:
    return pb.ImageRef(image_ref=IMAGE)


async def _room(request: Any, context: Any) -> Any:
    one = pb.Usage(
        timestamp=time.time_ns(), filesystem=pb.Filesystem(mountpoint="/"),
        used_bytes=pb.Amount(value=1), inodes_used=pb.Amount(value=1),
    )  # fmt: skip
    return pb.Usages(images=[one], containers=[one])


def calls_of(runtime: Runtime) -> dict[Call, Any]:
    """Return the handler of every kubelet call that this runtime supports."""
    container = "/runtime.v1.RuntimeService/"
    image = "/runtime.v1.ImageService/"
    rows = (
        (container + "Version", pb.Empty, pb.Version, _version),
        (container + "Status", pb.Empty, pb.Status, _ready),
        (container + "RuntimeConfig", pb.Empty, pb.RuntimeConfig, _config),
        (container + "UpdateRuntimeConfig", pb.Empty, pb.Empty, _nothing),
        (container + "RunPodSandbox", pb.RunSandbox, pb.SandboxId, runtime.run_sandbox),
        (container + "StopPodSandbox", pb.SandboxId, pb.Empty, runtime.stop_sandbox),
        (container + "RemovePodSandbox", pb.SandboxId, pb.Empty, runtime.remove_sandbox),
        (container + "PodSandboxStatus", pb.SandboxId, pb.SandboxStatus, runtime.sandbox_status),
        (container + "ListPodSandbox", pb.ListSandboxes, pb.Sandboxes, runtime.list_sandboxes),
        (container + "CreateContainer", pb.CreateContainer, pb.ContainerId, runtime.create),
        (container + "StartContainer", pb.ContainerId, pb.Empty, runtime.start),
        (container + "StopContainer", pb.ContainerId, pb.Empty, runtime.stop),
        (container + "RemoveContainer", pb.ContainerId, pb.Empty, runtime.remove),
        (container + "ContainerStatus", pb.ContainerId, pb.ContainerStatus, runtime.status),
        (container + "ListContainers", pb.ListContainers, pb.Containers, runtime.list_containers),
        (container + "ExecSync", pb.ExecSync, pb.Executed, runtime.execute),
        (container + "ListContainerStats", pb.Empty, pb.Empty, _nothing),
        (container + "ListPodSandboxStats", pb.Empty, pb.Empty, _nothing),
        (image + "ListImages", pb.Empty, pb.Images, _images),
        (image + "ImageStatus", pb.ImageRequest, pb.ImageStatus, _image),
        (image + "PullImage", pb.ImageRequest, pb.ImageRef, _pulled),
        (image + "RemoveImage", pb.Empty, pb.Empty, _nothing),
        (image + "ImageFsInfo", pb.Empty, pb.Usages, _room),
    )
    return {Call(path, request, answer): function for path, request, answer, function in rows}


async def main(socket: str, folder: Path, cdi: Path, machine: Machine) -> None:
    """Serve the kubelet as its container runtime, until SIGTERM."""
    runtime = Runtime(folder, cdi, machine)
    server = grpc.aio.server(options=OPTIONS)
    serve(server, calls_of(runtime))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    await over.wait()
    await runtime.end()
    await server.stop(grace=None)


if __name__ == "__main__":
    socket, folder, cdi, machine = sys.argv[1:]
    asyncio.run(main(socket, Path(folder), Path(cdi), Machine(**json.loads(machine))))
