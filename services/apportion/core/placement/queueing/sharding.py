"""Choose which of several schedulers decides for a pod, and which nodes it tries first.

Pods and nodes are hashed into `PARTS` parts. By rendezvous hashing, each part belongs to the
scheduler with the highest hash, so few parts move when a scheduler joins or leaves. If schedulers
disagree about who runs, the server's fences refuse an append, and no pod is placed twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from apportion.core.ledger.state import PodState
from apportion.core.placement.affinity.neighbours import has_wishes

PARTS: Final = 1024  # a power of two: a part is the low bits of a hash
_MEMBERS_KEPT: Final = 256  # members whose weights are cached
_WEIGHT_BYTES: Final = 8
_DIGEST_BYTES: Final = 64  # of one blake2b


@dataclass(frozen=True, slots=True)
class Shard:
    """The pods and nodes that belong to one scheduler, selected by hash."""

    parts: frozenset[int]

    def owns(self, key: str) -> bool:
        """Return True if the pod's key or the node's name is in this shard."""
        return part_of(key) in self.parts


WHOLE: Final = Shard(frozenset(range(PARTS)))  # what a single scheduler owns


def key_of(pod: PodState, *, limited: str = "") -> str:
    """Return the key whose hash decides which scheduler owns a pod: limit, gang, namespace or uid.

    Pods whose decisions depend on each other have one owner: pods with a common limit, pods of one
    gang, and pods of one namespace with affinity. `limited` is the key of pods with a limit
    (`Limits.owner_key`)."""
    submitted = pod.submitted
    if limited:
        return limited
    if submitted.group:
        return submitted.group
    if has_wishes(submitted.shape.pods) or submitted.volume_claims:
        return submitted.namespace
    return pod.uid


def part_of(key: str) -> int:
    """Return the number of the part to which a pod or node belongs."""
    return int.from_bytes(blake2b(key.encode(), digest_size=2).digest()) % PARTS


def owner(key: str, members: Sequence[str]) -> str:
    """Return the scheduler that owns the key; the order of `members` does not matter."""
    ordered = sorted(members)
    part = part_of(key)
    return ordered[int(np.argmax([_weights(member)[part] for member in ordered]))]


def shard(member: str, members: Sequence[str]) -> Shard:
    """Return the shard of scheduler `member`, one of `members`."""
    ordered = sorted({member, *members})
    if len(ordered) == 1:
        return WHOLE
    owners = np.stack([_weights(each) for each in ordered]).argmax(0)
    own = np.flatnonzero(owners == ordered.index(member))
    return Shard(frozenset(own.tolist()))


@lru_cache(maxsize=_MEMBERS_KEPT)
def _weights(member: str) -> NDArray[np.uint64]:
    blocks = PARTS * _WEIGHT_BYTES // _DIGEST_BYTES
    name = member.encode()
    stream = b"".join(blake2b(name, salt=block.to_bytes(8)).digest() for block in range(blocks))
    return np.frombuffer(stream, "<u8")
