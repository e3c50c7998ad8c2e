"""The NVML backend over a fake driver: real bindings, real calls, no card.

The driver's library is compiled from fake_nvml.c and found by the loader before any real one, so
this must be a process of its own.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

HERE = Path(__file__).parent
COMPILER = shutil.which("cc")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the fake driver is the driver."""
    if COMPILER is None:
        pytest.skip("no C compiler: the fake driver cannot be built")
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{library.name}"]
    subprocess.run([COMPILER, *flags, "-o", library, HERE / "fake_nvml.c"], check=True)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_NVML": str(folder / "state")}


@pytest.mark.parametrize(
    "arguments",
    [
        ["tests/unit/agent/nvml_cases.py"],
        ["tests/contracts/test_device_backend.py", "-k", "nvml"],
    ],
    ids=["cases", "contract"],
)
def test_over_the_fake_driver(driver: dict[str, str], arguments: list[str]) -> None:
    """The cases, and the contract that simulated devices keep too; none may be skipped."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=driver,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout
