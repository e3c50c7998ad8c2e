"""Tests that Python's garbage collector does not scan the whole folded state again and again."""

import subprocess
import sys

COUNT = """
import gc
from apportion.scheduler.main import leave_alone
before = len(gc.get_objects())
leave_alone()
print(before, gc.get_freeze_count(), len(gc.get_objects()))
"""


def test_what_is_there_is_left_alone() -> None:
    """After the fold, Python's garbage collector does not scan the objects of the state."""
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    before, frozen, seen = map(int, done.stdout.split())
    assert frozen > before / 2
    assert seen < before / 100
