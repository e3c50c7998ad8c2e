"""Each check of `make check` reports a planted offence."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

BIN = Path(sys.executable).parent
CONTRACTS = re.compile(r"\n(?=[^\n]+\n-{3,}\n)")


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
    """In each folder with its own ruff.toml, ruff bans imports that it permits elsewhere."""
    source = f'"""Planted."""\n\n{statement}\n'
    command = [str(BIN / "ruff"), "check", "--select", "TID251", "--stdin-filename"]
    for place, stopped in ((folder, True), ("services/apportion/agent", False)):
        done = subprocess.run(
            [*command, f"{place}/planted.py", "-"],
            cwd=ROOT, input=source, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode == 1 and "is banned" in done.stdout) == stopped, done


@pytest.mark.parametrize(
    ("code", "statement"),
    [
        ("S301", "import pickle\n\nHELD = pickle.loads(DATA)"),
        ("S302", "import marshal\n\nHELD = marshal.loads(DATA)"),
        ("S307", "HELD = eval(DATA)"),
        ("S102", "exec(DATA)"),
        ("S506", "import yaml\n\nHELD = yaml.load(DATA, Loader=yaml.Loader)"),
    ],
)
def test_ruff_bans_what_runs_data(code: str, statement: str) -> None:
    """Ruff bans calls that execute data as code in all shipped code."""
    command = [str(BIN / "ruff"), "check", "--output-format", "json", "--stdin-filename"]
    source = f'"""Planted."""\n\n{statement}\n'
    done = subprocess.run(
        [*command, "services/apportion/planted.py", "-"],
        cwd=ROOT, input=source, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert [each["code"] for each in json.loads(done.stdout) if each["code"] != "F821"] == [code]
    shipped = [*(ROOT / "services").rglob("*.py"), *(ROOT / "schemas").rglob("*.py")]
    assert [str(path) for path in shipped if f"noqa: {code}" in path.read_text()] == []


PLANTED = (
    ("apportion/scheduler", "import pickle", "nothing reads data by what would run it"),
    ("apportion/core", "import nats", "core is pure"),
    ("apportion/core", "import socket", "core is pure"),
    ("apportion/core", "import apportion.runtime", "services know nothing of one another"),
    ("apportion/agent", "import apportion.binder", "services know nothing of one another"),
    ("apportion/binder", "import nats", "nats is imported by"),
    ("apportion/scheduler", "import pynvml", "pynvml is imported by"),
    ("apportion/scheduler", "import aiohttp", "aiohttp is imported by"),
    ("apportion/cli/verbs/see", "import apportion.cli.verbs.see.why", "no verb imports another"),
    ("apportion/cli/verbs/act", "import apportion.cli.verbs.see.who", "no verb imports another"),
    ("apportion/cli/client", "import apportion.cli.pods", "inside cli"),
)
CIRCLE = ("one", "another")
"""Two modules of one folder that import each other."""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the report of lint-imports for a copy of the source with forbidden imports planted in
    it."""
    copy = tmp_path_factory.mktemp("planted")
    for folder in ("services", "schemas"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("*.so"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for at, (module, statement, _) in enumerate(PLANTED):
        place = copy / "services" / module / f"planted{at}.py"
        place.write_text(f'"""Planted."""\n{statement}\n')
    for name, imported in zip(CIRCLE, reversed(CIRCLE), strict=True):
        place = copy / "services/apportion/cli/render" / f"planted_{name}.py"
        place.write_text(f'"""Planted."""\nimport apportion.cli.render.planted_{imported}\n')
    done = subprocess.run(
        [BIN / "lint-imports", "--no-cache"],
        cwd=copy, env={**os.environ, "PYTHONPATH": "services:schemas", "COLUMNS": "300"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done
    return done.stdout.partition("Broken contracts")[2]


@pytest.mark.parametrize("at", range(len(PLANTED)))
def test_layers_hold(broken: str, at: int) -> None:
    """Each planted import breaks its import contract, and the report names the import."""
    module, _, contract = PLANTED[at]
    named = f"{module.replace('/', '.')}.planted{at} "
    under = [part for part in CONTRACTS.split(broken) if contract in part.partition("\n")[0]]
    assert [named in part for part in under] == [True], broken


def test_a_circle_of_imports_is_found(broken: str) -> None:
    """An import cycle between two modules of one folder is reported."""
    under = [
        part for part in CONTRACTS.split(broken) if "imports itself" in part.partition("\n")[0]
    ]
    assert [all(f".planted_{name} " in part for name in CIRCLE) for part in under] == [True], broken
