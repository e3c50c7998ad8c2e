"""Holding records to the receipts of a folder, one after the other as somebody reads them.

Invariant: what counts as proven was read record by record from a segment's first revision to its
last, and has the root that was signed. Where a segment has its fingerprints, the first record that
is not what it was is named; where they are gone, the segment is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from apportion.core.ledger import snapshot
from apportion.core.ledger.digest import digest
from apportion.core.ledger.receipts import (
    FINGERPRINT_BYTES,
    Checkpoint,
    ReceiptInvalid,
    Tree,
    heads_of,
    leaf_of,
)
from apportion.core.ledger.rules import Rules
from apportion.core.ledger.state import State
from apportion.runtime.files.signing import VerifyingKey
from apportion.runtime.ledger.port import Record
from apportion.runtime.ledger.receipts import Found, Receipts

Wrong = tuple[int, str]
"""A revision, and what is wrong there."""


class ReceiptCheck:
    """One reading. `proven` records were under `held` receipts, the newest up to `last`, at `time`.

    What is signed from now on does not count: make it before the ledger's end is asked for. `goal`
    is where the reading will end, 0 for wherever that is. Raises ReceiptInvalid, OSError.
    """

    def __init__(self, receipts: Receipts, keys: Sequence[VerifyingKey]) -> None:
        self._receipts = receipts
        self._coming = receipts.checked(keys)
        self._lasts = receipts.lasts()
        self.goal = 0
        self._found: Found | None = None
        self._tree: Tree | None = None
        self._fingerprints: bytes | None = None
        self._signed: Checkpoint | None = None
        self._named = False
        self._next = 0
        self.proven = self.held = self.last = 0
        self.time = ""

    def take(self, record: Record) -> Iterator[Wrong]:
        """The next record, whatever it is."""
        if record.revision != self._next:
            found = self._found
            if self._next and found is not None and found.checkpoint.first <= self._next:
                yield self._next, f"is missing, and {found.path.name} signed it"
            self._tree = None
            yield from self._advance(record.revision)
        self._next = record.revision + 1
        if self._found is None or self._tree is None:
            yield from self._advance(self._next)
            return
        leaf = leaf_of(record.revision, record.subject, record.payload)
        begins = self._tree.size * FINGERPRINT_BYTES
        self._tree.add(leaf)
        known = self._fingerprints
        here = known[begins : begins + FINGERPRINT_BYTES] if known is not None else leaf
        if not self._named and not leaf.startswith(here):
            self._named = True
            yield record.revision, f"is not the record that {self._found.path.name} signed"
        if record.revision == self._found.checkpoint.last:
            yield from self._end(self._tree, self._found.checkpoint)
            yield from self._advance(self._next)

    def finish(self, start: int) -> Iterator[Wrong]:
        """The ledger has no more; its reading began at `start`."""
        revision = self._next or start
        yield from self._advance(revision)
        if self._found is not None and self._found.checkpoint.last >= revision:
            signed = self._found.checkpoint
            # Without fingerprints, what was read of the segment may be wrong already.
            blind = self._tree is not None and self._tree.size > 0 and self._fingerprints is None
            text = f"the ledger ends before {revision}, and {self._found.path.name} signed more"
            yield signed.first if blind else revision, text

    def _advance(self, revision: int) -> Iterator[Wrong]:
        """Go on to the receipt whose segment has this revision, or comes behind it."""
        try:
            while self._found is None or self._found.checkpoint.last < revision:
                self._found = next(self._coming, None)
                self._tree = None
                if self._found is None:
                    return
        except (ReceiptInvalid, OSError) as error:
            self._found, self._coming = None, iter(())
            yield revision, str(error)
            return
        if self._found.checkpoint.first == revision:
            self._tree, self._named = Tree(), False
            self._fingerprints = self._receipts.fingerprints(self._found)

    def _end(self, tree: Tree, signed: Checkpoint) -> Iterator[Wrong]:
        if tree.root() == signed.root:
            self.proven += tree.size
            self.held += 1
            self.last, self.time = signed.last, signed.time
            self._signed = signed
        elif not self._named:
            text = f"from here to {signed.last} a record is not what was signed; the receipt's"
            yield signed.first, f"{text} fingerprints are gone, so only a good copy tells which"

    def folded(self, state: State) -> Iterator[Wrong]:
        """The state behind the record that was taken last."""
        signed = self._signed
        if signed is None or signed.last != state.revision:
            return
        self._signed = None
        wrong = {name for name, head in heads_of(state).items() if signed.heads.get(name) != head}
        wrong |= signed.heads.keys() - state.nodes.keys()
        if wrong:
            yield (
                signed.last,
                f"the newest placement on {min(wrong)} is not the one that was signed",
            )
        elif self._is_final(signed, state.rules) and digest(state) != signed.state:
            yield signed.last, "the state at this revision is not the one that was signed"

    def _is_final(self, signed: Checkpoint, rules: Rules) -> bool:
        """Whether no other receipt is held: a digest takes its time, and the last says it all."""
        if signed.state_format != snapshot.FORMAT:
            return False  # another build made it, by other rules
        if rules.changed_since(signed.last):
            return False  # an operator has said since that something of it counts for nothing
        place = bisect_right(self._lasts, signed.last)
        return place == len(self._lasts) or 0 < self.goal < self._lasts[place]
