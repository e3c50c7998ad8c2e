"""The gates of `make check` close: each is shown to stop a planted offence."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

BIN = Path(sys.executable).parent


@pytest.mark.parametrize("folder", ["services/apportion/core", "schemas/apportion_schemas"])
@pytest.mark.parametrize(
    "statement",
    [
        "import time",
        "import datetime",
        "from random import shuffle",
        "import asyncio",
        "import logging",
        "import os.path",
        "from urllib.request import urlopen",
        "import uuid",
    ],
)
def test_ruff_bans_the_outside(folder: str, statement: str) -> None:
    """The folder's own ruff.toml is in force, not only the repository's."""
    source = f'"""Planted."""\n\n{statement}\n'
    command = [str(BIN / "ruff"), "check", "--select", "TID251", "--stdin-filename"]
    for place, stopped in ((folder, True), ("services/apportion/agent", False)):
        done = subprocess.run(
            [*command, f"{place}/planted.py", "-"],
            cwd=ROOT, input=source, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode == 1 and "is banned" in done.stdout) == stopped, done


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("apportion/core", "import nats", "core is pure"),
        ("apportion/core", "import socket", "core is pure"),
        ("apportion/core", "import apportion.runtime", "services know nothing of one another"),
        ("apportion/agent", "import apportion.binder", "services know nothing of one another"),
        ("apportion/binder", "import nats", "nats is imported by"),
        ("apportion/scheduler", "import pynvml", "pynvml is imported by"),
        ("apportion/scheduler", "import aiohttp", "aiohttp is imported by"),
    ],
)
def test_layers_hold(tmp_path: Path, module: str, statement: str, contract: str) -> None:
    """Each import contract breaks, by its name, on a copy of the tree with one import planted."""
    for folder in ("services", "schemas"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "services" / module / "planted.py").write_text(f'"""Planted."""\n{statement}\n')
    done = subprocess.run(
        [BIN / "lint-imports", "--no-cache"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": "services:schemas", "COLUMNS": "300"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done
    broken = done.stdout.partition("Broken contracts")[2]
    assert contract in broken, done.stdout
