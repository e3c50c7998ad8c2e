"""The newest usage sample of each node, for the console's picture of the fleet; nothing is stored.

Rows are numbered, so that a client gets only the rows after its last number. Invariant: memory is
bounded: invalid samples are dropped, and a node that sends none is forgotten."""

import msgspec

from apportion.core.explain.fleet_rows import PackedUse
from apportion.core.ledger.state import NodeState, State
from apportion.runtime.process.clock import Clock
from apportion_schemas import UsageSample
from apportion_schemas.catalogue import token
from apportion_schemas.decoding import from_outside

SUBJECT_OF_NODES = "apportion.usage."
SUBJECT = f"{SUBJECT_OF_NODES}*"
SILENT_S = 60.0  # a dozen missed samples: the last one is outdated

_decode = from_outside(msgspec.json.Decoder(UsageSample).decode)
_encode = msgspec.json.Encoder().encode


class _Heard(msgspec.Struct):
    number: int
    row: msgspec.Raw
    at_s: float
    silent: bool = False


class Uses:
    """Stores the newest usage sample of each node."""

    def __init__(self, state: State, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._heard: dict[str, _Heard] = {}
        self._number = 0

    async def note(self, subject: str, payload: bytes) -> None:
        """Store one sample, or drop it if it is invalid."""
        try:
            sample = _decode(payload)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return
        node = self._state.nodes.get(sample.node)
        if subject != f"{SUBJECT_OF_NODES}{token(sample.node)}":
            return  # an agent may report only its own node
        if node is None:
            return
        held = sum(len(pod.placement.shares) for pod in node.pods.values() if pod.placement)
        if len(sample.shares) <= held:
            self._put(sample.node, packed_use(node, sample), silent=False)

    def rows(self, heard: int) -> tuple[int, tuple[msgspec.Raw, ...]]:
        """Return the newest row number, and the rows after row `heard` (all if unknown)."""
        oldest_s = self._clock.monotonic() - SILENT_S
        for name, sample in list(self._heard.items()):
            if sample.at_s >= oldest_s:
                break  # the rest is newer
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
    """Return how busy each pod is on each of its devices, from 0 to 1.

    The value is the used part of the pod's compute, or of its memory if compute is unknown."""
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
