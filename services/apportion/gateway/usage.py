"""What shares use now, as agents tell it: samples that nobody stores, kept for a picture.

A sample takes the place of the one before. Rows are handed out by a counter, as rows of nodes are
by revision: whoever has heard up to a number gets what was heard behind it.

Invariant: memory is bounded by the nodes and shares that there are: a sample of an unknown node, or
with more shares than its node has, is passed over; a node that falls silent is forgotten."""

import msgspec

from apportion.core.explain.fleet_rows import PackedUse
from apportion.core.ledger.state import NodeState, State
from apportion.runtime.ledger.port import Ledger
from apportion.runtime.process.clock import Clock
from apportion_schemas import UsageSample
from apportion_schemas.catalogue import token
from apportion_schemas.decoding import from_outside

SUBJECT_OF_NODES = "apportion.usage."
SUBJECT = f"{SUBJECT_OF_NODES}*"
SILENT_S = 60.0
"""A dozen samples were missed: what was used then says nothing any more."""

_decode = from_outside(msgspec.json.Decoder(UsageSample).decode)
_encode = msgspec.json.Encoder().encode


class _Heard(msgspec.Struct):
    number: int
    row: msgspec.Raw
    at_s: float
    silent: bool = False


class Uses:
    """The newest sample of each node of one fold."""

    def __init__(self, state: State, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._heard: dict[str, _Heard] = {}
        self._number = 0

    async def listen(self, ledger: Ledger) -> None:
        """Hear samples from now on. Raises LedgerUnavailable, NotPermitted."""
        await ledger.serve(SUBJECT, self.note)

    async def note(self, subject: str, payload: bytes) -> None:
        """Take one sample; what is none is passed over, for nothing depends on it."""
        try:
            sample = _decode(payload)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return
        node = self._state.nodes.get(sample.node)
        if subject != f"{SUBJECT_OF_NODES}{token(sample.node)}":
            return  # its agent speaks of another node
        if node is None:
            return
        held = sum(len(pod.placement.shares) for pod in node.pods.values() if pod.placement)
        if len(sample.shares) <= held:
            self._put(sample.node, packed_use(node, sample), silent=False)

    def rows(self, heard: int) -> tuple[int, tuple[msgspec.Raw, ...]]:
        """How far we have heard, and the rows behind `heard`, a number of this life of ours.

        One that lies before us is of a life before it: then all rows."""
        oldest_s = self._clock.monotonic() - SILENT_S
        for name, sample in list(self._heard.items()):
            if sample.at_s >= oldest_s:
                break  # they stand in the order in which they were heard
            if sample.silent:
                del self._heard[name]
            else:
                self._put(name, PackedUse(name, ()), silent=True)
        heard = heard if heard <= self._number else 0
        found: list[msgspec.Raw] = []
        for each in reversed(self._heard.values()):
            if each.number <= heard:
                break
            found.append(each.row)
        return self._number, tuple(found)

    def _put(self, node: str, use: PackedUse, *, silent: bool) -> None:
        self._number += 1
        self._heard.pop(node, None)
        row = msgspec.Raw(_encode(use))
        self._heard[node] = _Heard(self._number, row, self._clock.monotonic(), silent)


def packed_use(node: NodeState, sample: UsageSample) -> PackedUse:
    """How busy each pod is on each of its cards, from 0 to 1: the work of its part of the card.

    Where neither driver nor region tells the work, how much of its memory it has taken."""
    parts: dict[tuple[str, int], tuple[float, float]] = {}
    for share in sample.shares:
        state = node.by_id.get(share.device)
        if state is None:
            continue
        device = state.device
        if share.cores_used is None:
            used, held = float(share.memory_used_mib), float(share.memory_mib)
        else:
            part = 100 * share.memory_mib / max(1, device.memory_mib)
            used, held = float(share.cores_used), float(share.cores or part)
        key = (f"{share.namespace}/{share.name}", device.index)
        before = parts.get(key, (0.0, 0.0))
        parts[key] = (before[0] + used, before[1] + held)
    shares = (
        (pod, index, round(min(1.0, used / max(held, 1e-9)), 2))
        for (pod, index), (used, held) in parts.items()
    )
    return PackedUse(node.name, tuple(shares))
