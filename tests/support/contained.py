"""Run a process with the mounts and variables that the agent prepares for a container.

The process has its own mount namespace. Invariant: nothing on the machine is changed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from apportion.core.grants import Edits

SCRIPT = """
set -e
mount --make-rprivate /
mount --bind "$FOLDER" /mnt
for each in /etc /tmp /usr/local; do mount -t tmpfs none "$each"; done
mkdir -p "$FOLDER"
mount --bind /mnt "$FOLDER"
printf '%s\\n' "$MOUNTS" | while read -r from to; do
  if [ -d "$from" ]; then mkdir -p "$to"; else mkdir -p "$(dirname "$to")"; touch "$to"; fi
  mount --bind "$from" "$to"
done
exec "$@"
"""


def command_of(edits: Edits, folder: Path, *command: str) -> list[str]:
    """Return the command line that runs `command` in a new mount namespace with the mounts of
    `edits`.

    All mounts and temporary files are below `folder`."""
    mounts = "\n".join(f"{mount.host_path} {mount.container_path}" for mount in edits.mounts)
    given = {"FOLDER": str(folder), "MOUNTS": mounts}
    before = ["/usr/bin/env", *(f"{name}={value}" for name, value in given.items())]
    script = ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", SCRIPT, "sh"]
    return [*before, *script, "/usr/bin/env", "-u", "FOLDER", "-u", "MOUNTS", *command]


def environment(edits: Edits, driver: Mapping[str, str]) -> dict[str, str]:
    """Return the driver's variables and the variables that the agent prepared for the container."""
    return {"PATH": os.defpath, **driver, **edits.env}


def run(edits: Edits, folder: Path, driver: Mapping[str, str], *command: str) -> list[str]:
    """Run the command with the mounts and environment of a container. Return the lines of its
    output, or of its errors if it has no output."""
    done = subprocess.run(
        command_of(edits, folder, *command),
        env=environment(edits, driver),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout.splitlines() or done.stderr.splitlines()


@contextmanager
def holding(
    edits: Edits, folder: Path, driver: Mapping[str, str], *command: str
) -> Iterator[subprocess.Popen[str]]:
    """Run the command with a container's mounts and environment until the block ends."""
    process = subprocess.Popen(
        command_of(edits, folder, *command),
        env=environment(edits, driver),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
