"""Tests of the gateway's checkpoints, which store the folded state on disk. Their number and size
are limited."""

from pathlib import Path

import pytest

from apportion.core.ledger.digest import digest
from apportion.core.ledger.state import State
from apportion.gateway.past.states import Checkpoints
from tests.support.fleet import gpu, node
from tests.support.happenings import happen


def state_at(revision: int) -> State:
    state = State()
    for number in range(revision):
        happen(state, node("n1", gpu(f"g{number % 3}", slots=1 + number % 5)))
    return state


def test_what_is_loaded_is_what_was_added(tmp_path: Path) -> None:
    """After a restart, the gateway finds its checkpoints and loads the same states from them."""
    kept = Checkpoints(tmp_path)
    for revision in (3, 7):
        kept.add(state_at(revision))
    again = Checkpoints(tmp_path)
    assert again.revisions == [3, 7]
    for revision in (3, 7):
        loaded = again.load(revision)
        assert loaded is not None
        assert digest(loaded) == digest(state_at(revision))
    assert [again.newest(at) for at in (2, 3, 6, 7, 99)] == [0, 3, 3, 7, 7]


@pytest.mark.parametrize("damage", [b"", b"nothing", None])
def test_what_is_damaged_is_removed(tmp_path: Path, damage: bytes | None) -> None:
    """If a checkpoint is damaged, the gateway removes it and uses the previous one."""
    kept = Checkpoints(tmp_path)
    for revision in (3, 7):
        kept.add(state_at(revision))
    [_, file] = sorted(tmp_path.iterdir())
    file.write_bytes(file.read_bytes()[:-9] if damage is None else damage)
    assert kept.load(7) is None
    assert kept.newest(99) == 3
    assert [path.name for path in tmp_path.iterdir()] == [f"{3:020}.state"]


def test_a_checkpoint_under_another_name_is_none(tmp_path: Path) -> None:
    """The gateway does not load a checkpoint if its file name has another revision than its
    content."""
    kept = Checkpoints(tmp_path)
    kept.add(state_at(3))
    (tmp_path / f"{3:020}.state").rename(tmp_path / f"{5:020}.state")
    assert Checkpoints(tmp_path).load(5) is None


def test_their_number_is_bounded(tmp_path: Path) -> None:
    """The number of checkpoints is limited. Those that remain are evenly spaced and include the
    newest."""
    kept = Checkpoints(tmp_path, every_events=10, number_max=8)
    for revision in range(10, 410, 10):
        if revision - (kept.revisions or [0])[-1] >= kept.every_events:
            kept.add(state_at(revision))
            assert kept.revisions[-1] == revision
            assert len(kept.revisions) <= 8
    gaps = [b - a for a, b in zip(kept.revisions, kept.revisions[1:], strict=False)]
    assert max(gaps) < 2 * kept.every_events
    assert kept.revisions[0] < 2 * kept.every_events


def test_their_bytes_are_bounded(tmp_path: Path) -> None:
    """If checkpoints become too large in total, the gateway drops some. It never drops the newest
    one."""
    kept = Checkpoints(tmp_path, every_events=1, bytes_max=1)
    for revision in (1, 2, 3):
        kept.add(state_at(revision))
    assert kept.revisions == [3]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == kept.bytes
