"""Start the stand, and open a shell in it.

    python -m tests.support.stand [COMMAND ...]

The stand needs root, podman, a control plane and helm. `tests/support/control_plane_build.sh`
builds the control plane, and with `--helm` it builds helm. If COMMAND is given, the program runs it
instead of a shell."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import click

from tests.support.containers import alone
from tests.support.stand.stand import Stand

WELCOME = """
The cluster has HAMi and its pods. Follow docs/tasks/migrate.md with these names:
    REGISTRY/apportion    {repository}
    IMAGE_WITH_LIBVGPU    {library}
    NODE                  {nodes}
    namespaces            research, web
The images are built; kubectl, helm and apportion are on PATH, and the checkout's deploy is here.
For another terminal:  source {environment}
Logs of containers:    {logs}
"""


async def main(command: list[str]) -> int:
    """Run a shell or the command in the stand. Return its exit code."""
    with tempfile.TemporaryDirectory(prefix="stand", ignore_cleanup_errors=True) as name:
        async with Stand(Path(name)) as stand:
            click.echo(WELCOME.format(**stand.about()))
            words = command or [os.environ.get("SHELL", "/bin/bash")]
            process = await asyncio.create_subprocess_exec(
                *words, env=os.environ | stand.environment, cwd=stand.home
            )
            return await process.wait()


if __name__ == "__main__":
    with alone():
        sys.exit(asyncio.run(main(sys.argv[1:])))
