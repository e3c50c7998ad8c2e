"""Who of several schedulers decides for a pod, and which nodes each prefers while they all place.

Every pod and every node falls into one of `PARTS` parts by a hash of its key, and every part
belongs to the member whose own hash for it is the highest: a rendezvous hash. Whoever knows the
same members finds the same owner; when a member comes or goes, only what it gains or had moves.

Invariant: nothing here keeps two members apart for certain, for they may hold different lists; that
is what the server's fences do. A wrong list costs a refused append, never a pod placed twice."""

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
_MEMBERS_KEPT: Final = 256  # members whose weights are remembered
_WEIGHT_BYTES: Final = 8
_DIGEST_BYTES: Final = 64  # of one blake2b


@dataclass(frozen=True, slots=True)
class Shard:
    """The parts that one member owns."""

    parts: frozenset[int]

    def owns(self, key: str) -> bool:
        """Whether what has this key is this member's."""
        return part_of(key) in self.parts


WHOLE: Final = Shard(frozenset(range(PARTS)))
"""What a scheduler owns that is alone."""


def key_of(pod: PodState, *, limited: bool = False) -> str:
    """What decides who owns a pod: its gang, for a gang has one decision; or its uid.

    Pods with wishes about others in their namespace have one owner, so that he knows what he has
    just decided about the others. So have all pods of a namespace that is `limited` by a quota, and
    those that mount claims, which may be for one pod alone."""
    submitted = pod.submitted
    if limited:
        return submitted.namespace
    if submitted.group:
        return submitted.group
    if has_wishes(submitted.shape.pods) or submitted.volume_claims:
        return submitted.namespace
    return pod.uid


def part_of(key: str) -> int:
    """The part that a pod or a node falls into."""
    return int.from_bytes(blake2b(key.encode(), digest_size=2).digest()) % PARTS


def owner(key: str, members: Sequence[str]) -> str:
    """The member that owns what has this key; the order of `members` does not matter."""
    ordered = sorted(members)
    part = part_of(key)
    return ordered[int(np.argmax([_weights(member)[part] for member in ordered]))]


def shard(member: str, members: Sequence[str]) -> Shard:
    """What `member` owns, one of `members`."""
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
