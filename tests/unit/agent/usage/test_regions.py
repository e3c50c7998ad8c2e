"""Tests of the usage that the agent reads from HAMi-core regions, and of the host process ids that
it writes there."""

from pathlib import Path

from apportion.agent.shares.regions import Regions, SharedFile
from apportion.agent.usage.uses import Reading, read, tell_pids, wrong_pids
from apportion.core.grants import RegionPlan
from apportion.core.grants.region import Region
from tests.support.regions import run_process

MIB = 1 << 20
LAST_KERNEL = 2_008_896 + 16
"""Offset of the last kernel time in HAMi-core 1.2."""


def regions(folder: Path) -> tuple[Regions, Path]:
    """Make a region file for a container with 700 MiB and 30 % of a GPU. Return the agent's set of
    open regions, and the path of that file."""
    made = Regions(folder)
    path = folder / "uid-1_main" / "share.cache"
    made.ensure(RegionPlan(str(path), ("GPU-1",), (700 * MIB,), (30,)))
    return made, path


def test_a_region_tells_what_its_processes_use(tmp_path: Path) -> None:
    """A container's HAMi-core region reports zero usage until the container has a GPU process.
    After that, it reports the usage of the processes."""
    made, path = regions(tmp_path)
    idle = Reading(0, 0, (0, 0, 0), None, running=False)
    assert read(made, 100.0) == {("uid-1", "main"): {"GPU-1": idle}}
    run_process(path, mib=600, percent=25)
    with SharedFile(path) as file:
        file.write(LAST_KERNEL, (90).to_bytes(8, "little"))
    kinds = (150 * MIB, 0, 450 * MIB)
    busy = Reading(600 * MIB, 25, kinds, 10.0, running=True, pids={7: 0})
    assert read(made, 100.0) == {("uid-1", "main"): {"GPU-1": busy}}


def test_a_process_is_told_who_it_is(tmp_path: Path) -> None:
    """When the agent sees a container's process on a GPU, it writes the process's id on the host to
    the container's HAMi-core region. It writes the id only once."""
    made, path = regions(tmp_path)
    run_process(path, inner=7, host=99)
    assert tell_pids(made, {("uid-1", "main"): {8: 4712}, ("uid-1", "aide"): {7: 4713}}) == 0
    assert tell_pids(made, {("uid-1", "main"): {7: 4711}}) == 1
    assert tell_pids(made, {("uid-1", "main"): {7: 4711}}) == 0
    with SharedFile(path) as file:
        assert next(Region(file).processes()).host_pid == 4711


def test_only_regions_with_another_id_are_written(tmp_path: Path) -> None:
    """The agent writes a host process id to a HAMi-core region only if the id there is wrong."""
    made, path = regions(tmp_path)
    main = "uid-1", "main"
    run_process(path, inner=7, host=4711)
    readings = read(made, 100.0)
    assert wrong_pids(readings, {main: {7: 4711}}) == {}
    assert wrong_pids(readings, {main: {8: 4712}, ("uid-2", "main"): {7: 4713}}) == {}
    assert wrong_pids(readings, {main: {7: 4714}}) == {main: {7: 4714}}
