"""Regions on disk: kept over restarts, resized in place, and no way out of the container."""

import os
from pathlib import Path

import pytest
from msgspec import structs

from apportion.agent.hands.files import SharedFile
from apportion.agent.hands.regions import Regions, open_to_all
from apportion.core.grants import RegionPlan
from apportion.core.grants.region import Region, RegionInvalid


def plan(folder: Path, memory: int = 700 << 20, *, device: str = "GPU-1") -> RegionPlan:
    """The region of the container `train` of pod `uid-1`."""
    return RegionPlan(str(folder / "uid-1_train" / "share.cache"), (device,), (memory,), (30,))


def limits(path: str) -> tuple[int, ...]:
    """What stands in a region by now."""
    with SharedFile(Path(path)) as file:
        return Region(file).memory


def test_a_region_is_made_once_and_then_resized(tmp_path: Path) -> None:
    """A restarted container has its region mapped from before: the file stays the same one."""
    regions, wanted = Regions(tmp_path), plan(tmp_path)
    regions.ensure(wanted)
    before = Path(wanted.path).stat()
    regions.ensure(plan(tmp_path, 1300 << 20))
    after = Path(wanted.path).stat()
    assert (after.st_ino, limits(wanted.path)) == (before.st_ino, (1300 << 20,))
    assert after.st_mode & 0o777 == 0o666
    assert Path(wanted.path).parent.stat().st_mode & 0o777 == 0o777


def test_a_region_of_another_device_is_made_anew(tmp_path: Path) -> None:
    """The same pod placed again elsewhere on the node; also what is no region at all."""
    regions = Regions(tmp_path)
    regions.ensure(plan(tmp_path))
    other = plan(tmp_path, 1 << 30, device="GPU-2")
    regions.ensure(other)
    assert limits(other.path) == (1 << 30,)
    Path(other.path).write_bytes(b"broken")
    regions.ensure(other)
    assert limits(other.path) == (1 << 30,)


def test_a_region_in_which_hami_core_lists_all_cards_is_kept(tmp_path: Path) -> None:
    """Outside of a container NVML shows it more cards than the process has a share of."""
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
    """We write as root: a link in its folder would make us write anywhere on the node."""
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
    regions.advise(100.0, 10.0)
    if trick != "folder":
        regions.ensure(wanted)
        assert limits(wanted.path) == (700 << 20,)
    assert precious.read_bytes() == b"x" * 3_000_000


def test_a_region_that_is_cut_off_under_us_ends_nothing(tmp_path: Path) -> None:
    """Mapped memory would: reading past the end of its file is SIGBUS."""
    wanted = plan(tmp_path)
    regions = Regions(tmp_path)
    regions.ensure(wanted)
    with SharedFile(Path(wanted.path)) as file:
        region = Region(file)
        os.truncate(wanted.path, 100)
        assert list(region.processes()) == []
        assert region.memory == (0,)
    regions.advise(100.0, 10.0)


def test_what_a_pod_had_is_taken_away_with_it(tmp_path: Path) -> None:
    """Once the kubelet has left it out twice, and nothing of another one."""
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
    """A container with NPUs that are split softly has one for its library alone."""
    regions = Regions(tmp_path)
    folder = tmp_path / "uid-1_train"
    open_to_all(folder)
    assert folder.stat().st_mode & 0o777 == 0o777
    regions.keep(set())
    assert folder.exists()
    regions.keep(set())
    assert not folder.exists()
