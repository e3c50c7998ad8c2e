"""Start a cluster with HAMi, called the stand, and open a shell in it.

The stand needs root, podman, a control plane and helm. `tests/support/control_plane_build.sh`
builds the control plane, and with `--helm` it builds helm.

Invariant: when this program ends, also after SIGINT or SIGTERM, the stand and the command have
ended."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

import click

from tests.support.containers import alone
from tests.support.stand.stand import Stand

WELCOME: Final = """
The cluster has HAMi and its pods. Follow docs/tasks/migrate.md with these names:
    REGISTRY/apportion    {repository}
    IMAGE_WITH_LIBVGPU    {library}
    NODE                  {nodes}
    namespaces            research, web
The images are built; kubectl, helm and apportion are on PATH, and the checkout's deploy is here.
For another terminal:  source {environment}
Logs of containers:    {logs}
"""
END_S: Final = 5
INTERRUPTED: Final = 128 + signal.SIGINT


async def main(command: list[str]) -> int:
    """Run a shell or the command in the test cluster. Return its exit code."""
    _end_on_signals()
    with tempfile.TemporaryDirectory(prefix="stand", ignore_cleanup_errors=True) as name:
        async with Stand(Path(name)) as stand:
            click.echo(WELCOME.format(**stand.about()))
            return await run(command, os.environ | stand.environment, stand.home)


async def run(command: list[str], environment: dict[str, str], folder: Path) -> int:
    """Run the command, or a shell if it is empty, and return its exit code.

    If the task is cancelled, the command and its child processes end first."""
    words = command or [os.environ.get("SHELL", "/bin/bash")]
    # A shell needs the terminal of this session. Another command gets its own session, so that all
    # its processes can be ended.
    process = await asyncio.create_subprocess_exec(
        *words, env=environment, cwd=folder, start_new_session=bool(command)
    )
    try:
        return await process.wait()
    except asyncio.CancelledError:
        signals = (signal.SIGTERM, signal.SIGKILL) if command else (signal.SIGHUP, signal.SIGKILL)
        for each in signals:  # an interactive shell ignores SIGTERM, and passes SIGHUP to its jobs
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, each) if command else process.send_signal(each)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), END_S)
        raise


def _end_on_signals() -> None:
    """Cancel the current task on the first SIGINT or SIGTERM, and ignore later ones, which would
    interrupt the cleanup."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def end() -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, lambda: None)
        click.echo("ending the cluster", err=True)
        task.cancel()

    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, end)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.stand",
        description="Start a cluster with HAMi, and open a shell in it. The cluster ends with the "
        "shell. It needs root, podman, a control plane and helm "
        "(tests/support/control_plane_build.sh --helm).",
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND",
        help="a command to run instead of a shell, with its arguments",
    )  # fmt: skip
    chosen = parser.parse_args()
    try:
        with alone():
            code = asyncio.run(main(chosen.command))
    except (KeyboardInterrupt, asyncio.CancelledError):
        code = INTERRUPTED
    sys.exit(code)
