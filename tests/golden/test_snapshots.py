"""Snapshots of earlier builds: where a ledger's beginning was dropped, nothing else has it."""

import json
from pathlib import Path

import pytest

from apportion.core.ledger.digest import digest
from apportion.core.ledger.snapshot import FORMAT, restore

GOLDEN = Path(__file__).parent
SNAPSHOTS = sorted((GOLDEN / "snapshots").glob("format-*.snapshot"))
"""Each of a recorded ledger, taken by the last build that wrote the format in its name."""


@pytest.mark.parametrize("path", SNAPSHOTS, ids=[path.stem for path in SNAPSHOTS])
def test_a_snapshot_of_an_earlier_format_is_the_state_that_it_was(path: Path) -> None:
    """The state of the ledger in its name, to the digest."""
    written, _, ledger = path.stem.removeprefix("format-").partition("-")
    assert int(written) < FORMAT
    told = json.loads((GOLDEN / "ledgers" / f"{ledger}.digest.json").read_text())
    state = restore(path.read_bytes())
    assert {"revision": state.revision, "digest": digest(state)} == told
