"""States of past revisions on the local disk, so that a look into the past folds a short tail.

One file for each, compressed, named after its revision. Invariants: what is loaded is what was
added, by the rules of now, or nothing; number and bytes are bounded, by making the checkpoints
sparser.
"""

from __future__ import annotations

import bisect
import copy
import zlib
from pathlib import Path

from apportion.core.ledger import snapshot
from apportion.core.ledger.rules import Rules
from apportion.core.ledger.snapshot import SnapshotError
from apportion.core.ledger.state import State
from apportion.runtime.files.atomic import write_whole
from apportion.runtime.jetstream.snapshots import restored
from apportion.runtime.process.logs import get_logger

EVERY_EVENTS = 10_000
NUMBER_MAX = 512
BYTES_MAX = 1 << 30
_FAST = 1  # zlib's level: a sixth of the bytes at ten times the speed of the default
_SUFFIX = ".state"

_log = get_logger(__name__)


class Checkpoints:
    """The checkpoints in one folder, which must be there.

    `rules` are those by which the ledger is read now.
    """

    def __init__(
        self, folder: Path, *, every_events: int = EVERY_EVENTS, number_max: int = NUMBER_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._number_max = number_max
        self._bytes_max = bytes_max
        self._bytes: dict[int, int] = {
            int(path.stem): path.stat().st_size
            for path in sorted(folder.glob(f"*{_SUFFIX}"))
            if path.stem.isdecimal()
        }
        self.revisions = sorted(self._bytes)
        self.every_events = every_events
        self.rules = Rules()

    def newest(self, at_most: int) -> int:
        """The newest revision at or before `at_most` that there is a checkpoint of; 0 if none."""
        place = bisect.bisect_right(self.revisions, at_most)
        return self.revisions[place - 1] if place else 0

    def add(self, state: State) -> None:
        """Keep the state as it is now. Raises OSError."""
        data = zlib.compress(snapshot.take(state), _FAST)
        write_whole(self._path(state.revision), data)
        if state.revision not in self._bytes:
            bisect.insort(self.revisions, state.revision)
        self._bytes[state.revision] = len(data)
        while len(self.revisions) > self._number_max or self.bytes > self._bytes_max:
            if not self._thin():
                return

    @property
    def bytes(self) -> int:
        """How many bytes they take on the disk."""
        return sum(self._bytes.values())

    def load(self, revision: int) -> State | None:
        """The state of that checkpoint, or None, and it is removed, where it cannot be used."""
        try:
            state = restored(bytearray(zlib.decompress(self._path(revision).read_bytes())))
            if state.revision != revision:
                raise SnapshotError(f"it is of revision {state.revision}")
            if not state.rules.go_on(self.rules, revision):
                raise SnapshotError("it holds what an operator has set aside since")
        except (OSError, zlib.error, SnapshotError) as error:
            _log.warning("checkpoint not used", revision=revision, error=str(error))
            self.forget(revision)
            return None
        return state

    def nothing(self) -> State:
        """The state before the first revision."""
        return State(rules=copy.deepcopy(self.rules))

    def clear(self) -> None:
        """Remove all: they are of another ledger."""
        for revision in list(self.revisions):
            self.forget(revision)

    def forget(self, revision: int) -> None:
        """Remove the checkpoint of that revision, if it is there."""
        self._path(revision).unlink(missing_ok=True)
        if self._bytes.pop(revision, None) is not None:
            self.revisions.remove(revision)

    def _thin(self) -> bool:
        """Twice as far apart from now on; whether that removed any. The newest always stays."""
        self.every_events *= 2
        newest, kept, removed = self.revisions[-1], 0, False
        for revision in list(self.revisions):
            if revision != newest and revision - kept < self.every_events:
                self.forget(revision)
                removed = True
            else:
                kept = revision
        return removed or self.every_events < newest

    def _path(self, revision: int) -> Path:
        return self._folder / f"{revision:020}{_SUFFIX}"
