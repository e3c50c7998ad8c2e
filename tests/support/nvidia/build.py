"""Compile the fake driver, once for every version of its sources.

The result is in ~/.cache/apportion, next to other test builds. Invariant: a folder with a result
appears whole or not at all. If several test runs need the same build, one run compiles it and the
other runs wait."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc")
FLAGS = ("-std=gnu11", "-O1", "-g", "-fPIC", "-Wall", "-Wextra", "-Werror")
LIBRARIES = {
    "libnvidia-ml.so.1": ("nvml.c", "nvml_mig.c", "nvml_events.c", "nvml_monitor.c", "state.c"),
    "libcuda.so.1": ("cuda.c", "state.c"),
    "libplant.so": ("plant.c", "state.c"),
    "libstandin.so": ("standin.c",),
}
MPS_CONTROL = "nvidia-cuda-mps-control"
NO_COMPILER = "no C compiler: the fake NVIDIA driver cannot be built"


@cache
def built() -> Path:
    """Return the folder with the fake driver's libraries, `probe` and `nvidia-cuda-mps-control`.

    Skips the test if there is no C compiler."""
    if COMPILER is None:
        pytest.skip(NO_COMPILER)
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "apportion"
    folder = kept / f"nvidia-{_digest()}"
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / "nvidia.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            building = Path(tempfile.mkdtemp(prefix="nvidia-building.", dir=kept))
            try:
                _compile(COMPILER, building)
                building.rename(folder)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    return folder


def _digest() -> str:
    """Return a hash of everything that the build depends on."""
    about = hashlib.sha256(" ".join([str(COMPILER), sys.executable, *FLAGS]).encode())
    for source in sorted(HERE.iterdir()):
        if source.suffix in {".c", ".h"} or source.name in {"mps_control.py", "build.py"}:
            about.update(source.name.encode() + source.read_bytes())
    return about.hexdigest()[:16]


def _compile(compiler: str, folder: Path) -> None:
    """Compile the fake driver into this folder. Raises an error with the compiler's output."""
    for library, sources in LIBRARIES.items():
        named = f"-Wl,-soname,{library}"
        _run(compiler, *FLAGS, "-shared", named, *_paths(sources), "-o", str(folder / library))
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    (folder / "libnvidia-ml.so").symlink_to("libnvidia-ml.so.1")
    linked = (f"-L{folder}", "-lcuda")
    _run(compiler, *FLAGS, *_paths(("probe.c",)), *linked, "-o", str(folder / "probe"))
    control = folder / MPS_CONTROL
    control.write_text(f"#!{sys.executable}\n{(HERE / 'mps_control.py').read_text()}")
    control.chmod(0o755)


def _paths(sources: tuple[str, ...]) -> list[str]:
    return [str(HERE / source) for source in sources]


def _run(*command: str) -> None:
    done = subprocess.run([*command, "-lpthread"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")
