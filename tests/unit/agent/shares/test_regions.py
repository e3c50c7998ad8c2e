"""Tests of HAMi-core regions, the files that hold a container's limits."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from apportion.agent.shares.regions import (
    REMOVED_MAX,
    Breach,
    Kept,
    Regions,
    SharedFile,
    open_to_all,
)
from apportion.core.grants import RegionPlan
from apportion.core.grants.region import BYTES_MAX, Region, RegionInvalid
from tests.support.regions import run_process


def plan(folder: Path, memory: int = 700 << 20, *, device: str = "GPU-1") -> RegionPlan:
    """Plan a region for the container `train` of pod `uid-1`."""
    return RegionPlan(str(folder / "uid-1_train" / "share.cache"), (device,), (memory,), (30,))


def limits(path: str) -> tuple[int, ...]:
    """Return the memory limits in the region file at `path`."""
    with SharedFile(Path(path)) as file:
        return Region(file).memory


def test_a_region_is_made_once_and_then_resized(tmp_path: Path) -> None:
    """The agent resizes a region file in place, so a running container that has mapped the file
    sees the new limit."""
    regions, wanted = Regions(tmp_path), plan(tmp_path)
    regions.ensure(wanted)
    before = Path(wanted.path).stat()
    regions.ensure(plan(tmp_path, 1300 << 20))
    after = Path(wanted.path).stat()
    assert (after.st_ino, limits(wanted.path)) == (before.st_ino, (1300 << 20,))
    assert after.st_mode & 0o777 == 0o666
    assert Path(wanted.path).parent.stat().st_mode & 0o777 == 0o777


def test_a_region_of_another_device_is_made_anew(tmp_path: Path) -> None:
    """The agent replaces a region file that belongs to another device or has invalid content."""
    regions = Regions(tmp_path)
    regions.ensure(plan(tmp_path))
    other = plan(tmp_path, 1 << 30, device="GPU-2")
    regions.ensure(other)
    assert limits(other.path) == (1 << 30,)
    Path(other.path).write_bytes(b"broken")
    regions.ensure(other)
    assert limits(other.path) == (1 << 30,)


def test_a_region_in_which_hami_core_lists_all_cards_is_kept(tmp_path: Path) -> None:
    """HAMi-core may list all GPUs of the node in a container's region file. The agent keeps such a
    file and resizes it in place."""
    regions, wanted = Regions(tmp_path), plan(tmp_path, device="GPU-2")
    listed = structs.replace(
        wanted, devices=("GPU-1", "GPU-2"), memory=(*wanted.memory, 0), cores=(30, 30)
    )
    regions.ensure(listed)
    before = Path(wanted.path).stat()
    more = structs.replace(wanted, memory=(1300 << 20,))
    assert regions.resize(more)
    regions.ensure(more)
    assert Path(wanted.path).stat().st_ino == before.st_ino
    assert limits(wanted.path) == (1300 << 20, 0)


@pytest.mark.parametrize("trick", ["link", "hard link", "pipe", "folder"])
def test_a_container_cannot_lead_us_elsewhere(tmp_path: Path, trick: str) -> None:
    """If a container has replaced its region file with a link, pipe or folder, the agent makes a
    new file. The agent runs as root, so it never follows the link."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"x" * 3_000_000)
    wanted = plan(tmp_path / "shares")
    path = Path(wanted.path)
    path.parent.mkdir(parents=True)
    match trick:
        case "link":
            path.symlink_to(precious)
        case "hard link":
            path.hardlink_to(precious)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    with pytest.raises((OSError, RegionInvalid)):
        SharedFile(path)
    regions = Regions(tmp_path / "shares")
    regions.ensure(wanted)
    assert limits(wanted.path) == (700 << 20,)
    assert precious.read_bytes() == b"x" * 3_000_000


def test_a_region_that_is_cut_off_under_us_ends_nothing(tmp_path: Path) -> None:
    """If a container truncates its region file while the agent has mapped it, the agent restores
    the file and does not crash with SIGBUS."""
    wanted = plan(tmp_path)
    regions = Regions(tmp_path)
    regions.ensure(wanted)
    with SharedFile(Path(wanted.path)) as file:
        region = Region(file)
        os.truncate(wanted.path, 100)
        assert list(region.processes()) == []
        assert region.memory == (0,)
    (found,) = regions.round([Kept("default", wanted)], 100.0, 10.0)
    assert found.code == "removed"
    assert limits(wanted.path) == (700 << 20,)


@pytest.mark.parametrize(
    "deed", ["raise", "free", "cores", "lower", "remove", "link", "folder", "garbage", "nothing"]
)
def test_what_a_container_did_to_its_region_is_restored(tmp_path: Path, deed: str) -> None:
    """The agent restores a region file that a container changed. It reports a breach if the
    container raised its limits or removed the file."""
    wanted = plan(tmp_path)
    path, regions = Path(wanted.path), Regions(tmp_path)
    regions.ensure(wanted)
    before = path.stat().st_ino
    match deed:
        case "raise":
            with SharedFile(path) as file:
                Region(file).hold(plan(tmp_path, 14_000 << 20))
        case "free" | "lower":
            with SharedFile(path) as file:
                Region(file).hold(plan(tmp_path, 0 if deed == "free" else 1 << 20))
        case "cores":
            with SharedFile(path) as file:
                Region(file).hold(structs.replace(wanted, cores=(0,), priority=0))
        case "remove":
            path.unlink()
        case "link":
            path.unlink()
            path.symlink_to("/etc/passwd")
        case "folder":
            path.unlink()
            (path / "deep" / "deeper").mkdir(parents=True)
        case "garbage":
            path.write_bytes(b"\xff" * 3_000_000)
    found = regions.round([Kept("default", wanted)], 100.0, 10.0)
    of = path.parent.name.rpartition("_")[::2]
    breach = {
        "raise": Breach(*of, "GPU-1", "raised", 14_000 << 20, 30),
        "free": Breach(*of, "GPU-1", "raised", BYTES_MAX, 30),
        "cores": Breach(*of, "GPU-1", "raised", 700 << 20, 100),
    }.get(deed, Breach(*of, "GPU-1", "removed"))
    assert found == ([] if deed in {"nothing", "lower"} else [breach])
    assert limits(wanted.path) == (700 << 20,)
    if deed in {"raise", "free", "cores", "lower", "nothing"}:
        assert path.stat().st_ino == before
    assert regions.round([Kept("default", wanted)], 100.0, 10.0) == []


