"""Run programs that use a fake GPU, as separate processes. Each program is a list of actions for
`probe.c`.

Invariant: no such program outlives its test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.support.nvidia.driver import FakeDriver


def probe(driver: FakeDriver, *actions: str, **variables: str) -> list[str]:
    """Run these actions. Return one line about the CUDA context, and then one line per action."""
    done = subprocess.run(
        [driver.probe, *actions],
        env=_environment(driver, variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.stdout.splitlines()


@contextmanager
def holding(driver: FakeDriver, *actions: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run these actions in a program, and yield it. It keeps its resources until the block ends."""
    process = subprocess.Popen(
        [driver.probe, *actions, "hold"],
        env=_environment(driver, variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = [line.strip() for line in iter(process.stdout.readline, "holding\n") if line]
        assert all(line.endswith("CUDA_SUCCESS") for line in said), said
        yield process
    finally:
        process.kill()
        process.communicate()


def _environment(driver: FakeDriver, variables: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, **driver.environment, **variables}
