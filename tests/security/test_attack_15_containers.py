"""Attack 15: a container writes anything into its region and its folder.

A seeded fuzz over the agent's own code, as its rounds call it. Whatever a container does, every
round ends, its record can be encoded, what is granted stays the ledger's, its neighbour is left
alone, and its folder goes with its pod.
"""

import contextlib
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from apportion.agent.hands.files import SharedFile
from apportion.agent.hands.regions import Kept, Regions
from apportion.agent.places import Places
from apportion.agent.usage.account import Account
from apportion.agent.usage.owners import Owners
from apportion.agent.usage.regions import read, tell_pids
from apportion.agent.usage.uses import Counted, Look
from apportion.core.grants import RegionPlan
from apportion.core.grants.region import SIZE, Region
from tests.unit.agent.usage.test_uses import CARD, card, claim, share

MIB = 1 << 20
GRANTED = 4_000 * MIB
NUMBERS = (0, 1, 2, 99, 1 << 31, 1 << 50, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
COUNT = 2_008_896


class Container:
    """A container that writes into its folder what a seed says."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._path = folder / "share.cache"
        self._random = random.Random(seed)

    def act(self) -> None:
        """Do one thing of all that it may."""
        deeds = (self._numbers, self._numbers, self._slots, self._noise, self._cut, self._replace)
        self._random.choice((*deeds, self._litter, self._dig))()

    def _numbers(self) -> None:
        offsets = (0, 4, 8, 24, 56, 64, 1600, 1608, 1728, 1856, COUNT, COUNT + 4, COUNT + 8)
        for _ in range(self._random.randrange(1, 8)):
            at = self._random.choice(
                (*offsets, COUNT + 12, COUNT + 16, self._random.randrange(SIZE))
            )
            self._write(at, struct.pack("<Q", self._random.choice(NUMBERS)))

    def _slots(self) -> None:
        """As many processes as there is room for, each of which uses as much as can be written."""
        self._write(1856, b"\xff" * (COUNT - 1856))
        for slot in range(0, 1024, self._random.randrange(1, 200)):
            self._write(
                1856 + 1960 * slot, struct.pack("<ii", 1 + slot, self._random.choice((0, 1)))
            )
            self._write(1856 + 1960 * slot + 1936, bytes(8))
        self._write(COUNT, struct.pack("<i", 1024))

    def _noise(self) -> None:
        self._write(self._random.randrange(SIZE), self._random.randbytes(4_096))

    def _cut(self) -> None:
        if self._path.is_file() and not self._path.is_symlink():
            os.truncate(self._path, self._random.choice((0, 12, 100, 2_000_000, SIZE, 3_000_000)))

    def _replace(self) -> None:
        if self._path.is_dir() and not self._path.is_symlink():
            shutil.rmtree(self._path)
        self._path.unlink(missing_ok=True)
        match self._random.randrange(5):
            case 0:
                self._path.symlink_to("/etc/passwd")
            case 1:
                os.mkfifo(self._path)
            case 2:
                (self._path / "a" / "b").mkdir(parents=True)
            case 3:
                self._path.symlink_to(self._path)

    def _litter(self) -> None:
        for number in range(self._random.randrange(50)):
            name = self._random.choice(
                (f"{number}.cache", f"{number}", os.fsdecode(b"\xff\n%d" % number))
            )
            (self._folder / name).touch()

    def _dig(self) -> None:
        inner = os.open(self._folder, os.O_RDONLY)
        for _ in range(self._random.choice((3, 1_100))):
            with contextlib.suppress(FileExistsError):
                os.mkdir("d", dir_fd=inner)
            below = os.open("d", os.O_RDONLY, dir_fd=inner)
            os.close(inner)
            inner = below
        os.close(inner)

    def _write(self, at: int, data: bytes) -> None:
        if self._path.is_file() and not self._path.is_symlink():
            with self._path.open("r+b") as file:
                file.seek(at)
                file.write(data)


def look(regions: Regions) -> Look:
    """One look, as `Sampling` has it."""
    claims = [claim("evil", share()), claim("good", share())]
    counted = Counted(claims, [], Owners(Path("/nowhere")).of)
    return counted.look({CARD: card()}, read(regions, 1_000.0))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """A node's folder of shares. pytest recurses when it removes a folder; `rm` does not."""
    yield tmp_path
    subprocess.run(["/bin/rm", "-rf", str(tmp_path)], check=True)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_container_writes_harms_no_other(node: Path, seed: int) -> None:
    """Thirty deeds, and after each of them what the agent does every few seconds."""
    regions, account = Regions(Places(node, node, node).state), Account(0)
    plans = [
        RegionPlan(str(node / f"{pod}_main" / "share.cache"), (CARD,), (GRANTED,), (10,))
        for pod in ("evil", "good")
    ]
    for plan in plans:
        regions.ensure(plan, starting=True)
    attacker = Container(node / "evil_main", seed)
    for _ in range(30):
        attacker.act()
        found = regions.round([Kept("a", plan) for plan in plans], 1_000.0, 10.0)
        assert {each.pod for each in found} <= {"evil"}
        for plan in plans:
            with SharedFile(Path(plan.path)) as file:
                assert (Region(file).memory[0], Region(file).cores[0]) == (GRANTED, 10)
        with SharedFile(Path(plans[1].path)) as file:
            assert not Region(file).blocked
        seen = look(regions)
        tell_pids(regions, {("evil", "main"): {1: 4711}})
        account.add(seen, 5.0)
        assert [use.memory_limit for use in seen.uses] == [GRANTED, GRANTED]
        (evil, good) = seen.uses
        assert 0 <= evil.memory_used <= card().memory_mib * MIB
        assert (good.memory_used, good.cores_used) == (0, 0)
        account = Account.restored(account.saved())
    (record,) = account.records("n1", 3_600.0)
    assert [used.pod for used in record.shares] == ["evil", "good"]
    for _ in range(3):
        regions.keep({"good"})
    assert [pod for pod, _ in regions.each()] == ["good"]
