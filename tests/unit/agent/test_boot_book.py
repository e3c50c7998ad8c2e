"""Tests of `BootBook`, a file in which the agent keeps entries across its own restarts. Entries
reach the disk even after a failed write or with several writers."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from apportion.agent.boot_book import BootBook

CLAIMS = 8


def book(folder: Path) -> BootBook[str]:
    """Open the file of entries as a new agent process would."""
    return BootBook(folder / "book.json", folder, str)


def test_what_could_not_be_noted_is_noted_by_the_next_try(tmp_path: Path) -> None:
    """If the agent cannot write its file of entries, adding an entry fails. The retry writes the
    entry."""
    away = tmp_path / "away"
    noted = book(away)
    with pytest.raises(FileNotFoundError):
        noted.note("claim", "pod")
    assert noted.entries == {}
    away.mkdir()
    noted.note("claim", "pod")
    assert book(away).entries == {"claim": "pod"}


def test_what_could_not_be_struck_out_is_struck_out_by_the_next_try(tmp_path: Path) -> None:
    """If the agent cannot write its file of entries, removing an entry fails and the entry stays.
    The retry removes the entry."""
    here, away = tmp_path / "here", tmp_path / "away"
    here.mkdir()
    noted = book(here)
    noted.note("claim", "pod")
    here.rename(away)
    with pytest.raises(FileNotFoundError):
        noted.strike("claim")
    assert noted.entries == {"claim": "pod"}
    away.rename(here)
    noted.strike("claim")
    assert book(here).entries == {}


def test_of_several_who_note_at_once_all_are_on_the_disk(tmp_path: Path) -> None:
    """If several threads of the agent add entries at the same time, all entries reach the disk."""
    noted = book(tmp_path)
    together = threading.Barrier(CLAIMS)

    def note(number: int) -> None:
        together.wait()
        noted.note(f"claim-{number}", "pod")

    with ThreadPoolExecutor(CLAIMS) as threads:
        for turn in range(20):
            list(threads.map(note, range(turn * CLAIMS, (turn + 1) * CLAIMS)))
            assert book(tmp_path).entries == noted.entries
    assert len(noted.entries) == 20 * CLAIMS
