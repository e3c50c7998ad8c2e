"""Decisions into the ledger: as one atomic batch, or one by one where few need not be together.

A batch is files of its own to the server (see `runtime.ledger.batching`), so a decision for a few
pods is there sooner in single appends. Invariants: a gang, and whatever is not few, is stored whole
or not at all; of the others a beginning may be stored, which is a decision upon the same state too;
each append on a node expects the one before it, so nobody comes between unseen.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from apportion.runtime.ledger.batching import FEW_DRAFTS
from apportion.runtime.ledger.port import Draft, Ledger


async def commit(ledger: Ledger, drafts: Sequence[Draft], *, together: bool) -> int:
    """Append the drafts of one decision, in order, and return the revision of the last.

    Raises what `Ledger.append` raises; unless `together`, the first of few may be stored then.
    """
    if together or len(drafts) > FEW_DRAFTS:
        return (await ledger.append(drafts))[-1]
    newest: dict[str, int] = {}
    revision = 0
    for draft in drafts:
        expected = newest.get(draft.subject, draft.expect)
        (revision,) = await ledger.append([structs.replace(draft, expect=expected)])
        if expected is not None:
            newest[draft.subject] = revision
    return revision
