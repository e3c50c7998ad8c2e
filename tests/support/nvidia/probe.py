"""Programs that use a fake card, as processes of their own: what `probe.c` does, line by line.

Invariant: whatever a test does, no such program outlives it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.support.nvidia.driver import FakeDriver


def probe(driver: FakeDriver, *actions: str, **variables: str) -> list[str]:
    """What the program says to these actions, a line each, the first about its context."""
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
    """A program that has done these actions and keeps what it has until this is left."""
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
