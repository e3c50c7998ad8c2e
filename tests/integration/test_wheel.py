"""The wheel that `make wheel` builds works outside the checkout, and has compiled modules."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from apportion.runtime.process.compilation import SUFFIX
from hatch_build import MODULES, missing, source_of
from tests.support.containers import checked, pip
from tests.tidy.tree import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1_500),
    pytest.mark.skipif(bool(missing()), reason=f"nothing can be compiled here: {missing()}"),
]
ASK = """
import importlib, sys
from pathlib import Path
from apportion.runtime.process.compilation import outdated
for name in sys.argv[1:]:
    print(importlib.import_module(name).__file__)
print(len(outdated()))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the wheel, built as a user builds it, but unoptimised to save time."""
    folder = tmp_path_factory.mktemp("dist")
    environment = os.environ | {"APPORTION_OPTIMIZATION": "-O0"}
    checked(["make", "wheel", f"DIST={folder}"], env=environment, timeout_s=1_200)
    [made] = folder.glob("*.whl")
    return made


def test_it_has_every_listed_module_compiled(wheel: Path) -> None:
    """The wheel has exactly the listed modules compiled, each next to its source."""
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = {str(source_of(each).with_suffix("")) for each in MODULES}
    assert {name.removesuffix(SUFFIX) for name in names if name.endswith(".so")} == listed
    assert {f"{each}.py" for each in listed} <= names


def test_its_modules_are_optimised(wheel: Path) -> None:
    """Every compiled module was built with -O2, according to the compiler options it records."""
    with zipfile.ZipFile(wheel) as archive:
        modules = [name for name in archive.namelist() if name.endswith(".so")]
        levels = {name: re.findall(rb"(?<= )-O\S+(?= )", archive.read(name)) for name in modules}
    assert {name: found[-1] for name, found in levels.items()} == dict.fromkeys(modules, b"-O2")


def test_it_has_the_console(wheel: Path) -> None:
    """The wheel contains every file of the console."""
    names = set(zipfile.ZipFile(wheel).namelist())
    static = ROOT / "services" / "apportion" / "gateway" / "console" / "static"
    files = {path.relative_to(ROOT / "services").as_posix() for path in static.rglob("*.*")}
    assert files <= names


def test_it_says_on_which_systems_it_runs(wheel: Path) -> None:
    """The wheel's tag names a glibc version, so pip accepts it on every Linux with that version or
    newer."""
    machine = sysconfig.get_platform().removeprefix("linux-").replace("-", "_")
    tag = rf"-cp3\d+-cp3\d+-(\w+\.)*manylinux_2_\d+_{machine}(\.\w+)*\.whl$"
    assert re.search(tag, wheel.name), wheel.name


def test_it_runs_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """An installed wheel contains every compiled module, up to date, and each module can be
    imported."""
    site = tmp_path / "site"
    install = ["install", "--quiet", "--no-deps", "--no-index", f"--target={site}", str(wheel)]
    checked([*pip(), "--python", sys.executable, *install], env=os.environ, timeout_s=300)
    done = subprocess.run(
        [sys.executable, "-c", ASK, *MODULES],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *files, outdated = done.stdout.splitlines()
    assert files == [f"{site / source_of(each).with_suffix('')}{SUFFIX}" for each in MODULES]
    assert outdated == "0"
    assert not (site / "hatch_build.py").exists()
    assert ROOT not in site.parents
