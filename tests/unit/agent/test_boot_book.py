"""What an agent notes is on the disk: also when a write fails, and when several write at once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from apportion.agent.boot_book import BootBook

CLAIMS = 8


def book(folder: Path) -> BootBook[str]:
    """As a life of the agent begins with it, of no boot."""
    return BootBook(folder / "book.json", folder, str)


def test_what_could_not_be_noted_is_noted_by_the_next_try(tmp_path: Path) -> None:
    """A kubelet asks again, and an agent that is then killed has to know of it."""
    away = tmp_path / "away"
    noted = book(away)
    with pytest.raises(FileNotFoundError):
        noted.note("claim", "pod")
    assert noted.entries == {}
    away.mkdir()
    noted.note("claim", "pod")
    assert book(away).entries == {"claim": "pod"}


def test_what_could_not_be_struck_out_is_struck_out_by_the_next_try(tmp_path: Path) -> None:
    """Else it would come back with the next life of the agent, for ever."""
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
    """Claims of several pods are prepared in threads beside one another."""
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
