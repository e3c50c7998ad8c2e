"""Run a container with podman, from a real image, in the way that the kubelet specifies.

Invariant: a container has exactly its pod's user, capabilities, mounts and root file system.
Forbidden actions therefore fail here as on a node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.support.containers import Podman

NODE: Final = 2
"""CRI's NamespaceMode for the node's own namespace."""


def command_of(config: Any, env: Mapping[str, str], name: str) -> list[str]:
    """Return the podman command that runs the container in the foreground."""
    words = ["podman", "run", "--rm", f"--name={name}", "--network=host", "--pull=never"]
    words += _rights(config.linux.security)
    words += [f"--env={key}={value}" for key, value in env.items()]
    for mount in config.mounts:
        mode = "ro" if mount.readonly else "rw"
        words.append(f"--volume={mount.host_path}:{mount.container_path}:{mode}")
    if config.command:
        words.append(f"--entrypoint={json.dumps(list(config.command))}")
    return [*words, config.image.user_specified_image, *config.args]


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


async def end(name: str) -> None:
    """Stop the container with SIGTERM, or with SIGKILL if it still runs ten seconds later."""
    process = await asyncio.create_subprocess_exec(
        *("podman", "rm", "--force", "--time=10", "--ignore", name),
        env=Podman().environment(),
        stdout=asyncio.subprocess.DEVNULL,
    )
    await process.wait()
