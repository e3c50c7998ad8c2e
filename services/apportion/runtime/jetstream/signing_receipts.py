"""Signs receipts for all records that follow the newest receipt.

Invariant: a receipt continues the previous one on the same ledger. The state in a receipt is folded
only from records, starting where the previous receipt ended."""

from collections.abc import Callable, Sequence

from apportion.core.ledger import snapshot
from apportion.core.ledger.digest import digest
from apportion.core.ledger.receipts import SEGMENT_MAX, Checkpoint, Tree, leaf_of
from apportion.core.ledger.state import State
from apportion.runtime.files.signing import SigningKey, VerifyingKey
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.jetstream.stream import StreamInfo
from apportion.runtime.jetstream.wire import STREAM
from apportion.runtime.ledger.port import Record
from apportion.runtime.ledger.reader import StateFold
from apportion.runtime.ledger.reading import read_to
from apportion.runtime.ledger.receipts import Found, Ledger, Receipts, check_signature

TOLD_EVERY = 10_000


class CannotSign(Exception):
    """Error: some or all receipts could not be made. The message has the reason."""


async def sign(
    ledger: JetStreamLedger,
    receipts: Receipts,
    key: SigningKey,
    *,
    known: Sequence[VerifyingKey] = (),
    time: Callable[[], str],
    tell: Callable[[int], None],
) -> list[Found]:
    """Make and return receipts for all records after the newest receipt; none if no record follows.

    The newest receipt must be signed with `key` or a `known` key. `tell` gets the current revision
    at intervals. Raises CannotSign, ReceiptInvalid, UnknownEvent, LedgerError, OSError."""
    info = await stream.check(ledger.wire)
    newest = receipts.newest()
    before = newest.checkpoint if newest else None
    if newest is not None:
        check_signature(newest.receipt, [key.public, *known], where=str(newest.path))
    if before is not None:
        await _check_same(ledger, info, before)
        if before.last == info.state.last_seq:
            return []
    if not info.state.messages:
        return []
    state = receipts.state()
    if state is None or not state.rules.go_on(await stream.read_rules(ledger.wire), state.revision):
        state = await _begin(ledger, info, before)

    def write(tree: Tree, state: State) -> Found:
        return receipts.write(key, Ledger(STREAM, info.created), tree, state, time())

    signing = _Signing(state, before, goal=info.state.last_seq, write=write, tell=tell)
    await read_to(ledger, info.state.last_seq, signing.take, start=state.revision + 1)
    return signing.made


class _Signing:
    """One run that signs the records after `state`, up to the revision `goal`."""

    def __init__(
        self,
        state: State,
        before: Checkpoint | None,
        *,
        goal: int,
        write: Callable[[Tree, State], Found],
        tell: Callable[[int], None],
    ) -> None:
        self._cluster = StateFold(state, quiet=True)
        self._before, self._goal = before, goal
        self._write = write
        self._tell = tell
        self._tree = Tree()
        self.made: list[Found] = []

    def take(self, record: Record) -> None:
        """Add the next record to a receipt."""
        self._cluster.take(record)
        state, before = self._cluster.state, self._before
        if record.revision % TOLD_EVERY == 0:
            self._tell(record.revision)
        if before is not None and record.revision <= before.last:
            if record.revision == before.last:
                _check_state(state, before)
            return
        self._tree.add(leaf_of(record.revision, record.subject, record.payload))
        if record.revision >= self._goal or self._tree.size == SEGMENT_MAX:
            self.made.append(self._write(self._tree, state))
            self._tree = Tree()


async def _check_same(ledger: JetStreamLedger, info: StreamInfo, before: Checkpoint) -> None:
    if info.created != before.created:
        raise CannotSign(
            f"the newest receipt belongs to the ledger created at {before.created}, but this one "
            f"was created at {info.created}; use a separate folder for it"
        )
    if info.state.last_seq < before.last or info.state.first_seq > before.last + 1:
        raise CannotSign(
            f"the newest receipt ends at revision {before.last}, but the ledger has only "
            f"{info.state.first_seq} to {info.state.last_seq}; the events in between are gone"
        )
    record = await stream.read_record(ledger.wire, before.last)
    if record is not None and (
        leaf_of(record.revision, record.subject, record.payload).hex() != before.record
    ):
        raise CannotSign(
            f"revision {before.last} is not the signed record; find the first difference with "
            "`apportion verify --key PUBLIC --receipts DIR`"
        )


async def _begin(ledger: JetStreamLedger, info: StreamInfo, before: Checkpoint | None) -> State:
    """Return the newest stored state up to the newest receipt.

    Without a receipt, return the oldest stored state."""
    snapshots = Snapshots(ledger.wire)
    if before is not None or info.state.first_seq == 1:
        state = await snapshots.restore(at_most=before.last if before is not None else 0)
        if state.revision + 1 >= info.state.first_seq:
            if before is not None and state.revision == before.last:
                _check_state(state, before)
            return state
        raise CannotSign(
            "no snapshot is left at or before the newest receipt, and the events after it were "
            "deleted; keep this folder, and start new receipts in another one"
        )
    if oldest := await snapshots.oldest(info.state.first_seq):
        return oldest
    raise CannotSign("the beginning of the ledger was dropped, and no snapshot replaces it")


def _check_state(state: State, before: Checkpoint) -> None:
    if state.rules.changed_since(before.last):
        return  # an operator has set an earlier event aside since
    if before.state_format == snapshot.FORMAT and digest(state) != before.state:
        raise CannotSign(
            f"the ledger no longer yields the state signed at revision {before.last}; find the "
            "first difference with `apportion verify --key PUBLIC --receipts DIR`"
        )
