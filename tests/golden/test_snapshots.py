"""Tests that restore recorded snapshots, one for each format that this build can read.

If a change breaks them, raise the format's number and record new snapshots with `record_ledger
--snapshot`."""

import json
from pathlib import Path

import pytest

from apportion.core.ledger.digest import digest
from apportion.core.ledger.snapshot import FORMAT, restore
from tests.golden.record_ledger import snapshot_fields

GOLDEN = Path(__file__).parent
SNAPSHOTS = sorted((GOLDEN / "snapshots").glob("format-*.snapshot"))
"""One for each recorded ledger, with the format in its name."""


@pytest.mark.parametrize("path", SNAPSHOTS, ids=[path.stem for path in SNAPSHOTS])
def test_a_recorded_snapshot_is_the_state_of_its_ledger(path: Path) -> None:
    """A recorded snapshot restores to the state that its recorded ledger folds to."""
    _, _, ledger = path.stem.removeprefix("format-").partition("-")
    told = json.loads((GOLDEN / "ledgers" / f"{ledger}.digest.json").read_text())
    state = restore(path.read_bytes())
    assert {"revision": state.revision, "digest": digest(state)} == told


def test_the_fields_of_the_format_are_the_recorded_ones() -> None:
    """The fields that a snapshot stores are those recorded for its format.

    If a field is added or moved, the format needs a new number."""
    recorded = GOLDEN / "snapshots" / f"format-{FORMAT}.fields.json"
    assert json.loads(recorded.read_text()) == snapshot_fields()
    assert any(path.stem.startswith(f"format-{FORMAT}-") for path in SNAPSHOTS)