def test_a_resize_of_the_ledger_is_no_deed_of_the_container(tmp_path: Path) -> None:
    """When the ledger resizes a share, the agent updates the container's region file and does not
    report the change as a breach."""
    regions, more = Regions(tmp_path), plan(tmp_path, 1 << 30)
    regions.ensure(plan(tmp_path))
    assert regions.round([Kept("default", more)], 100.0, 10.0) == []
    assert limits(more.path) == (1 << 30,)
    assert Regions(tmp_path).round([Kept("default", plan(tmp_path))], 100.0, 10.0) == []
    assert limits(more.path) == (700 << 20,)


def test_a_start_forgets_the_processes_of_the_life_before(tmp_path: Path) -> None:
    """When a container starts, the agent removes the processes of the container's previous run from
    the region file. A resize keeps the processes."""
    wanted, regions = plan(tmp_path), Regions(tmp_path)
    regions.ensure(wanted)
    run_process(Path(wanted.path), mib=600)
    for starting, count in ((False, 1), (True, 0)):
        regions.ensure(wanted, starting=starting)
        with SharedFile(Path(wanted.path)) as file:
            assert len(list(Region(file).processes())) == count


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """Provide a folder that `rm -rf` removes afterwards, since pytest cannot remove very deep
    folders."""
    yield tmp_path
    subprocess.run(["/bin/rm", "-rf", str(tmp_path)], check=True)


def test_a_folder_of_any_depth_and_size_is_removed(deep: Path) -> None:
    """The agent removes a container's folder even if it is 1,500 levels deep. It does not follow
    links."""
    shares, precious = deep / "shares", deep / "precious"
    precious.mkdir()
    (precious / "file").touch()
    regions = Regions(shares)
    regions.ensure(plan(shares))
    inner = os.open(shares / "uid-1_train", os.O_RDONLY)
    os.symlink(precious, "link", dir_fd=inner)
    for level in range(1_500):
        os.mkdir("d", dir_fd=inner)
        below = os.open("d", os.O_RDONLY, dir_fd=inner)
        os.close(inner)
        inner = below
        if not level % 100:
            os.symlink(precious, "link", dir_fd=inner)
    for number in range(REMOVED_MAX):
        os.close(os.open(str(number), os.O_CREAT, dir_fd=inner))
    os.close(inner)
    for rounds in range(5):
        regions.keep(set())
        assert (shares / "uid-1_train").exists() == (rounds < 2)
    assert (precious / "file").exists()


def test_files_beside_a_region_cost_nothing(tmp_path: Path) -> None:
    """The agent reads only the container's own region file and ignores other `.cache` files in the
    folder."""
    regions = Regions(tmp_path)
    regions.ensure(plan(tmp_path))
    for name in ("a.cache", "b.cache"):
        shutil.copy(plan(tmp_path).path, tmp_path / "uid-1_train" / name)
    assert [(pod, container) for pod, container, _ in regions.read()] == [("uid-1", "train")]


def test_a_device_is_looked_at_before_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent checks a file's type with O_PATH before opening it, because opening a device file
    can have side effects."""
    opened: list[int] = []
    real = os.open

    def noted(path: Path | str, flags: int, *rest: int) -> int:
        opened.append(flags)
        return real(path, flags, *rest)

    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(os, "open", noted)
    with pytest.raises(RegionInvalid):
        SharedFile(tmp_path / "pipe")
    assert all(flags & os.O_PATH for flags in opened)


def test_what_a_pod_had_is_taken_away_with_it(tmp_path: Path) -> None:
    """The agent removes a pod's region files once the kubelet has not listed the pod in two
    consecutive cleanup rounds."""
    regions = Regions(tmp_path)
    regions.ensure(plan(tmp_path))
    other = RegionPlan(str(tmp_path / "uid-2_a" / "share.cache"), ("GPU-1",), (1,), (1,))
    regions.ensure(other)
    regions.keep({"uid-2"})
    regions.keep({"uid-1", "uid-2"})
    regions.keep({"uid-2"})
    assert [pod for pod, _ in regions.each()] == ["uid-1", "uid-2"]
    regions.keep({"uid-2"})
    assert [pod for pod, _ in regions.each()] == ["uid-2"]


def test_a_folder_without_a_region_is_taken_away_as_well(tmp_path: Path) -> None:
    """Once a pod is gone, the agent also removes a container's folder that has no region file."""
    regions = Regions(tmp_path)
    folder = tmp_path / "uid-1_train"
    open_to_all(folder)
    assert folder.stat().st_mode & 0o777 == 0o777
    regions.keep(set())
    assert folder.exists()
    regions.keep(set())
    assert not folder.exists()
