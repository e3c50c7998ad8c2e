"""Run a container with podman, from a real image, in the way that the kubelet specifies.

Invariant: a container has exactly its pod's user, capabilities, mounts and root file system.
Forbidden actions therefore fail here as on a node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.containers import Podman

NODE: Final = 2
"""CRI's NamespaceMode for the node's own namespace."""


@dataclass(frozen=True)
class Machine:
    """The podman settings for all containers of a node. By default, they use the node's network."""

    network: str = ""
    """The podman network of pods that are not in the node's network."""
    addresses: str = ""
    """The first three bytes of the pods' addresses, such as `10.77.1`."""
    images: dict[str, str] = field(default_factory=dict)
    """Local images, by the beginning of the name that they replace."""
    driver: dict[str, str] = field(default_factory=dict)
    """Variables of the fake NVIDIA driver, for containers that ask for all devices."""
    folders: tuple[str, ...] = ()
    """Folders and files of the driver, for the same containers."""

    def image(self, name: str) -> str:
        """Return the local image that replaces an image, or the name of the image itself."""
        return next((to for start, to in self.images.items() if name.startswith(start)), name)


HERE: Final = Machine()


def command_of(
    config: Any, sandbox: Any, env: Mapping[str, str], name: str, machine: Machine = HERE
) -> list[str]:
    """Return the podman command that runs the container in the foreground.

    `sandbox` is the state of the container's pod, with its address."""
    words = ["podman", "run", "--rm", f"--name={name}", "--pull=never"]
    words += _network(sandbox, machine)
    words += _rights(config.linux.security)
    if env.get("NVIDIA_VISIBLE_DEVICES") == "all":  # NVIDIA's runtime then adds the driver
        env = machine.driver | dict(env)
        words += [f"--volume={folder}:{folder}" for folder in machine.folders]
    words += [f"--env={key}={value}" for key, value in env.items()]
    for mount in config.mounts:
        mode = "ro" if mount.readonly else "rw"
        words.append(f"--volume={mount.host_path}:{mount.container_path}:{mode}")
    if config.command:
        words.append(f"--entrypoint={json.dumps(list(config.command))}")
    return [*words, machine.image(config.image.user_specified_image), *config.args]


def _network(sandbox: Any, machine: Machine) -> Iterator[str]:
    if not machine.network or sandbox.state.linux.namespaces.options.network == NODE:
        yield "--network=host"
        return
    yield f"--network={machine.network}"
    yield f"--ip={sandbox.state.network.ip}"
    for option, values in (
        ("dns", sandbox.dns.servers), ("dns-search", sandbox.dns.searches),
        ("dns-option", sandbox.dns.options),
    ):  # fmt: skip
        yield from (f"--{option}={value}" for value in values)


def _rights(said: Any) -> Iterator[str]:
    for drop in said.capabilities.drop:
        yield f"--cap-drop={drop}"
    for add in said.capabilities.add:
        yield f"--cap-add={add}"
    if said.HasField("run_as_user"):
        yield f"--user={said.run_as_user.value}"
    if said.readonly_rootfs:
        yield "--read-only"
    if said.no_new_privs:
        yield "--security-opt=no-new-privileges"
    if said.namespaces.pid == NODE:
        yield "--pid=host"


async def execute(name: str, command: list[str]) -> tuple[int, bytes, bytes]:
    """Run a command in the container. Return its exit code, output and error output."""
    process = await asyncio.create_subprocess_exec(
        *("podman", "exec", name, *command),
        env=Podman().environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    return process.returncode or 0, out, error


async def end(name: str) -> None:
    """Stop the container with SIGTERM, or with SIGKILL if it still runs ten seconds later."""
    process = await asyncio.create_subprocess_exec(
        *("podman", "rm", "--force", "--time=10", "--ignore", name),
        env=Podman().environment(),
        stdout=asyncio.subprocess.DEVNULL,
    )
    await process.wait()
