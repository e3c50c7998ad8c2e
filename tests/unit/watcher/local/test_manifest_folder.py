"""Tests of a folder of manifests: which pods it requests, and when a pod counts as gone."""

import logging
import os
import shutil
from pathlib import Path

import pytest

from apportion.runtime.process.clock import SystemClock
from apportion.watcher.local.manifest_folder import ManifestFolder
from apportion.watcher.local.reconcile import Observation
from apportion_schemas import Configuration
from apportion_schemas.configuration import NvidiaConfiguration
from tests.support.pods import ask

POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  containers:
  - name: main
    resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
"""


def pod(name: str, gpus: str = "1") -> str:
    """Return a pod manifest that requests `gpus` GPUs."""
    return POD.format(name=name, gpus=gpus)


def write(folder: Path, name: str, *documents: str, age_s: float = 60) -> None:
    """Write a manifest file that was last modified `age_s` seconds ago."""
    path = folder / name
    path.write_text("---\n".join(documents))
    _, _, _, _, _, _, _, _, mtime, _ = path.stat()
    os.utime(path, (mtime - age_s, mtime - age_s))


def source_of(folder: Path) -> ManifestFolder:
    """Return a manifest folder that is read only when a test asks for it."""
    return ManifestFolder(folder, name="test", interval_s=30, clock=SystemClock())


def keys(observation: Observation) -> set[str]:
    return set(observation.pods)


async def test_files_come_change_and_go(tmp_path: Path) -> None:
    """Each reading of the folder returns the requested pods. If nothing has changed, it returns the
    same object as before."""
    source = source_of(tmp_path)
    empty = await source.observe()
    assert (keys(empty), empty.whole) == (set(), True)
    write(tmp_path, "a.yaml", pod("a"), pod("b"))
    write(tmp_path, "c.json", '{"apiVersion": "v1", "kind": "List", "items": []}')
    write(tmp_path, "notes.txt", "no manifest")
    write(tmp_path, ".hidden.yaml", pod("hidden"))
    both = await source.observe()
    assert keys(both) == {"default/a", "default/b"}
    assert await source.observe() is both
    write(tmp_path, "a.yaml", pod("a"), age_s=50)
    assert keys(await source.observe()) == {"default/a"}
    (tmp_path / "a.yaml").unlink()
    last = await source.observe()
    assert keys(last) == set()
    assert last.lacks("default/a")


async def test_a_file_that_goes_while_the_folder_is_looked_at_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If a file is deleted while the folder is read, all other files are read."""
    write(tmp_path, "a.yaml", pod("a"))
    write(tmp_path, "b.yaml", pod("b"))
    look = Path.stat

    def looked(path: Path, **how: bool) -> os.stat_result:
        found = look(path, **how)
        if path.name == "b.yaml":
            path.unlink()
        return found

    monkeypatch.setattr(Path, "stat", looked)
    source = source_of(tmp_path)
    assert keys(await source.observe()) == {"default/a"}
    assert f"{tmp_path}: cannot read it" not in caplog.text
    assert (await source.observe()).whole
    assert source.problems == 0


async def test_what_stands_beside_workloads_is_passed_over_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder's reader skips and logs documents that are not workloads. A pod that is removed
    from its file is no longer requested."""
    beside = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
    urgent = (
        "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: urgent}\n"
        "value: 7\n"
    )
    first = pod("a").replace("spec:\n", "spec:\n  priorityClassName: urgent\n")
    write(tmp_path, "a.yaml", first, pod("b"), beside, urgent)
    source = source_of(tmp_path)
    with caplog.at_level("INFO"):
        seen = await source.observe()
    assert (keys(seen), seen.whole, source.problems) == ({"default/a", "default/b"}, True, 0)
    assert seen.pods["default/a"].priority == 7
    assert "Service web" in caplog.text
    write(tmp_path, "a.yaml", pod("b"), beside, age_s=50)
    assert (await source.observe()).lacks("default/a")


async def test_a_gang_comes_with_its_job(tmp_path: Path) -> None:
    """A Volcano Job in the folder yields a pod per replica, and a gang with its `minAvailable`."""
    write(
        tmp_path,
        "job.yaml",
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: train}\n"
        "spec:\n  minAvailable: 2\n  tasks:\n  - name: w\n    replicas: 2\n    template:\n"
        "      spec: {containers: [{name: c}]}\n",
    )
    seen = await source_of(tmp_path).observe()
    assert keys(seen) == {"default/train-w-0", "default/train-w-1"}
    assert seen.groups["default/train"].min_available == 2


async def test_a_file_is_read_once_it_is_left_alone(tmp_path: Path) -> None:
    """If a file was modified just now, it may be incomplete. The folder's reader then skips the
    file and keeps the pods that the file had before."""
    write(tmp_path, "a.yaml", pod("a"), pod("b"))
    source = source_of(tmp_path)
    await source.observe()
    write(tmp_path, "a.yaml", pod("a"), age_s=0)
    write(tmp_path, "new.yaml", pod("c"), age_s=0)
    growing = await source.observe()
    assert keys(growing) == {"default/a", "default/b"}
    assert not growing.whole
    assert not growing.lacks("default/c")


async def test_a_bad_file_hides_no_other_and_keeps_what_it_held(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If a file in the folder becomes invalid, its pods stay and other files are read. The log
    names the file, the field and the fix."""
    write(tmp_path, "a.yaml", pod("a"), pod("b"))
    write(tmp_path, "z.yaml", pod("z"))
    source = source_of(tmp_path)
    await source.observe()
    write(tmp_path, "a.yaml", pod("a"), pod("b", gpus="-1"), age_s=50)
    with caplog.at_level(logging.ERROR):
        seen = await source.observe()
    assert keys(seen) == {"default/a", "default/b", "default/z"}
    assert source.problems == 1
    (line,) = caplog.messages
    assert "a.yaml, document 2" in line
    assert "nvidia.com/gpu" in line
    assert "-1" in line
    await source.observe()
    assert len(caplog.messages) == 1
    write(tmp_path, "a.yaml", pod("a"), age_s=40)
    assert keys(await source.observe()) == {"default/a", "default/z"}
    assert source.problems == 0


