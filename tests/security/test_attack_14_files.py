"""Attack 14: a user writes a file that makes a service waste time or reveal another file.

Without the guards, a file with very many YAML documents keeps its reader busy for minutes. A
symbolic link makes the watcher read a secret file and log one of its lines."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apportion.runtime.files.safe_yaml import DOCUMENTS_MAX
from apportion_schemas import PodSubmitted
from tests.security.weakened import without
from tests.support.facts import Facts
from tests.support.nats import Bus
from tests.support.processes import ServiceProcess

SECRET = "hunter2"
NAME = "works-on"
POD = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: {NAME}}}
spec: {{containers: [{{name: main, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]}}
"""


@pytest.mark.parametrize("guarded", [False, True], ids=["weak", "guarded"])
async def test_a_link_out_of_the_folder_is_not_followed(
    bus: Bus, tmp_path: Path, guarded: bool
) -> None:
    """The watcher does not follow a link to a secret file outside its folder, and still reads the
    other manifests.

    Links inside the folder, through which Kubernetes mounts a ConfigMap, are followed.
    """
    secret, folder = tmp_path / "secret", tmp_path / "manifests"
    secret.write_text(f"{SECRET}: &{SECRET} a\n{SECRET}: b\n")
    (folder / "..2026").mkdir(parents=True)
    (folder / "..2026" / "good.yaml").write_text(POD)
    (folder / "..data").symlink_to("..2026")
    (folder / "good.yaml").symlink_to("..data/good.yaml")
    (folder / "leak.yaml").symlink_to(secret)
    os.mkfifo(folder / "pipe.yaml")
    facts = Facts(bus)
    await facts.open()
    options = ("--manifests", str(folder), "--interval", "0.1")
    first = without("" if guarded else "stays in the folder")
    url = bus.server.url_for("watcher")
    async with ServiceProcess("watcher", url, *options, first=first) as watcher:
        said = await watcher.logged("leak.yaml")
        await facts.count(PodSubmitted, 1)
    logged, written = json.dumps(watcher.log), str(facts.events)
    assert (SECRET in logged) is not guarded
    assert ("links to a file outside" in str(said["event"])) is guarded
    assert SECRET not in written
    assert [each.name for each in facts.of(PodSubmitted)] == [NAME]


def check(folder: Path, guard: str) -> Any:
    """Return the output of `apportion check --json` for the folder, run with the named guard
    removed."""
    verb = ["check", "-f", str(folder), "--json"]
    weak = [sys.executable, "-m", "tests.security.weakened", guard, "--", *verb]
    command = weak if guard else [sys.executable, "-m", "apportion.cli.main", *verb]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)


@pytest.mark.parametrize("guarded", [False, True], ids=["weak", "guarded"])
async def test_too_many_documents_are_not_parsed(tmp_path: Path, guarded: bool) -> None:
    """A file with too many documents is refused without parsing, and other files are read as
    usual."""
    (tmp_path / "a-many.yaml").write_text("---\na: 1\n" * (DOCUMENTS_MAX + 1))
    (tmp_path / "b-good.yaml").write_text(POD)
    report = await asyncio.to_thread(check, tmp_path, "" if guarded else "counts documents")
    told = [row for row in report["documents"] if "a-many" in row["source"]]
    if guarded:
        assert len(told) == 1
        assert f"more than {DOCUMENTS_MAX} documents" in json.dumps(told)
    else:
        assert len(told) + len(report["skipped"]) > DOCUMENTS_MAX
    assert [row["name"] for row in report["documents"] if "b-good" in row["source"]] == [
        f"Pod default/{NAME}"
    ]
