"""Tests of the file in which the agent records the ResourceClaims that it has prepared."""

import json
import os
import time
from pathlib import Path

from apportion.agent.boot_book import BootBook
from apportion.agent.kubelet.holders import CHECKPOINT, CLAIMS, Holders


def proc(folder: Path, boot: str) -> Path:
    """Make a fake /proc whose boot id is `boot`."""
    file = folder / boot / "sys" / "kernel" / "random" / "boot_id"
    file.parent.mkdir(parents=True)
    file.write_text(f"{boot}\n")
    return folder / boot


def claims(folder: Path, kernel: Path) -> BootBook[str]:
    """Open the agent's file of prepared claims."""
    return BootBook(folder / CLAIMS, kernel, str)


def test_a_claim_stays_in_the_book_over_lives_of_the_agent(tmp_path: Path) -> None:
    """A prepared claim stays in the file across restarts of the agent, until the agent itself
    removes the claim."""
    kernel = proc(tmp_path, "boot-1")
    book = claims(tmp_path, kernel)
    for claim, pod in (("c-1", "a"), ("c-2", "a"), ("c-3", "b")):
        book.note(claim, pod)
    book.strike("c-1")
    book.strike("c-3")
    book.strike("c-3")
    assert claims(tmp_path, kernel).entries == {"c-2": "a"}


def test_of_another_boot_nothing_runs_any_more(tmp_path: Path) -> None:
    """The agent ignores a file of claims that was written during another boot or is unreadable. If
    the current boot id is unknown, the agent ignores the file, too."""
    claims(tmp_path, proc(tmp_path, "boot-1")).note("c-1", "a")
    later = proc(tmp_path, "boot-2")
    assert claims(tmp_path, later).entries == {}
    (tmp_path / "claims.json").write_text("{")
    assert claims(tmp_path, later).entries == {}
    assert claims(tmp_path, tmp_path / "none").entries == {}


async def test_a_pod_that_has_claims_alone_is_known_to_the_node(tmp_path: Path) -> None:
    """The agent lists a pod with a prepared claim, even if the pod is missing from the kubelet's
    checkpoint."""
    entry = {"PodUID": "by-slot", "ContainerName": "main", "ResourceName": "r", "DeviceIDs": None}
    data = {"Data": {"PodDeviceEntries": [entry]}}
    (tmp_path / CHECKPOINT).write_text(json.dumps(data))
    book = claims(tmp_path, proc(tmp_path, "boot-1"))
    book.note("c-1", "by-claim")
    holders = Holders(tmp_path, tmp_path / "none.sock", book)
    assert await holders.pods() == {"by-slot", "by-claim"}
    book.strike("c-1")
    assert await holders.pods() == {"by-slot"}


async def test_a_checkpoint_is_decoded_again_once_it_is_another_file(tmp_path: Path) -> None:
    """The agent decodes the kubelet's checkpoint again if the file has changed, or if the file is
    so new that a later write could have the same timestamp."""
    path = tmp_path / CHECKPOINT
    holders = Holders(tmp_path, tmp_path / "none.sock")

    def write(uid: str, age_s: int) -> None:
        entry = {"PodUID": uid, "ContainerName": "main", "ResourceName": "r", "DeviceIDs": None}
        path.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
        at_s = now_s - age_s
        os.utime(path, (at_s, at_s))

    now_s = int(time.time())
    write("a", 0)
    assert await holders.pods() == {"a"}
    write("b", 0)
    assert await holders.pods() == {"b"}
    write("c", 60)
    assert await holders.pods() == {"c"}
    write("d", 60)
    assert await holders.pods() == {"c"}, "the same inode, size and time"
    write("e", 59)
    assert await holders.pods() == {"e"}
