"""A node with a real agent and two containers, one of which attacks.

    python -m tests.security.tenants --seed 1      URLs are in APPORTION_AGENT_URL and so on

The attacking container writes arbitrary data into its folder, and is replaced again and again. The
agent must stay ready, protect the other container, and remove the folders of ended containers. Each
second the program prints its counts and any harm done as a line of JSON. SIGTERM ends it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from click import echo

from apportion.agent.shares.regions import SharedFile
from apportion.core.grants.region import SIZE, Region
from apportion.core.ledger.state import Phase
from apportion.runtime.jetstream.client import JetStreamLedger, connect
from apportion.runtime.ledger.port import Draft
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.clock import SystemClock, rfc3339
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import DeviceConstraints, Event, PodGone, encode, subject_of
from tests.support.fake_kubelet import FakeKubelet
from tests.support.pods import ask, pod, shape
from tests.support.polling import until
from tests.support.processes import ServiceProcess

CLOCK: Final = SystemClock()
NODE: Final = "tenants"
TYPE: Final = "T4"
GPU: Final = "nvidia.com/gpu"
MEMORY_MIB: Final = 1_000
CORES: Final = 10
DEEDS: Final = 60
"""The number of attacks of one container before it is replaced."""
FILES_MOST: Final = 20_000
WAIT_S: Final = 60.0
REMOVED_S: Final = 300.0
"""Enough to remove 60,000 files: an agent removes 10,000 every 10 s."""
NUMBERS: Final = (0, 1, 2, 99, 1 << 31, 1 << 50, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
COUNT: Final = 2_008_896


class Container:
    """A container that attacks its node's agent by writing random files into its own folder."""

    def __init__(self, folder: Path, seed: int, *, most: int = 50) -> None:
        """Attack in this folder, with at most `most` new files at a time."""
        self._most = most
        self._folder = folder
        self._path = folder / "share.cache"
        self._random = random.Random(seed)

    def act(self) -> None:
        """Do one randomly chosen thing that a container can do to its folder."""
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
        """Write processes into many slots of the usage region, and the maximum as their number.

        Each slot claims the highest possible usage."""
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
        for number in range(self._random.choice((10, 50, self._most))):
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


class Tenants:
    """The node under attack, with its agent. It counts the attacks and records the harm done."""

    def __init__(self, folder: Path, pen: JetStreamLedger, seed: int) -> None:
        self._pen = pen
        self._seed = seed
        self._kubelet = FakeKubelet(folder)
        self._fold = StateFold(quiet=True)
        self.told = {"deeds": 0, "lives": 0}
        self.wrong: list[str] = []

    async def run(self, reads: JetStreamLedger) -> None:
        """Attack until cancelled."""
        folder = self._kubelet.folder
        options = ["--node", NODE, "--simulate", f"1x{TYPE}", "--kubelet", str(folder)]
        options += ["--cdi", str(self._kubelet.cdi), "--state", str(folder / "state")]
        options += ["--run", str(folder / "run"), "--usage-sample", "1", "--usage-record", "10"]
        url = os.environ["APPORTION_AGENT_URL"]
        reader: Reader[Any] = Reader(reads, self._fold, metrics=Metrics())
        async with (
            self._kubelet,
            ServiceProcess("agent", url, *options) as agent,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(reader.run())
            group.create_task(self._tell())
            await agent.ready()
            await self._kubelet.offered(GPU, 10)
            good = await self._begun("good")
            while True:
                await self._live(good)
                with contextlib.suppress(AssertionError):
                    await agent.ready(WAIT_S)
                    continue
                self.wrong.append(f"the agent: {agent.running}, {agent.reasons}")

    async def _live(self, good: Path) -> None:
        """Start, run and end one attacking container."""
        uid = f"evil-{self.told['lives']}"
        path = await self._begun(uid)
        container = Container(path.parent, self._seed + self.told["lives"], most=FILES_MOST)
        for _ in range(DEEDS):
            await asyncio.to_thread(container.act)
            self.told["deeds"] += 1
            with SharedFile(good) as file:
                region = Region(file)
                if region.blocked or region.memory != (MEMORY_MIB << 20,):
                    self.wrong.append(f"{uid} changed its neighbour's region")
            await CLOCK.pause(0.2)
        await self._holds(lambda: _granted(path), f"the limits of {uid} to be restored")
        self._kubelet.end(uid)
        await self._write(PodGone(uid=uid))
        gone = f"the folder of {uid} to be removed"
        await self._holds(lambda: not path.parent.exists(), gone, REMOVED_S)
        self.told["lives"] += 1

    async def _begun(self, uid: str) -> Path:
        """Start a pod that is placed on this node, and return the path of its region file."""
        wants = shape(
            ask(MEMORY_MIB, cores=CORES), devices=DeviceConstraints(use_types=(TYPE,))
        )  # fmt: skip
        await self._write(pod(uid, shape=wants))

        async def bound() -> bool:
            found = self._fold.state.pods.get(uid)
            return found is not None and found.phase is Phase.BOUND

        await until(bound, f"{uid} to be bound", timeout_s=WAIT_S)
        await self._kubelet.admit(uid, uid, GPU, {"main": 1})
        await self._kubelet.begin(uid, "main")
        (edits,) = self._kubelet.edits(self._kubelet.ids(uid, "main"))
        home = next(each for each in edits["mounts"] if each["containerPath"] == "/usr/local/vgpu")
        return Path(home["hostPath"]) / "share.cache"

    async def _holds(self, check: Any, what: str, timeout_s: float = WAIT_S) -> None:
        async def seen() -> bool:
            return bool(check())

        try:
            await until(seen, what, timeout_s=timeout_s, interval_s=0.2)
        except AssertionError as error:
            self.wrong.append(str(error))

    async def _write(self, data: Any) -> None:
        identity = f"tenants/{data.uid}/{type(data).__name__}"
        event = Event(id=identity, source="watcher", time=rfc3339(CLOCK.now()), data=data)
        await self._pen.append([Draft(subject_of(data), identity, encode(event))])

    async def _tell(self) -> None:
        while True:
            await CLOCK.pause(1.0)
            echo(json.dumps({**self.told, "wrong": self.wrong[:5]}))


def _granted(path: Path) -> bool:
    try:
        with SharedFile(path) as file:
            return Region(file).memory == (MEMORY_MIB << 20,)
    except (OSError, ValueError):
        return False


async def main(seed: int) -> None:
    """Attack until SIGTERM."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    folder = Path(tempfile.mkdtemp(prefix="tenants"))  # short: the path of a socket has 107 bytes
    pen = await connect(os.environ["APPORTION_WATCHER_URL"], name="tenants")
    reads = await connect(os.environ["APPORTION_GATEWAY_URL"], name="tenants")
    try:
        await Tenants(folder, pen, seed).run(reads)
    finally:
        subprocess.run(["/bin/rm", "-rf", str(folder)], check=True)  # noqa: ASYNC221 - the end


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(main(parser.parse_args().seed))