async def test_what_was_never_readable_may_hold_anything(tmp_path: Path) -> None:
    """A file that has never been readable may contain any pod. While such a file exists, a pod
    counts as gone only if another file contained the pod before."""
    write(tmp_path, "bad.yaml", "kind: [")
    write(tmp_path, "a.yaml", pod("a"))
    source = source_of(tmp_path)
    seen = await source.observe()
    assert keys(seen) == {"default/a"}
    assert not seen.lacks("default/of-bad-file")
    (tmp_path / "a.yaml").unlink()
    assert (await source.observe()).lacks("default/a")
    (tmp_path / "bad.yaml").unlink()
    assert (await source.observe()).lacks("default/of-bad-file")


async def test_a_folder_that_cannot_be_read_keeps_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If the folder becomes unreadable, all its pods stay. The error is logged once."""
    folder = tmp_path / "manifests"
    folder.mkdir()
    write(folder, "a.yaml", pod("a"))
    source = source_of(folder)
    before = await source.observe()
    shutil.move(folder, tmp_path / "away")
    assert await source.observe() is before
    assert await source.observe() is before
    assert source.problems == 1
    assert len(caplog.messages) == 1
    assert "cannot read it" in caplog.messages[0]
    shutil.move(tmp_path / "away", folder)
    assert keys(await source.observe()) == {"default/a"}
    assert source.problems == 0


async def test_a_folder_that_was_never_there(tmp_path: Path) -> None:
    """If the folder has never existed, no pod counts as gone."""
    seen = await source_of(tmp_path / "none").observe()
    assert not seen.whole


async def test_two_files_with_one_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If two files in the folder have a pod of the same name, the pod in the first file counts. The
    other one is reported once."""
    write(tmp_path, "a.yaml", pod("a", gpus="1"))
    write(tmp_path, "b.yaml", pod("a", gpus="2"))
    source = source_of(tmp_path)
    seen = await source.observe()
    assert seen.pods["default/a"].shape.asks[0].count == 1
    (line,) = caplog.messages
    assert "b.yaml: pod default/a" in line
    assert source.problems == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: &a [x]\n" + "b: [*a]\n" * 200,
        "kind: " + "[" * 500,
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  containers:\n"
        + "  - {name: c}\n" * 50_000,
        "\x00",
    ],
    ids=["empty", "bomb", "deep", "50,000 containers", "binary"],
)
async def test_hostile_files(tmp_path: Path, text: str) -> None:
    """A malicious file in the folder is reported as a problem. The other files are read."""
    write(tmp_path, "a.yaml", text)
    write(tmp_path, "b.yaml", pod("b"))
    source = source_of(tmp_path)
    assert keys(await source.observe()) == {"default/b"}
    assert source.problems == 1


def test_uids_tell_name_and_incarnation_of_this_source_only(tmp_path: Path) -> None:
    """A uid depends only on the folder's name, the pod's name and its incarnation. Uids of other
    sources are not recognized."""
    source = source_of(tmp_path)
    uid = source.uid("default/a", 3)
    assert uid == "manifest-51e564291e9e4528b7eea136-3"
    assert source.incarnation("default/a", uid) == 3
    other = ManifestFolder(tmp_path, name="other", interval_s=1, clock=SystemClock())
    for stranger in (
        other.uid("default/a", 3),
        source.uid("default/b", 3),
        "manifest-3",
        "7b1c9a52-0000-4000-8000-000000000003",
        uid.replace("-3", "-03"),
        "",
    ):
        assert source.incarnation("default/a", stranger) == 0


async def test_E8_manifests_mean_what_the_configuration_says(tmp_path: Path) -> None:
    """If the ledger's configuration changes, all files in the folder are read again."""
    source = source_of(tmp_path)
    write(tmp_path, "a.yaml", pod("a"))
    plain = await source.observe()
    assert plain.pods["default/a"].shape.asks == (ask(cores=100),)
    filled = Configuration(nvidia=NvidiaConfiguration(default_memory=5000))
    seen = await source.observe(filled)
    assert seen.pods["default/a"].shape.asks == (ask(5000),)
    assert await source.observe(filled) is seen
