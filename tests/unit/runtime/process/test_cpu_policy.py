"""Tests of the kernel's CPU scheduling policy for our processes."""

import os
import subprocess
import sys

import pytest

from apportion.runtime.process.cpu_policy import children_that_interrupt_nobody

if sys.platform != "linux":
    pytest.skip("the policy is Linux's", allow_module_level=True)

ASKED = "import os; print(os.sched_getscheduler(0))"
KEPT = (
    "import os; from apportion.runtime.process.cpu_policy import interrupt_nobody; "
    "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); "
    "interrupt_nobody(); print(os.sched_getscheduler(0))"
)


def _said(code: str) -> int:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_what_is_started_interrupts_nobody_and_we_go_on_as_before() -> None:
    """Child processes run with the CPU policy SCHED_BATCH. The parent's policy does not change."""
    before = os.sched_getscheduler(0)
    with children_that_interrupt_nobody():
        assert _said(ASKED) == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == before
    assert _said(ASKED) == before


def test_what_an_operator_has_set_stays() -> None:
    """If an operator has set a process's CPU scheduling policy, the process keeps it."""
    assert _said(KEPT) == os.SCHED_IDLE
