"""Guards can be removed by name, and an unknown name is an error."""

import subprocess
import sys

import pytest

from tests.security.weakened import GUARDS


@pytest.mark.parametrize("name", GUARDS)
def test_every_guard_can_be_taken_out(name: str) -> None:
    """Every guard can be removed: the functions that a removal replaces still exist."""
    with GUARDS[name]():
        pass


def test_a_guard_of_another_name_is_refused() -> None:
    """Removing a guard of an unknown name is an error."""
    command = [sys.executable, "-m", "tests.security.weakened", "no-such", "--", "version"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "usage: python -m tests.security.weakened" in ended.stderr
